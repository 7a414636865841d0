//! SwiGLU.

use super::probe::{check, download, floats, poisoned, upload, widen};
use crate::backend::{Backend, Rows};
use crate::reference;

/// Forward and B.
pub fn swiglu<B: Backend>(devices: &[B]) {
    for (count, width) in [(1, 1), (3, 17), (260, 48)] {
        let rows = Rows { count, width };
        let scaled: Vec<f32> = floats(2 * count * width, 1).iter().map(|x| x * 20.0).collect();
        let dh = floats(count * width, 2);
        let expected = [
            ("h", reference::swiglu_forward(rows, &widen(&scaled))),
            ("gradient", reference::swiglu_backward(rows, &widen(&scaled), &widen(&dh))),
        ];
        check(&format!("swiglu {rows:?}"), devices, &expected, 1e-6, |device| {
            let mut gate_up = upload(device, &scaled);
            let mut h = poisoned(device, count * width);
            device.swiglu_forward(rows, &gate_up, &mut h);
            device.swiglu_backward(rows, &upload(device, &dh), &mut gate_up);
            vec![download(device, &h), download(device, &gate_up)]
        });
    }
}
