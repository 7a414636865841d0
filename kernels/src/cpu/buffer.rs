//! Memory of the CPU backend: 32-bit floats, aligned to cache lines, cut from large regions.
//!
//! A training run allocates its buffers once and keeps them. They are cut from regions for which
//! huge pages are requested: a product touches a hundred small pages a tile, and small pages
//! scattered over physical memory fill some sets of the second-level cache twice over.

use std::sync::Arc;

use crate::backend::AllocateError;
use crate::host_memory::{FloatArena, FloatBlock, block_bytes};

/// Cuts buffers from large regions.
pub(super) struct CpuArena(FloatArena);

impl CpuArena {
    pub(super) fn new() -> Self {
        Self(FloatArena::new())
    }

    /// A buffer of `len` zeros.
    pub(super) fn allocate(&self, len: usize) -> Result<CpuBuffer, AllocateError> {
        self.0.allocate(len).map(|block| CpuBuffer(Arc::new(block)))
    }
}

/// A zeroed run of floats that starts on a cache line.
///
/// It can be shared with [`HostFloats`](crate::HostFloats) without a copy: a holder that writes it
/// while it is shared, writes to a copy.
pub struct CpuBuffer(Arc<FloatBlock>);

impl CpuBuffer {
    /// A buffer with a region of its own.
    ///
    /// # Errors
    /// If the system has no memory of that size.
    pub fn zeroed(len: usize) -> Result<Self, AllocateError> {
        FloatBlock::zeroed(len).map(|block| Self(Arc::new(block)))
    }

    /// The buffer of floats that others may hold.
    pub(super) fn sharing(block: Arc<FloatBlock>) -> Self {
        Self(block)
    }

    /// The floats that the buffer holds now, independent of later writes.
    pub(super) fn share(&self) -> Arc<FloatBlock> {
        self.0.clone()
    }

    /// Bytes a buffer of `len` floats needs.
    #[must_use]
    pub fn bytes(len: usize) -> u64 {
        block_bytes(len)
    }

    /// All floats of the buffer, to be read.
    #[must_use]
    pub fn as_slice(&self) -> &[f32] {
        self.0.floats()
    }

    /// All floats of the buffer, to be written: in place, or in a copy if others hold them too.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [f32] {
        FloatBlock::make_mut(&mut self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::{CpuArena, CpuBuffer};
    use crate::host_memory::{ALIGNMENT, REGION_BYTES_MIN};

    #[test]
    fn buffers_are_zero_aligned_exact_in_length_and_apart() {
        let arena = CpuArena::new();
        let lens = [0, 1, 17, 1000, REGION_BYTES_MIN / 4 - 1, 5, REGION_BYTES_MIN / 4 + 1, 33];
        let mut buffers: Vec<_> =
            lens.into_iter().map(|len| arena.allocate(len).expect("megabytes")).collect();
        for (index, buffer) in buffers.iter_mut().enumerate() {
            assert_eq!(buffer.as_slice().len(), lens[index]);
            assert_eq!(buffer.as_slice().as_ptr().align_offset(ALIGNMENT / 4), 0);
            assert!(
                buffer.as_slice().iter().all(|x| *x == 0.0),
                "no other buffer was written here"
            );
            buffer.as_mut_slice().fill(index as f32 + 1.0);
        }
        drop(arena);
        for (index, buffer) in buffers.iter().enumerate() {
            assert!(buffer.as_slice().iter().all(|x| *x == index as f32 + 1.0));
        }
    }

    #[test]
    fn what_was_shared_stays_as_it_was_when_the_buffer_is_written() {
        let arena = CpuArena::new();
        let mut buffer = arena.allocate(40).expect("bytes");
        buffer.as_mut_slice().fill(1.0);
        let start = buffer.as_slice().as_ptr();
        let shared = buffer.share();
        assert_eq!(shared.floats().as_ptr(), start, "nothing is copied to be shared");
        buffer.as_mut_slice()[7] = 2.0;
        assert!(shared.floats().iter().all(|x| *x == 1.0));
        assert_eq!((buffer.as_slice()[6], buffer.as_slice()[7]), (1.0, 2.0));
        // A last holder writes in place.
        let mut last = CpuBuffer::sharing(shared);
        last.as_mut_slice()[0] = 3.0;
        assert_eq!(last.as_slice().as_ptr(), start);
    }

    #[test]
    fn an_impossible_size_is_an_error_that_names_it() {
        let error = CpuBuffer::zeroed(1 << 48).err().expect("no machine has a pebibyte");
        assert_eq!(error.bytes, 1 << 50);
        assert!(CpuArena::new().allocate(1 << 48).is_err());
    }
}
