//! How a value of any length lies in rows of a few thousand bytes.
//!
//! ```text
//!   key | part 0 (4, big endian)  ->  length (8) | check (8) | bytes ...
//!   key | part 1                  ->  bytes ...
//! ```
//!
//! Longer rows would go into files of their own, which cost a sync each. The check is the beginning
//! of the BLAKE3 hash over the key and the value.

use crate::error::DatabaseFault;
use crate::index::IndexRow;

/// Bytes of a part at most.
pub(crate) const PART_BYTES: usize = 4096;
/// Bytes of a part's number, behind the key.
pub(crate) const PART_NUMBER_BYTES: usize = 4;
const HEADER_BYTES: usize = 16;

/// The parts of a value, at least one.
pub(crate) fn parts(key: &[u8], value: &[u8]) -> Vec<Vec<u8>> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES + value.len());
    bytes.extend((value.len() as u64).to_le_bytes());
    bytes.extend(check(key, value));
    bytes.extend(value);
    bytes.chunks(PART_BYTES).map(<[u8]>::to_vec).collect()
}

/// The key of a part.
pub(crate) fn part_key(key: &[u8], number: u32) -> Vec<u8> {
    [key, &number.to_be_bytes()].concat()
}

/// The key of the row with a part under the key `part_key`.
pub(crate) fn key_of(part_key: &[u8]) -> Result<Vec<u8>, DatabaseFault> {
    Ok(split(part_key)?.0.to_vec())
}

/// The rows of parts that follow each other.
pub(crate) fn join<B: AsRef<[u8]>>(
    parts: impl Iterator<Item = Result<(B, B), DatabaseFault>>,
) -> Result<Vec<IndexRow>, DatabaseFault> {
    let mut rows: Vec<IndexRow> = Vec::new();
    let mut expected = 0;
    for part in parts {
        let (part_key, bytes) = part?;
        let (key, number) = split(part_key.as_ref())?;
        match rows.last_mut() {
            Some((last, value)) if last == key => value.extend(bytes.as_ref()),
            Some(_) | None => {
                expected = 0;
                rows.push((key.to_vec(), bytes.as_ref().to_vec()));
            }
        }
        if number != expected {
            return Err(bad_row(key, "a part of it is missing"));
        }
        expected += 1;
    }
    rows.into_iter().map(unwrap_row).collect()
}

/// The fault of a row that is not as it was written.
pub(crate) fn bad_row(key: &[u8], reason: &'static str) -> DatabaseFault {
    let row = key.iter().map(|byte| format!("{byte:02x}")).collect();
    DatabaseFault::BadRow { row, reason }
}

fn unwrap_row((key, bytes): IndexRow) -> Result<IndexRow, DatabaseFault> {
    let Some((header, value)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
        return Err(bad_row(&key, "it is shorter than its header"));
    };
    let (length, found) = header.split_at(8);
    if length != (value.len() as u64).to_le_bytes() {
        return Err(bad_row(&key, "its length is another"));
    }
    if found != check(&key, value) {
        return Err(bad_row(&key, "its check is another"));
    }
    let value = value.to_vec();
    Ok((key, value))
}

fn split(part_key: &[u8]) -> Result<(&[u8], u32), DatabaseFault> {
    match part_key.split_last_chunk::<PART_NUMBER_BYTES>() {
        Some((key, number)) => Ok((key, u32::from_be_bytes(*number))),
        None => Err(bad_row(part_key, "its key is too short")),
    }
}

fn check(key: &[u8], value: &[u8]) -> [u8; 8] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(key).update(value);
    let hash = hasher.finalize();
    *hash.as_bytes().first_chunk().expect("a hash has 32 bytes")
}
