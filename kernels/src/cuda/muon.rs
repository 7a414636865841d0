//! Muon on a device: its products are those of linear layers, in the type of activations.
//!
//! The definition is that of [`MuonMatrix`] with the device's roundings. The norm's sum of squares is a tree of the
//! matrix's length alone. A matrix with more rows than columns is not transposed: its Gram matrix is
//! that product of a linear layer that gives a gradient, and the polynomial, which is symmetric, is
//! multiplied from the right. The direction is kept nowhere: what is committed is computed again, by the same
//! launches and products over the same scratch, and so to the same bits.

use super::backend::{CudaBackend, CudaMatrix};
use super::device::{Device, DeviceAddress, MatrixProduct, ProductKind};
use super::error::DeviceFault;
use super::kernel::{Arguments, Kernel, Launch};
use super::memory::CudaBuffer;
use super::optimizer::packed_weights;
use crate::backend::{
    MatrixPart, MatrixShape, MuonCoefficients, MuonMatrix, MuonRange, NEWTON_SCHULZ,
    NEWTON_SCHULZ_ITERATIONS, StateRange,
};
use crate::scratch::{MuonScratch, ScratchSlot};

/// PIECE_THREADS of `muon.cu`.
const THREADS: usize = 256;

/// Where the weights after the step go, beside packed weights.
pub(super) enum MuonTarget<'a, D: Device> {
    /// To the same places of another buffer.
    Beside(&'a CudaBuffer<D>),
    /// Nowhere else.
    Packed,
    /// Over the weights.
    InPlace,
}

/// The weights after the step, from the momentum before it.
pub(super) fn step<D: Device>(
    device: &CudaBackend<D>,
    run: &MuonRange,
    [w, m, g]: [&CudaBuffer<D>; 3],
    target: &MuonTarget<'_, D>,
    parts: &[MatrixPart<'_, CudaMatrix<D>>],
) -> Result<(), DeviceFault> {
    let MuonRange { range, matrices, numbers } = run;
    let element = device.precision().bytes();
    let mut start = range.weights.start;
    for MuonMatrix { shape, step } in matrices {
        let place = range.part(start..start + shape.outputs * shape.inputs);
        start = place.weights.end;
        let scratch = Scratch::new(device, *shape)?;
        scratch.look_ahead(*numbers, &place, [m, g])?;
        scratch.orthogonalize()?;
        let weights = w.floats(place.weights.start);
        let to = match target {
            MuonTarget::Beside(buffer) => Some(buffer.floats(place.weights.start)),
            MuonTarget::Packed => None,
            MuonTarget::InPlace => Some(weights),
        };
        let part = parts.iter().find(|part| part.range.contains(&place.weights.start));
        let packed = part.map(|part| {
            assert!(place.weights.end <= part.range.end, "a matrix lies in one that products read");
            packed_weights(part, place.weights.start, element)
        });
        let arguments = Arguments::new()
            .address(weights)
            .address(scratch.x)
            .count(place.len())
            .float(numbers.decay)
            .float(*step)
            .address_if(to)
            .address_if(packed);
        scratch.over(Kernel::MuonStep, place.len(), arguments)?;
    }
    assert_eq!(start, range.weights.end, "matrices lie one behind the other");
    Ok(())
}

/// The momentum after the step, in place.
pub(super) fn commit<D: Device>(
    device: &CudaBackend<D>,
    run: &MuonRange,
    g: &CudaBuffer<D>,
    m: &CudaBuffer<D>,
) -> Result<(), DeviceFault> {
    let MuonRange { range, numbers, .. } = run;
    let MuonCoefficients { momentum, momentum_rest, clip, .. } = *numbers;
    let arguments = Arguments::new()
        .address(m.floats(range.moments_start))
        .address(g.floats(range.gradient_start))
        .count(range.len())
        .float(momentum)
        .float(momentum_rest)
        .float(clip);
    device.launch(&Launch::over(Kernel::MuonMomentum, range.len().div_ceil(4), arguments))
}

/// The scratch of one matrix: it becomes its direction, in `x`.
struct Scratch<'a, D: Device> {
    device: &'a CudaBackend<D>,
    shape: MatrixShape,
    pieces: usize,
    /// The matrix as floats, and then the Gram matrix of a tall one.
    floats: DeviceAddress,
    /// Sums of squares of pieces.
    sums: DeviceAddress,
    /// The matrix in the type of activations.
    x: DeviceAddress,
    /// The polynomial by the matrix.
    product: DeviceAddress,
    /// The matrix by its transpose, or the other way round: the shorter side squared.
    gram: DeviceAddress,
    /// The square of that.
    square: DeviceAddress,
}

impl<'a, D: Device> Scratch<'a, D> {
    fn new(device: &'a CudaBackend<D>, shape: MatrixShape) -> Result<Self, DeviceFault> {
        let sizes = MuonScratch::new(shape, device.precision());
        let start = device.scratch(ScratchSlot::Muon, sizes.bytes())?;
        let [floats, sums, x, product, gram, square] =
            sizes.offsets().map(|offset| start.plus(offset as u64));
        let pieces = sizes.pieces();
        Ok(Self { device, shape, pieces, floats, sums, x, product, gram, square })
    }

    /// Launches a kernel whose threads take four elements each.
    fn over(&self, kernel: Kernel, len: usize, arguments: Arguments) -> Result<(), DeviceFault> {
        self.device.launch(&Launch::over(kernel, len.div_ceil(4), arguments))
    }

    /// Nesterov's look ahead, divided by its norm.
    fn look_ahead(
        &self,
        numbers: MuonCoefficients,
        place: &StateRange,
        [m, g]: [&CudaBuffer<D>; 2],
    ) -> Result<(), DeviceFault> {
        let MuonCoefficients { momentum, momentum_rest, clip, .. } = numbers;
        let arguments = Arguments::new()
            .address(m.floats(place.moments_start))
            .address(g.floats(place.gradient_start))
            .address(self.floats)
            .count(place.len())
            .float(momentum)
            .float(momentum_rest)
            .float(clip)
            .address(self.sums);
        let grid = [self.pieces, 1];
        self.device.launch(&Launch::blocks(Kernel::MuonLookAhead, grid, THREADS, arguments))?;
        let arguments = Arguments::new()
            .address(self.floats)
            .address(self.x)
            .count(place.len())
            .address(self.sums)
            .size(self.pieces);
        self.over(Kernel::MuonNormalize, place.len(), arguments)
    }

    /// Newton-Schulz iterations in place.
    fn orthogonalize(&self) -> Result<(), DeviceFault> {
        let MatrixShape { outputs, inputs } = self.shape;
        let short = outputs.min(inputs);
        let [a, b, c] = NEWTON_SCHULZ;
        for _ in 0..NEWTON_SCHULZ_ITERATIONS {
            self.multiply_by_transpose()?;
            let square = (ProductKind::Forward, [short; 3]);
            self.multiply(square, [self.gram, self.gram], self.square)?;
            self.combine([self.gram, self.square], short * short, [b, c])?;
            if outputs > inputs {
                let right = (ProductKind::Forward, [outputs, inputs, inputs]);
                self.multiply(right, [self.x, self.gram], self.product)?;
            } else {
                let left = (ProductKind::Input, [outputs, outputs, inputs]);
                self.multiply(left, [self.gram, self.x], self.product)?;
            }
            self.combine([self.x, self.product], outputs * inputs, [a, 1.0])?;
        }
        Ok(())
    }

    /// The Gram matrix of the shorter side.
    fn multiply_by_transpose(&self) -> Result<(), DeviceFault> {
        let MatrixShape { outputs, inputs } = self.shape;
        if outputs <= inputs {
            let wide = (ProductKind::Forward, [outputs, outputs, inputs]);
            return self.multiply(wide, [self.x, self.x], self.gram);
        }
        let tall = (ProductKind::Weights { is_added: false }, [outputs, inputs, inputs]);
        self.multiply(tall, [self.x, self.x], self.floats)?;
        let arguments =
            Arguments::new().address(self.floats).address(self.gram).count(inputs * inputs);
        self.over(Kernel::RowsFromFloats, inputs * inputs, arguments)
    }

    /// A product of so many rows, outputs and inputs.
    fn multiply(
        &self,
        (kind, [rows, outputs, inputs]): (ProductKind, [usize; 3]),
        [left, right]: [DeviceAddress; 2],
        result: DeviceAddress,
    ) -> Result<(), DeviceFault> {
        let addend = None;
        let product = MatrixProduct { kind, rows, outputs, inputs, left, right, result, addend };
        self.device.device().multiply(&product)
    }

    /// The first becomes the sum of both, each with its factor.
    fn combine(
        &self,
        [to, other]: [DeviceAddress; 2],
        len: usize,
        [a, b]: [f32; 2],
    ) -> Result<(), DeviceFault> {
        let arguments = Arguments::new().address(to).address(other).count(len).float(a).float(b);
        self.over(Kernel::MuonCombine, len, arguments)
    }
}
