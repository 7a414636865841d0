//! Normalisation of rows, and its gradient.

use super::backend::CpuBackend;
use super::lanes::{LANES, Lanes, dispatch};
use crate::backend::{Norm, RowsShape};

/// Rows whose shares of the parameters' gradient are summed as one chain. Part of the
/// arithmetic's definition.
pub(super) const PARTIAL_ROWS: usize = 64;

/// A normalisation's weight and bias, `width` floats each.
#[derive(Clone, Copy)]
pub(super) struct NormParameters<'a> {
    pub(super) weight: &'a [f32],
    pub(super) bias: Option<&'a [f32]>,
}

pub(super) fn forward(
    cpu: &CpuBackend,
    norm: Norm,
    rows: RowsShape,
    parameters: NormParameters<'_>,
    x: &[f32],
    y: &mut [f32],
    statistics: &mut [f32],
) {
    let per_row = norm.statistics_per_row();
    assert_eq!(x.len(), rows.count * rows.width);
    assert_eq!(y.len(), x.len());
    assert_eq!(statistics.len(), rows.count * per_row);
    assert_eq!(parameters.weight.len(), rows.width);
    assert_eq!(parameters.bias.is_some(), norm.has_bias());
    let share = cpu.rows_per_task(rows.count);
    let pieces = x
        .chunks(share * rows.width)
        .zip(y.chunks_mut(share * rows.width))
        .zip(statistics.chunks_mut(share * per_row));
    cpu.threads().for_each(pieces.collect(), |((x, y), statistics)| {
        forward_rows(cpu.instruction_set(), norm, parameters, x, y, statistics);
    });
}

dispatch!(pub(super) fn forward_rows(
    norm: Norm, parameters: NormParameters<'_>, x: &[f32], y: &mut [f32], statistics: &mut [f32],
) = forward_rows_lanes);

#[inline(always)]
fn forward_rows_lanes<L: Lanes>(
    norm: Norm,
    parameters: NormParameters<'_>,
    x: &[f32],
    y: &mut [f32],
    statistics: &mut [f32],
) {
    let NormParameters { weight, bias } = parameters;
    let width = weight.len();
    let rows_statistics = statistics.chunks_exact_mut(norm.statistics_per_row());
    let rows = x.chunks_exact(width).zip(y.chunks_exact_mut(width)).zip(rows_statistics);
    for ((x, y), statistics) in rows {
        let (mean, inverse) = match norm {
            Norm::Layer { epsilon } => {
                let mean = row_sum::<L>(x) / width as f32;
                let inverse = 1.0 / (square_sum::<L>(x, mean) / width as f32 + epsilon).sqrt();
                statistics.copy_from_slice(&[mean, inverse]);
                (mean, inverse)
            }
            Norm::Rms { epsilon } => {
                let inverse = 1.0 / (square_sum::<L>(x, 0.0) / width as f32 + epsilon).sqrt();
                statistics[0] = inverse;
                (0.0, inverse)
            }
        };
        let mean = L::splat(mean);
        let inverse = L::splat(inverse);
        for at in (0..width).step_by(LANES) {
            let unit = L::load_at(x, at, 0.0).sub(mean).mul(inverse);
            let weight = L::load_at(weight, at, 0.0);
            let bias = match bias {
                Some(bias) => L::load_at(bias, at, 0.0),
                None => L::splat(0.0),
            };
            unit.mul_add(weight, bias).store_at(y, at);
        }
    }
}

#[inline(always)]
fn row_sum<L: Lanes>(x: &[f32]) -> f32 {
    let mut sum = L::splat(0.0);
    for at in (0..x.len()).step_by(LANES) {
        sum = sum.add(L::load_at(x, at, 0.0));
    }
    sum.sum()
}

#[inline(always)]
fn square_sum<L: Lanes>(x: &[f32], mean: f32) -> f32 {
    let mut sum = L::splat(0.0);
    for at in (0..x.len()).step_by(LANES) {
        let centred = L::load_at(x, at, mean).sub(L::splat(mean));
        sum = centred.mul_add(centred, sum);
    }
    sum.sum()
}

/// The operands of the gradient, for all rows or for a task's share of them.
pub(super) struct NormBackwardRows<'a> {
    pub(super) gradient: &'a [f32],
    pub(super) skip: Option<&'a [f32]>,
    pub(super) statistics: &'a [f32],
    pub(super) x_then_gradient: &'a mut [f32],
}

pub(super) fn backward_input(
    cpu: &CpuBackend,
    norm: Norm,
    rows: RowsShape,
    weight: &[f32],
    operands: NormBackwardRows<'_>,
    partials: &mut [f32],
) {
    let width = rows.width;
    let NormBackwardRows { gradient, skip, statistics, x_then_gradient } = operands;
    assert_eq!(gradient.len(), rows.count * width);
    assert!(skip.is_none_or(|skip| skip.len() == gradient.len()));
    assert_eq!(x_then_gradient.len(), gradient.len());
    assert_eq!(statistics.len(), rows.count * norm.statistics_per_row());
    assert_eq!(partials.len(), partials_len(norm, width));
    let mut sums = vec![0.0; rows.count.div_ceil(PARTIAL_ROWS) * partials.len()];
    let blocks = gradient
        .chunks(PARTIAL_ROWS * width)
        .zip(statistics.chunks(PARTIAL_ROWS * norm.statistics_per_row()))
        .zip(x_then_gradient.chunks_mut(PARTIAL_ROWS * width))
        .zip(sums.chunks_exact_mut(partials.len()))
        .enumerate();
    let tasks = blocks.map(|(block, (((gradient, statistics), x_then_gradient), sums))| {
        let start = block * PARTIAL_ROWS * width;
        let skip = skip.map(|skip| &skip[start..start + gradient.len()]);
        (NormBackwardRows { gradient, skip, statistics, x_then_gradient }, sums)
    });
    cpu.threads().for_each(tasks.collect(), |(operands, sums)| {
        backward_rows(cpu.instruction_set(), norm, weight, operands, sums);
    });
    add_blocks(&sums, partials);
}

/// Adds up the sums of blocks of rows, block by block.
pub(super) fn add_blocks(sums: &[f32], partials: &mut [f32]) {
    partials.fill(0.0);
    for block in sums.chunks_exact(partials.len()) {
        for (partial, sum) in partials.iter_mut().zip(block) {
            *partial += sum;
        }
    }
}

/// Floats of a microbatch's share of a normalisation's parameter gradients.
pub(super) fn partials_len(norm: Norm, width: usize) -> usize {
    if norm.has_bias() { 2 * width } else { width }
}

dispatch!(pub(super) fn backward_rows(
    norm: Norm, weight: &[f32], operands: NormBackwardRows<'_>, sums: &mut [f32],
) = backward_rows_lanes);

#[inline(always)]
fn backward_rows_lanes<L: Lanes>(
    norm: Norm,
    weight: &[f32],
    operands: NormBackwardRows<'_>,
    sums: &mut [f32],
) {
    let width = weight.len();
    let (weight_sums, bias_sums) = sums.split_at_mut(width);
    let statistics = operands.statistics.chunks_exact(norm.statistics_per_row());
    let rows = operands.gradient.chunks_exact(width).zip(statistics);
    for (row, (gradient, statistics)) in rows.enumerate() {
        let x = &mut operands.x_then_gradient[row * width..][..width];
        let skip = operands.skip.map(|skip| &skip[row * width..][..width]);
        let (mean, inverse) = match norm {
            Norm::Layer { .. } => (statistics[0], statistics[1]),
            Norm::Rms { .. } => (0.0, statistics[0]),
        };
        let moments = row_moments::<L>(weight, gradient, x, mean, inverse);
        let mean_gradient = if norm.has_bias() { moments.0 / width as f32 } else { 0.0 };
        let mean_product = moments.1 / width as f32;
        for at in (0..width).step_by(LANES) {
            let dy = L::load_at(gradient, at, 0.0);
            let unit = L::load_at(x, at, mean).sub(L::splat(mean)).mul(L::splat(inverse));
            let sum = L::load_at(weight_sums, at, 0.0);
            dy.mul_add(unit, sum).store_at(weight_sums, at);
            if norm.has_bias() {
                L::load_at(bias_sums, at, 0.0).add(dy).store_at(bias_sums, at);
            }
            let through = dy.mul(L::load_at(weight, at, 0.0)).sub(L::splat(mean_gradient));
            let through = unit.mul_add(L::splat(-mean_product), through);
            let skip = match skip {
                Some(skip) => L::load_at(skip, at, 0.0),
                None => L::splat(0.0),
            };
            through.mul_add(L::splat(inverse), skip).store_at(x, at);
        }
    }
}

/// Sums over a row of the weighted gradient, and of it times the normalised row.
#[inline(always)]
fn row_moments<L: Lanes>(
    weight: &[f32],
    gradient: &[f32],
    x: &[f32],
    mean: f32,
    inverse: f32,
) -> (f32, f32) {
    let mut sum = L::splat(0.0);
    let mut product = L::splat(0.0);
    for at in (0..x.len()).step_by(LANES) {
        let weighted = L::load_at(gradient, at, 0.0).mul(L::load_at(weight, at, 0.0));
        let unit = L::load_at(x, at, mean).sub(L::splat(mean)).mul(L::splat(inverse));
        sum = sum.add(weighted);
        product = weighted.mul_add(unit, product);
    }
    (sum.sum(), product.sum())
}
