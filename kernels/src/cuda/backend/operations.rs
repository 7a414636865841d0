//! The operations of [`Backend`] on a device, each handed to the file that does it.

use std::ops::Range;

use super::super::away::CudaAway;
use super::super::device::Device;
use super::super::error::DeviceFault;
use super::super::memory::{CudaBuffer, Element};
use super::super::source::Precision;
use super::super::{
    activation, attention, away, embed, head, leaving, linear, norm, optimizer, parcel, squares,
    stamps, state_sums, transfer, versions,
};
use super::{CudaBackend, CudaMatrix};
use crate::backend::{
    Accumulate, AdamWNumbers, AdamWRun, AllocateError, AttentionShape, Backend, BackwardEpilogue,
    EarlierSlice, EmbedGradient, FormOptimizer, ForwardEpilogue, HostFloats, LayerCandidate,
    LinearGradient, Loss, MatrixPart, MatrixShape, Norm, NormGradient, Parcel, Rows, SquareSum,
    StateSums, Turn, UpdateState, View, ViewMut,
};
use crate::sizes::{ByteCounts, Claim};

impl<D: Device> Backend for CudaBackend<D> {
    type Buffer = CudaBuffer<D>;
    type Matrix = CudaMatrix<D>;
    type Away = CudaAway<D>;

    fn allocate(&self, len: usize) -> Result<CudaBuffer<D>, AllocateError> {
        self.buffer(Element::Float, len)
    }

    fn allocate_rows(&self, len: usize) -> Result<CudaBuffer<D>, AllocateError> {
        self.buffer(Element::Row, len)
    }

    fn claim(&self, claim: &Claim<'_>) -> Result<(), AllocateError> {
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

    fn upload(&self, from: &[f32], to: ViewMut<'_, CudaBuffer<D>>) {
        self.run(|| transfer::upload(self, from, &to));
    }

    fn download(&self, from: View<'_, CudaBuffer<D>>) -> Vec<f32> {
        let nothing = || vec![f32::NAN; from.range.len()];
        self.ask(None, || transfer::download(self, &from).map(Some)).unwrap_or_else(nothing)
    }

    fn copy(&self, from: View<'_, CudaBuffer<D>>, to: ViewMut<'_, CudaBuffer<D>>) {
        self.run(|| transfer::copy(self, &from, &to));
    }

    fn is_behind(&self) -> bool {
        true
    }

    fn stamp(&self) -> bool {
        self.ask(false, || stamps::stamp(self, &self.stamps))
    }

    fn stamps(&self) -> Vec<f64> {
        self.ask(Vec::new(), || stamps::read(self, &self.stamps))
    }

    fn pack(&self, from: View<'_, CudaBuffer<D>>) -> Parcel {
        let packed = self.ask(None, || parcel::pack(self, &self.rooms[0], &from));
        packed.unwrap_or_else(|| self.download(from).into())
    }

    fn unpack(&self, parcel: Parcel, to: ViewMut<'_, CudaBuffer<D>>) {
        if let Some(parcel) = self.ask(None, || parcel::unpack(self, parcel, &to)) {
            self.upload(&parcel.into_floats(), to);
        }
    }

    fn receive(&self, parcel: Parcel) -> Parcel {
        let Parcel::Here(numbers) = parcel else { return parcel };
        let nothing = Parcel::from(Vec::new());
        self.ask(nothing, || parcel::receive(self, &self.rooms[1], numbers))
    }

    fn carry(&self, from: &mut CudaBuffer<D>) -> HostFloats {
        let carried = self.ask(None, || leaving::carry(self, &self.leaving, from));
        carried.unwrap_or_else(|| self.download(View::new(from, 0..from.len())).into())
    }

    fn reserve_away(&self, bytes: u64) -> Result<Option<CudaAway<D>>, AllocateError> {
        away::reserve(self, bytes).map(Some).map_err(|fault| self.refusal(bytes, fault))
    }

    fn send_away(&self, parts: &mut [&mut CudaBuffer<D>], away: &mut CudaAway<D>, start: u64) {
        self.run(|| away::send(self, parts, away, start));
    }

    fn bring_back(&self, away: &mut CudaAway<D>, start: u64, parts: &mut [&mut CudaBuffer<D>]) {
        self.run(|| away::bring_back(self, parts, away, start));
    }

    fn settle(&self, buffer: &mut CudaBuffer<D>) {
        self.run(|| away::settle(self, buffer));
    }

    fn allocate_matrix(&self, shape: MatrixShape) -> Result<CudaMatrix<D>, AllocateError> {
        let form = self.buffer(Element::Row, shape.outputs * shape.inputs)?;
        Ok(CudaMatrix { shape, form })
    }

    fn load_matrix(&self, from: View<'_, CudaBuffer<D>>, to: &mut CudaMatrix<D>) {
        self.run(|| transfer::load_matrix(self, &from, to));
    }

    fn embed_forward(
        &self,
        sequence_len: usize,
        tokens: &[u32],
        token_table: View<'_, CudaBuffer<D>>,
        position_table: Option<View<'_, CudaBuffer<D>>>,
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
        rows: Rows,
        x: &CudaBuffer<D>,
        weight: View<'_, CudaBuffer<D>>,
        bias: Option<View<'_, CudaBuffer<D>>>,
        y: &mut CudaBuffer<D>,
        statistics: &mut CudaBuffer<D>,
    ) {
        let bias = bias.as_ref();
        self.run(|| norm::forward(self, norm, rows, x, &weight, bias, y, statistics));
    }

    fn norm_backward_input(
        &self,
        norm: Norm,
        rows: Rows,
        gradient: &CudaBuffer<D>,
        skip: Option<&CudaBuffer<D>>,
        weight: View<'_, CudaBuffer<D>>,
        statistics: &CudaBuffer<D>,
        x_then_gradient: &mut CudaBuffer<D>,
        partials: &mut CudaBuffer<D>,
    ) {
        let operands = norm::BackwardRows { gradient, skip, statistics, x_then_gradient };
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
        bias: Option<View<'_, CudaBuffer<D>>>,
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
        turn: Turn,
        qkv: &mut CudaBuffer<D>,
    ) {
        self.run(|| activation::rotate(self, shape, angles, turn, qkv));
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
        let saved = attention::Saved { out, log_sums, gradient };
        self.run(|| attention::backward(self, shape, earlier, later, saved, qkv_then_gradient));
    }

    fn gelu_forward(&self, rows: Rows, before: &CudaBuffer<D>, h: &mut CudaBuffer<D>) {
        self.run(|| activation::gelu_forward(self, rows, before, h));
    }

    fn swiglu_forward(&self, rows: Rows, gate_up: &CudaBuffer<D>, h: &mut CudaBuffer<D>) {
        self.run(|| activation::swiglu_forward(self, rows, gate_up, h));
    }

    fn swiglu_backward(
        &self,
        rows: Rows,
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
    ) -> f64 {
        self.ask(f64::NAN, || head::forward(self, x, matrix, targets, logits, log_sums))
    }

    fn head_forward_later(
        &self,
        x: &CudaBuffer<D>,
        matrix: &CudaMatrix<D>,
        targets: &[u32],
        logits: &mut CudaBuffer<D>,
        log_sums: &mut CudaBuffer<D>,
    ) -> Loss {
        let lost = Loss::Known(f64::NAN);
        self.ask(lost, || head::forward_later(self, x, matrix, targets, logits, log_sums))
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

    fn sum_squares(&self, x: View<'_, CudaBuffer<D>>) -> SquareSum {
        let mut sums = self.sum_squares_of_each(&[x]);
        sums.pop().expect("one sum a tensor")
    }

    fn sum_squares_of_each(&self, tensors: &[View<'_, CudaBuffer<D>>]) -> Vec<SquareSum> {
        let lost = |x: &View<'_, CudaBuffer<D>>| SquareSum {
            sum: f64::NAN,
            nonfinite: x.range.len() as u64,
        };
        let nothing = || tensors.iter().map(lost).collect();
        self.ask(None, || squares::sum_squares(self, tensors).map(Some)).unwrap_or_else(nothing)
    }

    fn state_sums(&self, w: &CudaBuffer<D>, m: &CudaBuffer<D>, v: &CudaBuffer<D>) -> StateSums {
        self.ask([0; 2].into(), || state_sums::of_state(self, [w, m, v]))
    }

    fn form_optimizer(&self) -> Option<&dyn FormOptimizer<CudaBuffer<D>, CudaMatrix<D>>> {
        Some(self)
    }

    fn adamw_candidate(
        &self,
        range: Range<usize>,
        w: &CudaBuffer<D>,
        m: &CudaBuffer<D>,
        v: &CudaBuffer<D>,
        g: &CudaBuffer<D>,
        numbers: AdamWNumbers,
        candidate: &mut CudaBuffer<D>,
        matrices: &mut [MatrixPart<'_, CudaMatrix<D>>],
    ) {
        let (runs, state) = (optimizer::run(range, numbers), UpdateState { w, m, v, g });
        let to = optimizer::Candidate::Beside(candidate);
        self.run(|| optimizer::candidate(self, &runs, &state, &to, matrices));
    }

    fn adamw_commit(
        &self,
        range: Range<usize>,
        g: &CudaBuffer<D>,
        numbers: AdamWNumbers,
        m: &mut CudaBuffer<D>,
        v: &mut CudaBuffer<D>,
    ) {
        let state = optimizer::InPlace { w: None, m, v };
        self.run(|| optimizer::in_place(self, &optimizer::run(range, numbers), g, &state, &[]));
    }

    fn adamw_in_place(
        &self,
        range: Range<usize>,
        g: &CudaBuffer<D>,
        numbers: AdamWNumbers,
        w: &mut CudaBuffer<D>,
        m: &mut CudaBuffer<D>,
        v: &mut CudaBuffer<D>,
        matrices: &mut [MatrixPart<'_, CudaMatrix<D>>],
    ) {
        let state = optimizer::InPlace { w: Some(w), m, v };
        let runs = optimizer::run(range, numbers);
        self.run(|| optimizer::in_place(self, &runs, g, &state, matrices));
    }

    fn adam_ahead(
        &self,
        w: &CudaBuffer<D>,
        m: &CudaBuffer<D>,
        v: &CudaBuffer<D>,
        numbers: AdamWNumbers,
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

impl<D: Device> FormOptimizer<CudaBuffer<D>, CudaMatrix<D>> for CudaBackend<D> {
    fn candidate(
        &self,
        runs: &[AdamWRun],
        state: UpdateState<'_, CudaBuffer<D>>,
        rest: &mut CudaBuffer<D>,
        matrices: &mut [MatrixPart<'_, CudaMatrix<D>>],
    ) {
        let to = optimizer::Candidate::Rest(rest);
        self.run(|| optimizer::candidate(self, runs, &state, &to, matrices));
    }

    fn candidates_and_squares(
        &self,
        layers: Vec<LayerCandidate<'_, CudaBuffer<D>, CudaMatrix<D>>>,
    ) -> Vec<SquareSum> {
        let tensors = layers.iter().flat_map(|layer| &layer.tensors);
        let lost = tensors.map(|range| SquareSum { sum: f64::NAN, nonfinite: range.len() as u64 });
        let nothing: Vec<SquareSum> = lost.collect();
        self.ask(nothing, || squares::with_candidates(self, &layers))
    }

    fn commit(
        &self,
        runs: &[AdamWRun],
        g: &CudaBuffer<D>,
        w: &mut CudaBuffer<D>,
        m: &mut CudaBuffer<D>,
        v: &mut CudaBuffer<D>,
    ) {
        let state = optimizer::InPlace { w: Some(w), m, v };
        self.run(|| optimizer::in_place(self, runs, g, &state, &[]));
    }

    fn commit_and_sum(
        &self,
        runs: &[AdamWRun],
        g: &CudaBuffer<D>,
        w: &mut CudaBuffer<D>,
        m: &mut CudaBuffer<D>,
        v: &mut CudaBuffer<D>,
    ) -> StateSums {
        let state = optimizer::InPlace { w: Some(w), m, v };
        self.ask([0; 2].into(), || optimizer::in_place_summed(self, runs, g, &state))
    }
}
