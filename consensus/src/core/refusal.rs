//! Why a controller refuses an input.

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
        /// The cluster that this node belongs to.
        expected: ClusterId,
        /// The cluster named in the message.
        found: ClusterId,
    },
    /// The log refuses it.
    #[error(transparent)]
    Raft(#[from] RaftRefusal),
    /// It cannot be proposed.
    #[error(transparent)]
    Propose(#[from] ProposeRefusal),
    /// It does not fit the agreed state.
    #[error(transparent)]
    Worker(#[from] InputRefusal),
    /// Only a leader accepts it.
    #[error("node {leader:?} leads, not this one")]
    NotLeader {
        /// The leader, if this node knows one.
        leader: Option<NodeId>,
    },
    /// It is a message that only workers receive.
    #[error("not a message for a controller")]
    NotForControllers,
    /// The message is about another node than the one that sent it.
    #[error("sent by node {expected}, the message speaks for node {found}")]
    WrongSender {
        /// The node that sent it.
        expected: NodeId,
        /// The node that the message is about.
        found: NodeId,
    },
    /// The job refuses it.
    #[error(transparent)]
    Job(#[from] JobRefusal),
    /// It does not fit the tokens, credentials or authority that are agreed on.
    #[error(transparent)]
    Access(#[from] AccessRefusal),
    /// The run cannot be rewound to this version.
    #[error(transparent)]
    Restore(#[from] EntryRefusal),
    /// Only a worker can be drained: a controller is removed.
    #[error("node {node} is no worker")]
    NotAWorker {
        /// The node to drain, which is a controller.
        node: NodeId,
    },
    /// It is about to go already.
    #[error("node {node} drains already")]
    Draining {
        /// The worker that drains already.
        node: NodeId,
    },
    /// The node is not a member.
    #[error("node {node} is no member")]
    UnknownNode {
        /// The node named in the command.
        node: NodeId,
    },
    /// Only a voter can lead.
    #[error("node {node} is no voter")]
    NotAVoter {
        /// The node that was to lead.
        node: NodeId,
    },
    /// This node does not wait for that plan any more.
    #[error("plan {number} is not awaited")]
    PlanNotRequested {
        /// The number in the request that was answered.
        number: u64,
    },
    /// This node has stopped, after a fatal cause.
    #[error("this node has stopped")]
    Stopped,
}

impl CoreRefusal {
    /// The name under which the refusal is counted.
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
            Self::PlanNotRequested { .. } => "unasked-plan",
            Self::Stopped => "stopped",
        }
    }
}
