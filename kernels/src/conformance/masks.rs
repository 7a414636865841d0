//! Attention that stays within documents and within windows that slide.

use super::attention::{ERROR_MAX, expected, run};
use super::probe::{check, floats};
use super::slices::{check_the_whole, inputs, run_slices};
use crate::backend::{AttentionMask, AttentionShape, Backend};

/// Sequences, lengths of slices, heads, key heads, width: documents and windows that begin within
/// strips, panels and key blocks, in one slice or several, and the widths that have kernels of
/// their own somewhere.
const SHAPES: [(usize, &[usize], usize, usize, usize); 10] = [
    (2, &[7], 3, 3, 4),
    (2, &[100], 4, 2, 33),
    (1, &[800], 2, 1, 4),
    (2, &[150], 2, 1, 64),
    (1, &[200], 1, 1, 128),
    (2, &[3, 1, 2], 2, 1, 4),
    (2, &[33, 40, 9], 4, 2, 8),
    (1, &[450, 300, 150], 2, 1, 6),
    (2, &[70, 37, 50], 2, 1, 64),
    (1, &[70, 60], 1, 1, 128),
];

/// Longest document of a mask, and keys that a query sees at most.
#[derive(Clone, Copy, Debug)]
struct MaskCase {
    document_max: usize,
    window: usize,
}

const MANY: usize = 1 << 20;
const CASES: [MaskCase; 5] = [
    MaskCase { document_max: 9, window: MANY },
    MaskCase { document_max: 180, window: MANY },
    MaskCase { document_max: MANY, window: 1 },
    MaskCase { document_max: MANY, window: 50 },
    MaskCase { document_max: 180, window: 33 },
];

impl MaskCase {
    /// The first key of each row, of documents whose lengths are drawn.
    fn first_keys(self, shape: AttentionShape) -> Vec<u32> {
        let draws = floats(shape.rows(), 7);
        let mut draws = draws.iter().map(|x| (x + 1.0) / 2.0);
        let mut first_keys = Vec::with_capacity(shape.rows());
        for _ in 0..shape.sequences {
            let mut start = 0;
            let mut end = 0;
            for own in 0..shape.sequence_len {
                if own == end {
                    start = own;
                    let drawn = draws.next().expect("a draw for each row");
                    end += 1 + (drawn * self.document_max as f32) as usize;
                }
                first_keys.push(start.max((own + 1).saturating_sub(self.window)) as u32);
            }
        }
        first_keys
    }
}

/// The shape of whole sequences, how they are cut, and a mask of them.
fn cases() -> impl Iterator<Item = (AttentionShape, &'static [usize], MaskCase)> {
    SHAPES.into_iter().flat_map(|(sequences, lens, heads, kv_heads, head_width)| {
        let sequence_len = lens.iter().sum();
        let shape = AttentionShape { sequences, sequence_len, heads, kv_heads, head_width };
        CASES.into_iter().map(move |case| (shape, lens, case))
    })
}

/// Forward and B, whole and slice by slice, of queries that do not see all before them.
pub fn attention_masks<B: Backend>(devices: &[B]) {
    for (shape, lens, case) in cases() {
        let (qkv, dy) = inputs(shape);
        let first_keys = case.first_keys(shape);
        let mask = AttentionMask::From(&first_keys);
        let name = format!("{case:?} of {shape:?} in {lens:?}");
        check(&name, devices, &expected((shape, mask), &qkv, &dy), ERROR_MAX, |device| {
            run_slices(device, (shape, mask), lens, &qkv, &dy)
        });
    }
}

/// Slices have the bits of the whole under a mask too, and a mask that hides nothing changes none.
pub fn masked_slices_are_the_whole<B: Backend>(devices: &[B]) {
    for (shape, lens, case) in cases() {
        check_the_whole(devices, (shape, AttentionMask::From(&case.first_keys(shape))), lens);
    }
    for (shape, ..) in cases().step_by(CASES.len()) {
        let (qkv, dy) = inputs(shape);
        let nothing = vec![0; shape.rows()];
        for device in devices {
            let causal = run(device, (shape, AttentionMask::Causal), &qkv, &dy);
            let masked = run(device, (shape, AttentionMask::From(&nothing)), &qkv, &dy);
            assert!(causal == masked, "{shape:?}: a mask that hides nothing");
        }
    }
}

/// What stands in one document changes no bit of another one, forward or backward.
pub fn attention_sees_no_other_document<B: Backend>(devices: &[B]) {
    const STARTS: [usize; 5] = [0, 13, 64, 65, 150];
    let sequence_len = 200;
    let shape =
        AttentionShape { sequences: 1, sequence_len, heads: 2, kv_heads: 1, head_width: 64 };
    let start_of = |row| STARTS[STARTS.partition_point(|start| *start <= row) - 1];
    let first_keys: Vec<u32> = (0..sequence_len).map(|row| start_of(row) as u32).collect();
    let mask = AttentionMask::From(&first_keys);
    let (qkv, dy) = inputs(shape);
    let widths = [shape.query_width(), shape.heads, shape.qkv_width()];
    for device in devices {
        let before = run(device, (shape, mask), &qkv, &dy);
        for (index, start) in STARTS.into_iter().enumerate() {
            let end = STARTS.get(index + 1).copied().unwrap_or(sequence_len);
            let mut changed = qkv.clone();
            for x in &mut changed[start * shape.qkv_width()..end * shape.qkv_width()] {
                *x = 3.0 - *x;
            }
            let after = run(device, (shape, mask), &changed, &dy);
            for ((before, after), width) in before.iter().zip(&after).zip(widths) {
                let at = start * width..end * width;
                assert_eq!(before[..at.start], after[..at.start], "rows before {start}");
                assert_eq!(before[at.end..], after[at.end..], "rows from {end}");
            }
            let at = start * widths[0]..end * widths[0];
            assert_ne!(before[0][at.clone()], after[0][at], "rows from {start} to {end}");
        }
    }
}
