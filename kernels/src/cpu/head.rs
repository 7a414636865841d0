//! The output head with its loss: logits, their softmax statistics, and the gradient.
//!
//! Logits are visited in blocks of [`super::matmul`]'s columns while they are in the first-level
//! cache: forwards for each row's running maximum and sum of exponentials, backwards when the
//! gradient replaces them on the way into the product.

use std::ops::Range;

use super::backend::CpuBackend;
use super::instruction_set::InstructionSet;
use super::lanes::{LANES, Lanes, dispatch};
use super::math::exp;
use super::matmul::{
    LeftRows, PackedMatrix, PrefetchRange, RowBlock, RowProduct, SumStorage, multiply_rows,
    with_scratch,
};
use crate::backend::{IGNORED_TARGET, LossScale};

/// A row's maximum and the sum of exponentials relative to it, so far.
#[derive(Clone, Copy)]
struct OnlineSoftmax {
    max: f32,
    sum: f32,
}

pub(super) fn forward(
    cpu: &CpuBackend,
    x: &[f32],
    matrix: &PackedMatrix,
    targets: &[u32],
    logits: &mut [f32],
    log_sums: &mut [f32],
) -> f64 {
    let inputs = matrix.depth();
    let vocabulary = matrix.columns();
    let rows = targets.len();
    assert_eq!(x.len(), rows * inputs);
    assert_eq!(logits.len(), rows * vocabulary);
    assert_eq!(log_sums.len(), rows);
    let mut losses = vec![0.0f64; rows];
    let share = cpu.rows_per_thread(rows);
    let pieces = x
        .chunks(share * inputs)
        .zip(targets.chunks(share))
        .zip(logits.chunks_mut(share * vocabulary))
        .zip(log_sums.chunks_mut(share))
        .zip(losses.chunks_mut(share));
    cpu.threads().for_each(pieces.collect(), |((((x, targets), logits), log_sums), losses)| {
        let set = cpu.instruction_set();
        let mut running = vec![OnlineSoftmax { max: f32::NEG_INFINITY, sum: 0.0 }; targets.len()];
        with_scratch(|scratch| {
            let finish = |row: usize, _: &Range<usize>, logits: &mut [f32]| {
                running[row] = extend(set, running[row], logits);
            };
            let finish_reads = PrefetchRange::NOTHING;
            let factors =
                RowProduct { set, row_count: targets.len(), left: x, matrix, finish_reads };
            let strip = scratch.strips.as_mut_slice();
            multiply_rows(factors, strip, SumStorage::Result(logits), finish);
        });
        for (row, OnlineSoftmax { max, sum }) in running.into_iter().enumerate() {
            let log_sum = f64::from(max) + libm::log(f64::from(sum));
            log_sums[row] = log_sum as f32;
            if targets[row] != IGNORED_TARGET {
                let logit = logits[row * vocabulary + targets[row] as usize];
                losses[row] = log_sum - f64::from(logit);
            }
        }
    });
    losses.iter().sum()
}

dispatch!(fn extend(running: OnlineSoftmax, logits: &[f32]) -> OnlineSoftmax = extend_lanes);

#[inline(always)]
fn extend_lanes<L: Lanes>(running: OnlineSoftmax, logits: &[f32]) -> OnlineSoftmax {
    let mut max = L::splat(running.max);
    for at in (0..logits.len()).step_by(LANES) {
        max = max.max(L::load_at(logits, at, f32::NEG_INFINITY));
    }
    let max = max.max_lane();
    let mut sum = L::splat(0.0);
    for at in (0..logits.len()).step_by(LANES) {
        sum = sum.add(exp(L::load_at(logits, at, f32::NEG_INFINITY).sub(L::splat(max))));
    }
    let rescale = exp(L::splat(running.max - max)).to_array()[0];
    OnlineSoftmax { max, sum: running.sum * rescale + sum.sum() }
}

/// What one task of the backward pass may touch.
struct BackwardTask<'a> {
    targets: &'a [u32],
    log_sums: &'a [f32],
    logits_then_gradient: &'a mut [f32],
    gradient: &'a mut [f32],
}

pub(super) fn backward_input(
    cpu: &CpuBackend,
    targets: &[u32],
    scale: LossScale,
    log_sums: &[f32],
    matrix: &PackedMatrix,
    logits_then_gradient: &mut [f32],
    gradient: &mut [f32],
) {
    let vocabulary = matrix.depth();
    let inputs = matrix.columns();
    let rows = targets.len();
    assert_eq!(log_sums.len(), rows);
    assert_eq!(logits_then_gradient.len(), rows * vocabulary);
    assert_eq!(gradient.len(), rows * inputs);
    let share = cpu.rows_per_thread(rows);
    let pieces = targets
        .chunks(share)
        .zip(log_sums.chunks(share))
        .zip(logits_then_gradient.chunks_mut(share * vocabulary))
        .zip(gradient.chunks_mut(share * inputs))
        .map(|(((targets, log_sums), logits_then_gradient), gradient)| BackwardTask {
            targets,
            log_sums,
            logits_then_gradient,
            gradient,
        });
    cpu.threads().for_each(pieces.collect(), |task| {
        backward_task(cpu.instruction_set(), scale, matrix, task);
    });
}

/// Logits that become their gradient when a block of them is visited for the first time.
struct SoftmaxGradient<'a> {
    set: InstructionSet,
    scale: LossScale,
    targets: &'a [u32],
    log_sums: &'a [f32],
    vocabulary: usize,
    logits_then_gradient: &'a mut [f32],
}

impl LeftRows for SoftmaxGradient<'_> {
    fn rows(&mut self, block: &RowBlock, is_first_visit: bool) -> &[f32] {
        if is_first_visit {
            for row in block.rows.clone() {
                let start = row * self.vocabulary;
                let here = &mut self.logits_then_gradient[start..][block.columns.clone()];
                if self.targets[row] == IGNORED_TARGET {
                    here.fill(0.0);
                    continue;
                }
                let log_sum = self.log_sums[row];
                to_probabilities(self.set, log_sum, self.scale.of_probabilities(log_sum), here);
                let target = self.targets[row] as usize;
                if block.columns.contains(&target) {
                    here[target - block.columns.start] -= self.scale.cross_entropy;
                }
            }
        }
        self.logits_then_gradient
    }
}

fn backward_task(
    set: InstructionSet,
    scale: LossScale,
    matrix: &PackedMatrix,
    task: BackwardTask<'_>,
) {
    let BackwardTask { targets, log_sums, logits_then_gradient, gradient } = task;
    let vocabulary = matrix.depth();
    let left = SoftmaxGradient { set, scale, targets, log_sums, vocabulary, logits_then_gradient };
    with_scratch(|scratch| {
        let finish_reads = PrefetchRange::NOTHING;
        let factors = RowProduct { set, row_count: targets.len(), left, matrix, finish_reads };
        let strip = scratch.strips.as_mut_slice();
        multiply_rows(factors, strip, SumStorage::Result(gradient), |_, _, _| {});
    });
}

dispatch!(
    fn to_probabilities(log_sum: f32, scale: f32, logits: &mut [f32]) = to_probabilities_lanes
);

/// Logits to probabilities, times `scale`.
#[inline(always)]
fn to_probabilities_lanes<L: Lanes>(log_sum: f32, scale: f32, logits: &mut [f32]) {
    for at in (0..logits.len()).step_by(LANES) {
        let probability = exp(L::load_at(logits, at, 0.0).sub(L::splat(log_sum)));
        probability.mul(L::splat(scale)).store_at(logits, at);
    }
}
