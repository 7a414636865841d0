//! Memory of devices, and memory of the host that devices copy by themselves.

use std::alloc::{Layout, alloc, dealloc};
use std::collections::BTreeMap;
use std::{ptr, slice};

/// Bytes before and behind each block that must not be written.
const FENCE_BYTES: usize = 256;
const FENCE: u8 = 0xa5;
/// The byte that unwritten memory holds: all ones are NaNs.
const UNWRITTEN: u8 = 0xff;

/// The device or the host that a block belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockOwner {
    /// A device, by its index.
    Device(usize),
    /// The host, and every device.
    Host,
}

#[derive(Clone, Copy)]
struct MemoryBlock {
    bytes: usize,
    owner: BlockOwner,
}

/// All blocks, by where they begin.
#[derive(Default)]
pub struct MemoryBlocks {
    live: BTreeMap<u64, MemoryBlock>,
    /// Freed by the caller and not yet released: a kernel that was enqueued before may still run
    /// into them.
    freed: Vec<(u64, usize)>,
}

fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes + 2 * FENCE_BYTES, FENCE_BYTES).expect("a size")
}

/// Whether nothing was written beside a block.
fn is_whole(start: u64, bytes: usize) -> bool {
    let start = start as *const u8;
    // SAFETY: `take` made the block with both fences.
    let fences = unsafe {
        [
            slice::from_raw_parts(start.sub(FENCE_BYTES), FENCE_BYTES),
            slice::from_raw_parts(start.add(bytes), FENCE_BYTES),
        ]
    };
    fences.into_iter().flatten().all(|byte| *byte == FENCE)
}

impl MemoryBlocks {
    /// A block of NaNs at a multiple of 256.
    pub fn take(&mut self, bytes: usize, owner: BlockOwner) -> u64 {
        // SAFETY: the layout is not empty; all of it is written.
        let start = unsafe {
            let whole = alloc(layout(bytes));
            assert!(!whole.is_null(), "this machine has no {bytes} bytes left");
            ptr::write_bytes(whole, FENCE, FENCE_BYTES);
            ptr::write_bytes(whole.add(FENCE_BYTES), UNWRITTEN, bytes);
            ptr::write_bytes(whole.add(FENCE_BYTES + bytes), FENCE, FENCE_BYTES);
            whole.add(FENCE_BYTES) as u64
        };
        self.live.insert(start, MemoryBlock { bytes, owner });
        start
    }

    /// The owner of the block that begins here.
    pub fn owner(&self, start: u64) -> Option<BlockOwner> {
        self.live.get(&start).map(|block| block.owner)
    }

    /// Frees a block: it holds NaNs from now on.
    ///
    /// # Panics
    /// If something was written beside it.
    pub fn free(&mut self, start: u64) {
        let MemoryBlock { bytes, owner } =
            self.live.remove(&start).expect("its owner was looked up");
        assert!(is_whole(start, bytes), "beside {bytes} bytes of {owner:?} something was written");
        // SAFETY: from `take`, and no longer used by anything that waited.
        unsafe { ptr::write_bytes(start as *mut u8, UNWRITTEN, bytes) };
        self.freed.push((start, bytes));
    }

    /// Whether this lies in a block that was freed and not yet released.
    pub fn was_freed(&self, address: u64) -> bool {
        let within =
            |(start, bytes): &(u64, usize)| (*start..start + *bytes as u64).contains(&address);
        self.freed.iter().any(within)
    }

    /// Releases what was freed, once no stream has anything to do.
    ///
    /// # Panics
    /// If something was written there since.
    pub fn release_freed(&mut self) {
        for (start, bytes) in self.freed.drain(..) {
            // SAFETY: from `take`, and written all over when it was freed.
            let left = unsafe { slice::from_raw_parts(start as *const u8, bytes) };
            // Without an end in the midst, so that the compiler compares many bytes at once.
            let is_left = left.iter().fold(UNWRITTEN, |all, byte| all & byte) == UNWRITTEN;
            assert!(is_left, "{bytes} bytes were written after they were freed");
            // SAFETY: from `take`, deallocated once.
            unsafe { dealloc((start as *mut u8).sub(FENCE_BYTES), layout(bytes)) };
        }
    }

    /// The owner of all of these bytes, if they lie in one block.
    pub fn owner_of(&self, start: u64, bytes: usize) -> Option<BlockOwner> {
        let (first, block) = self.live.range(..=start).next_back()?;
        let end = start.checked_add(bytes as u64)?;
        (end <= first + block.bytes as u64).then_some(block.owner)
    }

    /// Where the blocks of a device begin.
    pub fn starts_of(&self, device: usize) -> Vec<u64> {
        let own = self.live.iter().filter(|(_, block)| block.owner == BlockOwner::Device(device));
        own.map(|(start, _)| *start).collect()
    }

    /// Bytes that were allocated on a device.
    pub fn bytes_of(&self, device: usize) -> u64 {
        let own = self.live.values().filter(|block| block.owner == BlockOwner::Device(device));
        own.map(|block| block.bytes as u64).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::{BlockOwner, MemoryBlocks};

    #[test]
    fn bytes_have_one_owner() {
        let mut blocks = MemoryBlocks::default();
        let start = blocks.take(100, BlockOwner::Device(1));
        assert!(start.is_multiple_of(256));
        assert_eq!(blocks.owner_of(start + 40, 60), Some(BlockOwner::Device(1)));
        assert_eq!(blocks.owner_of(start + 40, 61), None);
        assert_eq!(blocks.bytes_of(1), 100);
        blocks.free(start);
        assert_eq!(blocks.owner_of(start, 1), None);
        blocks.release_freed();
    }

    #[test]
    #[should_panic(expected = "something was written")]
    fn a_write_behind_a_block_is_found() {
        let mut blocks = MemoryBlocks::default();
        let start = blocks.take(8, BlockOwner::Host);
        // SAFETY: the fence is behind it.
        unsafe { *(start as *mut u8).add(8) = 1 };
        blocks.free(start);
    }
}
