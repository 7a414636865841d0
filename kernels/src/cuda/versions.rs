//! Arithmetic between versions of weights, one launch each.

use super::backend::CudaBackend;
use super::device::Device;
use super::error::DeviceFault;
use super::kernel::{Arguments, Kernel, Launch};
use super::memory::CudaBuffer;
use crate::backend::AdamWCoefficients;

/// Buffers of one length as arguments, and that length behind them.
fn arguments<D: Device>(buffers: &[&CudaBuffer<D>]) -> (Arguments, usize) {
    let len = buffers[0].len();
    assert!(buffers.iter().all(|buffer| buffer.len() == len), "versions of one layer");
    let arguments = buffers
        .iter()
        .fold(Arguments::new(), |arguments, buffer| arguments.address(buffer.floats(0)));
    (arguments.count(len), len)
}

fn launch<D: Device>(
    device: &CudaBackend<D>,
    kernel: Kernel,
    (arguments, len): (Arguments, usize),
    numbers: &[f32],
) -> Result<(), DeviceFault> {
    let arguments = numbers.iter().fold(arguments, |arguments, number| arguments.float(*number));
    device.launch(&Launch::over(kernel, len.div_ceil(4), arguments))
}

pub(super) fn adam_ahead<D: Device>(
    device: &CudaBackend<D>,
    [w, m, v]: [&CudaBuffer<D>; 3],
    numbers: AdamWCoefficients,
    to: &CudaBuffer<D>,
) -> Result<(), DeviceFault> {
    let AdamWCoefficients { step, correction2, epsilon, .. } = numbers;
    let buffers = arguments(&[w, m, v, to]);
    launch(device, Kernel::AdamAhead, buffers, &[step, correction2, epsilon])
}

pub(super) fn weights_along<D: Device>(
    device: &CudaBackend<D>,
    w: &CudaBuffer<D>,
    direction: &CudaBuffer<D>,
    rate: f32,
    to: &CudaBuffer<D>,
) -> Result<(), DeviceFault> {
    launch(device, Kernel::WeightsAlong, arguments(&[w, direction, to]), &[rate])
}

pub(super) fn track_change<D: Device>(
    device: &CudaBackend<D>,
    before: &CudaBuffer<D>,
    after: &CudaBuffer<D>,
    decay: f32,
    change: &CudaBuffer<D>,
) -> Result<(), DeviceFault> {
    let buffers = arguments(&[before, after, change]);
    launch(device, Kernel::TrackChange, buffers, &[decay, 1.0 - decay])
}

pub(super) fn pull_together<D: Device>(
    device: &CudaBackend<D>,
    alpha: f32,
    w: &CudaBuffer<D>,
    reference: &CudaBuffer<D>,
) -> Result<(), DeviceFault> {
    launch(device, Kernel::PullTogether, arguments(&[w, reference]), &[alpha])
}
