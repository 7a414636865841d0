//! raft-rs as a node drives it: its role and indices, and the proposals that are possible now.

use std::collections::{BTreeMap, BTreeSet};

use ::raft::eraftpb::HardState;
use ::raft::{INVALID_ID, RawNode, StateRole};
use zbelastic_types::NodeId;

use super::entry::{NodeChange, bare_change};
use super::members::{ChangeRefusal, Members, VoterChange};
use super::propose_refusal::ProposeRefusal;
use super::record::HardVote;
use super::setup::{PROMOTE_LAG_MAX, RaftSetup};
use super::storage::LogStore;

/// raft-rs, with the reports that it must get in time.
pub(super) struct RaftDriver {
    pub(super) raw: RawNode<LogStore>,
    /// Ticks since each follower was sent a snapshot that it has not acknowledged.
    snapshot_waits: BTreeMap<u64, u32>,
}

impl RaftDriver {
    /// raft-rs over a log of which entries up to `applied` are handed out.
    pub(super) fn new(setup: &RaftSetup, applied: u64, store: LogStore) -> Self {
        let logger = ::slog::Logger::root(::slog::Discard, ::slog::o!());
        let raw = RawNode::new(&setup.config(applied), store, &logger);
        let raw = raw.expect("setup, members and commit index were checked");
        Self { raw, snapshot_waits: BTreeMap::new() }
    }

    pub(super) fn is_leader(&self) -> bool {
        self.raw.raft.state == StateRole::Leader
    }

    /// The leader, if this node knows one.
    pub(super) fn leader(&self) -> Option<NodeId> {
        node_of(self.raw.raft.leader_id)
    }

    pub(super) fn last_index(&self) -> u64 {
        self.raw.raft.raft_log.last_index()
    }

    /// Stops to lead, within the term.
    pub(super) fn step_down(&mut self) {
        if self.is_leader() {
            let term = self.raw.raft.term;
            self.raw.raft.become_follower(term, INVALID_ID);
        }
    }

    /// raft-rs waits for ever for the answer to a snapshot unless its loss is reported to it.
    pub(super) fn retry_snapshots(&mut self, retry_ticks: u32) {
        let is_leader = self.is_leader();
        let snapshot_nodes: BTreeSet<u64> = (self.raw.raft.prs().iter())
            .filter(|(_, progress)| progress.state == ::raft::ProgressState::Snapshot && is_leader)
            .map(|(&node, _)| node)
            .collect();
        self.snapshot_waits.retain(|node, _| snapshot_nodes.contains(node));
        for node in snapshot_nodes {
            let ticks = self.snapshot_waits.entry(node).or_default();
            *ticks += 1;
            if *ticks >= retry_ticks {
                self.snapshot_waits.remove(&node);
                self.raw.report_snapshot(node, ::raft::SnapshotStatus::Failure);
            }
        }
    }

    /// Whether entries are agreed on that are not durable here: the others wait for this node's disk.
    pub(super) fn is_agreed_without_it(&self) -> bool {
        let log = &self.raw.raft.raft_log;
        log.committed > log.persisted
    }

    /// How far a leader's own log is durable; raft-rs counts it like an acknowledgement.
    pub(super) fn durable_index(&self) -> u64 {
        match self.raw.raft.state {
            StateRole::Leader => self.raw.raft.raft_log.persisted,
            StateRole::Follower | StateRole::Candidate | StateRole::PreCandidate => 0,
        }
    }

    pub(super) fn hard_vote(&self) -> HardVote {
        let raft = &self.raw.raft;
        HardVote { term: raft.term, vote: node_of(raft.vote), commit: raft.raft_log.committed }
    }

    /// Checks that this node leads, and that fewer entries than the limit are not committed.
    pub(super) fn check_lead(&self, limit: u64) -> Result<(), ProposeRefusal> {
        let raft = &self.raw.raft;
        if !self.is_leader() {
            return Err(ProposeRefusal::NotLeader { leader: self.leader() });
        }
        if raft.lead_transferee.is_some() {
            return Err(ProposeRefusal::Transferring);
        }
        let found = raft.raft_log.last_index() - raft.raft_log.committed;
        if found >= limit { Err(ProposeRefusal::Backlog { found, limit }) } else { Ok(()) }
    }

    /// The steps of a change of members that this leader may propose now.
    pub(super) fn plan(
        &self,
        change: VoterChange,
        members: &Members,
    ) -> Result<Vec<NodeChange>, ChangeRefusal> {
        if members.is_joint() || self.raw.raft.has_pending_conf() {
            return Err(ChangeRefusal::Pending);
        }
        let changes = members.plan(change)?;
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
        if node == NodeId(self.raw.raft.id) {
            return Err(ChangeRefusal::Leads { node });
        }
        Ok(())
    }

    pub(super) fn check_caught_up(&self, node: NodeId) -> Result<(), ChangeRefusal> {
        let last_index = self.last_index();
        let matched = self.raw.raft.prs().get(node.0).map_or(0, |progress| progress.matched);
        if matched == 0 || matched + PROMOTE_LAG_MAX < last_index {
            return Err(ChangeRefusal::Behind { node, matched, last_index });
        }
        Ok(())
    }

    /// The mutant: each step at once, without a majority of both sides.
    pub(super) fn apply_bare(&mut self, changes: &[NodeChange]) {
        for &change in changes {
            // A change that cannot be applied is left out.
            let _ = self.raw.apply_conf_change(&bare_change(change));
        }
    }
}

pub(super) fn node_of(id: u64) -> Option<NodeId> {
    (id != INVALID_ID).then_some(NodeId(id))
}

pub(super) fn hard_state(hard: HardVote) -> HardState {
    let vote = hard.vote.map_or(INVALID_ID, |node| node.0);
    HardState { term: hard.term, vote, commit: hard.commit, ..HardState::default() }
}
