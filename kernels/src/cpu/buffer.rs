//! Memory of the CPU backend: 32-bit floats, aligned to cache lines, cut from large regions.
//!
//! A training run allocates its buffers once and keeps them. They are cut from regions for which
//! huge pages are asked: a product touches a hundred small pages a tile, and small pages scattered
//! over physical memory fill some sets of the second-level cache twice over.

use std::sync::{Arc, Mutex, PoisonError};

use memmap2::MmapMut;

use crate::backend::AllocateError;

/// A region is at least this large; what is larger gets one of its own.
const REGION_BYTES_MIN: usize = 32 << 20;
/// Buffers start on a multiple of this: two cache lines, which processors fetch in pairs.
const ALIGNMENT: usize = 128;

/// Memory from the system, never handed out twice.
struct Region {
    /// Keeps the mapping alive; the floats are reached through `start`.
    _map: MmapMut,
    start: *mut f32,
}

// SAFETY: the pointer is only read; what it points to is divided among buffers that do not overlap.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

/// Hands out buffers.
pub(super) struct Arena {
    /// The region in use and how much of it is taken. Held for the few instructions of a cut.
    current: Mutex<Option<(Arc<Region>, usize, usize)>>,
}

impl Arena {
    pub(super) fn new() -> Self {
        Self { current: Mutex::new(None) }
    }

    /// `len` zeros.
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
        let region = Arc::new(map(size).ok_or(AllocateError::of_bytes(bytes as u64))?);
        let buffer = CpuBuffer::cut(&region, 0, len);
        *current = Some((region, bytes, size));
        Ok(buffer)
    }
}

fn map(size: usize) -> Option<Region> {
    let mut map = MmapMut::map_anon(size).ok()?;
    #[cfg(target_os = "linux")]
    {
        // A system without huge pages refuses; small pages serve as well, only slower.
        let _refused = map.advise(memmap2::Advice::HugePage);
    }
    let start = map.as_mut_ptr().cast();
    Some(Region { _map: map, start })
}

/// A zeroed run of floats that starts on a cache line.
pub struct CpuBuffer {
    region: Arc<Region>,
    /// Floats before it in the region.
    offset: usize,
    len: usize,
}

impl CpuBuffer {
    fn cut(region: &Arc<Region>, offset_bytes: usize, len: usize) -> Self {
        Self { region: region.clone(), offset: offset_bytes / 4, len }
    }

    /// A buffer with a region of its own.
    ///
    /// # Errors
    /// If the system has no memory of that size.
    pub fn zeroed(len: usize) -> Result<Self, AllocateError> {
        let size = Self::bytes(len).max(1) as usize;
        let region = Arc::new(map(size).ok_or(AllocateError::of_bytes(size as u64))?);
        Ok(Self::cut(&region, 0, len))
    }

    /// Bytes a buffer of `len` floats takes.
    #[must_use]
    pub fn bytes(len: usize) -> u64 {
        (len * 4).next_multiple_of(ALIGNMENT) as u64
    }

    /// The floats.
    #[must_use]
    pub fn as_slice(&self) -> &[f32] {
        // SAFETY: the floats lie within the region, which lives as long as the buffer, are zero or
        // written through it, and belong to no other buffer.
        unsafe { std::slice::from_raw_parts(self.region.start.add(self.offset), self.len) }
    }

    /// The floats, to be written.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [f32] {
        // SAFETY: as above, and the buffer is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.region.start.add(self.offset), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::{ALIGNMENT, Arena, CpuBuffer, REGION_BYTES_MIN};

    #[test]
    fn buffers_are_zero_aligned_exact_in_length_and_apart() {
        let arena = Arena::new();
        let lens = [0, 1, 17, 1000, REGION_BYTES_MIN / 4 - 1, 5, REGION_BYTES_MIN / 4 + 1, 33];
        let mut buffers: Vec<_> =
            lens.into_iter().map(|len| arena.allocate(len).expect("megabytes")).collect();
        for (index, buffer) in buffers.iter_mut().enumerate() {
            assert_eq!(buffer.as_slice().len(), lens[index]);
            assert_eq!(buffer.as_slice().as_ptr().align_offset(ALIGNMENT / 4), 0);
            assert!(buffer.as_slice().iter().all(|x| *x == 0.0), "nobody else wrote here");
            buffer.as_mut_slice().fill(index as f32 + 1.0);
        }
        drop(arena);
        for (index, buffer) in buffers.iter().enumerate() {
            assert!(buffer.as_slice().iter().all(|x| *x == index as f32 + 1.0));
        }
    }

    #[test]
    fn an_impossible_size_is_an_error_that_names_it() {
        let error = CpuBuffer::zeroed(1 << 48).err().expect("no machine has a pebibyte");
        assert_eq!(error.bytes, 1 << 50);
        assert!(Arena::new().allocate(1 << 48).is_err());
    }
}
