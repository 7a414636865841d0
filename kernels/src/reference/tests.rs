//! Hand-written gradients against finite differences.

use super::{
    adapted_matrix, adapter_gradients, attention_backward, attention_forward, embed_backward,
    embed_forward, gelu, gelu_slope, head_backward, head_forward, linear_backward_input,
    linear_backward_weights, linear_forward, norm_backward, norm_forward, qk_norm_backward,
    qk_norm_forward, rotate, swiglu_backward, swiglu_forward,
};
use crate::backend::{
    AttentionMask, AttentionShape, IGNORED_TARGET, MatrixShape, Norm, RotaryDirection,
    RowPositions, RowsShape,
};
use crate::conformance::floats;

const STEP: f64 = 1e-5;
const ERROR_MAX: f64 = 1e-7;

/// Reproducible numbers between -1 and 1.
fn numbers(len: usize, seed: u64) -> Vec<f64> {
    floats(len, seed).into_iter().map(f64::from).collect()
}

/// Compares `gradient` with central differences of `weights * f(x)`, element by element.
fn check(gradient: &[f64], x: &[f64], weights: &[f64], f: impl Fn(&[f64]) -> Vec<f64>) {
    let loss = |x: &[f64]| -> f64 { f(x).iter().zip(weights).map(|(y, w)| y * w).sum() };
    assert_eq!(gradient.len(), x.len());
    let mut moved = x.to_vec();
    for (i, expected) in gradient.iter().enumerate() {
        moved[i] = x[i] + STEP;
        let above = loss(&moved);
        moved[i] = x[i] - STEP;
        let below = loss(&moved);
        moved[i] = x[i];
        let found = (above - below) / (2.0 * STEP);
        assert!(
            (found - expected).abs() < ERROR_MAX,
            "element {i}: {expected}, differences {found}"
        );
    }
}

#[test]
fn linear_gradients() {
    let shape = MatrixShape { outputs: 5, inputs: 7 };
    let x = numbers(3 * 7, 1);
    let w = numbers(35, 2);
    let b = numbers(5, 3);
    let dy = numbers(15, 4);
    check(&linear_backward_input(shape, &w, &dy), &x, &dy, |x| {
        linear_forward(shape, x, &w, Some(&b))
    });
    let (dw, db) = linear_backward_weights(shape, &x, &dy);
    check(&dw, &w, &dy, |w| linear_forward(shape, &x, w, Some(&b)));
    check(&db, &b, &dy, |b| linear_forward(shape, &x, &w, Some(b)));
}

#[test]
fn norm_gradients() {
    for norm in [Norm::Layer { epsilon: 1e-5 }, Norm::Rms { epsilon: 1e-5 }] {
        let rows = RowsShape { count: 3, width: 6 };
        let x = numbers(18, 1);
        let w = numbers(6, 2);
        let b = numbers(6, 3);
        let dy = numbers(18, 4);
        let bias = norm.has_bias().then_some(&b[..]);
        let found = norm_backward(norm, rows, &x, &w, &dy);
        check(&found.x, &x, &dy, |x| norm_forward(norm, rows, x, &w, bias));
        check(&found.weight, &w, &dy, |w| norm_forward(norm, rows, &x, w, bias));
        check(&found.bias, &b, &dy, |b| norm_forward(norm, rows, &x, &w, Some(b)));
    }
}

#[test]
fn activation_gradients() {
    let x = numbers(20, 1);
    let dy = numbers(20, 2);
    let slopes: Vec<f64> = x.iter().zip(&dy).map(|(x, dy)| gelu_slope(*x) * dy).collect();
    check(&slopes, &x, &dy, |x| x.iter().map(|x| gelu(*x)).collect());
    let rows = RowsShape { count: 2, width: 5 };
    let gate_up = numbers(20, 3);
    let dh = numbers(10, 4);
    check(&swiglu_backward(rows, &gate_up, &dh), &gate_up, &dh, |x| swiglu_forward(rows, x));
}

#[test]
fn attention_gradients() {
    for kv_heads in [1, 2, 4] {
        let shape =
            AttentionShape { sequences: 2, sequence_len: 5, heads: 4, kv_heads, head_width: 2 };
        let qkv = numbers(shape.rows() * shape.qkv_width(), 1);
        let dy = numbers(shape.rows() * shape.query_width(), 2);
        let first_keys = [0, 0, 1, 3, 3, 0, 1, 2, 3, 4];
        for mask in [AttentionMask::Causal, AttentionMask::From(&first_keys)] {
            let found = attention_backward(shape, mask, &qkv, &dy);
            check(&found, &qkv, &dy, |qkv| attention_forward(shape, mask, qkv).0);
        }
    }
}

/// What [`attention_gradients`] cannot see: which keys a mask leaves.
#[test]
fn a_row_that_sees_itself_alone_has_its_own_value() {
    let shape =
        AttentionShape { sequences: 1, sequence_len: 3, heads: 1, kv_heads: 1, head_width: 2 };
    let qkv = numbers(shape.rows() * shape.qkv_width(), 1);
    let out = attention_forward(shape, AttentionMask::From(&[0, 1, 1]), &qkv).0;
    assert_eq!(out[..2], qkv[4..6], "the first row");
    assert_eq!(out[2..4], qkv[10..12], "the second, whose document begins with it");
    let alone = AttentionShape { sequence_len: 2, ..shape };
    assert_eq!(out[4..], attention_forward(alone, AttentionMask::Causal, &qkv[6..]).0[2..]);
}

#[test]
fn rotation_turns_back_and_its_gradient_is_the_turn_back() {
    let shape =
        AttentionShape { sequences: 1, sequence_len: 3, heads: 2, kv_heads: 1, head_width: 4 };
    let raw = numbers(6, 1);
    let angles: Vec<f64> = raw
        .chunks(2)
        .flat_map(|a| [libm::cos(a[0]), libm::cos(a[1]), libm::sin(a[0]), libm::sin(a[1])])
        .collect();
    let qkv = numbers(shape.rows() * shape.qkv_width(), 2);
    let dy = numbers(qkv.len(), 3);
    let rotated = rotate(shape, &angles, RotaryDirection::Forward, &qkv);
    let back = rotate(shape, &angles, RotaryDirection::Backward, &rotated);
    assert!(back.iter().zip(&qkv).all(|(a, b)| (a - b).abs() < 1e-12));
    let gradient = rotate(shape, &angles, RotaryDirection::Backward, &dy);
    check(&gradient, &qkv, &dy, |qkv| rotate(shape, &angles, RotaryDirection::Forward, qkv));
}

#[test]
fn qk_norm_gradients() {
    let norm = Norm::Rms { epsilon: 1e-5 };
    let shape =
        AttentionShape { sequences: 1, sequence_len: 3, heads: 4, kv_heads: 2, head_width: 4 };
    let qkv = numbers(shape.rows() * shape.qkv_width(), 1);
    let weights = numbers(2 * shape.head_width, 2);
    let dy = numbers(qkv.len(), 3);
    let (of_qkv, of_weights) = qk_norm_backward(norm, shape, &qkv, &weights, &dy);
    check(&of_qkv, &qkv, &dy, |qkv| qk_norm_forward(norm, shape, qkv, &weights));
    check(&of_weights, &weights, &dy, |weights| qk_norm_forward(norm, shape, &qkv, weights));
}

#[test]
fn head_gradients() {
    let shape = MatrixShape { outputs: 6, inputs: 4 };
    let x = numbers(12, 1);
    let w = numbers(24, 2);
    let targets = [5, IGNORED_TARGET, 3];
    let loss = |x: &[f64], w: &[f64]| {
        let head = head_forward(shape, x, w, &targets);
        vec![head.loss, head.square_log_sum]
    };
    for scales in [[0.25, 0.0], [0.25, 0.5]] {
        let found = head_backward(shape, &x, &w, &targets, scales);
        check(&found.x, &x, &scales, |x| loss(x, &w));
        check(&found.matrix, &w, &scales, |w| loss(&x, w));
        assert_eq!(found.x[4..8], [0.0; 4], "a row that is ignored");
    }
    let counted = [&x[..4], &x[8..]].concat();
    let alone = head_forward(shape, &counted, &w, &[5, 3]);
    assert_eq!(loss(&x, &w), [alone.loss, alone.square_log_sum]);
}

#[test]
fn embedding_gradients() {
    let tokens = [2, 0, 2, 1];
    let table = numbers(9, 1);
    let positions = numbers(6, 2);
    let dy = numbers(12, 3);
    for at in [RowPositions::Counted { sequence_len: 2 }, RowPositions::Given(&[0, 0, 1, 0])] {
        let (dtable, dpositions) = embed_backward(at, 3, (3, 2), &tokens, &dy);
        check(&dtable, &table, &dy, |t| embed_forward(at, 3, &tokens, t, Some(&positions)));
        check(&dpositions, &positions, &dy, |p| embed_forward(at, 3, &tokens, &table, Some(p)));
    }
}

#[test]
fn adapters() {
    let shape = MatrixShape { outputs: 5, inputs: 4 };
    let x = numbers(3 * 4, 1);
    let base = numbers(5 * 4, 2);
    let a = numbers(2 * 4, 3);
    let b = numbers(5 * 2, 4);
    let weights = numbers(3 * 5, 5);
    let y = |a: &[f64], b: &[f64]| {
        linear_forward(shape, &x, &adapted_matrix(shape, 2, 1.5, &base, [a, b]), None)
    };
    let [of_a, of_b] = adapter_gradients(shape, 2, 1.5, [&a, &b], &x, &weights);
    check(&of_a, &a, &weights, |a| y(a, &b));
    check(&of_b, &b, &weights, |b| y(&a, b));
}
