//! Where the pieces of one head lie, and the memory one head is worked on in.

use std::cell::RefCell;

use super::super::lanes::InstructionSet;
use super::super::matmul::{
    BLOCK_DEPTH, PANEL, PanelSource, TILE_STRIDE, pack_as_is, pack_transposed,
};
use super::STRIP;
use crate::backend::AttentionShape;

/// A run of columns of the rows of one sequence.
#[derive(Clone, Copy)]
pub(super) struct Columns<'a> {
    /// From the sequence's first row on, at the first column.
    pub(super) floats: &'a [f32],
    /// Floats from one row to the next.
    pub(super) stride: usize,
    /// Columns.
    pub(super) width: usize,
}

impl<'a> Columns<'a> {
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

    /// Copies rows into a strip, times `scale`.
    pub(super) fn copy_scaled(&self, first: usize, rows: usize, scale: f32, strip: &mut [f32]) {
        for (row, to) in (first..first + rows).zip(strip.chunks_mut(TILE_STRIDE)) {
            for (to, from) in to.iter_mut().zip(self.row(row)) {
                *to = from * scale;
            }
        }
    }

    /// Panels whose columns are these rows, `rows` of them: the right factor of a product over
    /// this head's width.
    pub(super) fn pack_rows_as_columns(&self, set: InstructionSet, rows: usize, to: &mut [f32]) {
        let Self { floats, stride, width } = *self;
        pack_transposed(set, PanelSource { floats, stride, columns: 0..rows, rows: width }, to);
    }

    /// Panels of these columns in blocks of [`BLOCK_DEPTH`] rows: the right factor of a product
    /// over rows.
    pub(super) fn pack_as_is(&self, set: InstructionSet, rows: usize, to: &mut [f32]) {
        let Self { floats, stride, width } = *self;
        let padded = width.next_multiple_of(PANEL);
        for first in (0..rows).step_by(BLOCK_DEPTH) {
            let depth = BLOCK_DEPTH.min(rows - first);
            let floats = &floats[first * stride..];
            let source = PanelSource { floats, stride, columns: 0..width, rows: depth };
            pack_as_is(set, source, &mut to[first * padded..][..depth * padded]);
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

/// Memory of a thread for one head, grown when a longer sequence comes.
#[derive(Default)]
pub(super) struct HeadScratch {
    /// Strips: rows [`TILE_STRIDE`] floats apart.
    pub(super) query_strip: Vec<f32>,
    pub(super) gradient_strip: Vec<f32>,
    pub(super) score_strip: Vec<f32>,
    pub(super) weight_gradient_strip: Vec<f32>,
    /// Panels.
    pub(super) keys_as_columns: Vec<f32>,
    pub(super) values_as_columns: Vec<f32>,
    pub(super) keys: Vec<f32>,
    pub(super) values: Vec<f32>,
    pub(super) queries: Vec<f32>,
    pub(super) gradients: Vec<f32>,
    /// Rows of this head, side by side.
    pub(super) query_rows: Vec<f32>,
    pub(super) query_gradients: Vec<f32>,
    pub(super) key_gradients: Vec<f32>,
    pub(super) value_gradients: Vec<f32>,
    /// For each query, its attention weights on a block of keys, and their gradients.
    pub(super) weights: Vec<f32>,
    pub(super) score_gradients: Vec<f32>,
    /// For each query, its output times its gradient.
    pub(super) dots: Vec<f32>,
}

/// Keys of a block of scores, padded.
pub(super) fn key_block_len(shape: AttentionShape) -> usize {
    shape.sequence_len.next_multiple_of(PANEL).min(BLOCK_DEPTH)
}

impl HeadScratch {
    /// Makes room for the shape; `with_gradients` for the backward pass as well.
    fn grow(&mut self, shape: AttentionShape, with_gradients: bool) {
        let grow = |floats: &mut Vec<f32>, len: usize| {
            if floats.len() < len {
                floats.resize(len, 0.0);
            }
        };
        let rows = shape.sequence_len * shape.head_width;
        let padded_width = shape.head_width.next_multiple_of(PANEL);
        let panels = shape.sequence_len.next_multiple_of(PANEL) * padded_width;
        let blocks = shape.sequence_len.div_ceil(BLOCK_DEPTH);
        grow(&mut self.query_strip, STRIP * TILE_STRIDE);
        grow(&mut self.score_strip, blocks * STRIP * TILE_STRIDE);
        grow(&mut self.keys_as_columns, panels);
        grow(&mut self.values, panels);
        if with_gradients {
            let scores = shape.sequence_len * key_block_len(shape);
            for strip in [&mut self.gradient_strip, &mut self.weight_gradient_strip] {
                grow(strip, STRIP * TILE_STRIDE);
            }
            let packed = [
                &mut self.values_as_columns,
                &mut self.keys,
                &mut self.queries,
                &mut self.gradients,
            ];
            packed.into_iter().for_each(|packed| grow(packed, panels));
            grow(&mut self.query_rows, rows);
            grow(&mut self.query_gradients, rows);
            grow(&mut self.key_gradients, rows);
            grow(&mut self.value_gradients, rows);
            grow(&mut self.weights, scores);
            grow(&mut self.score_gradients, scores);
            grow(&mut self.dots, shape.sequence_len);
        }
    }
}

thread_local! {
    static SCRATCH: RefCell<HeadScratch> = RefCell::new(HeadScratch::default());
}

/// Runs `work` with this thread's memory, large enough for `shape`.
pub(super) fn with_head_scratch<R>(
    shape: AttentionShape,
    with_gradients: bool,
    work: impl FnOnce(&mut HeadScratch) -> R,
) -> R {
    SCRATCH.with_borrow_mut(|scratch| {
        scratch.grow(shape, with_gradients);
        work(scratch)
    })
}
