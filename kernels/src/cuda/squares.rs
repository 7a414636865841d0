//! Sums of squares: two launches and one answer, for however many tensors.
//!
//! A tensor is cut into pieces of [`PIECE`] elements, a block each. Element i of a piece is added
//! to chain i mod 1024, in order; a thread has four neighbouring chains and adds them up in pairs,
//! lanes of a warp are added halves to halves, and warps in order. Then pieces are added the same
//! way, piece i to thread i mod 256. So the order follows from the tensor's length and from nothing
//! else, and the memory is read at its own speed. The candidate of a layer can be computed in the
//! same pass.

use super::backend::{CudaBackend, CudaMatrix, floats};
use super::device::{Device, DeviceAddress};
use super::error::DeviceFault;
use super::kernel::{Arguments, Kernel, Launch};
use super::memory::CudaBuffer;
use super::optimizer::{self, Stretch};
use crate::backend::{BufferView, LayerCandidate, SquareSum};
use crate::scratch::{PIECE, SQUARES_BYTES, ScratchSlot, TENSOR_BYTES};

/// Threads of a block: SQUARE_THREADS of `optimizer.cu`.
const THREADS: usize = 256;

pub(super) fn sum_squares<D: Device>(
    device: &CudaBackend<D>,
    tensors: &[BufferView<'_, CudaBuffer<D>>],
) -> Result<Vec<SquareSum>, DeviceFault> {
    let extents = tensors.iter().map(|tensor| (floats(tensor), tensor.range.len())).collect();
    SquareSumBatch { extents, more: Vec::new() }.sum(device)
}

/// The sums of squares of all tensors of `layers`, and the candidates of these.
pub(super) fn with_candidates<D: Device>(
    device: &CudaBackend<D>,
    layers: &[LayerCandidate<'_, CudaBuffer<D>, CudaMatrix<D>>],
) -> Result<Vec<SquareSum>, DeviceFault> {
    let stepped: Vec<_> =
        layers.iter().flat_map(|layer| optimizer::stepped(device, layer)).collect();
    let extents = stepped.iter().map(|tensor| (tensor.g, tensor.range.len())).collect();
    SquareSumBatch { extents, more: stepped }.sum(device)
}

/// Tensors to be summed, and what else is done with all of them, if anything is.
struct SquareSumBatch {
    extents: Vec<(DeviceAddress, usize)>,
    more: Vec<Stretch>,
}

impl SquareSumBatch {
    fn sum<D: Device>(&self, device: &CudaBackend<D>) -> Result<Vec<SquareSum>, DeviceFault> {
        let count = self.extents.len();
        if count == 0 {
            return Ok(Vec::new());
        }
        let (list, pieces) = self.list();
        let to = device.scratch(ScratchSlot::Lists, list.len())?;
        device.write(&list, to)?;
        let of_pieces = device.scratch(ScratchSlot::Sums, pieces * SQUARES_BYTES)?;
        let (kernel, from) = if self.more.is_empty() {
            (Kernel::PieceSquares, to)
        } else {
            (Kernel::PieceSquaresStepped, DeviceAddress(to.0 + (count * TENSOR_BYTES) as u64))
        };
        let arguments = Arguments::new().address(from).size(count).address(of_pieces);
        device.launch(&Launch::blocks(kernel, [pieces, 1], THREADS, arguments))?;
        let mut bytes = vec![0u8; count * SQUARES_BYTES];
        let results = device.scratch(ScratchSlot::Results, bytes.len())?;
        let arguments = Arguments::new().address(to).address(of_pieces).address(results);
        device.launch(&Launch::blocks(Kernel::TensorSquares, [count, 1], THREADS, arguments))?;
        device.device().read(results, &mut bytes)?;
        let (results, _) = bytes.as_chunks::<SQUARES_BYTES>();
        Ok(results.iter().map(square_sum).collect())
    }

    /// The structures `DeviceTensor` of all tensors, then their structures `SteppedTensor`, and how
    /// many pieces they have.
    fn list(&self) -> (Vec<u8>, usize) {
        let mut list = Vec::new();
        let mut firsts = Vec::new();
        let mut pieces = 0;
        for (start, len) in &self.extents {
            for word in [start.0, *len as u64, pieces as u64] {
                list.extend(word.to_le_bytes());
            }
            firsts.push(pieces as u64);
            pieces += len.div_ceil(PIECE);
        }
        for (stretch, first) in self.more.iter().zip(firsts) {
            list.extend(stretch.tensor_words(first).iter().flat_map(|word| word.to_le_bytes()));
        }
        (list, pieces)
    }
}

fn square_sum(bytes: &[u8; SQUARES_BYTES]) -> SquareSum {
    let (sum, nonfinite) = bytes.split_at(8);
    SquareSum {
        sum: f64::from_le_bytes(sum.try_into().expect("eight bytes")),
        nonfinite: u64::from_le_bytes(nonfinite.try_into().expect("eight bytes")),
    }
}
