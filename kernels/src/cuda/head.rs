//! The output head with its loss: a product and a pass over its logits, or the other way round.

use super::backend::{CudaBackend, CudaMatrix};
use super::device::{Device, DeviceAddress, MatrixProduct, ProductKind};
use super::embed::list;
use super::error::DeviceFault;
use super::kernel::{Arguments, Kernel, Launch, THINGS_MAX};
use super::losses::pending_loss;
use super::memory::CudaBuffer;
use crate::backend::{IGNORED_TARGET, LossScale};
use crate::pending::Pending;
use crate::scratch::ScratchSlot;

/// Threads of a block: HEAD_THREADS of `head.cu`.
const THREADS: usize = 256;
/// Rows that go together. The shape of a product depends on it, so it is part of the arithmetic's
/// definition. The gradient of the features is a sum over the whole vocabulary and has few columns: with
/// 8,192 rows of 768 it has 384 tiles of 128 by 128, three for each multiprocessor of an H200; with the
/// 128 rows whose logits stay in its cache it had six in all and took 60 times as long.
const CHUNK_ROWS: usize = 8192;
/// Chunks begin at a multiple of this.
const TILE_ROWS: usize = 128;

/// The rows of each chunk, about as many in each: few would have a launch of their own. Of a vocabulary
/// of which so many have more threads than can be counted, fewer.
fn chunks(rows: usize, vocabulary: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    let countable = (THINGS_MAX - 1) / vocabulary.div_ceil(4) / TILE_ROWS * TILE_ROWS;
    let most = CHUNK_ROWS.min(countable);
    let chunk = rows.div_ceil(rows.div_ceil(most).max(1)).next_multiple_of(TILE_ROWS);
    (0..rows).step_by(chunk).map(move |first| first..rows.min(first + chunk))
}

/// The addresses of rows of logits and features, and of their targets and log sums.
struct HeadAddresses {
    logits: DeviceAddress,
    features: DeviceAddress,
    targets: DeviceAddress,
    log_sums: DeviceAddress,
}

impl HeadAddresses {
    fn of_row(&self, row: usize, row_bytes: usize, feature_bytes: usize) -> Self {
        let plus = |address: DeviceAddress, bytes: usize| address.plus((row * bytes) as u64);
        Self {
            logits: plus(self.logits, row_bytes),
            features: plus(self.features, feature_bytes),
            targets: plus(self.targets, 4),
            log_sums: plus(self.log_sums, 4),
        }
    }
}

/// The addresses of the head's tensors, with its targets copied to the device.
fn places<D: Device>(
    device: &CudaBackend<D>,
    matrix: &CudaMatrix<D>,
    targets: &[u32],
    [logits, features, log_sums]: [&CudaBuffer<D>; 3],
) -> Result<HeadAddresses, DeviceFault> {
    let rows = targets.len();
    assert_eq!(features.len(), rows * matrix.shape.inputs);
    assert_eq!(logits.len(), rows * matrix.shape.outputs);
    assert_eq!(log_sums.len(), rows);
    let mut counted = targets.iter().filter(|target| **target != IGNORED_TARGET);
    assert!(counted.all(|target| (*target as usize) < matrix.shape.outputs));
    Ok(HeadAddresses {
        logits: logits.rows(),
        features: features.rows(),
        targets: list(device, targets)?,
        log_sums: log_sums.floats(0),
    })
}

/// Logits and logarithms of sums; where the losses of the rows are.
fn losses<D: Device>(
    device: &CudaBackend<D>,
    x: &CudaBuffer<D>,
    matrix: &CudaMatrix<D>,
    targets: &[u32],
    logits: &mut CudaBuffer<D>,
    log_sums: &mut CudaBuffer<D>,
) -> Result<DeviceAddress, DeviceFault> {
    let places = places(device, matrix, targets, [logits, x, log_sums])?;
    let outputs = matrix.shape.outputs;
    let inputs = matrix.shape.inputs;
    let size = device.precision().bytes();
    let losses = device.scratch(ScratchSlot::Results, targets.len() * 8)?;
    for rows in chunks(targets.len(), outputs) {
        let at = places.of_row(rows.start, outputs * size, inputs * size);
        device.device().multiply(&MatrixProduct {
            kind: ProductKind::Forward,
            rows: rows.len(),
            outputs,
            inputs,
            left: at.features,
            right: matrix.weights.rows(),
            result: at.logits,
            addend: None,
        })?;
        let arguments = Arguments::new()
            .address(at.logits)
            .address(at.targets)
            .address(at.log_sums)
            .address(losses.plus(rows.start as u64 * 8))
            .size(outputs);
        let grid = [rows.len(), 1];
        device.launch(&Launch::blocks(Kernel::HeadForward, grid, THREADS, arguments))?;
    }
    Ok(losses)
}

pub(super) fn forward<D: Device>(
    device: &CudaBackend<D>,
    x: &CudaBuffer<D>,
    matrix: &CudaMatrix<D>,
    targets: &[u32],
    logits: &mut CudaBuffer<D>,
    log_sums: &mut CudaBuffer<D>,
) -> Result<Pending<f64>, DeviceFault> {
    let rows = losses(device, x, matrix, targets, logits, log_sums)?;
    pending_loss(device, (rows, targets.len()))
}

pub(super) fn backward<D: Device>(
    device: &CudaBackend<D>,
    targets: &[u32],
    scale: LossScale,
    log_sums: &CudaBuffer<D>,
    matrix: &CudaMatrix<D>,
    logits_then_gradient: &mut CudaBuffer<D>,
    gradient: &mut CudaBuffer<D>,
) -> Result<(), DeviceFault> {
    let tensors = [&*logits_then_gradient, &*gradient, log_sums];
    let places = places(device, matrix, targets, tensors)?;
    let outputs = matrix.shape.outputs;
    let inputs = matrix.shape.inputs;
    let size = device.precision().bytes();
    for rows in chunks(targets.len(), outputs) {
        let at = places.of_row(rows.start, outputs * size, inputs * size);
        let arguments = Arguments::new()
            .address(at.logits)
            .address(at.targets)
            .address(at.log_sums)
            .size(rows.len())
            .size(outputs)
            .float(scale.cross_entropy)
            .float(scale.log_sum_slope());
        let count = rows.len() * outputs.div_ceil(4);
        device.launch(&Launch::over(Kernel::HeadBackward, count, arguments))?;
        device.device().multiply(&MatrixProduct {
            kind: ProductKind::Input,
            rows: rows.len(),
            outputs,
            inputs,
            left: at.logits,
            right: matrix.weights.rows(),
            result: at.features,
            addend: None,
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{CHUNK_ROWS, THINGS_MAX, TILE_ROWS, chunks};

    #[test]
    fn chunks_are_all_rows_in_order_and_can_be_counted() {
        // The largest that a configuration may name.
        for vocabulary in [1, 50_304, 1 << 24] {
            for rows in [1, 1000, CHUNK_ROWS, CHUNK_ROWS + 1, 65_536] {
                let chunks: Vec<_> = chunks(rows, vocabulary).collect();
                assert_eq!(chunks.first().map(|chunk| chunk.start), Some(0));
                assert_eq!(chunks.last().map(|chunk| chunk.end), Some(rows));
                assert!(chunks.windows(2).all(|pair| pair[0].end == pair[1].start));
                let threads = |len: usize| len * vocabulary.div_ceil(4);
                assert!(chunks.iter().all(|chunk| threads(chunk.len()) < THINGS_MAX));
                assert!(chunks.iter().all(|chunk| chunk.len() <= CHUNK_ROWS));
                let lens = chunks.iter().map(std::ops::Range::len);
                let shortest = lens.clone().min().expect("there is one");
                let longest = lens.max().expect("there is one");
                assert!(longest - shortest < chunks.len() * TILE_ROWS, "{rows} {vocabulary}");
            }
        }
    }
}
