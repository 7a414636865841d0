//! The records of a controller: opaque bytes with consecutive numbers.

use std::path::PathBuf;

use thiserror::Error;

use crate::error::{DatabaseFault, FileFault};

/// Bytes of a record at most. A snapshot of the state is the largest there is.
pub const RECORD_BYTES_MAX: usize = 64 << 20;

/// Records in order. The numbers are the log's own: the first record ever written has 0, and no
/// number is given twice but to a record behind one that was cut off.
pub trait RecordLog: Send {
    /// The number of the oldest record that is kept. [`Self::next`] if there is none.
    fn first(&self) -> u64;

    /// The number that the next record gets.
    fn next(&self) -> u64;

    /// Writes `records` behind all others, all of them or none. They are durable when the call
    /// returns, at the price of one sync for the batch. An empty batch costs nothing.
    ///
    /// # Errors
    /// If they are not durable. After a failed write the log accepts no further one until it is
    /// opened again: the bytes that a failed sync left on the medium cannot be known.
    fn append(&mut self, records: &[Vec<u8>]) -> Result<(), LogError>;

    /// Removes the records before the number `before`. It need not be durable: after a crash some
    /// may be back.
    ///
    /// # Errors
    /// If `before` is beyond [`Self::next`], or the medium fails.
    fn trim(&mut self, before: u64) -> Result<(), LogError>;

    /// Cuts off the record `number` and all behind it, durably. For a last record that was torn.
    ///
    /// # Errors
    /// If there is no such record, or the medium fails.
    fn cut_from(&mut self, number: u64) -> Result<(), LogError>;

    /// All records that are kept, with their numbers, oldest first.
    ///
    /// # Errors
    /// If the medium fails, or a record is not there.
    fn read_all(&self) -> Result<Vec<(u64, Vec<u8>)>, LogError>;
}

/// Why a log cannot be opened, read or written.
#[derive(Debug, Error)]
pub enum LogError {
    /// An operation on a file failed.
    #[error(transparent)]
    File(#[from] FileFault),
    /// The database of the log failed.
    #[error("the log in {}: {fault}", folder.display())]
    Database {
        /// Path of the folder that failed.
        folder: PathBuf,
        /// The fault of the database.
        #[source]
        fault: DatabaseFault,
    },
    /// A record is not there although others around it are.
    #[error("record {expected} is missing, the next one there is {found}")]
    Gap {
        /// The record that should follow.
        expected: u64,
        /// The record that does.
        found: u64,
    },
    /// A number that is not one of a record.
    #[error("record {found}, there are those from {first} up to {next}")]
    NoRecord {
        /// The requested record number.
        found: u64,
        /// The first record there is.
        first: u64,
        /// The number after the last one.
        next: u64,
    },
    /// A record that is too long.
    #[error("a record of {found} bytes, at most {RECORD_BYTES_MAX}")]
    TooLong {
        /// Bytes that were passed in.
        found: usize,
    },
}

impl LogError {
    /// Whether the disk or the user's share of it is full.
    #[must_use]
    pub fn is_full(&self) -> bool {
        match self {
            Self::File(fault) => fault.is_full(),
            Self::Database { fault, .. } => fault.is_full(),
            Self::Gap { .. } | Self::NoRecord { .. } | Self::TooLong { .. } => false,
        }
    }
}

/// Checks that no record is too long.
pub(crate) fn check_lengths(records: &[Vec<u8>]) -> Result<(), LogError> {
    match records.iter().map(Vec::len).find(|length| *length > RECORD_BYTES_MAX) {
        Some(found) => Err(LogError::TooLong { found }),
        None => Ok(()),
    }
}

/// Checks that `first <= found < next`.
pub(crate) fn check_number(found: u64, first: u64, next: u64) -> Result<(), LogError> {
    if (first..next).contains(&found) {
        return Ok(());
    }
    Err(LogError::NoRecord { found, first, next })
}
