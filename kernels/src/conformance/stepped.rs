//! Candidates that are computed with sums of squares.

use std::ops::Range;

use super::optimizer::{numbers_of, place, products};
use super::probe::same_bits;
use super::probe::{download, floats, matrix, poisoned, upload};
use crate::backend::{
    AdamWRange, Backend, BufferView, LayerCandidate, MatrixShape, PackedWeightsOptimizer,
    SquareSum, StateRange, UpdateState,
};
use crate::reference::{AdamWState, adamw};

const SHAPE: MatrixShape = MatrixShape { outputs: 60, inputs: 400 };

/// A layer: a matrix of two tensors, and parameters of no matrix before and behind it.
struct SteppedLayer<B: Backend> {
    state: [B::Buffer; 4],
    rest: B::Buffer,
    matrix: B::Matrix,
    runs: Vec<AdamWRange>,
    tensors: Vec<Range<usize>>,
}

impl<B: Backend> SteppedLayer<B> {
    fn new(device: &B, before: usize, behind: usize, seed: u64) -> Self {
        let of_matrix = SHAPE.outputs * SHAPE.inputs;
        let cut = before + 20 * SHAPE.inputs;
        let end = before + of_matrix;
        let ends = [before, cut, end, end + behind];
        let starts = [0, before, cut, end];
        let tensors = starts.into_iter().zip(ends).map(|(start, end)| start..end).collect();
        let run =
            |(range, index)| AdamWRange { range: Range::into(range), numbers: numbers_of(index) };
        let ranges = [0..before, before..end, end..end + behind];
        let mut state = [1, 2, 3, 4].map(|part| floats(end + behind, 10 * seed + part));
        (state[3][before + 3], state[3][end - 1]) = (f32::NAN, f32::INFINITY);
        Self {
            state: state.map(|part| upload(device, &part)),
            rest: poisoned(device, before + behind),
            matrix: device.allocate_matrix(SHAPE).expect("memory for a test"),
            runs: ranges.into_iter().zip(0..).map(run).collect(),
            tensors,
        }
    }

    fn candidate(&mut self) -> LayerCandidate<'_, B::Buffer, B::Matrix> {
        let of_matrix = self.tensors[1].start..self.tensors[2].end;
        self.candidate_of_matrix(of_matrix)
    }

    /// The candidate, with the matrix at this place.
    fn candidate_of_matrix(
        &mut self,
        of_matrix: Range<usize>,
    ) -> LayerCandidate<'_, B::Buffer, B::Matrix> {
        let Self { state: [w, m, v, g], rest, matrix, runs, tensors } = self;
        let matrices = place(std::slice::from_mut(matrix), &[of_matrix.start], &[of_matrix.len()]);
        let state = UpdateState { w, m, v, g };
        LayerCandidate { runs, state, rest, matrices, tensors: tensors.clone() }
    }

    /// The candidate is these parameters in no matrix and this matrix.
    fn check(&self, device: &B, (rest, matrix): (&[f32], &B::Matrix), case: &str) {
        let found = download(device, &self.rest);
        for (at, (found, expected)) in found.iter().zip(rest).enumerate() {
            let is_same = found.to_bits() == expected.to_bits();
            assert!(is_same || expected.is_nan() && found.is_nan(), "{case}: {at}");
        }
        same_bits(&products(device, SHAPE, &self.matrix), &products(device, SHAPE, matrix));
    }
}

/// Where candidates are packed weights: these and the sums of squares are those of passes of their
/// own, to the bit.
pub fn candidates_with_squares<B: Backend>(devices: &[B]) {
    for device in devices {
        let Some(optimizer) = device.packed_weights_optimizer() else { return };
        for (before, behind) in [(5, 3), (1, 40_000), (17_000, 1)] {
            let layers = || [1, 2].map(|seed| SteppedLayer::new(device, before, behind, seed));
            let mut together = layers();
            let mut apart = layers();
            let candidates = together.iter_mut().map(SteppedLayer::candidate).collect();
            let sums = optimizer.candidates_and_squares(candidates);
            let alone: Vec<SquareSum> = apart.iter_mut().flat_map(|it| own(device, it)).collect();
            let bits = |sum: &SquareSum| (sum.sum.to_bits(), sum.nonfinite);
            let (found, expected): (Vec<_>, Vec<_>) =
                (sums.iter().map(bits).collect(), alone.iter().map(bits).collect());
            assert_eq!(found, expected, "{before} {behind}");
            assert_eq!(sums.iter().map(|sum| sum.nonfinite).sum::<u64>(), 4);
            for (index, (found, expected)) in together.iter().zip(&apart).enumerate() {
                for (part, seed) in found.state[..3].iter().zip(1..) {
                    let len = device.len(part);
                    let seed = 10 * (index as u64 + 1) + seed;
                    same_bits(&download(device, part), &floats(len, seed));
                }
                same_bits(&download(device, &found.rest), &download(device, &expected.rest));
                let [found, expected] =
                    [found, expected].map(|layer| products(device, SHAPE, &layer.matrix));
                same_bits(&found, &expected);
            }
        }
    }
}

/// The candidate and the sums of one layer, each in a pass of its own.
fn own<B: Backend>(device: &B, layer: &mut SteppedLayer<B>) -> Vec<SquareSum> {
    let optimizer: &dyn PackedWeightsOptimizer<_, _> =
        device.packed_weights_optimizer().expect("the caller has checked this");
    let LayerCandidate { runs, state, rest, mut matrices, tensors } = layer.candidate();
    let views: Vec<_> = tensors.into_iter().map(|range| BufferView::new(state.g, range)).collect();
    let sums = device.sum_squares_of_each(&views);
    optimizer.candidate(runs, state, rest, &mut matrices);
    sums
}

/// What no run covers keeps its weights, its packed weights and its place among the candidates of
/// parameters in no matrix; what a run covers is updated as it would be alone, a part of a matrix too.
/// Moments and gradients of the others are nowhere.
pub fn frozen_tensors_are_left_alone<B: Backend>(devices: &[B]) {
    for device in devices {
        let Some(optimizer) = device.packed_weights_optimizer() else { return };
        for trained in [&[1, 3][..], &[0, 2], &[2], &[0, 3], &[0, 1, 2, 3], &[]] {
            let case = format!("tensors {trained:?}");
            let mut layer = SteppedLayer::new(device, 5, 40_000, 3);
            let of_matrix = layer.tensors[1].start..layer.tensors[2].end;
            layer.tensors = trained.iter().map(|tensor| layer.tensors[*tensor].clone()).collect();
            layer.runs = compact_runs(&layer.tensors);
            let len = device.len(&layer.state[0]);
            let held = layer.tensors.iter().map(Range::len).sum();
            let lens = [(len, 31), (held, 32), (held, 33), (held + GRADIENT_BEFORE, 34)];
            let [mut w, mut m, mut v, g] = lens.map(|(len, seed)| floats(len, seed));
            // Second moments are means of squares; NaNs of other roots have signs that machines choose.
            v.iter_mut().for_each(|x| *x = x.abs());
            layer.state = [&w, &m, &v, &g].map(|part| upload(device, part));
            let packed = BufferView::new(&layer.state[0], of_matrix.clone());
            device.load_matrix(packed, &mut layer.matrix);
            let mut rest = vec![f32::NAN; len];
            for AdamWRange { range, numbers } in &layer.runs {
                let at = [range.weights.clone(), range.moments(), range.moments()];
                let [of_w, of_m, of_v] = at.clone();
                let mut updated =
                    AdamWState { w: w[of_w].to_vec(), m: m[of_m].to_vec(), v: v[of_v].to_vec() };
                adamw(&mut updated, &g[range.gradient()], *numbers);
                rest[range.weights.clone()].copy_from_slice(&updated.w);
                let parts = [(&mut w, updated.w), (&mut m, updated.m), (&mut v, updated.v)];
                for ((to, from), at) in parts.into_iter().zip(at) {
                    to[at].copy_from_slice(&from);
                }
            }
            rest.drain(of_matrix.clone());
            let matrix = matrix(device, SHAPE, &w[of_matrix.clone()]);
            let candidate = layer.candidate_of_matrix(of_matrix.clone());
            let sums = optimizer.candidates_and_squares(vec![candidate]);
            assert_eq!(sums.len(), trained.len(), "{case}");
            layer.check(device, (&rest, &matrix), &case);
            let LayerCandidate { runs, state, rest: to, mut matrices, .. } =
                layer.candidate_of_matrix(of_matrix);
            optimizer.candidate(runs, state, to, &mut matrices);
            layer.check(device, (&rest, &matrix), &case);
            let SteppedLayer { state: [w_held, m_held, v_held, g], runs, .. } = &mut layer;
            optimizer.commit(runs, g, w_held, m_held, v_held);
            for (found, expected) in layer.state.iter().zip([&w, &m, &v]) {
                same_bits(&download(device, found), expected);
            }
        }
    }
}

/// Floats before the gradient of the first trained tensor: of one that has no moments.
const GRADIENT_BEFORE: usize = 3;

/// A run for each tensor, whose moments and gradients lie one behind the other.
fn compact_runs(tensors: &[Range<usize>]) -> Vec<AdamWRange> {
    let mut held = 0;
    let run = |(tensor, index): (&Range<usize>, _)| {
        let weights = tensor.clone();
        let range =
            StateRange { weights, moments_start: held, gradient_start: held + GRADIENT_BEFORE };
        held += tensor.len();
        AdamWRange { range, numbers: numbers_of(index) }
    };
    tensors.iter().zip(0..).map(run).collect()
}
