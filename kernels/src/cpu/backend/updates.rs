//! The operations of [`Optimizer`], [`MuonOptimizer`] and [`AsyncOptimizer`], each called in the module
//! that implements it.

use std::ops::Range;

use super::super::buffer::CpuBuffer;
use super::super::matmul::PairWriter;
use super::super::{fingerprint, muon, optimizer, versions};
use super::{CpuBackend, CpuMatrix, read};
use crate::backend::{
    AdamWCoefficients, AsyncOptimizer, BufferView, MatrixPart, MuonOptimizer, MuonRange, Optimizer,
    Pending, SquareSum, StateRange,
};

/// Writers of the matrices within `range`, and where in it they lie.
fn writers<'a>(
    range: &Range<usize>,
    matrices: &'a mut [MatrixPart<'_, CpuMatrix>],
) -> Vec<(Range<usize>, PairWriter<'a>)> {
    let inner = |part: &MatrixPart<'_, CpuMatrix>| {
        part.range.start - range.start..part.range.end - range.start
    };
    matrices.iter_mut().map(|part| (inner(part), part.matrix.0.writer())).collect()
}

impl Optimizer for CpuBackend {
    fn sum_squares_of_each(&self, tensors: &[BufferView<'_, CpuBuffer>]) -> Vec<SquareSum> {
        let tensors: Vec<_> = tensors.iter().map(read).collect();
        optimizer::sum_squares_of_each(self, &tensors)
    }

    fn state_sums(&self, w: &CpuBuffer, m: &CpuBuffer, v: &CpuBuffer) -> Pending<[u64; 2]> {
        fingerprint::state_sums(self, [w, m, v].map(CpuBuffer::as_slice)).into()
    }

    fn muon_optimizer(&self) -> &dyn MuonOptimizer<CpuBuffer, CpuMatrix> {
        self
    }

    fn adamw_candidate(
        &self,
        range: &StateRange,
        w: &CpuBuffer,
        m: &CpuBuffer,
        v: &CpuBuffer,
        g: &CpuBuffer,
        numbers: AdamWCoefficients,
        candidate: &mut CpuBuffer,
        matrices: &mut [MatrixPart<'_, CpuMatrix>],
    ) {
        let state = optimizer::CandidateState {
            w: &w.as_slice()[range.weights.clone()],
            m: &m.as_slice()[range.moments()],
            v: &v.as_slice()[range.moments()],
            g: &g.as_slice()[range.gradient()],
        };
        let matrices = writers(&range.weights, matrices);
        let candidate = &mut candidate.as_mut_slice()[range.weights.clone()];
        optimizer::candidate(self, state, numbers, candidate, &matrices);
    }

    fn adamw_commit(
        &self,
        range: &StateRange,
        g: &CpuBuffer,
        numbers: AdamWCoefficients,
        m: &mut CpuBuffer,
        v: &mut CpuBuffer,
    ) {
        let g = &g.as_slice()[range.gradient()];
        let [m, v] = [m, v].map(|buffer| &mut buffer.as_mut_slice()[range.moments()]);
        optimizer::commit(self, g, numbers, m, v);
    }

    fn adamw_in_place(
        &self,
        range: &StateRange,
        g: &CpuBuffer,
        numbers: AdamWCoefficients,
        w: &mut CpuBuffer,
        m: &mut CpuBuffer,
        v: &mut CpuBuffer,
        matrices: &mut [MatrixPart<'_, CpuMatrix>],
    ) {
        let matrices = writers(&range.weights, matrices);
        let g = &g.as_slice()[range.gradient()];
        let [m, v] = [m, v].map(|buffer| &mut buffer.as_mut_slice()[range.moments()]);
        let w = &mut w.as_mut_slice()[range.weights.clone()];
        optimizer::in_place(self, g, numbers, [w, m, v], &matrices);
    }
}

/// Packs matrices that lie within `range`, whose weights are `weights`.
fn load(
    cpu: &CpuBackend,
    range: &Range<usize>,
    weights: &[f32],
    matrices: &mut [MatrixPart<'_, CpuMatrix>],
) {
    for part in matrices {
        let inner = part.range.start - range.start..part.range.end - range.start;
        optimizer::load_matrix(cpu, &weights[inner], &mut part.matrix.0);
    }
}

/// Weights, momentum and gradient over a range.
fn muon_operands<'a>(run: &MuonRange, [w, m, g]: [&'a CpuBuffer; 3]) -> [&'a [f32]; 3] {
    let range = &run.range;
    let parts = [(w, range.weights.clone()), (m, range.moments()), (g, range.gradient())];
    parts.map(|(part, range)| &part.as_slice()[range])
}

impl MuonOptimizer<CpuBuffer, CpuMatrix> for CpuBackend {
    fn candidate(
        &self,
        run: &MuonRange,
        w: &CpuBuffer,
        m: &CpuBuffer,
        g: &CpuBuffer,
        candidate: Option<&mut CpuBuffer>,
        matrices: &mut [MatrixPart<'_, CpuMatrix>],
    ) {
        let mut own = Vec::new();
        let stepped = match candidate {
            Some(candidate) => &mut candidate.as_mut_slice()[run.range.weights.clone()],
            None => {
                own.resize(run.range.len(), 0.0);
                &mut own[..]
            }
        };
        muon::candidate(self, run, muon_operands(run, [w, m, g]), stepped);
        load(self, &run.range.weights, stepped, matrices);
    }

    fn commit(&self, run: &MuonRange, g: &CpuBuffer, m: &mut CpuBuffer) {
        let g = &g.as_slice()[run.range.gradient()];
        muon::commit(self, run.numbers, g, &mut m.as_mut_slice()[run.range.moments()]);
    }

    fn in_place(
        &self,
        run: &MuonRange,
        g: &CpuBuffer,
        w: &mut CpuBuffer,
        m: &mut CpuBuffer,
        matrices: &mut [MatrixPart<'_, CpuMatrix>],
    ) {
        let mut stepped = vec![0.0; run.range.len()];
        muon::candidate(self, run, muon_operands(run, [&*w, &*m, g]), &mut stepped);
        MuonOptimizer::commit(self, run, g, m);
        load(self, &run.range.weights, &stepped, matrices);
        w.as_mut_slice()[run.range.weights.clone()].copy_from_slice(&stepped);
    }
}

impl AsyncOptimizer for CpuBackend {
    fn adam_ahead(
        &self,
        w: &CpuBuffer,
        m: &CpuBuffer,
        v: &CpuBuffer,
        numbers: AdamWCoefficients,
        to: &mut CpuBuffer,
    ) {
        versions::adam_ahead([w, m, v].map(CpuBuffer::as_slice), numbers, to.as_mut_slice());
    }

    fn weights_along(&self, w: &CpuBuffer, direction: &CpuBuffer, rate: f32, to: &mut CpuBuffer) {
        versions::weights_along(w.as_slice(), direction.as_slice(), rate, to.as_mut_slice());
    }

    fn track_change(
        &self,
        before: &CpuBuffer,
        after: &CpuBuffer,
        decay: f32,
        change: &mut CpuBuffer,
    ) {
        versions::track_change(before.as_slice(), after.as_slice(), decay, change.as_mut_slice());
    }

    fn pull_together(&self, alpha: f32, w: &mut CpuBuffer, reference: &mut CpuBuffer) {
        versions::pull_together(alpha, w.as_mut_slice(), reference.as_mut_slice());
    }
}
