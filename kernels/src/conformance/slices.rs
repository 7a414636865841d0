//! Attention over slices of sequences.

use super::attention::{ERROR_MAX, expected, run};
use super::probe::{check, download, floats, poisoned, poisoned_rows, upload_rows};
use crate::backend::{AttentionMask, AttentionShape, Backend, EarlierSlice};

/// Sequences, lengths of slices, heads, key heads, width: slices that end within strips, panels and
/// key blocks and at their ends, keys of one to four blocks, and slices that are equally long or
/// are not.
const SHAPES: [(usize, &[usize], usize, usize, usize); 18] = [
    (1, &[37], 2, 1, 4),
    (1, &[1, 1], 1, 1, 2),
    (2, &[5, 5, 5], 3, 3, 4),
    (3, &[33, 33], 4, 2, 8),
    (1, &[16, 16, 16, 16], 4, 1, 16),
    (2, &[100, 100], 2, 2, 33),
    (1, &[61, 61, 61, 61, 61, 61, 61], 2, 1, 6),
    (1, &[200, 200, 200], 1, 1, 64),
    (1, &[384, 384], 1, 1, 4),
    (1, &[400, 400], 2, 1, 4),
    (1, &[450, 450, 450], 1, 1, 2),
    (2, &[3, 1, 2], 2, 1, 4),
    (3, &[40, 9, 17, 1], 4, 2, 8),
    (2, &[1, 500, 30], 2, 2, 4),
    (1, &[600, 250, 200, 150], 2, 1, 6),
    (2, &[37, 37, 37], 4, 2, 64),
    (1, &[50, 50], 2, 1, 128),
    (2, &[70, 3, 40], 2, 1, 128),
];

/// The shape of whole sequences, and how they are cut.
fn shapes() -> impl Iterator<Item = (AttentionShape, &'static [usize])> {
    SHAPES.into_iter().map(|(sequences, lens, heads, kv_heads, head_width)| {
        let sequence_len = lens.iter().sum();
        (AttentionShape { sequences, sequence_len, heads, kv_heads, head_width }, lens)
    })
}

/// Queries, keys and values of a microbatch, and the gradient of attention's output.
pub(super) fn inputs(shape: AttentionShape) -> (Vec<f32>, Vec<f32>) {
    let scaled = floats(shape.rows() * shape.qkv_width(), 1);
    let qkv = scaled.iter().map(|x| x * 2.0).collect();
    (qkv, floats(shape.rows() * shape.query_width(), 2))
}

/// Where the rows of a slice lie among those of whole sequences.
fn rows_of(shape: AttentionShape, lens: &[usize], slice: usize) -> impl Iterator<Item = usize> {
    let before: usize = lens[..slice].iter().sum();
    let len = lens[slice];
    let rows = move |sequence: usize| {
        let first = sequence * shape.sequence_len + before;
        first..first + len
    };
    (0..shape.sequences).flat_map(rows)
}

fn cut(
    shape: AttentionShape,
    lens: &[usize],
    slice: usize,
    width: usize,
    from: &[f32],
) -> Vec<f32> {
    let rows = rows_of(shape, lens, slice);
    rows.flat_map(|row| from[row * width..][..width].iter().copied()).collect()
}

/// The mask of each slice.
fn cut_mask(
    whole: AttentionShape,
    lens: &[usize],
    mask: AttentionMask<'_>,
) -> Option<Vec<Vec<u32>>> {
    let AttentionMask::From(first_keys) = mask else { return None };
    let of_slice = |slice| rows_of(whole, lens, slice).map(|row| first_keys[row]).collect();
    Some((0..lens.len()).map(of_slice).collect())
}

/// A slice on a device.
struct DeviceSlice<T> {
    qkv: T,
    key_value_gradient: T,
    out: T,
    log_sums: T,
}

/// Forward in turn, and B in reverse: output, sums and gradients of whole sequences.
pub(super) fn run_slices<B: Backend>(
    device: &B,
    (whole, mask): (AttentionShape, AttentionMask<'_>),
    lens: &[usize],
    qkv: &[f32],
    dy: &[f32],
) -> Vec<Vec<f32>> {
    let shape_of = |slice: usize| AttentionShape { sequence_len: lens[slice], ..whole };
    let masks = cut_mask(whole, lens, mask);
    let mask_of = |slice: usize| match &masks {
        Some(masks) => AttentionMask::From(&masks[slice]),
        None => AttentionMask::Causal,
    };
    let widths = [whole.query_width(), whole.heads, whole.qkv_width()];
    let make = |slice| {
        let shape = shape_of(slice);
        DeviceSlice {
            qkv: upload_rows(device, &cut(whole, lens, slice, whole.qkv_width(), qkv)),
            key_value_gradient: poisoned(device, shape.rows() * 2 * shape.key_width()),
            out: poisoned_rows(device, shape.rows() * shape.query_width()),
            log_sums: poisoned(device, shape.rows() * shape.heads),
        }
    };
    let mut parts: Vec<DeviceSlice<B::Buffer>> = (0..lens.len()).map(make).collect();
    for slice in 0..lens.len() {
        let (before, own) = parts.split_at_mut(slice);
        let earlier: Vec<&B::Buffer> = before.iter().map(|slice| &slice.qkv).collect();
        let DeviceSlice { qkv, out, log_sums, .. } = &mut own[0];
        let of = (shape_of(slice), mask_of(slice));
        device.attention_slice_forward(of.0, of.1, &earlier, qkv, out, log_sums);
    }
    for slice in (0..lens.len()).rev() {
        let gradient = upload_rows(device, &cut(whole, lens, slice, whole.query_width(), dy));
        let (before, own) = parts.split_at_mut(slice);
        let mut earlier: Vec<EarlierSlice<'_, B::Buffer>> = before
            .iter_mut()
            .map(|DeviceSlice { qkv, key_value_gradient, .. }| EarlierSlice {
                qkv,
                key_value_gradient,
            })
            .collect();
        let DeviceSlice { qkv, key_value_gradient, out, log_sums } = &mut own[0];
        let later = (slice + 1 < lens.len()).then_some(&*key_value_gradient);
        device.attention_slice_backward(
            shape_of(slice),
            mask_of(slice),
            &mut earlier,
            later,
            out,
            log_sums,
            &gradient,
            qkv,
        );
    }
    let mut results = widths.map(|width| vec![f32::NAN; whole.rows() * width]);
    for (slice, part) in parts.iter().enumerate() {
        let buffers = [&part.out, &part.log_sums, &part.qkv];
        for ((result, width), buffer) in results.iter_mut().zip(widths).zip(buffers) {
            let floats = download(device, buffer);
            for (row, from) in rows_of(whole, lens, slice).zip(floats.chunks_exact(width)) {
                result[row * width..][..width].copy_from_slice(from);
            }
        }
    }
    results.to_vec()
}

/// Forward and B, slice by slice.
pub fn attention_slices<B: Backend>(devices: &[B]) {
    for (shape, lens) in shapes() {
        let (qkv, dy) = inputs(shape);
        let expected = expected((shape, AttentionMask::Causal), &qkv, &dy);
        check(&format!("slices {lens:?} of {shape:?}"), devices, &expected, ERROR_MAX, |device| {
            run_slices(device, (shape, AttentionMask::Causal), lens, &qkv, &dy)
        });
    }
}

/// What has the same terms in sums of the same order is the same number: all of the forward pass
/// and the gradients of queries; of a single slice, everything. Gradients of keys and values are
/// not: whole sequences add up queries from the first on, slices from the last.
pub fn slices_are_the_whole<B: Backend>(devices: &[B]) {
    for (shape, lens) in shapes() {
        check_the_whole(devices, (shape, AttentionMask::Causal), lens);
    }
}

/// The same for one shape and mask.
pub(super) fn check_the_whole<B: Backend>(
    devices: &[B],
    (shape, mask): (AttentionShape, AttentionMask<'_>),
    lens: &[usize],
) {
    let (qkv, dy) = inputs(shape);
    for device in devices {
        let whole = run(device, (shape, mask), &qkv, &dy);
        let cut = run_slices(device, (shape, mask), lens, &qkv, &dy);
        let case = format!("slices {lens:?} of {shape:?}");
        assert!(whole[0] == cut[0], "{case}: out");
        assert!(whole[1] == cut[1], "{case}: log sums");
        let same = if lens.len() == 1 { shape.qkv_width() } else { shape.query_width() };
        let rows = |gradient: &[f32]| -> Vec<f32> {
            let rows = gradient.chunks_exact(shape.qkv_width());
            rows.flat_map(|row| row[..same].to_vec()).collect()
        };
        assert!(rows(&whole[2]) == rows(&cut[2]), "{case}: gradients");
    }
}
