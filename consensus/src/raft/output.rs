//! Actions that a Raft node hands out.
//!
//! The order: [`RaftOutput::LeaderChanged`], then messages that may be sent before anything is
//! durable, then records to persist, then entries that are agreed. When a token is reported: first
//! [`RaftOutput::Installed`], then [`RaftOutput::Trim`], then messages that waited for the token,
//! then outputs that follow from it. [`RaftOutput::Fatal`] is the last output there is.

use zbelastic_types::NodeId;

use super::greeting::StaleCause;
use super::message::RaftMessage;
use super::record::RaftRecord;

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RaftOutput {
    /// Send now, or lose it: nothing is handed out again because of a loss.
    Send {
        /// The node that it is sent to.
        to: NodeId,
        /// The message to send.
        message: RaftMessage,
    },
    /// Write the records behind all earlier ones, make them durable, then report the token.
    /// Several may be under way; they become durable, and are reported, in this order.
    Persist {
        /// To be passed to [`super::RaftNode::on_persisted`].
        token: PersistToken,
        /// The records to write, oldest first.
        records: Vec<RaftRecord>,
    },
    /// Records with a smaller number are no longer needed. When they go is of no importance.
    Trim {
        /// The first record that is needed.
        before: RecordNumber,
    },
    /// The entry at the next index is agreed.
    Committed(CommittedEntry),
    /// Many entries came with a leader's snapshot: the state machine is replaced by it. The next
    /// committed entry has the index after it.
    Installed {
        /// The last index the state holds.
        index: u64,
        /// The term of that entry.
        term: u64,
        /// The encoded state of the state machine.
        data: Vec<u8>,
    },
    /// The log is long, or a new member needs the state: time for [`super::RaftNode::compact`] at
    /// the last index handed out. Handed out again if nothing happens.
    RequestSnapshot,
    /// Another leader, none, or another term.
    LeaderChanged {
        /// The leader, if this node knows one.
        leader: Option<NodeId>,
        /// The term this node is in.
        term: u64,
    },
    /// This node must stop, and can only come back as a new node.
    Fatal(FatalReason),
}

/// Names a [`RaftOutput::Persist`]. Counted from 0 at each start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PersistToken(pub u64);

/// The number of a record: how many came before it since the first one that this node was started
/// with, that one being 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct RecordNumber(pub u64);

/// An entry that is agreed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommittedEntry {
    /// Index of the entry in the log.
    pub index: u64,
    /// The term of the leader that appended it.
    pub term: u64,
    /// The proposal. Empty if the entry begins a term or changes members.
    pub data: Vec<u8>,
}

/// Why a node must stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FatalReason {
    /// A peer remembers a record that this node's disk does not.
    StaleDisk {
        /// The peer that remembers it.
        by: NodeId,
        /// The record that the peer remembers and the disk does not.
        cause: StaleCause,
    },
    /// The leader knows entries to be on this node that are not there.
    StaleLog {
        /// The leader that counts on those entries.
        leader: NodeId,
        /// The last entry the leader knows to be here and committed.
        commit: u64,
        /// The last entry here.
        last_index: u64,
    },
}
