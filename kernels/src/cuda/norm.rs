//! The launches of normalisations and of their gradients.

use super::backend::{CudaBackend, floats};
use super::columns::reduce;
use super::device::Device;
use super::error::DeviceFault;
use super::kernel::{Arguments, Kernel, Launch};
use super::memory::CudaBuffer;
use super::transfer::by_fours;
use crate::backend::{Accumulate, AttentionShape, BufferView, Norm, NormGradient, RowsShape};
use crate::scratch::{GROUP_ROWS, ScratchSlot, partials_len, sums_bytes};

/// NORM_WARPS and BACKWARD_WARPS of `norm.cu`, in rows and in threads.
const FORWARD_ROWS: usize = 4;
const BACKWARD_THREADS: usize = 256;

const fn epsilon(norm: Norm) -> f32 {
    match norm {
        Norm::Layer { epsilon } | Norm::Rms { epsilon } => epsilon,
    }
}

#[allow(clippy::too_many_arguments)]
pub(super) fn forward<D: Device>(
    device: &CudaBackend<D>,
    norm: Norm,
    rows: RowsShape,
    x: &CudaBuffer<D>,
    weight: &BufferView<'_, CudaBuffer<D>>,
    bias: Option<&BufferView<'_, CudaBuffer<D>>>,
    y: &mut CudaBuffer<D>,
    statistics: &mut CudaBuffer<D>,
) -> Result<(), DeviceFault> {
    assert_eq!(x.len(), rows.count * rows.width);
    assert_eq!(y.len(), x.len());
    assert_eq!(statistics.len(), rows.count * norm.statistics_per_row());
    assert_eq!(weight.range.len(), rows.width);
    assert_eq!(bias.is_some(), norm.has_bias());
    let arguments = Arguments::new()
        .address(x.rows())
        .address(floats(weight))
        .address_if(bias.map(floats))
        .address(y.rows())
        .address(statistics.floats(0))
        .size(rows.count)
        .size(rows.width)
        .flag(norm.has_bias())
        .float(epsilon(norm));
    let grid = [rows.count.div_ceil(FORWARD_ROWS), 1];
    device.launch(&Launch::blocks(Kernel::NormForward, grid, FORWARD_ROWS * 32, arguments))
}

/// The operands of the gradient.
pub(super) struct NormBackwardOperands<'a, D: Device> {
    pub(super) gradient: &'a CudaBuffer<D>,
    pub(super) skip: Option<&'a CudaBuffer<D>>,
    pub(super) statistics: &'a CudaBuffer<D>,
    pub(super) x_then_gradient: &'a mut CudaBuffer<D>,
}

pub(super) fn backward_input<D: Device>(
    device: &CudaBackend<D>,
    norm: Norm,
    rows: RowsShape,
    weight: &BufferView<'_, CudaBuffer<D>>,
    operands: NormBackwardOperands<'_, D>,
    partials: &mut CudaBuffer<D>,
) -> Result<(), DeviceFault> {
    let NormBackwardOperands { gradient, skip, statistics, x_then_gradient } = operands;
    let len = partials_len(norm, rows.width);
    assert_eq!(gradient.len(), rows.count * rows.width);
    assert!(skip.is_none_or(|skip| skip.len() == gradient.len()));
    assert_eq!(x_then_gradient.len(), gradient.len());
    assert_eq!(statistics.len(), rows.count * norm.statistics_per_row());
    assert_eq!(partials.len(), len);
    let groups = rows.count.div_ceil(GROUP_ROWS);
    let sums = device.scratch(ScratchSlot::Sums, sums_bytes(rows.count, len))?;
    let arguments = Arguments::new()
        .address(gradient.rows())
        .address_if(skip.map(CudaBuffer::rows))
        .address(floats(weight))
        .address(statistics.floats(0))
        .address(x_then_gradient.rows())
        .address(sums)
        .size(rows.count)
        .size(rows.width)
        .flag(norm.has_bias());
    device.launch(&Launch::blocks(
        Kernel::NormBackward,
        [groups, 1],
        BACKWARD_THREADS,
        arguments,
    ))?;
    reduce(device, sums, groups, len, partials.floats(0), false)
}

/// QK-norm: each head of queries and of keys, which a warp takes as a row.
pub(super) fn qk_norm_forward<D: Device>(
    device: &CudaBackend<D>,
    norm: Norm,
    shape: AttentionShape,
    weights: &BufferView<'_, CudaBuffer<D>>,
    [qkv, before, statistics]: [&mut CudaBuffer<D>; 3],
) -> Result<(), DeviceFault> {
    check_qk_norm(norm, shape, weights, [qkv, before, statistics]);
    let arguments = Arguments::new()
        .address(floats(weights))
        .address(qkv.rows())
        .address(before.rows())
        .address(statistics.floats(0))
        .size(shape.rows())
        .size(shape.heads)
        .size(shape.qk_heads())
        .size(shape.head_width)
        .size(shape.qkv_width())
        .float(epsilon(norm));
    let grid = [(shape.rows() * shape.qk_heads()).div_ceil(FORWARD_ROWS), 1];
    device.launch(&Launch::blocks(Kernel::QkNormForward, grid, FORWARD_ROWS * 32, arguments))
}

fn check_qk_norm<D: Device>(
    norm: Norm,
    shape: AttentionShape,
    weights: &BufferView<'_, CudaBuffer<D>>,
    [qkv, before, statistics]: [&CudaBuffer<D>; 3],
) {
    assert!(!norm.has_bias(), "heads are normalised without a bias");
    assert_eq!(weights.range.len(), 2 * shape.head_width);
    assert_eq!(qkv.len(), shape.rows() * shape.qkv_width());
    assert_eq!(before.len(), shape.rows() * shape.qk_width());
    assert_eq!(statistics.len(), shape.rows() * shape.qk_heads());
}

pub(super) fn qk_norm_backward<D: Device>(
    device: &CudaBackend<D>,
    norm: Norm,
    shape: AttentionShape,
    weights: &BufferView<'_, CudaBuffer<D>>,
    [before, statistics]: [&CudaBuffer<D>; 2],
    gradient: &mut CudaBuffer<D>,
    partials: &mut CudaBuffer<D>,
) -> Result<(), DeviceFault> {
    check_qk_norm(norm, shape, weights, [gradient, before, statistics]);
    let len = partials_len(norm, 2 * shape.head_width);
    assert_eq!(partials.len(), len);
    let groups = shape.rows().div_ceil(GROUP_ROWS);
    let sums = device.scratch(ScratchSlot::Sums, sums_bytes(shape.rows(), len))?;
    let arguments = Arguments::new()
        .address(before.rows())
        .address(statistics.floats(0))
        .address(floats(weights))
        .address(gradient.rows())
        .address(sums)
        .size(shape.rows())
        .size(shape.heads)
        .size(shape.qk_heads())
        .size(shape.head_width)
        .size(shape.qkv_width());
    let grid = [groups, 1];
    let launch = Launch::blocks(Kernel::QkNormBackward, grid, BACKWARD_THREADS, arguments);
    device.launch(&launch)?;
    reduce(device, sums, groups, len, partials.floats(0), false)
}

pub(super) fn backward_weights<D: Device>(
    device: &CudaBackend<D>,
    norm: Norm,
    width: usize,
    partials: &CudaBuffer<D>,
    to: &NormGradient<'_, CudaBuffer<D>>,
    accumulate: Accumulate,
) -> Result<(), DeviceFault> {
    assert_eq!(partials.len(), partials_len(norm, width));
    assert_eq!(to.weight.len(), width);
    assert_eq!(to.bias.is_some(), norm.has_bias());
    // Where the bias lies behind the weight, as their sums do, one launch adds both.
    let mut parts = [Some(to.weight.clone()), to.bias.clone()];
    if let [Some(weight), Some(bias)] = &mut parts
        && bias.start == weight.end
    {
        weight.end = bias.end;
        parts[1] = None;
    }
    let mut first = 0;
    for part in parts.into_iter().flatten() {
        let from = partials.floats(first);
        let at = to.buffer.floats(part.start);
        match accumulate {
            Accumulate::Start => device.device().copy(from, at, part.len() as u64 * 4)?,
            Accumulate::Add => by_fours(device, Kernel::AddFloats, from, at, part.len())?,
        }
        first += part.len();
    }
    Ok(())
}
