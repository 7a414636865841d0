//! Causal attention and rotary embedding.

use crate::backend::{AttentionMask, AttentionShape, RotaryDirection};

/// Offsets of a query head's pieces in a row of queries, keys and values.
fn offsets(shape: AttentionShape, head: usize) -> (usize, usize, usize) {
    let kv_head = head / (shape.heads / shape.kv_heads);
    let key = shape.query_width() + kv_head * shape.head_width;
    (head * shape.head_width, key, key + shape.key_width())
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// For every sequence, head and query, calls `visit` with the row of the first key that it sees,
/// its own, and the weights on those from the one to the other.
fn each_query(
    shape: AttentionShape,
    mask: AttentionMask<'_>,
    qkv: &[f64],
    mut visit: impl FnMut(usize, usize, usize, &[f64], f64),
) {
    let width = shape.qkv_width();
    let scale = 1.0 / (shape.head_width as f64).sqrt();
    for sequence in 0..shape.sequences {
        let start = sequence * shape.sequence_len;
        let mask = mask.of_sequence(sequence, shape.sequence_len);
        for head in 0..shape.heads {
            let (q, k, _) = offsets(shape, head);
            for row in start..start + shape.sequence_len {
                let first = start + mask.first_key(row - start);
                let query = &qkv[row * width + q..][..shape.head_width];
                let key = |key_row: usize| &qkv[key_row * width + k..][..shape.head_width];
                let scores: Vec<f64> = (first..=row).map(|r| dot(query, key(r)) * scale).collect();
                let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let sum: f64 = scores.iter().map(|score| libm::exp(score - max)).sum();
                let log_sum = max + libm::log(sum);
                let weights: Vec<f64> = scores.iter().map(|s| libm::exp(s - log_sum)).collect();
                visit(first, head, row, &weights, log_sum);
            }
        }
    }
}

/// Attention's output, and the logarithm of each row's sum of exponentials, heads side by side.
#[must_use]
pub fn attention_forward(
    shape: AttentionShape,
    mask: AttentionMask<'_>,
    qkv: &[f64],
) -> (Vec<f64>, Vec<f64>) {
    let width = shape.head_width;
    let mut out = vec![0.0; shape.rows() * shape.query_width()];
    let mut log_sums = vec![0.0; shape.rows() * shape.heads];
    each_query(shape, mask, qkv, |first, head, row, weights, log_sum| {
        let (_, _, v) = offsets(shape, head);
        log_sums[row * shape.heads + head] = log_sum;
        for (key, weight) in weights.iter().enumerate() {
            let value = &qkv[(first + key) * shape.qkv_width() + v..][..width];
            let to = &mut out[row * shape.query_width() + head * width..][..width];
            to.iter_mut().zip(value).for_each(|(to, value)| *to += weight * value);
        }
    });
    (out, log_sums)
}

/// The gradients of queries, keys and values, in a row's layout.
#[must_use]
pub fn attention_backward(
    shape: AttentionShape,
    mask: AttentionMask<'_>,
    qkv: &[f64],
    gradient: &[f64],
) -> Vec<f64> {
    let width = shape.head_width;
    let stride = shape.qkv_width();
    let scale = 1.0 / (width as f64).sqrt();
    let mut result = vec![0.0; qkv.len()];
    each_query(shape, mask, qkv, |first, head, row, weights, _| {
        let (q, k, v) = offsets(shape, head);
        let dy = &gradient[row * shape.query_width() + head * width..][..width];
        let value = |key: usize| &qkv[(first + key) * stride + v..][..width];
        let slopes: Vec<f64> = (0..weights.len()).map(|key| dot(dy, value(key))).collect();
        let mean = dot(weights, &slopes);
        for (key, (weight, slope)) in weights.iter().zip(&slopes).enumerate() {
            let ds = weight * (slope - mean) * scale;
            let key_row = (first + key) * stride;
            for column in 0..width {
                result[row * stride + q + column] += ds * qkv[key_row + k + column];
                result[key_row + k + column] += ds * qkv[row * stride + q + column];
                result[key_row + v + column] += weight * dy[column];
            }
        }
    });
    result
}

/// Queries and keys turned by their position; `angles` as [`crate::Backend::rotate`] takes them.
#[must_use]
pub fn rotate(
    shape: AttentionShape,
    angles: &[f64],
    direction: RotaryDirection,
    qkv: &[f64],
) -> Vec<f64> {
    let width = shape.head_width;
    let half = shape.head_width / 2;
    let mut result = qkv.to_vec();
    for (row, qkv) in result.chunks_exact_mut(shape.qkv_width()).enumerate() {
        let angles = &angles[row % shape.sequence_len * width..][..width];
        let rotated_width = shape.query_width() + shape.key_width();
        for head in qkv[..rotated_width].chunks_exact_mut(width) {
            for pair in 0..half {
                let cosine = angles[pair];
                let mut sine = angles[half + pair];
                if direction == RotaryDirection::Backward {
                    sine = -sine;
                }
                let a = head[pair];
                let b = head[half + pair];
                head[pair] = a * cosine - b * sine;
                head[half + pair] = b * cosine + a * sine;
            }
        }
    }
    result
}
