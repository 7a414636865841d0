//! The operations of [`Backend`] on a device, each handed to the file that does it.
//!
//! Operations return nothing, so what goes wrong on the device is kept: from then on nothing is
//! launched, whatever is read is NaN, and [`CudaBackend::fault`] says why. A NaN in a sum of squares
//! is never taken into the weights, so a fault cannot be mistaken for a result.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::sync::Arc;

use super::away::CudaAway;
use super::device::{Address, Device};
use super::driver::CudaDevice;
use super::error::DeviceFault;
use super::kernel::Launch;
use super::losses::Losses;
use super::memory::{Arena, CudaBuffer, Element, Scratch, Slot};
use super::parcel::Rooms;
use super::pinned::Staging;
use super::source::Precision;
use super::{activation, attention, away, embed, head, linear, norm, optimizer, parcel, transfer};
use crate::backend::{
    Accumulate, AdamWNumbers, AllocateError, AttentionShape, Backend, BackwardEpilogue,
    EarlierSlice, EmbedGradient, ForwardEpilogue, LinearGradient, Loss, MatrixPart, MatrixShape,
    Norm, NormGradient, Parcel, Rows, SquareSum, Turn, View, ViewMut,
};

/// A device with its memory.
pub struct CudaBackend<D: Device = CudaDevice> {
    device: Arc<D>,
    arena: Arena<D>,
    scratch: Scratch<D>,
    fault: RefCell<Option<DeviceFault>>,
    staging: Staging<D>,
    /// For what goes to others, and for what comes.
    rooms: [Rooms<D>; 2],
    losses: Losses<D>,
    /// Copies beside the work so far, and the last one that the work has waited for.
    copies: Cell<u64>,
    settled: Cell<u64>,
}

/// A matrix in the type that products read, in row-major order.
pub struct CudaMatrix<D: Device> {
    pub(super) shape: MatrixShape,
    pub(super) form: CudaBuffer<D>,
}

impl<D: Device> CudaBackend<D> {
    /// On this device.
    #[must_use]
    pub fn new(device: Arc<D>) -> Self {
        let (arena, scratch) = (Arena::new(), Scratch::new());
        let (fault, staging, losses) = (RefCell::new(None), Staging::new(), Losses::new());
        let rooms = [Rooms::new(), Rooms::new()];
        let (copies, settled) = (Cell::new(0), Cell::new(0));
        Self { device, arena, scratch, fault, staging, rooms, losses, copies, settled }
    }

    /// What went wrong first, if anything did.
    #[must_use]
    pub fn fault(&self) -> Option<DeviceFault> {
        self.fault.borrow().clone()
    }

    /// A fingerprint of floats: equal bits have equal ones, and a changed bit shows.
    #[must_use]
    pub fn fingerprint(&self, x: View<'_, CudaBuffer<D>>) -> u64 {
        self.ask(0, || optimizer::fingerprint(self, &x))
    }

    pub(super) fn device(&self) -> &D {
        &self.device
    }

    pub(super) fn shared_device(&self) -> &Arc<D> {
        &self.device
    }

    /// Copies from the host, which may reuse its memory at once.
    pub(super) fn write(&self, bytes: &[u8], to: Address) -> Result<(), DeviceFault> {
        self.staging.write(&self.device, bytes, to)
    }

    pub(super) fn losses(&self) -> &Losses<D> {
        &self.losses
    }

    /// The number of a copy beside the work, counted from 1.
    pub(super) fn next_copy(&self) -> u64 {
        self.copies.set(self.copies.get() + 1);
        self.copies.get()
    }

    /// Whether the work has not just waited for this copy.
    pub(super) fn is_first_after_copy(&self, number: u64) -> bool {
        self.settled.replace(number) != number
    }

    /// The type of activations.
    #[must_use]
    pub fn precision(&self) -> Precision {
        self.device.precision()
    }

    pub(super) fn scratch(&self, slot: Slot, bytes: usize) -> Result<Address, DeviceFault> {
        self.scratch.take(&self.device, slot, bytes)
    }

    pub(super) fn launch(&self, launch: &Launch) -> Result<(), DeviceFault> {
        if launch.is_empty() {
            return Ok(());
        }
        self.device.launch(launch)
    }

    /// Runs an operation unless one has failed before; `otherwise` is its answer then.
    fn ask<T>(&self, otherwise: T, operation: impl FnOnce() -> Result<T, DeviceFault>) -> T {
        if self.fault.borrow().is_some() {
            return otherwise;
        }
        operation().unwrap_or_else(|fault| {
            *self.fault.borrow_mut() = Some(fault);
            otherwise
        })
    }

    fn run(&self, operation: impl FnOnce() -> Result<(), DeviceFault>) {
        self.ask((), operation);
    }

    pub(super) fn buffer(
        &self,
        element: Element,
        len: usize,
    ) -> Result<CudaBuffer<D>, AllocateError> {
        let bytes = Arena::<D>::bytes(self.precision(), element, len);
        if self.fault.borrow().is_some() {
            return Err(AllocateError { bytes, free_bytes: None });
        }
        let found = self.arena.allocate(&self.device, element, len);
        found.map_err(|fault| self.refusal(bytes, fault))
    }

    /// A lack of memory harms nothing; any other fault is kept.
    fn refusal(&self, bytes: u64, fault: DeviceFault) -> AllocateError {
        match fault {
            DeviceFault::OutOfMemory { asked_bytes, free_bytes, .. } => {
                AllocateError { bytes: asked_bytes, free_bytes: Some(free_bytes) }
            }
            DeviceFault::OutOfHostMemory { asked_bytes } => {
                AllocateError { bytes: asked_bytes, free_bytes: None }
            }
            fault @ (DeviceFault::Sticky { .. }
            | DeviceFault::Refused { .. }
            | DeviceFault::NoAlgorithm { .. }
            | DeviceFault::OtherLibrary { .. }) => {
                *self.fault.borrow_mut() = Some(fault);
                AllocateError { bytes, free_bytes: None }
            }
        }
    }
}

/// Where a view of floats begins.
pub(super) fn floats<D: Device>(view: &View<'_, CudaBuffer<D>>) -> Address {
    assert!(view.range.end <= view.buffer.len(), "a view lies within its buffer");
    view.buffer.floats(view.range.start)
}

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

    fn row_bytes(&self) -> u64 {
        Element::Row.bytes(self.precision())
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

    fn matrix_bytes(&self, shape: MatrixShape) -> u64 {
        Arena::<D>::bytes(self.precision(), Element::Row, shape.outputs * shape.inputs)
    }

    fn buffer_bytes(&self, len: usize) -> u64 {
        Arena::<D>::bytes(self.precision(), Element::Float, len)
    }

    fn rows_bytes(&self, len: usize) -> u64 {
        Arena::<D>::bytes(self.precision(), Element::Row, len)
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
        self.ask(None, || optimizer::sum_squares(self, tensors).map(Some)).unwrap_or_else(nothing)
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
        let state = [w, m, v, g];
        self.run(|| optimizer::candidate(self, &range, state, numbers, candidate, matrices));
    }

    fn adamw_commit(
        &self,
        range: Range<usize>,
        g: &CudaBuffer<D>,
        numbers: AdamWNumbers,
        m: &mut CudaBuffer<D>,
        v: &mut CudaBuffer<D>,
    ) {
        self.run(|| optimizer::commit(self, &range, g, numbers, m, v));
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
        self.run(|| optimizer::in_place(self, &range, g, numbers, [w, m, v], matrices));
    }
}

#[cfg(test)]
mod tests {
    use super::{CudaBackend, CudaBuffer, CudaDevice, CudaMatrix};

    /// A stage's thread is given its backend and what is on it.
    #[test]
    fn a_backend_may_move_to_another_thread() {
        const fn is_send<T: Send>() {}
        is_send::<CudaBackend>();
        is_send::<CudaBuffer<CudaDevice>>();
        is_send::<CudaMatrix<CudaDevice>>();
    }
}
