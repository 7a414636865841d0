//! Where the pieces of one head lie, and the memory one head is worked on in.

use std::cell::RefCell;

use super::super::instruction_set::InstructionSet;
use super::super::matmul::{
    BLOCK_DEPTH, PanelSource, PrefetchRange, RowSource, STRIP_WORDS, pack_as_is, pack_rows,
    pack_transposed,
};
use super::{QUERIES, SCORE_STRIDE};
use crate::backend::AttentionShape;
use crate::panels::padded;
use crate::precision::Precision;

/// A run of columns of the rows of one sequence.
#[derive(Clone, Copy)]
pub(super) struct StridedColumns<'a> {
    /// From the sequence's first row on, at the first column.
    pub(super) floats: &'a [f32],
    /// Floats from one row to the next.
    pub(super) stride: usize,
    pub(super) width: usize,
}

impl<'a> StridedColumns<'a> {
    /// The columns from `column` on of the sequence that starts at row `row`.
    pub(super) fn new(
        floats: &'a [f32],
        stride: usize,
        row: usize,
        column: usize,
        width: usize,
    ) -> Self {
        Self { floats: &floats[row * stride + column..], stride, width }
    }

    pub(super) fn row(&self, row: usize) -> &'a [f32] {
        &self.floats[row * self.stride..][..self.width]
    }

    /// Up to [`QUERIES`] rows as a strip.
    pub(super) fn pack_strip(
        &self,
        set: InstructionSet,
        first: usize,
        rows: usize,
        to: &mut [f32],
    ) {
        let Self { floats, stride, width } = *self;
        let floats = &floats[first * stride..];
        let source = RowSource { floats, stride, rows, depth: width, precision: Precision::F32 };
        pack_rows(set, source, to);
    }

    /// Panels whose columns are these rows, `rows` of them: the right factor of a product over
    /// this head's width.
    pub(super) fn pack_rows_as_columns(&self, set: InstructionSet, rows: usize, to: &mut [f32]) {
        let Self { floats, stride, width } = *self;
        let precision = Precision::F32;
        let source = PanelSource { floats, stride, columns: 0..rows, rows: width, precision };
        pack_transposed(set, source, to);
    }

    /// Panels of these columns in blocks of [`BLOCK_DEPTH`] rows: the right factor of a product
    /// over rows.
    pub(super) fn pack_as_is(&self, set: InstructionSet, rows: usize, to: &mut [f32]) {
        let Self { floats, stride, width } = *self;
        for first in (0..rows).step_by(BLOCK_DEPTH) {
            let depth = BLOCK_DEPTH.min(rows - first);
            let floats = &floats[first * stride..];
            let precision = Precision::F32;
            let source = PanelSource { floats, stride, columns: 0..width, rows: depth, precision };
            pack_as_is(set, source, &mut to[first * padded(width)..]);
        }
    }
}

/// The row-shaped operands of one query head.
pub(super) struct HeadColumns {
    pub(super) query: usize,
    pub(super) key: usize,
    pub(super) value: usize,
    pub(super) out: usize,
}

impl HeadColumns {
    pub(super) fn new(shape: AttentionShape, head: usize) -> Self {
        let kv_head = head / (shape.heads / shape.kv_heads);
        let key = shape.query_width() + kv_head * shape.head_width;
        Self {
            query: head * shape.head_width,
            key,
            value: key + shape.key_width(),
            out: head * shape.head_width,
        }
    }
}

/// The rows that a thread's next task reads, which it fetches strip by strip during this one. What does not lie side
/// by side, no processor fetches by itself in time. Which task is next is a guess: threads take turns as long as
/// tasks are alike.
pub(super) struct RowsAhead {
    /// The first row of that task's sequence.
    row: usize,
    at: HeadColumns,
    width: usize,
}

impl RowsAhead {
    /// Those of `task`; there are none behind the last.
    pub(super) fn new(shape: AttentionShape, task: usize) -> Self {
        let row = task / shape.kv_heads * shape.sequence_len;
        let at = HeadColumns::new(shape, task % shape.kv_heads * (shape.heads / shape.kv_heads));
        Self { row, at, width: shape.head_width }
    }

    /// The rows of one kind that a strip from query `first` on fetches.
    pub(super) fn strip(
        &self,
        of: PrefetchRange,
        first: usize,
        column: impl Fn(&HeadColumns) -> usize,
    ) -> PrefetchRange {
        let first = self.row + first;
        of.part(first..first + QUERIES, column(&self.at), self.width)
    }
}

/// How many rows of each of `shape`'s sequences a slice has, by the floats of its queries, keys and
/// values.
pub(super) fn slice_len(shape: AttentionShape, qkv: &[f32]) -> usize {
    let of_rows = shape.sequences * shape.qkv_width();
    assert!(qkv.len().is_multiple_of(of_rows), "a slice has as many rows of each sequence");
    qkv.len() / of_rows
}

/// How many queries and keys a sequence has, and where the queries are among the keys.
#[derive(Clone, Copy)]
pub(super) struct AttentionLengths {
    /// Queries of the slice.
    pub(super) queries: usize,
    /// Keys of the slice and of those before it.
    pub(super) keys: usize,
}

impl AttentionLengths {
    /// The lengths of a slice that `earlier` keys of earlier slices come before.
    pub(super) fn new(shape: AttentionShape, earlier: usize) -> Self {
        let queries = shape.sequence_len;
        Self { queries, keys: earlier + queries }
    }

    /// Where in its sequence a query of the slice is.
    pub(super) fn position(self, query: usize) -> usize {
        self.keys - self.queries + query
    }

    /// The first query of the slice that sees a key at `position` or behind it.
    pub(super) fn first_query(self, position: usize) -> usize {
        (position + self.queries).saturating_sub(self.keys)
    }
}

/// Memory of a thread for one head, grown when a longer sequence comes.
#[derive(Default)]
pub(super) struct HeadScratch {
    /// Packed rows, a strip in each.
    pub(super) query_strip: Vec<f32>,
    pub(super) gradient_strip: Vec<f32>,
    pub(super) weight_strip: Vec<f32>,
    /// [`QUERIES`] rows of a block of scores, for each block.
    pub(super) scores: Vec<f32>,
    pub(super) weight_gradients: Vec<f32>,
    /// [`QUERIES`] rows of the output.
    pub(super) sums: Vec<f32>,
    /// Panels of keys, the first of several packed operands.
    pub(super) keys_as_columns: Vec<f32>,
    pub(super) values_as_columns: Vec<f32>,
    pub(super) keys: Vec<f32>,
    pub(super) values: Vec<f32>,
    pub(super) queries: Vec<f32>,
    pub(super) gradients: Vec<f32>,
    /// Rows of this head, side by side.
    pub(super) rows: Vec<f32>,
    pub(super) query_gradients: Vec<f32>,
    pub(super) key_gradients: Vec<f32>,
    pub(super) value_gradients: Vec<f32>,
    /// For each strip of a block of keys, all queries' attention weights on it; and the gradients
    /// of their scores.
    pub(super) key_weights: Vec<f32>,
    pub(super) key_score_gradients: Vec<f32>,
    /// For each query, its output times its gradient.
    pub(super) dots: Vec<f32>,
}

impl HeadScratch {
    /// Grows all memory to what the shape needs; `with_gradients` for the backward pass as well.
    fn grow(&mut self, shape: AttentionShape, lengths: AttentionLengths, with_gradients: bool) {
        let grow = |floats: &mut Vec<f32>, len: usize| {
            if floats.len() < len {
                floats.resize(len, 0.0);
            }
        };
        let AttentionLengths { queries, keys } = lengths;
        let panels = |rows: usize| padded(rows) * padded(shape.head_width);
        let score_rows = QUERIES * SCORE_STRIDE;
        grow(&mut self.query_strip, STRIP_WORDS);
        grow(&mut self.weight_strip, STRIP_WORDS);
        grow(&mut self.scores, keys.div_ceil(BLOCK_DEPTH) * score_rows);
        grow(&mut self.sums, QUERIES * shape.head_width);
        grow(&mut self.keys_as_columns, panels(keys));
        grow(&mut self.values, panels(keys));
        if with_gradients || keys > queries {
            grow(&mut self.rows, keys * shape.head_width);
        }
        if with_gradients {
            grow(&mut self.gradient_strip, STRIP_WORDS);
            grow(&mut self.weight_gradients, score_rows);
            grow(&mut self.values_as_columns, panels(keys));
            grow(&mut self.keys, panels(keys));
            grow(&mut self.queries, panels(queries));
            grow(&mut self.gradients, panels(queries));
            grow(&mut self.query_gradients, queries * shape.head_width);
            grow(&mut self.key_gradients, keys * shape.head_width);
            grow(&mut self.value_gradients, keys * shape.head_width);
            let block = queries * padded(keys).min(BLOCK_DEPTH).next_multiple_of(QUERIES);
            grow(&mut self.key_weights, block);
            grow(&mut self.key_score_gradients, block);
            grow(&mut self.dots, queries);
        }
    }
}

thread_local! {
    static SCRATCH: RefCell<HeadScratch> = RefCell::new(HeadScratch::default());
}

/// Runs `work` with this thread's memory, large enough for `shape` and `lengths`.
pub(super) fn with_head_scratch<R>(
    shape: AttentionShape,
    lengths: AttentionLengths,
    with_gradients: bool,
    work: impl FnOnce(&mut HeadScratch) -> R,
) -> R {
    SCRATCH.with_borrow_mut(|scratch| {
        scratch.grow(shape, lengths, with_gradients);
        work(scratch)
    })
}
