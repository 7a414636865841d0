//! The operations of [`Optimizer`], [`MuonOptimizer`], [`AsyncOptimizer`] and
//! [`PackedWeightsOptimizer`] on a device, each called in the module that implements it.

use super::super::device::Device;
use super::super::memory::CudaBuffer;
use super::super::muon::{self, MuonTarget};
use super::super::{optimizer, squares, state_sums, versions};
use super::{CudaBackend, CudaMatrix};
use crate::backend::{
    AdamWCoefficients, AdamWRange, AsyncOptimizer, BufferView, LayerCandidate, MatrixPart,
    MuonOptimizer, MuonRange, Optimizer, PackedWeightsOptimizer, Pending, SquareSum, StateRange,
    UpdateState,
};

impl<D: Device> Optimizer for CudaBackend<D> {
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

    fn muon_optimizer(&self) -> &dyn MuonOptimizer<CudaBuffer<D>, CudaMatrix<D>> {
        self
    }

    fn adamw_candidate(
        &self,
        range: &StateRange,
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
        range: &StateRange,
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
        range: &StateRange,
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
}

impl<D: Device> MuonOptimizer<CudaBuffer<D>, CudaMatrix<D>> for CudaBackend<D> {
    fn candidate(
        &self,
        run: &MuonRange,
        w: &CudaBuffer<D>,
        m: &CudaBuffer<D>,
        g: &CudaBuffer<D>,
        candidate: Option<&mut CudaBuffer<D>>,
        matrices: &mut [MatrixPart<'_, CudaMatrix<D>>],
    ) {
        let target = candidate.map_or(MuonTarget::Packed, |buffer| MuonTarget::Beside(buffer));
        self.run(|| muon::step(self, run, [w, m, g], &target, matrices));
    }

    fn commit(&self, run: &MuonRange, g: &CudaBuffer<D>, m: &mut CudaBuffer<D>) {
        self.run(|| muon::commit(self, run, g, m));
    }

    fn in_place(
        &self,
        run: &MuonRange,
        g: &CudaBuffer<D>,
        w: &mut CudaBuffer<D>,
        m: &mut CudaBuffer<D>,
        matrices: &mut [MatrixPart<'_, CudaMatrix<D>>],
    ) {
        let target = MuonTarget::InPlace;
        self.run(|| muon::step(self, run, [w, m, g], &target, matrices));
        self.run(|| muon::commit(self, run, g, m));
    }
}

impl<D: Device> AsyncOptimizer for CudaBackend<D> {
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
