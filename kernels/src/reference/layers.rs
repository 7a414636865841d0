//! Embedding, normalisation, linear layers and activations.

use std::ops::Range;

use crate::backend::{AttentionShape, MatrixShape, Norm, RowPositions, RowsShape};

/// Token rows, plus position rows if there are any.
#[must_use]
pub fn embed_forward(
    positions: RowPositions<'_>,
    width: usize,
    tokens: &[u32],
    token_table: &[f64],
    position_table: Option<&[f64]>,
) -> Vec<f64> {
    let mut out = Vec::with_capacity(tokens.len() * width);
    for (row, token) in tokens.iter().enumerate() {
        for column in 0..width {
            let position =
                position_table.map_or(0.0, |table| table[positions.of(row) * width + column]);
            out.push(token_table[*token as usize * width + column] + position);
        }
    }
    out
}

/// The gradients of the token table and of the position table, which have so many rows.
#[must_use]
pub fn embed_backward(
    positions: RowPositions<'_>,
    width: usize,
    (vocabulary, position_count): (usize, usize),
    tokens: &[u32],
    gradient: &[f64],
) -> (Vec<f64>, Vec<f64>) {
    let mut token_table = vec![0.0; vocabulary * width];
    let mut position_table = vec![0.0; position_count * width];
    for (row, token) in tokens.iter().enumerate() {
        for column in 0..width {
            let x = gradient[row * width + column];
            token_table[*token as usize * width + column] += x;
            position_table[positions.of(row) * width + column] += x;
        }
    }
    (token_table, position_table)
}

/// Mean (zero for RMS) and inverse deviation of a row.
fn statistics(norm: Norm, x: &[f64]) -> (f64, f64) {
    let width = x.len() as f64;
    let (mean, epsilon) = match norm {
        Norm::Layer { epsilon } => (x.iter().sum::<f64>() / width, epsilon),
        Norm::Rms { epsilon } => (0.0, epsilon),
    };
    let square = x.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / width;
    (mean, 1.0 / (square + f64::from(epsilon)).sqrt())
}

/// Normalises each row of `x`, then applies weight and bias.
#[must_use]
pub fn norm_forward(
    norm: Norm,
    rows: RowsShape,
    x: &[f64],
    weight: &[f64],
    bias: Option<&[f64]>,
) -> Vec<f64> {
    let mut y = Vec::with_capacity(x.len());
    for x in x.chunks_exact(rows.width) {
        let (mean, inverse) = statistics(norm, x);
        for (column, x) in x.iter().enumerate() {
            let bias = bias.map_or(0.0, |bias| bias[column]);
            y.push((x - mean) * inverse * weight[column] + bias);
        }
    }
    y
}

/// The gradients that a normalisation's backward pass computes.
pub struct NormGradients {
    /// Gradient of its input, without any residual stream.
    pub x: Vec<f64>,
    /// Gradient of its weight.
    pub weight: Vec<f64>,
    /// Gradient of its bias.
    pub bias: Vec<f64>,
}

/// The gradients of a normalisation.
#[must_use]
pub fn norm_backward(
    norm: Norm,
    rows: RowsShape,
    x: &[f64],
    weight: &[f64],
    gradient: &[f64],
) -> NormGradients {
    let width = rows.width;
    let mut result =
        NormGradients { x: Vec::new(), weight: vec![0.0; width], bias: vec![0.0; width] };
    for (x, dy) in x.chunks_exact(width).zip(gradient.chunks_exact(width)) {
        let (mean, inverse) = statistics(norm, x);
        let unit: Vec<f64> = x.iter().map(|x| (x - mean) * inverse).collect();
        let weighted: Vec<f64> = dy.iter().zip(weight).map(|(dy, w)| dy * w).collect();
        let mean_gradient = match norm {
            Norm::Layer { .. } => weighted.iter().sum::<f64>() / width as f64,
            Norm::Rms { .. } => 0.0,
        };
        let product: f64 = weighted.iter().zip(&unit).map(|(a, b)| a * b).sum();
        let mean_product = product / width as f64;
        for column in 0..width {
            result.weight[column] += dy[column] * unit[column];
            result.bias[column] += dy[column];
            let through = weighted[column] - mean_gradient - unit[column] * mean_product;
            result.x.push(through * inverse);
        }
    }
    result
}

/// Calls `visit` with the range of each head of queries and keys in a row of queries, keys and values,
/// and with that of its weight.
fn each_head(shape: AttentionShape, mut visit: impl FnMut(Range<usize>, Range<usize>)) {
    let width = shape.head_width;
    for row in 0..shape.rows() {
        for head in 0..shape.qk_heads() {
            let start = row * shape.qkv_width() + head * width;
            let of_keys = if head < shape.heads { 0 } else { width };
            visit(start..start + width, of_keys..of_keys + width);
        }
    }
}

/// Normalises each head of queries and keys, those of queries by the first half of `weights`.
#[must_use]
pub fn qk_norm_forward(
    norm: Norm,
    shape: AttentionShape,
    qkv: &[f64],
    weights: &[f64],
) -> Vec<f64> {
    let mut result = qkv.to_vec();
    let one = RowsShape { count: 1, width: shape.head_width };
    each_head(shape, |head, weight| {
        let normed = norm_forward(norm, one, &qkv[head.clone()], &weights[weight], None);
        result[head].copy_from_slice(&normed);
    });
    result
}

/// The gradients of queries, keys and values, and of the weights.
#[must_use]
pub fn qk_norm_backward(
    norm: Norm,
    shape: AttentionShape,
    qkv: &[f64],
    weights: &[f64],
    gradient: &[f64],
) -> (Vec<f64>, Vec<f64>) {
    let mut result = gradient.to_vec();
    let mut of_weights = vec![0.0; weights.len()];
    let one = RowsShape { count: 1, width: shape.head_width };
    each_head(shape, |head, weight| {
        let dy = &gradient[head.clone()];
        let back = norm_backward(norm, one, &qkv[head.clone()], &weights[weight.clone()], dy);
        result[head].copy_from_slice(&back.x);
        for (sum, x) in of_weights[weight].iter_mut().zip(&back.weight) {
            *sum += x;
        }
    });
    (result, of_weights)
}

/// `x * matrix^T + bias`.
#[must_use]
pub fn linear_forward(
    shape: MatrixShape,
    x: &[f64],
    matrix: &[f64],
    bias: Option<&[f64]>,
) -> Vec<f64> {
    let mut y = Vec::new();
    for x in x.chunks_exact(shape.inputs) {
        for (output, row) in matrix.chunks_exact(shape.inputs).enumerate() {
            let product: f64 = x.iter().zip(row).map(|(x, w)| x * w).sum();
            y.push(product + bias.map_or(0.0, |bias| bias[output]));
        }
    }
    y
}

/// The gradient of the input: `gradient * matrix`.
#[must_use]
pub fn linear_backward_input(shape: MatrixShape, matrix: &[f64], gradient: &[f64]) -> Vec<f64> {
    let mut result = Vec::new();
    for dy in gradient.chunks_exact(shape.outputs) {
        for input in 0..shape.inputs {
            let terms = dy.iter().enumerate().map(|(o, dy)| dy * matrix[o * shape.inputs + input]);
            result.push(terms.sum());
        }
    }
    result
}

/// `gradient^T * x`, and the column sums of `gradient`.
#[must_use]
pub fn linear_backward_weights(
    shape: MatrixShape,
    x: &[f64],
    gradient: &[f64],
) -> (Vec<f64>, Vec<f64>) {
    let mut weight = vec![0.0; shape.outputs * shape.inputs];
    let mut bias = vec![0.0; shape.outputs];
    for (x, dy) in x.chunks_exact(shape.inputs).zip(gradient.chunks_exact(shape.outputs)) {
        for (output, dy) in dy.iter().enumerate() {
            bias[output] += dy;
            for (input, x) in x.iter().enumerate() {
                weight[output * shape.inputs + input] += dy * x;
            }
        }
    }
    (weight, bias)
}

/// GELU in its tanh form.
#[must_use]
pub fn gelu(x: f64) -> f64 {
    0.5 * x * (1.0 + libm::tanh(gelu_inner(x)))
}

fn gelu_inner(x: f64) -> f64 {
    (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x * x * x)
}

/// The derivative of [`gelu`].
#[must_use]
pub fn gelu_slope(x: f64) -> f64 {
    let t = libm::tanh(gelu_inner(x));
    let inner_slope = (2.0 / std::f64::consts::PI).sqrt() * (1.0 + 3.0 * 0.044_715 * x * x);
    0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * inner_slope
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + libm::exp(-x))
}

/// SwiGLU: `silu(gate) * up`.
#[must_use]
pub fn swiglu_forward(rows: RowsShape, gate_up: &[f64]) -> Vec<f64> {
    let mut h = Vec::new();
    for row in gate_up.chunks_exact(2 * rows.width) {
        let (gate, up) = row.split_at(rows.width);
        h.extend(gate.iter().zip(up).map(|(g, u)| g * sigmoid(*g) * u));
    }
    h
}

/// The gradients of gate and up, side by side.
#[must_use]
pub fn swiglu_backward(rows: RowsShape, gate_up: &[f64], gradient: &[f64]) -> Vec<f64> {
    let mut result = Vec::new();
    for (row, dh) in gate_up.chunks_exact(2 * rows.width).zip(gradient.chunks_exact(rows.width)) {
        let (gate, up) = row.split_at(rows.width);
        for ((g, u), dh) in gate.iter().zip(up).zip(dh) {
            let s = sigmoid(*g);
            result.push(dh * u * s * (1.0 + g * (1.0 - s)));
        }
        result.extend(gate.iter().zip(dh).map(|(g, dh)| dh * g * sigmoid(*g)));
    }
    result
}
