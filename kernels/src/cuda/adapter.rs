//! Low-rank adapters: added to a matrix, and the columns that their gradients are of.

use std::ops::Range;

use super::backend::{CudaBackend, CudaMatrix, floats};
use super::device::Device;
use super::error::DeviceFault;
use super::kernel::{Arguments, Kernel, Launch};
use super::memory::CudaBuffer;
use super::transfer;
use crate::backend::{AdapterView, BufferView, MatrixShape};

pub(super) fn load_adapted_matrix<D: Device>(
    device: &CudaBackend<D>,
    base: &BufferView<'_, CudaBuffer<D>>,
    adapters: &[AdapterView<'_, CudaBuffer<D>>],
    matrix: &mut CudaMatrix<D>,
) -> Result<(), DeviceFault> {
    transfer::load_matrix(device, base, matrix)?;
    adapters.iter().try_for_each(|adapter| add_low_rank(device, base, adapter, matrix))
}

pub(super) fn scale_columns<D: Device>(
    device: &CudaBackend<D>,
    from: &CudaBuffer<D>,
    width: usize,
    columns: &Range<usize>,
    scale: f32,
    to: &mut CudaBuffer<D>,
) -> Result<(), DeviceFault> {
    assert_eq!(to.len() * width, from.len() * columns.len());
    let arguments = Arguments::new()
        .address(from.rows())
        .address(to.rows())
        .size(to.len())
        .size(width)
        .size(columns.start)
        .size(columns.len())
        .float(scale);
    device.launch(&Launch::over(Kernel::ScaleColumns, to.len(), arguments))
}

/// Writes the adapted rows of a matrix once more.
fn add_low_rank<D: Device>(
    device: &CudaBackend<D>,
    base: &BufferView<'_, CudaBuffer<D>>,
    adapter: &AdapterView<'_, CudaBuffer<D>>,
    matrix: &mut CudaMatrix<D>,
) -> Result<(), DeviceFault> {
    let AdapterView { rows, rank, scale, a, b } = adapter;
    let MatrixShape { outputs, inputs } = matrix.shape;
    assert!(rows.end <= outputs);
    assert_eq!(a.range.len(), rank * inputs);
    assert_eq!(b.range.len(), rank * rows.len());
    let first = rows.start * inputs;
    let arguments = Arguments::new()
        .address(base.buffer.floats(base.range.start + first))
        .address(floats(a))
        .address(floats(b))
        .address(matrix.weights.at(first))
        .size(rows.len() * inputs)
        .size(inputs)
        .size(*rank)
        .float(*scale);
    device.launch(&Launch::over(Kernel::AddLowRank, rows.len() * inputs, arguments))
}
