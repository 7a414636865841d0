//! The backward pass of attention.
//!
//! For a block of keys, the strips of queries that see it compute their weights P and the
//! gradient dS of their scores and add to the queries' gradient; then dV is the sum over queries
//! of P times the output's gradient, and dK that of dS times the scaled query.

use super::super::backend::CpuBackend;
use super::super::lanes::{InstructionSet, LANES, Lanes, dispatch};
use super::super::math::exp;
use super::super::matmul::{Ahead, BLOCK_DEPTH, Left, PANEL, Product, TILE_STRIDE, tile_rows};
use super::super::shared::SharedRows;
use super::forward::softmax_scale;
use super::heads::{Columns, HeadColumns, HeadScratch, key_block_len, with_head_scratch};
use super::{STRIP, key_limit};
use crate::backend::AttentionShape;

/// What the forward pass left and what came back.
#[derive(Clone, Copy)]
pub(in super::super) struct Saved<'a> {
    pub(in super::super) out: &'a [f32],
    pub(in super::super) log_sums: &'a [f32],
    pub(in super::super) gradient: &'a [f32],
}

pub(in super::super) fn backward(
    cpu: &CpuBackend,
    shape: AttentionShape,
    saved: Saved<'_>,
    qkv_then_gradient: &mut [f32],
) {
    assert_eq!(qkv_then_gradient.len(), shape.rows() * shape.qkv_width());
    assert_eq!(saved.out.len(), shape.rows() * shape.query_width());
    assert_eq!(saved.gradient.len(), saved.out.len());
    assert_eq!(saved.log_sums.len(), shape.rows() * shape.heads);
    let qkv = SharedRows::new(qkv_then_gradient, shape.qkv_width());
    cpu.threads().run(shape.sequences * shape.kv_heads, |task| {
        let (sequence, kv_head) = (task / shape.kv_heads, task % shape.kv_heads);
        let row = sequence * shape.sequence_len;
        let job = Job { set: cpu.instruction_set(), shape, row, saved, qkv: &qkv };
        with_head_scratch(shape, true, |scratch| job.group(kv_head, scratch));
    });
}

/// One sequence.
struct Job<'a> {
    set: InstructionSet,
    shape: AttentionShape,
    /// Its first row.
    row: usize,
    saved: Saved<'a>,
    qkv: &'a SharedRows<'a>,
}

/// One block of keys of one head.
#[derive(Clone, Copy)]
struct KeyBlock {
    head: usize,
    /// The first key.
    start: usize,
    /// Keys in it.
    len: usize,
}

impl Job<'_> {
    /// All query heads that read one key and value head.
    fn group(&self, kv_head: usize, scratch: &mut HeadScratch) {
        let AttentionShape { sequence_len, head_width, .. } = self.shape;
        let group = self.shape.heads / self.shape.kv_heads;
        let at = HeadColumns::new(self.shape, kv_head * group);
        self.gather(at.key, 1.0, &mut scratch.query_rows);
        let keys = Columns::new(&scratch.query_rows, head_width, 0, 0, head_width);
        keys.pack_rows_as_columns(self.set, sequence_len, &mut scratch.keys_as_columns);
        keys.pack_as_is(self.set, sequence_len, &mut scratch.keys);
        self.gather(at.value, 1.0, &mut scratch.query_rows);
        let values = Columns::new(&scratch.query_rows, head_width, 0, 0, head_width);
        values.pack_rows_as_columns(self.set, sequence_len, &mut scratch.values_as_columns);
        for index in 0..group {
            self.head(kv_head * group + index, index > 0, scratch);
        }
        self.scatter(at.key, 1.0, &scratch.key_gradients);
        self.scatter(at.value, 1.0, &scratch.value_gradients);
    }

    fn head(&self, head: usize, add: bool, scratch: &mut HeadScratch) {
        let AttentionShape { sequence_len, head_width, .. } = self.shape;
        let at = HeadColumns::new(self.shape, head);
        let scale = softmax_scale(head_width);
        self.gather(at.query, scale, &mut scratch.query_rows);
        let queries = Columns::new(&scratch.query_rows, head_width, 0, 0, head_width);
        queries.pack_as_is(self.set, sequence_len, &mut scratch.queries);
        let (out, gradients) = (self.out_columns(self.saved.out, at.out), self.gradients(head));
        gradients.pack_as_is(self.set, sequence_len, &mut scratch.gradients);
        for row in 0..sequence_len {
            scratch.dots[row] = dot(self.set, gradients.row(row), out.row(row));
        }
        for start in (0..sequence_len).step_by(BLOCK_DEPTH) {
            let keys = KeyBlock { head, start, len: BLOCK_DEPTH.min(sequence_len - start) };
            for first in (start / STRIP * STRIP..sequence_len).step_by(STRIP) {
                self.strip(keys, first, scratch);
            }
            for first in (0..keys.len).step_by(STRIP) {
                self.key_strip(keys, first, add, scratch);
            }
        }
        self.scatter(at.query, scale, &scratch.query_gradients);
    }

    fn out_columns<'b>(&self, floats: &'b [f32], column: usize) -> Columns<'b> {
        let AttentionShape { head_width, .. } = self.shape;
        Columns::new(floats, self.shape.query_width(), self.row, column, head_width)
    }

    fn gradients(&self, head: usize) -> Columns<'_> {
        self.out_columns(self.saved.gradient, HeadColumns::new(self.shape, head).out)
    }

    /// Copies one head's columns of the rows of this sequence.
    fn gather(&self, column: usize, scale: f32, to: &mut [f32]) {
        let AttentionShape { sequence_len, head_width, .. } = self.shape;
        for (row, to) in to.chunks_exact_mut(head_width).take(sequence_len).enumerate() {
            // SAFETY: the task alone has this sequence and these heads.
            let from = unsafe { self.qkv.piece(self.row + row, column, head_width) };
            to.iter_mut().zip(from).for_each(|(to, from)| *to = *from * scale);
        }
    }

    /// Writes one head's columns of the rows of this sequence.
    fn scatter(&self, column: usize, scale: f32, from: &[f32]) {
        let AttentionShape { sequence_len, head_width, .. } = self.shape;
        for (row, from) in from.chunks_exact(head_width).take(sequence_len).enumerate() {
            // SAFETY: as in `gather`.
            let to = unsafe { self.qkv.piece(self.row + row, column, head_width) };
            to.iter_mut().zip(from).for_each(|(to, from)| *to = from * scale);
        }
    }

    /// A strip of queries against a block of keys: weights, score gradients, and the share of the
    /// queries' gradient.
    fn strip(&self, keys: KeyBlock, first: usize, scratch: &mut HeadScratch) {
        let AttentionShape { sequence_len, head_width, heads, .. } = self.shape;
        let rows = STRIP.min(sequence_len - first);
        let columns = (key_limit(first, sequence_len) - keys.start).min(BLOCK_DEPTH);
        let queries = Columns::new(&scratch.query_rows, head_width, 0, 0, head_width);
        queries.copy_scaled(first, rows, 1.0, &mut scratch.query_strip);
        self.gradients(keys.head).copy_scaled(first, rows, 1.0, &mut scratch.gradient_strip);
        let panel_start = keys.start * head_width;
        let products = [
            (&scratch.query_strip, &scratch.keys_as_columns, &mut scratch.score_strip),
            (
                &scratch.gradient_strip,
                &scratch.values_as_columns,
                &mut scratch.weight_gradient_strip,
            ),
        ];
        for (left, panels, floats) in products {
            let to = Product { floats, stride: TILE_STRIDE, columns, add: false };
            tile_rows(
                self.set,
                rows,
                head_width,
                Left::Rows(left),
                &panels[panel_start..],
                Ahead::NOTHING,
                to,
            );
        }
        let width = key_block_len(self.shape);
        for row in 0..rows {
            let query = first + row;
            let line = ScoreLine {
                visible: (query + 1).saturating_sub(keys.start).min(keys.len),
                log_sum: self.saved.log_sums[(self.row + query) * heads + keys.head],
                dot: scratch.dots[query],
            };
            let strip = row * TILE_STRIDE..row * TILE_STRIDE + columns;
            score_gradient(
                self.set,
                line,
                &mut scratch.score_strip[strip.clone()],
                &scratch.weight_gradient_strip[strip],
                &mut scratch.weights[query * width..][..width],
                &mut scratch.score_gradients[query * width..][..width],
            );
        }
        self.add_query_gradient(keys, first..first + rows, columns, scratch);
    }

    /// dQ of a strip: score gradients, which the strip holds by now, times keys.
    fn add_query_gradient(
        &self,
        keys: KeyBlock,
        rows: std::ops::Range<usize>,
        columns: usize,
        scratch: &mut HeadScratch,
    ) {
        let head_width = self.shape.head_width;
        let padded = head_width.next_multiple_of(PANEL);
        for panel in (0..padded).step_by(PANEL) {
            let to = Product {
                floats: &mut scratch.query_gradients[rows.start * head_width + panel..],
                stride: head_width,
                columns: PANEL.min(head_width - panel),
                add: keys.start > 0,
            };
            let panels = &scratch.keys[keys.start * padded + panel * keys.len..];
            let left = Left::Rows(&scratch.score_strip);
            tile_rows(
                self.set,
                rows.len(),
                columns.min(keys.len),
                left,
                panels,
                Ahead::NOTHING,
                to,
            );
        }
    }

    /// A strip of keys: the sums over queries that are dV and dK.
    fn key_strip(&self, keys: KeyBlock, first: usize, add: bool, scratch: &mut HeadScratch) {
        let AttentionShape { sequence_len, head_width, .. } = self.shape;
        let rows = STRIP.min(keys.len - first);
        let padded = head_width.next_multiple_of(PANEL);
        let stride = key_block_len(self.shape);
        let start = (keys.start + first) / PANEL * PANEL;
        let mut add = add;
        for block in (start / BLOCK_DEPTH * BLOCK_DEPTH..sequence_len).step_by(BLOCK_DEPTH) {
            let block_len = BLOCK_DEPTH.min(sequence_len - block);
            let query = start.max(block);
            let depth = block + block_len - query;
            let products = [
                (&scratch.weights, &scratch.gradients, &mut scratch.value_gradients),
                (&scratch.score_gradients, &scratch.queries, &mut scratch.key_gradients),
            ];
            for (left, panels, floats) in products {
                for panel in (0..padded).step_by(PANEL) {
                    let to = Product {
                        floats: &mut floats[(keys.start + first) * head_width + panel..],
                        stride: head_width,
                        columns: PANEL.min(head_width - panel),
                        add,
                    };
                    let left = Left::Columns(&left[query * stride + first..], stride);
                    let panels = &panels[block * padded + panel * block_len..];
                    let panels = &panels[(query - block) * PANEL..];
                    tile_rows(self.set, rows, depth, left, panels, Ahead::NOTHING, to);
                }
            }
            add = true;
        }
    }
}

dispatch!(fn dot(a: &[f32], b: &[f32]) -> f32 = dot_lanes);

#[inline(always)]
fn dot_lanes<L: Lanes>(a: &[f32], b: &[f32]) -> f32 {
    let mut sum = L::splat(0.0);
    for at in (0..a.len()).step_by(LANES) {
        sum = L::load_at(a, at, 0.0).mul_add(L::load_at(b, at, 0.0), sum);
    }
    sum.sum()
}

/// What a query's scores need to become gradients.
#[derive(Clone, Copy)]
struct ScoreLine {
    /// Keys of the block that the query sees.
    visible: usize,
    log_sum: f32,
    dot: f32,
}

dispatch!(fn score_gradient(
    line: ScoreLine, scores: &mut [f32], weight_gradients: &[f32], weights: &mut [f32],
    score_gradients: &mut [f32],
) = score_gradient_lanes);

/// Scores to weights `p = e^(s - log_sum)` and score gradients `p (dp - dot)`, which go both to
/// their row and over the scores. What the query does not see is zero.
#[inline(always)]
fn score_gradient_lanes<L: Lanes>(
    line: ScoreLine,
    scores: &mut [f32],
    weight_gradients: &[f32],
    weights: &mut [f32],
    score_gradients: &mut [f32],
) {
    for at in (0..line.visible).step_by(LANES) {
        let score = L::load_at(&scores[..line.visible], at, f32::NEG_INFINITY);
        let weight = exp(score.sub(L::splat(line.log_sum)));
        let slope = L::load_at(&weight_gradients[..line.visible], at, line.dot);
        let gradient = weight.mul(slope.sub(L::splat(line.dot)));
        weight.write_to(&mut weights[at..]);
        gradient.write_to(&mut score_gradients[at..]);
        gradient.write_to(&mut scores[at..]);
    }
    let masked = line.visible.next_multiple_of(LANES);
    weights[masked..].fill(0.0);
    score_gradients[masked..].fill(0.0);
    scores[masked..].fill(0.0);
}
