//! Many rows by a packed matrix: the forward pass and the input gradient of a linear layer.

use std::ops::Range;

use super::super::lanes::InstructionSet;
use super::packed::PackedMatrix;
use super::tile::{Ahead, Left, Product, TILE_STRIDE, row_block_len, tile_rows};
use super::{BLOCK_COLUMNS, BLOCK_DEPTH};

/// A few rows and a run of columns of the left factor; rows count from the start of the task's
/// share.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub(crate) rows: Range<usize>,
    pub(crate) columns: Range<usize>,
}

/// Copies a block of a row-major matrix with `stride` floats a row into a strip.
pub(crate) fn copy_rows(from: &[f32], stride: usize, block: &Block, strip: &mut [f32]) {
    for (row, to) in block.rows.clone().zip(strip.chunks_mut(TILE_STRIDE)) {
        let from = &from[row * stride..][block.columns.clone()];
        to[..from.len()].copy_from_slice(from);
    }
}

/// Where sums are collected.
pub(crate) enum Space<'a> {
    /// In the result: all columns of all rows.
    Result(&'a mut [f32]),
    /// In memory that serves one block of [`BLOCK_COLUMNS`] columns after the other; what is made
    /// of the sums is `finish`'s affair.
    Passing(&'a mut [f32]),
}

/// The factors of a product of many rows by a packed matrix.
#[derive(Clone, Copy)]
pub(crate) struct RowProduct<'a> {
    pub(crate) set: InstructionSet,
    /// Rows of the left factor.
    pub(crate) row_count: usize,
    /// The left factor, row-major, if rows should be fetched ahead from it; else empty.
    pub(crate) left: &'a [f32],
    /// The right factor.
    pub(crate) matrix: &'a PackedMatrix,
}

/// The rows of one task times the matrix.
///
/// `fill(block, is_first_visit, strip)` lays a block of the left factor into the strip, rows
/// [`TILE_STRIDE`] floats apart; it is called again for each [`BLOCK_COLUMNS`] columns of the
/// product, the first time with `true`. `finish(row, columns, sums)` is called on each row of a
/// block whose sums are complete, while they are in the first-level cache.
pub(crate) fn multiply_rows(
    factors: RowProduct<'_>,
    strip: &mut [f32],
    space: Space<'_>,
    mut fill: impl FnMut(&Block, bool, &mut [f32]),
    mut finish: impl FnMut(usize, &Range<usize>, &mut [f32]),
) {
    let RowProduct { set, row_count, left, matrix } = factors;
    let (product, stride, is_result) = match space {
        Space::Result(floats) => (floats, matrix.columns(), true),
        Space::Passing(floats) => (floats, BLOCK_COLUMNS, false),
    };
    assert!(product.len() >= row_count * stride);
    for column in (0..matrix.columns()).step_by(BLOCK_COLUMNS) {
        let columns = column..matrix.columns().min(column + BLOCK_COLUMNS);
        let offset = if is_result { column } else { 0 };
        for depth_start in (0..matrix.depth()).step_by(BLOCK_DEPTH) {
            let depth_end = matrix.depth().min(depth_start + BLOCK_DEPTH);
            let panels = matrix.panels(depth_start, column);
            for row in (0..row_count).step_by(row_block_len(set)) {
                let rows = row..row_count.min(row + row_block_len(set));
                let block = Block { rows: rows.clone(), columns: depth_start..depth_end };
                fill(&block, column == 0, strip);
                let to = Product {
                    floats: &mut product[row * stride + offset..],
                    stride,
                    columns: columns.len(),
                    add: depth_start > 0,
                };
                let depth = depth_end - depth_start;
                let next = rows.end * matrix.depth() + depth_start;
                let ahead = Ahead::new(left, next, matrix.depth(), depth, row_block_len(set));
                tile_rows(set, rows.len(), depth, Left::Rows(strip), panels, ahead, to);
                if depth_end == matrix.depth() {
                    for row in rows {
                        let sums = &mut product[row * stride + offset..][..columns.len()];
                        finish(row, &columns, sums);
                    }
                }
            }
        }
    }
}
