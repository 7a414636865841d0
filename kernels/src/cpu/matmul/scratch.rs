//! Working memory of a thread, kept between products.

use std::cell::RefCell;

use super::{BLOCK_COLUMNS, BLOCK_DEPTH, PANEL, TILE_STRIDE};
use crate::cpu::buffer::CpuBuffer;

/// Rows of the left factor of an outer product that are packed together.
pub(crate) const STRIPS_PACKED: usize = 4;
/// Floats set aside for a strip packed column by column.
pub(crate) const STRIP_FLOATS: usize = 16 * BLOCK_DEPTH;

/// Most rows whose sums pass through scratch memory at once.
pub(crate) const PASSING_ROWS: usize = 252;

/// What one thread needs to multiply.
pub(crate) struct Scratch {
    /// A strip of the left factor, rows side by side.
    pub(crate) strip: CpuBuffer,
    /// A few strips of the left factor, packed column by column.
    pub(crate) columns: CpuBuffer,
    /// A block of the right factor, in panels.
    pub(crate) block: CpuBuffer,
    /// Sums on their way, for up to [`PASSING_ROWS`] rows and one block of columns.
    pub(crate) passing: CpuBuffer,
}

impl Scratch {
    fn new() -> Self {
        let zeroed = |len| CpuBuffer::zeroed(len).expect("a megabyte in all");
        Self {
            strip: zeroed(16 * TILE_STRIDE),
            columns: zeroed(STRIPS_PACKED * STRIP_FLOATS),
            block: zeroed(BLOCK_DEPTH * BLOCK_COLUMNS.next_multiple_of(PANEL)),
            passing: zeroed(PASSING_ROWS * BLOCK_COLUMNS),
        }
    }
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch::new());
}

/// Runs `work` with this thread's scratch memory, whose content is left from earlier use.
///
/// # Panics
/// If `work` asks for the scratch memory again.
pub(crate) fn with_scratch<R>(work: impl FnOnce(&mut Scratch) -> R) -> R {
    SCRATCH.with_borrow_mut(work)
}
