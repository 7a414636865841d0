//! A life: its events in the order of virtual time, and the components that handle them.
//!
//! Members tick together, 100 times a second; messages, fetches and writes take as long as is drawn
//! for them. What a member decides comes from `zbelastic_policy`; what it received, sent, wrote and
//! lost is kept here.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use zbelastic_consensus::contacts::Contacts;
use zbelastic_consensus::member::Role;
use zbelastic_policy::WorkCounter;
use zbelastic_policy::data::{DataFetchOutcome, DataName};
use zbelastic_policy::data_chunks::ChunkHashes;
use zbelastic_policy::piece::{PieceRef, StoreReferences};
use zbelastic_types::{Bytes, NodeId, Step};

use super::agreed::AgreedState;
use super::check::{HousekeepingChecker, HousekeepingMarker};
use super::cluster::HousekeepingCluster;
use super::disk::TEXT_CHUNK;
use super::fault_injection::MemberFaults;
use super::hostile::HostileMember;
use super::keeping::MemberKeeping;
use super::logs::DiskReport;
use super::member::MemberProcessState;
use super::net::MemberConnections;
use super::options::{CALM_US, HousekeepingFault, HousekeepingOptions, STORM_US};
use super::pieces::MemberCheckpoints;
use super::plans::PlanHistory;
use super::rotation::RotationReports;
use super::surroundings::HousekeepingSurroundings;
use super::texts::{TextFetches, TextRequest};
use crate::log::EventLog;
use crate::queue::{VirtualTime, VirtualTimeQueue};
use crate::random::{DrawPurpose, Draws};

/// A tick of a node.
pub(super) const TICK_US: u64 = 10_000;
/// What is looked at now and then: connections, contacts, promises.
pub(super) const LOOK_US: u64 = 100_000;
/// From one attempt to fetch a text to the next, and from one chunk read again to the next.
pub(super) const SECOND_US: u64 = 1_000_000;
/// Nodes that come during a life at most.
const JOINS_MAX: u64 = 16;
/// A message to a process that stands still waits so long at a time.
const STANDS_STILL_US: u64 = 100_000;
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
    Keeping(PieceRef, u64),
    Collect(StoreReferences),
    KeepData(DataName),
    HeldOut,
    StageReport,
    SaveFailed(Step),
    Contacts(Arc<Contacts>),
    Disk(DiskReport),
}

/// Why a piece is fetched.
#[derive(Clone, Debug)]
pub(super) enum FetchReason {
    /// Another node requests that it is kept; bytes of it that arrived are counted.
    Keep(WorkCounter),
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
    Texts { at: (NodeId, u64), request: TextRequest, outcome: DataFetchOutcome },
    Renewed { at: (NodeId, u64), is_at_door: bool },
    Restart { node: NodeId },
    Resume { node: NodeId },
    DiskAgain { node: NodeId },
    LogAgain { node: NodeId },
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
            | Self::DiskAgain { .. }
            | Self::LogAgain { .. } => None,
        }
    }
}

/// A life in progress.
pub struct HousekeepingWorld<'a> {
    env: HousekeepingSurroundings<'a>,
    connections: MemberConnections,
    keeping: MemberKeeping,
    texts: TextFetches,
    hostile: HostileMember,
    faults: MemberFaults,
    rotation: RotationReports,
}

impl<'a> HousekeepingWorld<'a> {
    /// The world of these options at its beginning.
    #[must_use]
    pub fn new(seed: u64, options: HousekeepingOptions, log: &'a mut EventLog) -> Self {
        let mut draws = Draws::new(seed, DrawPurpose::HousekeepingWork);
        let text: Vec<u8> = (0..TEXT_BYTES).map(|_| draws.number() as u8).collect();
        let layer_bytes = (0..options.layers).map(|layer| super::pieces::bytes_of(layer, 0));
        let layer_bytes: Vec<u64> = layer_bytes.collect();
        let first = options.controllers + options.workers;
        let hostile = options.is_hostile.then_some(NodeId(options.controllers + 1));
        let cluster = HousekeepingCluster {
            checkpoint_bytes: Bytes(layer_bytes.iter().sum()),
            plans: PlanHistory::new(options.layers),
            now: VirtualTime(0),
            members: BTreeMap::new(),
            links: BTreeSet::new(),
            agreed: AgreedState::new(options.controllers, first + JOINS_MAX, options.is_ephemeral),
            text_name: DataName::of(&text),
            text_hashes: ChunkHashes::of(&text, TEXT_CHUNK),
            skipped_s: 0,
            options,
        };
        let mut world = Self {
            connections: MemberConnections::new(MemberCheckpoints::new(&cluster.options)),
            keeping: MemberKeeping { layer_bytes, write_us: cluster.options.write_us },
            texts: TextFetches { text },
            hostile: HostileMember { node: hostile, pretended: VecDeque::new() },
            rotation: RotationReports::default(),
            faults: MemberFaults {
                node_next: NodeId(first + 1),
                node_last: NodeId(first + JOINS_MAX),
            },
            env: HousekeepingSurroundings {
                cluster,
                draws,
                queue: VirtualTimeQueue::default(),
                check: HousekeepingChecker::default(),
                log,
            },
        };
        world.populate();
        world
    }

    fn populate(&mut self) {
        let Self { env, texts, hostile, .. } = self;
        let controllers = env.cluster.options.controllers;
        for node in 1..=controllers {
            env.add(NodeId(node), Role::Controller, MEMORY_AMPLE);
            env.cluster.members[&NodeId(node)]
                .texts
                .put(env.cluster.text_name.hash, texts.text.clone());
        }
        for (index, is_small) in env.cluster.options.small.clone().into_iter().enumerate() {
            let node = NodeId(controllers + 1 + index as u64);
            env.add_worker(node, if is_small { MEMORY_LITTLE } else { MEMORY_AMPLE });
            let member = env.cluster.members.get_mut(&node).expect("it was added");
            member.is_hostile = hostile.node == Some(node);
        }
        for (at, fault) in env.cluster.options.faults.clone() {
            env.queue.push(at, HousekeepingEvent::Strike(fault));
        }
        env.queue.push(VirtualTime(0), HousekeepingEvent::Tick);
        env.queue.push(VirtualTime(0), HousekeepingEvent::Look);
        env.queue
            .push(VirtualTime(env.cluster.options.checkpoint_us), HousekeepingEvent::Checkpoint);
        env.queue.push(VirtualTime(SECOND_US), HousekeepingEvent::Attack);
    }

    /// Lives to the end.
    pub fn run(mut self) -> super::HousekeepingOutcome {
        let end = VirtualTime(STORM_US + CALM_US);
        while let Some((at, event)) = self.env.queue.pop() {
            if at > end || self.env.check.failure.is_some() {
                break;
            }
            self.env.cluster.now = at;
            self.handle(event);
        }
        if self.env.check.failure.is_none() {
            self.env.check.check_ending(&self.env.cluster);
        }
        super::HousekeepingOutcome {
            failure: self.env.check.failure,
            markers: self.env.check.markers,
            checkpoints: self.env.cluster.agreed.count,
            virtual_us: self.env.cluster.now.0,
        }
    }

    fn handle(&mut self, event: HousekeepingEvent) {
        // What a process has under way comes to it when it goes on.
        if event.at().is_some_and(|at| self.env.cluster.is_paused(at)) {
            return self.env.queue.push(self.env.cluster.now.after(LOOK_US), event);
        }
        match event {
            HousekeepingEvent::Tick => self.tick(),
            HousekeepingEvent::Look => self.run_periodic_work(),
            HousekeepingEvent::Strike(fault) => {
                self.faults.inject(&mut self.env, &self.connections, fault)
            }
            HousekeepingEvent::Checkpoint => {
                self.connections.checkpoints.begin_checkpoint(&mut self.env)
            }
            HousekeepingEvent::Attack => self.hostile.attack(&mut self.env, &self.connections),
            HousekeepingEvent::Message { from, to, message } => self.deliver(from, to, message),
            HousekeepingEvent::Written { at, piece } => {
                self.connections.checkpoints.handle_written(&mut self.env, at, piece)
            }
            HousekeepingEvent::Fetched { at, from, piece, reason } => {
                self.keeping.handle_fetched(&mut self.env, at, (from, piece), reason);
            }
            HousekeepingEvent::Texts { at, request, outcome } => {
                self.texts.handle_text(&mut self.env, at, &request, outcome)
            }
            HousekeepingEvent::Renewed { at, is_at_door } => {
                self.env.handle_renewed(at, is_at_door)
            }
            HousekeepingEvent::Restart { node } => self.faults.restart(&mut self.env, node),
            HousekeepingEvent::Resume { node } => self.faults.resume(&mut self.env, node),
            HousekeepingEvent::DiskAgain { node } => self.faults.free_disk(&mut self.env, node),
            HousekeepingEvent::LogAgain { node } => self.faults.free_log(&mut self.env, node),
        }
    }

    fn tick(&mut self) {
        self.env.queue.push(self.env.cluster.now.after(TICK_US), HousekeepingEvent::Tick);
        let up: Vec<NodeId> = self.env.cluster.up().map(|member| member.node).collect();
        for node in up {
            self.connections.checkpoints.tick_pieces(&mut self.env, node);
            self.env.tick_certificate(node);
            self.connections.checkpoints.tick_disk_space(&mut self.env, node);
        }
    }

    fn run_periodic_work(&mut self) {
        self.env.queue.push(self.env.cluster.now.after(LOOK_US), HousekeepingEvent::Look);
        self.connections.connect(&mut self.env);
        self.env.note_leading();
        self.connections.send_contacts(&mut self.env);
        if self.env.cluster.is_second() {
            let up: Vec<NodeId> = self.env.cluster.up().map(|member| member.node).collect();
            up.into_iter().for_each(|node| self.faults.reopen_stopped(&mut self.env, node));
            self.keeping.scrub(&mut self.env, &self.texts);
            self.texts.fetch_missing_texts(&mut self.env);
            self.env.replan();
            self.rotation.tick(&mut self.env);
            self.connections.checkpoints.drop_lost(&mut self.env);
        }
        self.env.check_promises();
    }

    /// A message arrives, if the connection is there.
    fn deliver(&mut self, from: NodeId, to: NodeId, message: MemberMessage) {
        match self.env.cluster.members[&to].running {
            MemberProcessState::Up if from == to || self.env.cluster.is_linked(from, to) => {
                self.handle_message(to, from, message)
            }
            MemberProcessState::Paused if self.env.cluster.is_linked(from, to) => {
                let at = self.env.cluster.now.after(STANDS_STILL_US);
                self.env.queue.push(at, HousekeepingEvent::Message { from, to, message });
            }
            MemberProcessState::Up
            | MemberProcessState::Paused
            | MemberProcessState::Down
            | MemberProcessState::Ended => {}
        }
    }

    fn handle_message(&mut self, node: NodeId, from: NodeId, message: MemberMessage) {
        if self.env.cluster.members[&node].is_hostile {
            return self.hostile.handle_hostile_message(&mut self.env, node, from, message);
        }
        if !self.env.cluster.counts(node, from, &message) {
            return self.env.check.markers.note(HousekeepingMarker::ClaimRefused);
        }
        self.env.check.check_claimed(&self.env.cluster, node, from, &message);
        match message {
            MemberMessage::Keep(piece) => self.keeping.keep_for(&mut self.env, node, from, piece),
            MemberMessage::Kept(piece) => {
                self.connections.checkpoints.note_copy(&mut self.env, node, from, (piece, true))
            }
            MemberMessage::NotKept(piece) => {
                self.connections.checkpoints.note_copy(&mut self.env, node, from, (piece, false))
            }
            MemberMessage::Keeping(piece, left) => {
                let member = self.env.cluster.members.get_mut(&node).expect("a member");
                member.process.copies.note_progress(piece, from, Some(left));
            }
            MemberMessage::Collect(referred) => {
                self.connections.checkpoints.collect_at(&mut self.env, node, &referred)
            }
            MemberMessage::KeepData(name) => {
                self.texts.fetch_text(&mut self.env, node, name, vec![from])
            }
            MemberMessage::HeldOut | MemberMessage::StageReport => {}
            MemberMessage::SaveFailed(version) => {
                let owners =
                    self.env.cluster.agreed.pending.get(&version).map(|pending| &pending.owners);
                let is_owner = owners.is_some_and(|all| all.values().any(|(at, _)| *at == from));
                if Some(node) == self.env.cluster.leader() && is_owner {
                    self.env.line(|| format!("checkpoint {version} failed, n{from} says"));
                    self.env.cluster.agreed.give_up(version);
                }
            }
            MemberMessage::Contacts(contacts) => {
                self.connections.follow(&mut self.env, node, contacts)
            }
            MemberMessage::Disk(report) => self.env.note_disk_report(node, from, report),
        }
    }
}
