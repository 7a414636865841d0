//! The records that are written down, and their bytes.
//!
//! ```text
//!   byte  0        1        5        9
//!         +--------+--------+--------+----------------- - -
//!         | version| length | CRC-32 | body (postcard)
//!         +--------+--------+--------+----------------- - -
//!                    little endian;  the CRC is over version, length and body
//! ```
//!
//! A version that is not ours is distinguished from damage: a newer program wrote it, and to cut it
//! away would be to forget the promises of that program.

use serde::{Deserialize, Serialize};
use thiserror::Error;
use zbelastic_types::NodeId;

use super::entry::{LogEntry, SnapshotImage};

/// The version of the form above.
pub const RECORD_VERSION: u8 = 1;
const HEADER_BYTES: usize = 9;

/// One thing a node must not forget. The shell writes records in order and keeps them whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RaftRecord {
    /// The promise of the node to others.
    HardState(HardVote),
    /// Entries that follow those in the log, or replace them from the first of these on.
    Append(Vec<LogEntry>),
    /// A state in place of the log up to its index. Later entries stay if they continue it.
    Snapshot(SnapshotImage),
    /// This node started for the `boot`-th time.
    Boot {
        /// The node that wrote these records.
        node: NodeId,
        /// How often the node has started, counted from 1.
        boot: u64,
    },
    /// Another node reported in a greeting that it has started for the `boot`-th time.
    PeerBoot {
        /// The node that sent the greeting.
        node: NodeId,
        /// How often it has started, counted from 1.
        boot: u64,
        /// A number that distinguishes this start from one with a copy of the disk.
        life: u64,
    },
}

/// The promise of a node to others: its term, its vote in it, and the commit index that it knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HardVote {
    /// The latest term the node has seen.
    pub term: u64,
    /// The node it voted for in that term.
    pub vote: Option<NodeId>,
    /// The last index it knows to be committed. Always one that was written before.
    pub commit: u64,
}

/// A fault of the bytes of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RaftRecordFault {
    /// Another version of this program wrote it.
    #[error("record version {found}, this program reads version {RECORD_VERSION}")]
    UnknownVersion {
        /// The version byte of the record.
        found: u8,
    },
    /// Fewer bytes than a header has.
    #[error("{found} bytes, a record has at least {HEADER_BYTES}")]
    TooShort {
        /// Number of bytes that there are.
        found: usize,
    },
    /// The length is not that of the body.
    #[error("a body of {found} bytes, the header says {expected}")]
    WrongLength {
        /// Bytes of the body that the header names.
        expected: u64,
        /// Bytes of the body that are there.
        found: u64,
    },
    /// The checksum is not that of the bytes.
    #[error("checksum {found:#010x}, the header says {expected:#010x}")]
    WrongChecksum {
        /// The checksum in the header.
        expected: u32,
        /// The checksum of the bytes.
        found: u32,
    },
    /// The checksum is right and the body is no record.
    #[error("the body is no record")]
    NoRecord,
}

impl RaftRecordFault {
    /// Whether a write that was cut short can look like this.
    pub(super) fn may_be_torn(self) -> bool {
        match self {
            Self::UnknownVersion { .. } | Self::NoRecord => false,
            Self::TooShort { .. } | Self::WrongLength { .. } | Self::WrongChecksum { .. } => true,
        }
    }
}

/// The bytes of `record`.
///
/// # Panics
/// If the record has more than 4 GiB: entries and snapshots are bounded far below.
#[must_use]
pub fn encode_record(record: &RaftRecord) -> Vec<u8> {
    let bytes = vec![0_u8; HEADER_BYTES];
    let mut bytes = postcard::to_extend(record, bytes).expect("a vector takes all bytes");
    let length = u32::try_from(bytes.len() - HEADER_BYTES).expect("a record is below 4 GiB");
    bytes[0] = RECORD_VERSION;
    bytes[1..5].copy_from_slice(&length.to_le_bytes());
    let checksum = checksum(&bytes);
    bytes[5..9].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

/// The record that `bytes` are.
///
/// # Errors
/// If the bytes are not exactly one record of this version.
pub fn decode_record(bytes: &[u8]) -> Result<RaftRecord, RaftRecordFault> {
    let too_short = RaftRecordFault::TooShort { found: bytes.len() };
    let &version = bytes.first().ok_or(too_short)?;
    if bytes.len() < HEADER_BYTES {
        return Err(too_short);
    }
    // A file that was extended and not filled holds zeros.
    if version != RECORD_VERSION && version != 0 {
        return Err(RaftRecordFault::UnknownVersion { found: version });
    }
    let expected = u64::from(word(bytes, 1));
    let found = (bytes.len() - HEADER_BYTES) as u64;
    if expected != found {
        return Err(RaftRecordFault::WrongLength { expected, found });
    }
    let expected = word(bytes, 5);
    let found = checksum(bytes);
    if expected != found || version == 0 {
        return Err(RaftRecordFault::WrongChecksum { expected, found });
    }
    match postcard::take_from_bytes(&bytes[HEADER_BYTES..]) {
        Ok((record, [])) => Ok(record),
        Ok((_, _)) | Err(_) => Err(RaftRecordFault::NoRecord),
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let word = bytes[at..at + 4].try_into().expect("four bytes were taken");
    u32::from_le_bytes(word)
}

fn checksum(bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&bytes[..5]);
    hasher.update(&bytes[HEADER_BYTES..]);
    hasher.finalize()
}
