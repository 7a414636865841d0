//! Floats between host and device, and between buffers.
//!
//! The host sees floats. Where a buffer holds bfloat16, what comes from the host is rounded to the
//! nearest, ties to even, and what goes there is exact.

use super::backend::{CudaBackend, CudaMatrix, floats};
use super::device::{Device, DeviceAddress};
use super::error::DeviceFault;
use super::kernel::{Arguments, Kernel, Launch};
use super::memory::{CudaBuffer, ElementType};
use super::source::Precision;
use crate::backend::{BufferView, BufferViewMut};
use crate::precision::bf16_bits;
use crate::tensor_handle::HostTensor;

/// Whether a buffer's elements are bfloat16: rows of 32-bit floats are floats.
fn is_bf16<D: Device>(device: &CudaBackend<D>, buffer: &CudaBuffer<D>) -> bool {
    buffer.element() == ElementType::Row && device.precision() == Precision::Bf16
}

fn bytes_of_floats(floats: &[f32], element: ElementType, precision: Precision) -> Vec<u8> {
    match (element, precision) {
        (ElementType::Row, Precision::Bf16) => {
            floats.iter().flat_map(|x| bf16_bits(*x).to_le_bytes()).collect()
        }
        (ElementType::Row, Precision::F32) | (ElementType::Float, _) => {
            floats.iter().flat_map(|x| x.to_le_bytes()).collect()
        }
    }
}

/// The bytes of numbers as a buffer holds them.
pub(super) fn bytes_of(numbers: HostTensor, element: ElementType, precision: Precision) -> Vec<u8> {
    match (numbers, element, precision) {
        (HostTensor::Halves(halves), ElementType::Row, Precision::Bf16) => {
            halves.iter().flat_map(|half| half.to_le_bytes()).collect()
        }
        (numbers, _, _) => bytes_of_floats(&numbers.into_floats(), element, precision),
    }
}

/// The numbers in the bytes of a buffer.
pub(super) fn numbers_of(bytes: &[u8], element: ElementType, precision: Precision) -> HostTensor {
    match (element, precision) {
        (ElementType::Row, Precision::Bf16) => {
            let (pairs, _) = bytes.as_chunks::<2>();
            HostTensor::Halves(pairs.iter().map(|pair| u16::from_le_bytes(*pair)).collect())
        }
        (ElementType::Row, Precision::F32) | (ElementType::Float, _) => {
            let (words, _) = bytes.as_chunks::<4>();
            HostTensor::Floats(words.iter().map(|word| f32::from_le_bytes(*word)).collect())
        }
    }
}

pub(super) fn upload<D: Device>(
    device: &CudaBackend<D>,
    from: &[f32],
    to: &BufferViewMut<'_, CudaBuffer<D>>,
) -> Result<(), DeviceFault> {
    assert_eq!(from.len(), to.range.len());
    assert!(to.range.end <= to.buffer.len());
    let bytes = bytes_of_floats(from, to.buffer.element(), device.precision());
    device.write(&bytes, to.buffer.at(to.range.start))
}

pub(super) fn download<D: Device>(
    device: &CudaBackend<D>,
    from: &BufferView<'_, CudaBuffer<D>>,
) -> Result<Vec<f32>, DeviceFault> {
    assert!(from.range.end <= from.buffer.len());
    let size = from.buffer.element().bytes(device.precision()) as usize;
    let mut bytes = vec![0u8; from.range.len() * size];
    device.device().read(from.buffer.at(from.range.start), &mut bytes)?;
    Ok(numbers_of(&bytes, from.buffer.element(), device.precision()).into_floats())
}

pub(super) fn copy<D: Device>(
    device: &CudaBackend<D>,
    from: &BufferView<'_, CudaBuffer<D>>,
    to: &BufferViewMut<'_, CudaBuffer<D>>,
) -> Result<(), DeviceFault> {
    let len = len_of_both(from, to);
    let source = from.buffer.at(from.range.start);
    let target = to.buffer.at(to.range.start);
    match (is_bf16(device, from.buffer), is_bf16(device, to.buffer)) {
        (false, true) => by_fours(device, Kernel::RowsFromFloats, source, target, len),
        (true, false) => by_fours(device, Kernel::FloatsFromRows, source, target, len),
        (true, true) | (false, false) => {
            let size = from.buffer.element().bytes(device.precision());
            device.device().copy(source, target, len as u64 * size)
        }
    }
}

pub(super) fn add<D: Device>(
    device: &CudaBackend<D>,
    from: &BufferView<'_, CudaBuffer<D>>,
    to: &BufferViewMut<'_, CudaBuffer<D>>,
) -> Result<(), DeviceFault> {
    let len = len_of_both(from, to);
    let target = to.buffer.floats(to.range.start);
    by_fours(device, Kernel::AddFloats, floats(from), target, len)
}

pub(super) fn load_matrix<D: Device>(
    device: &CudaBackend<D>,
    from: &BufferView<'_, CudaBuffer<D>>,
    to: &mut CudaMatrix<D>,
) -> Result<(), DeviceFault> {
    let len = to.shape.outputs * to.shape.inputs;
    assert_eq!(from.range.len(), len);
    by_fours(device, Kernel::RowsFromFloats, floats(from), to.weights.rows(), len)
}

/// The length of two ranges, which is one, and they lie within their buffers.
fn len_of_both<D: Device>(
    from: &BufferView<'_, CudaBuffer<D>>,
    to: &BufferViewMut<'_, CudaBuffer<D>>,
) -> usize {
    let len = from.range.len();
    assert_eq!(len, to.range.len());
    assert!(from.range.end <= from.buffer.len() && to.range.end <= to.buffer.len());
    len
}

/// Launches a kernel whose threads each have four of `len` elements at `source` and at `target`.
pub(super) fn by_fours<D: Device>(
    device: &CudaBackend<D>,
    kernel: Kernel,
    source: DeviceAddress,
    target: DeviceAddress,
    len: usize,
) -> Result<(), DeviceFault> {
    let arguments = Arguments::new().address(source).address(target).count(len);
    device.launch(&Launch::over(kernel, len.div_ceil(4), arguments))
}
