//! The part of a worker that takes part in what is agreed.
//!
//! A seat stands between the controllers and the *host*, which holds layers and runs the stage. It requests
//! admission, sends heartbeats, resends what the host reports until a briefing shows that it is agreed, and
//! turns briefings into orders. It takes no decision: what it does follows from the last briefing.
//!
//! ```text
//! controllers  -- Briefing -->  Seat  -- Order -->  host
//!              <-- Report ---         <-- News ---
//! ```
//!
//! Orders come in the sequence in which the host must carry them out. Nothing a seat holds is worth
//! keeping across a restart: a worker that restarts is a new life and begins with nothing.

mod briefed;
mod order;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use zbelastic_types::{ClusterId, Generation, NodeId, StageIndex, Step};

use crate::contact::{Contact, Contacts};
use crate::entry::ReadyRecord;
use crate::job::JobSpec;
use crate::member::{Holder, Resources, Role};
use crate::message::{Envelope, HeldUpdate, Message, Pulse};
use crate::plan::PlanRecord;
use crate::rehearsal::Rehearsal;
use crate::validation::Turn;

pub use briefed::BriefingRefusal;
pub use order::{LoadOrder, News, Order};

/// The most versions whose `Saved` message is resent. For a new one the oldest is forgotten.
const SAVED_MAX: usize = 4;

/// How often a seat sends, in ticks.
#[derive(Clone, Copy, Debug)]
pub struct SeatTiming {
    /// Ticks between two heartbeats.
    pub beat_ticks: u32,
    /// Ticks after which a message that is not known to be agreed is resent.
    pub resend_ticks: u32,
}

/// The configuration that a seat is started with.
#[derive(Clone, Debug)]
pub struct SeatSetup {
    /// The cluster that the seat requests admission to.
    pub cluster: ClusterId,
    /// The node that the worker runs as.
    pub node: NodeId,
    /// Grows with each start of the node, by more than the seat counts on in between: it counts one
    /// further each time it was fenced off. The microseconds of a clock will do.
    pub boot: u64,
    /// Memory, speed and device class of the node.
    pub resources: Resources,
    /// Where the node is reached.
    pub contact: Contact,
    /// Controllers to request admission from. A member takes the controllers from the contacts it received.
    pub controllers: Vec<NodeId>,
    /// Ticks between heartbeats and between resends.
    pub timing: SeatTiming,
}

/// An event that a seat handles.
#[derive(Clone, Debug)]
pub enum SeatInput {
    /// A tick of the node's clock.
    Tick,
    /// A message from a controller.
    Message {
        /// The node that sent the message.
        from: NodeId,
        /// The message with the cluster that it belongs to.
        message: Box<Envelope>,
    },
    /// News that the host reports.
    News(News),
    /// The machine is about to go.
    Drain,
    /// The machine goes now.
    Leave,
    /// Admission is to be requested from other controllers, perhaps of another cluster.
    Controllers {
        /// The cluster that these controllers serve.
        cluster: ClusterId,
        /// Controllers that replace those of the setup.
        controllers: Vec<NodeId>,
    },
}

/// An action for the owner of the seat to carry out.
#[derive(Clone, Debug, PartialEq)]
pub enum SeatOutput {
    /// Send a message; it may be lost.
    Send {
        /// The controller that receives the message.
        to: NodeId,
        /// The message with the cluster that it belongs to.
        message: Box<Envelope>,
    },
    /// Pass an order to the host.
    Order(Order),
}

/// Where a seat stands with the cluster.
#[derive(Debug)]
enum Standing {
    /// Not admitted yet, or not any more.
    Outside,
    Member(Box<Membership>),
}

/// What a member knows, and what it has to send.
#[derive(Debug)]
struct Membership {
    holder: Holder,
    /// Index of the last briefing applied.
    known: u64,
    generation: Generation,
    /// How often the run went back, as far as it is known here.
    rewinds: u64,
    work: Work,
    /// The seal that was passed on last.
    settled: Option<Turn>,
    /// The order to take an inventory that the host has not answered.
    inventory_due: Option<u64>,
    /// What the host copies ahead, or helps others to.
    rehearsal: Option<Arc<Rehearsal>>,
    /// The version that was ordered to be written last, and in which plan.
    save_ordered: Option<(Generation, Step)>,
    untold: Untold,
}

/// Messages whose content may not be agreed yet. Each is resent until a briefing shows that it is.
#[derive(Debug, Default)]
struct Untold {
    report: Option<(Turn, Message)>,
    held: BTreeMap<StageIndex, HeldUpdate>,
    ready: Option<ReadyRecord>,
    load_failed: Option<Message>,
    saved: VecDeque<(Step, Message)>,
    inventory: Option<(u64, Message)>,
    following: Option<Message>,
}

/// Its part in the plan in force.
#[derive(Debug)]
enum Work {
    /// No part in the plan.
    Idle,
    /// No part in this plan; other workers may still request the layers it held before.
    Left,
    /// Loading, or waiting for the others.
    Loading { plan: Arc<PlanRecord> },
    /// Runs the program of the plan.
    Running { plan: Arc<PlanRecord> },
}

/// The seat of a worker.
#[derive(Debug)]
pub struct Seat {
    setup: SeatSetup,
    standing: Standing,
    leader: Option<NodeId>,
    /// Where members are reached, from the newest contacts received.
    contacts: Arc<Contacts>,
    spec: Option<Arc<JobSpec>>,
    pulse: Pulse,
    /// The most ticks that an operation may take by the newest plan, with or without a stage here.
    op_ticks_max: Option<u32>,
    /// Whether the machine is about to go, in whatever life.
    is_draining: bool,
    tick: u64,
    outbox: VecDeque<SeatOutput>,
}

impl Seat {
    /// The seat of a node that has just started.
    #[must_use]
    pub fn new(setup: SeatSetup) -> Self {
        Self {
            setup,
            standing: Standing::Outside,
            leader: None,
            contacts: Arc::default(),
            spec: None,
            pulse: Pulse::default(),
            op_ticks_max: None,
            is_draining: false,
            tick: 0,
            outbox: VecDeque::new(),
        }
    }

    /// Handles one event.
    ///
    /// # Errors
    /// If a message does not belong: it is dropped, and the seat stays as it was.
    pub fn handle(&mut self, input: SeatInput) -> Result<(), BriefingRefusal> {
        match input {
            SeatInput::Tick => self.handle_tick(),
            SeatInput::Message { from, message } => return self.handle_message(from, *message),
            SeatInput::News(news) => self.handle_news(news),
            SeatInput::Drain => self.handle_drain(),
            SeatInput::Leave => self.handle_leave(),
            SeatInput::Controllers { cluster, controllers } => {
                if self.setup.cluster != cluster {
                    self.leave_membership();
                    self.contacts = Arc::default();
                }
                self.setup.cluster = cluster;
                self.setup.controllers = controllers;
            }
        }
        Ok(())
    }

    /// What to do, in order, until nothing is left.
    pub fn poll_output(&mut self) -> Option<SeatOutput> {
        self.outbox.pop_front()
    }

    /// The cluster that it belongs to, or requests admission to.
    #[must_use]
    pub fn cluster(&self) -> ClusterId {
        self.setup.cluster
    }

    /// Its life in the cluster, if it is a member.
    #[must_use]
    pub fn holder(&self) -> Option<Holder> {
        match &self.standing {
            Standing::Outside => None,
            Standing::Member(member) => Some(member.holder),
        }
    }

    /// Generation of the newest plan that it knows, if it is a member.
    #[must_use]
    pub fn generation(&self) -> Option<Generation> {
        match &self.standing {
            Standing::Outside => None,
            Standing::Member(member) => Some(member.generation),
        }
    }

    /// Where members are reached, from the newest contacts received: its peers, and all controllers. The
    /// caller that connects to them looks again when the index has grown.
    #[must_use]
    pub fn contacts(&self) -> &Arc<Contacts> {
        &self.contacts
    }

    /// Where messages go: the controllers that are counted on. While the seat is no member, or has received
    /// no contacts, the controllers of the setup as well, since all those it knows may be gone.
    #[must_use]
    pub fn controllers(&self) -> BTreeSet<NodeId> {
        let told = self.contacts.controllers();
        let is_outside = match &self.standing {
            Standing::Outside => true,
            Standing::Member(_) => self.contacts.index == 0,
        };
        let first = self.setup.controllers.iter().copied().filter(|_| is_outside);
        told.chain(first).collect()
    }

    /// The plan it has a part in, and its stage there.
    #[must_use]
    pub fn place(&self) -> Option<(Generation, StageIndex)> {
        let Standing::Member(member) = &self.standing else { return None };
        match &member.work {
            Work::Loading { plan } | Work::Running { plan } => {
                Some((plan.generation, plan.stage_of(member.holder)?))
            }
            Work::Idle | Work::Left => None,
        }
    }

    /// Whether the operation under way has taken longer than the newest plan allows, in ticks of this
    /// process: the rule by which a leader declares a member lost
    /// ([`LossReason::OpOverdue`](crate::member::LossReason)). Only the end of the process ends such an
    /// operation.
    #[must_use]
    pub fn has_hung_operation(&self) -> bool {
        self.op_ticks_max.is_some_and(|ticks_max| self.pulse.busy_ticks > ticks_max)
    }

    /// The job's configuration, once it is known.
    #[must_use]
    pub fn spec(&self) -> Option<&Arc<JobSpec>> {
        self.spec.as_ref()
    }

    fn handle_tick(&mut self) {
        self.tick += 1;
        if self.pulse.busy_ticks > 0 {
            self.pulse.busy_ticks += 1;
        }
        let SeatTiming { beat_ticks, resend_ticks } = self.setup.timing;
        let is_due = |ticks: u32| self.tick.is_multiple_of(u64::from(ticks));
        let (beats, resends) = (is_due(beat_ticks), is_due(resend_ticks));
        let (beat, untold) = match &self.standing {
            // A node that is about to go does not request admission: it would be sent away at once.
            Standing::Outside if self.is_draining => (None, Vec::new()),
            Standing::Outside => (None, vec![self.join()]),
            Standing::Member(member) => {
                let (holder, known) = (member.holder, member.known);
                let (generation, pulse) = (member.generation, self.pulse);
                let contacts = self.contacts.index;
                let beat = Message::Beat { holder, known, generation, contacts, pulse };
                let drain = self.is_draining.then_some(Message::Drain { holder });
                (Some(beat), drain.into_iter().chain(member.untold.messages(holder)).collect())
            }
        };
        if let Some(beat) = beat.filter(|_| beats) {
            self.tell_all(&beat);
        }
        if resends {
            untold.iter().for_each(|message| self.tell_all(message));
        }
    }

    fn join(&self) -> Message {
        let SeatSetup { boot, resources, .. } = self.setup;
        let contact = self.setup.contact.clone();
        Message::Join { boot, role: Role::Worker, resources, contact }
    }

    fn handle_drain(&mut self) {
        self.is_draining = true;
        if let Some(holder) = self.holder() {
            self.tell_all(&Message::Drain { holder });
        }
    }

    fn handle_leave(&mut self) {
        if let Some(holder) = self.holder() {
            self.tell_all(&Message::Leave { holder });
        }
    }

    fn handle_news(&mut self, news: News) {
        if let News::Busy { is_busy } = news {
            self.pulse.busy_ticks = u32::from(is_busy);
            return;
        }
        if let News::Waited { ticks } = news {
            self.pulse.wait_ticks = ticks;
            return;
        }
        if let News::Progress { done } = news {
            self.pulse.progress = done;
            return;
        }
        let Standing::Member(member) = &mut self.standing else { return };
        let holder = member.holder;
        let Some(message) = member.message_of(holder, news) else { return };
        self.tell_leader(&message);
    }

    /// Sends to the leader, or to all controllers if no leader is known.
    fn tell_leader(&mut self, message: &Message) {
        match self.leader {
            Some(leader) => self.send(leader, message.clone()),
            None => self.tell_all(message),
        }
    }

    fn tell_all(&mut self, message: &Message) {
        for controller in self.controllers() {
            self.send(controller, message.clone());
        }
    }

    fn send(&mut self, to: NodeId, message: Message) {
        let cluster = self.setup.cluster;
        let message = Box::new(Envelope { cluster, message });
        self.outbox.push_back(SeatOutput::Send { to, message });
    }

    fn order(&mut self, order: Order) {
        self.outbox.push_back(SeatOutput::Order(order));
    }
}

impl Membership {
    /// The message to send for news. It is stored until it is known to be agreed.
    fn message_of(&mut self, holder: Holder, news: News) -> Option<Message> {
        if plan_of(&news).is_some_and(|generation| generation != self.generation) {
            return None;
        }
        if let News::Inventory { index, .. } = news {
            self.inventory_due.take_if(|due| *due == index);
        }
        self.untold.remember(holder, news)
    }
}

/// The plan that news are about, if they are about one only.
fn plan_of(news: &News) -> Option<Generation> {
    match news {
        News::Reported { report, .. } => Some(report.turn.generation),
        News::Held(update) => Some(update.turn.generation),
        News::Loaded { generation, .. }
        | News::LoadFailed { generation, .. }
        | News::Following { generation, .. } => Some(*generation),
        News::Busy { .. }
        | News::Progress { .. }
        | News::Waited { .. }
        | News::Inventory { .. }
        | News::Saved { .. } => None,
    }
}

impl Untold {
    fn remember(&mut self, holder: Holder, news: News) -> Option<Message> {
        let message = match news {
            News::Busy { .. } | News::Progress { .. } | News::Waited { .. } => return None,
            News::Reported { report, state } => {
                let turn = report.turn;
                let message = Message::Report { holder, report, state };
                self.report = Some((turn, message.clone()));
                message
            }
            News::Held(update) => {
                self.held.insert(update.of, update.clone());
                Message::Held { holder, update }
            }
            News::Inventory { index, layers } => {
                let message = Message::Inventory { holder, index, layers };
                self.inventory = Some((index, message.clone()));
                message
            }
            News::Following { generation, layers } => {
                let message = Message::Following { holder, generation, layers };
                self.following = Some(message.clone());
                message
            }
            News::Loaded { generation, layers, copies } => {
                let ready = ReadyRecord { generation, holder, layers, copies };
                self.ready = Some(ready.clone());
                // The layer that could not be loaded came after all.
                self.load_failed = None;
                Message::Ready(ready)
            }
            News::LoadFailed { generation, layer, cause } => {
                let message = Message::LoadFailed { holder, generation, layer, cause };
                self.load_failed = Some(message.clone());
                message
            }
            News::Saved { version, generation, layers, busy_milliticks } => {
                let message =
                    Message::Saved { holder, version, generation, layers, busy_milliticks };
                self.remember_saved(version, message.clone());
                message
            }
        };
        Some(message)
    }

    fn remember_saved(&mut self, version: Step, message: Message) {
        if self.saved.len() == SAVED_MAX {
            self.saved.pop_front();
        }
        self.saved.push_back((version, message));
    }

    fn messages(&self, holder: Holder) -> Vec<Message> {
        let held = self.held.values().cloned();
        let held = held.map(|update| Message::Held { holder, update });
        let ready = self.ready.clone().map(Message::Ready);
        let saved = self.saved.iter().map(|(_, message)| message.clone());
        let report = self.report.as_ref().map(|(_, message)| message.clone());
        let inventory = self.inventory.as_ref().map(|(_, message)| message.clone());
        let others = [report, self.load_failed.clone(), inventory, self.following.clone()];
        let others = others.into_iter().flatten();
        others.chain(held).chain(ready).chain(saved).collect()
    }

    /// Forgets messages that need no resending once `open` waits for its seal.
    fn forget_before(&mut self, open: Turn, pending: &[Step]) {
        self.report.take_if(|(turn, _)| *turn < open);
        self.held.retain(|_, update| update.turn >= open);
        let is_waited_for = |version| pending.contains(&version) || version > open.step;
        self.saved.retain(|(version, _)| is_waited_for(*version));
    }
}
