//! Memory fetched ahead of its use.

use super::super::super::lanes::LANES;

/// Memory that the next strip will read, fetched a line at a time while this one is worked on: a
/// copy that must wait for the third-level cache costs 6 % of a product, one that finds its lines
/// close by 3 %.
#[derive(Clone, Copy)]
pub(crate) struct PrefetchRange {
    start: *const f32,
    stride: usize,
    lines_per_row: usize,
    rows: usize,
}

impl PrefetchRange {
    /// No lines to fetch.
    pub(crate) const NOTHING: Self =
        Self { start: std::ptr::null(), stride: 0, lines_per_row: 0, rows: 0 };

    /// `rows` rows of `width` floats, `stride` floats apart, of which the first begins at
    /// `floats[at]`. What lies beyond the end is left out.
    pub(crate) fn new(floats: &[f32], at: usize, stride: usize, width: usize, rows: usize) -> Self {
        let rest = floats.len().saturating_sub(at);
        let rows = rows.min(rest.div_ceil(stride.max(1)));
        let start = floats.as_ptr().wrapping_add(at);
        Self { start, stride, lines_per_row: width.div_ceil(LANES), rows }
    }

    /// The share of tile `tile` of `tile_count`.
    pub(super) fn share(&self, tile: usize, tile_count: usize) -> Prefetcher {
        let lines = self.rows * self.lines_per_row;
        let first = lines * tile / tile_count;
        let end = lines * (tile + 1) / tile_count;
        let (row, column) = match self.lines_per_row {
            0 => (0, 0),
            lines => (first / lines, first % lines),
        };
        Prefetcher { range: *self, row, column, lines_left: end - first }
    }
}

/// The lines of a range that are still to be fetched.
pub(super) struct Prefetcher {
    range: PrefetchRange,
    row: usize,
    column: usize,
    lines_left: usize,
}

impl Prefetcher {
    pub(super) fn lines_left(&self) -> usize {
        self.lines_left
    }

    /// Fetches up to `count` lines into the second-level cache.
    #[inline(always)]
    pub(super) fn fetch(&mut self, count: usize) {
        for _ in 0..count.min(self.lines_left) {
            let offset = self.row * self.range.stride + self.column * LANES;
            fetch_line::<false>(self.range.start.wrapping_add(offset));
            self.column += 1;
            if self.column == self.range.lines_per_row {
                (self.row, self.column) = (self.row + 1, 0);
            }
            self.lines_left -= 1;
        }
    }
}

/// Fetches a line of the product into the first-level cache.
#[inline(always)]
pub(super) fn fetch_product(line: *const f32) {
    fetch_line::<true>(line);
}

/// Fetches a line into the first-level cache or the second.
#[inline(always)]
pub(in super::super) fn fetch_line<const FIRST_LEVEL: bool>(from: *const f32) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch is a hint; it reads nothing that the program could see.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};
        if FIRST_LEVEL {
            _mm_prefetch::<_MM_HINT_T0>(from.cast());
        } else {
            _mm_prefetch::<_MM_HINT_T1>(from.cast());
        }
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        use std::arch::asm;
        if FIRST_LEVEL {
            asm!("prfm pldl1keep, [{0}]", in(reg) from, options(nostack, preserves_flags, readonly));
        } else {
            asm!("prfm pldl2keep, [{0}]", in(reg) from, options(nostack, preserves_flags, readonly));
        }
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = from;
}
