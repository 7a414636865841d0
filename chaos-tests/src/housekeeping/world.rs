//! The members of a life, what lies between them, and time.
//!
//! Members tick together, 100 times a second; messages, fetches and writes take as long as is drawn
//! for them. What a member decides comes from `zbelastic_policy`; what it received, sent, wrote and
//! lost is kept here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use zbelastic_consensus::contact::Contacts;
use zbelastic_consensus::member::Role;
use zbelastic_identity::{UnixSeconds, ValidityWindow};
use zbelastic_policy::data::{DataFetchOutcome, DataName};
use zbelastic_policy::piece::{PieceRef, StoreReferences};
use zbelastic_policy::piece_copies::PieceCopyAction;
use zbelastic_types::{Bytes, LayerId, NodeId, Step};

use super::agreed::AgreedState;
use super::check::HousekeepingChecker;
use super::disk::{MemberDisk, MemberTexts};
use super::member::{HousekeepingMember, MemberProcess, MemberProcessState};
use super::options::{CALM_US, HousekeepingFault, HousekeepingOptions, STORM_US};
use super::plans::PlanHistory;
use crate::failure::LifeFailure;
use crate::log::EventLog;
use crate::queue::{VirtualTime, VirtualTimeQueue};
use crate::random::{DrawPurpose, Draws};

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
pub(super) enum MemberMessage {
    Keep(PieceRef),
    Kept(PieceRef),
    NotKept(PieceRef),
    Keeping(PieceRef),
    Collect(StoreReferences),
    KeepData(DataName),
    HeldOut,
    StageReport,
    SaveFailed(Step),
    Contacts(Arc<Contacts>),
}

/// Why a piece is fetched.
#[derive(Clone, Debug)]
pub(super) enum FetchReason {
    /// Another node requests that it is kept.
    Keep,
    /// It is damaged here; it may be fetched from these nodes next.
    Mend(Vec<NodeId>),
}

/// What happens. What belongs to a process names its life.
pub(super) enum HousekeepingEvent {
    Tick,
    Look,
    Strike(HousekeepingFault),
    Checkpoint,
    Attack,
    Message { from: NodeId, to: NodeId, message: MemberMessage },
    Written { at: (NodeId, u64), piece: PieceRef },
    Fetched { at: (NodeId, u64), from: NodeId, piece: PieceRef, reason: FetchReason },
    Texts { at: (NodeId, u64), requested: Vec<NodeId>, outcome: DataFetchOutcome },
    Renewed { at: (NodeId, u64), is_at_door: bool },
    Restart { node: NodeId },
    Resume { node: NodeId },
    DiskAgain { node: NodeId },
}

impl HousekeepingEvent {
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

/// A life in progress.
pub struct HousekeepingWorld<'a> {
    pub(super) options: HousekeepingOptions,
    pub(super) draws: Draws,
    pub(super) now: VirtualTime,
    pub(super) queue: VirtualTimeQueue<HousekeepingEvent>,
    pub(super) members: BTreeMap<NodeId, HousekeepingMember>,
    /// Which members are connected, each pair with the lower number first.
    pub(super) links: BTreeSet<(NodeId, NodeId)>,
    pub(super) agreed: AgreedState,
    pub(super) plans: PlanHistory,
    pub(super) check: HousekeepingChecker,
    pub(super) text: Arc<Vec<u8>>,
    /// Hours that passed at once.
    pub(super) skipped_s: u64,
    /// Bytes of each layer of a checkpoint.
    pub(super) layer_bytes: Vec<u64>,
    node_next: u64,
    pub(super) log: &'a mut EventLog,
    pub(super) failure: Option<LifeFailure>,
}

impl<'a> HousekeepingWorld<'a> {
    /// The world of these options at its beginning.
    #[must_use]
    pub fn new(seed: u64, options: HousekeepingOptions, log: &'a mut EventLog) -> Self {
        let mut draws = Draws::new(seed, DrawPurpose::HousekeepingWork);
        let text = (0..TEXT_BYTES).map(|_| draws.number() as u8).collect();
        let layer_bytes = (0..options.layers).map(|layer| super::pieces::bytes_of(layer, 0));
        let first = options.controllers + options.workers;
        let agreed = AgreedState::new(options.controllers, first + JOINS_MAX, options.is_ephemeral);
        let mut world = Self {
            layer_bytes: layer_bytes.collect(),
            plans: PlanHistory::new(options.layers),
            draws,
            now: VirtualTime(0),
            queue: VirtualTimeQueue::default(),
            members: BTreeMap::new(),
            links: BTreeSet::new(),
            agreed,
            check: HousekeepingChecker::default(),
            text: Arc::new(text),
            skipped_s: 0,
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
            self.queue.push(at, HousekeepingEvent::Strike(fault));
        }
        self.queue.push(VirtualTime(0), HousekeepingEvent::Tick);
        self.queue.push(VirtualTime(0), HousekeepingEvent::Look);
        self.queue.push(VirtualTime(self.options.checkpoint_us), HousekeepingEvent::Checkpoint);
        self.queue.push(VirtualTime(SECOND_US), HousekeepingEvent::Attack);
    }

    fn add_worker(&mut self, node: NodeId, memory: Bytes) {
        self.agreed.admit(node, memory);
        self.add(node, Role::Worker, memory);
    }

    fn add(&mut self, node: NodeId, role: Role, memory: Bytes) {
        let texts = MemberTexts::default();
        let checkpoint: u64 = self.layer_bytes.iter().sum();
        // Disk space for all that is kept, and as much again for what fails.
        let total = checkpoint * (self.options.kept as u64 + 4) * 2;
        let process = MemberProcess::new(node, self.controllers(), &texts, self.draws.number());
        let age_s = self.draws.below(LIFE_S / 2);
        let member = HousekeepingMember {
            node,
            role,
            is_hostile: false,
            running: MemberProcessState::Up,
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
    pub fn run(mut self) -> super::HousekeepingOutcome {
        let end = VirtualTime(STORM_US + CALM_US);
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
        super::HousekeepingOutcome {
            failure: self.failure,
            markers: self.check.markers,
            checkpoints: self.agreed.count,
            virtual_us: self.now.0,
        }
    }

    fn handle(&mut self, event: HousekeepingEvent) {
        // What a process has under way comes to it when it goes on.
        if event.at().is_some_and(|at| self.is_paused(at)) {
            return self.queue.push(self.now.after(LOOK_US), event);
        }
        match event {
            HousekeepingEvent::Tick => self.tick(),
            HousekeepingEvent::Look => self.run_periodic_work(),
            HousekeepingEvent::Strike(fault) => self.inject(fault),
            HousekeepingEvent::Checkpoint => self.begin_checkpoint(),
            HousekeepingEvent::Attack => self.attack(),
            HousekeepingEvent::Message { from, to, message } => self.deliver(from, to, message),
            HousekeepingEvent::Written { at, piece } => self.handle_written(at, piece),
            HousekeepingEvent::Fetched { at, from, piece, reason } => {
                self.handle_fetched(at, (from, piece), reason);
            }
            HousekeepingEvent::Texts { at, requested, outcome } => {
                self.handle_text(at, &requested, outcome)
            }
            HousekeepingEvent::Renewed { at, is_at_door } => self.handle_renewed(at, is_at_door),
            HousekeepingEvent::Restart { node } => self.restart(node),
            HousekeepingEvent::Resume { node } => self.resume(node),
            HousekeepingEvent::DiskAgain { node } => self.free_disk(node),
        }
    }

    fn tick(&mut self) {
        self.queue.push(self.now.after(TICK_US), HousekeepingEvent::Tick);
        let up: Vec<NodeId> = self.up().map(|member| member.node).collect();
        for node in up {
            self.tick_pieces(node);
            self.tick_certificate(node);
            self.tick_disk_space(node);
        }
    }

    fn run_periodic_work(&mut self) {
        self.queue.push(self.now.after(LOOK_US), HousekeepingEvent::Look);
        self.connect();
        self.send_contacts();
        if self.now.0.is_multiple_of(SECOND_US) {
            self.scrub();
            self.fetch_missing_texts();
            self.replan();
            self.drop_lost();
        }
        self.check_promises();
    }

    /// The leader: the first controller that runs.
    pub(super) fn leader(&self) -> Option<NodeId> {
        let controllers = self.up().filter(|member| member.role == Role::Controller);
        let valid = |member: &&HousekeepingMember| !member.is_ended(self.calendar());
        controllers.filter(valid).map(|member| member.node).next()
    }

    pub(super) fn up(&self) -> impl Iterator<Item = &HousekeepingMember> {
        self.members.values().filter(|member| member.is_up())
    }

    pub(super) fn controllers(&self) -> BTreeSet<NodeId> {
        (1..=self.options.controllers).map(NodeId).collect()
    }

    fn is_paused(&self, (node, life): (NodeId, u64)) -> bool {
        let member = &self.members[&node];
        member.running == MemberProcessState::Paused && member.life == life
    }

    /// A process in one of its lives, if it runs.
    pub(super) fn process(
        &mut self,
        (node, life): (NodeId, u64),
    ) -> Option<&mut HousekeepingMember> {
        self.members.get_mut(&node).filter(|member| member.is_up() && member.life == life)
    }

    /// The time that a right clock shows.
    pub(super) fn calendar(&self) -> UnixSeconds {
        BEGINNING.plus(self.skipped_s + self.now.0 / SECOND_US)
    }

    pub(super) fn text_name(&self) -> DataName {
        DataName::of(&self.text)
    }

    pub(super) fn line(&mut self, line: impl FnOnce() -> String) {
        let now = self.now;
        self.log.line(|| format!("{now} {}", line()));
    }

    /// The first failure of a life counts.
    pub(super) fn fail(&mut self, failure: LifeFailure) {
        self.failure.get_or_insert(failure);
    }

    pub(super) fn latency(&mut self) -> u64 {
        self.draws.between(100, self.options.link_us)
    }

    pub(super) fn send(&mut self, from: NodeId, to: NodeId, message: MemberMessage) {
        let at = self.now.after(self.latency());
        self.queue.push(at, HousekeepingEvent::Message { from, to, message });
    }

    /// Does what is next for a piece of a member's own.
    pub(super) fn continue_copying(
        &mut self,
        node: NodeId,
        piece: PieceRef,
        next: PieceCopyAction,
    ) {
        match next {
            PieceCopyAction::Wait => {}
            PieceCopyAction::Request(nodes) => {
                nodes.into_iter().for_each(|to| self.send(node, to, MemberMessage::Keep(piece)));
            }
            PieceCopyAction::Durable { copies, wanted, .. } => {
                self.end_copying(node, piece);
                if copies < wanted {
                    self.check_copies(node, piece, (copies, wanted));
                }
                self.note_durable(piece);
            }
            PieceCopyAction::Failed { wanted, .. } => {
                self.end_copying(node, piece);
                self.check_copies(node, piece, (0, wanted));
                let controllers = self.controllers();
                let failed = MemberMessage::SaveFailed(piece.version);
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
