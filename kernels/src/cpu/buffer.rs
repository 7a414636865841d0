//! Memory of the CPU backend: 32-bit floats, aligned to cache lines, cut from large regions.
//!
//! A training run allocates its buffers once and keeps them. They are cut from regions for which
//! huge pages are requested: a product touches a hundred small pages a tile, and small pages
//! scattered over physical memory fill some sets of the second-level cache twice over.

use std::alloc::{self, Layout};
use std::sync::{Arc, Mutex, PoisonError};

use memmap2::MmapMut;

use crate::backend::AllocateError;

/// A region is at least this large; a larger buffer gets one of its own.
const REGION_BYTES_MIN: usize = 32 << 20;
/// Buffers start on a multiple of this: two cache lines, which processors fetch in pairs.
const ALIGNMENT: usize = 128;
/// A huge page. A smaller buffer comes from the process's allocator: a mapping of its own
/// costs three system calls, and a process may have only so many (65,530 on Linux).
const MAPPED_BYTES_MIN: usize = 2 << 20;

/// Memory with a single owner, freed when it is dropped.
enum OwnedMemory {
    Mapped(#[expect(dead_code, reason = "keeps the mapping alive")] MmapMut),
    Allocated(*mut u8, Layout),
}

impl Drop for OwnedMemory {
    fn drop(&mut self) {
        match self {
            Self::Mapped(_) => {}
            // SAFETY: allocated with this layout, and dropped once.
            Self::Allocated(start, layout) => unsafe { alloc::dealloc(*start, *layout) },
        }
    }
}

/// A run of zeroed memory, no part of which is allocated twice.
struct ZeroedRegion {
    /// Keeps the memory; the floats are reached through `start`.
    _memory: OwnedMemory,
    start: *mut f32,
}

// SAFETY: the pointers are only read; the memory they point to is divided among buffers that do not
// overlap.
unsafe impl Send for ZeroedRegion {}
// SAFETY: as above.
unsafe impl Sync for ZeroedRegion {}

/// Cuts buffers from a region, and allocates another one when it is used up.
pub(super) struct CpuArena {
    /// The region in use and how much of it is used. Held for the few instructions of a cut.
    current: Mutex<Option<(Arc<ZeroedRegion>, usize, usize)>>,
}

impl CpuArena {
    pub(super) fn new() -> Self {
        Self { current: Mutex::new(None) }
    }

    /// A buffer of `len` zeros.
    pub(super) fn allocate(&self, len: usize) -> Result<CpuBuffer, AllocateError> {
        let bytes = CpuBuffer::bytes(len) as usize;
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((region, taken, size)) = current.as_mut()
            && *taken + bytes <= *size
        {
            let buffer = CpuBuffer::cut(region, *taken, len);
            *taken += bytes;
            return Ok(buffer);
        }
        let size = bytes.max(REGION_BYTES_MIN);
        let region =
            Arc::new(ZeroedRegion::of_bytes(size).ok_or(AllocateError::of_bytes(bytes as u64))?);
        let buffer = CpuBuffer::cut(&region, 0, len);
        *current = Some((region, bytes, size));
        Ok(buffer)
    }
}

impl ZeroedRegion {
    /// `size` zeroed bytes, more than none; `None` if there is no memory of that size.
    fn of_bytes(size: usize) -> Option<Self> {
        if size >= MAPPED_BYTES_MIN { Self::mapped(size) } else { Self::allocated(size) }
    }

    fn mapped(size: usize) -> Option<Self> {
        let mut map = MmapMut::map_anon(size).ok()?;
        #[cfg(target_os = "linux")]
        {
            // A system without huge pages refuses; small pages serve as well, only slower.
            let _refused = map.advise(memmap2::Advice::HugePage);
        }
        let start = map.as_mut_ptr().cast();
        Some(Self { _memory: OwnedMemory::Mapped(map), start })
    }

    fn allocated(size: usize) -> Option<Self> {
        let layout = Layout::from_size_align(size, ALIGNMENT).ok().filter(|_| size > 0)?;
        // SAFETY: the layout is of more than no bytes.
        let start = unsafe { alloc::alloc_zeroed(layout) };
        let memory = (!start.is_null()).then_some(OwnedMemory::Allocated(start, layout))?;
        Some(Self { _memory: memory, start: start.cast() })
    }
}

/// A run of floats that starts on a cache line; zeros, until they are written.
pub(crate) struct FloatBlock {
    region: Arc<ZeroedRegion>,
    /// Floats before it in the region.
    offset: usize,
    len: usize,
}

impl FloatBlock {
    /// A block with a region of its own.
    pub(crate) fn zeroed(len: usize) -> Result<Self, AllocateError> {
        let size = CpuBuffer::bytes(len).max(1) as usize;
        let region =
            Arc::new(ZeroedRegion::of_bytes(size).ok_or(AllocateError::of_bytes(size as u64))?);
        Ok(Self { region, offset: 0, len })
    }

    pub(crate) fn floats(&self) -> &[f32] {
        // SAFETY: the floats lie within the region, which lives as long as the block, are zero or
        // written through it, and belong to no other block.
        unsafe { std::slice::from_raw_parts(self.region.start.add(self.offset), self.len) }
    }

    pub(crate) fn floats_mut(&mut self) -> &mut [f32] {
        // SAFETY: as above, and the block is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.region.start.add(self.offset), self.len) }
    }

    /// The floats of a block that others may hold, to be written: if others do, of a copy that
    /// replaces it, and theirs stay as they are.
    ///
    /// # Panics
    /// If the system has no memory for a copy.
    pub(crate) fn make_mut(block: &mut Arc<Self>) -> &mut [f32] {
        if Arc::get_mut(block).is_none() {
            let mut copy = Self::zeroed(block.len).expect("the system has memory for a copy");
            copy.floats_mut().copy_from_slice(block.floats());
            *block = Arc::new(copy);
        }
        Arc::get_mut(block).expect("it was made unique above").floats_mut()
    }
}

/// A zeroed run of floats that starts on a cache line.
///
/// It can be shared with [`HostFloats`](crate::HostFloats) without a copy: a holder that writes it
/// while it is shared, writes to a copy.
pub struct CpuBuffer(Arc<FloatBlock>);

impl CpuBuffer {
    fn cut(region: &Arc<ZeroedRegion>, offset_bytes: usize, len: usize) -> Self {
        Self(Arc::new(FloatBlock { region: region.clone(), offset: offset_bytes / 4, len }))
    }

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
        (len * 4).next_multiple_of(ALIGNMENT) as u64
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
    use std::sync::Arc;

    use super::{ALIGNMENT, CpuArena, CpuBuffer, REGION_BYTES_MIN};
    use crate::backend::DeviceMemory;
    use crate::cpu::CpuBackend;

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
    fn a_buffer_that_outlives_others_keeps_none_of_their_memory() {
        let cpu = CpuBackend::new(1).expect("a thread");
        let [first, second] = [0, 1].map(|_| cpu.allocate(1000).expect("bytes"));
        let apart = cpu.allocate_apart(1000).expect("bytes");
        assert!(Arc::ptr_eq(&first.0.region, &second.0.region), "they are cut from one");
        assert!(!Arc::ptr_eq(&first.0.region, &apart.0.region));
        let shared = cpu.share(&apart);
        drop(apart);
        assert_eq!(shared.len(), 1000);
    }

    #[test]
    fn an_impossible_size_is_an_error_that_names_it() {
        let error = CpuBuffer::zeroed(1 << 48).err().expect("no machine has a pebibyte");
        assert_eq!(error.bytes, 1 << 50);
        assert!(CpuArena::new().allocate(1 << 48).is_err());
    }
}
