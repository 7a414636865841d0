//! Why a message is not let in.

use thiserror::Error;
use zbelastic_types::NodeId;

use super::members::MembersFault;
use super::setup::{ENTRY_BYTES_MAX, MESSAGE_BYTES_MAX, SNAPSHOT_BYTES_MAX};

/// Why a message is not let in. The node is as it was before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RaftRefusal {
    /// The node has stopped for good.
    #[error("this node has stopped")]
    Stopped,
    /// The node still asks the others whether its disk is stale.
    #[error("this node is greeting")]
    Greeting,
    /// A leader's snapshot is being written; what else comes is lost and will be sent again.
    #[error("this node is writing a snapshot")]
    Installing,
    /// Too many bytes.
    #[error("a message of {found} bytes, at most {MESSAGE_BYTES_MAX} are read")]
    TooLarge {
        /// How many there are.
        found: usize,
    },
    /// The bytes are no message.
    #[error("the bytes are no message")]
    Malformed,
    /// The message says it is from another than who sent it.
    #[error("sent by node {expected}, the message says node {found}")]
    WrongSender {
        /// Who sent it.
        expected: NodeId,
        /// Who it says it is from.
        found: NodeId,
    },
    /// The message is for another node.
    #[error("this is node {expected}, the message is for node {found}")]
    WrongReceiver {
        /// This node.
        expected: NodeId,
        /// Whom it is for.
        found: NodeId,
    },
    /// An answer from a node that was never asked.
    #[error("node {from} is no member")]
    UnknownNode {
        /// The sender.
        from: NodeId,
    },
    /// A node that has left. Its id is never given again.
    #[error("node {from} was removed")]
    RemovedNode {
        /// The sender.
        from: NodeId,
    },
    /// Too many nodes are remembered to remember another.
    #[error("no room to remember node {from}")]
    NoRoom {
        /// The sender.
        from: NodeId,
    },
    /// A number that no honest node reaches, or 0 where none can be.
    #[error("{what} is {found}")]
    BadNumber {
        /// What the number is.
        what: &'static str,
        /// The number.
        found: u64,
    },
    /// Entries that do not follow one another.
    #[error("entry {found} of term {found_term} follows entry {before} of term {before_term}")]
    BadEntries {
        /// The entry before.
        before: u64,
        /// Its term.
        before_term: u64,
        /// The entry that follows it.
        found: u64,
        /// Its term.
        found_term: u64,
    },
    /// An entry that is too large.
    #[error("entry {index} has {found} bytes, at most {ENTRY_BYTES_MAX} may be")]
    EntryTooLarge {
        /// The entry.
        index: u64,
        /// Its bytes.
        found: usize,
    },
    /// What is committed here is another in the message.
    #[error("entry {index} is committed with term {expected}, the message says {found}")]
    ContradictsCommitted {
        /// The entry.
        index: u64,
        /// Its term here.
        expected: u64,
        /// Its term in the message.
        found: u64,
    },
    /// Two leaders in one term.
    #[error("node {expected} leads in term {term}, the message is from node {found}")]
    TwoLeaders {
        /// The term.
        term: u64,
        /// Who is known to lead.
        expected: NodeId,
        /// Who says it leads.
        found: NodeId,
    },
    /// Only the leader may ask for an election.
    #[error("node {from} does not lead in term {term}")]
    NotLeader {
        /// The sender.
        from: NodeId,
        /// The term of this node.
        term: u64,
    },
    /// The leader believes more to be here than there is. The node stops.
    #[error("entry {commit} is said to be here, the last is {last_index}")]
    BeyondLog {
        /// What the leader says.
        commit: u64,
        /// What is here.
        last_index: u64,
    },
    /// An acknowledgement of entries that were never sent.
    #[error("entry {found} is acknowledged, the last is {last_index}")]
    AckBeyondLog {
        /// What is acknowledged.
        found: u64,
        /// What is here.
        last_index: u64,
    },
    /// A vote that was not asked for yet: the question waits for what is being written.
    #[error("a vote that was not asked for")]
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
        /// Its index.
        index: u64,
    },
    /// A snapshot that is too large.
    #[error("a snapshot of {found} bytes, at most {SNAPSHOT_BYTES_MAX} may be")]
    SnapshotTooLarge {
        /// Its bytes.
        found: usize,
    },
}

impl RaftRefusal {
    /// The word under which it is counted.
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
