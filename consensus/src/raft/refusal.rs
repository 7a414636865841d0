//! Why a message is refused.

use thiserror::Error;
use zbelastic_types::NodeId;

use super::members::MembersFault;
use super::setup::{ENTRY_BYTES_MAX, MESSAGE_BYTES_MAX, SNAPSHOT_BYTES_MAX};

/// Why a message is refused. The node is as it was before, unless it stops for
/// [`RaftRefusal::BeyondLog`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RaftRefusal {
    /// The node has stopped for good.
    #[error("this node has stopped")]
    Stopped,
    /// The node still greets the others to find whether its disk is stale.
    #[error("this node is greeting")]
    Greeting,
    /// A leader's snapshot is being written; all other messages are lost and will be sent again.
    #[error("this node is writing a snapshot")]
    Installing,
    /// The message has too many bytes.
    #[error("a message of {found} bytes, at most {MESSAGE_BYTES_MAX} are read")]
    TooLarge {
        /// Bytes of the message.
        found: usize,
    },
    /// The bytes are no message.
    #[error("the bytes are no message")]
    Malformed,
    /// The message names another sender than the node that sent it.
    #[error("sent by node {expected}, the message says node {found}")]
    WrongSender {
        /// The node that sent it.
        expected: NodeId,
        /// The sender that the message names.
        found: NodeId,
    },
    /// The message is for another node.
    #[error("this is node {expected}, the message is for node {found}")]
    WrongReceiver {
        /// The id of this node.
        expected: NodeId,
        /// The receiver that the message names.
        found: NodeId,
    },
    /// An answer from a node that was never greeted.
    #[error("node {from} is no member")]
    UnknownNode {
        /// The node that sent the answer.
        from: NodeId,
    },
    /// A node that has left. Its id is never given again.
    #[error("node {from} was removed")]
    RemovedNode {
        /// The removed node, which sent the message.
        from: NodeId,
    },
    /// Too many nodes are remembered to remember another.
    #[error("no room to remember node {from}")]
    NoRoom {
        /// The node that sent the greeting.
        from: NodeId,
    },
    /// A number that no honest node reaches, or 0 where none can be.
    #[error("{quantity} is {found}")]
    BadNumber {
        /// The name of the number.
        quantity: &'static str,
        /// The number in the message.
        found: u64,
    },
    /// Entries that do not follow one another.
    #[error("entry {found} of term {found_term} follows entry {before} of term {before_term}")]
    BadEntries {
        /// Index of the entry before.
        before: u64,
        /// Term of the entry before.
        before_term: u64,
        /// Index of the entry that follows it.
        found: u64,
        /// Term of the entry that follows it.
        found_term: u64,
    },
    /// An entry that is too large.
    #[error("entry {index} has {found} bytes, at most {ENTRY_BYTES_MAX} may be")]
    EntryTooLarge {
        /// Index of the entry.
        index: u64,
        /// Bytes of the entry.
        found: usize,
    },
    /// An entry that is committed here is another in the message.
    #[error("entry {index} is committed with term {expected}, the message says {found}")]
    ContradictsCommitted {
        /// Index of the entry.
        index: u64,
        /// Term of the entry in this node's log.
        expected: u64,
        /// Term of the entry in the message.
        found: u64,
    },
    /// Two leaders in one term.
    #[error("node {expected} leads in term {term}, the message is from node {found}")]
    TwoLeaders {
        /// The term of this node and of the message.
        term: u64,
        /// The leader that this node knows.
        expected: NodeId,
        /// The node that sent a leader's message.
        found: NodeId,
    },
    /// Only the leader may request an election.
    #[error("node {from} does not lead in term {term}")]
    NotLeader {
        /// The node that requested the election.
        from: NodeId,
        /// The term of this node.
        term: u64,
    },
    /// The leader believes more to be here than there is. The node stops.
    #[error("entry {commit} is said to be here, the last is {last_index}")]
    BeyondLog {
        /// The commit index in the leader's message.
        commit: u64,
        /// The last index of this node's log.
        last_index: u64,
    },
    /// An acknowledgement of entries that were never sent.
    #[error("entry {found} is acknowledged, the last is {last_index}")]
    AckBeyondLog {
        /// The index that is acknowledged.
        found: u64,
        /// The last index of this node's log.
        last_index: u64,
    },
    /// A vote that was not requested yet: the request waits for a write.
    #[error("a vote that was not requested")]
    EarlyVote,
    /// A node without any log has nothing to vote by.
    #[error("this node is no member yet")]
    NoMember,
    /// A snapshot with members that cannot be.
    #[error("a snapshot with members that cannot be: {0}")]
    BadMembers(MembersFault),
    /// A snapshot of a cluster to which this node does not belong.
    #[error("a snapshot at index {index} without this node")]
    ForeignSnapshot {
        /// Index of the snapshot.
        index: u64,
    },
    /// A snapshot that is too large.
    #[error("a snapshot of {found} bytes, at most {SNAPSHOT_BYTES_MAX} may be")]
    SnapshotTooLarge {
        /// Bytes of the snapshot.
        found: usize,
    },
}

impl RaftRefusal {
    /// The name under which the refusal is counted.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Stopped => "raft-stopped",
            Self::Greeting => "raft-greeting",
            Self::Installing => "raft-installing",
            Self::TooLarge { .. } => "raft-too-large",
            Self::Malformed => "raft-malformed",
            Self::WrongSender { .. } => "raft-wrong-sender",
            Self::WrongReceiver { .. } => "raft-wrong-receiver",
            Self::UnknownNode { .. } => "raft-unknown-node",
            Self::RemovedNode { .. } => "raft-removed-node",
            Self::NoRoom { .. } => "raft-no-room",
            Self::BadNumber { .. } => "raft-bad-number",
            Self::BadEntries { .. } => "raft-bad-entries",
            Self::EntryTooLarge { .. } => "raft-entry-too-large",
            Self::ContradictsCommitted { .. } => "raft-contradicts-committed",
            Self::TwoLeaders { .. } => "raft-two-leaders",
            Self::NotLeader { .. } => "raft-not-leader",
            Self::BeyondLog { .. } => "raft-beyond-log",
            Self::AckBeyondLog { .. } => "raft-ack-beyond-log",
            Self::EarlyVote => "raft-early-vote",
            Self::NoMember => "raft-no-member",
            Self::BadMembers(_) => "raft-bad-members",
            Self::ForeignSnapshot { .. } => "raft-foreign-snapshot",
            Self::SnapshotTooLarge { .. } => "raft-snapshot-too-large",
        }
    }
}
