//! The part of a worker that follows the agreed state.
//!
//! A session connects the controllers with the worker's *runtime*, which holds layers and runs the
//! stage. It requests admission, sends heartbeats, resends the runtime's reports until a briefing
//! shows that they are agreed, and turns briefings into commands. It decides nothing: its actions
//! follow from the last briefing.
//!
//! ```text
//! controllers  -- Briefing -->  WorkerSession  -- WorkerCommand -->  runtime
//!              <-- Message --                  <-- WorkerEvent ----
//! ```
//!
//! Commands come in the sequence in which the runtime must execute them. Nothing a session holds is
//! worth keeping across a restart: a worker that restarts is a new life and begins with nothing. A
//! process that was declared lost and lives on keeps the sealed layers that it holds, and its next
//! life reports them.

mod briefing;
mod command;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use zbelastic_types::{ClusterId, Generation, NodeId, StageIndex, Step};

use crate::contact::Contact;
use crate::contacts::Contacts;
use crate::entry::ReadyRecord;
use crate::job::JobSpec;
use crate::member::{AdmissionRefusal, Holder, Resources, Role};
use crate::message::{Envelope, HeldUpdate, Message, WorkerActivity};
use crate::plan::PlanRecord;
use crate::pre_copy::PreCopyPlan;
use crate::validation::Turn;

pub use briefing::BriefingRefusal;
pub use command::{LoadCommand, WorkerCommand, WorkerEvent};

/// The most versions for which the `Saved` message is resent. For a new one the oldest is
/// forgotten.
const SAVED_MAX: usize = 4;

/// How often a session sends, in ticks.
#[derive(Clone, Copy, Debug)]
pub struct SessionTiming {
    /// Ticks between two heartbeats.
    pub beat_ticks: u32,
    /// Ticks after which a message that is not known to be agreed is resent.
    pub resend_ticks: u32,
}

/// The configuration that a session is started with.
#[derive(Clone, Debug)]
pub struct SessionSetup {
    /// The cluster that the session requests admission to.
    pub cluster: ClusterId,
    /// The node that the worker runs as.
    pub node: NodeId,
    /// Grows with each start of the node, by more than the session counts on in between: it counts
    /// one further each time it was fenced off. The microseconds of a clock will do.
    pub boot: u64,
    /// Memory, speed and device class of the node.
    pub resources: Resources,
    /// Where the node is reached.
    pub contact: Contact,
    /// Controllers to request admission from. A member replaces them with the controllers among the
    /// contacts it received.
    pub controllers: Vec<NodeId>,
    /// Ticks between heartbeats and between resends.
    pub timing: SessionTiming,
}

/// An input that a session handles.
#[derive(Clone, Debug)]
pub enum SessionInput {
    /// A tick of the node's clock.
    Tick,
    /// A message from a controller.
    Message {
        /// The node that sent the message.
        from: NodeId,
        /// The message with the cluster that it belongs to.
        message: Box<Envelope>,
    },
    /// An event that the runtime reports.
    Event(WorkerEvent),
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

/// An action that the owner of the session executes.
#[derive(Clone, Debug, PartialEq)]
pub enum SessionOutput {
    /// Send a message; it may be lost.
    Send {
        /// The controller that receives the message.
        to: NodeId,
        /// The message with the cluster that it belongs to.
        message: Box<Envelope>,
    },
    /// Pass a command to the runtime.
    Command(WorkerCommand),
    /// End the process: the cluster does not admit it.
    End(AdmissionRefusal),
}

/// Whether a session is a member of the cluster.
#[derive(Debug)]
enum SessionStatus {
    /// Not admitted yet, or not any more.
    Outside,
    Member(Box<Membership>),
}

/// The knowledge of a member, and the messages that it has to send.
#[derive(Debug)]
struct Membership {
    holder: Holder,
    /// Index of the last briefing applied.
    briefing_index: u64,
    generation: Generation,
    /// Number of rewinds of the run, as far as it is known here.
    rewinds: u64,
    part: PlanPart,
    /// The turn of the seal that the runtime was commanded to apply last.
    applied_seal: Option<Turn>,
    /// Index of the `TakeInventory` command that the runtime has not answered.
    inventory_due: Option<u64>,
    /// The layers that the runtime copies ahead, or sends to those that do.
    pre_copy: Option<Arc<PreCopyPlan>>,
    /// The plan and the version of the last `Save` command.
    last_save: Option<(Generation, Step)>,
    unconfirmed: UnconfirmedMessages,
}

/// Messages with content that may not be agreed yet. Each is resent until a briefing shows that it
/// is.
#[derive(Debug, Default)]
struct UnconfirmedMessages {
    report: Option<(Turn, Message)>,
    held: BTreeMap<StageIndex, HeldUpdate>,
    ready: Option<ReadyRecord>,
    load_failed: Option<Message>,
    saved: VecDeque<(Step, Message)>,
    inventory: Option<(u64, Message)>,
    following: Option<Message>,
}

/// The worker's part in the plan in force.
#[derive(Debug)]
enum PlanPart {
    /// No part in the plan.
    Idle,
    /// No part in this plan; other workers may still request the layers it held before.
    Left {
        /// The newest plan that they were held under: they are of no use once a later one runs.
        held_under: Generation,
    },
    /// Loading, or waiting for the others.
    Loading { plan: Arc<PlanRecord> },
    /// Runs the program of the plan.
    Running { plan: Arc<PlanRecord> },
}

impl PlanPart {
    /// Layers that were copied ahead under this plan are held from now on, as those of a stage are.
    fn keep_followed(&mut self, generation: Generation) {
        match self {
            Self::Idle | Self::Left { .. } => *self = Self::Left { held_under: generation },
            Self::Loading { .. } | Self::Running { .. } => {}
        }
    }
}

/// The layers that the life before left to the next one.
#[derive(Clone, Copy, Debug)]
struct KeptLayers {
    /// The newest plan that they were held under.
    held_under: Generation,
    /// Number of rewinds of the run, as far as that life knew: what was held before a later one is
    /// not trusted.
    rewinds: u64,
}

/// The session of a worker with the controllers of its cluster.
#[derive(Debug)]
pub struct WorkerSession {
    setup: SessionSetup,
    status: SessionStatus,
    /// What the runtime kept of the life before, as long as the session is no member.
    kept: Option<KeptLayers>,
    leader: Option<NodeId>,
    /// Where members are reached, from the newest contacts received.
    contacts: Arc<Contacts>,
    spec: Option<Arc<JobSpec>>,
    pulse: WorkerActivity,
    /// The most ticks that an operation may last by the newest plan, with or without a stage here.
    op_ticks_max: Option<u32>,
    /// Whether the machine is about to go, in any of its lives.
    is_draining: bool,
    tick: u64,
    outbox: VecDeque<SessionOutput>,
}

impl WorkerSession {
    /// The session of a node that has just started.
    #[must_use]
    pub fn new(setup: SessionSetup) -> Self {
        Self {
            setup,
            status: SessionStatus::Outside,
            kept: None,
            leader: None,
            contacts: Arc::default(),
            spec: None,
            pulse: WorkerActivity::default(),
            op_ticks_max: None,
            is_draining: false,
            tick: 0,
            outbox: VecDeque::new(),
        }
    }

    /// Handles one input.
    ///
    /// # Errors
    /// If a message is refused: it is dropped, and the session stays as it was.
    pub fn handle(&mut self, input: SessionInput) -> Result<(), BriefingRefusal> {
        match input {
            SessionInput::Tick => self.handle_tick(),
            SessionInput::Message { from, message } => return self.handle_message(from, *message),
            SessionInput::Event(event) => self.handle_event(event),
            SessionInput::Drain => self.handle_drain(),
            SessionInput::Leave => self.handle_leave(),
            SessionInput::Controllers { cluster, controllers } => {
                if self.setup.cluster != cluster {
                    self.leave_cluster();
                    self.contacts = Arc::default();
                }
                self.setup.cluster = cluster;
                self.setup.controllers = controllers;
            }
        }
        Ok(())
    }

    /// The next thing to do, in order, until nothing is left.
    pub fn poll_output(&mut self) -> Option<SessionOutput> {
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
        match &self.status {
            SessionStatus::Outside => None,
            SessionStatus::Member(member) => Some(member.holder),
        }
    }

    /// Generation of the newest plan that it knows, if it is a member.
    #[must_use]
    pub fn generation(&self) -> Option<Generation> {
        match &self.status {
            SessionStatus::Outside => None,
            SessionStatus::Member(member) => Some(member.generation),
        }
    }

    /// Where members are reached, from the newest contacts received: its peers, and all
    /// controllers. The caller that connects to them looks again when the index has grown.
    #[must_use]
    pub fn contacts(&self) -> &Arc<Contacts> {
        &self.contacts
    }

    /// The controllers that messages are sent to: those that are counted on. While the session is
    /// no member, or has received no contacts, the controllers of the setup as well, since all
    /// those it knows may be gone.
    #[must_use]
    pub fn controllers(&self) -> BTreeSet<NodeId> {
        let agreed = self.contacts.controllers();
        let is_outside = match &self.status {
            SessionStatus::Outside => true,
            SessionStatus::Member(_) => self.contacts.index == 0,
        };
        let configured = self.setup.controllers.iter().copied().filter(|_| is_outside);
        agreed.chain(configured).collect()
    }

    /// The plan it has a part in, and its stage there.
    #[must_use]
    pub fn assigned_stage(&self) -> Option<(Generation, StageIndex)> {
        let SessionStatus::Member(member) = &self.status else { return None };
        match &member.part {
            PlanPart::Loading { plan } | PlanPart::Running { plan } => {
                Some((plan.generation, plan.stage_of(member.holder)?))
            }
            PlanPart::Idle | PlanPart::Left { .. } => None,
        }
    }

    /// Whether the operation under way has lasted longer than the newest plan allows, in ticks of
    /// this process: the rule by which a leader declares a member lost
    /// ([`LossReason::OpOverdue`](crate::member::LossReason)). Only the end of the process ends
    /// such an operation.
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
        let SessionTiming { beat_ticks, resend_ticks } = self.setup.timing;
        let is_due = |ticks: u32| self.tick.is_multiple_of(u64::from(ticks));
        let sends_beat = is_due(beat_ticks);
        let resends = is_due(resend_ticks);
        let (beat, unconfirmed) = match &self.status {
            // A node that is about to go does not request admission: it would be sent away at once.
            SessionStatus::Outside if self.is_draining => (None, Vec::new()),
            SessionStatus::Outside => (None, vec![self.join_request()]),
            SessionStatus::Member(member) => {
                let holder = member.holder;
                let known = member.briefing_index;
                let generation = member.generation;
                let pulse = self.pulse;
                let contacts = self.contacts.index;
                let beat = Message::Beat { holder, known, generation, contacts, pulse };
                let drain = self.is_draining.then_some(Message::Drain { holder });
                (Some(beat), drain.into_iter().chain(member.unconfirmed.messages(holder)).collect())
            }
        };
        if let Some(beat) = beat.filter(|_| sends_beat) {
            self.send_to_controllers(&beat);
        }
        if resends {
            unconfirmed.iter().for_each(|message| self.send_to_controllers(message));
        }
    }

    fn join_request(&self) -> Message {
        let SessionSetup { boot, resources, .. } = self.setup;
        let contact = self.setup.contact.clone();
        Message::Join { boot, role: Role::Worker, resources, contact }
    }

    fn handle_drain(&mut self) {
        self.is_draining = true;
        if let Some(holder) = self.holder() {
            self.send_to_controllers(&Message::Drain { holder });
        }
    }

    fn handle_leave(&mut self) {
        if let Some(holder) = self.holder() {
            self.send_to_controllers(&Message::Leave { holder });
        }
    }

    fn handle_event(&mut self, event: WorkerEvent) {
        if let WorkerEvent::Busy { is_busy } = event {
            self.pulse.busy_ticks = u32::from(is_busy);
            return;
        }
        if let WorkerEvent::VerdictWaited { ticks } = event {
            self.pulse.wait_ticks = ticks;
            return;
        }
        if let WorkerEvent::Progress { done } = event {
            self.pulse.progress = done;
            return;
        }
        let SessionStatus::Member(member) = &mut self.status else { return };
        let holder = member.holder;
        let Some(message) = member.message_of(holder, event) else { return };
        self.send_to_leader(&message);
    }

    /// Sends to the leader, or to all controllers if no leader is known.
    fn send_to_leader(&mut self, message: &Message) {
        match self.leader {
            Some(leader) => self.send(leader, message.clone()),
            None => self.send_to_controllers(message),
        }
    }

    fn send_to_controllers(&mut self, message: &Message) {
        for controller in self.controllers() {
            self.send(controller, message.clone());
        }
    }

    fn send(&mut self, to: NodeId, message: Message) {
        let cluster = self.setup.cluster;
        let message = Box::new(Envelope { cluster, message });
        self.outbox.push_back(SessionOutput::Send { to, message });
    }

    fn push_command(&mut self, command: WorkerCommand) {
        self.outbox.push_back(SessionOutput::Command(command));
    }
}

impl Membership {
    /// The message to send for an event. It is stored until it is known to be agreed.
    fn message_of(&mut self, holder: Holder, event: WorkerEvent) -> Option<Message> {
        if plan_of(&event).is_some_and(|generation| generation != self.generation) {
            return None;
        }
        // One that was requested of a life before, or for a plan before, is nobody's answer.
        if let WorkerEvent::Inventory { index, .. } = event {
            self.inventory_due.take_if(|due| *due == index)?;
        }
        self.unconfirmed.record(holder, event)
    }
}

/// The plan that an event is about, if it is about one only.
fn plan_of(event: &WorkerEvent) -> Option<Generation> {
    match event {
        WorkerEvent::Reported { report, .. } => Some(report.turn.generation),
        WorkerEvent::UpdateHeld(update) => Some(update.turn.generation),
        WorkerEvent::Loaded { generation, .. }
        | WorkerEvent::LoadFailed { generation, .. }
        | WorkerEvent::Following { generation, .. } => Some(*generation),
        WorkerEvent::Busy { .. }
        | WorkerEvent::Progress { .. }
        | WorkerEvent::VerdictWaited { .. }
        | WorkerEvent::Inventory { .. }
        | WorkerEvent::Saved { .. } => None,
    }
}

impl UnconfirmedMessages {
    fn record(&mut self, holder: Holder, event: WorkerEvent) -> Option<Message> {
        let message = match event {
            WorkerEvent::Busy { .. }
            | WorkerEvent::Progress { .. }
            | WorkerEvent::VerdictWaited { .. } => return None,
            WorkerEvent::Reported { report, state } => {
                let turn = report.turn;
                let message = Message::Report { holder, report, state };
                self.report = Some((turn, message.clone()));
                message
            }
            WorkerEvent::UpdateHeld(update) => {
                self.held.insert(update.of, update.clone());
                Message::Held { holder, update }
            }
            WorkerEvent::Inventory { index, layers } => {
                let message = Message::Inventory { holder, index, layers };
                self.inventory = Some((index, message.clone()));
                message
            }
            WorkerEvent::Following { generation, layers } => {
                let message = Message::Following { holder, generation, layers };
                self.following = Some(message.clone());
                message
            }
            WorkerEvent::Loaded { generation, layers, copies } => {
                let ready = ReadyRecord { generation, holder, layers, copies };
                self.ready = Some(ready.clone());
                // The layer that could not be loaded came after all.
                self.load_failed = None;
                Message::Ready(ready)
            }
            WorkerEvent::LoadFailed { generation, layer, cause } => {
                let message = Message::LoadFailed { holder, generation, layer, cause };
                self.load_failed = Some(message.clone());
                message
            }
            WorkerEvent::Saved { version, generation, layers, busy_milliticks } => {
                let message =
                    Message::Saved { holder, version, generation, layers, busy_milliticks };
                self.record_saved(version, message.clone());
                message
            }
        };
        Some(message)
    }

    fn record_saved(&mut self, version: Step, message: Message) {
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
