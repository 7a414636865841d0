//! Working memory of a thread, kept between products.

use std::cell::RefCell;

use super::packed::STRIP_WORDS;
use super::{BLOCK_COLUMNS, BLOCK_DEPTH};
use crate::cpu::buffer::{CpuArena, CpuBuffer};

/// Strips of the left factor that are packed together.
pub(crate) const STRIPS_PACKED: usize = 4;
/// Most rows whose sums pass through scratch memory at once.
pub(crate) const PASSING_ROWS: usize = 512;

/// The memory that one thread needs to multiply.
pub(crate) struct MatmulScratch {
    /// Strips of the left factor.
    pub(crate) strips: CpuBuffer,
    /// A block of the right factor, in panels.
    pub(crate) block: CpuBuffer,
    /// Sums on their way, for up to [`PASSING_ROWS`] rows and one block of columns.
    pub(crate) passing: CpuBuffer,
}

impl MatmulScratch {
    fn new() -> Self {
        let arena = CpuArena::new();
        let zeroed = |len| arena.allocate(len).expect("two megabytes in all");
        Self {
            strips: zeroed(STRIPS_PACKED * STRIP_WORDS),
            block: zeroed(BLOCK_DEPTH * BLOCK_COLUMNS),
            passing: zeroed(PASSING_ROWS * BLOCK_COLUMNS),
        }
    }
}

thread_local! {
    static SCRATCH: RefCell<MatmulScratch> = RefCell::new(MatmulScratch::new());
}

/// Runs `work` with this thread's scratch memory, whose content is left from earlier use.
///
/// # Panics
/// If `work` requests the scratch memory again.
pub(crate) fn with_scratch<R>(work: impl FnOnce(&mut MatmulScratch) -> R) -> R {
    SCRATCH.with_borrow_mut(work)
}
