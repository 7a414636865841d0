//! The operations of [`Backend`], each called in the module that implements it.

mod adapters;
mod memory;
mod updates;

use std::ops::Range;

use super::buffer::{CpuArena, CpuBuffer};
use super::instruction_set::InstructionSet;
use super::matmul::{MatrixPair, OuterProduct, PASSING_ROWS, STRIP, outer_product};
use super::threads::Threads;
use super::{activation, attention, embed, head, linear, norm, probe, qk_norm, rotate};
use crate::backend::{
    Accumulate, AllocateError, AttentionMask, AttentionShape, Backend, BackwardEpilogue,
    BufferView, EarlierSlice, EmbedGradient, ForwardEpilogue, LinearGradient, LossScale,
    MatrixShape, Norm, NormGradient, Pending, RotaryDirection, RowPositions, RowsShape,
};
use crate::precision::Precision;
use crate::sizes::{ByteCounts, DeviceSizes};

/// Rows below which a task would read the right factor's blocks more than it multiplies.
const ROWS_PER_TASK_MIN: usize = 128;

/// Processor cores as a device. Results depend neither on the thread count nor on the instruction
/// set.
pub struct CpuBackend {
    threads: Threads,
    set: InstructionSet,
    precision: Precision,
    arena: CpuArena,
}

/// A matrix, packed for the forward product and for the gradient of the input.
pub struct CpuMatrix(MatrixPair);

impl CpuBackend {
    /// A device of `thread_count` threads, the calling one included, with the instructions of
    /// [`InstructionSet::of_environment`]; a program checks that at its start.
    ///
    /// # Errors
    /// If the system refuses the threads.
    ///
    /// # Panics
    /// If `thread_count` is zero, or the environment names instructions that cannot be chosen.
    pub fn new(thread_count: usize) -> Result<Self, AllocateError> {
        Self::with_instructions(thread_count, InstructionSet::chosen())
    }

    /// The same with the given instruction set.
    ///
    /// # Errors
    /// If the system refuses the threads.
    ///
    /// # Panics
    /// If `thread_count` is zero, or the processor lacks the instructions.
    pub fn with_instructions(
        thread_count: usize,
        set: InstructionSet,
    ) -> Result<Self, AllocateError> {
        assert!(InstructionSet::available().contains(&set), "the processor lacks {set:?}");
        let threads = Threads::new(thread_count)?;
        Ok(Self { threads, set, precision: Precision::F32, arena: CpuArena::new() })
    }

    /// The same device, with factors of linear layers' products of this precision. Everything else
    /// is 32-bit floats, activations in memory as well.
    #[must_use]
    pub fn with_precision(self, precision: Precision) -> Self {
        Self { precision, ..self }
    }

    /// The instructions in use.
    #[must_use]
    pub fn instruction_set(&self) -> InstructionSet {
        self.set
    }

    /// Whether products have bfloat16 factors, and an instruction multiplies pairs of them.
    #[must_use]
    pub fn multiplies_pairs(&self) -> bool {
        self.precision == Precision::Bf16 && self.set.has_bf16()
    }

    /// Runs `rounds` rounds of multiply-adds that wait for nothing on every thread, and returns how
    /// many floating-point operations that was: with a clock around it, the peak that shares of a
    /// peak refer to. They are of floats, or of pairs of bfloat16 factors where the backend
    /// [multiplies pairs](Self::multiplies_pairs).
    #[must_use]
    pub fn multiply_adds(&self, rounds: usize) -> f64 {
        probe::multiply_adds(self, rounds)
    }

    pub(super) fn threads(&self) -> &Threads {
        &self.threads
    }

    /// Rows a task takes where a few tasks a thread even out what the system does meanwhile. The
    /// right factor's blocks are read again for each task, which for [`ROWS_PER_TASK_MIN`] rows
    /// costs a byte a cycle.
    pub(super) fn rows_per_task(&self, rows: usize) -> usize {
        const TASKS_PER_THREAD: usize = 3;
        let thread_count = self.threads.count();
        let even = rows.div_ceil(thread_count);
        if thread_count == 1 {
            return even.clamp(1, PASSING_ROWS);
        }
        let share = rows.div_ceil(TASKS_PER_THREAD * thread_count).next_multiple_of(STRIP);
        share.max(ROWS_PER_TASK_MIN.min(even)).clamp(1, PASSING_ROWS)
    }

    /// Rows a task takes where the right factor is too large to be read once a task.
    pub(super) fn rows_per_thread(&self, rows: usize) -> usize {
        rows.div_ceil(self.threads.count()).max(1)
    }
}

fn read<'a>(view: &BufferView<'a, CpuBuffer>) -> &'a [f32] {
    &view.buffer.as_slice()[view.range.clone()]
}

/// Two pieces of a buffer, to be written at once.
fn split(
    buffer: &mut CpuBuffer,
    first: Range<usize>,
    second: Option<Range<usize>>,
) -> (&mut [f32], Option<&mut [f32]>) {
    let floats = buffer.as_mut_slice();
    match second {
        None => (&mut floats[first], None),
        Some(second) => {
            let [first, second] =
                floats.get_disjoint_mut([first, second]).expect("parameters do not overlap");
            (first, Some(second))
        }
    }
}

impl ByteCounts for CpuBackend {
    fn sizes(&self) -> DeviceSizes {
        DeviceSizes::Processors(self.precision)
    }
}

impl Backend for CpuBackend {
    fn rounding(&self) -> f64 {
        self.precision.rounding()
    }

    fn embed_forward(
        &self,
        positions: RowPositions<'_>,
        tokens: &[u32],
        token_table: BufferView<'_, CpuBuffer>,
        position_table: Option<BufferView<'_, CpuBuffer>>,
        out: &mut CpuBuffer,
    ) {
        let position_table = position_table.as_ref().map(read);
        let tables = (read(&token_table), position_table);
        embed::forward(self, positions, tokens, tables, out.as_mut_slice());
    }

    fn embed_backward_weights(
        &self,
        positions: RowPositions<'_>,
        tokens: &[u32],
        gradient: &CpuBuffer,
        to: EmbedGradient<'_, CpuBuffer>,
        accumulate: Accumulate,
    ) {
        let (token_table, position_table) = split(to.buffer, to.tokens, to.positions);
        let tables = embed::EmbedTableGradients { tokens: token_table, positions: position_table };
        let gradient = gradient.as_slice();
        embed::backward_weights(self, positions, tokens, gradient, tables, accumulate);
    }

    fn norm_forward(
        &self,
        norm: Norm,
        rows: RowsShape,
        x: &CpuBuffer,
        weight: BufferView<'_, CpuBuffer>,
        bias: Option<BufferView<'_, CpuBuffer>>,
        y: &mut CpuBuffer,
        statistics: &mut CpuBuffer,
    ) {
        norm::forward(
            self,
            norm,
            rows,
            norm::NormParameters { weight: read(&weight), bias: bias.as_ref().map(read) },
            x.as_slice(),
            y.as_mut_slice(),
            statistics.as_mut_slice(),
        );
    }

    fn norm_backward_input(
        &self,
        norm: Norm,
        rows: RowsShape,
        gradient: &CpuBuffer,
        skip: Option<&CpuBuffer>,
        weight: BufferView<'_, CpuBuffer>,
        statistics: &CpuBuffer,
        x_then_gradient: &mut CpuBuffer,
        partials: &mut CpuBuffer,
    ) {
        let operands = norm::NormBackwardRows {
            gradient: gradient.as_slice(),
            skip: skip.map(CpuBuffer::as_slice),
            statistics: statistics.as_slice(),
            x_then_gradient: x_then_gradient.as_mut_slice(),
        };
        norm::backward_input(self, norm, rows, read(&weight), operands, partials.as_mut_slice());
    }

    fn norm_backward_weights(
        &self,
        norm: Norm,
        width: usize,
        partials: &CpuBuffer,
        to: NormGradient<'_, CpuBuffer>,
        accumulate: Accumulate,
    ) {
        assert_eq!(to.bias.is_some(), norm.has_bias());
        let (weight, bias) = split(to.buffer, to.weight, to.bias);
        let mut partials = partials.as_slice().chunks_exact(width);
        for to in [Some(weight), bias].into_iter().flatten() {
            let from = partials.next().expect("one share for the weight, one for the bias");
            for (to, from) in to.iter_mut().zip(from) {
                *to = match accumulate {
                    Accumulate::Start => *from,
                    Accumulate::Add => *to + from,
                };
            }
        }
    }

    fn linear_forward(
        &self,
        rows: usize,
        x: &CpuBuffer,
        matrix: &CpuMatrix,
        bias: Option<BufferView<'_, CpuBuffer>>,
        epilogue: ForwardEpilogue<'_, CpuBuffer>,
        y: &mut CpuBuffer,
    ) {
        let x = x.as_slice();
        let y = y.as_mut_slice();
        linear::forward(self, rows, x, &matrix.0.forward, bias.as_ref().map(read), epilogue, y);
    }

    fn linear_backward_input(
        &self,
        rows: usize,
        gradient: &CpuBuffer,
        matrix: &CpuMatrix,
        epilogue: BackwardEpilogue<'_, CpuBuffer>,
    ) {
        linear::backward_input(self, rows, gradient.as_slice(), &matrix.0.backward, epilogue);
    }

    fn linear_backward_weights(
        &self,
        rows: usize,
        shape: MatrixShape,
        x: &CpuBuffer,
        gradient: &CpuBuffer,
        to: LinearGradient<'_, CpuBuffer>,
        accumulate: Accumulate,
    ) {
        let (weight, bias) = split(to.buffer, to.weight, to.bias);
        let operands = OuterProduct {
            rows,
            left: gradient.as_slice(),
            left_width: shape.outputs,
            right: x.as_slice(),
            right_width: shape.inputs,
            precision: self.precision,
            accumulate,
        };
        outer_product(self.set, &self.threads, operands, weight, bias);
    }

    fn qk_norm_forward(
        &self,
        norm: Norm,
        shape: AttentionShape,
        weights: BufferView<'_, CpuBuffer>,
        qkv: &mut CpuBuffer,
        before: &mut CpuBuffer,
        statistics: &mut CpuBuffer,
    ) {
        let weights = read(&weights);
        let qkv = qkv.as_mut_slice();
        let before = before.as_mut_slice();
        qk_norm::forward(self, norm, shape, weights, qkv, before, statistics.as_mut_slice());
    }

    fn qk_norm_backward_input(
        &self,
        norm: Norm,
        shape: AttentionShape,
        statistics: &CpuBuffer,
        weights: BufferView<'_, CpuBuffer>,
        before: &mut CpuBuffer,
        gradient: &mut CpuBuffer,
        partials: &mut CpuBuffer,
    ) {
        let operands = qk_norm::QkNormBackwardRows {
            statistics: statistics.as_slice(),
            before: before.as_mut_slice(),
            gradient: gradient.as_mut_slice(),
        };
        let partials = partials.as_mut_slice();
        qk_norm::backward_input(self, norm, shape, read(&weights), operands, partials);
    }

    fn rotate(
        &self,
        shape: AttentionShape,
        angles: &CpuBuffer,
        direction: RotaryDirection,
        qkv: &mut CpuBuffer,
    ) {
        rotate::rotate(self, shape, angles.as_slice(), direction, qkv.as_mut_slice());
    }

    fn attention_forward(
        &self,
        shape: AttentionShape,
        mask: AttentionMask<'_>,
        qkv: &CpuBuffer,
        out: &mut CpuBuffer,
        log_sums: &mut CpuBuffer,
    ) {
        self.attention_slice_forward(shape, mask, &[], qkv, out, log_sums);
    }

    fn attention_backward(
        &self,
        shape: AttentionShape,
        mask: AttentionMask<'_>,
        out: &CpuBuffer,
        log_sums: &CpuBuffer,
        gradient: &CpuBuffer,
        qkv_then_gradient: &mut CpuBuffer,
    ) {
        let earlier = &mut [];
        let later = None;
        self.attention_slice_backward(
            shape,
            mask,
            earlier,
            later,
            out,
            log_sums,
            gradient,
            qkv_then_gradient,
        );
    }

    fn attention_slice_forward(
        &self,
        shape: AttentionShape,
        mask: AttentionMask<'_>,
        earlier: &[&CpuBuffer],
        qkv: &CpuBuffer,
        out: &mut CpuBuffer,
        log_sums: &mut CpuBuffer,
    ) {
        let earlier: Vec<&[f32]> = earlier.iter().map(|slice| slice.as_slice()).collect();
        let out = out.as_mut_slice();
        let log_sums = log_sums.as_mut_slice();
        attention::forward(self, (shape, mask), &earlier, qkv.as_slice(), out, log_sums);
    }

    fn attention_slice_backward(
        &self,
        shape: AttentionShape,
        mask: AttentionMask<'_>,
        earlier: &mut [EarlierSlice<'_, CpuBuffer>],
        later: Option<&CpuBuffer>,
        out: &CpuBuffer,
        log_sums: &CpuBuffer,
        gradient: &CpuBuffer,
        qkv_then_gradient: &mut CpuBuffer,
    ) {
        let earlier = earlier.iter_mut().map(|slice| attention::KeyValueGradients {
            qkv: slice.qkv.as_slice(),
            gradients: slice.key_value_gradient.as_mut_slice(),
        });
        let saved = attention::SavedAttention {
            out: out.as_slice(),
            log_sums: log_sums.as_slice(),
            gradient: gradient.as_slice(),
        };
        let later = later.map(CpuBuffer::as_slice);
        let qkv = qkv_then_gradient.as_mut_slice();
        attention::backward(self, (shape, mask), earlier.collect(), later, saved, qkv);
    }

    fn gelu_forward(&self, rows: RowsShape, before: &CpuBuffer, h: &mut CpuBuffer) {
        activation::gelu_forward(self, rows, before.as_slice(), h.as_mut_slice());
    }

    fn swiglu_forward(&self, rows: RowsShape, gate_up: &CpuBuffer, h: &mut CpuBuffer) {
        activation::swiglu_forward(self, rows, gate_up.as_slice(), h.as_mut_slice());
    }

    fn swiglu_backward(
        &self,
        rows: RowsShape,
        gradient: &CpuBuffer,
        gate_up_then_gradient: &mut CpuBuffer,
    ) {
        let gate_up = gate_up_then_gradient.as_mut_slice();
        activation::swiglu_backward(self, rows, gradient.as_slice(), gate_up);
    }

    fn head_forward(
        &self,
        x: &CpuBuffer,
        matrix: &CpuMatrix,
        targets: &[u32],
        logits: &mut CpuBuffer,
        log_sums: &mut CpuBuffer,
    ) -> Pending<f64> {
        let logits = logits.as_mut_slice();
        let log_sums = log_sums.as_mut_slice();
        head::forward(self, x.as_slice(), &matrix.0.forward, targets, logits, log_sums).into()
    }

    fn head_backward_input(
        &self,
        targets: &[u32],
        scale: LossScale,
        log_sums: &CpuBuffer,
        matrix: &CpuMatrix,
        logits_then_gradient: &mut CpuBuffer,
        gradient: &mut CpuBuffer,
    ) {
        let logits = logits_then_gradient.as_mut_slice();
        let gradient = gradient.as_mut_slice();
        let log_sums = log_sums.as_slice();
        head::backward_input(self, targets, scale, log_sums, &matrix.0.backward, logits, gradient);
    }
}
