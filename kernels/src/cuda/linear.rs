//! Linear layers: a product, and one pass over its result for whatever is not plain.

use super::backend::{CudaBackend, CudaMatrix, floats};
use super::columns::column_sums;
use super::device::{Device, MatrixProduct, ProductKind};
use super::error::DeviceFault;
use super::kernel::{Arguments, Kernel, Launch};
use super::memory::CudaBuffer;
use super::transfer::by_fours;
use crate::backend::{
    Accumulate, BackwardEpilogue, BufferView, ForwardEpilogue, LinearGradient, MatrixShape,
};
use crate::scratch::ScratchSlot;

pub(super) fn forward<D: Device>(
    device: &CudaBackend<D>,
    rows: usize,
    x: &CudaBuffer<D>,
    matrix: &CudaMatrix<D>,
    bias: Option<&BufferView<'_, CudaBuffer<D>>>,
    epilogue: &ForwardEpilogue<'_, CudaBuffer<D>>,
    y: &mut CudaBuffer<D>,
) -> Result<(), DeviceFault> {
    let MatrixShape { outputs, inputs } = matrix.shape;
    assert_eq!(x.len(), rows * inputs);
    assert_eq!(y.len(), rows * outputs);
    assert!(bias.is_none_or(|bias| bias.range.len() == outputs));
    device.device().multiply(&MatrixProduct {
        kind: ProductKind::Forward,
        rows,
        outputs,
        inputs,
        left: x.rows(),
        right: matrix.weights.rows(),
        result: y.rows(),
        addend: match epilogue {
            ForwardEpilogue::Add { skip } => {
                assert_eq!(skip.len(), y.len());
                Some(skip.rows())
            }
            ForwardEpilogue::Plain | ForwardEpilogue::Gelu { .. } => None,
        },
    })?;
    let finish = |kernel, arguments: Arguments| {
        let arguments = arguments.address(y.rows()).size(rows).size(outputs);
        device.launch(&Launch::over(kernel, rows * outputs.div_ceil(4), arguments))
    };
    let with_bias = Arguments::new().address_if(bias.map(floats));
    match epilogue {
        ForwardEpilogue::Plain | ForwardEpilogue::Add { .. } if bias.is_none() => Ok(()),
        ForwardEpilogue::Plain | ForwardEpilogue::Add { .. } => {
            finish(Kernel::FinishPlain, with_bias)
        }
        ForwardEpilogue::Gelu { before } => {
            assert_eq!(before.len(), y.len());
            finish(Kernel::FinishGelu, with_bias.address(before.rows()))
        }
    }
}

pub(super) fn backward_input<D: Device>(
    device: &CudaBackend<D>,
    rows: usize,
    gradient: &CudaBuffer<D>,
    matrix: &CudaMatrix<D>,
    epilogue: &BackwardEpilogue<'_, CudaBuffer<D>>,
) -> Result<(), DeviceFault> {
    let MatrixShape { outputs, inputs } = matrix.shape;
    let len = rows * inputs;
    assert_eq!(gradient.len(), rows * outputs);
    let product = |result| MatrixProduct {
        kind: ProductKind::Input,
        rows,
        outputs,
        inputs,
        left: gradient.rows(),
        right: matrix.weights.rows(),
        result,
        addend: None,
    };
    match epilogue {
        BackwardEpilogue::Plain { gradient } => {
            assert_eq!(gradient.len(), len);
            device.device().multiply(&product(gradient.rows()))
        }
        BackwardEpilogue::Gelu { before_then_gradient: before } => {
            assert_eq!(before.len(), len);
            let through = device.scratch(ScratchSlot::Product, len * device.precision().bytes())?;
            device.device().multiply(&product(through))?;
            by_fours(device, Kernel::GeluBackward, through, before.rows(), len)
        }
    }
}

pub(super) fn backward_weights<D: Device>(
    device: &CudaBackend<D>,
    rows: usize,
    shape: MatrixShape,
    x: &CudaBuffer<D>,
    gradient: &CudaBuffer<D>,
    to: &LinearGradient<'_, CudaBuffer<D>>,
    accumulate: Accumulate,
) -> Result<(), DeviceFault> {
    let MatrixShape { outputs, inputs } = shape;
    assert_eq!(x.len(), rows * inputs);
    assert_eq!(gradient.len(), rows * outputs);
    assert_eq!(to.weight.len(), outputs * inputs);
    let is_added = accumulate == Accumulate::Add;
    device.device().multiply(&MatrixProduct {
        kind: ProductKind::Weights { is_added },
        rows,
        outputs,
        inputs,
        left: gradient.rows(),
        right: x.rows(),
        result: to.buffer.floats(to.weight.start),
        addend: None,
    })?;
    let Some(bias) = &to.bias else { return Ok(()) };
    assert_eq!(bias.len(), outputs);
    column_sums(device, gradient.rows(), rows, outputs, to.buffer.floats(bias.start), is_added)
}
