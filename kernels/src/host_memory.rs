//! Zeroed memory of the host: regions for which huge pages are requested where they are large, and runs
//! of floats in them that start on a cache line.

use std::alloc::{self, Layout};
use std::sync::{Arc, Mutex, PoisonError};

use memmap2::MmapMut;

use crate::allocate::AllocateError;

/// A region is at least this large; a larger buffer gets one of its own.
pub(crate) const REGION_BYTES_MIN: usize = 32 << 20;
/// Buffers start on a multiple of this: two cache lines, which processors fetch in pairs.
pub(crate) const ALIGNMENT: usize = 128;
/// A huge page. A smaller buffer comes from the process's allocator: a mapping of its own
/// costs three system calls, and a process may have only so many (65,530 on Linux).
const MAPPED_BYTES_MIN: usize = 2 << 20;

/// Bytes that a block of `len` floats takes.
pub(crate) fn block_bytes(len: usize) -> u64 {
    (len * 4).next_multiple_of(ALIGNMENT) as u64
}

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

/// Cuts blocks from a region, and allocates another one when it is used up.
pub(crate) struct FloatArena {
    /// The region in use and how much of it is used. Held for the few instructions of a cut.
    current: Mutex<Option<(Arc<ZeroedRegion>, usize, usize)>>,
}

impl FloatArena {
    pub(crate) fn new() -> Self {
        Self { current: Mutex::new(None) }
    }

    /// A block of `len` zeros.
    pub(crate) fn allocate(&self, len: usize) -> Result<FloatBlock, AllocateError> {
        let bytes = block_bytes(len) as usize;
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((region, taken, size)) = current.as_mut()
            && *taken + bytes <= *size
        {
            let block = FloatBlock::cut(region, *taken, len);
            *taken += bytes;
            return Ok(block);
        }
        let size = bytes.max(REGION_BYTES_MIN);
        let region =
            Arc::new(ZeroedRegion::of_bytes(size).ok_or(AllocateError::of_bytes(bytes as u64))?);
        let block = FloatBlock::cut(&region, 0, len);
        *current = Some((region, bytes, size));
        Ok(block)
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
    /// The floats of a region from so many bytes on, which no other block has.
    fn cut(region: &Arc<ZeroedRegion>, offset_bytes: usize, len: usize) -> Self {
        Self { region: region.clone(), offset: offset_bytes / 4, len }
    }

    /// A block with a region of its own.
    pub(crate) fn zeroed(len: usize) -> Result<Self, AllocateError> {
        let size = block_bytes(len).max(1) as usize;
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::backend::DeviceMemory;
    use crate::cpu::CpuBackend;

    #[test]
    fn a_buffer_that_outlives_others_keeps_none_of_their_memory() {
        let cpu = CpuBackend::new(1).expect("a thread");
        let [first, second] = [0, 1].map(|_| cpu.allocate(1000).expect("bytes"));
        let apart = cpu.allocate_apart(1000).expect("bytes");
        let [first, second, apart] = [first, second, apart].map(|buffer| cpu.share(&buffer));
        let [first, second, apart] =
            [&first, &second, &apart].map(|floats| &floats.shared().expect("memory here").region);
        assert!(Arc::ptr_eq(first, second), "they are cut from one");
        assert!(!Arc::ptr_eq(first, apart));
    }
}
