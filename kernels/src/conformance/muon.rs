//! Muon.

use super::probe::{download, floats, matrix, poisoned, same_bits, upload, widen};
use crate::backend::{
    Backend, ForwardEpilogue, MatrixPart, MatrixShape, MuonCoefficients, MuonMatrix, MuonRange,
};
use crate::reference;

const NUMBERS: MuonCoefficients =
    MuonCoefficients { decay: 0.999_9, momentum: 0.95, momentum_rest: 0.05, clip: 0.73 };

/// Rows and columns: tall, wide, square, of one row and of one column, and on both sides of a block of
/// factors.
const SHAPES: [(usize, usize); 8] =
    [(1, 1), (5, 7), (7, 5), (1, 40), (40, 1), (33, 33), (20, 386), (386, 20)];

/// Candidate and commit together, and the step in place, are one step of the reference, bit for bit:
/// matrices side by side are orthogonalised one by one, and what lies beside them stays.
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
    for device in devices {
        let Some(muon) = device.muon_optimizer() else { return };
        let [mut ws, mut ms, gs] = [&w, &m, &g].map(|part| upload(device, part));
        let mut candidate = poisoned(device, len + 2);
        muon.candidate(&run, &ws, &ms, &gs, &mut candidate, &mut []);
        same_bits(&download(device, &ms), &m);
        same_bits(&download(device, &ws), &w);
        muon.commit(&run, &gs, &mut ms);
        let candidate = download(device, &candidate);
        assert!(candidate[0].is_nan() && candidate[len + 1].is_nan());
        same_bits(&candidate[1..=len], &expected_w[1..=len]);
        same_bits(&download(device, &ms), &expected_m);
        let mut ms = upload(device, &m);
        muon.in_place(&run, &gs, &mut ws, &mut ms, &mut []);
        same_bits(&download(device, &ws), &expected_w);
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
        for device in devices {
            let Some(muon) = device.muon_optimizer() else { return };
            let zeros = upload(device, &vec![0.0; len]);
            let mut found = poisoned(device, len);
            muon.candidate(&run, &zeros, &zeros, &upload(device, &g), &mut found, &mut []);
            for (found, expected) in download(device, &found).into_iter().zip(&expected) {
                let error = (f64::from(found) - expected).abs();
                assert!(error < 1e-4, "{shape:?}: {found}, expected {expected}");
            }
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
        let Some(muon) = device.muon_optimizer() else { return };
        let [mut w, mut m, g] = [1, 2, 3].map(|seed| upload(device, &floats(len, seed)));
        let x = upload(device, &floats(3 * shape.inputs, 4));
        let product = |matrix: &B::Matrix| {
            let mut y = poisoned(device, 3 * shape.outputs);
            device.linear_forward(3, &x, matrix, None, ForwardEpilogue::Plain, &mut y);
            download(device, &y)
        };
        let mut packed = matrix(device, shape, &vec![0.0; len]);
        let mut candidate = poisoned(device, len);
        let mut parts = [MatrixPart { range: 0..len, matrix: &mut packed }];
        muon.candidate(&run, &w, &m, &g, &mut candidate, &mut parts);
        let expected = product(&matrix(device, shape, &download(device, &candidate)));
        same_bits(&product(&packed), &expected);
        let mut packed = matrix(device, shape, &vec![0.0; len]);
        let mut parts = [MatrixPart { range: 0..len, matrix: &mut packed }];
        muon.in_place(&run, &g, &mut w, &mut m, &mut parts);
        same_bits(&product(&packed), &expected);
    }
}
