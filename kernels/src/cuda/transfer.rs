//! Floats between host and device, and between buffers.
//!
//! The host sees floats. Where a buffer holds bfloat16, what comes from the host is rounded to the
//! nearest, ties to even, and what goes there is exact.

use super::backend::{CudaBackend, CudaMatrix, floats};
use super::device::Device;
use super::error::DeviceFault;
use super::kernel::{Arguments, Kernel, Launch};
use super::memory::{CudaBuffer, ElementType};
use super::source::Precision;
use crate::backend::{BufferView, BufferViewMut};
use crate::tensor_handle::HostTensor;

/// The upper half of a float, rounded; a NaN stays one.
fn to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    if x.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

/// Whether a buffer's elements are bfloat16: rows of 32-bit floats are floats.
fn is_bf16<D: Device>(device: &CudaBackend<D>, buffer: &CudaBuffer<D>) -> bool {
    buffer.element() == ElementType::Row && device.precision() == Precision::Bf16
}

fn bytes_of_floats(floats: &[f32], element: ElementType, precision: Precision) -> Vec<u8> {
    match (element, precision) {
        (ElementType::Row, Precision::Bf16) => {
            floats.iter().flat_map(|x| to_bf16(*x).to_le_bytes()).collect()
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
    let len = from.range.len();
    assert_eq!(len, to.range.len());
    assert!(from.range.end <= from.buffer.len() && to.range.end <= to.buffer.len());
    let source = from.buffer.at(from.range.start);
    let target = to.buffer.at(to.range.start);
    let convert = |kernel| {
        let arguments = Arguments::new().address(source).address(target).count(len);
        device.launch(&Launch::over(kernel, len.div_ceil(4), arguments))
    };
    match (is_bf16(device, from.buffer), is_bf16(device, to.buffer)) {
        (false, true) => convert(Kernel::RowsFromFloats),
        (true, false) => convert(Kernel::FloatsFromRows),
        (true, true) | (false, false) => {
            let size = from.buffer.element().bytes(device.precision());
            device.device().copy(source, target, len as u64 * size)
        }
    }
}

pub(super) fn load_matrix<D: Device>(
    device: &CudaBackend<D>,
    from: &BufferView<'_, CudaBuffer<D>>,
    to: &mut CudaMatrix<D>,
) -> Result<(), DeviceFault> {
    let len = to.shape.outputs * to.shape.inputs;
    assert_eq!(from.range.len(), len);
    let arguments = Arguments::new().address(floats(from)).address(to.weights.rows()).count(len);
    device.launch(&Launch::over(Kernel::RowsFromFloats, len.div_ceil(4), arguments))
}

#[cfg(test)]
mod tests {
    use super::to_bf16;

    #[test]
    fn rounding_is_to_the_nearest_with_ties_to_even() {
        let check = |bits: u32, expected: u16| assert_eq!(to_bf16(f32::from_bits(bits)), expected);
        check(0x3f80_0000, 0x3f80);
        check(0x3f80_7fff, 0x3f80);
        check(0x3f80_8000, 0x3f80);
        check(0x3f80_8001, 0x3f81);
        check(0x3f81_8000, 0x3f82);
        check(0xbf81_8000, 0xbf82);
        check(0x7f7f_ffff, 0x7f80);
        check(0x7f80_0000, 0x7f80);
        check(0x8000_0000, 0x8000);
        let from_bf16 = |bits: u16| f32::from_bits(u32::from(bits) << 16);
        assert!(from_bf16(to_bf16(f32::from_bits(0x7f80_0001))).is_nan());
        for bits in 0..=u16::MAX {
            let x = from_bf16(bits);
            assert!(x.is_nan() || to_bf16(x) == bits, "{bits:x} comes back");
        }
    }
}
