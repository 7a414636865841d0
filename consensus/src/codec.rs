//! Bytes of entries, messages and snapshots: a version, then the fields.
//!
//! The form is postcard's: variable-length integers, no names. What does not decode to the last
//! byte, or is larger than its limit, is refused before anything is allocated for it.

#[cfg(test)]
mod tests;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// The version written in front of everything.
pub const FORMAT_VERSION: u8 = 9;

/// Why bytes are not taken in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// There are none.
    #[error("no bytes")]
    Empty,
    /// More than can be.
    #[error("{found} bytes, at most {limit}")]
    TooLong {
        /// The limit.
        limit: usize,
        /// Bytes found.
        found: usize,
    },
    /// Another version of the program wrote them.
    #[error("format version {found}, this program reads {FORMAT_VERSION}")]
    Version {
        /// The version found.
        found: u8,
    },
    /// They are no such thing.
    #[error("the bytes do not form what they should")]
    Form,
    /// Something is left over.
    #[error("{count} bytes too many")]
    Trailing {
        /// Bytes left.
        count: usize,
    },
}

/// The bytes of a value.
///
/// # Panics
/// Never for the types of this package: none has a form that cannot be written.
#[must_use]
pub fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    postcard::to_extend(value, vec![FORMAT_VERSION]).expect("plain data can be written")
}

/// The value in `bytes`.
///
/// # Errors
/// If they are longer than `limit`, of another version, or do not form a value to the last byte.
pub fn decode<T: DeserializeOwned>(bytes: &[u8], limit: usize) -> Result<T, DecodeError> {
    if bytes.len() > limit {
        return Err(DecodeError::TooLong { limit, found: bytes.len() });
    }
    let (version, body) = bytes.split_first().ok_or(DecodeError::Empty)?;
    if *version != FORMAT_VERSION {
        return Err(DecodeError::Version { found: *version });
    }
    let (value, rest) = postcard::take_from_bytes(body).map_err(|_| DecodeError::Form)?;
    if rest.is_empty() { Ok(value) } else { Err(DecodeError::Trailing { count: rest.len() }) }
}
