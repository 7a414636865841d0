//! Linear layers with their epilogues.

use super::probe::{
    check, download, floats, matrix, poisoned_rows, upload, upload_rows, whole, widen,
};
use crate::backend::{
    Accumulate, Backend, BackwardEpilogue, ForwardEpilogue, LinearGradient, MatrixShape,
};
use crate::reference;

/// Rows, outputs, inputs: below, at and above tiles, panels and blocks, and odd ones.
const SHAPES: [(usize, usize, usize); 7] = [
    (1, 1, 1),
    (3, 5, 7),
    (14, 32, 16),
    (17, 97, 33),
    (60, 384, 384),
    (300, 65, 385),
    (29, 800, 900),
];
/// The error allowed for a sum of a thousand products of numbers below one.
const ERROR_MAX: f64 = 2e-6;

/// The forward pass with each epilogue.
pub fn linear_forward<B: Backend>(devices: &[B]) {
    for (rows, outputs, inputs) in SHAPES {
        let shape = MatrixShape { outputs, inputs };
        let x = floats(rows * inputs, 1);
        let w = floats(outputs * inputs, 2);
        let bias = floats(outputs, 3);
        let skip = floats(rows * outputs, 4);
        let wide = |bias: Option<&[f32]>| {
            let bias = bias.map(widen);
            reference::linear_forward(shape, &widen(&x), &widen(&w), bias.as_deref())
        };
        let plain = wide(None);
        let biased = wide(Some(&bias));
        let gelu = biased.iter().map(|x| reference::gelu(*x)).collect();
        let added = biased.iter().zip(&skip).map(|(y, skip)| y + f64::from(*skip)).collect();
        let expected = [("plain", plain), ("before", biased), ("gelu", gelu), ("with skip", added)];
        check(&format!("linear forward {shape:?}"), devices, &expected, ERROR_MAX, |device| {
            let x = upload_rows(device, &x);
            let bias = upload(device, &bias);
            let skip = upload_rows(device, &skip);
            let matrix = matrix(device, shape, &w);
            let mut results = [(); 4].map(|()| poisoned_rows(device, rows * outputs));
            let [plain, before, gelu, added] = &mut results;
            device.linear_forward(rows, &x, &matrix, None, ForwardEpilogue::Plain, plain);
            let biased = || Some(whole(device, &bias));
            let epilogue = ForwardEpilogue::Gelu { before };
            device.linear_forward(rows, &x, &matrix, biased(), epilogue, gelu);
            let epilogue = ForwardEpilogue::Add { skip: &skip };
            device.linear_forward(rows, &x, &matrix, biased(), epilogue, added);
            results.iter().map(|result| download(device, result)).collect()
        });
    }
}

/// B, as it is and through GELU.
pub fn linear_backward<B: Backend>(devices: &[B]) {
    for (rows, outputs, inputs) in SHAPES {
        let shape = MatrixShape { outputs, inputs };
        let dy = floats(rows * outputs, 1);
        let w = floats(outputs * inputs, 2);
        let before = floats(rows * inputs, 3);
        let plain = reference::linear_backward_input(shape, &widen(&w), &widen(&dy));
        let slope = |(dx, x): (&f64, &f32)| dx * reference::gelu_slope(f64::from(*x));
        let gelu = plain.iter().zip(&before).map(slope).collect();
        let expected = [("plain", plain), ("through gelu", gelu)];
        check(&format!("linear backward {shape:?}"), devices, &expected, ERROR_MAX, |device| {
            let dy = upload_rows(device, &dy);
            let matrix = matrix(device, shape, &w);
            let mut plain = poisoned_rows(device, rows * inputs);
            let mut gelu = upload_rows(device, &before);
            let epilogue = BackwardEpilogue::Plain { gradient: &mut plain };
            device.linear_backward_input(rows, &dy, &matrix, epilogue);
            let epilogue = BackwardEpilogue::Gelu { before_then_gradient: &mut gelu };
            device.linear_backward_input(rows, &dy, &matrix, epilogue);
            vec![download(device, &plain), download(device, &gelu)]
        });
    }
}

/// W of two microbatches, the second one added, beside parameters that must stay as they are.
pub fn linear_weights<B: Backend>(devices: &[B]) {
    for (rows, outputs, inputs) in SHAPES {
        let shape = MatrixShape { outputs, inputs };
        let x = floats(2 * rows * inputs, 1);
        let dy = floats(2 * rows * outputs, 2);
        let (weight, bias) = reference::linear_backward_weights(shape, &widen(&x), &widen(&dy));
        let len = outputs * inputs;
        let mut gradient = vec![7.0];
        gradient.extend(weight);
        gradient.push(8.0);
        gradient.extend(bias);
        let expected = [("gradient", gradient)];
        let case = format!("linear weights {shape:?}");
        check(&case, devices, &expected, ERROR_MAX, |device| {
            let mut g = upload(device, &vec![f32::NAN; len + outputs + 2]);
            device.upload(&[7.0], crate::BufferViewMut::new(&mut g, 0..1));
            device.upload(&[8.0], crate::BufferViewMut::new(&mut g, len + 1..len + 2));
            for half in 0..2 {
                let x = upload_rows(device, &x[half * rows * inputs..][..rows * inputs]);
                let dy = upload_rows(device, &dy[half * rows * outputs..][..rows * outputs]);
                let to = LinearGradient {
                    buffer: &mut g,
                    weight: 1..len + 1,
                    bias: Some(len + 2..len + 2 + outputs),
                };
                let accumulate = [Accumulate::Start, Accumulate::Add][half];
                device.linear_backward_weights(rows, shape, &x, &dy, to, accumulate);
            }
            vec![download(device, &g)]
        });
    }
}

/// A NaN in an operand reaches the result's row, and no other.
pub fn linear_nonfinite_stays<B: Backend>(devices: &[B]) {
    let shape = MatrixShape { outputs: 40, inputs: 40 };
    for device in devices {
        let mut x = floats(3 * 40, 1);
        x[40 + 7] = f32::NAN;
        let x = upload_rows(device, &x);
        let matrix = matrix(device, shape, &floats(1600, 2));
        let mut before = poisoned_rows(device, 120);
        let mut y = poisoned_rows(device, 120);
        let epilogue = ForwardEpilogue::Gelu { before: &mut before };
        device.linear_forward(3, &x, &matrix, None, epilogue, &mut y);
        for (row, y) in download(device, &y).chunks_exact(40).enumerate() {
            assert!(y.iter().all(|y| y.is_nan() == (row == 1)), "row {row}");
        }
    }
}
