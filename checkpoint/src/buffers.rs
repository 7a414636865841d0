//! Buffers for chunks, aligned as O_DIRECT requires, and used again and again.
//!
//! A fresh buffer is a thousand pages that the system has to find and to clear while a piece is
//! written, which costs more than to fill them. So a few are kept for the next piece.

use std::io;
use std::mem;
use std::sync::{Mutex, MutexGuard};

use zbelastic_whole_file::direct_start;

use crate::files::DIRECT_BYTES;
use crate::names::CHUNK_BYTES;

/// Buffers that are kept while no thread uses them: one for the piece that is written, two for
/// chunks that arrive beside it, and two for chunks that are read for other nodes. A thread that
/// finds none makes one, so no thread waits.
const IDLE_MAX: usize = 5;

/// The buffers of a store.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    /// At most [`IDLE_MAX`]. Locked only to remove one or to return one.
    idle: Mutex<Vec<Vec<u8>>>,
}

/// Memory for one chunk, which begins at a multiple of [`DIRECT_BYTES`]. It is returned to its
/// [`Buffers`] when it is dropped.
#[derive(Debug)]
pub(crate) struct ChunkBuffer<'a> {
    buffers: &'a Buffers,
    /// Longer than a chunk, so that an aligned place for one is within. It never grows, as it would
    /// move.
    memory: Vec<u8>,
    start: usize,
    length: usize,
}

impl Buffers {
    /// Removes an idle buffer from the pool, or makes one if there is none. It is empty.
    pub(crate) fn take(&self) -> ChunkBuffer<'_> {
        let idle = self.idle().pop();
        let memory = idle.unwrap_or_else(|| vec![0; CHUNK_BYTES + DIRECT_BYTES]);
        let start = direct_start(&memory);
        ChunkBuffer { buffers: self, memory, start, length: 0 }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Vec<u8>>> {
        self.idle.lock().expect("nothing panics under the lock")
    }
}

impl ChunkBuffer<'_> {
    /// The bytes of the chunk in this buffer.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.length]
    }

    /// Reads a chunk of `length` bytes, in place of the bytes that were there.
    ///
    /// # Errors
    /// If `source` fails or has fewer. The buffer is empty then.
    pub(crate) fn fill(&mut self, length: usize, source: &mut dyn io::Read) -> io::Result<()> {
        assert!(length <= CHUNK_BYTES, "a chunk has no more bytes");
        self.fill_by(|into| source.read_exact(&mut into[..length]).map(|()| length))
    }

    /// Fills it by `read`, which is given the memory for a whole chunk, aligned, and returns how
    /// many bytes of it it wrote.
    ///
    /// # Errors
    /// Those of `read`. The buffer is empty then.
    pub(crate) fn fill_by(
        &mut self,
        read: impl FnOnce(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<()> {
        self.length = 0;
        self.length = read(&mut self.memory[self.start..self.start + CHUNK_BYTES])?;
        Ok(())
    }
}

impl Drop for ChunkBuffer<'_> {
    fn drop(&mut self) {
        let mut idle = self.buffers.idle();
        if idle.len() < IDLE_MAX {
            idle.push(mem::take(&mut self.memory));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_aligned_and_holds_what_was_read_last() {
        let buffers = Buffers::default();
        let mut buffer = buffers.take();
        for length in [CHUNK_BYTES, 1, 0, CHUNK_BYTES - 1] {
            let byte = length as u8 ^ 0x5a;
            buffer.fill(length, &mut &*vec![byte; length]).expect("there are as many");
            assert!(buffer.bytes() == vec![byte; length], "{length} bytes");
            assert_eq!(buffer.bytes().as_ptr().addr() % DIRECT_BYTES, 0);
        }
        buffer.fill(2, &mut &[1_u8][..]).expect_err("a byte is missing");
        assert_eq!(buffer.bytes(), []);
    }

    #[test]
    fn buffers_are_used_again_and_few_are_kept() {
        let buffers = Buffers::default();
        let place = |buffer: &ChunkBuffer<'_>| buffer.bytes().as_ptr().addr();
        let first = place(&buffers.take());
        assert_eq!(place(&buffers.take()), first);
        let many: Vec<_> = (0..=IDLE_MAX).map(|_| buffers.take()).collect();
        drop(many);
        assert_eq!(buffers.idle().len(), IDLE_MAX);
    }
}
