//! Factors laid out in the order in which tiles read them.

use std::ops::Range;

use super::super::lanes::{LANES, Lanes, dispatch};
use super::BLOCK_DEPTH;
use super::tile::{STRIP, fetch_line};
use crate::backend::AllocateError;
use crate::cpu::buffer::{CpuArena, CpuBuffer};
use crate::panels::{PANEL, packed_len, padded};

/// A right factor of `depth` rows and `columns` columns, in panels of [`PANEL`] columns.
///
/// Blocks of [`BLOCK_DEPTH`] rows follow each other; within a block, panels; within a panel, rows.
/// Columns of the last panel beyond the last of the matrix are zero.
pub(crate) struct PackedMatrix {
    depth: usize,
    columns: usize,
    floats: CpuBuffer,
}

impl PackedMatrix {
    pub(crate) fn zeroed(
        arena: &CpuArena,
        depth: usize,
        columns: usize,
    ) -> Result<Self, AllocateError> {
        let floats = arena.allocate(packed_len(depth, columns))?;
        Ok(Self { depth, columns, floats })
    }

    pub(crate) fn depth(&self) -> usize {
        self.depth
    }

    pub(crate) fn columns(&self) -> usize {
        self.columns
    }

    /// The panels from column `column` on in the block that starts at `depth_start`.
    pub(crate) fn panels(&self, depth_start: usize, column: usize) -> &[f32] {
        assert!(depth_start.is_multiple_of(BLOCK_DEPTH) && column.is_multiple_of(PANEL));
        let block_depth = BLOCK_DEPTH.min(self.depth - depth_start);
        let block = &self.floats.as_slice()[depth_start * padded(self.columns)..];
        &block[column * block_depth..padded(self.columns) * block_depth]
    }

    /// The floats, to be written by code that knows the layout.
    pub(super) fn floats_mut(&mut self) -> &mut [f32] {
        self.floats.as_mut_slice()
    }
}

/// The source of a run of panels of `rows` rows.
pub(crate) struct PanelSource<'a> {
    /// A row-major matrix, or its transpose.
    pub(crate) floats: &'a [f32],
    /// Floats from one row of `floats` to the next.
    pub(crate) stride: usize,
    /// Columns of the panels, which are rows of a transposed source.
    pub(crate) columns: Range<usize>,
    /// Rows of the panels, which are columns of a transposed source.
    pub(crate) rows: usize,
}

dispatch!(
    /// Panels whose rows are pieces of the source's rows.
    pub(crate) fn pack_as_is(source: PanelSource<'_>, panels: &mut [f32]) = pack_as_is_lanes
);

/// Row by row, so that the source is read in the order in which it lies. Rows are too far apart for
/// a processor to fetch the next ones by itself.
#[inline(always)]
fn pack_as_is_lanes<L: Lanes>(source: PanelSource<'_>, panels: &mut [f32]) {
    const ROWS_AHEAD: usize = 4;
    let PanelSource { floats, stride, columns, rows } = source;
    for row in 0..rows {
        let from = &floats[row * stride..][columns.clone()];
        for first in (0..from.len()).step_by(PANEL) {
            fetch_line::<true>(from.as_ptr().wrapping_add(ROWS_AHEAD * stride + first));
            L::load_at(from, first, 0.0).write_to(&mut panels[first * rows + row * PANEL..]);
        }
    }
}

dispatch!(
    /// Panels whose columns are pieces of the source's rows.
    pub(crate) fn pack_transposed(source: PanelSource<'_>, panels: &mut [f32])
        = pack_transposed_lanes
);

#[inline(always)]
fn pack_transposed_lanes<L: Lanes>(source: PanelSource<'_>, panels: &mut [f32]) {
    let PanelSource { floats, stride, columns, rows } = source;
    for (first, panel) in columns.clone().step_by(PANEL).zip(panels.chunks_mut(rows * PANEL)) {
        let here = first..columns.end.min(first + PANEL);
        for row in (0..rows).step_by(LANES) {
            let depth = LANES.min(rows - row);
            let to = &mut panel[row * PANEL..][..depth * PANEL];
            transpose::<L>(floats, stride, here.clone(), row..row + depth, to);
        }
    }
}

/// Columns of up to sixteen rows become rows of sixteen floats in `to`; what is missing of them is
/// zero.
#[inline(always)]
fn transpose<L: Lanes>(
    floats: &[f32],
    stride: usize,
    rows: Range<usize>,
    columns: Range<usize>,
    to: &mut [f32],
) {
    assert_eq!(to.len(), columns.len() * LANES);
    let first = rows.start * stride + columns.start;
    let end = (rows.end.max(1) - 1) * stride + columns.end;
    if rows.len() == LANES && columns.len() == LANES && end <= floats.len() {
        // SAFETY: both ends were checked.
        unsafe { L::transpose_square(floats.as_ptr().add(first), stride, to.as_mut_ptr(), LANES) };
        return;
    }
    let mut square = [L::splat(0.0); LANES];
    for (lanes, row) in square.iter_mut().zip(rows) {
        *lanes = L::load_at(&floats[row * stride..][columns.clone()], 0, 0.0);
    }
    for (lanes, to) in L::transpose(square).into_iter().zip(to.chunks_exact_mut(LANES)) {
        lanes.write_to(to);
    }
}

/// Rows of a left factor that become a strip.
#[derive(Clone, Copy)]
pub(crate) struct RowSource<'a> {
    /// From the first of the rows on, at the first factor.
    pub(crate) floats: &'a [f32],
    /// Floats from one row to the next.
    pub(crate) stride: usize,
    /// Rows, up to [`STRIP`].
    pub(crate) rows: usize,
    /// The number of factors in each row.
    pub(crate) depth: usize,
}

/// Floats that are allocated for a strip.
pub(crate) const STRIP_FLOATS: usize = STRIP * BLOCK_DEPTH;

dispatch!(
    /// Packs rows into a strip; missing rows are zero.
    pub(crate) fn pack_rows(source: RowSource<'_>, strip: &mut [f32]) = pack_rows_lanes
);

#[inline(always)]
fn pack_rows_lanes<L: Lanes>(source: RowSource<'_>, strip: &mut [f32]) {
    let RowSource { floats, stride, rows, depth } = source;
    for (at, to) in (0..depth).step_by(LANES).zip(strip.chunks_mut(LANES * STRIP)) {
        let count = LANES.min(depth - at);
        transpose::<L>(floats, stride, 0..rows, at..at + count, &mut to[..count * STRIP]);
    }
}
