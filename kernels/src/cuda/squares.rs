//! Sums of squares: two launches and one answer, for however many tensors.
//!
//! A tensor is cut into pieces of [`PIECE`] elements, a block each. Element i of a piece is added to
//! chain i mod 1024, in order; a thread has four neighbouring chains and adds them up in pairs, lanes of
//! a warp are added halves to halves, and warps in order. Then pieces are added the same way, piece i
//! to thread i mod 256. So the order follows from the tensor's length and from nothing else, and the
//! memory is read at its own speed.

use super::backend::{CudaBackend, floats};
use super::device::Device;
use super::error::DeviceFault;
use super::kernel::{Arguments, Kernel, Launch};
use super::memory::CudaBuffer;
use crate::backend::{SquareSum, View};
use crate::scratch::{PIECE, SQUARES_BYTES, Slot};

/// SQUARE_THREADS of `optimizer.cu`.
const THREADS: usize = 256;

pub(super) fn sum_squares<D: Device>(
    device: &CudaBackend<D>,
    tensors: &[View<'_, CudaBuffer<D>>],
) -> Result<Vec<SquareSum>, DeviceFault> {
    if tensors.is_empty() {
        return Ok(Vec::new());
    }
    let (list, pieces) = list(tensors);
    let to = device.scratch(Slot::Lists, list.len())?;
    device.write(&list, to)?;
    let of_pieces = device.scratch(Slot::Sums, pieces * SQUARES_BYTES)?;
    let arguments = Arguments::new().address(to).size(tensors.len()).address(of_pieces);
    device.launch(&Launch::blocks(Kernel::PieceSquares, [pieces, 1], THREADS, arguments))?;
    let mut bytes = vec![0u8; tensors.len() * SQUARES_BYTES];
    let results = device.scratch(Slot::Results, bytes.len())?;
    let arguments = Arguments::new().address(to).address(of_pieces).address(results);
    let grid = [tensors.len(), 1];
    device.launch(&Launch::blocks(Kernel::TensorSquares, grid, THREADS, arguments))?;
    device.device().read(results, &mut bytes)?;
    let (results, _) = bytes.as_chunks::<SQUARES_BYTES>();
    Ok(results.iter().map(square_sum).collect())
}

/// The structures `Tensor` of all tensors, and how many pieces they have.
fn list<D: Device>(tensors: &[View<'_, CudaBuffer<D>>]) -> (Vec<u8>, usize) {
    let mut list = Vec::new();
    let mut pieces = 0;
    for tensor in tensors {
        let len = tensor.range.len();
        for word in [floats(tensor).0, len as u64, pieces as u64] {
            list.extend(word.to_le_bytes());
        }
        pieces += len.div_ceil(PIECE);
    }
    (list, pieces)
}

fn square_sum(bytes: &[u8; SQUARES_BYTES]) -> SquareSum {
    let (sum, nonfinite) = bytes.split_at(8);
    SquareSum {
        sum: f64::from_le_bytes(sum.try_into().expect("eight bytes")),
        nonfinite: u64::from_le_bytes(nonfinite.try_into().expect("eight bytes")),
    }
}
