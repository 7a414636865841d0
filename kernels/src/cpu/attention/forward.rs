//! The forward pass of attention.

use super::super::backend::CpuBackend;
use super::super::lanes::{LANES, Lanes, dispatch};
use super::super::math::exp;
use super::super::matmul::{Ahead, BLOCK_DEPTH, Left, PANEL, Product, TILE_STRIDE, tile_rows};
use super::super::shared::SharedRows;
use super::heads::{Columns, HeadColumns, HeadScratch, with_head_scratch};
use super::{STRIP, key_limit};
use crate::backend::AttentionShape;

pub(in super::super) fn forward(
    cpu: &CpuBackend,
    shape: AttentionShape,
    qkv: &[f32],
    out: &mut [f32],
    log_sums: &mut [f32],
) {
    assert_eq!(qkv.len(), shape.rows() * shape.qkv_width());
    assert_eq!(out.len(), shape.rows() * shape.query_width());
    assert_eq!(log_sums.len(), shape.rows() * shape.heads);
    let out = SharedRows::new(out, shape.query_width());
    let log_sums = SharedRows::new(log_sums, shape.heads);
    cpu.threads().run(shape.sequences * shape.kv_heads, |task| {
        let (sequence, kv_head) = (task / shape.kv_heads, task % shape.kv_heads);
        let group = shape.heads / shape.kv_heads;
        with_head_scratch(shape, false, |scratch| {
            let job = Job { cpu, shape, row: sequence * shape.sequence_len, qkv };
            job.pack_keys_and_values(kv_head * group, scratch);
            for head in kv_head * group..(kv_head + 1) * group {
                job.head(head, scratch, &out, &log_sums);
            }
        });
    });
}

/// One sequence.
struct Job<'a> {
    cpu: &'a CpuBackend,
    shape: AttentionShape,
    /// Its first row.
    row: usize,
    qkv: &'a [f32],
}

impl Job<'_> {
    fn columns(&self, column: usize) -> Columns<'_> {
        let stride = self.shape.qkv_width();
        Columns::new(self.qkv, stride, self.row, column, self.shape.head_width)
    }

    fn pack_keys_and_values(&self, head: usize, scratch: &mut HeadScratch) {
        let at = HeadColumns::new(self.shape, head);
        let len = self.shape.sequence_len;
        self.columns(at.key).pack_rows_as_columns(
            self.cpu.instruction_set(),
            len,
            &mut scratch.keys_as_columns,
        );
        self.columns(at.value).pack_as_is(self.cpu.instruction_set(), len, &mut scratch.values);
    }

    fn head(
        &self,
        head: usize,
        scratch: &mut HeadScratch,
        out: &SharedRows<'_>,
        log_sums: &SharedRows<'_>,
    ) {
        let AttentionShape { sequence_len, head_width, .. } = self.shape;
        let at = HeadColumns::new(self.shape, head);
        let queries = self.columns(at.query);
        for first in (0..sequence_len).step_by(STRIP) {
            let rows = STRIP.min(sequence_len - first);
            let scale = softmax_scale(head_width);
            queries.copy_scaled(first, rows, scale, &mut scratch.query_strip);
            self.score(first, rows, scratch);
            let limit = key_limit(first, sequence_len);
            let set = self.cpu.instruction_set();
            let mut inverses = [0.0; STRIP];
            for (row, inverse) in inverses.iter_mut().enumerate().take(rows) {
                let kept = soften(set, first + row + 1, limit, row, &mut scratch.score_strip);
                *inverse = 1.0 / kept.sum;
                // SAFETY: this task alone has this sequence and head.
                let log_sum = unsafe { log_sums.piece(self.row + first + row, head, 1) };
                log_sum[0] = (f64::from(kept.max) + libm::log(f64::from(kept.sum))) as f32;
            }
            let mut sums = vec![0.0; rows * head_width];
            self.weigh_values(rows, limit.min(sequence_len), scratch, &mut sums);
            for (row, sums) in sums.chunks_exact(head_width).enumerate() {
                // SAFETY: as above.
                let to = unsafe { out.piece(self.row + first + row, at.out, head_width) };
                for (to, sum) in to.iter_mut().zip(sums) {
                    *to = sum * inverses[row];
                }
            }
        }
    }

    /// Scores of a strip against all keys it may see, in blocks of [`BLOCK_DEPTH`] keys.
    fn score(&self, first: usize, rows: usize, scratch: &mut HeadScratch) {
        let width = self.shape.head_width;
        let limit = key_limit(first, self.shape.sequence_len);
        for (block, key) in (0..limit).step_by(BLOCK_DEPTH).enumerate() {
            let to = Product {
                floats: &mut scratch.score_strip[block * STRIP * TILE_STRIDE..],
                stride: TILE_STRIDE,
                columns: BLOCK_DEPTH.min(limit - key),
                add: false,
            };
            let panels = &scratch.keys_as_columns[key * width..];
            let left = Left::Rows(&scratch.query_strip);
            tile_rows(self.cpu.instruction_set(), rows, width, left, panels, Ahead::NOTHING, to);
        }
    }

    /// Weights times values, keys in order.
    fn weigh_values(&self, rows: usize, keys: usize, scratch: &HeadScratch, sums: &mut [f32]) {
        let width = self.shape.head_width;
        let padded = width.next_multiple_of(PANEL);
        for (block, key) in (0..keys).step_by(BLOCK_DEPTH).enumerate() {
            let depth = BLOCK_DEPTH.min(keys - key);
            // Panels of a block are as deep as the block holds keys of the whole sequence.
            let block_depth = BLOCK_DEPTH.min(self.shape.sequence_len - key);
            let left = Left::Rows(&scratch.score_strip[block * STRIP * TILE_STRIDE..]);
            for panel in (0..padded).step_by(PANEL) {
                let to = Product {
                    floats: &mut sums[panel..],
                    stride: width,
                    columns: PANEL.min(width - panel),
                    add: block > 0,
                };
                let panels = &scratch.values[key * padded + panel * block_depth..];
                tile_rows(
                    self.cpu.instruction_set(),
                    rows,
                    depth,
                    left,
                    panels,
                    Ahead::NOTHING,
                    to,
                );
            }
        }
    }
}

/// One over the root of a head's width (Vaswani et al., arXiv 1706.03762, section 3.2.1).
pub(super) fn softmax_scale(head_width: usize) -> f32 {
    1.0 / (head_width as f32).sqrt()
}

/// A row's largest score and its sum of exponentials relative to it.
#[derive(Clone, Copy)]
struct Softened {
    max: f32,
    sum: f32,
}

dispatch!(fn soften(
    visible: usize, limit: usize, row: usize, scores: &mut [f32],
) -> Softened = soften_lanes);

/// Row `row` of a strip: scores of the first `visible` keys to exponentials relative to the
/// largest, the rest up to `limit` to zero.
#[inline(always)]
fn soften_lanes<L: Lanes>(
    visible: usize,
    limit: usize,
    row: usize,
    scores: &mut [f32],
) -> Softened {
    let mut max = L::splat(f32::NEG_INFINITY);
    for (block, first) in (0..visible).step_by(BLOCK_DEPTH).enumerate() {
        let len = BLOCK_DEPTH.min(visible - first);
        let seen = &scores[(block * STRIP + row) * TILE_STRIDE..][..len];
        for at in (0..len).step_by(LANES) {
            max = max.max(L::load_at(seen, at, f32::NEG_INFINITY));
        }
    }
    let max = max.max_lane();
    let mut sum = L::splat(0.0);
    for (block, first) in (0..limit).step_by(BLOCK_DEPTH).enumerate() {
        let here = &mut scores[(block * STRIP + row) * TILE_STRIDE..];
        let len = BLOCK_DEPTH.min(visible.saturating_sub(first));
        for at in (0..len).step_by(LANES) {
            let seen = L::load_at(&here[..len], at, f32::NEG_INFINITY);
            let weight = exp(seen.sub(L::splat(max)));
            sum = sum.add(weight);
            weight.write_to(&mut here[at..]);
        }
        let end = BLOCK_DEPTH.min(limit - first);
        if len < end {
            here[len..end].fill(0.0);
        }
    }
    Softened { max, sum: sum.sum() }
}
