//! The replicated log: raft-rs behind a door through which only values go.
//!
//! This is the one place that names `raft`, `slog` and `protobuf`. [`RaftNode`] accepts ticks,
//! messages, proposals and reports of durable writes, and yields [`RaftOutput`]s: messages to send,
//! records to write, entries that are agreed. It owns no clock, socket, file or randomness; the
//! same inputs give the same outputs, bit for bit.
//!
//! ```text
//!            tick, handle, propose, change_voters, compact
//!                               |
//!   records of a start ---> RaftNode ---> poll: Send, Persist, Committed, Installed, ...
//!                               ^                        |
//!                               +---- on_persisted <-----+
//! ```
//!
//! Its promises:
//! - P1: a message that reports this node's memory leaves only once that is durable.
//! - P2: entries are handed out in order of index, without a gap, each once per start.
//! - P3: no input makes raft-rs panic: an input on which it would panic is refused before,
//!   with the reason.
//! - P4: bytes of others are never parsed as protobuf: messages and records have their own strict
//!   form, and entries that change the voters are rebuilt from it.
//! - P5: a disk that was set back is found out by the peers that answer before the node takes part, as
//!   long as one of them remembers the records that the disk forgot. See [`RaftHello`].
//! - P6: voters change through joint consensus alone (Ongaro's dissertation, section 4.3), and
//!   the joint state is left by itself.
//!
//! It does not check signatures (a member that lies about its records may break a promise), read
//! without a log entry, or keep anything for a node that is no longer in the log.

mod bytes;
mod driver;
mod entry;
mod greeting;
mod guard;
mod in_flight;
mod member_history;
mod members;
mod message;
mod node;
mod outbox;
mod output;
mod propose_refusal;
mod record;
mod recovery;
mod refusal;
mod setup;
mod start;
mod status;
mod storage;

#[cfg(test)]
mod tests;

pub use entry::{LogEntry, NodeChange, Payload, SnapshotImage};
pub use greeting::{RaftHello, RaftHelloAnswer, StaleCause, Welcome};
pub use members::{ChangeRefusal, Members, MembersFault, VoterChange};
pub use message::RaftMessage;
pub use node::RaftNode;
pub use output::{CommittedEntry, FatalReason, PersistToken, RaftOutput, RecordNumber};
pub use propose_refusal::{CompactRefusal, ProposeRefusal};
pub use record::{HardVote, RaftRecord, RaftRecordFault, decode_record, encode_record};
pub use recovery::{RecoverError, RecoveredLog};
pub use refusal::RaftRefusal;
pub use setup::{
    ENTRY_BYTES_MAX, MESSAGE_BYTES_MAX, NODES_MAX, NUMBER_MAX, PROMOTE_LAG_MAX, RaftSetup,
    RaftStartError, SNAPSHOT_BYTES_MAX,
};
pub use status::RaftStatus;
