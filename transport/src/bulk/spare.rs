//! Memory of chunks that one fetch uses again: fresh memory costs a fault for each of its pages.

use std::sync::{Arc, Mutex, PoisonError};

use super::sink::SINK_AHEAD;

/// The most chunks of memory that wait for bytes: as many as one holder and the sink have in hand
/// together. One is read, one is reported, some wait for the sink, one is written.
const SPARE_CHUNKS_MAX: usize = 1 + 1 + SINK_AHEAD + 1;

/// Buffers of chunks that are unused. Copies share them.
#[derive(Clone, Debug, Default)]
pub(super) struct SpareChunks {
    unused: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl SpareChunks {
    /// Empty memory with capacity for so many bytes. The memory that was returned last is given out
    /// first: it is still near the processor.
    pub(super) fn take(&self, bytes: usize) -> Vec<u8> {
        let last = self.unused.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut buffer = last.unwrap_or_default();
        buffer.reserve_exact(bytes);
        buffer
    }

    /// Keeps memory for later, unless enough lies here.
    pub(super) fn put(&self, mut buffer: Vec<u8>) {
        buffer.clear();
        let mut unused = self.unused.lock().unwrap_or_else(PoisonError::into_inner);
        if unused.len() < SPARE_CHUNKS_MAX {
            unused.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_comes_back_empty_and_with_the_capacity_that_is_needed() {
        let spare = SpareChunks::default();
        let mut first = spare.take(100);
        first.extend([1, 2, 3]);
        let address = first.as_ptr();
        spare.put(first);
        let second = spare.take(100);
        assert_eq!((second.as_ptr(), second.len(), second.capacity()), (address, 0, 100));
        spare.put(second);
        assert!(spare.take(200).capacity() >= 200);
    }

    #[test]
    fn no_more_is_kept_than_is_in_hand_at_once() {
        let spare = SpareChunks::default();
        for _ in 0..=SPARE_CHUNKS_MAX {
            spare.put(Vec::with_capacity(8));
        }
        let kept = (0..=SPARE_CHUNKS_MAX).filter(|_| spare.take(0).capacity() > 0).count();
        assert_eq!(kept, SPARE_CHUNKS_MAX);
    }
}
