//! Many rows by a packed matrix: the forward pass and the input gradient of a linear layer.

use std::ops::Range;

use super::super::instruction_set::InstructionSet;
use super::packed::{PackedMatrix, RowSource, pack_rows};
use super::tile::{PrefetchRange, PrefetchRanges, ProductStrip, STRIP, multiply_strip};
use super::{BLOCK_COLUMNS, chain_factors};

/// A few rows and a run of columns of the left factor; rows count from the start of the task's
/// share.
#[derive(Clone, Debug)]
pub(crate) struct RowBlock {
    pub(crate) rows: Range<usize>,
    pub(crate) columns: Range<usize>,
}

/// Where sums are collected.
pub(crate) enum SumStorage<'a> {
    /// In the result: all columns of all rows.
    Result(&'a mut [f32]),
    /// In memory that serves one block of [`BLOCK_COLUMNS`] columns after the other; the
    /// callback `finish` uses the sums.
    Passing(&'a mut [f32]),
}

/// The rows of one task, and what they are multiplied by.
pub(crate) struct RowProduct<'a, L> {
    pub(crate) set: InstructionSet,
    pub(crate) row_count: usize,
    /// The left factor, row-major.
    pub(crate) left: L,
    /// The right factor, packed in panels.
    pub(crate) matrix: &'a PackedMatrix,
    /// The rows that are read when those of the product are complete, as wide as these.
    pub(crate) finish_reads: PrefetchRange,
}

/// A left factor whose rows may be computed block by block.
pub(crate) trait LeftRows {
    /// The rows, row-major; on the first visit of a block they may be computed.
    fn rows(&mut self, block: &RowBlock, is_first_visit: bool) -> &[f32];
}

impl LeftRows for &[f32] {
    #[inline(always)]
    fn rows(&mut self, _: &RowBlock, _: bool) -> &[f32] {
        self
    }
}

/// The product of the rows of one task and the matrix.
///
/// Each [`BLOCK_COLUMNS`] columns of the product visit all rows again. `finish(row, columns, sums)`
/// is called on each row of a block whose sums are complete, while they are in the first-level
/// cache.
pub(crate) fn multiply_rows<L: LeftRows>(
    mut factors: RowProduct<'_, L>,
    strip: &mut [f32],
    storage: SumStorage<'_>,
    mut finish: impl FnMut(usize, &Range<usize>, &mut [f32]),
) {
    let matrix = factors.matrix;
    let (product, stride, is_result) = match storage {
        SumStorage::Result(floats) => (floats, matrix.columns(), true),
        SumStorage::Passing(floats) => (floats, BLOCK_COLUMNS, false),
    };
    assert!(product.len() >= factors.row_count * stride);
    let chain = chain_factors(matrix.precision());
    for column in (0..matrix.columns()).step_by(BLOCK_COLUMNS) {
        let columns = column..matrix.columns().min(column + BLOCK_COLUMNS);
        let offset = if is_result { column } else { 0 };
        for start in (0..matrix.depth()).step_by(chain) {
            let depth = start..matrix.depth().min(start + chain);
            for row in (0..factors.row_count).step_by(STRIP) {
                let rows = row..factors.row_count.min(row + STRIP);
                let block = RowBlock { rows: rows.clone(), columns: depth.clone() };
                let to = &mut product[row * stride + offset..];
                multiply_block(&mut factors, &block, &columns, strip, (&mut *to, stride));
                if depth.end == matrix.depth() {
                    for (index, row) in rows.enumerate() {
                        finish(row, &columns, &mut to[index * stride..][..columns.len()]);
                    }
                }
            }
        }
    }
}

/// One strip by one block of the matrix.
fn multiply_block<L: LeftRows>(
    factors: &mut RowProduct<'_, L>,
    block: &RowBlock,
    columns: &Range<usize>,
    strip: &mut [f32],
    (product, stride): (&mut [f32], usize),
) {
    let set = factors.set;
    let matrix = factors.matrix;
    let depth = block.columns.clone();
    let width = matrix.depth();
    let left = factors.left.rows(block, columns.start == 0);
    let source = RowSource {
        floats: &left[block.rows.start * width + depth.start..],
        stride: width,
        rows: block.rows.len(),
        depth: depth.len(),
        precision: matrix.precision(),
    };
    pack_rows(set, source, strip);
    let panels = matrix.panels(depth.start, columns.start);
    let next = block.rows.end * width + depth.start;
    let next = PrefetchRange::new(left, next, width, depth.len(), STRIP);
    let finish = if depth.end == matrix.depth() {
        factors.finish_reads.part(block.rows.clone(), columns.start, columns.len())
    } else {
        PrefetchRange::NOTHING
    };
    let prefetch = PrefetchRanges { first: next, second: finish };
    let to = ProductStrip {
        floats: product,
        stride,
        rows: block.rows.len(),
        columns: columns.len(),
        add: depth.start > 0,
    };
    multiply_strip(set, panels.rows, strip, panels, prefetch, to);
}
