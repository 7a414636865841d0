//! The operations of [`Optimizer`] and [`AsyncOptimizer`], each called in the module that implements
//! it.

use std::ops::Range;

use super::super::buffer::CpuBuffer;
use super::super::matmul::PairWriter;
use super::super::{fingerprint, optimizer, versions};
use super::{CpuBackend, CpuMatrix, read};
use crate::backend::{
    AdamWCoefficients, AsyncOptimizer, BufferView, MatrixPart, Optimizer, Pending, SquareSum,
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
    fn sum_squares(&self, x: BufferView<'_, CpuBuffer>) -> SquareSum {
        optimizer::sum_squares(self, read(&x))
    }

    fn state_sums(&self, w: &CpuBuffer, m: &CpuBuffer, v: &CpuBuffer) -> Pending<[u64; 2]> {
        fingerprint::state_sums(self, [w, m, v].map(CpuBuffer::as_slice)).into()
    }

    fn adamw_candidate(
        &self,
        range: Range<usize>,
        w: &CpuBuffer,
        m: &CpuBuffer,
        v: &CpuBuffer,
        g: &CpuBuffer,
        numbers: AdamWCoefficients,
        candidate: &mut CpuBuffer,
        matrices: &mut [MatrixPart<'_, CpuMatrix>],
    ) {
        let state = optimizer::CandidateState {
            w: &w.as_slice()[range.clone()],
            m: &m.as_slice()[range.clone()],
            v: &v.as_slice()[range.clone()],
            g: &g.as_slice()[range.clone()],
        };
        let matrices = writers(&range, matrices);
        let candidate = &mut candidate.as_mut_slice()[range.clone()];
        optimizer::candidate(self, state, numbers, candidate, &matrices);
    }

    fn adamw_commit(
        &self,
        range: Range<usize>,
        g: &CpuBuffer,
        numbers: AdamWCoefficients,
        m: &mut CpuBuffer,
        v: &mut CpuBuffer,
    ) {
        let g = &g.as_slice()[range.clone()];
        let m = &mut m.as_mut_slice()[range.clone()];
        let v = &mut v.as_mut_slice()[range];
        optimizer::commit(self, g, numbers, m, v);
    }

    fn adamw_in_place(
        &self,
        range: Range<usize>,
        g: &CpuBuffer,
        numbers: AdamWCoefficients,
        w: &mut CpuBuffer,
        m: &mut CpuBuffer,
        v: &mut CpuBuffer,
        matrices: &mut [MatrixPart<'_, CpuMatrix>],
    ) {
        let matrices = writers(&range, matrices);
        let g = &g.as_slice()[range.clone()];
        let [w, m, v] = [w, m, v].map(|buffer| &mut buffer.as_mut_slice()[range.clone()]);
        optimizer::in_place(self, g, numbers, [w, m, v], &matrices);
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
