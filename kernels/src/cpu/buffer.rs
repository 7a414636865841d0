//! Memory of the CPU backend: 32-bit floats, aligned to cache lines.

use memmap2::MmapMut;

use crate::backend::AllocateError;

/// From this size on a buffer is mapped by itself with huge pages asked for: below it, a huge page
/// would be mostly empty.
const MAPPED_BYTES_MIN: usize = 4 << 20;

/// One cache line.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct Line([f32; 16]);

enum Storage {
    Heap(Vec<Line>),
    Mapped(MmapMut),
}

/// A zeroed run of floats that starts on a cache line.
pub struct CpuBuffer {
    storage: Storage,
    len: usize,
}

impl CpuBuffer {
    /// `len` zeros.
    ///
    /// # Errors
    /// If the system has no memory of that size.
    pub fn zeroed(len: usize) -> Result<Self, AllocateError> {
        let bytes = len * 4;
        let out_of_memory = || AllocateError { bytes: bytes as u64 };
        let storage = if bytes >= MAPPED_BYTES_MIN {
            let map = MmapMut::map_anon(bytes).map_err(|_| out_of_memory())?;
            #[cfg(target_os = "linux")]
            {
                // A system without huge pages refuses; small pages serve as well, only slower.
                let _refused = map.advise(memmap2::Advice::HugePage);
            }
            Storage::Mapped(map)
        } else {
            let mut lines = Vec::new();
            let count = len.div_ceil(16);
            lines.try_reserve_exact(count).map_err(|_| out_of_memory())?;
            lines.resize(count, Line([0.0; 16]));
            Storage::Heap(lines)
        };
        Ok(Self { storage, len })
    }

    /// Bytes a buffer of `len` floats takes.
    #[must_use]
    pub fn bytes(len: usize) -> u64 {
        (len.div_ceil(16) * 64) as u64
    }

    /// The floats.
    #[must_use]
    pub fn as_slice(&self) -> &[f32] {
        let floats: &[f32] = match &self.storage {
            Storage::Heap(lines) => bytemuck::cast_slice(lines),
            Storage::Mapped(map) => bytemuck::cast_slice(&map[..self.len * 4]),
        };
        &floats[..self.len]
    }

    /// The floats, to be written.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [f32] {
        let floats: &mut [f32] = match &mut self.storage {
            Storage::Heap(lines) => bytemuck::cast_slice_mut(lines),
            Storage::Mapped(map) => bytemuck::cast_slice_mut(&mut map[..self.len * 4]),
        };
        &mut floats[..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::{CpuBuffer, MAPPED_BYTES_MIN};

    #[test]
    fn buffers_are_zero_aligned_and_exact_in_length_on_both_sides_of_the_mapping_size() {
        for len in [0, 1, 17, MAPPED_BYTES_MIN / 4 - 1, MAPPED_BYTES_MIN / 4] {
            let mut buffer = CpuBuffer::zeroed(len).expect("a few MiB");
            assert_eq!(buffer.as_slice().len(), len);
            assert!(buffer.as_slice().iter().all(|x| *x == 0.0));
            assert_eq!(buffer.as_slice().as_ptr().align_offset(64), 0);
            if let Some(last) = buffer.as_mut_slice().last_mut() {
                *last = 1.0;
            }
        }
    }

    #[test]
    fn an_impossible_size_is_an_error_that_names_it() {
        let error = CpuBuffer::zeroed(1 << 48).err().expect("no machine has a pebibyte");
        assert_eq!(error.bytes, 1 << 50);
    }
}
