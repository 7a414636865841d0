//! Attention and rotary embedding.

use super::probe::{check, download, floats, poisoned, poisoned_rows, upload, upload_rows, widen};
use crate::backend::{AttentionMask, AttentionShape, Backend, RotaryDirection};
use crate::reference;

/// Sequences, length, heads, key heads, width: below and above strips, panels and key blocks, and
/// the widths that have kernels of their own somewhere.
const SHAPES: [(usize, usize, usize, usize, usize); 11] = [
    (1, 1, 1, 1, 2),
    (2, 5, 3, 3, 4),
    (3, 33, 4, 2, 8),
    (1, 64, 4, 1, 16),
    (2, 100, 2, 2, 33),
    (1, 383, 2, 1, 6),
    (1, 420, 1, 1, 64),
    (1, 800, 2, 1, 4),
    (2, 70, 4, 2, 64),
    (1, 130, 2, 1, 128),
    (1, 64, 1, 1, 128),
];
pub(super) const ERROR_MAX: f64 = 4e-6;

fn shape(
    (sequences, sequence_len, heads, kv_heads, head_width): (usize, usize, usize, usize, usize),
) -> AttentionShape {
    AttentionShape { sequences, sequence_len, heads, kv_heads, head_width }
}

pub(super) fn run<B: Backend>(
    device: &B,
    (shape, mask): (AttentionShape, AttentionMask<'_>),
    qkv: &[f32],
    dy: &[f32],
) -> Vec<Vec<f32>> {
    let mut qkv = upload_rows(device, qkv);
    let mut out = poisoned_rows(device, shape.rows() * shape.query_width());
    let mut log_sums = poisoned(device, shape.rows() * shape.heads);
    device.attention_forward(shape, mask, &qkv, &mut out, &mut log_sums);
    let dy = upload_rows(device, dy);
    device.attention_backward(shape, mask, &out, &log_sums, &dy, &mut qkv);
    [&out, &log_sums, &qkv].map(|result| download(device, result)).to_vec()
}

/// Attention over whole sequences: the forward pass and B.
pub fn attention<B: Backend>(devices: &[B]) {
    for shape in SHAPES.map(shape) {
        let scaled = floats(shape.rows() * shape.qkv_width(), 1);
        let qkv: Vec<f32> = scaled.iter().map(|x| x * 2.0).collect();
        let dy = floats(shape.rows() * shape.query_width(), 2);
        let expected = expected((shape, AttentionMask::Causal), &qkv, &dy);
        check(&format!("{shape:?}"), devices, &expected, ERROR_MAX, |device| {
            run(device, (shape, AttentionMask::Causal), &qkv, &dy)
        });
    }
}

/// What the reference computes of the results of [`run`].
pub(super) fn expected(
    (shape, mask): (AttentionShape, AttentionMask<'_>),
    qkv: &[f32],
    dy: &[f32],
) -> [(&'static str, Vec<f64>); 3] {
    let (out, log_sums) = reference::attention_forward(shape, mask, &widen(qkv));
    let gradient = reference::attention_backward(shape, mask, &widen(qkv), &widen(dy));
    [("out", out), ("log sums", log_sums), ("gradient", gradient)]
}

/// What comes later in a sequence, or in another one, changes no bit of an earlier row.
pub fn attention_sees_no_future<B: Backend>(devices: &[B]) {
    let shape = shape((2, 70, 2, 1, 8));
    let qkv = floats(shape.rows() * shape.qkv_width(), 1);
    let dy = floats(shape.rows() * shape.query_width(), 2);
    for device in devices {
        let before = &run(device, (shape, AttentionMask::Causal), &qkv, &dy)[0];
        for changed in [1, 13, 14, 31, 32, 69, 70] {
            let mut later = qkv.clone();
            for x in &mut later[changed * shape.qkv_width()..] {
                *x = 3.0 - *x;
            }
            let after = &run(device, (shape, AttentionMask::Causal), &later, &dy)[0];
            let rows = changed * shape.query_width();
            assert_eq!(before[..rows], after[..rows], "rows before {changed}");
            assert_ne!(before[rows..], after[rows..], "rows from {changed}");
        }
    }
}

/// Rotary embedding in both directions.
pub fn rotation<B: Backend>(devices: &[B]) {
    for shape in [shape((2, 5, 3, 1, 4)), shape((1, 300, 2, 2, 6))] {
        let angles = floats(shape.sequence_len * shape.head_width, 1);
        let qkv = floats(shape.rows() * shape.qkv_width(), 2);
        let rotated = |direction: RotaryDirection| {
            reference::rotate(shape, &widen(&angles), direction, &widen(&qkv))
        };
        let expected = [
            ("forward", rotated(RotaryDirection::Forward)),
            ("backward", rotated(RotaryDirection::Backward)),
        ];
        check(&format!("rotation {shape:?}"), devices, &expected, 1e-6, |device| {
            let angles = upload(device, &angles);
            let rotated = [RotaryDirection::Forward, RotaryDirection::Backward].map(|direction| {
                let mut qkv = upload_rows(device, &qkv);
                device.rotate(shape, &angles, direction, &mut qkv);
                download(device, &qkv)
            });
            rotated.to_vec()
        });
    }
}
