//! Sums of squares and AdamW.

use super::probe::{
    download, floats, matrix, poisoned, poisoned_rows, same_bits, upload, upload_rows,
};
use crate::backend::{
    AdamWCoefficients, AdamWRange, Backend, BackwardEpilogue, BufferView, ForwardEpilogue,
    MatrixPart, MatrixShape, SQUARE_SUM_CHUNK, UpdateState,
};
use crate::reference::{AdamWState, adamw};

/// Near the sum in f64, the same wherever the tensor lies and whatever is summed beside it; what is
/// not finite is counted.
pub fn square_sums<B: Backend>(devices: &[B]) {
    let mut first = Vec::new();
    for (index, device) in devices.iter().enumerate() {
        let mut sums = Vec::new();
        for len in [0, 1, 17, 1023, 16_384, 16_387, SQUARE_SUM_CHUNK + 1, 9 * SQUARE_SUM_CHUNK + 5]
        {
            // All bits of a float, in many sizes: their squares do not add up without rounding.
            let x: Vec<f32> =
                floats(len, 1).into_iter().map(|x| 1.0 / (1e-6 + x.powi(4))).collect();
            sums.push(square_sum(device, &x));
        }
        if index == 0 {
            first.clone_from(&sums);
        }
        assert_eq!(sums, first, "device {index} gives the bits of the first");
    }
    squares_not_finite(devices);
}

/// The bits of the sum of squares of `x`.
fn square_sum<B: Backend>(device: &B, x: &[f32]) -> u64 {
    let expected: f64 = x.iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
    // Twice, in different places, with something between.
    let len = x.len();
    let second = x.len() + 7;
    let padded = [&[f32::NAN][..], x, &[f32::INFINITY; 6], x].concat();
    let buffer = upload(device, &padded);
    let views = [1..len + 1, len + 1..len + 1, second..second + len];
    let views = views.map(|range| BufferView::new(&buffer, range));
    let found = device.sum_squares_of_each(&views);
    assert_eq!(found.len(), views.len());
    let alone = views.map(|view| device.sum_squares(view));
    for (found, alone) in found.iter().zip(&alone) {
        assert_eq!(found.sum.to_bits(), alone.sum.to_bits(), "{len} elements among others");
        assert_eq!((found.nonfinite, alone.nonfinite), (0, 0));
    }
    let [one, nothing, other] = alone;
    assert_eq!(one.sum.to_bits(), other.sum.to_bits(), "{len} elements elsewhere");
    assert_eq!(nothing.sum.to_bits(), 0.0f64.to_bits());
    assert!((one.sum - expected).abs() <= 1e-12 * expected, "{}, expected {expected}", one.sum);
    one.sum.to_bits()
}

fn squares_not_finite<B: Backend>(devices: &[B]) {
    for device in devices {
        let mut x = floats(1000, 2);
        (x[3], x[500], x[999]) = (f32::NAN, f32::INFINITY, f32::NEG_INFINITY);
        let buffer = upload(device, &x);
        let found = device.sum_squares(BufferView::new(&buffer, 0..999));
        assert!(!found.sum.is_finite());
        assert_eq!(found.nonfinite, 2);
        let large = upload(device, &[f32::MAX, -f32::MAX]);
        let found = device.sum_squares(BufferView::new(&large, 0..2));
        assert!(found.sum.is_finite(), "squares of finite floats fit in f64");
    }
}

/// An update early in a run, clipped.
pub(super) const NUMBERS: AdamWCoefficients = AdamWCoefficients {
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

/// Candidate and commit together are one AdamW step, bit for bit, and leave the rest alone.
pub fn adamw_meets_the_bits<B: Backend>(devices: &[B]) {
    let numbers = NUMBERS;
    for len in [1, 15, 16, 17, 70_000] {
        let w = floats(len + 2, 1);
        let m = floats(len + 2, 2);
        let v: Vec<f32> = floats(len + 2, 3).iter().map(|x| x * x).collect();
        let mut g = floats(len + 2, 4);
        (g[1], g[len]) = (1e-42, -0.0);
        let inner = 1..len + 1;
        let [part_w, part_m, part_v] = [&w, &m, &v].map(|x| x[inner.clone()].to_vec());
        let mut expected = AdamWState { w: part_w, m: part_m, v: part_v };
        adamw(&mut expected, &g[inner.clone()], numbers);
        for device in devices {
            let [ws, gs] = [&w, &g].map(|x| upload(device, x));
            let mut ms = upload(device, &m);
            let mut vs = upload(device, &v);
            let mut candidate = poisoned(device, len + 2);
            let range = inner.clone();
            let to = &mut candidate;
            device.adamw_candidate(&range.into(), &ws, &ms, &vs, &gs, numbers, to, &mut []);
            assert_eq!(download(device, &ms), m, "a candidate leaves the moments alone");
            device.adamw_commit(&inner.clone().into(), &gs, numbers, &mut ms, &mut vs);
            let candidate = download(device, &candidate);
            assert!(candidate[0].is_nan() && candidate[len + 1].is_nan());
            same_bits(&candidate[inner.clone()], &expected.w);
            let ms = download(device, &ms);
            let vs = download(device, &vs);
            same_bits(&ms[inner.clone()], &expected.m);
            same_bits(&vs[inner.clone()], &expected.v);
            assert_eq!(
                (ms[0], ms[len + 1], vs[0], vs[len + 1]),
                (m[0], m[len + 1], v[0], v[len + 1])
            );
            assert_eq!(download(device, &ws), w);
            let [mut ws, mut ms, mut vs] = [&w, &m, &v].map(|x| upload(device, x));
            let range = inner.clone();
            device.adamw_in_place(&range.into(), &gs, numbers, &mut ws, &mut ms, &mut vs, &mut []);
            let plain =
                [ws, ms, vs].map(|buffer| download(device, &buffer)[inner.clone()].to_vec());
            let AdamWState { w, m, v } = &expected;
            plain.iter().zip([w, m, v]).for_each(|(found, expected)| same_bits(found, expected));
        }
    }
}

/// Matrices packed with the step give the products that loading them gives, and the step is
/// the same as without them.
pub fn adamw_loads_matrices<B: Backend>(devices: &[B]) {
    let numbers = AdamWCoefficients {
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
        let packed =
            || shapes.map(|shape| device.allocate_matrix(shape).expect("memory for a test"));
        let mut ahead = packed();
        let mut plain = packed();
        let [mut w, mut m, mut v, g] = [1, 2, 3, 4].map(|seed| upload(device, &floats(len, seed)));
        let mut candidate = poisoned(device, len);
        let mut parts = place(&mut ahead, &starts, &lens);
        device.adamw_candidate(
            &(0..len).into(),
            &w,
            &m,
            &v,
            &g,
            numbers,
            &mut candidate,
            &mut parts,
        );
        let mut without = poisoned(device, len);
        device.adamw_candidate(&(0..len).into(), &w, &m, &v, &g, numbers, &mut without, &mut []);
        let mut parts = place(&mut plain, &starts, &lens);
        device.adamw_in_place(&(0..len).into(), &g, numbers, &mut w, &mut m, &mut v, &mut parts);
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

/// Where candidates are packed weights: these, what lies in no matrix, and the state after the
/// commit are those of the step in place, and a candidate alone changes nothing of the state.
pub fn candidates_that_are_packed_weights<B: Backend>(devices: &[B]) {
    let shapes =
        [MatrixShape { outputs: 50, inputs: 400 }, MatrixShape { outputs: 400, inputs: 7 }];
    let lens = shapes.map(|shape| shape.outputs * shape.inputs);
    let starts = [5, 5 + lens[0] + 3];
    let len = starts[1] + lens[1] + 2000;
    // More runs than a device may take at once, each with numbers of its own. One holds a matrix
    // and what lies beside it.
    let mut ends = vec![5, starts[1] - 2, starts[1], starts[1] + lens[1]];
    ends.extend((starts[1] + lens[1]..len).step_by(100).skip(1).chain([len]));
    let run = |(index, end): (usize, &usize)| {
        let start = if index == 0 { 0 } else { ends[index - 1] };
        AdamWRange { range: (start..*end).into(), numbers: numbers_of(index) }
    };
    let runs: Vec<AdamWRange> = ends.iter().enumerate().map(run).collect();
    for device in devices {
        let Some(optimizer) = device.packed_weights_optimizer() else { return };
        let packed =
            || shapes.map(|shape| device.allocate_matrix(shape).expect("memory for a test"));
        let mut ahead = packed();
        let mut plain = packed();
        let buffers = || [1, 2, 3].map(|seed| upload(device, &floats(len, seed)));
        let ([mut w, mut m, mut v], g) = (buffers(), upload(device, &floats(len, 4)));
        let rest_len = len - lens.iter().sum::<usize>();
        let mut rest = poisoned(device, rest_len);
        let state = UpdateState { w: &w, m: &m, v: &v, g: &g };
        let mut parts = place(&mut ahead, &starts, &lens);
        optimizer.candidate(&runs, state, &mut rest, &mut parts);
        for (buffer, seed) in [(&w, 1), (&m, 2), (&v, 3)] {
            same_bits(&download(device, buffer), &floats(len, seed));
        }
        let [mut plain_w, mut plain_m, mut plain_v] = buffers();
        for AdamWRange { range, numbers } in &runs {
            let mut parts = place(&mut plain, &starts, &lens);
            let within = &range.weights;
            parts.retain(|part| within.start <= part.range.start && part.range.end <= within.end);
            let [w, m, v] = [&mut plain_w, &mut plain_m, &mut plain_v];
            device.adamw_in_place(range, &g, *numbers, w, m, v, &mut parts);
        }
        optimizer.commit(&runs, &g, &mut w, &mut m, &mut v);
        for (found, expected) in [(&w, &plain_w), (&m, &plain_m), (&v, &plain_v)] {
            same_bits(&download(device, found), &download(device, expected));
        }
        let weights = download(device, &w);
        let between = [0..starts[0], starts[0] + lens[0]..starts[1], starts[1] + lens[1]..len];
        let between = between.map(|range| weights[range].to_vec()).concat();
        same_bits(&download(device, &rest), &between);
        for (index, shape) in shapes.into_iter().enumerate() {
            let expected = products(device, shape, &plain[index]);
            same_bits(&products(device, shape, &ahead[index]), &expected);
        }
    }
}

pub(super) fn numbers_of(run: usize) -> AdamWCoefficients {
    let decay = 1.0 - 0.01 * (run % 7) as f32;
    let step = -0.1 - 0.01 * run as f32;
    AdamWCoefficients { decay, correction2: 1.0, step, clip: 1.0, ..NUMBERS }
}

pub(super) fn place<'a, M>(
    packed: &'a mut [M],
    starts: &[usize],
    lens: &[usize],
) -> Vec<MatrixPart<'a, M>> {
    let ranges = starts.iter().zip(lens).map(|(start, len)| *start..start + len);
    packed.iter_mut().zip(ranges).map(|(matrix, range)| MatrixPart { range, matrix }).collect()
}

/// What a matrix does to one row on its way forward and one on its way back.
pub(super) fn products<B: Backend>(device: &B, shape: MatrixShape, matrix: &B::Matrix) -> Vec<f32> {
    let x = upload_rows(device, &floats(shape.inputs, 5));
    let dy = upload_rows(device, &floats(shape.outputs, 6));
    let mut y = poisoned_rows(device, shape.outputs);
    device.linear_forward(1, &x, matrix, None, ForwardEpilogue::Plain, &mut y);
    let mut gradient = poisoned_rows(device, shape.inputs);
    let to = BackwardEpilogue::Plain { gradient: &mut gradient };
    device.linear_backward_input(1, &dy, matrix, to);
    [download(device, &y), download(device, &gradient)].concat()
}
