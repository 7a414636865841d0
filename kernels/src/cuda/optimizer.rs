//! Sums of squares, AdamW in halves, fingerprints.

use std::ops::Range;

use super::backend::{CudaBackend, CudaMatrix, floats};
use super::device::{Address, Device};
use super::error::DeviceFault;
use super::kernel::{Arguments, Kernel, Launch};
use super::memory::{CudaBuffer, Slot};
use crate::backend::{AdamWNumbers, MatrixPart, SQUARE_SUM_CHUNK, SquareSum, View};

const WARP: usize = 32;
/// FINGERPRINT_THREADS of `optimizer.cu`.
const FINGERPRINT_THREADS: usize = 256;

/// The pieces of each tensor that are one chain, tensors one after the other.
fn chunks<D: Device>(x: &View<'_, CudaBuffer<D>>) -> impl Iterator<Item = (Address, u64)> {
    let (start, len) = (floats(x), x.range.len());
    (0..len).step_by(SQUARE_SUM_CHUNK).map(move |first| {
        (start.plus(first as u64 * 4), (len - first).min(SQUARE_SUM_CHUNK) as u64)
    })
}

pub(super) fn sum_squares<D: Device>(
    device: &CudaBackend<D>,
    tensors: &[View<'_, CudaBuffer<D>>],
) -> Result<Vec<SquareSum>, DeviceFault> {
    let list: Vec<u8> = { tensors.iter().flat_map(chunks) }
        .flat_map(|(start, count)| [start.0, count])
        .flat_map(u64::to_le_bytes)
        .collect();
    let count = list.len() / 16;
    let mut bytes = vec![0u8; count * 16];
    if count > 0 {
        let to = device.scratch(Slot::Lists, list.len())?;
        device.write(&list, to)?;
        let results = device.scratch(Slot::Results, bytes.len())?;
        let arguments = Arguments::new().address(to).address(results);
        device.launch(&Launch::blocks(Kernel::SumSquares, [count, 1], WARP, arguments))?;
        device.device().read(results, &mut bytes)?;
    }
    let (mut results, _) = bytes.as_chunks::<16>();
    let take = |tensor: &View<'_, CudaBuffer<D>>| {
        let own;
        (own, results) = results.split_at(tensor.range.len().div_ceil(SQUARE_SUM_CHUNK));
        own.iter().fold(SquareSum { sum: 0.0, nonfinite: 0 }, |total, chunk| {
            let (sum, nonfinite) = chunk.split_at(8);
            let sum = f64::from_le_bytes(sum.try_into().expect("eight bytes"));
            let nonfinite = u64::from_le_bytes(nonfinite.try_into().expect("eight bytes"));
            SquareSum { sum: total.sum + sum, nonfinite: total.nonfinite + nonfinite }
        })
    };
    Ok(tensors.iter().map(take).collect())
}

pub(super) fn fingerprint<D: Device>(
    device: &CudaBackend<D>,
    x: &View<'_, CudaBuffer<D>>,
) -> Result<u64, DeviceFault> {
    let len = x.range.len();
    let count = len.div_ceil(SQUARE_SUM_CHUNK);
    let mut bytes = vec![0u8; count * 8];
    if count > 0 {
        let sums = device.scratch(Slot::Results, bytes.len())?;
        let arguments = Arguments::new().address(floats(x)).address(sums).count(len);
        let grid = [count, 1];
        let launch = Launch::blocks(Kernel::Fingerprint, grid, FINGERPRINT_THREADS, arguments);
        device.launch(&launch)?;
        device.device().read(sums, &mut bytes)?;
    }
    let (sums, _) = bytes.as_chunks::<8>();
    Ok(sums.iter().fold(0, |total: u64, sum| total.wrapping_add(u64::from_le_bytes(*sum))))
}

/// The structure `AdamW` of `optimizer.cu`.
fn structure(numbers: AdamWNumbers) -> [u32; 9] {
    let AdamWNumbers {
        decay,
        beta1,
        beta1_rest,
        beta2,
        beta2_rest,
        correction2,
        epsilon,
        step,
        clip,
    } = numbers;
    let floats = [decay, beta1, beta1_rest, beta2, beta2_rest, correction2, epsilon, step, clip];
    floats.map(f32::to_bits)
}

/// `range` in pieces, each a matrix with its form or what lies between.
fn pieces<D: Device>(
    range: &Range<usize>,
    matrices: &[MatrixPart<'_, CudaMatrix<D>>],
) -> Vec<(Range<usize>, Option<Address>)> {
    let mut pieces = Vec::new();
    let mut done = range.start;
    for part in matrices {
        let shape = part.matrix.shape;
        assert!(done <= part.range.start && part.range.end <= range.end, "matrices in order");
        assert_eq!(part.range.len(), shape.outputs * shape.inputs);
        pieces.push((done..part.range.start, None));
        pieces.push((part.range.clone(), Some(part.matrix.form.rows())));
        done = part.range.end;
    }
    pieces.push((done..range.end, None));
    pieces.retain(|(range, _)| !range.is_empty());
    pieces
}

pub(super) fn candidate<D: Device>(
    device: &CudaBackend<D>,
    range: &Range<usize>,
    state: [&CudaBuffer<D>; 4],
    numbers: AdamWNumbers,
    candidate: &mut CudaBuffer<D>,
    matrices: &[MatrixPart<'_, CudaMatrix<D>>],
) -> Result<(), DeviceFault> {
    assert!(state.iter().all(|part| range.end <= part.len()) && range.end <= candidate.len());
    for (piece, form) in pieces(range, matrices) {
        let [w, m, v, g] = state.map(|part| part.floats(piece.start));
        let arguments = Arguments::new()
            .address(w)
            .address(m)
            .address(v)
            .address(g)
            .address(candidate.floats(piece.start))
            .address_if(form)
            .count(piece.len())
            .structure(&structure(numbers));
        let count = piece.len().div_ceil(4);
        device.launch(&Launch::over(Kernel::AdamwCandidate, count, arguments))?;
    }
    Ok(())
}

pub(super) fn commit<D: Device>(
    device: &CudaBackend<D>,
    range: &Range<usize>,
    g: &CudaBuffer<D>,
    numbers: AdamWNumbers,
    m: &mut CudaBuffer<D>,
    v: &mut CudaBuffer<D>,
) -> Result<(), DeviceFault> {
    assert!(range.end <= g.len().min(m.len()).min(v.len()));
    let arguments = Arguments::new()
        .address(g.floats(range.start))
        .address(m.floats(range.start))
        .address(v.floats(range.start))
        .count(range.len())
        .structure(&structure(numbers));
    device.launch(&Launch::over(Kernel::AdamwCommit, range.len().div_ceil(4), arguments))
}

pub(super) fn in_place<D: Device>(
    device: &CudaBackend<D>,
    range: &Range<usize>,
    g: &CudaBuffer<D>,
    numbers: AdamWNumbers,
    state: [&mut CudaBuffer<D>; 3],
    matrices: &[MatrixPart<'_, CudaMatrix<D>>],
) -> Result<(), DeviceFault> {
    assert!(state.iter().all(|part| range.end <= part.len()) && range.end <= g.len());
    let state = state.map(|part| &*part);
    for (piece, form) in pieces(range, matrices) {
        let [w, m, v] = state.map(|part| part.floats(piece.start));
        let arguments = Arguments::new()
            .address(g.floats(piece.start))
            .address(w)
            .address(m)
            .address(v)
            .address_if(form)
            .count(piece.len())
            .structure(&structure(numbers));
        let count = piece.len().div_ceil(4);
        device.launch(&Launch::over(Kernel::AdamwInPlace, count, arguments))?;
    }
    Ok(())
}
