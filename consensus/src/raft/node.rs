//! The node: inputs in, outputs out.

mod drive;
mod greet;

use ::raft::INVALID_ID;
use zbelastic_types::NodeId;

use super::driver::{RaftDriver, hard_state};
use super::entry::{LogEntry, SnapshotImage, joint_change};
use super::greeting::{Greeting, PeerTable};
use super::guard::MessageGuard;
use super::member_history::MemberHistory;
use super::members::VoterChange;
use super::message::{RaftMessage, RaftMessageBody, WireMessage};
use super::outbox::DurableOutbox;
use super::output::{FatalReason, PersistToken, RaftOutput};
use super::propose_refusal::{CompactRefusal, ProposeRefusal};
use super::record::RaftRecord;
use super::recovery::RecoveredLog;
use super::refusal::RaftRefusal;
use super::setup::{
    ENTRY_BYTES_MAX, MESSAGE_BYTES_MAX, RaftSetup, RaftStartError, SNAPSHOT_BYTES_MAX,
};
use super::start::RaftStart;
use super::status::RaftStatus;
use super::storage::LogStore;
use crate::mutant::{self, Mutant};

/// One member of the cluster's log, or a node that waits to become one.
///
/// Give it inputs in any order; after each, take outputs from [`Self::poll`] until there are none.
pub struct RaftNode {
    setup: RaftSetup,
    driver: RaftDriver,
    phase: RaftPhase,
    boot: u64,
    /// Whether this start is durable. Before, nothing is sent.
    is_boot_durable: bool,
    outbox: DurableOutbox,
    members: MemberHistory,
    peers: PeerTable,
    /// Index and term of the last entry or snapshot returned by [`Self::poll`].
    applied: (u64, u64),
    snapshot_due_at: u64,
    announced: (u64, u64),
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
        let start = RaftStart::first(setup.node, voters, snapshot_data)?;
        Self::start(setup, start)
    }

    /// A later start from the records of the disk.
    ///
    /// # Errors
    /// If the setup or the records cannot be used.
    pub fn recover(setup: RaftSetup, recovered: RecoveredLog) -> Result<Self, RaftStartError> {
        let start = RaftStart::recovered(setup.node, recovered)?;
        Self::start(setup, start)
    }

    fn start(setup: RaftSetup, start: RaftStart) -> Result<Self, RaftStartError> {
        setup.check()?;
        start.check()?;
        let applied = start.applied();
        let RaftStart { hard, snapshot, entries, boot, peer_boots, next_record, mut records } =
            start;
        records.push(RaftRecord::Boot { node: setup.node, boot });
        let members = snapshot.as_ref().map(|image| image.members.clone()).unwrap_or_default();
        let snapshot = snapshot.map(SnapshotImage::into_raft).unwrap_or_default();
        let entries = entries.into_iter().map(LogEntry::into_raft).collect();
        let store = LogStore::new(hard_state(hard), snapshot, entries);
        let mut node = Self {
            snapshot_due_at: applied.0 + setup.compact_after,
            phase: RaftPhase::Active,
            driver: RaftDriver::new(&setup, applied.0, store),
            boot,
            is_boot_durable: false,
            outbox: DurableOutbox::new(hard, next_record),
            members: MemberHistory::new(applied.0, members),
            peers: PeerTable::new(peer_boots),
            applied,
            announced: (INVALID_ID, hard.term),
            setup,
        };
        node.outbox.persist(records);
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
                let is_late = self.outbox.tick() > self.setup.write_ticks_max;
                // If the others' disks are as slow, none of them would do better.
                if is_late && self.driver.is_agreed_without_it() {
                    self.driver.step_down();
                }
                if self.is_tickable() {
                    self.driver.retry_snapshots(self.setup.snapshot_retry_ticks);
                    self.driver.raw.tick();
                }
                self.settle();
            }
        }
    }

    /// raft-rs may stand for election at a tick. It would panic while a snapshot is half
    /// installed, or on winning alone before all is persisted.
    fn is_tickable(&self) -> bool {
        let is_alone = self.members.current().is_alone(self.setup.node);
        let writes = self.outbox.writes();
        !writes.is_installing() && (self.driver.is_leader() || !is_alone || !writes.has_log())
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
        if self.outbox.writes().is_installing() {
            return Err(RaftRefusal::Installing);
        }
        if let Err(refusal) = self.guard().check(&message) {
            if let RaftRefusal::BeyondLog { commit, last_index } = refusal
                && self.members.current().is_member(from)
            {
                self.stop(FatalReason::StaleLog { leader: from, commit, last_index });
            }
            return Err(refusal);
        }
        self.observe_peer(&message);
        let stepped = self.driver.raw.step(message.into_raft());
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
        if self.members.is_removed(from) {
            return Err(RaftRefusal::RemovedNode { from });
        }
        Ok(())
    }

    fn guard(&self) -> MessageGuard<'_> {
        let is_log_under_way = self.outbox.writes().has_log();
        MessageGuard { raw: &self.driver.raw, members: self.members.current(), is_log_under_way }
    }

    /// Remembers the durable state of others, in case they forget (P5).
    fn observe_peer(&mut self, message: &WireMessage) {
        let raft = &self.driver.raw.raft;
        if message.body.carries_durable_term() {
            self.peers.saw_term(message.from, message.term);
        }
        if let RaftMessageBody::AppendAnswer { index, rejection: None, .. } = message.body
            && self.driver.is_leader()
            && message.term == raft.term
        {
            self.peers.saw_ack(message.from, message.term, index);
        }
        if message.durable > 0 && message.term >= raft.term {
            self.peers.saw_ack(message.from, message.term, message.durable);
        }
    }

    /// The records that were handed out with `token` are durable.
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
        if self.outbox.is_empty() && !matches!(self.phase, RaftPhase::Stopped(_)) {
            self.settle();
        }
        let output = self.outbox.pop()?;
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
            self.outbox.push_first(RaftOutput::RequestSnapshot);
        }
    }

    fn stop(&mut self, reason: FatalReason) {
        self.phase = RaftPhase::Stopped(reason);
        self.outbox.stop(reason);
    }

    /// Proposes an entry. It may be lost with the lead; if it is agreed, it is handed out.
    ///
    /// # Errors
    /// If this node cannot propose it now.
    pub fn propose(&mut self, data: Vec<u8>) -> Result<(), ProposeRefusal> {
        self.check_lead()?;
        match data.len() {
            0 => return Err(ProposeRefusal::Empty),
            1..=ENTRY_BYTES_MAX => {}
            found => return Err(ProposeRefusal::TooLarge { found }),
        }
        let proposed = self.driver.raw.propose(Vec::new(), data);
        proposed.expect("a leader that hands its lead to nobody takes proposals");
        Ok(())
    }

    /// Proposes a change of members, through the joint state and out of it again (P6).
    ///
    /// # Errors
    /// If this node cannot propose it now, or it makes no sense.
    pub fn change_voters(&mut self, change: VoterChange) -> Result<(), ProposeRefusal> {
        self.check_lead()?;
        self.settle();
        let changes =
            self.driver.plan(change, self.members.current()).map_err(ProposeRefusal::Change)?;
        let proposed = self.driver.raw.propose_conf_change(Vec::new(), joint_change(&changes));
        proposed.expect("a leader that hands its lead to nobody takes proposals");
        if is_joint_skipped() {
            self.apply_changes(self.driver.last_index(), &changes);
        }
        self.settle();
        Ok(())
    }

    /// Hands the lead to the voter `to`, once it has the whole log. Gives up after the ticks of
    /// an election. Nothing happens if this node does not lead.
    pub fn transfer_leader(&mut self, to: NodeId) {
        if self.check_lead().is_ok() && self.members.current().is_voter(to) {
            self.driver.raw.transfer_leader(to.0);
            self.settle();
        }
    }

    /// Replaces the log up to `applied` by the state machine's state at that index.
    ///
    /// # Errors
    /// If there is no such state, or it is too large. The log then stays as it is.
    pub fn compact(&mut self, applied: u64, snapshot_data: Vec<u8>) -> Result<(), CompactRefusal> {
        self.settle();
        self.check_compaction(applied, snapshot_data.len())?;
        let term =
            self.driver.raw.raft.raft_log.term(applied).expect("the log holds what was applied");
        let members = self.members.take_at(applied);
        let image = SnapshotImage { index: applied, term, members, data: snapshot_data };
        let tail = self.setup.tail_entries;
        self.driver.raw.mut_store().compact(image.clone().into_raft(), tail);
        let mut records = vec![RaftRecord::Snapshot(image)];
        let after = self.driver.raw.store().entries_after_snapshot();
        let after: Vec<_> = after.map(LogEntry::from_raft).collect();
        if !after.is_empty() {
            records.push(RaftRecord::Append(after));
        }
        let hard = self.outbox.written();
        records.push(RaftRecord::HardState(hard));
        records.extend(self.identity());
        self.outbox.persist_with(hard, records).replaces = true;
        self.snapshot_due_at = applied + self.setup.compact_after;
        Ok(())
    }

    fn check_compaction(&self, found: u64, bytes: usize) -> Result<(), CompactRefusal> {
        if matches!(self.phase, RaftPhase::Stopped(_)) {
            return Err(CompactRefusal::Stopped);
        }
        if found > self.applied.0 {
            return Err(CompactRefusal::NotApplied { applied: self.applied.0, found });
        }
        let latest = self.driver.raw.store().snapshot_index();
        if found <= latest {
            return Err(CompactRefusal::NotNewer { latest, found });
        }
        if bytes > SNAPSHOT_BYTES_MAX {
            return Err(CompactRefusal::TooLarge { found: bytes });
        }
        Ok(())
    }

    fn check_lead(&self) -> Result<(), ProposeRefusal> {
        if matches!(self.phase, RaftPhase::Stopped(_)) {
            return Err(ProposeRefusal::NotLeader { leader: self.driver.leader() });
        }
        self.driver.check_lead(self.setup.uncommitted_max)
    }

    /// The visible status of this node.
    #[must_use]
    pub fn status(&self) -> RaftStatus {
        let raft = &self.driver.raw.raft;
        let is_stopped = matches!(self.phase, RaftPhase::Stopped(_));
        let is_leader = self.driver.is_leader() && !is_stopped;
        let mut matched = Vec::new();
        if is_leader {
            matched.extend(raft.prs().iter().map(|(&node, each)| (NodeId(node), each.matched)));
            matched.sort_unstable();
        }
        RaftStatus {
            node: self.setup.node,
            term: raft.term,
            leader: self.driver.leader(),
            is_leader,
            leads_applied: is_leader && self.applied.1 == raft.term,
            is_greeting: matches!(self.phase, RaftPhase::Greeting(_)),
            fatal: match &self.phase {
                RaftPhase::Stopped(reason) => Some(*reason),
                RaftPhase::Greeting(_) | RaftPhase::Active => None,
            },
            boot: self.boot,
            commit: raft.raft_log.committed,
            applied: self.applied.0,
            last_index: raft.raft_log.last_index(),
            snapshot_index: raft.raft_log.store.snapshot_index(),
            members: self.members.current().clone(),
            matched,
        }
    }
}

/// The hook of mutant m11: members change without the joint state, and the majority is counted
/// among members that the others have not agreed to.
fn is_joint_skipped() -> bool {
    mutant::is(Mutant::M11NoJointConsensus)
}
