//! Normalisations of both kinds, forward and backward.

use super::probe::{
    check, download, floats, poisoned, poisoned_rows, upload, upload_rows, whole, widen,
};
use crate::backend::{Accumulate, AttentionShape, Backend, Norm, NormGradient, RowsShape};
use crate::reference;

const ERROR_MAX: f64 = 3e-6;

/// Both kinds, forward, B with a residual stream, and W of two microbatches.
pub fn norms<B: Backend>(devices: &[B]) {
    let shapes = [(1, 3), (5, 16), (65, 40), (300, 97)];
    for norm in [Norm::Layer { epsilon: 1e-5 }, Norm::Rms { epsilon: 1e-6 }] {
        for (count, width) in shapes {
            one_norm(devices, norm, RowsShape { count, width });
        }
    }
}

fn one_norm<B: Backend>(devices: &[B], norm: Norm, rows: RowsShape) {
    let RowsShape { count, width } = rows;
    let x = floats(count * width, 1);
    let dy = floats(count * width, 2);
    let skip = floats(count * width, 3);
    let weight = floats(width, 4);
    let bias = floats(width, 5);
    let wide_bias = norm.has_bias().then(|| widen(&bias));
    let y = reference::norm_forward(norm, rows, &widen(&x), &widen(&weight), wide_bias.as_deref());
    let back = reference::norm_backward(norm, rows, &widen(&x), &widen(&weight), &widen(&dy));
    let dx = back.x.iter().zip(&skip).map(|(dx, skip)| dx + f64::from(*skip)).collect();
    let twice = |sums: &[f64]| sums.iter().map(|x| 2.0 * x).collect::<Vec<_>>();
    let mut gradient = twice(&back.weight);
    if norm.has_bias() {
        gradient.extend(twice(&back.bias));
    }
    let expected = [("y", y), ("dx", dx), ("dx without skip", back.x), ("gradient", gradient)];
    check(&format!("{norm:?} {rows:?}"), devices, &expected, ERROR_MAX, |device| {
        let xs = upload_rows(device, &x);
        let dy = upload_rows(device, &dy);
        let skip = upload_rows(device, &skip);
        let weight = upload(device, &weight);
        let bias = norm.has_bias().then(|| upload(device, &bias));
        let bias = bias.as_ref().map(|bias| whole(device, bias));
        let mut y = poisoned_rows(device, count * width);
        let mut statistics = poisoned(device, count * norm.statistics_per_row());
        let view = || whole(device, &weight);
        device.norm_forward(norm, rows, &xs, view(), bias, &mut y, &mut statistics);
        let parameters = if norm.has_bias() { 2 * width } else { width };
        let mut partials = poisoned(device, parameters);
        let mut back = |skip: Option<&B::Buffer>, dx: &mut B::Buffer| {
            let partials = &mut partials;
            device.norm_backward_input(norm, rows, &dy, skip, view(), &statistics, dx, partials);
        };
        let mut dx = upload_rows(device, &x);
        let mut dx_plain = upload_rows(device, &x);
        back(Some(&skip), &mut dx);
        back(None, &mut dx_plain);
        // The bias may lie behind the weight, or somewhere behind it.
        let gap = count % 2;
        let mut g = poisoned(device, parameters + gap);
        for accumulate in [Accumulate::Start, Accumulate::Add] {
            let bias = norm.has_bias().then_some(width + gap..2 * width + gap);
            let to = NormGradient { buffer: &mut g, weight: 0..width, bias };
            device.norm_backward_weights(norm, width, &partials, to, accumulate);
        }
        let mut results = [&y, &dx, &dx_plain, &g].map(|result| download(device, result)).to_vec();
        results[3].drain(width..width + gap);
        results
    });
}

/// QK-norm, forward, B, and W of two microbatches. Values are left alone.
pub fn qk_norms<B: Backend>(devices: &[B]) {
    let shapes = [(1, 1, 1, 1, 2), (2, 5, 3, 1, 16), (1, 65, 4, 2, 18), (3, 43, 2, 2, 40)];
    for (sequences, sequence_len, heads, kv_heads, head_width) in shapes {
        one_qk_norm(
            devices,
            AttentionShape { sequences, sequence_len, heads, kv_heads, head_width },
        );
    }
}

fn one_qk_norm<B: Backend>(devices: &[B], shape: AttentionShape) {
    let norm = Norm::Rms { epsilon: 1e-6 };
    let width = 2 * shape.head_width;
    let qkv = floats(shape.rows() * shape.qkv_width(), 1);
    let dy = floats(qkv.len(), 2);
    let weights = floats(width, 3);
    let y = reference::qk_norm_forward(norm, shape, &widen(&qkv), &widen(&weights));
    let (of_qkv, of_weights) =
        reference::qk_norm_backward(norm, shape, &widen(&qkv), &widen(&weights), &widen(&dy));
    let twice = of_weights.iter().map(|x| 2.0 * x).collect();
    let expected = [("y", y), ("gradient", of_qkv), ("weights", twice)];
    check(&format!("QK-norm {shape:?}"), devices, &expected, ERROR_MAX, |device| {
        let mut y = upload_rows(device, &qkv);
        let mut gradient = upload_rows(device, &dy);
        let weights = upload(device, &weights);
        let mut before = poisoned_rows(device, shape.rows() * shape.qk_width());
        let mut statistics = poisoned(device, shape.rows() * shape.qk_heads());
        let view = || whole(device, &weights);
        device.qk_norm_forward(norm, shape, view(), &mut y, &mut before, &mut statistics);
        let mut partials = poisoned(device, width);
        device.qk_norm_backward_input(
            norm,
            shape,
            &statistics,
            view(),
            &mut before,
            &mut gradient,
            &mut partials,
        );
        let mut g = poisoned(device, width);
        for accumulate in [Accumulate::Start, Accumulate::Add] {
            let to = NormGradient { buffer: &mut g, weight: 0..width, bias: None };
            device.norm_backward_weights(norm, width, &partials, to, accumulate);
        }
        [&y, &gradient, &g].map(|result| download(device, result)).to_vec()
    });
}
