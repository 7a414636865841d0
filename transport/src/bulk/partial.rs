//! A body of which some chunks came: what a fetch leaves whose holders all failed, and the next fetch
//! of the same body goes on with.

use std::iter;

use super::error::BulkError;
use super::holder_task::ChunkRange;
use super::wire::{CHUNK_BYTES, chunk_count};

/// A body that is put together in its sink, by one fetch or by several after each other. Its key and
/// length name it: chunks of another body never go to the same sink.
#[derive(Debug)]
pub struct PartialBody<S> {
    pub(super) key: Vec<u8>,
    pub(super) length: u64,
    pub(super) missing: Vec<ChunkRange>,
    pub(super) sink: S,
}

impl<S> PartialBody<S> {
    /// A body of `length` bytes, named by `key` at its holders, of which nothing came.
    #[must_use]
    pub fn new(key: Vec<u8>, length: u64, sink: S) -> Self {
        Self { key, length, missing: all_chunks(length), sink }
    }

    /// Bytes of the chunks that did not come.
    #[must_use]
    pub fn missing_bytes(&self) -> u64 {
        let offset = |chunk: u64| self.length.min(chunk.saturating_mul(CHUNK_BYTES as u64));
        self.missing.iter().map(|range| offset(range.end) - offset(range.start)).sum()
    }
}

/// A fetch that ended before all chunks came.
#[derive(Debug)]
pub struct UnfinishedFetch<S> {
    /// Why it ended.
    pub error: BulkError,
    /// What came so far, verified; none if the sink failed or the request was refused.
    pub body: Option<PartialBody<S>>,
}

impl<S> From<BulkError> for UnfinishedFetch<S> {
    fn from(error: BulkError) -> Self {
        Self { error, body: None }
    }
}

/// All chunks of a body of so many bytes.
pub(super) fn all_chunks(length: u64) -> Vec<ChunkRange> {
    iter::once(0..chunk_count(length)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_bytes_are_those_of_missing_chunks_and_the_last_one_is_short() {
        let chunk = CHUNK_BYTES as u64;
        let mut body = PartialBody::new(vec![7], 4 * chunk + 5, ());
        assert_eq!(body.missing_bytes(), 4 * chunk + 5);
        body.missing = vec![4..5, 0..2];
        assert_eq!(body.missing_bytes(), 2 * chunk + 5);
        body.missing.clear();
        assert_eq!(body.missing_bytes(), 0);
        assert_eq!(PartialBody::new(vec![7], 0, ()).missing_bytes(), 0);
    }
}
