//! The right factor of a product, laid out in the order in which tiles read it.

use std::ops::Range;

use super::super::lanes::{InstructionSet, LANES, Lanes, dispatch};
use super::{BLOCK_COLUMNS, BLOCK_DEPTH, PANEL};
use crate::backend::AllocateError;
use crate::cpu::buffer::CpuBuffer;
use crate::cpu::threads::Threads;

/// A matrix of `depth` rows and `columns` columns in panels of [`PANEL`] columns.
///
/// Blocks of [`BLOCK_DEPTH`] rows follow each other; within a block, panels; within a panel, rows.
/// Columns beyond the last are zero.
pub(crate) struct PackedMatrix {
    depth: usize,
    columns: usize,
    floats: CpuBuffer,
}

/// Where the factor comes from: a matrix in row-major order.
#[derive(Clone, Copy)]
pub(crate) enum PackSource<'a> {
    /// `depth` rows of `columns` floats.
    AsIs(&'a [f32]),
    /// `columns` rows of `depth` floats.
    Transposed(&'a [f32]),
}

impl PackedMatrix {
    pub(crate) fn zeroed(depth: usize, columns: usize) -> Result<Self, AllocateError> {
        let floats = CpuBuffer::zeroed(Self::packed_len(depth, columns))?;
        Ok(Self { depth, columns, floats })
    }

    /// Floats such a matrix takes.
    pub(crate) fn packed_len(depth: usize, columns: usize) -> usize {
        depth * columns.next_multiple_of(PANEL)
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
        let block_start = depth_start * self.columns.next_multiple_of(PANEL);
        let block = &self.floats.as_slice()[block_start..];
        &block[column * block_depth..][..block_depth * self.panel_columns_from(column)]
    }

    fn panel_columns_from(&self, column: usize) -> usize {
        self.columns.next_multiple_of(PANEL) - column
    }

    /// Replaces the content.
    pub(crate) fn pack(&mut self, set: InstructionSet, threads: &Threads, source: PackSource<'_>) {
        let (depth, columns) = (self.depth, self.columns);
        let (PackSource::AsIs(floats) | PackSource::Transposed(floats)) = source;
        assert_eq!(floats.len(), depth * columns);
        let mut pieces = Vec::new();
        let mut rest = self.floats.as_mut_slice();
        for start in (0..depth).step_by(BLOCK_DEPTH) {
            let rows = BLOCK_DEPTH.min(depth - start);
            for column in (0..columns).step_by(BLOCK_COLUMNS) {
                let columns = column..columns.min(column + BLOCK_COLUMNS);
                let (to, after) = rest.split_at_mut(rows * columns.len().next_multiple_of(PANEL));
                rest = after;
                pieces.push((start, rows, columns, to));
            }
        }
        threads.for_each(pieces, |(start, rows, piece, to)| match source {
            PackSource::AsIs(from) => {
                let floats = &from[start * columns..];
                let source = PanelSource { floats, stride: columns, columns: piece, rows };
                pack_as_is(set, source, to);
            }
            PackSource::Transposed(from) => {
                let floats = &from[start..];
                let source = PanelSource { floats, stride: depth, columns: piece, rows };
                pack_transposed(set, source, to);
            }
        });
    }
}

/// What becomes a run of panels of `rows` rows.
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

/// Row by row, so that the source is read in the order in which it lies.
#[inline(always)]
fn pack_as_is_lanes<L: Lanes>(source: PanelSource<'_>, panels: &mut [f32]) {
    let PanelSource { floats, stride, columns, rows } = source;
    for row in 0..rows {
        let from = &floats[row * stride..][columns.clone()];
        for (panel, from) in from.chunks(PANEL).enumerate() {
            let to = &mut panels[(panel * rows + row) * PANEL..][..PANEL];
            if from.len() == PANEL {
                L::from_slice(from).write_to(to);
                L::from_slice(&from[LANES..]).write_to(&mut to[LANES..]);
            } else {
                to[..from.len()].copy_from_slice(from);
                to[from.len()..].fill(0.0);
            }
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
    let firsts = columns.clone().step_by(PANEL);
    for (first, panel) in firsts.zip(panels.chunks_exact_mut(rows * PANEL)) {
        for half in [0, LANES] {
            let here = first + half..columns.end.min(first + half + LANES);
            for row in (0..rows).step_by(LANES) {
                let depth = LANES.min(rows - row);
                let mut square = [L::splat(0.0); LANES];
                for (lanes, column) in square.iter_mut().zip(here.clone()) {
                    let from = &floats[column * stride + row..][..depth];
                    *lanes = L::load_at(from, 0, 0.0);
                }
                let square = L::transpose(square);
                for (lanes, row) in square.into_iter().zip(row..row + depth) {
                    lanes.write_to(&mut panel[row * PANEL + half..]);
                }
            }
        }
    }
}
