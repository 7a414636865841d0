//! GELU, SwiGLU and rotary embedding.

use super::backend::CudaBackend;
use super::device::Device;
use super::error::DeviceFault;
use super::kernel::{Arguments, Kernel, Launch};
use super::memory::CudaBuffer;
use super::transfer::by_fours;
use crate::backend::{AttentionShape, RotaryDirection, RowsShape};

pub(super) fn gelu_forward<D: Device>(
    device: &CudaBackend<D>,
    rows: RowsShape,
    before: &CudaBuffer<D>,
    h: &mut CudaBuffer<D>,
) -> Result<(), DeviceFault> {
    let len = rows.count * rows.width;
    assert_eq!(before.len(), len);
    assert_eq!(h.len(), len);
    by_fours(device, Kernel::GeluForward, before.rows(), h.rows(), len)
}

/// Both directions of SwiGLU: gate and up lie in the buffer of `wide`, side by side.
fn swiglu<D: Device>(
    device: &CudaBackend<D>,
    kernel: Kernel,
    rows: RowsShape,
    [first, second]: [&CudaBuffer<D>; 2],
) -> Result<(), DeviceFault> {
    let arguments = Arguments::new()
        .address(first.rows())
        .address(second.rows())
        .size(rows.count)
        .size(rows.width);
    device.launch(&Launch::over(kernel, rows.count * rows.width.div_ceil(4), arguments))
}

pub(super) fn swiglu_forward<D: Device>(
    device: &CudaBackend<D>,
    rows: RowsShape,
    gate_up: &CudaBuffer<D>,
    h: &mut CudaBuffer<D>,
) -> Result<(), DeviceFault> {
    assert_eq!(gate_up.len(), rows.count * 2 * rows.width);
    assert_eq!(h.len(), rows.count * rows.width);
    swiglu(device, Kernel::SwigluForward, rows, [gate_up, h])
}

pub(super) fn swiglu_backward<D: Device>(
    device: &CudaBackend<D>,
    rows: RowsShape,
    gradient: &CudaBuffer<D>,
    gate_up_then_gradient: &mut CudaBuffer<D>,
) -> Result<(), DeviceFault> {
    assert_eq!(gradient.len(), rows.count * rows.width);
    assert_eq!(gate_up_then_gradient.len(), rows.count * 2 * rows.width);
    swiglu(device, Kernel::SwigluBackward, rows, [gradient, gate_up_then_gradient])
}

pub(super) fn rotate<D: Device>(
    device: &CudaBackend<D>,
    shape: AttentionShape,
    angles: &CudaBuffer<D>,
    direction: RotaryDirection,
    qkv: &mut CudaBuffer<D>,
) -> Result<(), DeviceFault> {
    assert!(shape.head_width.is_multiple_of(2));
    assert_eq!(angles.len(), shape.sequence_len * shape.head_width);
    assert_eq!(qkv.len(), shape.rows() * shape.qkv_width());
    let rotated_heads = shape.heads + shape.kv_heads;
    let arguments = Arguments::new()
        .address(angles.floats(0))
        .address(qkv.rows())
        .size(shape.rows())
        .size(shape.sequence_len)
        .size(rotated_heads)
        .size(shape.head_width)
        .size(shape.qkv_width())
        .float(match direction {
            RotaryDirection::Forward => 1.0,
            RotaryDirection::Backward => -1.0,
        });
    let pieces = shape.rows() * rotated_heads * (shape.head_width / 2).div_ceil(4);
    device.launch(&Launch::over(Kernel::Rotate, pieces, arguments))
}
