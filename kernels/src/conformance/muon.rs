//! Muon.

use super::optimizer::products;
use super::probe::{
    download, floats, matrix, poisoned, poisoned_rows, same_bits, upload, upload_rows, widen,
};
use crate::backend::{
    Backend, ForwardEpilogue, MatrixPart, MatrixShape, MuonCoefficients, MuonMatrix, MuonRange,
};
use crate::reference;
use crate::sizes::DeviceSizes;

const NUMBERS: MuonCoefficients =
    MuonCoefficients { decay: 0.999_9, momentum: 0.95, momentum_rest: 0.05, clip: 0.73 };

/// Roundings of activations that the error of a direction may amount to, in its norm: each of five
/// iterations rounds three products and two sums, and the slope at small singular values is 3.4.
const ROUNDINGS: f64 = 60.0;

/// Rows and columns: tall, wide, square, of one row and of one column, and on both sides of a block of
/// factors.
const SHAPES: [(usize, usize); 8] =
    [(1, 1), (5, 7), (7, 5), (1, 40), (40, 1), (33, 33), (20, 386), (386, 20)];

/// Candidate and commit together, and the step in place, are one step of the reference, bit for bit, on processors;
/// a device, whose products are its own, has one step of its own, with the momentum of the reference.
/// Matrices side by side are orthogonalised one by one, and what lies beside them stays.
pub fn muon_meets_the_bits<B: Backend>(devices: &[B]) {
    let matrices: Vec<MuonMatrix> = SHAPES
        .into_iter()
        .zip(1_u8..)
        .map(|((outputs, inputs), index)| MuonMatrix {
            shape: MatrixShape { outputs, inputs },
            step: -1e-2 * f32::from(index),
        })
        .collect();
    let len: usize = SHAPES.iter().map(|(outputs, inputs)| outputs * inputs).sum();
    let run = MuonRange { range: (1..len + 1).into(), matrices, numbers: NUMBERS };
    let [w, m, g] = [1, 2, 3].map(|seed| floats(len + 2, seed));
    let [mut expected_w, mut expected_m] = [&w, &m].map(Vec::clone);
    let mut start = 1;
    for matrix in &run.matrices {
        let range = start..start + matrix.shape.outputs * matrix.shape.inputs;
        start = range.end;
        let [w, m] = [&mut expected_w, &mut expected_m].map(|part| &mut part[range.clone()]);
        reference::muon(w, m, &g[range], *matrix, NUMBERS);
    }
    let mut first = None;
    for device in devices {
        let muon = device.muon_optimizer();
        let [mut ws, mut ms, gs] = [&w, &m, &g].map(|part| upload(device, part));
        let mut candidate = poisoned(device, len + 2);
        muon.candidate(&run, &ws, &ms, &gs, Some(&mut candidate), &mut []);
        same_bits(&download(device, &ms), &m);
        same_bits(&download(device, &ws), &w);
        muon.commit(&run, &gs, &mut ms);
        let candidate = download(device, &candidate);
        assert!(candidate[0].is_nan() && candidate[len + 1].is_nan());
        // Every device of a kind has the bits of the first.
        let expected_w: &[f32] = match device.sizes() {
            DeviceSizes::Processors(_) => &expected_w,
            DeviceSizes::Cuda(_) => {
                first.get_or_insert_with(|| [&w[..1], &candidate[1..=len], &w[len + 1..]].concat())
            }
        };
        same_bits(&candidate[1..=len], &expected_w[1..=len]);
        same_bits(&download(device, &ms), &expected_m);
        let mut ms = upload(device, &m);
        muon.in_place(&run, &gs, &mut ws, &mut ms, &mut []);
        same_bits(&download(device, &ws), expected_w);
        same_bits(&download(device, &ms), &expected_m);
    }
}

/// A step of weights and momentum of zero is the gradient orthogonalised: near Newton-Schulz
/// iterations in f64.
pub fn muon_is_near_newton_schulz<B: Backend>(devices: &[B]) {
    for (outputs, inputs) in SHAPES {
        let shape = MatrixShape { outputs, inputs };
        let len = outputs * inputs;
        let g = floats(len, 5);
        let matrices = vec![MuonMatrix { shape, step: 1.0 }];
        let run = MuonRange { range: (0..len).into(), matrices, numbers: NUMBERS };
        let expected = reference::newton_schulz(shape, &widen(&g));
        let norm = expected.iter().map(|x| x * x).sum::<f64>().sqrt();
        for device in devices {
            let muon = device.muon_optimizer();
            let zeros = upload(device, &vec![0.0; len]);
            let mut found = poisoned(device, len);
            muon.candidate(&run, &zeros, &zeros, &upload(device, &g), Some(&mut found), &mut []);
            let found = download(device, &found);
            let squares = found.iter().zip(&expected).map(|(x, y)| (f64::from(*x) - y).powi(2));
            let error = squares.sum::<f64>().sqrt() / norm;
            assert!(error < 1e-4 + ROUNDINGS * device.rounding(), "{shape:?}: {error:e}");
        }
    }
}

/// Matrices packed with the step give the products that loading them gives.
pub fn muon_loads_matrices<B: Backend>(devices: &[B]) {
    let shape = MatrixShape { outputs: 24, inputs: 16 };
    let half = MatrixShape { outputs: 12, ..shape };
    let len = shape.outputs * shape.inputs;
    let matrices = vec![MuonMatrix { shape: half, step: -0.1 }; 2];
    let run = MuonRange { range: (0..len).into(), matrices, numbers: NUMBERS };
    for device in devices {
        let muon = device.muon_optimizer();
        let [mut w, mut m, g] = [1, 2, 3].map(|seed| upload(device, &floats(len, seed)));
        let x = upload_rows(device, &floats(3 * shape.inputs, 4));
        let product = |matrix: &B::Matrix| {
            let mut y = poisoned_rows(device, 3 * shape.outputs);
            device.linear_forward(3, &x, matrix, None, ForwardEpilogue::Plain, &mut y);
            download(device, &y)
        };
        let mut packed = matrix(device, shape, &vec![0.0; len]);
        let mut candidate = poisoned(device, len);
        let mut parts = [MatrixPart { range: 0..len, matrix: &mut packed }];
        muon.candidate(&run, &w, &m, &g, Some(&mut candidate), &mut parts);
        let expected = product(&matrix(device, shape, &download(device, &candidate)));
        same_bits(&product(&packed), &expected);
        let mut packed = matrix(device, shape, &vec![0.0; len]);
        let mut parts = [MatrixPart { range: 0..len, matrix: &mut packed }];
        muon.candidate(&run, &w, &m, &g, None, &mut parts);
        same_bits(&product(&packed), &expected);
        let mut packed = matrix(device, shape, &vec![0.0; len]);
        let mut parts = [MatrixPart { range: 0..len, matrix: &mut packed }];
        muon.in_place(&run, &g, &mut w, &mut m, &mut parts);
        same_bits(&product(&packed), &expected);
    }
}

/// Where candidates are packed weights, a matrix of which only some rows are Muon's has the others as they were.
pub fn muon_packs_parts_of_matrices<B: Backend>(devices: &[B]) {
    let shape = MatrixShape { outputs: 24, inputs: 16 };
    let third = shape.outputs * shape.inputs / 3;
    let matrices = vec![MuonMatrix { shape: MatrixShape { outputs: 8, ..shape }, step: -0.1 }; 2];
    let run = MuonRange { range: (third..3 * third).into(), matrices, numbers: NUMBERS };
    for device in devices {
        if device.packed_weights_optimizer().is_none() {
            return;
        }
        let muon = device.muon_optimizer();
        let [w, m, g] = [1, 2, 3].map(|seed| upload(device, &floats(3 * third, seed)));
        let mut candidate = upload(device, &floats(3 * third, 1));
        muon.candidate(&run, &w, &m, &g, Some(&mut candidate), &mut []);
        let mut packed = matrix(device, shape, &floats(3 * third, 1));
        let mut parts = [MatrixPart { range: 0..3 * third, matrix: &mut packed }];
        muon.candidate(&run, &w, &m, &g, None, &mut parts);
        let expected = matrix(device, shape, &download(device, &candidate));
        same_bits(&products(device, shape, &packed), &products(device, shape, &expected));
    }
}
