//! What can be seen of a node, and the members that it knows.

use std::collections::BTreeSet;

use ::raft::StateRole;
use zbelastic_types::NodeId;

use super::super::greeting::PEERS_MAX;
use super::super::members::Members;
use super::super::status::RaftStatus;
use super::{RaftNode, RaftPhase, node_of};

impl RaftNode {
    /// What can be seen of this node.
    #[must_use]
    pub fn status(&self) -> RaftStatus {
        let raft = &self.raw.raft;
        let is_stopped = matches!(self.phase, RaftPhase::Stopped(_));
        let is_leader = raft.state == StateRole::Leader && !is_stopped;
        let mut matched = Vec::new();
        if is_leader {
            matched.extend(raft.prs().iter().map(|(&node, each)| (NodeId(node), each.matched)));
            matched.sort_unstable();
        }
        RaftStatus {
            node: self.setup.node,
            term: raft.term,
            leader: node_of(raft.leader_id),
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
            members: self.members().clone(),
            matched,
        }
    }

    pub(super) fn members(&self) -> &Members {
        let (_, members) = self.history.last().expect("the first members stay");
        members
    }

    /// Nodes that left are remembered as long as there is room.
    pub(super) fn note_members(&mut self, index: u64, members: Members) {
        let before: BTreeSet<NodeId> =
            self.members().all_voters().chain(self.members().learners.iter().copied()).collect();
        for node in before.into_iter().filter(|&node| !members.is_member(node)) {
            self.removed.insert(node);
            self.peers.forget(node);
        }
        self.removed.retain(|&node| !members.is_member(node));
        while self.removed.len() > PEERS_MAX {
            self.removed.pop_first();
        }
        self.history.push((index, members));
    }
}
