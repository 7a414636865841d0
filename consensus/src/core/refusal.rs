//! Why a controller does not take in what it is told.

use zbelastic_types::{ClusterId, NodeId};

use crate::access::AccessRefusal;
use crate::duty::InputRefusal;
use crate::job::JobRefusal;
use crate::raft::{ProposeRefusal, RaftRefusal};
use crate::state::EntryRefusal;

/// Why an input was dropped. Nothing changed.
#[derive(Debug, thiserror::Error)]
pub enum CoreRefusal {
    /// It is of another cluster.
    #[error("of cluster {found}, this is {expected}")]
    OtherCluster {
        /// This cluster.
        expected: ClusterId,
        /// The message's.
        found: ClusterId,
    },
    /// The log does not take it.
    #[error(transparent)]
    Raft(#[from] RaftRefusal),
    /// It cannot be proposed.
    #[error(transparent)]
    Propose(#[from] ProposeRefusal),
    /// It does not fit what is agreed.
    #[error(transparent)]
    Worker(#[from] InputRefusal),
    /// Only a leader takes it.
    #[error("node {leader:?} leads, not this one")]
    NotLeader {
        /// Who leads, as far as is known.
        leader: Option<NodeId>,
    },
    /// It is nothing a controller is told.
    #[error("not a message for a controller")]
    NotForControllers,
    /// The message speaks for another than who sent it.
    #[error("sent by node {expected}, the message speaks for node {found}")]
    WrongSender {
        /// Who sent it.
        expected: NodeId,
        /// Whom it speaks for.
        found: NodeId,
    },
    /// The job does not take it.
    #[error(transparent)]
    Job(#[from] JobRefusal),
    /// It does not fit who may take part.
    #[error(transparent)]
    Access(#[from] AccessRefusal),
    /// The run cannot go back to where it is to.
    #[error(transparent)]
    Restore(#[from] EntryRefusal),
    /// Only a worker can be drained: a controller is removed.
    #[error("node {node} is no worker")]
    NotAWorker {
        /// The node.
        node: NodeId,
    },
    /// It is about to go already.
    #[error("node {node} drains already")]
    Draining {
        /// The node.
        node: NodeId,
    },
    /// No such member.
    #[error("node {node} is no member")]
    UnknownNode {
        /// The node.
        node: NodeId,
    },
    /// Only a voter can lead.
    #[error("node {node} is no voter")]
    NotAVoter {
        /// The node.
        node: NodeId,
    },
    /// Nobody waits for that plan any more.
    #[error("nobody waits for plan {number}")]
    Unasked {
        /// Its number.
        number: u64,
    },
    /// The node stopped.
    #[error("this node has stopped")]
    Stopped,
}

impl CoreRefusal {
    /// The word under which it is counted.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::OtherCluster { .. } => "other-cluster",
            Self::Raft(refusal) => refusal.name(),
            Self::Propose(refusal) => refusal.name(),
            Self::Worker(refusal) => refusal.name(),
            Self::NotLeader { .. } => "not-leader",
            Self::NotForControllers => "not-for-controllers",
            Self::WrongSender { .. } => "wrong-sender",
            Self::Job(refusal) => refusal.name(),
            Self::Access(refusal) => refusal.name(),
            Self::Restore(_) => "restore",
            Self::NotAWorker { .. } => "not-a-worker",
            Self::Draining { .. } => "draining",
            Self::UnknownNode { .. } => "unknown-node",
            Self::NotAVoter { .. } => "not-a-voter",
            Self::Unasked { .. } => "unasked-plan",
            Self::Stopped => "stopped",
        }
    }
}
