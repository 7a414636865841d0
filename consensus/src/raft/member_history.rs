//! The members of the log as they changed since the latest snapshot, and the nodes that left.

use std::collections::BTreeSet;

use zbelastic_types::NodeId;

use super::greeting::PEERS_MAX;
use super::members::Members;

/// The members at each index since the latest snapshot. There is always a last one.
#[derive(Debug)]
pub(super) struct MemberHistory {
    /// Each with the index that made them so.
    changes: Vec<(u64, Members)>,
    removed: BTreeSet<NodeId>,
}

impl MemberHistory {
    /// The members of the snapshot at `index`.
    pub(super) fn new(index: u64, members: Members) -> Self {
        Self { changes: vec![(index, members)], removed: BTreeSet::new() }
    }

    /// The members now.
    pub(super) fn current(&self) -> &Members {
        let (_, members) = self.changes.last().expect("the first members stay");
        members
    }

    /// Whether a node left and is not back.
    pub(super) fn is_removed(&self, node: NodeId) -> bool {
        self.removed.contains(&node)
    }

    /// The members change. Yields the nodes that leave, which are remembered as long as there is
    /// room.
    pub(super) fn push(&mut self, index: u64, members: Members) -> BTreeSet<NodeId> {
        let current = self.current();
        let before = current.all_voters().chain(current.learners.iter().copied());
        let gone: BTreeSet<NodeId> = before.filter(|&node| !members.is_member(node)).collect();
        self.removed.extend(&gone);
        self.removed.retain(|&node| !members.is_member(node));
        while self.removed.len() > PEERS_MAX {
            self.removed.pop_first();
        }
        self.changes.push((index, members));
        gone
    }

    /// Forgets all members but the last: a snapshot replaces the log.
    pub(super) fn forget_earlier(&mut self) {
        self.changes.drain(..self.changes.len() - 1);
    }

    /// The members as of `index`. Those before are forgotten.
    pub(super) fn take_at(&mut self, index: u64) -> Members {
        let later = self.changes.partition_point(|&(at, _)| at <= index);
        self.changes.drain(..later - 1);
        self.changes[0].1.clone()
    }
}
