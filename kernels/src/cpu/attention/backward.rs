//! The backward pass of attention.
//!
//! For a block of keys, the queries that see it compute their weights P and the gradient dS of
//! their scores and add to the queries' gradient; then dV is the sum over queries of P times the
//! output's gradient, and dK that of dS times the query.
//!
//! Of a slice, dK and dV of earlier slices' keys and values are shares, which are added to those of
//! later slices; its own are complete with the shares that later slices have added before.

use std::ops::Range;

use super::super::backend::CpuBackend;
use super::super::instruction_set::InstructionSet;
use super::super::lanes::{LANES, Lanes, dispatch};
use super::super::math::exp;
use super::super::matmul::{
    BLOCK_DEPTH, Panels, PrefetchRange, PrefetchRanges, ProductStrip, RowSource, STRIP,
    multiply_strip, pack_rows,
};
use super::super::shared::SharedRows;
use super::forward::softmax_scale;
use super::heads::{
    AttentionLengths, HeadColumns, HeadScratch, RowsAhead, StridedColumns, slice_len,
    with_head_scratch,
};
use super::{QUERIES, SCORE_STRIDE, key_limit, key_start};
use crate::backend::{AttentionMask, AttentionShape};
use crate::panels::padded;
use crate::precision::Precision;

/// Results of the forward pass, and the gradient of the output.
#[derive(Clone, Copy)]
pub(in super::super) struct SavedAttention<'a> {
    pub(in super::super) out: &'a [f32],
    pub(in super::super) log_sums: &'a [f32],
    pub(in super::super) gradient: &'a [f32],
}

/// An earlier slice: its queries, keys and values, and where the gradients of its keys and
/// values are collected. A row of these holds a row of keys and then one of values.
pub(in super::super) struct KeyValueGradients<'a> {
    pub(in super::super) qkv: &'a [f32],
    pub(in super::super) gradients: &'a mut [f32],
}

/// `later` holds the shares that later slices added to this one's keys and values; without it this
/// is the last one, which begins the sums of the earlier ones.
pub(in super::super) fn backward(
    cpu: &CpuBackend,
    (shape, mask): (AttentionShape, AttentionMask<'_>),
    earlier: Vec<KeyValueGradients<'_>>,
    later: Option<&[f32]>,
    saved: SavedAttention<'_>,
    qkv_then_gradient: &mut [f32],
) {
    let qkv_len = shape.rows() * shape.qkv_width();
    let kv_len = shape.rows() * 2 * shape.key_width();
    assert_eq!(qkv_then_gradient.len(), qkv_len);
    assert!(later.is_none_or(|later| later.len() == kv_len));
    assert_eq!(saved.out.len(), shape.rows() * shape.query_width());
    assert_eq!(saved.gradient.len(), saved.out.len());
    assert_eq!(saved.log_sums.len(), shape.rows() * shape.heads);
    let qkv = SharedRows::new(qkv_then_gradient, shape.qkv_width());
    let earlier: Vec<SharedEarlierSlice<'_>> =
        earlier.into_iter().map(|slice| SharedEarlierSlice::new(shape, slice)).collect();
    let lengths = AttentionLengths::new(shape, earlier.iter().map(|slice| slice.len).sum());
    mask.check(shape, lengths.position(0));
    cpu.threads().run(shape.sequences * shape.kv_heads, |task| {
        let sequence = task / shape.kv_heads;
        let kv_head = task % shape.kv_heads;
        let row = sequence * shape.sequence_len;
        let set = cpu.instruction_set();
        let earlier = &earlier[..];
        let qkv = &qkv;
        let mask = mask.of_sequence(sequence, shape.sequence_len);
        let job = AttentionBackwardJob {
            set,
            shape,
            mask,
            lengths,
            sequence,
            row,
            saved,
            earlier,
            later,
            qkv,
            ahead: RowsAhead::new(shape, task + cpu.threads().count()),
        };
        with_head_scratch(shape, lengths, true, |scratch| job.group(kv_head, scratch));
    });
}

/// An earlier slice, shared by all tasks.
struct SharedEarlierSlice<'a> {
    /// Rows of each sequence.
    len: usize,
    qkv: &'a [f32],
    gradients: SharedRows<'a>,
}

impl<'a> SharedEarlierSlice<'a> {
    fn new(shape: AttentionShape, slice: KeyValueGradients<'a>) -> Self {
        let KeyValueGradients { qkv, gradients } = slice;
        let len = slice_len(shape, qkv);
        let width = 2 * shape.key_width();
        assert_eq!(gradients.len(), shape.sequences * len * width);
        Self { len, qkv, gradients: SharedRows::new(gradients, width) }
    }
}

/// The backward pass of one sequence.
struct AttentionBackwardJob<'a> {
    set: InstructionSet,
    shape: AttentionShape,
    /// That of the sequence.
    mask: AttentionMask<'a>,
    lengths: AttentionLengths,
    sequence: usize,
    /// The sequence's first row.
    row: usize,
    saved: SavedAttention<'a>,
    earlier: &'a [SharedEarlierSlice<'a>],
    later: Option<&'a [f32]>,
    qkv: &'a SharedRows<'a>,
    ahead: RowsAhead,
}

/// One block of keys of one head.
#[derive(Clone, Copy)]
struct KeyBlock {
    head: usize,
    /// The block's first key.
    start: usize,
    /// The number of keys in the block.
    len: usize,
}

impl AttentionBackwardJob<'_> {
    /// All query heads that read one key and value head.
    fn group(&self, kv_head: usize, scratch: &mut HeadScratch) {
        let head_width = self.shape.head_width;
        let key_count = self.lengths.keys;
        let group = self.shape.heads / self.shape.kv_heads;
        let at = HeadColumns::new(self.shape, kv_head * group);
        self.gather_all(at.key, &mut scratch.rows);
        let keys = StridedColumns::new(&scratch.rows, head_width, 0, 0, head_width);
        keys.pack_rows_as_columns(self.set, key_count, &mut scratch.keys_as_columns);
        keys.pack_as_is(self.set, key_count, &mut scratch.keys);
        self.gather_all(at.value, &mut scratch.rows);
        let values = StridedColumns::new(&scratch.rows, head_width, 0, 0, head_width);
        values.pack_rows_as_columns(self.set, key_count, &mut scratch.values_as_columns);
        let key = kv_head * head_width;
        let value = self.shape.key_width() + kv_head * head_width;
        let has_later = self.load_sums(key, &mut scratch.key_gradients)
            && self.load_sums(value, &mut scratch.value_gradients);
        for index in 0..group {
            self.head(kv_head * group + index, has_later || index > 0, scratch);
        }
        self.store_sums((at.key, key), &scratch.key_gradients);
        self.store_sums((at.value, value), &scratch.value_gradients);
    }

    /// Copies one head's columns of the rows of this sequence, from all slices up to this one.
    fn gather_all(&self, column: usize, to: &mut [f32]) {
        let head_width = self.shape.head_width;
        let stride = self.shape.qkv_width();
        let (before, own) = to.split_at_mut(self.keys_before() * head_width);
        let mut rows = before.chunks_exact_mut(head_width);
        for slice in self.earlier {
            let first = self.sequence * slice.len;
            let from = StridedColumns::new(slice.qkv, stride, first, column, head_width);
            for (row, to) in (0..slice.len).zip(&mut rows) {
                to.copy_from_slice(from.row(row));
            }
        }
        self.gather(column, own);
    }

    /// The number of keys in earlier slices.
    fn keys_before(&self) -> usize {
        self.lengths.position(0)
    }

    /// The rows of those keys: the gradients that each lies in, and its index there.
    fn rows_before(&self) -> impl Iterator<Item = (&SharedRows<'_>, usize)> {
        self.earlier.iter().flat_map(|slice| {
            let first = self.sequence * slice.len;
            (first..first + slice.len).map(|row| (&slice.gradients, row))
        })
    }

    /// Copies the shares that later slices have added for one head's columns, in all slices up to
    /// this one, and returns whether there are later ones.
    fn load_sums(&self, column: usize, to: &mut [f32]) -> bool {
        let AttentionShape { sequence_len, head_width, .. } = self.shape;
        let Some(later) = self.later else { return false };
        let own =
            StridedColumns::new(later, 2 * self.shape.key_width(), self.row, column, head_width);
        let (before, behind) = to.split_at_mut(self.keys_before() * head_width);
        for (to, (from, row)) in before.chunks_exact_mut(head_width).zip(self.rows_before()) {
            // SAFETY: the task alone has this sequence and these heads.
            to.copy_from_slice(unsafe { from.piece(row, column, head_width) });
        }
        for (row, to) in (0..sequence_len).zip(behind.chunks_exact_mut(head_width)) {
            to.copy_from_slice(own.row(row));
        }
        true
    }

    /// Stores one head's sums where they are collected; those of this slice, in the columns of its
    /// own, are complete.
    fn store_sums(&self, (own, collected): (usize, usize), from: &[f32]) {
        let head_width = self.shape.head_width;
        let (before, complete) = from.split_at(self.keys_before() * head_width);
        for (from, (to, row)) in before.chunks_exact(head_width).zip(self.rows_before()) {
            // SAFETY: as in `load_sums`.
            unsafe { to.piece(row, collected, head_width) }.copy_from_slice(from);
        }
        self.scatter(own, complete);
    }

    fn head(&self, head: usize, add: bool, scratch: &mut HeadScratch) {
        let AttentionShape { sequence_len, head_width, .. } = self.shape;
        let at = HeadColumns::new(self.shape, head);
        self.gather(at.query, &mut scratch.rows);
        let queries = StridedColumns::new(&scratch.rows, head_width, 0, 0, head_width);
        queries.pack_as_is(self.set, sequence_len, &mut scratch.queries);
        let out = self.out_columns(self.saved.out, at.out);
        let gradients = self.gradients(head);
        gradients.pack_as_is(self.set, sequence_len, &mut scratch.gradients);
        for row in 0..sequence_len {
            scratch.dots[row] = dot(self.set, gradients.row(row), out.row(row));
        }
        let key_count = self.lengths.keys;
        if self.mask.first_key(sequence_len - 1) > 0 {
            // The sums of the blocks that are skipped.
            scratch.query_gradients[..sequence_len * head_width].fill(0.0);
        }
        for start in (0..key_count).step_by(BLOCK_DEPTH) {
            let keys = KeyBlock { head, start, len: BLOCK_DEPTH.min(key_count - start) };
            let from = self.lengths.first_query(start) / QUERIES * QUERIES;
            let end = self.mask.query_end(start + keys.len, sequence_len);
            for first in (from..end).step_by(QUERIES) {
                self.queries(keys, first, scratch);
            }
            for first in (0..keys.len).step_by(STRIP) {
                self.key_strip(keys, first, add, scratch);
            }
        }
        self.scatter(at.query, &scratch.query_gradients);
    }

    fn out_columns<'b>(&self, floats: &'b [f32], column: usize) -> StridedColumns<'b> {
        let AttentionShape { head_width, .. } = self.shape;
        StridedColumns::new(floats, self.shape.query_width(), self.row, column, head_width)
    }

    fn gradients(&self, head: usize) -> StridedColumns<'_> {
        self.out_columns(self.saved.gradient, HeadColumns::new(self.shape, head).out)
    }

    /// Copies one head's columns of the rows of this sequence.
    fn gather(&self, column: usize, to: &mut [f32]) {
        let AttentionShape { sequence_len, head_width, .. } = self.shape;
        for (row, to) in to.chunks_exact_mut(head_width).take(sequence_len).enumerate() {
            // SAFETY: the task alone has this sequence and these heads.
            let from = unsafe { self.qkv.piece(self.row + row, column, head_width) };
            to.copy_from_slice(from);
        }
    }

    /// Writes one head's columns of the rows of this sequence.
    fn scatter(&self, column: usize, from: &[f32]) {
        let AttentionShape { sequence_len, head_width, .. } = self.shape;
        for (row, from) in from.chunks_exact(head_width).take(sequence_len).enumerate() {
            // SAFETY: as in `gather`.
            let to = unsafe { self.qkv.piece(self.row + row, column, head_width) };
            to.copy_from_slice(from);
        }
    }

    /// Up to [`QUERIES`] queries against a block of keys: weights, score gradients, and the share
    /// of the queries' gradient.
    fn queries(&self, keys: KeyBlock, first: usize, scratch: &mut HeadScratch) {
        let AttentionShape { sequence_len, head_width, heads, .. } = self.shape;
        let rows = QUERIES.min(sequence_len - first);
        let queries = StridedColumns::new(&scratch.rows, head_width, 0, 0, head_width);
        queries.pack_strip(self.set, first, rows, &mut scratch.query_strip);
        let gradients = self.gradients(keys.head);
        gradients.pack_strip(self.set, first, rows, &mut scratch.gradient_strip);
        let skipped = key_start(self.mask, first).saturating_sub(keys.start);
        let [of_scores, of_weights, of_queries] = self.rows_ahead(keys, first);
        self.score((keys, skipped), first, rows, [of_scores, of_weights], scratch);
        // Keys that any of these queries sees.
        let position = self.lengths.position(first);
        let seen = (position + QUERIES - keys.start).min(padded(keys.len));
        for row in 0..rows {
            let query = first + row;
            let score_row = ScoreRow {
                query,
                queries: sequence_len,
                skipped,
                first: self.mask.first_key(query).saturating_sub(keys.start).min(keys.len),
                visible: (position + row + 1).saturating_sub(keys.start).min(keys.len),
                seen,
                scale: softmax_scale(head_width),
                log_sum: self.saved.log_sums[(self.row + query) * heads + keys.head],
                dot: scratch.dots[query],
            };
            let at = row * SCORE_STRIDE..(row + 1) * SCORE_STRIDE;
            score_gradient(
                self.set,
                score_row,
                &mut scratch.scores[at.clone()],
                &scratch.weight_gradients[at],
                &mut scratch.key_weights,
                &mut scratch.key_score_gradients,
            );
        }
        let seen = skipped..seen.min(keys.len);
        self.add_query_gradient(keys, (first..first + rows, seen), of_queries, scratch);
    }

    /// For each product of a strip of queries, rows that this thread's next task may read: the keys, values and first
    /// query head of its group, with each head of this one.
    fn rows_ahead(&self, keys: KeyBlock, first: usize) -> [PrefetchRanges; 3] {
        if keys.start > 0 {
            return [PrefetchRanges::NOTHING; 3];
        }
        let qkv = self.qkv.prefetch_range();
        let of = |floats| PrefetchRange::rows(floats, self.shape.query_width());
        let strip =
            |range, column: fn(&HeadColumns) -> usize| self.ahead.strip(range, first, column);
        [
            PrefetchRanges { first: strip(qkv, |at| at.key), second: strip(qkv, |at| at.value) },
            PrefetchRanges {
                first: strip(qkv, |at| at.query),
                second: strip(of(self.saved.gradient), |at| at.out),
            },
            PrefetchRanges {
                first: strip(of(self.saved.out), |at| at.out),
                second: PrefetchRange::NOTHING,
            },
        ]
    }

    /// Scores of the packed queries, and the gradients of their weights, without those of the keys
    /// that are skipped.
    fn score(
        &self,
        (keys, skipped): (KeyBlock, usize),
        first: usize,
        rows: usize,
        ahead: [PrefetchRanges; 2],
        scratch: &mut HeadScratch,
    ) {
        let head_width = self.shape.head_width;
        let limit = key_limit(self.lengths.position(first), self.lengths.keys);
        let columns = (limit - keys.start).min(BLOCK_DEPTH) - skipped;
        let products = [
            (&scratch.query_strip, &scratch.keys_as_columns, &mut scratch.scores),
            (&scratch.gradient_strip, &scratch.values_as_columns, &mut scratch.weight_gradients),
        ];
        for ((strip, panels, floats), prefetch) in products.into_iter().zip(ahead) {
            let floats = &mut floats[skipped..];
            let to = ProductStrip { floats, stride: SCORE_STRIDE, rows, columns, add: false };
            let floats = &panels[(keys.start + skipped) * head_width..];
            let panels = Panels::of_floats(floats, head_width, 0);
            multiply_strip(self.set, head_width, strip, panels, prefetch, to);
        }
    }

    /// dQ of a few queries: score gradients, which lie where scores were, times keys.
    fn add_query_gradient(
        &self,
        keys: KeyBlock,
        (rows, seen): (Range<usize>, Range<usize>),
        prefetch: PrefetchRanges,
        scratch: &mut HeadScratch,
    ) {
        let head_width = self.shape.head_width;
        let depth = seen.len();
        let floats = &scratch.scores[seen.start..];
        let precision = Precision::F32;
        let source = RowSource { floats, stride: SCORE_STRIDE, rows: rows.len(), depth, precision };
        pack_rows(self.set, source, &mut scratch.weight_strip);
        let to = ProductStrip {
            floats: &mut scratch.query_gradients[rows.start * head_width..],
            stride: head_width,
            rows: rows.len(),
            columns: head_width,
            add: keys.start > 0,
        };
        let floats = &scratch.keys[keys.start * padded(head_width)..];
        let panels = Panels::of_floats(floats, keys.len, seen.start);
        multiply_strip(self.set, depth, &scratch.weight_strip, panels, prefetch, to);
    }

    /// A strip of keys: the sums over queries that are dV and dK.
    fn key_strip(&self, keys: KeyBlock, first: usize, add: bool, scratch: &mut HeadScratch) {
        let AttentionShape { sequence_len, head_width, .. } = self.shape;
        let rows = STRIP.min(keys.len - first);
        let from = self.lengths.first_query(keys.start + first);
        let end = self.mask.query_end(keys.start + first + rows, sequence_len);
        if end <= from {
            // Queries of earlier slices alone see these keys.
            let here = (keys.start + first) * head_width..(keys.start + first + rows) * head_width;
            if !add {
                scratch.value_gradients[here.clone()].fill(0.0);
                scratch.key_gradients[here].fill(0.0);
            }
            return;
        }
        let mut add = add;
        for block in (from / BLOCK_DEPTH * BLOCK_DEPTH..end).step_by(BLOCK_DEPTH) {
            let block_len = BLOCK_DEPTH.min(sequence_len - block);
            let query = from.max(block);
            let products = [
                (&scratch.key_weights, &scratch.gradients, &mut scratch.value_gradients),
                (&scratch.key_score_gradients, &scratch.queries, &mut scratch.key_gradients),
            ];
            for (strips, panels, floats) in products {
                let to = ProductStrip {
                    floats: &mut floats[(keys.start + first) * head_width..],
                    stride: head_width,
                    rows,
                    columns: head_width,
                    add,
                };
                let floats = &panels[block * padded(head_width)..];
                let panels = Panels::of_floats(floats, block_len, query - block);
                let strip = &strips[first * sequence_len + query * STRIP..];
                let depth = end.min(block + block_len) - query;
                multiply_strip(self.set, depth, strip, panels, PrefetchRanges::NOTHING, to);
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

/// The values that a query's scores need to become gradients.
#[derive(Clone, Copy)]
struct ScoreRow {
    query: usize,
    /// Queries in all: a strip of keys holds a row of weights for each.
    queries: usize,
    /// Keys at the beginning of the block that none of its neighbours sees: they have no scores.
    skipped: usize,
    /// The first key of the block that the query sees.
    first: usize,
    /// The end of those that it sees.
    visible: usize,
    /// Keys of the block that its neighbours see as well: the keys it does not see are zero up to
    /// here.
    seen: usize,
    scale: f32,
    log_sum: f32,
    dot: f32,
}

dispatch!(fn score_gradient(
    row: ScoreRow, scores: &mut [f32], weight_gradients: &[f32], key_weights: &mut [f32],
    key_score_gradients: &mut [f32],
) = score_gradient_lanes);

/// Scores to weights `p = e^(scale s - log_sum)` and score gradients `scale p (dp - dot)`. Both go
/// to their strips of keys, the gradients also over the scores.
#[inline(always)]
fn score_gradient_lanes<L: Lanes>(
    row: ScoreRow,
    scores: &mut [f32],
    weight_gradients: &[f32],
    key_weights: &mut [f32],
    key_score_gradients: &mut [f32],
) {
    let ScoreRow { query, queries, skipped, first, visible, seen, scale, log_sum, dot } = row;
    if skipped < first {
        scores[skipped..first].fill(f32::NEG_INFINITY);
    }
    for at in (skipped..seen).step_by(LANES) {
        let here = visible.saturating_sub(at);
        let score = L::from_slice(&scores[at..]).front(here, f32::NEG_INFINITY);
        let weight = exp(score.mul(L::splat(scale)).sub(L::splat(log_sum)));
        let slope = L::from_slice(&weight_gradients[at..]).front(here, dot).sub(L::splat(dot));
        let gradient = weight.mul(L::splat(scale)).mul(slope);
        gradient.write_to(&mut scores[at..]);
        let to = at * queries + query * STRIP;
        weight.write_to(&mut key_weights[to..]);
        gradient.write_to(&mut key_score_gradients[to..]);
    }
}
