//! Proposals, changes of voters, the transfer of the lead, and the compaction of the log.

use ::raft::StateRole;
use thiserror::Error;
use zbelastic_types::NodeId;

use super::super::entry::{LogEntry, NodeChange, SnapshotImage, joint_change};
use super::super::members::{ChangeRefusal, Members, VoterChange};
use super::super::record::RaftRecord;
use super::super::setup::{ENTRY_BYTES_MAX, PROMOTE_LAG_MAX, SNAPSHOT_BYTES_MAX};
use super::{RaftNode, RaftPhase, node_of};
use crate::mutant::{self, Mutant};

/// Why nothing is proposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ProposeRefusal {
    /// Only a leader proposes.
    #[error("this node does not lead; the leader is {leader:?}")]
    NotLeader {
        /// The leader, if this node knows one.
        leader: Option<NodeId>,
    },
    /// The lead is being handed on.
    #[error("the lead is being transferred")]
    Transferring,
    /// An empty entry is what begins a term.
    #[error("a proposal without bytes")]
    Empty,
    /// The proposal has too many bytes.
    #[error("a proposal of {found} bytes, at most {ENTRY_BYTES_MAX} may be")]
    TooLarge {
        /// Bytes of the proposal.
        found: usize,
    },
    /// Too many entries are not committed.
    #[error("{found} entries are not committed, at most {limit} may be")]
    Backlog {
        /// Number of entries that are not committed.
        found: u64,
        /// Number of such entries that there may be.
        limit: u64,
    },
    /// The change of members makes no sense now.
    #[error("{0}")]
    Change(ChangeRefusal),
}

impl ProposeRefusal {
    /// The name under which the refusal is counted.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::NotLeader { .. } => "propose-not-leader",
            Self::Transferring => "propose-transferring",
            Self::Empty => "propose-empty",
            Self::TooLarge { .. } => "propose-too-large",
            Self::Backlog { .. } => "propose-backlog",
            Self::Change(_) => "propose-change",
        }
    }
}

/// Why the log is not shortened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CompactRefusal {
    /// The node has stopped for good.
    #[error("this node has stopped")]
    Stopped,
    /// A state that was never handed out.
    #[error("a snapshot at index {found}, handed out is {applied}")]
    NotApplied {
        /// The last index handed out.
        applied: u64,
        /// The index of the snapshot.
        found: u64,
    },
    /// A state that holds no more than the latest snapshot.
    #[error("a snapshot at index {found}, the latest is at {latest}")]
    NotNewer {
        /// The latest snapshot's index.
        latest: u64,
        /// The index of this snapshot.
        found: u64,
    },
    /// The snapshot has too many bytes.
    #[error("a snapshot of {found} bytes, at most {SNAPSHOT_BYTES_MAX} may be")]
    TooLarge {
        /// Bytes of the snapshot.
        found: usize,
    },
}

impl RaftNode {
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
        let proposed = self.raw.propose(Vec::new(), data);
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
        let changes = self.plan(change).map_err(ProposeRefusal::Change)?;
        let proposed = self.raw.propose_conf_change(Vec::new(), joint_change(&changes));
        proposed.expect("a leader that hands its lead to nobody takes proposals");
        if is_joint_skipped() {
            self.apply_changes(self.raw.raft.raft_log.last_index(), &changes);
        }
        self.settle();
        Ok(())
    }

    fn plan(&self, change: VoterChange) -> Result<Vec<NodeChange>, ChangeRefusal> {
        if self.members().is_joint() || self.raw.raft.has_pending_conf() {
            return Err(ChangeRefusal::Pending);
        }
        let changes = self.members().plan(change)?;
        match change {
            VoterChange::AddLearner(_) => {}
            VoterChange::Promote(node) => self.check_caught_up(node)?,
            VoterChange::Remove(node) => self.check_not_leader(node)?,
            VoterChange::Replace { old, new } => {
                self.check_not_leader(old)?;
                self.check_caught_up(new)?;
            }
        }
        Ok(changes)
    }

    fn check_not_leader(&self, node: NodeId) -> Result<(), ChangeRefusal> {
        if node == self.setup.node {
            return Err(ChangeRefusal::Leads { node });
        }
        Ok(())
    }

    fn check_caught_up(&self, node: NodeId) -> Result<(), ChangeRefusal> {
        let last_index = self.raw.raft.raft_log.last_index();
        let matched = self.raw.raft.prs().get(node.0).map_or(0, |progress| progress.matched);
        if matched == 0 || matched + PROMOTE_LAG_MAX < last_index {
            return Err(ChangeRefusal::Behind { node, matched, last_index });
        }
        Ok(())
    }

    fn check_lead(&self) -> Result<(), ProposeRefusal> {
        let raft = &self.raw.raft;
        if raft.state != StateRole::Leader || matches!(self.phase, RaftPhase::Stopped(_)) {
            return Err(ProposeRefusal::NotLeader { leader: node_of(raft.leader_id) });
        }
        if raft.lead_transferee.is_some() {
            return Err(ProposeRefusal::Transferring);
        }
        let (found, limit) =
            (raft.raft_log.last_index() - raft.raft_log.committed, self.setup.uncommitted_max);
        if found >= limit {
            return Err(ProposeRefusal::Backlog { found, limit });
        }
        Ok(())
    }

    /// Hands the lead to the voter `to`, once it has the whole log. Gives up after the ticks of
    /// an election. Nothing happens if this node does not lead.
    pub fn transfer_leader(&mut self, to: NodeId) {
        if self.check_lead().is_ok() && self.members().is_voter(to) {
            self.raw.transfer_leader(to.0);
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
        let term = self.raw.raft.raft_log.term(applied).expect("the log holds what was applied");
        let members = self.members_at(applied);
        let image = SnapshotImage { index: applied, term, members, data: snapshot_data };
        let tail = self.setup.tail_entries;
        self.raw.mut_store().compact(image.clone().into_raft(), tail);
        let mut records = vec![RaftRecord::Snapshot(image)];
        let after = self.raw.store().entries_after_snapshot();
        let after: Vec<_> = after.map(LogEntry::from_raft).collect();
        if !after.is_empty() {
            records.push(RaftRecord::Append(after));
        }
        records.push(RaftRecord::HardState(self.written));
        records.extend(self.identity());
        let hard = self.written;
        let write = self.persist(records);
        (write.replaces, write.hard) = (true, Some(hard));
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
        let latest = self.raw.store().snapshot_index();
        if found <= latest {
            return Err(CompactRefusal::NotNewer { latest, found });
        }
        if bytes > SNAPSHOT_BYTES_MAX {
            return Err(CompactRefusal::TooLarge { found: bytes });
        }
        Ok(())
    }

    /// The members as of `index`; what was before is forgotten.
    fn members_at(&mut self, index: u64) -> Members {
        let later = self.history.partition_point(|&(at, _)| at <= index);
        self.history.drain(..later - 1);
        self.history[0].1.clone()
    }
}

/// The hook of mutant m11: members change without the joint state, and the majority is counted
/// among members that the others have not agreed to.
pub(super) fn is_joint_skipped() -> bool {
    mutant::is(Mutant::M11NoJointConsensus)
}
