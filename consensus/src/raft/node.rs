//! The node: inputs in, outputs out.

mod drive;
mod greet;
mod propose;
mod view;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ::raft::eraftpb::HardState;
use ::raft::{INVALID_ID, RawNode, StateRole};
use zbelastic_types::NodeId;

use super::entry::{LogEntry, SnapshotImage};
use super::greeting::{Greeting, PeerTable};
use super::guard::MessageGuard;
use super::in_flight::InFlightWrites;
use super::members::Members;
use super::message::{RaftMessage, RaftMessageBody, WireMessage};
use super::output::{FatalReason, PersistToken, RaftOutput, RecordNumber};
use super::record::{HardVote, RaftRecord};
use super::recovery::RecoveredLog;
use super::refusal::RaftRefusal;
use super::setup::{MESSAGE_BYTES_MAX, RaftSetup, RaftStartError, SNAPSHOT_BYTES_MAX};
use super::storage::LogStore;

pub use propose::{CompactRefusal, ProposeRefusal};

/// One member of the cluster's log, or a node that waits to become one.
///
/// Give it inputs in any order; after each, take outputs from [`Self::poll`] until there are none.
pub struct RaftNode {
    setup: RaftSetup,
    raw: RawNode<LogStore>,
    phase: RaftPhase,
    boot: u64,
    /// Whether this start is durable. Before, nothing is sent.
    is_boot_durable: bool,
    outputs: VecDeque<RaftOutput>,
    writes: InFlightWrites,
    /// The hard state last handed out for persisting, and the last that is durable.
    written: HardVote,
    durable: HardVote,
    /// The members since the latest snapshot, each with the index that made them so.
    history: Vec<(u64, Members)>,
    removed: BTreeSet<NodeId>,
    peers: PeerTable,
    /// Index and term of the last entry or snapshot taken by [`Self::poll`].
    applied: (u64, u64),
    snapshot_due_at: u64,
    announced: (u64, u64),
    /// Ticks since each follower was sent a snapshot that it has not acknowledged.
    snapshot_waits: BTreeMap<u64, u32>,
}

#[derive(Debug)]
enum RaftPhase {
    Greeting(Greeting),
    Active,
    Stopped(FatalReason),
}

impl RaftNode {
    /// The first start of a node: as one of the first `voters` of a cluster, all of which are
    /// given the same voters and the same `snapshot_data`; or, without voters, as a node that
    /// waits to be added (its `snapshot_data` is not used: it gets the leader's).
    ///
    /// # Errors
    /// If the setup, the voters or the snapshot cannot be used.
    pub fn create(
        setup: RaftSetup,
        voters: &[NodeId],
        snapshot_data: Vec<u8>,
    ) -> Result<Self, RaftStartError> {
        let node = setup.node;
        let mut start = RaftStart::default();
        if !voters.is_empty() {
            let members = Members::first(voters);
            members.check().map_err(|fault| RaftStartError::BadMembers { fault })?;
            if !members.is_voter(node) {
                return Err(RaftStartError::NotVoter { node });
            }
            let image = SnapshotImage { index: 1, term: 1, members, data: snapshot_data };
            start.hard = HardVote { term: 1, vote: None, commit: 1 };
            start.records.push(RaftRecord::Snapshot(image.clone()));
            start.records.push(RaftRecord::HardState(start.hard));
            start.snapshot = Some(image);
        }
        start.boot = 1;
        Self::start(setup, start)
    }

    /// A later start from the records of the disk.
    ///
    /// # Errors
    /// If the setup or the records cannot be used.
    pub fn recover(setup: RaftSetup, recovered: RecoveredLog) -> Result<Self, RaftStartError> {
        let expected = setup.node;
        let hard = recovered.promise();
        let (found, boot) = recovered.boot.ok_or(RaftStartError::NeverStarted)?;
        if expected != found {
            return Err(RaftStartError::OtherNode { expected, found });
        }
        let commit = hard.commit;
        let last_index = recovered.last_index();
        if commit > last_index {
            return Err(RaftStartError::CommitBeyondLog { commit, last_index });
        }
        if let Some(image) = &recovered.snapshot {
            let fault = image.members.check();
            fault.map_err(|fault| RaftStartError::BadMembers { fault })?;
        }
        let start = RaftStart {
            hard,
            snapshot: recovered.snapshot,
            entries: recovered.entries,
            boot: boot + 1,
            peer_boots: recovered.peer_boots,
            next_record: recovered.records,
            records: Vec::new(),
        };
        Self::start(setup, start)
    }

    fn start(setup: RaftSetup, start: RaftStart) -> Result<Self, RaftStartError> {
        setup.check()?;
        let found = start.snapshot.as_ref().map_or(0, |image| image.data.len());
        if found > SNAPSHOT_BYTES_MAX {
            return Err(RaftStartError::SnapshotTooLarge { found });
        }
        let RaftStart { hard, snapshot, entries, boot, peer_boots, next_record, mut records } =
            start;
        records.push(RaftRecord::Boot { node: setup.node, boot });
        let applied = snapshot.as_ref().map_or((0, 0), |image| (image.index, image.term));
        let members = snapshot.as_ref().map(|image| image.members.clone()).unwrap_or_default();
        let snapshot = snapshot.map(SnapshotImage::into_raft).unwrap_or_default();
        let entries = entries.into_iter().map(LogEntry::into_raft).collect();
        let store = LogStore::new(hard_state(hard), snapshot, entries);
        let raw = raw_node(&setup, applied.0, store);
        let mut node = Self {
            snapshot_due_at: applied.0 + setup.compact_after,
            phase: RaftPhase::Active,
            raw,
            boot,
            is_boot_durable: false,
            outputs: VecDeque::new(),
            writes: InFlightWrites::new(next_record),
            written: hard,
            durable: hard,
            history: vec![(applied.0, members)],
            removed: BTreeSet::new(),
            peers: PeerTable::new(peer_boots),
            applied,
            announced: (INVALID_ID, hard.term),
            snapshot_waits: BTreeMap::new(),
            setup,
        };
        node.persist(records);
        node.settle();
        node.greet();
        Ok(node)
    }

    /// A tick of the node's clock.
    pub fn tick(&mut self) {
        match &mut self.phase {
            RaftPhase::Stopped(_) => {}
            RaftPhase::Greeting(greeting) => {
                if greeting.tick(self.setup.heartbeat_ticks) {
                    self.send_hellos();
                }
                self.end_greeting();
            }
            RaftPhase::Active => {
                if self.writes.tick() > self.setup.write_ticks_max {
                    self.step_down();
                }
                if self.is_tickable() {
                    self.retry_snapshots();
                    self.raw.tick();
                }
                self.settle();
            }
        }
    }

    /// Stops to lead, within the term.
    fn step_down(&mut self) {
        if self.raw.raft.state == StateRole::Leader {
            let term = self.raw.raft.term;
            self.raw.raft.become_follower(term, INVALID_ID);
        }
    }

    /// raft-rs may stand for election at a tick. It would panic while a snapshot is half
    /// installed, or on winning alone before all is persisted.
    fn is_tickable(&self) -> bool {
        let is_alone = self.members().is_alone(self.setup.node);
        let is_leader = self.raw.raft.state == StateRole::Leader;
        !self.writes.is_installing() && (is_leader || !is_alone || !self.writes.has_log())
    }

    /// raft-rs waits for ever for the answer to a snapshot unless its loss is reported to it.
    fn retry_snapshots(&mut self) {
        let is_leader = self.raw.raft.state == StateRole::Leader;
        let snapshot_nodes: BTreeSet<u64> = (self.raw.raft.prs().iter())
            .filter(|(_, progress)| progress.state == ::raft::ProgressState::Snapshot && is_leader)
            .map(|(&node, _)| node)
            .collect();
        self.snapshot_waits.retain(|node, _| snapshot_nodes.contains(node));
        for node in snapshot_nodes {
            let ticks = self.snapshot_waits.entry(node).or_default();
            *ticks += 1;
            if *ticks >= self.setup.snapshot_retry_ticks {
                self.snapshot_waits.remove(&node);
                self.raw.report_snapshot(node, ::raft::SnapshotStatus::Failure);
            }
        }
    }

    /// Handles a message. `from` is the node that sent it, as the transport knows.
    ///
    /// # Errors
    /// If it is refused. The node is then as it was before; but for
    /// [`RaftRefusal::BeyondLog`] from a member, after which it stops.
    pub fn handle(&mut self, from: NodeId, message: RaftMessage) -> Result<(), RaftRefusal> {
        if matches!(self.phase, RaftPhase::Stopped(_)) {
            return Err(RaftRefusal::Stopped);
        }
        match message {
            RaftMessage::Raft(bytes) => self.handle_raft(from, &bytes),
            RaftMessage::Hello(hello) => self.handle_hello(from, hello),
            RaftMessage::HelloAnswer(answer) => self.handle_hello_answer(from, answer),
        }
    }

    fn handle_raft(&mut self, from: NodeId, bytes: &[u8]) -> Result<(), RaftRefusal> {
        if bytes.len() > MESSAGE_BYTES_MAX {
            return Err(RaftRefusal::TooLarge { found: bytes.len() });
        }
        let message = WireMessage::decode(bytes).ok_or(RaftRefusal::Malformed)?;
        self.check_ends(from, &message)?;
        if let RaftPhase::Greeting(greeting) = &mut self.phase {
            if greeting.note_caller(from) {
                self.send_hellos();
            }
            return Err(RaftRefusal::Greeting);
        }
        if self.writes.is_installing() {
            return Err(RaftRefusal::Installing);
        }
        if let Err(refusal) = self.guard().check(&message) {
            if let RaftRefusal::BeyondLog { commit, last_index } = refusal
                && self.members().is_member(from)
            {
                self.stop(FatalReason::StaleLog { leader: from, commit, last_index });
            }
            return Err(refusal);
        }
        self.observe_peer(&message);
        let stepped = self.raw.step(message.into_raft());
        stepped.expect("an answer is a member's, and nothing is proposed by message");
        self.settle();
        Ok(())
    }

    fn check_ends(&self, from: NodeId, message: &WireMessage) -> Result<(), RaftRefusal> {
        if message.from != from || from == self.setup.node || from.0 == INVALID_ID {
            return Err(RaftRefusal::WrongSender { expected: from, found: message.from });
        }
        if message.to != self.setup.node {
            let expected = self.setup.node;
            let found = message.to;
            return Err(RaftRefusal::WrongReceiver { expected, found });
        }
        if self.removed.contains(&from) {
            return Err(RaftRefusal::RemovedNode { from });
        }
        Ok(())
    }

    fn guard(&self) -> MessageGuard<'_> {
        let is_log_under_way = self.writes.has_log();
        MessageGuard { raw: &self.raw, members: self.members(), is_log_under_way }
    }

    /// Remembers what others have written down, in case they forget (P5).
    fn observe_peer(&mut self, message: &WireMessage) {
        let raft = &self.raw.raft;
        if message.body.carries_durable_term() {
            self.peers.saw_term(message.from, message.term);
        }
        if let RaftMessageBody::AppendAnswer { index, rejection: None, .. } = message.body
            && raft.state == StateRole::Leader
            && message.term == raft.term
        {
            self.peers.saw_ack(message.from, message.term, index);
        }
        if message.durable > 0 && message.term >= raft.term {
            self.peers.saw_ack(message.from, message.term, message.durable);
        }
    }

    /// What was handed out with `token` is durable.
    ///
    /// # Panics
    /// If tokens are reported out of order or twice.
    pub fn on_persisted(&mut self, token: PersistToken) {
        if !matches!(self.phase, RaftPhase::Stopped(_)) {
            self.finish_write(token);
        }
    }

    /// The next thing to do, if there is one.
    pub fn poll(&mut self) -> Option<RaftOutput> {
        if self.outputs.is_empty() && !matches!(self.phase, RaftPhase::Stopped(_)) {
            self.settle();
        }
        let output = self.outputs.pop_front()?;
        match &output {
            RaftOutput::Committed(entry) => {
                self.advance_applied(entry.index, entry.term);
                self.request_snapshot();
            }
            RaftOutput::Installed { index, term, .. } => {
                self.advance_applied(*index, *term);
                self.snapshot_due_at = index + self.setup.compact_after;
            }
            RaftOutput::Send { .. }
            | RaftOutput::Persist { .. }
            | RaftOutput::Trim { .. }
            | RaftOutput::RequestSnapshot
            | RaftOutput::LeaderChanged { .. }
            | RaftOutput::Fatal(_) => {}
        }
        Some(output)
    }

    fn advance_applied(&mut self, index: u64, term: u64) {
        assert!(index > self.applied.0, "entries are handed out once, in order");
        self.applied = (index, term);
    }

    fn request_snapshot(&mut self) {
        if self.applied.0 >= self.snapshot_due_at {
            self.snapshot_due_at = self.applied.0 + self.setup.compact_after;
            self.outputs.push_front(RaftOutput::RequestSnapshot);
        }
    }

    fn stop(&mut self, reason: FatalReason) {
        self.phase = RaftPhase::Stopped(reason);
        self.writes.clear();
        self.outputs.clear();
        self.outputs.push_back(RaftOutput::Fatal(reason));
    }
}

/// What a start begins with.
#[derive(Default)]
struct RaftStart {
    hard: HardVote,
    snapshot: Option<SnapshotImage>,
    entries: Vec<LogEntry>,
    boot: u64,
    peer_boots: BTreeMap<NodeId, (u64, u64)>,
    next_record: RecordNumber,
    records: Vec<RaftRecord>,
}

fn node_of(id: u64) -> Option<NodeId> {
    (id != INVALID_ID).then_some(NodeId(id))
}

fn hard_state(hard: HardVote) -> HardState {
    let vote = hard.vote.map_or(INVALID_ID, |node| node.0);
    HardState { term: hard.term, vote, commit: hard.commit, ..HardState::default() }
}

fn raw_node(setup: &RaftSetup, applied: u64, store: LogStore) -> RawNode<LogStore> {
    let logger = ::slog::Logger::root(::slog::Discard, ::slog::o!());
    let raw = RawNode::new(&setup.config(applied), store, &logger);
    raw.expect("setup, members and commit index were checked")
}
