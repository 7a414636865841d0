//! GELU by itself, and SwiGLU.

use super::probe::{check, download, floats, matrix, poisoned_rows, upload_rows, widen};
use crate::backend::{Backend, ForwardEpilogue, MatrixShape, RowsShape};
use crate::reference;

/// GELU by itself, which has the bits of GELU behind a product.
pub fn gelu<B: Backend>(devices: &[B]) {
    for (count, width) in [(1, 1), (3, 17), (260, 48)] {
        let rows = RowsShape { count, width };
        let x: Vec<f32> = floats(count * width, 1).iter().map(|x| x * 5.0).collect();
        let expected = widen(&x).into_iter().map(reference::gelu).collect();
        check(&format!("gelu {rows:?}"), devices, &[("h", expected)], 1e-6, |device| {
            let mut h = poisoned_rows(device, count * width);
            device.gelu_forward(rows, &upload_rows(device, &x), &mut h);
            vec![download(device, &h)]
        });
        for device in devices {
            let shape = MatrixShape { outputs: width, inputs: width };
            let matrix = matrix(device, shape, &floats(width * width, 3));
            let mut before = poisoned_rows(device, count * width);
            let mut behind = poisoned_rows(device, count * width);
            let epilogue = ForwardEpilogue::Gelu { before: &mut before };
            device.linear_forward(
                count,
                &upload_rows(device, &x),
                &matrix,
                None,
                epilogue,
                &mut behind,
            );
            let mut alone = poisoned_rows(device, count * width);
            device.gelu_forward(rows, &before, &mut alone);
            let bits = |buffer| download(device, buffer).into_iter().map(f32::to_bits);
            assert!(bits(&alone).eq(bits(&behind)), "gelu {rows:?} behind a product");
        }
    }
}

/// SwiGLU: the forward pass and B.
pub fn swiglu<B: Backend>(devices: &[B]) {
    for (count, width) in [(1, 1), (3, 17), (260, 48)] {
        let rows = RowsShape { count, width };
        let scaled: Vec<f32> = floats(2 * count * width, 1).iter().map(|x| x * 20.0).collect();
        let dh = floats(count * width, 2);
        let expected = [
            ("h", reference::swiglu_forward(rows, &widen(&scaled))),
            ("gradient", reference::swiglu_backward(rows, &widen(&scaled), &widen(&dh))),
        ];
        check(&format!("swiglu {rows:?}"), devices, &expected, 1e-6, |device| {
            let mut gate_up = upload_rows(device, &scaled);
            let mut h = poisoned_rows(device, count * width);
            device.swiglu_forward(rows, &gate_up, &mut h);
            device.swiglu_backward(rows, &upload_rows(device, &dh), &mut gate_up);
            vec![download(device, &h), download(device, &gate_up)]
        });
    }
}
