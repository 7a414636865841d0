//! The operations of a step of a GPT-2, each with buffers of its own and the least work it does.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use zbelastic_kernels::{
    Accumulate, AllocateError, AttentionMask, AttentionShape, Backend, BackwardEpilogue,
    BufferView, BufferViewMut, CpuBackend, CpuBuffer, DeviceMemory, EmbedGradient, ForwardEpilogue,
    LinearGradient, LossScale, MatrixShape, NormGradient, RowPositions, RowsShape,
};
use zbelastic_trainer::model::{MicrobatchShape, ModelConfig, model_size};

use super::super::case::BenchCase;
use super::super::optimizer::OptimizerBench;
use super::linear_layer::LinearLayer;

/// Runs an operation once and returns how long it took.
type Work<'a> = Box<dyn FnMut(&CpuBackend) -> Duration + 'a>;

/// An operation and its best times.
pub struct TimedOperation<'a> {
    pub name: &'static str,
    /// Times that a step runs it.
    pub count: usize,
    /// Floating-point operations of its products.
    pub flop: f64,
    /// Bytes that it reads and writes.
    pub bytes: usize,
    /// On one thread and on two.
    pub best: [Duration; 2],
    work: Work<'a>,
}

impl<'a> TimedOperation<'a> {
    /// An operation of so much arithmetic over so many floats.
    fn new(
        name: &'static str,
        count: usize,
        (flop, floats): (f64, usize),
        work: impl FnMut(&CpuBackend) -> Duration + 'a,
    ) -> Self {
        let best = [Duration::MAX; 2];
        Self { name, count, flop, bytes: FLOAT * floats, best, work: Box::new(work) }
    }

    /// Runs it once with each number of threads.
    pub fn run(&mut self, one: &CpuBackend, two: Option<&CpuBackend>) {
        let backends = [Some(one), two];
        for (best, cpu) in self.best.iter_mut().zip(backends) {
            let Some(cpu) = cpu else { continue };
            *best = (*best).min((self.work)(cpu));
        }
    }
}

/// Bytes of floats.
const FLOAT: usize = size_of::<f32>();

/// All but the optimizer's.
///
/// # Errors
/// If memory is short.
pub fn operations<'a>(
    cpu: &CpuBackend,
    model: &'a ModelConfig,
    shape: MicrobatchShape,
) -> Result<Vec<TimedOperation<'a>>, AllocateError> {
    let mut table = Table { cpu, model, shape, rows: Vec::new() };
    table.embedding()?;
    table.norm()?;
    table.attention()?;
    for layer in [LinearLayer::Qkv, LinearLayer::Out, LinearLayer::Up, LinearLayer::Down] {
        table.linear(layer)?;
    }
    table.head()?;
    Ok(table.rows)
}

/// The optimizer's passes over all layers.
pub fn optimizer_operations<'a>(
    case: &BenchCase,
    bench: OptimizerBench<'a>,
) -> Vec<TimedOperation<'a>> {
    let parameters = model_size(&case.model).1 as usize;
    let bench = Rc::new(RefCell::new(bench));
    let row =
        |name, floats_each: usize, pass: fn(&mut OptimizerBench<'a>, &CpuBackend) -> Duration| {
            let bench = bench.clone();
            let work = move |cpu: &CpuBackend| pass(&mut bench.borrow_mut(), cpu);
            TimedOperation::new(name, 1, (0.0, floats_each * parameters), work)
        };
    // w, m, v and g are read; a matrix is written as it is and in both packings.
    vec![
        row("squares", 1, OptimizerBench::square_sums),
        row("candidate", 7, |bench, cpu| bench.optimistic(cpu)[0]),
        row("commit", 5, |bench, cpu| bench.optimistic(cpu)[1]),
    ]
}

struct Table<'a, 'b> {
    cpu: &'b CpuBackend,
    model: &'a ModelConfig,
    shape: MicrobatchShape,
    rows: Vec<TimedOperation<'a>>,
}

impl<'a> Table<'a, '_> {
    /// Numbers of which none is denormal.
    fn floats(&self, len: usize) -> Result<CpuBuffer, AllocateError> {
        let mut buffer = self.cpu.allocate(len)?;
        let values: Vec<f32> = (0..len).map(|i| (i % 61) as f32 / 61.0 - 0.49).collect();
        self.cpu.upload(&values, BufferViewMut::new(&mut buffer, 0..len));
        Ok(buffer)
    }

    fn rows_of(&self, width: usize) -> Result<CpuBuffer, AllocateError> {
        self.floats(self.shape.rows() * width)
    }

    fn add(
        &mut self,
        name: &'static str,
        count: usize,
        (flop, floats): (f64, usize),
        mut work: impl FnMut(&CpuBackend) + 'a,
    ) {
        self.rows.push(TimedOperation::new(name, count, (flop, floats), move |cpu| {
            let began = Instant::now();
            work(cpu);
            began.elapsed()
        }));
    }

    fn blocks(&self) -> usize {
        self.model.blocks as usize
    }

    fn tokens(&self) -> Vec<u32> {
        (0..self.shape.rows()).map(|row| (7 * row) as u32 % self.model.vocabulary).collect()
    }

    fn embedding(&mut self) -> Result<(), AllocateError> {
        let width = self.model.width as usize;
        let positions = RowPositions::Counted { sequence_len: self.shape.sequence_len };
        let len = self.model.vocabulary as usize * width;
        let moved = self.shape.rows() * width;
        let tokens = self.tokens();
        let table = self.floats(len)?;
        let mut out = self.rows_of(width)?;
        self.add("embed F", 1, (0.0, 2 * moved), move |cpu| {
            cpu.embed_forward(positions, &tokens, BufferView::new(&table, 0..len), None, &mut out);
        });
        let tokens = self.tokens();
        let mut table = self.floats(len)?;
        let gradient = self.rows_of(width)?;
        self.add("embed W", 1, (0.0, len + 3 * moved), move |cpu| {
            let to = EmbedGradient { buffer: &mut table, tokens: 0..len, positions: None };
            cpu.embed_backward_weights(positions, &tokens, &gradient, to, Accumulate::Start);
        });
        Ok(())
    }

    fn norm(&mut self) -> Result<(), AllocateError> {
        let width = self.model.width as usize;
        let rows = RowsShape { count: self.shape.rows(), width };
        let norm = self.model.norm();
        let count = 2 * self.blocks() + 1;
        let moved = rows.count * width;
        let x = self.rows_of(width)?;
        let mut y = self.rows_of(width)?;
        let parameters = self.floats(2 * width)?;
        let mut statistics = self.floats(2 * rows.count)?;
        self.add("norm F", count, (0.0, 2 * moved), move |cpu| {
            let weight = BufferView::new(&parameters, 0..width);
            let bias = norm.has_bias().then(|| BufferView::new(&parameters, width..2 * width));
            cpu.norm_forward(norm, rows, &x, weight, bias, &mut y, &mut statistics);
        });
        let gradient = self.rows_of(width)?;
        let skip = self.rows_of(width)?;
        let mut x = self.rows_of(width)?;
        let parameters = self.floats(width)?;
        let statistics = self.floats(2 * rows.count)?;
        let partials_len = if norm.has_bias() { 2 * width } else { width };
        let mut partials = self.floats(partials_len)?;
        let mut sums = self.floats(partials_len)?;
        self.add("norm B, W", count, (0.0, 4 * moved), move |cpu| {
            let weight = BufferView::new(&parameters, 0..width);
            let x = &mut x;
            let partials = &mut partials;
            let skip = Some(&skip);
            cpu.norm_backward_input(norm, rows, &gradient, skip, weight, &statistics, x, partials);
            let bias = norm.has_bias().then_some(width..2 * width);
            let to = NormGradient { buffer: &mut sums, weight: 0..width, bias };
            cpu.norm_backward_weights(norm, width, partials, to, Accumulate::Start);
        });
        Ok(())
    }

    fn attention(&mut self) -> Result<(), AllocateError> {
        let MicrobatchShape { sequences, sequence_len } = self.shape;
        let shape: AttentionShape = self.model.attention_shape(sequences, sequence_len);
        let width = shape.query_width();
        let moved = shape.rows() * width;
        // One product over half of the square, two operations a term.
        let product = (moved * sequence_len) as f64;
        let qkv = self.rows_of(shape.qkv_width())?;
        let mut out = self.rows_of(width)?;
        let mut log_sums = self.rows_of(shape.heads)?;
        let mask = AttentionMask::Causal;
        let count = self.blocks();
        self.add("attention F", count, (2.0 * product, 4 * moved), move |cpu| {
            cpu.attention_forward(shape, mask, &qkv, &mut out, &mut log_sums);
        });
        let mut qkv = self.rows_of(shape.qkv_width())?;
        let out = self.rows_of(width)?;
        let log_sums = self.rows_of(shape.heads)?;
        let gradient = self.rows_of(width)?;
        let values = self.cpu.download(BufferView::new(&qkv, 0..shape.rows() * shape.qkv_width()));
        let work = (5.0 * product, 8 * moved);
        self.rows.push(TimedOperation::new("attention B", count, work, move |cpu| {
            // B leaves gradients where its operands were.
            let all = BufferViewMut::new(&mut qkv, 0..values.len());
            cpu.upload(&values, all);
            let began = Instant::now();
            cpu.attention_backward(shape, mask, &out, &log_sums, &gradient, &mut qkv);
            began.elapsed()
        }));
        Ok(())
    }

    fn linear(&mut self, layer: LinearLayer) -> Result<(), AllocateError> {
        let rows = self.shape.rows();
        let shape = layer.matrix(self.model);
        let MatrixShape { outputs, inputs } = shape;
        let len = outputs * inputs;
        let flop = 2.0 * (rows * len) as f64;
        let moved = rows * (inputs + outputs) + len;
        let [forward, backward, weights] = layer.names();
        let count = self.blocks();
        let loaded = |table: &Self| {
            let floats = table.floats(len)?;
            let mut matrix = table.cpu.allocate_matrix(shape)?;
            table.cpu.load_matrix(BufferView::new(&floats, 0..len), &mut matrix);
            Ok(matrix)
        };
        let x = self.rows_of(inputs)?;
        let mut y = self.rows_of(outputs)?;
        let mut other = self.rows_of(outputs)?;
        let bias = self.floats(outputs)?;
        let matrix = loaded(self)?;
        let is_plain = matches!(layer.forward(&mut other), ForwardEpilogue::Plain);
        let more = if is_plain { 0 } else { rows * outputs };
        self.add(forward, count, (flop, moved + more), move |cpu| {
            let bias = Some(BufferView::new(&bias, 0..outputs));
            cpu.linear_forward(rows, &x, &matrix, bias, layer.forward(&mut other), &mut y);
        });
        let gradient = self.rows_of(outputs)?;
        let mut to = self.rows_of(inputs)?;
        let matrix = loaded(self)?;
        let is_plain = matches!(layer.backward(&mut to), BackwardEpilogue::Plain { .. });
        let more = if is_plain { 0 } else { rows * inputs };
        self.add(backward, count, (flop, moved + more), move |cpu| {
            cpu.linear_backward_input(rows, &gradient, &matrix, layer.backward(&mut to));
        });
        let x = self.rows_of(inputs)?;
        let gradient = self.rows_of(outputs)?;
        let mut sums = self.floats(len + outputs)?;
        self.add(weights, count, (flop, moved), move |cpu| {
            let bias = Some(len..len + outputs);
            let to = LinearGradient { buffer: &mut sums, weight: 0..len, bias };
            cpu.linear_backward_weights(rows, shape, &x, &gradient, to, Accumulate::Start);
        });
        Ok(())
    }

    fn head(&mut self) -> Result<(), AllocateError> {
        let rows = self.shape.rows();
        let shape = self.model.head_matrix();
        let MatrixShape { outputs, inputs } = shape;
        let len = outputs * inputs;
        let flop = 2.0 * (rows * len) as f64;
        let moved = rows * (inputs + outputs) + len;
        let floats = self.floats(len)?;
        let mut matrix = self.cpu.allocate_matrix(shape)?;
        self.cpu.load_matrix(BufferView::new(&floats, 0..len), &mut matrix);
        drop(floats);
        let matrix = Rc::new(matrix);
        let [x, mut dx] = [self.rows_of(inputs)?, self.rows_of(inputs)?];
        let mut logits = self.rows_of(outputs)?;
        let mut log_sums = self.floats(rows)?;
        let targets = self.tokens();
        let shared = matrix.clone();
        self.add("head F", 1, (flop, moved), move |cpu| {
            let _ = cpu.head_forward(&x, &shared, &targets, &mut logits, &mut log_sums);
        });
        let mut logits = self.rows_of(outputs)?;
        let log_sums = self.floats(rows)?;
        let targets = self.tokens();
        self.add("head B", 1, (flop, moved + rows * outputs), move |cpu| {
            let scale = LossScale::of_cross_entropy(1e-3);
            cpu.head_backward_input(&targets, scale, &log_sums, &matrix, &mut logits, &mut dx);
        });
        let x = self.rows_of(inputs)?;
        let gradient = self.rows_of(outputs)?;
        let mut sums = self.floats(len)?;
        self.add("head W", 1, (flop, moved), move |cpu| {
            let to = LinearGradient { buffer: &mut sums, weight: 0..len, bias: None };
            cpu.linear_backward_weights(rows, shape, &x, &gradient, to, Accumulate::Start);
        });
        Ok(())
    }
}
