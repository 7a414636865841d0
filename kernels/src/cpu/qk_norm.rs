//! QK-norm: normalisation of each head of queries and keys.
//!
//! A head is a row as `norm.rs` has it, and heads of one token lie side by side: so the arithmetic is
//! that of rows. Shares of the weights' gradient are chains of the heads of so many tokens, token by
//! token.

use super::backend::CpuBackend;
use super::norm::{
    NormBackwardRows, NormParameters, PARTIAL_ROWS, add_blocks, backward_rows, forward_rows,
};
use crate::backend::{AttentionShape, Norm};

fn check(shape: AttentionShape, norm: Norm, weights: &[f32], qkv: &[f32], before: &[f32]) {
    assert!(!norm.has_bias(), "heads are normalised without a bias");
    assert_eq!(weights.len(), 2 * shape.head_width);
    assert_eq!(qkv.len(), shape.rows() * shape.qkv_width());
    assert_eq!(before.len(), shape.rows() * shape.qk_width());
}

pub(super) fn forward(
    cpu: &CpuBackend,
    norm: Norm,
    shape: AttentionShape,
    weights: &[f32],
    qkv: &mut [f32],
    before: &mut [f32],
    statistics: &mut [f32],
) {
    check(shape, norm, weights, qkv, before);
    assert_eq!(statistics.len(), shape.rows() * shape.qk_heads());
    let share = cpu.rows_per_task(shape.rows());
    let pieces = qkv
        .chunks_mut(share * shape.qkv_width())
        .zip(before.chunks_mut(share * shape.qk_width()))
        .zip(statistics.chunks_mut(share * shape.qk_heads()));
    let (of_queries, of_keys) = weights.split_at(shape.head_width);
    cpu.threads().for_each(pieces.collect(), |((qkv, before), statistics)| {
        let rows = qkv
            .chunks_exact_mut(shape.qkv_width())
            .zip(before.chunks_exact_mut(shape.qk_width()))
            .zip(statistics.chunks_exact_mut(shape.qk_heads()));
        for ((qkv, before), statistics) in rows {
            let normed = &mut qkv[..before.len()];
            before.copy_from_slice(normed);
            let (queries, keys) = before.split_at(shape.query_width());
            let (normed_queries, normed_keys) = normed.split_at_mut(shape.query_width());
            let (query_statistics, key_statistics) = statistics.split_at_mut(shape.heads);
            let run = |weight, x: &[f32], y: &mut [f32], statistics: &mut [f32]| {
                let parameters = NormParameters { weight, bias: None };
                forward_rows(cpu.instruction_set(), norm, parameters, x, y, statistics);
            };
            run(of_queries, queries, normed_queries, query_statistics);
            run(of_keys, keys, normed_keys, key_statistics);
        }
    });
}

/// The operands of the gradient, for all rows or for a task's share of them.
pub(super) struct QkNormBackwardRows<'a> {
    pub(super) statistics: &'a [f32],
    pub(super) before: &'a mut [f32],
    pub(super) gradient: &'a mut [f32],
}

pub(super) fn backward_input(
    cpu: &CpuBackend,
    norm: Norm,
    shape: AttentionShape,
    weights: &[f32],
    operands: QkNormBackwardRows<'_>,
    partials: &mut [f32],
) {
    let QkNormBackwardRows { statistics, before, gradient } = operands;
    check(shape, norm, weights, gradient, before);
    assert_eq!(statistics.len(), shape.rows() * shape.qk_heads());
    assert_eq!(partials.len(), weights.len());
    let mut sums = vec![0.0; shape.rows().div_ceil(PARTIAL_ROWS) * partials.len()];
    let blocks = statistics
        .chunks(PARTIAL_ROWS * shape.qk_heads())
        .zip(before.chunks_mut(PARTIAL_ROWS * shape.qk_width()))
        .zip(gradient.chunks_mut(PARTIAL_ROWS * shape.qkv_width()))
        .map(|((statistics, before), gradient)| QkNormBackwardRows { statistics, before, gradient })
        .zip(sums.chunks_exact_mut(partials.len()));
    cpu.threads().for_each(blocks.collect(), |(rows, sums)| {
        backward_block(cpu, norm, shape, weights, rows, sums);
    });
    add_blocks(&sums, partials);
}

fn backward_block(
    cpu: &CpuBackend,
    norm: Norm,
    shape: AttentionShape,
    weights: &[f32],
    rows: QkNormBackwardRows<'_>,
    sums: &mut [f32],
) {
    let (of_queries, of_keys) = weights.split_at(shape.head_width);
    let (query_sums, key_sums) = sums.split_at_mut(shape.head_width);
    let width = shape.query_width();
    let rows = { rows.statistics.chunks_exact(shape.qk_heads()) }
        .zip(rows.before.chunks_exact_mut(shape.qk_width()))
        .zip(rows.gradient.chunks_exact_mut(shape.qkv_width()));
    for ((statistics, before), gradient) in rows {
        let gradient = &mut gradient[..before.len()];
        let (queries, keys) = before.split_at_mut(width);
        let (query_statistics, key_statistics) = statistics.split_at(shape.heads);
        let run = |weight, gradient, statistics, x_then_gradient, sums: &mut [f32]| {
            let operands = NormBackwardRows { gradient, skip: None, statistics, x_then_gradient };
            backward_rows(cpu.instruction_set(), norm, weight, operands, sums);
        };
        run(of_queries, &gradient[..width], query_statistics, queries, query_sums);
        run(of_keys, &gradient[width..], key_statistics, keys, key_sums);
        gradient.copy_from_slice(before);
    }
}
