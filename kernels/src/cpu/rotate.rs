//! Rotary position embedding of queries and keys, in place.

use super::backend::CpuBackend;
use crate::backend::{AttentionShape, RotaryDirection};

pub(super) fn rotate(
    cpu: &CpuBackend,
    shape: AttentionShape,
    angles: &[f32],
    direction: RotaryDirection,
    qkv: &mut [f32],
) {
    assert!(shape.head_width.is_multiple_of(2));
    assert_eq!(angles.len(), shape.sequence_len * shape.head_width);
    assert_eq!(qkv.len(), shape.rows() * shape.qkv_width());
    let share = cpu.rows_per_task(shape.rows());
    let pieces = qkv.chunks_mut(share * shape.qkv_width()).enumerate();
    cpu.threads().for_each(pieces.collect(), |(piece, rows)| {
        for (row, qkv) in rows.chunks_exact_mut(shape.qkv_width()).enumerate() {
            let position = (piece * share + row) % shape.sequence_len;
            let angles = &angles[position * shape.head_width..][..shape.head_width];
            let rotated = &mut qkv[..shape.query_width() + shape.key_width()];
            for head in rotated.chunks_exact_mut(shape.head_width) {
                rotate_head(angles, direction, head);
            }
        }
    });
}

fn rotate_head(angles: &[f32], direction: RotaryDirection, head: &mut [f32]) {
    let half = head.len() / 2;
    let (cosines, sines) = angles.split_at(half);
    let (low, high) = head.split_at_mut(half);
    for (((a, b), cosine), sine) in low.iter_mut().zip(high).zip(cosines).zip(sines) {
        let sine = match direction {
            RotaryDirection::Forward => *sine,
            RotaryDirection::Backward => -sine,
        };
        (*a, *b) = (*a * cosine - *b * sine, *b * cosine + *a * sine);
    }
}
