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

/// A strip of up to [`row_block_len`] rows by as many panels as the product has columns, `depth`
/// factors each.
pub(crate) fn tile_rows(
    set: InstructionSet,
    rows: usize,
    depth: usize,
    left: Left<'_>,
    panels: &[f32],
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
            strip_of_rows(set, rows, depth, floats.as_ptr(), panels, product);
        }
        Left::Columns(floats, stride) => {
            assert!(floats.len() >= (depth - 1) * stride + rows);
            strip_of_columns(set, rows, depth, floats.as_ptr(), stride, panels, product);
        }
    }
}

dispatch!(fn strip_of_rows(
    rows: usize, depth: usize, left: *const f32, panels: &[f32], product: Product<'_>,
) = strip_of_rows_lanes);
dispatch!(fn strip_of_columns(
    rows: usize, depth: usize, left: *const f32, stride: usize, panels: &[f32],
    product: Product<'_>,
) = strip_of_columns_lanes);

#[inline(always)]
fn strip_of_rows_lanes<L: Lanes>(
    rows: usize,
    depth: usize,
    left: *const f32,
    panels: &[f32],
    product: Product<'_>,
) {
    strip::<L, TILE_STRIDE>(rows, depth, left, 1, panels, product);
}

#[inline(always)]
fn strip_of_columns_lanes<L: Lanes>(
    rows: usize,
    depth: usize,
    left: *const f32,
    stride: usize,
    panels: &[f32],
    product: Product<'_>,
) {
    strip::<L, 1>(rows, depth, left, stride, panels, product);
}

/// One panel after the other; the last one through a scratch tile if it is only partly used.
#[inline(always)]
fn strip<L: Lanes, const ROW_STRIDE: usize>(
    rows: usize,
    depth: usize,
    left: *const f32,
    depth_stride: usize,
    panels: &[f32],
    product: Product<'_>,
) {
    let Product { floats, stride, columns, add } = product;
    for (index, panel) in panels.chunks_exact(depth * PANEL).enumerate() {
        let first = index * PANEL;
        if first >= columns {
            break;
        }
        let width = PANEL.min(columns - first);
        let tile = Tile { rows, depth, left, depth_stride, panel: panel.as_ptr() };
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
        // SAFETY: the caller's promise.
        unsafe {
            for _ in 0..self.depth {
                let mut right = [L::splat(0.0); VECTORS];
                for (vector, right) in right.iter_mut().enumerate() {
                    *right = L::load(panel.add(vector * LANES));
                }
                for (row, sums) in sums.iter_mut().enumerate() {
                    let factor = L::splat(*left.add(row * ROW_STRIDE));
                    for (sum, right) in sums.iter_mut().zip(right) {
                        *sum = factor.mul_add(right, *sum);
                    }
                }
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
