//! The right factor of a product, laid out in the order in which tiles read it.

use super::{BLOCK_DEPTH, PANEL};
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
    pub(crate) fn pack(&mut self, threads: &Threads, source: PackSource<'_>) {
        let (depth, columns) = (self.depth, self.columns);
        let (PackSource::AsIs(floats) | PackSource::Transposed(floats)) = source;
        assert_eq!(floats.len(), depth * columns);
        let mut pieces = Vec::new();
        let mut rest = self.floats.as_mut_slice();
        for start in (0..depth).step_by(BLOCK_DEPTH) {
            let block_depth = BLOCK_DEPTH.min(depth - start);
            let len = block_depth * columns.next_multiple_of(PANEL);
            let (block, after) = rest.split_at_mut(len);
            rest = after;
            let panels = block.chunks_exact_mut(block_depth * PANEL);
            pieces.extend(panels.enumerate().map(|(panel, to)| (start, panel * PANEL, to)));
        }
        threads.for_each(pieces, |(start, column, to)| match source {
            PackSource::AsIs(from) => {
                pack_as_is(&from[start * columns..], columns, columns, column, to);
            }
            PackSource::Transposed(from) => {
                pack_transposed(&from[start..], depth, columns, column, to);
            }
        });
    }
}

/// A panel whose rows are pieces of the source's rows, which are `stride` floats apart.
pub(crate) fn pack_as_is(
    from: &[f32],
    stride: usize,
    columns: usize,
    column: usize,
    panel: &mut [f32],
) {
    let width = PANEL.min(columns - column);
    for (row, to) in panel.chunks_exact_mut(PANEL).enumerate() {
        to[..width].copy_from_slice(&from[row * stride + column..][..width]);
        to[width..].fill(0.0);
    }
}

/// Edge of the square pieces in which a source is transposed: they fit in the first-level cache.
const SQUARE: usize = 16;

/// A panel whose columns are pieces of the source's rows, which are `stride` floats apart.
pub(crate) fn pack_transposed(
    from: &[f32],
    stride: usize,
    columns: usize,
    column: usize,
    panel: &mut [f32],
) {
    let width = PANEL.min(columns - column);
    if width < PANEL {
        panel.fill(0.0);
    }
    for (square, rows) in panel.chunks_mut(SQUARE * PANEL).enumerate() {
        let depth = rows.len() / PANEL;
        for left in (0..width).step_by(SQUARE) {
            for to_column in left..width.min(left + SQUARE) {
                let source = &from[(column + to_column) * stride + square * SQUARE..][..depth];
                for (row, value) in source.iter().enumerate() {
                    rows[row * PANEL + to_column] = *value;
                }
            }
        }
    }
}
