//! Sums of squares and AdamW.

use super::probe::{download, floats, matrix, poisoned, poisoned_rows, upload, upload_rows};
use crate::backend::{
    AdamWNumbers, Backend, BackwardEpilogue, ForwardEpilogue, MatrixPart, MatrixShape,
    SQUARE_SUM_CHUNK, View,
};
use crate::reference::{AdamWState, adamw};

/// Index order within chunks, chunks in order, to the bit; what is not finite is counted.
pub fn square_sums<B: Backend>(devices: &[B]) {
    for len in [0, 1, 17, SQUARE_SUM_CHUNK, SQUARE_SUM_CHUNK + 1, 9 * SQUARE_SUM_CHUNK + 5] {
        let x = floats(len + 2, 1);
        let chain =
            |chunk: &[f32]| chunk.iter().fold(0.0, |sum, x| sum + f64::from(*x) * f64::from(*x));
        let chunks = x[1..=len].chunks(SQUARE_SUM_CHUNK).map(chain);
        let expected: f64 = chunks.fold(0.0, |sum, chunk| sum + chunk);
        for device in devices {
            let buffer = upload(device, &x);
            let found = device.sum_squares(View::new(&buffer, 1..len + 1));
            assert_eq!(found.sum.to_bits(), expected.to_bits(), "{len} elements");
            assert_eq!(found.nonfinite, 0);
        }
    }
    for device in devices {
        let mut x = floats(1000, 2);
        (x[3], x[500], x[999]) = (f32::NAN, f32::INFINITY, f32::NEG_INFINITY);
        let buffer = upload(device, &x);
        let found = device.sum_squares(View::new(&buffer, 0..999));
        assert!(!found.sum.is_finite());
        assert_eq!(found.nonfinite, 2);
        let large = upload(device, &[f32::MAX, -f32::MAX]);
        let found = device.sum_squares(View::new(&large, 0..2));
        assert!(found.sum.is_finite(), "squares of finite floats fit in f64");
    }
}

/// Candidate and commit together are one AdamW step, bit for bit, and leave the rest alone.
pub fn adamw_meets_the_bits<B: Backend>(devices: &[B]) {
    let numbers = AdamWNumbers {
        decay: 0.999_9,
        beta1: 0.9,
        beta1_rest: 0.1,
        beta2: 0.95,
        beta2_rest: 0.05,
        correction2: 0.31,
        epsilon: 1e-8,
        step: -3e-3,
        clip: 0.73,
    };
    for len in [1, 15, 16, 17, 70_000] {
        let (w, m) = (floats(len + 2, 1), floats(len + 2, 2));
        let v: Vec<f32> = floats(len + 2, 3).iter().map(|x| x * x).collect();
        let mut g = floats(len + 2, 4);
        (g[1], g[len]) = (1e-42, -0.0);
        let inner = 1..len + 1;
        let [part_w, part_m, part_v] = [&w, &m, &v].map(|x| x[inner.clone()].to_vec());
        let mut expected = AdamWState { w: part_w, m: part_m, v: part_v };
        adamw(&mut expected, &g[inner.clone()], numbers);
        for device in devices {
            let [ws, gs] = [&w, &g].map(|x| upload(device, x));
            let (mut ms, mut vs) = (upload(device, &m), upload(device, &v));
            let mut candidate = poisoned(device, len + 2);
            let (range, to) = (inner.clone(), &mut candidate);
            device.adamw_candidate(range, &ws, &ms, &vs, &gs, numbers, to, &mut []);
            assert_eq!(download(device, &ms), m, "a candidate leaves the moments alone");
            device.adamw_commit(inner.clone(), &gs, numbers, &mut ms, &mut vs);
            let candidate = download(device, &candidate);
            assert!(candidate[0].is_nan() && candidate[len + 1].is_nan());
            same_bits(&candidate[inner.clone()], &expected.w);
            let (ms, vs) = (download(device, &ms), download(device, &vs));
            same_bits(&ms[inner.clone()], &expected.m);
            same_bits(&vs[inner.clone()], &expected.v);
            assert_eq!(
                (ms[0], ms[len + 1], vs[0], vs[len + 1]),
                (m[0], m[len + 1], v[0], v[len + 1])
            );
            assert_eq!(download(device, &ws), w);
            let [mut ws, mut ms, mut vs] = [&w, &m, &v].map(|x| upload(device, x));
            let range = inner.clone();
            device.adamw_in_place(range, &gs, numbers, &mut ws, &mut ms, &mut vs, &mut []);
            let plain =
                [ws, ms, vs].map(|buffer| download(device, &buffer)[inner.clone()].to_vec());
            let AdamWState { w, m, v } = &expected;
            plain.iter().zip([w, m, v]).for_each(|(found, expected)| same_bits(found, expected));
        }
    }
}

/// Matrices brought into form with the step give the products that loading them gives, and the step is
/// the same as without them.
pub fn adamw_loads_matrices<B: Backend>(devices: &[B]) {
    let numbers = AdamWNumbers {
        decay: 1.0,
        beta1: 0.9,
        beta1_rest: 0.1,
        beta2: 0.95,
        beta2_rest: 0.05,
        correction2: 1.0,
        epsilon: 1e-8,
        step: -0.1,
        clip: 1.0,
    };
    let shapes =
        [MatrixShape { outputs: 50, inputs: 400 }, MatrixShape { outputs: 400, inputs: 7 }];
    let lens = shapes.map(|shape| shape.outputs * shape.inputs);
    // Something before, between and behind.
    let starts = [5, 5 + lens[0] + 3];
    let len = starts[1] + lens[1] + 11;
    for device in devices {
        let forms =
            || shapes.map(|shape| device.allocate_matrix(shape).expect("memory for a test"));
        let (mut ahead, mut plain) = (forms(), forms());
        let [mut w, mut m, mut v, g] = [1, 2, 3, 4].map(|seed| upload(device, &floats(len, seed)));
        let mut candidate = poisoned(device, len);
        let mut parts = place(&mut ahead, &starts, &lens);
        device.adamw_candidate(0..len, &w, &m, &v, &g, numbers, &mut candidate, &mut parts);
        let mut without = poisoned(device, len);
        device.adamw_candidate(0..len, &w, &m, &v, &g, numbers, &mut without, &mut []);
        let mut parts = place(&mut plain, &starts, &lens);
        device.adamw_in_place(0..len, &g, numbers, &mut w, &mut m, &mut v, &mut parts);
        let weights = download(device, &candidate);
        same_bits(&weights, &download(device, &without));
        same_bits(&download(device, &w), &weights);
        for (index, shape) in shapes.into_iter().enumerate() {
            let loaded = &weights[starts[index]..starts[index] + lens[index]];
            let loaded = products(device, shape, &matrix(device, shape, loaded));
            same_bits(&products(device, shape, &ahead[index]), &loaded);
            same_bits(&products(device, shape, &plain[index]), &loaded);
        }
    }
}

fn place<'a, M>(forms: &'a mut [M], starts: &[usize], lens: &[usize]) -> Vec<MatrixPart<'a, M>> {
    let ranges = starts.iter().zip(lens).map(|(start, len)| *start..start + len);
    forms.iter_mut().zip(ranges).map(|(matrix, range)| MatrixPart { range, matrix }).collect()
}

/// What a matrix does to one row on its way forward and one on its way back.
fn products<B: Backend>(device: &B, shape: MatrixShape, form: &B::Matrix) -> Vec<f32> {
    let x = upload_rows(device, &floats(shape.inputs, 5));
    let dy = upload_rows(device, &floats(shape.outputs, 6));
    let mut y = poisoned_rows(device, shape.outputs);
    device.linear_forward(1, &x, form, None, ForwardEpilogue::Plain, &mut y);
    let mut gradient = poisoned_rows(device, shape.inputs);
    let to = BackwardEpilogue::Plain { gradient: &mut gradient };
    device.linear_backward_input(1, &dy, form, to);
    [download(device, &y), download(device, &gradient)].concat()
}

fn same_bits(found: &[f32], expected: &[f32]) {
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert_eq!(found.to_bits(), expected.to_bits(), "element {i}: {found}, {expected}");
    }
}
