//! The members of a life, what lies between them, and time.
//!
//! Members tick together, 100 times a second; messages, fetches and writes take as long as is drawn for them. What
//! a member decides comes from `zbelastic_policy`; what it received, sent, wrote and lost is kept here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use zbelastic_consensus::contact::Contacts;
use zbelastic_consensus::member::Role;
use zbelastic_policy::copies::CopyNext;
use zbelastic_policy::data::{DataName, DataOutcome};
use zbelastic_policy::piece::{PieceRef, Referred};
use zbelastic_transport::identity::{UnixSeconds, ValidityWindow};
use zbelastic_types::{Bytes, LayerId, NodeId, Step};

use super::agreed::Agreed;
use super::check::Check;
use super::disk::{MemberDisk, Texts};
use super::member::{Member, Process, Running};
use super::options::{CALM_US, Fault, Options, STORM_US};
use super::plans::Plans;
use crate::failure::Failure;
use crate::log::EventLog;
use crate::queue::{Moment, Queue};
use crate::random::{Draws, Purpose};

/// A tick of a node.
pub(super) const TICK_US: u64 = 10_000;
/// What is looked at now and then: connections, contacts, promises.
pub(super) const LOOK_US: u64 = 100_000;
/// From one attempt to fetch a text to the next, and from one chunk read again to the next.
pub(super) const SECOND_US: u64 = 1_000_000;
/// When a life begins, on the calendar.
const BEGINNING: UnixSeconds = UnixSeconds(1_700_000_000);
/// How long a certificate is good.
pub(super) const LIFE_S: u64 = 24 * 3600;
/// How far apart clocks are at most: what certificates tolerate, less a minute.
const SKEW_S_MAX: u64 = 240;
/// Nodes that come during a life at most.
const JOINS_MAX: u64 = 16;
/// Bytes of the text.
const TEXT_BYTES: usize = 3000;
/// Memory of a node with enough of it, and of one with little.
pub(super) const MEMORY_AMPLE: Bytes = Bytes(1 << 30);
pub(super) const MEMORY_LITTLE: Bytes = Bytes(20_000);

/// What members send each other.
#[derive(Clone, Debug)]
pub(super) enum Message {
    Keep(PieceRef),
    Kept(PieceRef),
    NotKept(PieceRef),
    Keeping(PieceRef),
    Collect(Referred),
    KeepData(DataName),
    HeldOut,
    StageReport,
    SaveFailed(Step),
    Contacts(Arc<Contacts>),
}

/// Why a piece is fetched.
#[derive(Clone, Debug)]
pub(super) enum Wanted {
    /// Another node wants it to be kept.
    Keep,
    /// It rotted here; it may be fetched from these next.
    Mend(Vec<NodeId>),
}

/// What happens. What belongs to a process names its life.
pub(super) enum Event {
    Tick,
    Look,
    Strike(Fault),
    Checkpoint,
    Attack,
    Message { from: NodeId, to: NodeId, message: Message },
    Written { at: (NodeId, u64), piece: PieceRef },
    Fetched { at: (NodeId, u64), from: NodeId, piece: PieceRef, wanted: Wanted },
    Texts { at: (NodeId, u64), asked: Vec<NodeId>, outcome: DataOutcome },
    Renewed { at: (NodeId, u64), is_at_door: bool },
    Restart { node: NodeId },
    Resume { node: NodeId },
    DiskAgain { node: NodeId },
}

impl Event {
    /// The process that it belongs to.
    const fn at(&self) -> Option<(NodeId, u64)> {
        match self {
            Self::Written { at, .. }
            | Self::Fetched { at, .. }
            | Self::Texts { at, .. }
            | Self::Renewed { at, .. } => Some(*at),
            Self::Tick
            | Self::Look
            | Self::Strike(_)
            | Self::Checkpoint
            | Self::Attack
            | Self::Message { .. }
            | Self::Restart { .. }
            | Self::Resume { .. }
            | Self::DiskAgain { .. } => None,
        }
    }
}

/// A life under way.
pub struct World<'a> {
    pub(super) options: Options,
    pub(super) draws: Draws,
    pub(super) now: Moment,
    pub(super) queue: Queue<Event>,
    pub(super) members: BTreeMap<NodeId, Member>,
    /// Which members are connected, each pair with the lower number first.
    pub(super) links: BTreeSet<(NodeId, NodeId)>,
    pub(super) agreed: Agreed,
    pub(super) plans: Plans,
    pub(super) check: Check,
    pub(super) text: Arc<Vec<u8>>,
    /// Hours that passed at once.
    pub(super) moved_s: u64,
    /// Bytes of each layer of a checkpoint.
    pub(super) layer_bytes: Vec<u64>,
    node_next: u64,
    pub(super) log: &'a mut EventLog,
    pub(super) failure: Option<Failure>,
}

impl<'a> World<'a> {
    /// The world of these options at its beginning.
    #[must_use]
    pub fn new(seed: u64, options: Options, log: &'a mut EventLog) -> Self {
        let mut draws = Draws::new(seed, Purpose::HousekeepingWork);
        let text = (0..TEXT_BYTES).map(|_| draws.number() as u8).collect();
        let layer_bytes = (0..options.layers).map(|layer| super::pieces::bytes_of(layer, 0));
        let first = options.controllers + options.workers;
        let agreed = Agreed::new(options.controllers, first + JOINS_MAX, options.is_ephemeral);
        let mut world = Self {
            layer_bytes: layer_bytes.collect(),
            plans: Plans::new(options.layers),
            draws,
            now: Moment(0),
            queue: Queue::default(),
            members: BTreeMap::new(),
            links: BTreeSet::new(),
            agreed,
            check: Check::default(),
            text: Arc::new(text),
            moved_s: 0,
            node_next: first + 1,
            options,
            log,
            failure: None,
        };
        world.populate();
        world
    }

    fn populate(&mut self) {
        for node in 1..=self.options.controllers {
            self.add(NodeId(node), Role::Controller, MEMORY_AMPLE);
            self.members[&NodeId(node)].texts.put(self.text_name().hash, self.text.to_vec());
        }
        let hostile = self.options.is_hostile.then_some(self.options.controllers + 1);
        for (index, is_small) in self.options.small.clone().into_iter().enumerate() {
            let node = self.options.controllers + 1 + index as u64;
            self.add_worker(NodeId(node), if is_small { MEMORY_LITTLE } else { MEMORY_AMPLE });
            let member = self.members.get_mut(&NodeId(node)).expect("it was added");
            member.is_hostile = Some(node) == hostile;
        }
        for (at, fault) in self.options.faults.clone() {
            self.queue.push(at, Event::Strike(fault));
        }
        self.queue.push(Moment(0), Event::Tick);
        self.queue.push(Moment(0), Event::Look);
        self.queue.push(Moment(self.options.checkpoint_us), Event::Checkpoint);
        self.queue.push(Moment(SECOND_US), Event::Attack);
    }

    fn add_worker(&mut self, node: NodeId, memory: Bytes) {
        self.agreed.admit(node, memory);
        self.add(node, Role::Worker, memory);
    }

    fn add(&mut self, node: NodeId, role: Role, memory: Bytes) {
        let texts = Texts::default();
        let checkpoint: u64 = self.layer_bytes.iter().sum();
        // Room for all that is kept, and as much again for what fails.
        let total = checkpoint * (self.options.kept as u64 + 4) * 2;
        let process = Process::new(node, self.controllers(), &texts, self.draws.number());
        let age_s = self.draws.below(LIFE_S / 2);
        let member = Member {
            node,
            role,
            is_hostile: false,
            running: Running::Up,
            life: 0,
            memory,
            disk: MemberDisk::new(total),
            texts,
            skew_s: self.draws.below(SKEW_S_MAX),
            window: window_from(UnixSeconds(self.calendar().0 - age_s)),
            process,
            able_since: self.now,
            led_since: self.now,
            ended_since: None,
        };
        self.members.insert(node, member);
    }

    /// A worker comes, if there are numbers left.
    pub(super) fn join(&mut self) {
        if self.node_next > self.options.controllers + self.options.workers + JOINS_MAX {
            return;
        }
        let node = NodeId(self.node_next);
        self.node_next += 1;
        self.line(|| format!("w{node} joins"));
        self.add_worker(node, MEMORY_AMPLE);
    }

    /// Lives to the end.
    pub fn run(mut self) -> super::Outcome {
        let end = Moment(STORM_US + CALM_US);
        while let Some((at, event)) = self.queue.pop() {
            if at > end || self.failure.is_some() {
                break;
            }
            self.now = at;
            self.handle(event);
        }
        if self.failure.is_none() {
            self.check_ending();
        }
        super::Outcome {
            failure: self.failure,
            seen: self.check.seen,
            checkpoints: self.agreed.count,
            virtual_us: self.now.0,
        }
    }

    fn handle(&mut self, event: Event) {
        // What a process has under way comes to it when it goes on.
        if event.at().is_some_and(|at| self.stands_still(at)) {
            return self.queue.push(self.now.after(LOOK_US), event);
        }
        match event {
            Event::Tick => self.tick(),
            Event::Look => self.look(),
            Event::Strike(fault) => self.strike(fault),
            Event::Checkpoint => self.begin_checkpoint(),
            Event::Attack => self.attack(),
            Event::Message { from, to, message } => self.deliver(from, to, message),
            Event::Written { at, piece } => self.handle_written(at, piece),
            Event::Fetched { at, from, piece, wanted } => {
                self.handle_fetched(at, (from, piece), wanted);
            }
            Event::Texts { at, asked, outcome } => self.handle_text(at, &asked, outcome),
            Event::Renewed { at, is_at_door } => self.handle_renewed(at, is_at_door),
            Event::Restart { node } => self.restart(node),
            Event::Resume { node } => self.resume(node),
            Event::DiskAgain { node } => self.give_room(node),
        }
    }

    fn tick(&mut self) {
        self.queue.push(self.now.after(TICK_US), Event::Tick);
        let up: Vec<NodeId> = self.up().map(|member| member.node).collect();
        for node in up {
            self.tick_pieces(node);
            self.tick_certificate(node);
            self.tick_room(node);
        }
    }

    fn look(&mut self) {
        self.queue.push(self.now.after(LOOK_US), Event::Look);
        self.connect();
        self.tell_contacts();
        if self.now.0.is_multiple_of(SECOND_US) {
            self.scrub();
            self.want_texts();
            self.replan();
            self.drop_lost();
        }
        self.check_promises();
    }

    /// The leader: the first controller that runs.
    pub(super) fn leader(&self) -> Option<NodeId> {
        let controllers = self.up().filter(|member| member.role == Role::Controller);
        let valid = |member: &&Member| !member.is_ended(self.calendar());
        controllers.filter(valid).map(|member| member.node).next()
    }

    pub(super) fn up(&self) -> impl Iterator<Item = &Member> {
        self.members.values().filter(|member| member.is_up())
    }

    pub(super) fn controllers(&self) -> BTreeSet<NodeId> {
        (1..=self.options.controllers).map(NodeId).collect()
    }

    fn stands_still(&self, (node, life): (NodeId, u64)) -> bool {
        let member = &self.members[&node];
        member.running == Running::Paused && member.life == life
    }

    /// A process in one of its lives, if it runs.
    pub(super) fn process(&mut self, (node, life): (NodeId, u64)) -> Option<&mut Member> {
        self.members.get_mut(&node).filter(|member| member.is_up() && member.life == life)
    }

    /// The time that a right clock shows.
    pub(super) fn calendar(&self) -> UnixSeconds {
        BEGINNING.plus(self.moved_s + self.now.0 / SECOND_US)
    }

    pub(super) fn text_name(&self) -> DataName {
        DataName::of(&self.text)
    }

    pub(super) fn line(&mut self, line: impl FnOnce() -> String) {
        let now = self.now;
        self.log.line(|| format!("{now} {}", line()));
    }

    /// The first failure of a life counts.
    pub(super) fn fail(&mut self, failure: Failure) {
        self.failure.get_or_insert(failure);
    }

    pub(super) fn latency(&mut self) -> u64 {
        self.draws.between(100, self.options.link_us)
    }

    pub(super) fn send(&mut self, from: NodeId, to: NodeId, message: Message) {
        let at = self.now.after(self.latency());
        self.queue.push(at, Event::Message { from, to, message });
    }

    /// Does what is next for a piece of a member's own.
    pub(super) fn go_on(&mut self, node: NodeId, piece: PieceRef, next: CopyNext) {
        match next {
            CopyNext::Wait => {}
            CopyNext::Ask(nodes) => {
                nodes.into_iter().for_each(|to| self.send(node, to, Message::Keep(piece)));
            }
            CopyNext::Durable { copies, wanted, .. } => {
                self.end_copying(node, piece);
                if copies < wanted {
                    self.check_copies(node, piece, (copies, wanted));
                }
                self.note_durable(piece);
            }
            CopyNext::Failed { wanted, .. } => {
                self.end_copying(node, piece);
                self.check_copies(node, piece, (0, wanted));
                let controllers = self.controllers();
                let failed = Message::SaveFailed(piece.version);
                controllers.into_iter().for_each(|to| self.send(node, to, failed.clone()));
            }
        }
    }

    fn end_copying(&mut self, node: NodeId, piece: PieceRef) {
        let member = self.members.get_mut(&node).expect("a member");
        member.process.offered.remove(&piece);
    }

    /// The layers that a checkpoint has.
    pub(super) fn layers(&self) -> impl Iterator<Item = LayerId> + use<> {
        (0..self.options.layers).map(LayerId)
    }
}

/// A certificate that was made then.
pub(super) fn window_from(not_before: UnixSeconds) -> ValidityWindow {
    ValidityWindow { not_before, not_after: not_before.plus(LIFE_S) }
}
