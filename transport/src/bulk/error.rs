//! Errors of a fetch, and of one holder.

use std::fmt;
use std::io;

use thiserror::Error;
use zbelastic_types::NodeId;

use super::scheduler::HolderSetback;
use super::wire::KEY_BYTES_MAX;

/// Why a fetch gave nothing.
#[derive(Debug, Error)]
pub enum BulkError {
    /// The caller named no holder.
    #[error("the request names no holder")]
    NoHolders,
    /// The caller named a key that no request can carry.
    #[error("a key of {found} bytes, at most {KEY_BYTES_MAX} can be requested")]
    KeyTooLong {
        /// Length of the key in bytes.
        found: usize,
    },
    /// The caller named a length that is not fetched at once.
    #[error("{found} bytes are to be fetched, at most {most} are")]
    TooLong {
        /// Length of the body in bytes that the caller named.
        found: u64,
        /// The greatest length in bytes that is fetched this way.
        most: u64,
    },
    /// The sink failed to write bytes that arrived.
    #[error("what arrived could not be kept: {0}")]
    Sink(#[source] io::Error),
    /// Every holder failed as often as it may.
    #[error("no holder is left after {arrived} of {expected} chunks: {}", FailureList(.failures))]
    NoHolderLeft {
        /// The last failures of each holder, in the order in which they happened.
        failures: Vec<HolderFailure>,
        /// Number of chunks that arrived whole.
        arrived: u64,
        /// Number of chunks that were wanted.
        expected: u64,
    },
}

impl BulkError {
    /// Whether each holder answered that it does not have the body.
    #[must_use]
    pub fn is_unknown_everywhere(&self) -> bool {
        match self {
            Self::NoHolderLeft { failures, .. } => {
                failures.iter().all(|failure| matches!(failure.error, HolderError::UnknownKey))
            }
            Self::NoHolders | Self::KeyTooLong { .. } | Self::TooLong { .. } | Self::Sink(_) => {
                false
            }
        }
    }
}

/// One failure of one holder.
#[derive(Debug, Error)]
#[error("node {holder}: {error}")]
pub struct HolderFailure {
    /// Node id of the holder.
    pub holder: NodeId,
    /// The error of the holder.
    #[source]
    pub error: HolderError,
}

/// An error of one holder.
#[derive(Debug, Error)]
pub enum HolderError {
    /// There is no connection to it.
    #[error("cannot be reached: {0}")]
    Unreachable(#[source] io::Error),
    /// It does not have the requested body.
    #[error("does not have it")]
    UnknownKey,
    /// It has something of another length.
    #[error("has {found} bytes of it, expected {expected}")]
    WrongLength {
        /// Length of the body in bytes that the caller named.
        expected: u64,
        /// Length of the body in bytes that the holder answered.
        found: u64,
    },
    /// A chunk does not match its checksum.
    #[error("sent chunk {chunk} damaged")]
    Damaged {
        /// Index of the chunk in the body.
        chunk: u64,
    },
    /// A chunk is not the one that was meant, though its checksum is right.
    #[error("has another chunk {chunk}")]
    Unsound {
        /// Index of the chunk in the body.
        chunk: u64,
    },
    /// The stream ended or broke.
    #[error("the stream broke: {0}")]
    Stream(#[source] io::Error),
    /// No byte came for too long.
    #[error("sent nothing for too long")]
    Stalled,
    /// It was so much slower than another that its chunks went to the other.
    #[error("was overtaken by a faster one")]
    Overtaken,
    /// It sent a status byte that is no answer.
    #[error("answered with status {status}, which is none")]
    NoAnswer {
        /// The status byte that it sent.
        status: u8,
    },
    /// It holds fewer chunks than were requested, though the length is right.
    #[error("refused the range")]
    RangeRefused,
}

impl HolderError {
    pub(super) fn setback(&self) -> HolderSetback {
        match self {
            Self::UnknownKey
            | Self::WrongLength { .. }
            | Self::NoAnswer { .. }
            | Self::RangeRefused => HolderSetback::Final,
            Self::Unreachable(_) | Self::Unsound { .. } | Self::Stream(_) | Self::Stalled => {
                HolderSetback::Passing
            }
            Self::Damaged { .. } => HolderSetback::Damaged,
            Self::Overtaken => HolderSetback::Overtaken,
        }
    }
}

struct FailureList<'a>(&'a [HolderFailure]);

impl fmt::Display for FailureList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, failure) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { "; " };
            write!(f, "{comma}{failure}")?;
        }
        Ok(())
    }
}
