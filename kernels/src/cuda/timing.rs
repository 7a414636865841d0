//! The time of each operation beside its floor: the bytes it must move at the rate of a plain copy,
//! and the arithmetic of its products at the rate of one large product, both measured in the same
//! run.

mod harness;

pub use harness::{TimedDevice, TimingHarness};

use super::device::{MatrixProduct, ProductKind};
use super::{CudaBackend, CudaBuffer, CudaMatrix, DeviceFault};
use crate::backend::{
    Accumulate, AdamWCoefficients, AdamWRange, AllocateError, AttentionMask, AttentionShape,
    Backend, BackwardEpilogue, BufferView, BufferViewMut, DeviceMemory, EmbedGradient,
    ForwardEpilogue, LayerCandidate, LinearGradient, LossScale, MatrixPart, MatrixShape, Norm,
    Optimizer, PackedWeightsOptimizer, RotaryDirection, RowPositions, RowsShape, UpdateState,
};

/// The sizes of the operations that are timed.
#[derive(Clone, Copy, Debug)]
pub struct TimedSizes {
    /// Sequences in a pass.
    pub sequences: usize,
    /// Tokens in a sequence.
    pub sequence_len: usize,
    /// Floats of the residual stream.
    pub width: usize,
    /// Tokens in the vocabulary.
    pub vocabulary: usize,
    /// Weights that an update is computed of.
    pub parameters: usize,
    /// Floats that are copied to measure the rate of a copy.
    pub copied: usize,
    /// Rows and columns of the product whose rate all products are compared with.
    pub square: usize,
}

impl TimedSizes {
    /// GPT-2 with 124 million parameters, 16 sequences of 1,024 tokens.
    pub const SMALL_GPT2: Self = Self {
        sequences: 16,
        sequence_len: 1024,
        width: 768,
        vocabulary: 50_304,
        parameters: 124 << 20,
        copied: 256 << 20,
        square: 8192,
    };

    fn rows(&self) -> usize {
        self.sequences * self.sequence_len
    }
}

/// The rates that the device reaches at best.
#[derive(Clone, Copy, Debug)]
pub struct DeviceRates {
    /// Bytes a second, read and written, of a plain copy.
    pub bytes_per_s: f64,
    /// Floating-point operations a second of a large product.
    pub flop_per_s: f64,
}

/// The least that an operation must do.
#[derive(Clone, Copy, Debug)]
struct WorkFloor {
    bytes: usize,
    flop: f64,
}

impl WorkFloor {
    const fn of_bytes(bytes: usize) -> Self {
        Self { bytes, flop: 0.0 }
    }

    /// The longer of the two, which go on at the same time, and which it is.
    fn floor_s(&self, rates: &DeviceRates) -> (f64, RooflineBound) {
        let moved = self.bytes as f64 / rates.bytes_per_s;
        let multiplied = self.flop / rates.flop_per_s;
        if multiplied > moved {
            (multiplied, RooflineBound::Arithmetic)
        } else {
            (moved, RooflineBound::Memory)
        }
    }
}

/// Documents of a sequence where attention that stays within them is timed.
const DOCUMENTS: usize = 8;

/// The limit that an operation's floor follows from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RooflineBound {
    /// The bytes that the operation moves.
    Memory,
    /// The arithmetic of its products.
    Arithmetic,
}

/// The time of an operation, and its floor.
#[derive(Clone, Debug)]
pub struct OperationTime {
    /// Name of the operation.
    pub name: String,
    /// Microseconds that it lasted.
    pub us: f64,
    /// Microseconds that it needs at least: its floor.
    pub floor_us: f64,
    /// Whether the floor follows from memory or from arithmetic.
    pub bound: RooflineBound,
    /// Microseconds of the library's fastest algorithm, if this is a product and there are several.
    pub fastest_us: Option<f64>,
}

/// The time of a step before its verdict, candidate and commit, over that of a step in place, which
/// is one pass over weights and moments. `None` if one of them was not timed.
#[must_use]
pub fn optimism(rows: &[OperationTime]) -> Option<f64> {
    let us = |name: &str| rows.iter().find(|row| row.name == name).map(|row| row.us);
    Some((us("adamw candidate")? + us("adamw commit")?) / us("adamw in place")?)
}

/// Why operations were not timed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum TimingError {
    /// The device's memory does not hold the operands.
    #[error(transparent)]
    Memory(#[from] AllocateError),
    /// The device failed while it was timed.
    #[error(transparent)]
    Device(#[from] DeviceFault),
}

/// The rates, and every operation beside its floor.
///
/// # Errors
/// If memory is short or the device fails.
pub fn measure<D: TimedDevice>(
    harness: &TimingHarness<D>,
    sizes: TimedSizes,
) -> Result<(DeviceRates, Vec<OperationTime>), TimingError> {
    let rates =
        DeviceRates { bytes_per_s: copy(harness, sizes)?, flop_per_s: product(harness, sizes)? };
    let mut table = TimingTable { harness, sizes, rates, rows: Vec::new() };
    table.embedding()?;
    table.norm()?;
    table.rotation()?;
    table.activations()?;
    table.optimizer()?;
    table.linear()?;
    table.head()?;
    for head_width in [64, 128] {
        table.attention(head_width)?;
    }
    Ok((rates, table.rows))
}

fn copy<D: TimedDevice>(harness: &TimingHarness<D>, sizes: TimedSizes) -> Result<f64, TimingError> {
    let len = sizes.copied;
    let from = harness.backend.allocate(len)?;
    let mut to = harness.backend.allocate(len)?;
    let seconds = harness.seconds(|device| {
        device.copy(BufferView::new(&from, 0..len), BufferViewMut::new(&mut to, 0..len));
    })?;
    Ok(8.0 * len as f64 / seconds)
}

fn product<D: TimedDevice>(
    harness: &TimingHarness<D>,
    sizes: TimedSizes,
) -> Result<f64, TimingError> {
    let n = sizes.square;
    let backend = &harness.backend;
    let matrix = backend.allocate_matrix(MatrixShape { outputs: n, inputs: n })?;
    let x = backend.allocate_rows(n * n)?;
    let mut y = backend.allocate_rows(n * n)?;
    let seconds = harness.seconds(|device| {
        device.linear_forward(n, &x, &matrix, None, ForwardEpilogue::Plain, &mut y);
    })?;
    Ok(2.0 * (n * n * n) as f64 / seconds)
}

struct TimingTable<'a, D: TimedDevice> {
    harness: &'a TimingHarness<D>,
    sizes: TimedSizes,
    rates: DeviceRates,
    rows: Vec<OperationTime>,
}

type Buffer<D> = CudaBuffer<D>;

impl<D: TimedDevice> TimingTable<'_, D> {
    fn rows_of(&self, width: usize) -> Result<Buffer<D>, AllocateError> {
        self.harness.backend.allocate_rows(self.sizes.rows() * width)
    }

    fn floats(&self, len: usize) -> Result<Buffer<D>, AllocateError> {
        self.harness.backend.allocate(len)
    }

    fn matrix(&self, shape: MatrixShape) -> Result<CudaMatrix<D>, AllocateError> {
        self.harness.backend.allocate_matrix(shape)
    }

    fn row_bytes(&self, width: usize) -> usize {
        self.sizes.rows() * width * self.harness.backend.precision().bytes()
    }

    fn time(
        &mut self,
        name: impl Into<String>,
        work: WorkFloor,
        operation: impl FnMut(&CudaBackend<D>),
    ) -> Result<(), DeviceFault> {
        let us = 1e6 * self.harness.seconds(operation)?;
        let (floor_s, bound) = work.floor_s(&self.rates);
        let name = name.into();
        let floor_us = 1e6 * floor_s;
        self.rows.push(OperationTime { name, us, floor_us, bound, fastest_us: None });
        Ok(())
    }

    /// Records beside the product that was timed last the time of the library's fastest algorithm.
    fn compare(&mut self, product: &MatrixProduct) -> Result<(), DeviceFault> {
        let fastest = self.harness.fastest_product_s(product)?;
        let row = self.rows.last_mut().expect("a product was timed");
        row.fastest_us = fastest.map(|seconds| 1e6 * seconds);
        Ok(())
    }

    fn norm(&mut self) -> Result<(), TimingError> {
        let TimedSizes { width, .. } = self.sizes;
        let count = self.sizes.rows();
        let norm = Norm::Layer { epsilon: 1e-5 };
        let rows = RowsShape { count, width };
        let x = self.rows_of(width)?;
        let mut y = self.rows_of(width)?;
        let mut dx = self.rows_of(width)?;
        let weight = self.floats(width)?;
        let bias = self.floats(width)?;
        let mut statistics = self.floats(2 * count)?;
        let mut partials = self.floats(2 * width)?;
        let view = |buffer| BufferView::new(buffer, 0..width);
        let forward = WorkFloor::of_bytes(2 * self.row_bytes(width));
        self.time("norm F", forward, |device| {
            let bias = Some(view(&bias));
            device.norm_forward(norm, rows, &x, view(&weight), bias, &mut y, &mut statistics);
        })?;
        let backward = WorkFloor::of_bytes(4 * self.row_bytes(width));
        self.time("norm B", backward, |device| {
            let skip = Some(&y);
            let weight = view(&weight);
            let partials = &mut partials;
            let x = &x;
            let dx = &mut dx;
            device.norm_backward_input(norm, rows, x, skip, weight, &statistics, dx, partials);
        })?;
        Ok(())
    }

    fn embedding(&mut self) -> Result<(), TimingError> {
        let TimedSizes { sequence_len, width, vocabulary, .. } = self.sizes;
        let positions = RowPositions::Counted { sequence_len };
        let count = self.sizes.rows();
        let len = vocabulary * width;
        let tokens: Vec<u32> = (0..count).map(|row| (7 * row % vocabulary) as u32).collect();
        let mut table = self.floats(len)?;
        let mut out = self.rows_of(width)?;
        let read = WorkFloor::of_bytes(4 * count * width + self.row_bytes(width));
        self.time("embed F", read, |device| {
            let table = BufferView::new(&table, 0..len);
            device.embed_forward(positions, &tokens, table, None, &mut out);
        })?;
        let written = WorkFloor::of_bytes(4 * len + self.row_bytes(width));
        self.time("embed W", written, |device| {
            let to = EmbedGradient { buffer: &mut table, tokens: 0..len, positions: None };
            device.embed_backward_weights(positions, &tokens, &out, to, Accumulate::Start);
        })?;
        Ok(())
    }

    /// Queries and keys, with heads of 64.
    fn rotation(&mut self) -> Result<(), TimingError> {
        const HEAD_WIDTH: usize = 64;
        let TimedSizes { sequences, sequence_len, width, .. } = self.sizes;
        let heads = width / HEAD_WIDTH;
        let shape = AttentionShape {
            sequences,
            sequence_len,
            heads,
            kv_heads: heads,
            head_width: HEAD_WIDTH,
        };
        let angles = self.floats(sequence_len * HEAD_WIDTH)?;
        let mut qkv = self.rows_of(shape.qkv_width())?;
        self.time("rotate", WorkFloor::of_bytes(4 * self.row_bytes(width)), |device| {
            device.rotate(shape, &angles, RotaryDirection::Forward, &mut qkv);
        })?;
        Ok(())
    }

    fn activations(&mut self) -> Result<(), TimingError> {
        let wide = 4 * self.sizes.width;
        let rows = RowsShape { count: self.sizes.rows(), width: wide };
        let bytes = self.row_bytes(wide);
        let before = self.rows_of(wide)?;
        let mut h = self.rows_of(wide)?;
        self.time("gelu F", WorkFloor::of_bytes(2 * bytes), |device| {
            device.gelu_forward(rows, &before, &mut h);
        })?;
        let mut gate_up = self.rows_of(2 * wide)?;
        self.time("swiglu F", WorkFloor::of_bytes(3 * bytes), |device| {
            device.swiglu_forward(rows, &gate_up, &mut h);
        })?;
        self.time("swiglu B", WorkFloor::of_bytes(5 * bytes), |device| {
            device.swiglu_backward(rows, &h, &mut gate_up);
        })?;
        Ok(())
    }

    fn optimizer(&mut self) -> Result<(), TimingError> {
        const NUMBERS: AdamWCoefficients = AdamWCoefficients {
            decay: 0.9999,
            beta1: 0.9,
            beta1_rest: 0.1,
            beta2: 0.95,
            beta2_rest: 0.05,
            correction2: 1.0,
            epsilon: 1e-8,
            step: -1e-3,
            clip: 1.0,
        };
        // One matrix, as most parameters are of some.
        let inputs = self.sizes.width;
        let shape = MatrixShape { outputs: self.sizes.parameters / inputs, inputs };
        let len = shape.outputs * inputs;
        let all = || 0..len;
        let runs = [AdamWRange { range: all().into(), numbers: NUMBERS }];
        let packed_bytes = self.harness.backend.precision().bytes();
        let mut w = self.floats(len)?;
        let g = self.floats(len)?;
        let mut nothing = self.floats(0)?;
        let mut m = self.floats(len)?;
        let mut v = self.floats(len)?;
        let mut matrix = self.matrix(shape)?;
        self.time("adamw candidate", WorkFloor::of_bytes((16 + packed_bytes) * len), |device| {
            let mut parts = [MatrixPart { range: all(), matrix: &mut matrix }];
            let state = UpdateState { w: &w, m: &m, v: &v, g: &g };
            PackedWeightsOptimizer::candidate(device, &runs, state, &mut nothing, &mut parts);
        })?;
        self.time("adamw commit", WorkFloor::of_bytes(28 * len), |device| {
            PackedWeightsOptimizer::commit(device, &runs, &g, &mut w, &mut m, &mut v);
        })?;
        self.time("adamw in place", WorkFloor::of_bytes((28 + packed_bytes) * len), |device| {
            let mut parts = [MatrixPart { range: all(), matrix: &mut matrix }];
            device.adamw_in_place(&all().into(), &g, NUMBERS, &mut w, &mut m, &mut v, &mut parts);
        })?;
        self.time(
            "adamw candidate and squares",
            WorkFloor::of_bytes((16 + packed_bytes) * len),
            |device| {
                let part = MatrixPart { range: all(), matrix: &mut matrix };
                let layer = LayerCandidate {
                    runs: &runs,
                    state: UpdateState { w: &w, m: &m, v: &v, g: &g },
                    rest: &mut nothing,
                    matrices: vec![part],
                    tensors: vec![all()],
                };
                let _sums = PackedWeightsOptimizer::candidates_and_squares(device, vec![layer]);
            },
        )?;
        self.time("sum of squares", WorkFloor::of_bytes(4 * len), |device| {
            let _sum = device.sum_squares(BufferView::new(&g, all()));
        })?;
        self.time("adamw commit and fingerprint", WorkFloor::of_bytes(28 * len), |device| {
            let _sums =
                PackedWeightsOptimizer::commit_and_sum(device, &runs, &g, &mut w, &mut m, &mut v);
        })?;
        self.time("fingerprint", WorkFloor::of_bytes(12 * len), |device| {
            let _sums = device.state_sums(&w, &m, &v);
        })?;
        Ok(())
    }

    /// The products of a block, forward and both backward.
    fn linear(&mut self) -> Result<(), TimingError> {
        let TimedSizes { width, .. } = self.sizes;
        for (name, outputs, inputs) in [("qkv", 3, 1), ("out", 1, 1), ("up", 4, 1), ("down", 1, 4)]
        {
            let shape = MatrixShape { outputs: outputs * width, inputs: inputs * width };
            self.products(name, shape)?;
        }
        self.epilogues()
    }

    /// The products of an MLP with what a block of GPT-2 does beside them: biases, GELU and gradients of
    /// biases.
    fn epilogues(&mut self) -> Result<(), TimingError> {
        let TimedSizes { width, .. } = self.sizes;
        let (rows, wide) = (self.sizes.rows(), 4 * width);
        let x = self.rows_of(width)?;
        let mut before = self.rows_of(wide)?;
        let mut h = self.rows_of(wide)?;
        let bias = self.floats(wide)?;
        let up = MatrixShape { outputs: wide, inputs: width };
        let down = MatrixShape { outputs: width, inputs: wide };
        let [up_matrix, down_matrix] = [self.matrix(up)?, self.matrix(down)?];
        let weights = wide * width;
        let mut gradient = self.floats(weights + wide)?;
        let flop = 2.0 * (rows * weights) as f64;
        let activations = self.row_bytes(width) + 2 * self.row_bytes(wide);
        let bytes = activations + weights * self.harness.backend.precision().bytes();
        let work = WorkFloor { bytes, flop };
        self.time("up F, bias and gelu", work, |device| {
            let bias = Some(BufferView::new(&bias, 0..wide));
            let epilogue = ForwardEpilogue::Gelu { before: &mut before };
            device.linear_forward(rows, &x, &up_matrix, bias, epilogue, &mut h);
        })?;
        self.time("down B, gelu", work, |device| {
            let to = BackwardEpilogue::Gelu { before_then_gradient: &mut before };
            device.linear_backward_input(rows, &x, &down_matrix, to);
        })?;
        let bytes = self.row_bytes(width) + self.row_bytes(wide) + 8 * weights;
        self.time("up W, bias", WorkFloor { bytes, flop }, |device| {
            let bias = Some(weights..weights + wide);
            let to = LinearGradient { buffer: &mut gradient, weight: 0..weights, bias };
            device.linear_backward_weights(rows, up, &x, &h, to, Accumulate::Add);
        })?;
        Ok(())
    }

    fn products(&mut self, name: &str, shape: MatrixShape) -> Result<(), TimingError> {
        let (rows, MatrixShape { outputs, inputs }) = (self.sizes.rows(), shape);
        let mut x = self.rows_of(inputs)?;
        let mut y = self.rows_of(outputs)?;
        let matrix = self.matrix(shape)?;
        let len = outputs * inputs;
        let bytes = self.harness.backend.precision().bytes();
        let moved = self.row_bytes(inputs) + self.row_bytes(outputs);
        let flop = 2.0 * (rows * len) as f64;
        let work = WorkFloor { bytes: moved + len * bytes, flop };
        self.time(format!("{name} F"), work, |device| {
            device.linear_forward(rows, &x, &matrix, None, ForwardEpilogue::Plain, &mut y);
        })?;
        let rows_x = x.rows();
        let rows_y = y.rows();
        let weights = matrix.weights.rows();
        let product = |kind, left, right, result| MatrixProduct {
            kind,
            rows,
            outputs,
            inputs,
            left,
            right,
            result,
            addend: None,
        };
        self.compare(&product(ProductKind::Forward, rows_x, weights, rows_y))?;
        self.time(format!("{name} B"), work, |device| {
            let to = BackwardEpilogue::Plain { gradient: &mut x };
            device.linear_backward_input(rows, &y, &matrix, to);
        })?;
        self.compare(&product(ProductKind::Input, rows_y, weights, rows_x))?;
        let mut gradient = self.floats(len)?;
        let work = WorkFloor { bytes: moved + 8 * len, flop };
        self.time(format!("{name} W"), work, |device| {
            let to = LinearGradient { buffer: &mut gradient, weight: 0..len, bias: None };
            device.linear_backward_weights(rows, shape, &x, &y, to, Accumulate::Add);
        })?;
        let added = ProductKind::Weights { is_added: true };
        self.compare(&product(added, rows_y, rows_x, gradient.floats(0)))?;
        Ok(())
    }

    fn head(&mut self) -> Result<(), TimingError> {
        let (rows, TimedSizes { width, vocabulary, .. }) = (self.sizes.rows(), self.sizes);
        let targets: Vec<u32> = (0..rows).map(|row| (3 * row % vocabulary) as u32).collect();
        let shape = MatrixShape { outputs: vocabulary, inputs: width };
        let matrix = self.matrix(shape)?;
        let x = self.rows_of(width)?;
        let mut dx = self.rows_of(width)?;
        let mut logits = self.rows_of(vocabulary)?;
        let mut log_sums = self.floats(rows)?;
        let flop = 2.0 * (rows * vocabulary * width) as f64;
        let moved = self.row_bytes(width) + self.row_bytes(vocabulary);
        self.time("head F", WorkFloor { bytes: moved, flop }, |device| {
            let _loss = device.head_forward(&x, &matrix, &targets, &mut logits, &mut log_sums);
        })?;
        let moved = moved + self.row_bytes(vocabulary);
        self.time("head B", WorkFloor { bytes: moved, flop }, |device| {
            let logits = &mut logits;
            let scale = LossScale::of_cross_entropy(1.0);
            device.head_backward_input(&targets, scale, &log_sums, &matrix, logits, &mut dx);
        })?;
        let mut gradient = self.floats(vocabulary * width)?;
        let moved = self.row_bytes(width) + self.row_bytes(vocabulary) + 8 * vocabulary * width;
        self.time("head W", WorkFloor { bytes: moved, flop }, |device| {
            let to =
                LinearGradient { buffer: &mut gradient, weight: 0..vocabulary * width, bias: None };
            device.linear_backward_weights(rows, shape, &x, &logits, to, Accumulate::Add);
        })?;
        Ok(())
    }

    fn attention(&mut self, head_width: usize) -> Result<(), TimingError> {
        let TimedSizes { sequences, sequence_len, width, .. } = self.sizes;
        let heads = width / head_width;
        let shape = AttentionShape { sequences, sequence_len, heads, kv_heads: heads, head_width };
        let mut qkv = self.rows_of(3 * width)?;
        let mut out = self.rows_of(width)?;
        let dout = self.rows_of(width)?;
        let mut log_sums = self.floats(shape.rows() * heads)?;
        // One product over half of the square, two operations a term.
        let product = (shape.rows() * sequence_len * width) as f64;
        let forward = WorkFloor { bytes: 4 * self.row_bytes(width), flop: 2.0 * product };
        let backward = WorkFloor { bytes: 8 * self.row_bytes(width), flop: 5.0 * product };
        // A mask that hides nothing shows what it costs, and short documents what it saves.
        let [whole, short] = [1, DOCUMENTS].map(|count| {
            let len = sequence_len.div_ceil(count);
            let start = |row: usize| (row % sequence_len / len * len) as u32;
            (0..shape.rows()).map(start).collect::<Vec<u32>>()
        });
        let short_name = format!(" {DOCUMENTS} documents");
        for (name, mask) in [
            ("", AttentionMask::Causal),
            (" one document", AttentionMask::From(&whole)),
            (&short_name, AttentionMask::From(&short)),
        ] {
            self.time(format!("attention {head_width} F{name}"), forward, |device| {
                device.attention_forward(shape, mask, &qkv, &mut out, &mut log_sums);
            })?;
            self.time(format!("attention {head_width} B{name}"), backward, |device| {
                device.attention_backward(shape, mask, &out, &log_sums, &dout, &mut qkv);
            })?;
        }
        Ok(())
    }
}
