//! The forward pass of attention.

use std::ops::Range;

use super::super::backend::CpuBackend;
use super::super::instruction_set::InstructionSet;
use super::super::lanes::{LANES, Lanes, dispatch};
use super::super::math::exp;
use super::super::matmul::{
    BLOCK_DEPTH, Panels, PrefetchRange, PrefetchRanges, ProductStrip, RowSource, multiply_strip,
    pack_rows,
};
use super::super::shared::SharedRows;
use super::heads::{
    AttentionLengths, HeadColumns, HeadScratch, RowsAhead, StridedColumns, slice_len,
    with_head_scratch,
};
use super::{QUERIES, SCORE_STRIDE, key_limit, key_start};
use crate::backend::{AttentionMask, AttentionShape};
use crate::panels::padded;
use crate::precision::Precision;

pub(in super::super) fn forward(
    cpu: &CpuBackend,
    (shape, mask): (AttentionShape, AttentionMask<'_>),
    earlier: &[&[f32]],
    qkv: &[f32],
    out: &mut [f32],
    log_sums: &mut [f32],
) {
    assert_eq!(qkv.len(), shape.rows() * shape.qkv_width());
    assert_eq!(out.len(), shape.rows() * shape.query_width());
    assert_eq!(log_sums.len(), shape.rows() * shape.heads);
    let out = SharedRows::new(out, shape.query_width());
    let log_sums = SharedRows::new(log_sums, shape.heads);
    let lengths =
        AttentionLengths::new(shape, earlier.iter().map(|slice| slice_len(shape, slice)).sum());
    mask.check(shape, lengths.position(0));
    cpu.threads().run(shape.sequences * shape.kv_heads, |task| {
        let sequence = task / shape.kv_heads;
        let kv_head = task % shape.kv_heads;
        let group = shape.heads / shape.kv_heads;
        let row = sequence * shape.sequence_len;
        let job = AttentionForwardJob {
            set: cpu.instruction_set(),
            shape,
            mask: mask.of_sequence(sequence, shape.sequence_len),
            lengths,
            sequence,
            row,
            earlier,
            qkv,
            ahead: RowsAhead::new(shape, task + cpu.threads().count()),
        };
        with_head_scratch(shape, lengths, false, |scratch| {
            job.pack_keys_and_values(kv_head * group, scratch);
            for head in kv_head * group..(kv_head + 1) * group {
                for first in (0..shape.sequence_len).step_by(QUERIES) {
                    job.queries(head, first, scratch, &out, &log_sums);
                }
            }
        });
    });
}

/// The forward pass of one sequence.
struct AttentionForwardJob<'a> {
    set: InstructionSet,
    shape: AttentionShape,
    /// That of the sequence.
    mask: AttentionMask<'a>,
    lengths: AttentionLengths,
    sequence: usize,
    /// The sequence's first row.
    row: usize,
    earlier: &'a [&'a [f32]],
    qkv: &'a [f32],
    ahead: RowsAhead,
}

impl AttentionForwardJob<'_> {
    fn columns(&self, column: usize) -> StridedColumns<'_> {
        let stride = self.shape.qkv_width();
        StridedColumns::new(self.qkv, stride, self.row, column, self.shape.head_width)
    }

    fn pack_keys_and_values(&self, head: usize, scratch: &mut HeadScratch) {
        let at = HeadColumns::new(self.shape, head);
        let HeadScratch { rows, keys_as_columns, values, .. } = scratch;
        let keys = self.all_columns(at.key, rows);
        keys.pack_rows_as_columns(self.set, self.lengths.keys, keys_as_columns);
        self.all_columns(at.value, rows).pack_as_is(self.set, self.lengths.keys, values);
    }

    /// The columns of all slices up to this one, brought together in `to` if there are several.
    fn all_columns<'b>(&'b self, column: usize, to: &'b mut [f32]) -> StridedColumns<'b> {
        if self.earlier.is_empty() {
            return self.columns(column);
        }
        let head_width = self.shape.head_width;
        let mut rows = to.chunks_exact_mut(head_width);
        for slice in self.earlier.iter().chain([&self.qkv]) {
            let len = slice_len(self.shape, slice);
            let stride = self.shape.qkv_width();
            let from = StridedColumns::new(slice, stride, self.sequence * len, column, head_width);
            for (row, to) in (0..len).zip(&mut rows) {
                to.copy_from_slice(from.row(row));
            }
        }
        StridedColumns::new(to, head_width, 0, 0, head_width)
    }

    /// Up to [`QUERIES`] queries of one head.
    fn queries(
        &self,
        head: usize,
        first: usize,
        scratch: &mut HeadScratch,
        out: &SharedRows<'_>,
        log_sums: &SharedRows<'_>,
    ) {
        let AttentionShape { sequence_len, head_width, .. } = self.shape;
        let at = HeadColumns::new(self.shape, head);
        let rows = QUERIES.min(sequence_len - first);
        let position = self.lengths.position(first);
        let strip = &mut scratch.query_strip;
        self.columns(at.query).pack_strip(self.set, first, rows, strip);
        let start = key_start(self.mask, first);
        let limit = key_limit(position, self.lengths.keys);
        let qkv = PrefetchRange::rows(self.qkv, self.shape.qkv_width());
        let ahead = |column: fn(&HeadColumns) -> usize| self.ahead.strip(qkv, first, column);
        let prefetch = PrefetchRanges { first: ahead(|at| at.query), second: ahead(|at| at.key) };
        self.score(rows, start..limit, prefetch, scratch);
        let mut inverses = [0.0; QUERIES];
        for (row, inverse) in inverses.iter_mut().enumerate().take(rows) {
            let query_row = QueryRow {
                row,
                start,
                first: self.mask.first_key(first + row),
                visible: position + row + 1,
                limit,
                scale: softmax_scale(head_width),
            };
            let softmax = exponentiate(self.set, query_row, &mut scratch.scores);
            *inverse = 1.0 / softmax.sum;
            // SAFETY: this task alone has this sequence and head.
            let log_sum = unsafe { log_sums.piece(self.row + first + row, head, 1) };
            log_sum[0] = (f64::from(softmax.max) + libm::log(f64::from(softmax.sum))) as f32;
        }
        let row = self.row + first;
        let written = out.prefetch_range().part(row..row + rows, at.out, head_width);
        let prefetch = PrefetchRanges { first: ahead(|at| at.value), second: written };
        self.weigh_values(rows, start..position + rows, prefetch, scratch);
        for (row, sums) in scratch.sums.chunks_exact(head_width).take(rows).enumerate() {
            // SAFETY: as above.
            let to = unsafe { out.piece(self.row + first + row, at.out, head_width) };
            for (to, sum) in to.iter_mut().zip(sums) {
                *to = sum * inverses[row];
            }
        }
    }

    /// Scores of the packed queries with keys, in blocks of [`BLOCK_DEPTH`] of them.
    fn score(
        &self,
        rows: usize,
        keys: Range<usize>,
        mut prefetch: PrefetchRanges,
        scratch: &mut HeadScratch,
    ) {
        let width = self.shape.head_width;
        for KeyRange { block, skipped, len } in key_ranges(keys) {
            let key = block * BLOCK_DEPTH + skipped;
            let to = ProductStrip {
                floats: &mut scratch.scores[block * QUERIES * SCORE_STRIDE + skipped..],
                stride: SCORE_STRIDE,
                rows,
                columns: len - skipped,
                add: false,
            };
            let floats = &scratch.keys_as_columns[key * width..];
            let panels = Panels::of_floats(floats, width, 0);
            multiply_strip(self.set, width, &scratch.query_strip, panels, prefetch.take(), to);
        }
    }

    /// Weights times values, keys in order.
    fn weigh_values(
        &self,
        rows: usize,
        keys: Range<usize>,
        mut prefetch: PrefetchRanges,
        scratch: &mut HeadScratch,
    ) {
        let head_width = self.shape.head_width;
        if keys.start >= BLOCK_DEPTH {
            // The sums of the blocks that are skipped.
            scratch.sums[..rows * head_width].fill(0.0);
        }
        for KeyRange { block, skipped, len } in key_ranges(keys) {
            let key = block * BLOCK_DEPTH;
            let depth = len - skipped;
            let floats = &scratch.scores[block * QUERIES * SCORE_STRIDE + skipped..];
            let precision = Precision::F32;
            let weights = RowSource { floats, stride: SCORE_STRIDE, rows, depth, precision };
            pack_rows(self.set, weights, &mut scratch.weight_strip);
            let to = ProductStrip {
                floats: &mut scratch.sums,
                stride: head_width,
                rows,
                columns: head_width,
                add: block > 0,
            };
            let values = &scratch.values[key * padded(head_width)..];
            let value_rows = BLOCK_DEPTH.min(self.lengths.keys - key);
            let panels = Panels::of_floats(values, value_rows, skipped);
            let strip = &scratch.weight_strip;
            multiply_strip(self.set, depth, strip, panels, prefetch.take(), to);
        }
    }
}

/// One over the root of a head's width (Vaswani et al., arXiv 1706.03762, section 3.2.1).
pub(super) fn softmax_scale(head_width: usize) -> f32 {
    1.0 / (head_width as f32).sqrt()
}

/// The part of a block of keys that is not skipped.
struct KeyRange {
    block: usize,
    /// Keys at the beginning of the block that are.
    skipped: usize,
    /// The number of keys in the block, those included.
    len: usize,
}

/// The blocks that `keys` lie in, of which the first may not be whole.
fn key_ranges(keys: Range<usize>) -> impl Iterator<Item = KeyRange> {
    (keys.start / BLOCK_DEPTH..keys.end.div_ceil(BLOCK_DEPTH)).map(move |block| {
        let first = block * BLOCK_DEPTH;
        let skipped = keys.start.saturating_sub(first);
        KeyRange { block, skipped, len: BLOCK_DEPTH.min(keys.end - first) }
    })
}

/// A query among those whose scores lie together.
#[derive(Clone, Copy)]
struct QueryRow {
    row: usize,
    /// The first key that it has a score for.
    start: usize,
    /// The first key that it sees.
    first: usize,
    /// The end of the keys that the query sees.
    visible: usize,
    /// The end of those that it has scores for.
    limit: usize,
    scale: f32,
}

/// A row's largest scaled score and its sum of exponentials relative to it.
#[derive(Clone, Copy)]
struct SoftmaxRow {
    max: f32,
    sum: f32,
}

dispatch!(
    fn exponentiate(query_row: QueryRow, scores: &mut [f32]) -> SoftmaxRow = exponentiate_lanes
);

/// Scores of the keys a query sees to exponentials relative to the largest, the others to zero.
#[inline(always)]
fn exponentiate_lanes<L: Lanes>(query_row: QueryRow, scores: &mut [f32]) -> SoftmaxRow {
    let QueryRow { row, start, first, visible, limit, scale } = query_row;
    for KeyRange { block, skipped, len } in key_ranges(start..first) {
        let here = &mut scores[(block * QUERIES + row) * SCORE_STRIDE..];
        here[skipped..len].fill(f32::NEG_INFINITY);
    }
    let mut max = L::splat(f32::NEG_INFINITY);
    for KeyRange { block, skipped, len } in key_ranges(start..visible) {
        let here = &scores[(block * QUERIES + row) * SCORE_STRIDE..][..SCORE_STRIDE];
        for at in (skipped..len).step_by(LANES) {
            let seen = L::from_slice(&here[at..]).front(len - at, f32::NEG_INFINITY);
            max = max.max(seen);
        }
    }
    let max = max.max_lane();
    let mut sum = L::splat(0.0);
    for KeyRange { block, skipped, len: end } in key_ranges(start..limit) {
        let here = &mut scores[(block * QUERIES + row) * SCORE_STRIDE..][..SCORE_STRIDE];
        let len = end.min(visible.saturating_sub(block * BLOCK_DEPTH));
        for at in (skipped..len).step_by(LANES) {
            let seen = L::from_slice(&here[at..]).front(len - at, f32::NEG_INFINITY);
            let weight = exp(seen.sub(L::splat(max)).mul(L::splat(scale)));
            sum = sum.add(weight);
            weight.write_to(&mut here[at..]);
        }
        if len < end {
            here[len..end].fill(0.0);
        }
    }
    SoftmaxRow { max: max * scale, sum: sum.sum() }
}
