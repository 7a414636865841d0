//! Which chunks of a shard's file are here, while it arrives.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// A bit for each chunk of a file, set behind the write of its bytes, and cleared before they go.
#[derive(Debug)]
pub(super) struct PresentChunks {
    chunk_bytes: u64,
    words: Vec<AtomicU64>,
}

/// The chunks that these bytes lie in.
pub(super) fn chunks_of(bytes: &Range<usize>, chunk_bytes: u64) -> Range<u64> {
    if bytes.is_empty() {
        return 0..0;
    }
    bytes.start as u64 / chunk_bytes..(bytes.end as u64).div_ceil(chunk_bytes)
}

impl PresentChunks {
    /// None of the chunks of a file of `length` bytes.
    pub(super) fn new(length: u64, chunk_bytes: u64) -> Self {
        let words = length.div_ceil(chunk_bytes).div_ceil(64);
        Self { chunk_bytes, words: (0..words).map(|_| AtomicU64::new(0)).collect() }
    }

    /// The bytes of a chunk were written.
    pub(super) fn set(&self, chunk: u64) {
        if let Some(word) = self.words.get((chunk / 64) as usize) {
            word.fetch_or(1 << (chunk % 64), Ordering::Release);
        }
    }

    /// The bytes of a chunk go. Yields whether they were here.
    pub(super) fn clear(&self, chunk: u64) -> bool {
        let bit = 1 << (chunk % 64);
        let word = self.words.get((chunk / 64) as usize);
        word.is_some_and(|word| word.fetch_and(!bit, Ordering::AcqRel) & bit != 0)
    }

    /// Whether a chunk was written.
    pub(super) fn has(&self, chunk: u64) -> bool {
        let word = self.words.get((chunk / 64) as usize);
        word.is_some_and(|word| word.load(Ordering::Acquire) >> (chunk % 64) & 1 == 1)
    }

    /// Whether all these bytes were written.
    pub(super) fn has_bytes(&self, bytes: &Range<usize>) -> bool {
        chunks_of(bytes, self.chunk_bytes).all(|chunk| self.has(chunk))
    }
}

#[cfg(test)]
mod tests {
    use super::{PresentChunks, chunks_of};

    #[test]
    fn bytes_are_here_once_every_chunk_that_they_touch_is() {
        let present = PresentChunks::new(1000, 10);
        assert!(present.has_bytes(&(30..30)), "no bytes");
        present.set(63);
        present.set(64);
        present.set(500);
        assert!(present.has(63) && present.has(64) && !present.has(65) && !present.has(500));
        assert!(present.has_bytes(&(630..650)) && present.has_bytes(&(639..641)));
        assert!(!present.has_bytes(&(629..631)) && !present.has_bytes(&(649..651)));
        assert!(present.clear(64) && !present.clear(64) && !present.clear(500));
        assert!(present.has(63) && !present.has_bytes(&(630..650)));
        assert_eq!(chunks_of(&(9..11), 10), 0..2);
        assert_eq!(chunks_of(&(10..20), 10), 1..2);
    }
}
