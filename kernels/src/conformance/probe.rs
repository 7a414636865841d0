//! Inputs, uploads and comparisons.

use crate::backend::{Backend, BufferView, BufferViewMut, MatrixShape};
use crate::fingerprint::{GOLDEN, mix};

/// Reproducible floats between -1 and 1.
#[must_use]
pub fn floats(len: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(GOLDEN).wrapping_add(1);
    let mut next = || {
        // SplitMix64 (Steele et al., OOPSLA 2014, figure 17).
        state = state.wrapping_add(GOLDEN);
        mix(state) >> 40
    };
    (0..len).map(|_| next() as f32 / (1 << 23) as f32 - 1.0).collect()
}

pub(super) fn widen(floats: &[f32]) -> Vec<f64> {
    floats.iter().map(|x| f64::from(*x)).collect()
}

/// Token ids below `vocabulary`.
pub(super) fn tokens(len: usize, vocabulary: usize, seed: u64) -> Vec<u32> {
    floats(len, seed)
        .into_iter()
        .map(|x| ((x + 1.0) / 2.0 * vocabulary as f32) as u32 % vocabulary as u32)
        .collect()
}

pub(super) fn upload<B: Backend>(device: &B, floats: &[f32]) -> B::Buffer {
    let mut buffer = device.allocate(floats.len()).expect("memory for a test");
    device.upload(floats, BufferViewMut::new(&mut buffer, 0..floats.len()));
    buffer
}

/// Uploads floats as activations.
pub(super) fn upload_rows<B: Backend>(device: &B, floats: &[f32]) -> B::Buffer {
    let mut buffer = device.allocate_rows(floats.len()).expect("memory for a test");
    device.upload(floats, BufferViewMut::new(&mut buffer, 0..floats.len()));
    buffer
}

/// Activations that an operation must overwrite entirely.
pub(super) fn poisoned_rows<B: Backend>(device: &B, len: usize) -> B::Buffer {
    upload_rows(device, &vec![f32::NAN; len])
}

/// A buffer that an operation must overwrite entirely.
pub(super) fn poisoned<B: Backend>(device: &B, len: usize) -> B::Buffer {
    upload(device, &vec![f32::NAN; len])
}

pub(super) fn download<B: Backend>(device: &B, buffer: &B::Buffer) -> Vec<f32> {
    device.download(BufferView::new(buffer, 0..device.len(buffer)))
}

pub(super) fn whole<'a, B: Backend>(
    device: &B,
    buffer: &'a B::Buffer,
) -> BufferView<'a, B::Buffer> {
    BufferView::new(buffer, 0..device.len(buffer))
}

pub(super) fn matrix<B: Backend>(device: &B, shape: MatrixShape, floats: &[f32]) -> B::Matrix {
    let buffer = upload(device, floats);
    let mut matrix = device.allocate_matrix(shape).expect("memory for a test");
    device.load_matrix(whole(device, &buffer), &mut matrix);
    matrix
}

/// Roundings of activations that one operation's error may amount to, relative to the largest
/// result: of its operands, of the result, and what a sum makes of them.
const ROUNDINGS_MAX: f64 = 12.0;

/// Checks each result of the first device against its reference, and every other device's bits
/// against the first's. `run` yields named results.
pub(super) fn check<B: Backend>(
    case: &str,
    devices: &[B],
    expected: &[(&str, Vec<f64>)],
    error_max: f64,
    run: impl Fn(&B) -> Vec<Vec<f32>>,
) {
    let error_max = error_max.max(ROUNDINGS_MAX * devices[0].rounding());
    let found = run(&devices[0]);
    assert_eq!(found.len(), expected.len());
    for (found, (name, expected)) in found.iter().zip(expected) {
        assert_eq!(found.len(), expected.len(), "{case}: length of {name}");
        let largest = expected.iter().fold(1e-3, |max: f64, x| max.max(x.abs()));
        for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
            let error = (f64::from(*found) - expected).abs() / largest;
            assert!(
                error <= error_max,
                "{case}: {name}[{i}] is {found}, expected {expected}, error {error:e}"
            );
        }
    }
    for (index, device) in devices.iter().enumerate().skip(1) {
        for ((found, first), (name, _)) in run(device).iter().zip(&found).zip(expected) {
            for (i, (found, first)) in found.iter().zip(first).enumerate() {
                assert_eq!(
                    found.to_bits(),
                    first.to_bits(),
                    "{case}: device {index} differs from the first at {name}[{i}]"
                );
            }
        }
    }
}

/// Checks that both are the same to the last bit.
pub(super) fn same_bits(found: &[f32], expected: &[f32]) {
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert_eq!(found.to_bits(), expected.to_bits(), "element {i}: {found}, {expected}");
    }
}
