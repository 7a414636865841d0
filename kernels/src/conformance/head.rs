//! The output head with its loss.

use super::probe::{
    check, download, floats, matrix, poisoned, poisoned_rows, tokens, upload_rows, widen,
};
use crate::backend::{Backend, IGNORED_TARGET, LossScale, MatrixShape};
use crate::reference;

/// A logit here is a sum of up to 390 products and reaches 20: its last bit is 2e-6, and the
/// exponential turns that into a relative error.
const ERROR_MAX: f64 = 2e-5;

/// Forward and B, of which every third target is ignored or none, without z-loss and with it; the
/// loss is compared in the bits of its f64 between devices.
pub fn head<B: Backend>(devices: &[B]) {
    let shapes = [(1, 2, 3), (20, 97, 32), (300, 400, 24), (15, 1000, 390)];
    let cases = shapes
        .into_iter()
        .flat_map(|shape| [(shape, false, 0.0), (shape, true, 0.0), (shape, true, 0.0625)]);
    for ((rows, outputs, inputs), is_any_ignored, z_loss) in cases {
        let shape = MatrixShape { outputs, inputs };
        let x = floats(rows * inputs, 1);
        let w = floats(outputs * inputs, 2);
        let mut targets = tokens(rows, outputs, 3);
        if is_any_ignored {
            targets.iter_mut().step_by(3).for_each(|target| *target = IGNORED_TARGET);
        }
        let scale = LossScale { cross_entropy: 0.125, z_loss };
        let forward = reference::head_forward(shape, &widen(&x), &widen(&w), &targets);
        let scales = [scale.cross_entropy, scale.z_loss].map(f64::from);
        let back = reference::head_backward(shape, &widen(&x), &widen(&w), &targets, scales);
        let expected = [
            ("logits", forward.logits),
            ("log sums", forward.log_sums),
            ("loss", vec![forward.loss]),
            ("gradient of logits", back.logits),
            ("gradient of x", back.x),
        ];
        let losses: Vec<u64> = devices
            .iter()
            .map(|device| run(device, shape, &x, &w, &targets, scale).0.to_bits())
            .collect();
        assert!(losses.iter().all(|loss| *loss == losses[0]), "losses differ: {losses:?}");
        check(
            &format!("head {shape:?} z-loss {z_loss}"),
            devices,
            &expected,
            ERROR_MAX,
            |device| run(device, shape, &x, &w, &targets, scale).1,
        );
    }
}

fn run<B: Backend>(
    device: &B,
    shape: MatrixShape,
    x: &[f32],
    w: &[f32],
    targets: &[u32],
    scale: LossScale,
) -> (f64, Vec<Vec<f32>>) {
    let rows = targets.len();
    let x = upload_rows(device, x);
    let matrix = matrix(device, shape, w);
    let mut logits = poisoned_rows(device, rows * shape.outputs);
    let mut log_sums = poisoned(device, rows);
    let loss = device.head_forward(&x, &matrix, targets, &mut logits, &mut log_sums);
    let loss = loss.wait().expect("no fault");
    let before = download(device, &logits);
    let mut dx = poisoned_rows(device, rows * shape.inputs);
    device.head_backward_input(targets, scale, &log_sums, &matrix, &mut logits, &mut dx);
    let [log_sums, after, dx] = [&log_sums, &logits, &dx].map(|result| download(device, result));
    (loss, vec![before, log_sums, vec![loss as f32], after, dx])
}

/// A target that is ignored hides even a row of NaN: loss and gradient of all rows are numbers.
pub fn head_ignores_rows_of_nan<B: Backend>(devices: &[B]) {
    let shape = MatrixShape { outputs: 50, inputs: 16 };
    let mut x = floats(3 * 16, 1);
    x[16..32].fill(f32::NAN);
    let w = floats(50 * 16, 2);
    let of = LossScale::of_cross_entropy;
    for device in devices {
        let scale = LossScale { z_loss: 1e-4, ..of(1.0) };
        let (loss, results) = run(device, shape, &x, &w, &[3, IGNORED_TARGET, 49], scale);
        assert!(loss.is_finite(), "a loss of {loss}");
        assert!(results[3].iter().chain(&results[4]).all(|x| x.is_finite()));
        assert!(results[3][50..100].iter().chain(&results[4][16..32]).all(|x| *x == 0.0));
        let nothing = run(device, shape, &x, &w, &[IGNORED_TARGET; 3], of(0.0));
        assert_eq!(nothing.0, 0.0, "a loss over nothing");
    }
}

/// Logits in the hundreds neither overflow nor lose the loss.
pub fn head_is_stable_for_large_logits<B: Backend>(devices: &[B]) {
    let shape = MatrixShape { outputs: 500, inputs: 16 };
    let x: Vec<f32> = floats(32, 1).iter().map(|x| x * 300.0).collect();
    let w = floats(500 * 16, 2);
    let targets = [3, 499];
    let exact = reference::head_forward(shape, &widen(&x), &widen(&w), &targets).loss;
    for device in devices {
        let scale = LossScale { cross_entropy: 1.0, z_loss: 1e-4 };
        let (loss, results) = run(device, shape, &x, &w, &targets, scale);
        let error_max = f64::max(1e-4, 4.0 * device.rounding());
        assert!((loss - exact).abs() < error_max * exact, "{loss}, expected {exact}");
        assert!(results.iter().flatten().all(|x| x.is_finite()));
    }
}
