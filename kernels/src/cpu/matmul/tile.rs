//! The innermost loop: a tile of the product held in registers.

use super::super::lanes::{InstructionSet, LANES, Lanes, dispatch};
use super::{BLOCK_DEPTH, PANEL};

/// Floats between rows of a strip: one cache line more than a block is deep, so that the rows of
/// a strip do not fall into the same cache sets.
pub(crate) const TILE_STRIDE: usize = BLOCK_DEPTH + LANES;

/// Most rows a strip has in any instruction set.
const ROWS_MAX: usize = 14;

/// Rows of a strip: what a driver hands to [`tile_rows`] at once.
pub(crate) fn row_block_len(set: InstructionSet) -> usize {
    match set {
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx512 => ROWS_MAX,
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx2 => 12,
        InstructionSet::Portable => 12,
    }
}

/// The left factor of a strip.
#[derive(Clone, Copy)]
pub(crate) enum Left<'a> {
    /// Rows side by side, [`TILE_STRIDE`] floats apart.
    Rows(&'a [f32]),
    /// For each factor, the strip's rows side by side, as many floats apart as told.
    Columns(&'a [f32], usize),
}

/// Where the strip of the product goes.
pub(crate) struct Product<'a> {
    /// From element (row 0, column 0) on.
    pub(crate) floats: &'a mut [f32],
    /// Floats from one row to the next.
    pub(crate) stride: usize,
    /// Columns in all; the last panel may be only partly used.
    pub(crate) columns: usize,
    /// Whether to add to what is there.
    pub(crate) add: bool,
}

/// Memory that the next strip will read, fetched a line at a time while this one is worked on: a
/// copy that must wait for the third-level cache costs 6 % of a product, one that finds its lines
/// close by 3 %.
#[derive(Clone, Copy)]
pub(crate) struct Ahead {
    start: *const f32,
    stride: usize,
    lines_per_row: usize,
    rows: usize,
}

impl Ahead {
    /// Nothing to fetch.
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

    /// The share of panel `panel` of `panel_count`.
    fn share(&self, panel: usize, panel_count: usize) -> Fetcher {
        let lines = self.rows * self.lines_per_row;
        let (first, end) = (lines * panel / panel_count, lines * (panel + 1) / panel_count);
        let (row, column) = match self.lines_per_row {
            0 => (0, 0),
            lines => (first / lines, first % lines),
        };
        Fetcher { ahead: *self, row, column, left: end - first }
    }
}

/// Lines still to be fetched.
#[derive(Clone, Copy)]
struct Fetcher {
    ahead: Ahead,
    row: usize,
    column: usize,
    left: usize,
}

impl Fetcher {
    /// Fetches up to `count` lines.
    #[inline(always)]
    fn fetch(&mut self, count: usize) {
        for _ in 0..count.min(self.left) {
            let offset = self.row * self.ahead.stride + self.column * LANES;
            fetch_line::<{ Near::SECOND_LEVEL }>(self.ahead.start.wrapping_add(offset));
            self.column += 1;
            if self.column == self.ahead.lines_per_row {
                (self.row, self.column) = (self.row + 1, 0);
            }
            self.left -= 1;
        }
    }
}

/// How near a line is fetched.
struct Near;

impl Near {
    const FIRST_LEVEL: bool = true;
    const SECOND_LEVEL: bool = false;
}

#[inline(always)]
fn fetch_line<const FIRST_LEVEL: bool>(from: *const f32) {
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
    #[cfg(not(target_arch = "x86_64"))]
    let _ = from;
}

/// A strip of up to [`row_block_len`] rows by as many panels as the product has columns, `depth`
/// factors each.
pub(crate) fn tile_rows(
    set: InstructionSet,
    rows: usize,
    depth: usize,
    left: Left<'_>,
    panels: &[f32],
    ahead: Ahead,
    product: Product<'_>,
) {
    if rows == 0 || depth == 0 || product.columns == 0 {
        return;
    }
    assert!(rows <= ROWS_MAX && depth <= BLOCK_DEPTH);
    assert!(panels.len() >= product.columns.div_ceil(PANEL) * depth * PANEL);
    assert!(product.floats.len() >= (rows - 1) * product.stride + product.columns);
    match left {
        Left::Rows(floats) => {
            assert!(floats.len() >= (rows - 1) * TILE_STRIDE + depth);
            strip_of_rows(set, rows, depth, floats.as_ptr(), panels, ahead, product);
        }
        Left::Columns(floats, stride) => {
            assert!(floats.len() >= (depth - 1) * stride + rows);
            let left = floats.as_ptr();
            strip_of_columns(set, rows, depth, left, stride, panels, ahead, product);
        }
    }
}

dispatch!(fn strip_of_rows(
    rows: usize, depth: usize, left: *const f32, panels: &[f32], ahead: Ahead,
    product: Product<'_>,
) = strip_of_rows_lanes);
dispatch!(fn strip_of_columns(
    rows: usize, depth: usize, left: *const f32, stride: usize, panels: &[f32], ahead: Ahead,
    product: Product<'_>,
) = strip_of_columns_lanes);

#[inline(always)]
fn strip_of_rows_lanes<L: Lanes>(
    rows: usize,
    depth: usize,
    left: *const f32,
    panels: &[f32],
    ahead: Ahead,
    product: Product<'_>,
) {
    strip::<L, TILE_STRIDE>(rows, depth, left, 1, panels, ahead, product);
}

#[inline(always)]
fn strip_of_columns_lanes<L: Lanes>(
    rows: usize,
    depth: usize,
    left: *const f32,
    stride: usize,
    panels: &[f32],
    ahead: Ahead,
    product: Product<'_>,
) {
    strip::<L, 1>(rows, depth, left, stride, panels, ahead, product);
}

/// One panel after the other; the last one through a scratch tile if it is only partly used.
#[inline(always)]
fn strip<L: Lanes, const ROW_STRIDE: usize>(
    rows: usize,
    depth: usize,
    left: *const f32,
    depth_stride: usize,
    panels: &[f32],
    ahead: Ahead,
    product: Product<'_>,
) {
    let panel_count = product.columns.div_ceil(PANEL);
    let Product { floats, stride, columns, add } = product;
    for (index, panel) in panels.chunks_exact(depth * PANEL).enumerate() {
        let first = index * PANEL;
        if first >= columns {
            break;
        }
        let width = PANEL.min(columns - first);
        let fetcher = ahead.share(index, panel_count);
        let tile = Tile { rows, depth, left, depth_stride, panel: panel.as_ptr(), fetcher };
        if width == PANEL {
            // SAFETY: `tile_rows` checked every bound.
            unsafe { tile.run::<L, ROW_STRIDE>(floats.as_mut_ptr().add(first), stride, add) };
            continue;
        }
        let mut edge = [0.0f32; ROWS_MAX * PANEL];
        // SAFETY: as above, and the scratch tile holds the most rows there are.
        unsafe { tile.run::<L, ROW_STRIDE>(edge.as_mut_ptr(), PANEL, false) };
        for (row, sums) in edge.chunks_exact(PANEL).take(rows).enumerate() {
            let to = &mut floats[row * stride + first..][..width];
            for (to, sum) in to.iter_mut().zip(sums) {
                *to = if add { *to + sum } else { *sum };
            }
        }
    }
}

/// The operands of one panel's worth of a strip.
#[derive(Clone, Copy)]
struct Tile {
    rows: usize,
    depth: usize,
    left: *const f32,
    depth_stride: usize,
    panel: *const f32,
    fetcher: Fetcher,
}

impl Tile {
    /// Cuts the rows into tiles that fill the registers, and the rest into smaller ones.
    ///
    /// # Safety
    /// Operands readable as the fields say, `to` writable over the rows and [`PANEL`] columns.
    #[inline(always)]
    unsafe fn run<L: Lanes, const ROW_STRIDE: usize>(self, to: *mut f32, stride: usize, add: bool) {
        let mut row = 0;
        while row < self.rows {
            let rest = self.rows - row;
            // SAFETY: rows from `row` on are within the bounds promised.
            unsafe {
                let left = self.left.add(row * ROW_STRIDE);
                let part = Self { rows: rest, left, ..self };
                let to = to.add(row * stride);
                row += if L::TILE_ROWS == 14 && rest >= 14 {
                    part.columns::<L, 14, ROW_STRIDE>(to, stride, add)
                } else if L::TILE_ROWS >= 8 && rest >= 8 {
                    part.columns::<L, 8, ROW_STRIDE>(to, stride, add)
                } else if L::TILE_ROWS == 6 && rest >= 6 {
                    part.columns::<L, 6, ROW_STRIDE>(to, stride, add)
                } else if rest >= 4 {
                    part.columns::<L, 4, ROW_STRIDE>(to, stride, add)
                } else if rest >= 2 {
                    part.columns::<L, 2, ROW_STRIDE>(to, stride, add)
                } else {
                    part.columns::<L, 1, ROW_STRIDE>(to, stride, add)
                };
            }
        }
    }

    /// All columns of a panel for `ROWS` rows; returns `ROWS`.
    ///
    /// # Safety
    /// As [`Self::run`].
    #[inline(always)]
    unsafe fn columns<L: Lanes, const ROWS: usize, const ROW_STRIDE: usize>(
        self,
        to: *mut f32,
        stride: usize,
        add: bool,
    ) -> usize {
        // SAFETY: the caller's promise, for each half of the panel.
        unsafe {
            if L::TILE_VECTORS == 2 {
                self.sums::<L, ROWS, 2, ROW_STRIDE>(to, stride, add);
            } else {
                self.sums::<L, ROWS, 1, ROW_STRIDE>(to, stride, add);
                let right = Self { panel: self.panel.add(LANES), ..self };
                right.sums::<L, ROWS, 1, ROW_STRIDE>(to.add(LANES), stride, add);
            }
        }
        ROWS
    }

    /// `ROWS` by `VECTORS` sums, kept in registers over the whole depth.
    ///
    /// # Safety
    /// As [`Self::run`].
    #[inline(always)]
    unsafe fn sums<L: Lanes, const ROWS: usize, const VECTORS: usize, const ROW_STRIDE: usize>(
        self,
        to: *mut f32,
        stride: usize,
        add: bool,
    ) {
        let mut sums = [[L::splat(0.0); VECTORS]; ROWS];
        let (mut left, mut panel) = (self.left, self.panel);
        let mut fetcher = self.fetcher;
        let fetches = fetcher.left.div_ceil(ROWS);
        // SAFETY: the caller's promise.
        unsafe {
            // As many stretches of the depth as there are rows: before each, one row of the
            // product and a few lines for the next strip are sent for, so that they never queue.
            // All stretches are equally long, or the processor mispredicts their ends.
            let stretch_len = self.depth / ROWS;
            for stretch in 0..ROWS {
                for vector in 0..VECTORS {
                    let line = to.wrapping_add(stretch * stride + vector * LANES);
                    fetch_line::<{ Near::FIRST_LEVEL }>(line);
                }
                fetcher.fetch(fetches);
                for _ in 0..stretch_len {
                    step::<L, ROWS, VECTORS, ROW_STRIDE>(left, panel, &mut sums);
                    left = left.add(self.depth_stride);
                    panel = panel.add(PANEL);
                }
            }
            for _ in 0..self.depth % ROWS {
                step::<L, ROWS, VECTORS, ROW_STRIDE>(left, panel, &mut sums);
                left = left.add(self.depth_stride);
                panel = panel.add(PANEL);
            }
            for (row, sums) in sums.iter().enumerate() {
                for (vector, sum) in sums.iter().enumerate() {
                    let to = to.add(row * stride + vector * LANES);
                    let total = if add { L::load(to).add(*sum) } else { *sum };
                    total.store(to);
                }
            }
        }
    }
}

/// One factor: each row's element by the panel's row.
///
/// # Safety
/// `left` is readable for `ROWS` rows, `panel` for `VECTORS` vectors.
#[inline(always)]
unsafe fn step<L: Lanes, const ROWS: usize, const VECTORS: usize, const ROW_STRIDE: usize>(
    left: *const f32,
    panel: *const f32,
    sums: &mut [[L; VECTORS]; ROWS],
) {
    let mut right = [L::splat(0.0); VECTORS];
    for (vector, right) in right.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        *right = unsafe { L::load(panel.add(vector * LANES)) };
    }
    for (row, sums) in sums.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        let factor = L::splat(unsafe { *left.add(row * ROW_STRIDE) });
        for (sum, right) in sums.iter_mut().zip(right) {
            *sum = factor.mul_add(right, *sum);
        }
    }
}
