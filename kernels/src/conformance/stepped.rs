//! Candidates that are computed with sums of squares.

use std::ops::Range;

use super::optimizer::{numbers_of, place, products};
use super::probe::same_bits;
use super::probe::{download, floats, poisoned, upload};
use crate::backend::{
    AdamWRange, Backend, BufferView, LayerCandidate, MatrixShape, PackedWeightsOptimizer,
    SquareSum, UpdateState,
};

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
        let run = |(range, index)| AdamWRange { range, numbers: numbers_of(index) };
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
        let Self { state: [w, m, v, g], rest, matrix, runs, tensors } = self;
        let start = tensors[1].start;
        let matrices =
            place(std::slice::from_mut(matrix), &[start], &[SHAPE.outputs * SHAPE.inputs]);
        let state = UpdateState { w, m, v, g };
        LayerCandidate { runs, state, rest, matrices, tensors: tensors.clone() }
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
