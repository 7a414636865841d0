//! Bytes of entries, messages and snapshots: a format, then the fields.
//!
//! The form is postcard's: variable-length integers, no names. Bytes that do not decode to the last
//! one, or are more than their limit, are refused before anything is allocated for them.
//!
//! A program reads the format before its own as well, so that a cluster changes programs one node
//! after the other (`docs/decisions/0059-formats-are-raised-by-an-entry.md`). Entries and snapshots
//! are written in the format that is agreed on; bytes that are not agreed on, as messages and
//! manifests, have the same form in all formats that are read, and are written in the oldest of
//! them.

#[cfg(test)]
mod tests;

use std::fmt;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Bytes of a message at most: a snapshot of the replicated state is the largest.
pub const MESSAGE_BYTES_MAX: usize = 14 << 20;

/// A format, which is the first byte of everything written in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Format(u8);

impl Format {
    /// The oldest that this program reads: that of the program before it.
    pub const OLDEST: Self = Self(9);
    /// The newest that this program reads. Format 10 adds the entry that raises the format.
    pub const NEWEST: Self = Self(10);

    /// [`Self::OLDEST`], for a value that carries no format of its own.
    pub(crate) const fn oldest() -> Self {
        Self::OLDEST
    }

    /// The format of this number, if this program reads it.
    #[must_use]
    pub const fn of(number: u8) -> Option<Self> {
        let is_read = Self::OLDEST.0 <= number && number <= Self::NEWEST.0;
        if is_read { Some(Self(number)) } else { None }
    }

    /// Number of the format: the first byte.
    #[must_use]
    pub const fn number(self) -> u8 {
        self.0
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Why bytes are not decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// There are no bytes, not even a format.
    #[error("no bytes")]
    Empty,
    /// There are more bytes than the limit.
    #[error("{found} bytes, at most {limit}")]
    TooLong {
        /// The most bytes that are accepted.
        limit: usize,
        /// Number of bytes given.
        found: usize,
    },
    /// Another version of the program wrote them.
    #[error("format version {found}, this program reads {} to {newest}", Format::OLDEST)]
    Version {
        /// The newest format that the program reads.
        newest: Format,
        /// Format number in the first byte.
        found: u8,
    },
    /// The bytes after the format do not form a value of the type.
    #[error("the bytes do not form what they should")]
    Form,
    /// Bytes are left over after the value.
    #[error("{count} bytes too many")]
    Trailing {
        /// Number of bytes left over.
        count: usize,
    },
}

/// The bytes of a value with a form that is the same in all formats that are read.
///
/// # Panics
/// Never for the types of this package: none has a form that cannot be written.
#[must_use]
pub fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    encode_in(Format::OLDEST, value)
}

/// The bytes of a value in the format that is agreed on.
///
/// # Panics
/// Never for the types of this package: none has a form that cannot be written.
#[must_use]
pub fn encode_in<T: Serialize>(format: Format, value: &T) -> Vec<u8> {
    postcard::to_extend(value, vec![format.0]).expect("plain data can be written")
}

/// The value in `bytes`.
///
/// # Errors
/// If they are longer than `limit`, of another version, or do not form a value to the last byte.
pub fn decode<T: DeserializeOwned>(bytes: &[u8], limit: usize) -> Result<T, DecodeError> {
    decode_up_to(Format::NEWEST, bytes, limit).map(|(_, value)| value)
}

/// The value in `bytes` with the format it was written in, for a program that reads no newer one
/// than `newest`.
///
/// # Errors
/// As [`decode`].
pub fn decode_up_to<T: DeserializeOwned>(
    newest: Format,
    bytes: &[u8],
    limit: usize,
) -> Result<(Format, T), DecodeError> {
    if bytes.len() > limit {
        return Err(DecodeError::TooLong { limit, found: bytes.len() });
    }
    let (version, body) = bytes.split_first().ok_or(DecodeError::Empty)?;
    let format = Format::of(*version).filter(|format| *format <= newest);
    let format = format.ok_or(DecodeError::Version { newest, found: *version })?;
    let (value, rest) = postcard::take_from_bytes(body).map_err(|_| DecodeError::Form)?;
    match rest.len() {
        0 => Ok((format, value)),
        count => Err(DecodeError::Trailing { count }),
    }
}
