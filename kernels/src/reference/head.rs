//! The output head with its loss.

use super::layers::{linear_backward_input, linear_backward_weights, linear_forward};
use crate::backend::{IGNORED_TARGET, MatrixShape};

/// The results of the head's forward pass.
pub struct HeadResult {
    /// The logits, `rows` by `outputs`.
    pub logits: Vec<f64>,
    /// The logarithm of each row's sum of exponentials.
    pub log_sums: Vec<f64>,
    /// The sum of cross-entropies over rows with a target that counts, in nats.
    pub loss: f64,
    /// The sum of squared log sums over the same rows: z-loss, before its weight.
    pub square_log_sum: f64,
}

/// The logits, their sums, and the loss of the head's forward pass.
#[must_use]
pub fn head_forward(shape: MatrixShape, x: &[f64], matrix: &[f64], targets: &[u32]) -> HeadResult {
    let logits = linear_forward(shape, x, matrix, None);
    let mut log_sums = Vec::new();
    let mut loss = 0.0;
    let mut square_log_sum = 0.0;
    for (row, target) in logits.chunks_exact(shape.outputs).zip(targets) {
        let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = row.iter().map(|logit| libm::exp(logit - max)).sum();
        let log_sum = max + libm::log(sum);
        if *target != IGNORED_TARGET {
            loss += log_sum - row[*target as usize];
            square_log_sum += log_sum * log_sum;
        }
        log_sums.push(log_sum);
    }
    HeadResult { logits, log_sums, loss, square_log_sum }
}

/// The gradients that the head's backward pass computes.
pub struct HeadGradients {
    /// Gradient of the logits, `rows` by `outputs`.
    pub logits: Vec<f64>,
    /// Gradient of the input, `rows` by `inputs`.
    pub x: Vec<f64>,
    /// Gradient of the matrix, `outputs` by `inputs`.
    pub matrix: Vec<f64>,
}

/// The gradients of `scale` times the loss plus `z_scale` times the sum of squared log sums
/// (Chowdhery et al., arXiv 2204.02311, section 5).
#[must_use]
pub fn head_backward(
    shape: MatrixShape,
    x: &[f64],
    matrix: &[f64],
    targets: &[u32],
    [scale, z_scale]: [f64; 2],
) -> HeadGradients {
    let HeadResult { mut logits, log_sums, .. } = head_forward(shape, x, matrix, targets);
    let rows = logits.chunks_exact_mut(shape.outputs).zip(targets).zip(&log_sums);
    for ((row, target), log_sum) in rows {
        if *target == IGNORED_TARGET {
            row.fill(0.0);
            continue;
        }
        let weight = scale + 2.0 * z_scale * log_sum;
        row.iter_mut().for_each(|logit| *logit = libm::exp(*logit - log_sum) * weight);
        row[*target as usize] -= scale;
    }
    let (weights, _) = linear_backward_weights(shape, x, &logits);
    let x = linear_backward_input(shape, matrix, &logits);
    HeadGradients { logits, x, matrix: weights }
}
