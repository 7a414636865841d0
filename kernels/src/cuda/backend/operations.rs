//! The operations of [`Backend`] on a device, each called in the module that implements it.

use std::ops::Range;

use super::super::device::Device;
use super::super::error::DeviceFault;
use super::super::memory::{CudaBuffer, ElementType};
use super::super::offload::CudaOffloadBuffer;
use super::super::source::Precision;
use super::super::{
    activation, attention, download, embed, head, linear, norm, offload, optimizer, squares,
    staging, state_sums, timestamps, transfer, versions,
};
use super::{CudaBackend, CudaMatrix};
use crate::backend::{
    Accumulate, AdamWCoefficients, AdamWRange, AllocateError, AttentionShape, Backend,
    BackwardEpilogue, BufferView, BufferViewMut, EarlierSlice, EmbedGradient, ForwardEpilogue,
    LayerCandidate, LinearGradient, MatrixPart, MatrixShape, Norm, NormGradient,
    PackedWeightsOptimizer, Pending, PendingFloats, RotaryDirection, RowsShape, SquareSum,
    TensorHandle, UpdateState,
};
use crate::sizes::{ByteCounts, MemoryClaim};

impl<D: Device> Backend for CudaBackend<D> {
    type Buffer = CudaBuffer<D>;
    type Matrix = CudaMatrix<D>;
    type OffloadBuffer = CudaOffloadBuffer<D>;

    fn allocate(&self, len: usize) -> Result<CudaBuffer<D>, AllocateError> {
        self.buffer(ElementType::Float, len)
    }

    fn allocate_rows(&self, len: usize) -> Result<CudaBuffer<D>, AllocateError> {
        self.buffer(ElementType::Row, len)
    }

    fn claim(&self, claim: &MemoryClaim<'_>) -> Result<(), AllocateError> {
        self.take_claim(claim).map_err(|fault| self.refusal(self.claim_bytes(claim), fault))
    }

    fn fault(&self) -> Option<DeviceFault> {
        self.fault.get().cloned()
    }

    fn flush(&self) {
        self.run(|| self.device.flush());
    }

    fn rounding(&self) -> f64 {
        match self.precision() {
            Precision::F32 => f64::from(f32::EPSILON) / 2.0,
            Precision::Bf16 => 1.0 / 256.0,
        }
    }

    fn len(&self, buffer: &CudaBuffer<D>) -> usize {
        buffer.len()
    }

    fn upload(&self, from: &[f32], to: BufferViewMut<'_, CudaBuffer<D>>) {
        self.run(|| transfer::upload(self, from, &to));
    }

    fn download(&self, from: BufferView<'_, CudaBuffer<D>>) -> Vec<f32> {
        let nothing = || vec![f32::NAN; from.range.len()];
        self.run_or(None, || transfer::download(self, &from).map(Some)).unwrap_or_else(nothing)
    }

    fn copy(&self, from: BufferView<'_, CudaBuffer<D>>, to: BufferViewMut<'_, CudaBuffer<D>>) {
        self.run(|| transfer::copy(self, &from, &to));
    }

    fn is_asynchronous(&self) -> bool {
        true
    }

    fn record_timestamp(&self) -> bool {
        self.run_or(false, || timestamps::record_timestamp(self, &self.timestamps))
    }

    fn read_timestamps(&self) -> Vec<f64> {
        self.run_or(Vec::new(), || timestamps::read(self, &self.timestamps))
    }

    fn export_tensor(&self, from: BufferView<'_, CudaBuffer<D>>) -> TensorHandle {
        let staged =
            self.run_or(None, || staging::export_tensor(self, &self.staging_pools[0], &from));
        staged.unwrap_or_else(|| self.download(from).into())
    }

    fn import_tensor(
        &self,
        tensor: TensorHandle,
        to: BufferViewMut<'_, CudaBuffer<D>>,
    ) -> Result<(), DeviceFault> {
        if let Some(tensor) = self.run_or(None, || staging::import_tensor(self, tensor, &to)) {
            self.upload(&tensor.into_floats()?, to);
        }
        Ok(())
    }

    fn begin_upload(&self, tensor: TensorHandle) -> TensorHandle {
        if tensor.is_on_device() {
            return tensor;
        }
        let len = tensor.len();
        self.run_result(|| staging::begin_upload(self, &self.staging_pools[1], tensor))
            .unwrap_or_else(|fault| TensorHandle::pending(len, Pending::Failed(fault)))
    }

    fn begin_download(&self, from: &mut CudaBuffer<D>) -> PendingFloats {
        let pending = self.run_or(None, || download::begin_download(self, &self.downloads, from));
        pending.unwrap_or_else(|| self.download(BufferView::new(from, 0..from.len())).into())
    }

    fn reserve_offload(&self, bytes: u64) -> Result<Option<CudaOffloadBuffer<D>>, AllocateError> {
        offload::reserve(self, bytes).map(Some).map_err(|fault| self.refusal(bytes, fault))
    }

    fn offload(
        &self,
        parts: &mut [&mut CudaBuffer<D>],
        host: &mut CudaOffloadBuffer<D>,
        start: u64,
    ) {
        self.run(|| offload::offload(self, parts, host, start));
    }

    fn reload(
        &self,
        host: &mut CudaOffloadBuffer<D>,
        start: u64,
        parts: &mut [&mut CudaBuffer<D>],
    ) {
        self.run(|| offload::reload(self, parts, host, start));
    }

    fn order_after_copies(&self, buffer: &mut CudaBuffer<D>) {
        self.run(|| offload::order_after_copies(self, buffer));
    }

    fn allocate_matrix(&self, shape: MatrixShape) -> Result<CudaMatrix<D>, AllocateError> {
        let weights = self.buffer(ElementType::Row, shape.outputs * shape.inputs)?;
        Ok(CudaMatrix { shape, weights })
    }

    fn load_matrix(&self, from: BufferView<'_, CudaBuffer<D>>, to: &mut CudaMatrix<D>) {
        self.run(|| transfer::load_matrix(self, &from, to));
    }

    fn embed_forward(
        &self,
        sequence_len: usize,
        tokens: &[u32],
        token_table: BufferView<'_, CudaBuffer<D>>,
        position_table: Option<BufferView<'_, CudaBuffer<D>>>,
        out: &mut CudaBuffer<D>,
    ) {
        let positions = position_table.as_ref();
        self.run(|| embed::forward(self, sequence_len, tokens, &token_table, positions, out));
    }

    fn embed_backward_weights(
        &self,
        sequence_len: usize,
        tokens: &[u32],
        gradient: &CudaBuffer<D>,
        to: EmbedGradient<'_, CudaBuffer<D>>,
        accumulate: Accumulate,
    ) {
        self.run(|| embed::backward(self, sequence_len, tokens, gradient, &to, accumulate));
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
        qkv: &CudaBuffer<D>,
        out: &mut CudaBuffer<D>,
        log_sums: &mut CudaBuffer<D>,
    ) {
        self.attention_slice_forward(shape, &[], qkv, out, log_sums);
    }

    fn attention_backward(
        &self,
        shape: AttentionShape,
        out: &CudaBuffer<D>,
        log_sums: &CudaBuffer<D>,
        gradient: &CudaBuffer<D>,
        qkv_then_gradient: &mut CudaBuffer<D>,
    ) {
        let nothing = &mut [];
        let qkv = qkv_then_gradient;
        self.attention_slice_backward(shape, nothing, None, out, log_sums, gradient, qkv);
    }

    fn attention_slice_forward(
        &self,
        shape: AttentionShape,
        earlier: &[&CudaBuffer<D>],
        qkv: &CudaBuffer<D>,
        out: &mut CudaBuffer<D>,
        log_sums: &mut CudaBuffer<D>,
    ) {
        self.run(|| attention::forward(self, shape, earlier, qkv, out, log_sums));
    }

    fn attention_slice_backward(
        &self,
        shape: AttentionShape,
        earlier: &mut [EarlierSlice<'_, CudaBuffer<D>>],
        later: Option<&CudaBuffer<D>>,
        out: &CudaBuffer<D>,
        log_sums: &CudaBuffer<D>,
        gradient: &CudaBuffer<D>,
        qkv_then_gradient: &mut CudaBuffer<D>,
    ) {
        let saved = attention::CudaSavedAttention { out, log_sums, gradient };
        self.run(|| attention::backward(self, shape, earlier, later, saved, qkv_then_gradient));
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
        scale: f32,
        log_sums: &CudaBuffer<D>,
        matrix: &CudaMatrix<D>,
        logits_then_gradient: &mut CudaBuffer<D>,
        gradient: &mut CudaBuffer<D>,
    ) {
        let logits = logits_then_gradient;
        self.run(|| head::backward(self, targets, scale, log_sums, matrix, logits, gradient));
    }

    fn sum_squares(&self, x: BufferView<'_, CudaBuffer<D>>) -> SquareSum {
        let mut sums = self.sum_squares_of_each(&[x]);
        sums.pop().expect("one sum a tensor")
    }

    fn sum_squares_of_each(&self, tensors: &[BufferView<'_, CudaBuffer<D>>]) -> Vec<SquareSum> {
        let lost = |x: &BufferView<'_, CudaBuffer<D>>| SquareSum {
            sum: f64::NAN,
            nonfinite: x.range.len() as u64,
        };
        let nothing = || tensors.iter().map(lost).collect();
        self.run_or(None, || squares::sum_squares(self, tensors).map(Some)).unwrap_or_else(nothing)
    }

    fn state_sums(
        &self,
        w: &CudaBuffer<D>,
        m: &CudaBuffer<D>,
        v: &CudaBuffer<D>,
    ) -> Pending<[u64; 2]> {
        self.run_pending(|| state_sums::of_state(self, [w, m, v]))
    }

    fn packed_weights_optimizer(
        &self,
    ) -> Option<&dyn PackedWeightsOptimizer<CudaBuffer<D>, CudaMatrix<D>>> {
        Some(self)
    }

    fn adamw_candidate(
        &self,
        range: Range<usize>,
        w: &CudaBuffer<D>,
        m: &CudaBuffer<D>,
        v: &CudaBuffer<D>,
        g: &CudaBuffer<D>,
        numbers: AdamWCoefficients,
        candidate: &mut CudaBuffer<D>,
        matrices: &mut [MatrixPart<'_, CudaMatrix<D>>],
    ) {
        let runs = optimizer::run(range, numbers);
        let state = UpdateState { w, m, v, g };
        let to = optimizer::CandidateTarget::Beside(candidate);
        self.run(|| optimizer::candidate(self, &runs, &state, &to, matrices));
    }

    fn adamw_commit(
        &self,
        range: Range<usize>,
        g: &CudaBuffer<D>,
        numbers: AdamWCoefficients,
        m: &mut CudaBuffer<D>,
        v: &mut CudaBuffer<D>,
    ) {
        let state = optimizer::InPlaceState { w: None, m, v };
        self.run(|| optimizer::in_place(self, &optimizer::run(range, numbers), g, &state, &[]));
    }

    fn adamw_in_place(
        &self,
        range: Range<usize>,
        g: &CudaBuffer<D>,
        numbers: AdamWCoefficients,
        w: &mut CudaBuffer<D>,
        m: &mut CudaBuffer<D>,
        v: &mut CudaBuffer<D>,
        matrices: &mut [MatrixPart<'_, CudaMatrix<D>>],
    ) {
        let state = optimizer::InPlaceState { w: Some(w), m, v };
        let runs = optimizer::run(range, numbers);
        self.run(|| optimizer::in_place(self, &runs, g, &state, matrices));
    }

    fn adam_ahead(
        &self,
        w: &CudaBuffer<D>,
        m: &CudaBuffer<D>,
        v: &CudaBuffer<D>,
        numbers: AdamWCoefficients,
        to: &mut CudaBuffer<D>,
    ) {
        self.run(|| versions::adam_ahead(self, [w, m, v], numbers, to));
    }

    fn weights_along(
        &self,
        w: &CudaBuffer<D>,
        direction: &CudaBuffer<D>,
        rate: f32,
        to: &mut CudaBuffer<D>,
    ) {
        self.run(|| versions::weights_along(self, w, direction, rate, to));
    }

    fn track_change(
        &self,
        before: &CudaBuffer<D>,
        after: &CudaBuffer<D>,
        decay: f32,
        change: &mut CudaBuffer<D>,
    ) {
        self.run(|| versions::track_change(self, before, after, decay, change));
    }

    fn pull_together(&self, alpha: f32, w: &mut CudaBuffer<D>, reference: &mut CudaBuffer<D>) {
        self.run(|| versions::pull_together(self, alpha, w, reference));
    }
}

impl<D: Device> PackedWeightsOptimizer<CudaBuffer<D>, CudaMatrix<D>> for CudaBackend<D> {
    fn candidate(
        &self,
        runs: &[AdamWRange],
        state: UpdateState<'_, CudaBuffer<D>>,
        rest: &mut CudaBuffer<D>,
        matrices: &mut [MatrixPart<'_, CudaMatrix<D>>],
    ) {
        let to = optimizer::CandidateTarget::Rest(rest);
        self.run(|| optimizer::candidate(self, runs, &state, &to, matrices));
    }

    fn candidates_and_squares(
        &self,
        layers: Vec<LayerCandidate<'_, CudaBuffer<D>, CudaMatrix<D>>>,
    ) -> Vec<SquareSum> {
        let tensors = layers.iter().flat_map(|layer| &layer.tensors);
        let lost = tensors.map(|range| SquareSum { sum: f64::NAN, nonfinite: range.len() as u64 });
        let nothing: Vec<SquareSum> = lost.collect();
        self.run_or(nothing, || squares::with_candidates(self, &layers))
    }

    fn commit(
        &self,
        runs: &[AdamWRange],
        g: &CudaBuffer<D>,
        w: &mut CudaBuffer<D>,
        m: &mut CudaBuffer<D>,
        v: &mut CudaBuffer<D>,
    ) {
        let state = optimizer::InPlaceState { w: Some(w), m, v };
        self.run(|| optimizer::in_place(self, runs, g, &state, &[]));
    }

    fn commit_and_sum(
        &self,
        runs: &[AdamWRange],
        g: &CudaBuffer<D>,
        w: &mut CudaBuffer<D>,
        m: &mut CudaBuffer<D>,
        v: &mut CudaBuffer<D>,
    ) -> Pending<[u64; 2]> {
        let state = optimizer::InPlaceState { w: Some(w), m, v };
        self.run_pending(|| optimizer::in_place_summed(self, runs, g, &state))
    }
}
