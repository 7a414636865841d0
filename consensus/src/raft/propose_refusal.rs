//! Why nothing is proposed, and why the log is not shortened.

use thiserror::Error;
use zbelastic_types::NodeId;

use super::members::ChangeRefusal;
use super::setup::{ENTRY_BYTES_MAX, SNAPSHOT_BYTES_MAX};

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
    /// An empty entry begins a term.
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
