//! Voters and learners, and which changes of them are possible.

use std::collections::BTreeSet;

use ::raft::eraftpb::ConfState;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use zbelastic_types::NodeId;

use super::entry::NodeChange;
use super::setup::{NODES_MAX, NUMBER_MAX};

/// The members of a cluster at an index of its log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Members {
    /// The nodes that vote. In the joint state: those that vote from now on.
    pub voters: BTreeSet<NodeId>,
    /// The nodes that voted before, in the joint state; else empty.
    pub outgoing: BTreeSet<NodeId>,
    /// The nodes that get the log and have no vote.
    pub learners: BTreeSet<NodeId>,
}

/// A change of members as it is requested from a leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum VoterChange {
    /// A node that is no member gets the log.
    AddLearner(NodeId),
    /// A learner that has most of the log gets a vote.
    Promote(NodeId),
    /// A voter or learner leaves.
    Remove(NodeId),
    /// A voter leaves and a learner that has most of the log gets its vote, in one step.
    Replace {
        /// The voter that leaves.
        old: NodeId,
        /// The learner that replaces it.
        new: NodeId,
    },
}

/// Why members are not possible, of a snapshot, a new cluster or a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MembersFault {
    /// No node could vote.
    #[error("there are no voters")]
    NoVoters,
    /// More members than there may be.
    #[error("{found} members, at most {NODES_MAX} may be")]
    TooMany {
        /// Number of voters and learners.
        found: usize,
    },
    /// An id that no node has.
    #[error("{found} is no node's id")]
    BadNode {
        /// The id: 0, or one above the largest.
        found: NodeId,
    },
    /// A learner that votes.
    #[error("node {node} is a learner and a voter")]
    LearnerVotes {
        /// The node that is both.
        node: NodeId,
    },
}

/// Why a change of members is not proposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ChangeRefusal {
    /// Another change is not finished.
    #[error("an earlier change of members is under way")]
    Pending,
    /// The node to add is a member already.
    #[error("node {node} is a member")]
    Member {
        /// The node to add.
        node: NodeId,
    },
    /// The node to remove is no member.
    #[error("node {node} is no member")]
    NotMember {
        /// The node to remove.
        node: NodeId,
    },
    /// Only a learner can be promoted.
    #[error("node {node} is no learner")]
    NotLearner {
        /// The node that was to get a vote.
        node: NodeId,
    },
    /// Only a voter can be replaced.
    #[error("node {node} is no voter")]
    NotVoter {
        /// The node that was to be replaced.
        node: NodeId,
    },
    /// The cluster would have no voter.
    #[error("node {node} is the last voter")]
    LastVoter {
        /// The last voter, which was to be removed.
        node: NodeId,
    },
    /// A leader leaves after it has handed its lead on.
    #[error("node {node} leads: transfer the lead first")]
    Leads {
        /// The leader, which was to be removed or replaced.
        node: NodeId,
    },
    /// The learner would hold up the others.
    #[error("learner {node} has {matched} of {last_index} entries")]
    Behind {
        /// The learner that was to get a vote.
        node: NodeId,
        /// The last index it is known to have.
        matched: u64,
        /// The leader's last index.
        last_index: u64,
    },
    /// The members would not be usable.
    #[error("{0}")]
    Fault(MembersFault),
}

impl Members {
    /// The members of a cluster that begins with `voters`.
    #[must_use]
    pub fn first(voters: &[NodeId]) -> Self {
        Self { voters: voters.iter().copied().collect(), ..Self::default() }
    }

    /// Whether a change of voters is half done: two majorities are needed.
    #[must_use]
    pub fn is_joint(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Whether `node` votes, in the joint state on either side.
    #[must_use]
    pub fn is_voter(&self, node: NodeId) -> bool {
        self.voters.contains(&node) || self.outgoing.contains(&node)
    }

    /// Whether `node` is a voter or a learner.
    #[must_use]
    pub fn is_member(&self, node: NodeId) -> bool {
        self.is_voter(node) || self.learners.contains(&node)
    }

    /// Whether `nodes` hold a majority, in the joint state of both sides.
    #[must_use]
    pub fn is_majority(&self, nodes: &BTreeSet<NodeId>) -> bool {
        let holds = |side: &BTreeSet<NodeId>| {
            side.is_empty() || side.intersection(nodes).count() > side.len() / 2
        };
        holds(&self.voters) && holds(&self.outgoing)
    }

    /// All nodes that vote, in order.
    pub(super) fn all_voters(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.voters.union(&self.outgoing).copied()
    }

    pub(super) fn is_alone(&self, node: NodeId) -> bool {
        self.voters.len() == 1 && self.all_voters().all(|voter| voter == node)
    }

    /// Checks for the faults that raft-rs would panic on.
    pub(super) fn check(&self) -> Result<(), MembersFault> {
        if self.voters.is_empty() {
            return Err(MembersFault::NoVoters);
        }
        let found = self.all_voters().count() + self.learners.len();
        if found > NODES_MAX {
            return Err(MembersFault::TooMany { found });
        }
        for node in self.all_voters().chain(self.learners.iter().copied()) {
            if node.0 == 0 || node.0 > NUMBER_MAX {
                return Err(MembersFault::BadNode { found: node });
            }
        }
        match self.learners.iter().find(|&&node| self.is_voter(node)) {
            Some(&node) => Err(MembersFault::LearnerVotes { node }),
            None => Ok(()),
        }
    }

    /// Whether raft-rs can apply `changes` here. All nodes come to the same answer, so a change
    /// that cannot be applied is an entry without effect.
    pub(super) fn is_applicable(&self, changes: &[NodeChange]) -> bool {
        if changes.is_empty() || self.is_joint() {
            return changes.is_empty() && self.is_joint();
        }
        if self.voters.is_empty() {
            return false;
        }
        let mut after = self.clone();
        for change in changes {
            match *change {
                NodeChange::Voter(node) => {
                    after.learners.remove(&node);
                    after.voters.insert(node);
                }
                NodeChange::Learner(node) if self.is_voter(node) => return false,
                NodeChange::Learner(node) => {
                    after.voters.remove(&node);
                    after.learners.insert(node);
                }
                NodeChange::Remove(node) => {
                    after.voters.remove(&node);
                    after.learners.remove(&node);
                }
            }
        }
        after.outgoing.clone_from(&self.voters);
        after.check().is_ok()
    }

    /// The steps that `change` consists of, if it makes sense here.
    pub(super) fn plan(&self, change: VoterChange) -> Result<Vec<NodeChange>, ChangeRefusal> {
        let steps = match change {
            VoterChange::AddLearner(node) if self.is_member(node) => {
                return Err(ChangeRefusal::Member { node });
            }
            VoterChange::AddLearner(node) => vec![NodeChange::Learner(node)],
            VoterChange::Promote(node) => {
                self.check_learner(node)?;
                vec![NodeChange::Voter(node)]
            }
            VoterChange::Remove(node) if !self.is_member(node) => {
                return Err(ChangeRefusal::NotMember { node });
            }
            VoterChange::Remove(node) if self.is_alone(node) => {
                return Err(ChangeRefusal::LastVoter { node });
            }
            VoterChange::Remove(node) => vec![NodeChange::Remove(node)],
            VoterChange::Replace { old, new } => {
                self.check_learner(new)?;
                if !self.is_voter(old) {
                    return Err(ChangeRefusal::NotVoter { node: old });
                }
                vec![NodeChange::Remove(old), NodeChange::Voter(new)]
            }
        };
        self.check_capacity(&steps)?;
        Ok(steps)
    }

    fn check_learner(&self, node: NodeId) -> Result<(), ChangeRefusal> {
        if self.learners.contains(&node) {
            return Ok(());
        }
        Err(ChangeRefusal::NotLearner { node })
    }

    fn check_capacity(&self, steps: &[NodeChange]) -> Result<(), ChangeRefusal> {
        for step in steps {
            let found = step.node();
            if found.0 == 0 || found.0 > NUMBER_MAX {
                return Err(ChangeRefusal::Fault(MembersFault::BadNode { found }));
            }
        }
        let added = steps.iter().filter(|step| !self.is_member(step.node())).count();
        let found = self.voters.len() + self.learners.len() + added;
        if found > NODES_MAX {
            return Err(ChangeRefusal::Fault(MembersFault::TooMany { found }));
        }
        Ok(())
    }

    pub(super) fn from_raft(state: &ConfState) -> Self {
        let set = |nodes: &[u64]| nodes.iter().map(|&node| NodeId(node)).collect();
        Self {
            voters: set(state.get_voters()),
            outgoing: set(state.get_voters_outgoing()),
            learners: set(state.get_learners()),
        }
    }

    pub(super) fn to_raft(&self) -> ConfState {
        let list = |nodes: &BTreeSet<NodeId>| nodes.iter().map(|node| node.0).collect::<Vec<_>>();
        let mut state = ConfState::default();
        state.set_voters(list(&self.voters));
        state.set_voters_outgoing(list(&self.outgoing));
        state.set_learners(list(&self.learners));
        state.auto_leave = self.is_joint();
        state
    }
}
