//! Low-rank adapters of a matrix.

use super::layers::{linear_backward_input, linear_backward_weights, linear_forward};
use crate::backend::MatrixShape;

/// `base + scale * b * a`: `a` has `rank` rows, `b` as many columns.
#[must_use]
pub fn adapted_matrix(
    MatrixShape { outputs, inputs }: MatrixShape,
    rank: usize,
    scale: f64,
    base: &[f64],
    [a, b]: [&[f64]; 2],
) -> Vec<f64> {
    let element = |at: usize| {
        let term = |k: usize| b[at / inputs * rank + k] * a[k * inputs + at % inputs];
        base[at] + scale * (0..rank).map(term).sum::<f64>()
    };
    (0..outputs * inputs).map(element).collect()
}

/// The gradients of `a` and of `b`, where `gradient` is that of the product's result:
/// `scale * (gradient * b)^T * x` and `scale * gradient^T * (x * a^T)`.
#[must_use]
pub fn adapter_gradients(
    MatrixShape { outputs, inputs }: MatrixShape,
    rank: usize,
    scale: f64,
    [a, b]: [&[f64]; 2],
    x: &[f64],
    gradient: &[f64],
) -> [Vec<f64>; 2] {
    let thin = MatrixShape { outputs: rank, inputs };
    let wide = MatrixShape { outputs, inputs: rank };
    let gradient: Vec<f64> = gradient.iter().map(|x| scale * x).collect();
    let through = linear_backward_input(wide, b, &gradient);
    let (of_a, _) = linear_backward_weights(thin, x, &through);
    let narrow = linear_forward(thin, x, a, None);
    let (of_b, _) = linear_backward_weights(wide, &narrow, &gradient);
    [of_a, of_b]
}
