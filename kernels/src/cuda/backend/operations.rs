//! The operations of [`Backend`] on a device, each called in the module that implements it.

use std::ops::Range;

use super::super::device::Device;
use super::super::error::DeviceFault;
use super::super::memory::CudaBuffer;
use super::super::{activation, adapter, attention, embed, head, linear, norm};
use super::{CudaBackend, CudaMatrix};
use crate::backend::{
    Accumulate, AdapterArithmetic, AdapterView, AttentionMask, AttentionShape, Backend,
    BackwardEpilogue, BufferView, EarlierSlice, EmbedGradient, ForwardEpilogue, LinearGradient,
    LossScale, MatrixShape, Norm, NormGradient, Pending, RotaryDirection, RowPositions, RowsShape,
};

impl<D: Device> Backend for CudaBackend<D> {
    fn fault(&self) -> Option<DeviceFault> {
        self.fault.get().cloned()
    }

    fn flush(&self) {
        self.run(|| self.device.flush());
    }

    fn rounding(&self) -> f64 {
        self.precision().rounding()
    }

    fn embed_forward(
        &self,
        positions: RowPositions<'_>,
        tokens: &[u32],
        token_table: BufferView<'_, CudaBuffer<D>>,
        position_table: Option<BufferView<'_, CudaBuffer<D>>>,
        out: &mut CudaBuffer<D>,
    ) {
        let position_table = position_table.as_ref();
        self.run(|| embed::forward(self, positions, tokens, &token_table, position_table, out));
    }

    fn embed_backward_weights(
        &self,
        positions: RowPositions<'_>,
        tokens: &[u32],
        gradient: &CudaBuffer<D>,
        to: EmbedGradient<'_, CudaBuffer<D>>,
        accumulate: Accumulate,
    ) {
        self.run(|| embed::backward(self, positions, tokens, gradient, &to, accumulate));
    }

    fn norm_forward(
        &self,
        norm: Norm,
        rows: RowsShape,
        x: &CudaBuffer<D>,
        weight: BufferView<'_, CudaBuffer<D>>,
        bias: Option<BufferView<'_, CudaBuffer<D>>>,
        y: &mut CudaBuffer<D>,
        statistics: &mut CudaBuffer<D>,
    ) {
        let bias = bias.as_ref();
        self.run(|| norm::forward(self, norm, rows, x, &weight, bias, y, statistics));
    }

    fn norm_backward_input(
        &self,
        norm: Norm,
        rows: RowsShape,
        gradient: &CudaBuffer<D>,
        skip: Option<&CudaBuffer<D>>,
        weight: BufferView<'_, CudaBuffer<D>>,
        statistics: &CudaBuffer<D>,
        x_then_gradient: &mut CudaBuffer<D>,
        partials: &mut CudaBuffer<D>,
    ) {
        let operands = norm::NormBackwardOperands { gradient, skip, statistics, x_then_gradient };
        self.run(|| norm::backward_input(self, norm, rows, &weight, operands, partials));
    }

    fn norm_backward_weights(
        &self,
        norm: Norm,
        width: usize,
        partials: &CudaBuffer<D>,
        to: NormGradient<'_, CudaBuffer<D>>,
        accumulate: Accumulate,
    ) {
        self.run(|| norm::backward_weights(self, norm, width, partials, &to, accumulate));
    }

    fn linear_forward(
        &self,
        rows: usize,
        x: &CudaBuffer<D>,
        matrix: &CudaMatrix<D>,
        bias: Option<BufferView<'_, CudaBuffer<D>>>,
        epilogue: ForwardEpilogue<'_, CudaBuffer<D>>,
        y: &mut CudaBuffer<D>,
    ) {
        self.run(|| linear::forward(self, rows, x, matrix, bias.as_ref(), &epilogue, y));
    }

    fn linear_backward_input(
        &self,
        rows: usize,
        gradient: &CudaBuffer<D>,
        matrix: &CudaMatrix<D>,
        epilogue: BackwardEpilogue<'_, CudaBuffer<D>>,
    ) {
        self.run(|| linear::backward_input(self, rows, gradient, matrix, &epilogue));
    }

    fn linear_backward_weights(
        &self,
        rows: usize,
        shape: MatrixShape,
        x: &CudaBuffer<D>,
        gradient: &CudaBuffer<D>,
        to: LinearGradient<'_, CudaBuffer<D>>,
        accumulate: Accumulate,
    ) {
        self.run(|| linear::backward_weights(self, rows, shape, x, gradient, &to, accumulate));
    }

    fn qk_norm_forward(
        &self,
        norm: Norm,
        shape: AttentionShape,
        weights: BufferView<'_, CudaBuffer<D>>,
        qkv: &mut CudaBuffer<D>,
        before: &mut CudaBuffer<D>,
        statistics: &mut CudaBuffer<D>,
    ) {
        let results = [qkv, before, statistics];
        self.run(|| norm::qk_norm_forward(self, norm, shape, &weights, results));
    }

    fn qk_norm_backward_input(
        &self,
        norm: Norm,
        shape: AttentionShape,
        statistics: &CudaBuffer<D>,
        weights: BufferView<'_, CudaBuffer<D>>,
        before: &mut CudaBuffer<D>,
        gradient: &mut CudaBuffer<D>,
        partials: &mut CudaBuffer<D>,
    ) {
        let kept = [&*before, statistics];
        self.run(|| norm::qk_norm_backward(self, norm, shape, &weights, kept, gradient, partials));
    }

    fn rotate(
        &self,
        shape: AttentionShape,
        angles: &CudaBuffer<D>,
        direction: RotaryDirection,
        qkv: &mut CudaBuffer<D>,
    ) {
        self.run(|| activation::rotate(self, shape, angles, direction, qkv));
    }

    fn attention_forward(
        &self,
        shape: AttentionShape,
        mask: AttentionMask<'_>,
        qkv: &CudaBuffer<D>,
        out: &mut CudaBuffer<D>,
        log_sums: &mut CudaBuffer<D>,
    ) {
        self.attention_slice_forward(shape, mask, &[], qkv, out, log_sums);
    }

    fn attention_backward(
        &self,
        shape: AttentionShape,
        mask: AttentionMask<'_>,
        out: &CudaBuffer<D>,
        log_sums: &CudaBuffer<D>,
        gradient: &CudaBuffer<D>,
        qkv_then_gradient: &mut CudaBuffer<D>,
    ) {
        let nothing = &mut [];
        let qkv = qkv_then_gradient;
        self.attention_slice_backward(shape, mask, nothing, None, out, log_sums, gradient, qkv);
    }

    fn attention_slice_forward(
        &self,
        shape: AttentionShape,
        mask: AttentionMask<'_>,
        earlier: &[&CudaBuffer<D>],
        qkv: &CudaBuffer<D>,
        out: &mut CudaBuffer<D>,
        log_sums: &mut CudaBuffer<D>,
    ) {
        self.run(|| attention::forward(self, (shape, mask), earlier, qkv, out, log_sums));
    }

    fn attention_slice_backward(
        &self,
        shape: AttentionShape,
        mask: AttentionMask<'_>,
        earlier: &mut [EarlierSlice<'_, CudaBuffer<D>>],
        later: Option<&CudaBuffer<D>>,
        out: &CudaBuffer<D>,
        log_sums: &CudaBuffer<D>,
        gradient: &CudaBuffer<D>,
        qkv_then_gradient: &mut CudaBuffer<D>,
    ) {
        let saved = attention::CudaSavedAttention { out, log_sums, gradient };
        let qkv = qkv_then_gradient;
        let of = (shape, mask);
        self.run(|| attention::backward(self, of, earlier, later, saved, qkv));
    }

    fn gelu_forward(&self, rows: RowsShape, before: &CudaBuffer<D>, h: &mut CudaBuffer<D>) {
        self.run(|| activation::gelu_forward(self, rows, before, h));
    }

    fn swiglu_forward(&self, rows: RowsShape, gate_up: &CudaBuffer<D>, h: &mut CudaBuffer<D>) {
        self.run(|| activation::swiglu_forward(self, rows, gate_up, h));
    }

    fn swiglu_backward(
        &self,
        rows: RowsShape,
        gradient: &CudaBuffer<D>,
        gate_up_then_gradient: &mut CudaBuffer<D>,
    ) {
        self.run(|| activation::swiglu_backward(self, rows, gradient, gate_up_then_gradient));
    }

    fn head_forward(
        &self,
        x: &CudaBuffer<D>,
        matrix: &CudaMatrix<D>,
        targets: &[u32],
        logits: &mut CudaBuffer<D>,
        log_sums: &mut CudaBuffer<D>,
    ) -> Pending<f64> {
        self.run_pending(|| head::forward(self, x, matrix, targets, logits, log_sums))
    }

    fn head_backward_input(
        &self,
        targets: &[u32],
        scale: LossScale,
        log_sums: &CudaBuffer<D>,
        matrix: &CudaMatrix<D>,
        logits_then_gradient: &mut CudaBuffer<D>,
        gradient: &mut CudaBuffer<D>,
    ) {
        let logits = logits_then_gradient;
        self.run(|| head::backward(self, targets, scale, log_sums, matrix, logits, gradient));
    }
}

impl<D: Device> AdapterArithmetic for CudaBackend<D> {
    fn load_adapted_matrix(
        &self,
        base: BufferView<'_, CudaBuffer<D>>,
        adapters: &[AdapterView<'_, CudaBuffer<D>>],
        matrix: &mut CudaMatrix<D>,
    ) {
        self.run(|| adapter::load_adapted_matrix(self, &base, adapters, matrix));
    }

    fn scale_columns(
        &self,
        from: &CudaBuffer<D>,
        width: usize,
        columns: Range<usize>,
        scale: f32,
        to: &mut CudaBuffer<D>,
    ) {
        self.run(|| adapter::scale_columns(self, from, width, &columns, scale, to));
    }
}
