//! The kinds of work in streams, and doing it.

use std::ptr;
use std::sync::Arc;

use super::exchange::{CommunicatorRank, Exchange};
use super::memory::MemoryBlocks;
use super::product::EmulatedProduct;
use crate::code::KernelEntry;

/// A kernel with its grid, its memory and its arguments.
#[derive(Clone, Debug)]
pub struct EmulatedLaunch {
    pub entry: KernelEntry,
    pub grid: [u32; 2],
    pub threads: u32,
    pub shared_bytes: u32,
    pub is_backwards: bool,
    /// Copied when the launch was enqueued, each at a multiple of sixteen.
    pub arguments: Vec<Vec<u128>>,
}

/// One piece of work in a stream.
#[derive(Clone, Debug)]
pub enum StreamWork {
    Copy {
        from: u64,
        to: u64,
        bytes: usize,
    },
    /// Writes bytes that were the caller's when the work was enqueued.
    Write {
        from: Vec<u8>,
        to: u64,
    },
    Fill {
        to: u64,
        byte: u8,
        bytes: usize,
    },
    Launch(EmulatedLaunch),
    Product(EmulatedProduct),
    /// Sends to another rank, or receives from it.
    Exchange(Arc<CommunicatorRank>, Arc<Exchange>),
    /// Records when an event is passed.
    Record {
        event: u64,
    },
    /// Waits until another stream has done `position` pieces of work.
    Wait {
        stream: u64,
        position: u64,
    },
}

/// Work used memory that is in no block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidAccess;

impl StreamWork {
    /// Does the work, save for records, waits and exchanges, which their streams do themselves.
    pub fn perform(&self, blocks: &MemoryBlocks) -> Result<(), InvalidAccess> {
        let is_there =
            |start, bytes| blocks.owner_of(start, bytes).map(|_| ()).ok_or(InvalidAccess);
        match self {
            Self::Copy { from, to, bytes } => {
                is_there(*from, *bytes)?;
                is_there(*to, *bytes)?;
                // SAFETY: both lie within blocks.
                unsafe { ptr::copy(*from as *const u8, *to as *mut u8, *bytes) };
            }
            Self::Write { from, to } => {
                is_there(*to, from.len())?;
                // SAFETY: it lies within a block.
                unsafe { ptr::copy_nonoverlapping(from.as_ptr(), *to as *mut u8, from.len()) };
            }
            Self::Fill { to, byte, bytes } => {
                is_there(*to, *bytes)?;
                // SAFETY: as above.
                unsafe { ptr::write_bytes(*to as *mut u8, *byte, *bytes) };
            }
            Self::Launch(launch) => launch.run(blocks)?,
            Self::Product(product) => product.form(blocks)?,
            Self::Record { .. } | Self::Wait { .. } | Self::Exchange(..) => {}
        }
        Ok(())
    }
}

impl EmulatedLaunch {
    fn run(&self, blocks: &MemoryBlocks) -> Result<(), InvalidAccess> {
        let word = |words: &Vec<u128>| words.first().map(|word| *word as u64);
        if self.arguments.iter().filter_map(word).any(|word| blocks.was_freed(word)) {
            return Err(InvalidAccess);
        }
        let mut pointers: Vec<_> =
            self.arguments.iter().map(|words| words.as_ptr().cast_mut().cast()).collect();
        let Self { grid, threads, shared_bytes, is_backwards, .. } = self;
        let grid = grid.as_ptr();
        let pointers = pointers.as_mut_ptr();
        // SAFETY: the sizes are the kernel's own; what it does with them is what is being tried.
        let is_within =
            unsafe { (self.entry)(grid, *threads, *shared_bytes, *is_backwards, pointers) };
        if is_within { Ok(()) } else { Err(InvalidAccess) }
    }
}
