//! The operands of an update of weights, and how it is done where candidates are packed
//! weights.

use std::ops::Range;

use crate::pending::Pending;

/// A sum of squares over a tensor, in f64.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SquareSum {
    /// Added up in an order that depends on the tensor's length and the kind of device alone. On a
    /// processor: in index order within chunks of [`SQUARE_SUM_CHUNK`] elements, chunks in order.
    pub sum: f64,
    /// Elements that are NaN or infinite.
    pub nonfinite: u64,
}

/// Elements that a processor sums as one chain in [`super::Optimizer::sum_squares`].
pub const SQUARE_SUM_CHUNK: usize = 65_536;

/// The numbers of one AdamW step, rounded once (Loshchilov and Hutter, arXiv 1711.05101). For each
/// element, without fused multiply-add and in this order:
/// `g' = clip * g`, `w = w * decay`, `m = m * beta1 + g' * beta1_rest`,
/// `v = v * beta2 + (beta2_rest * g') * g'`, `d = sqrt(v) / correction2 + epsilon`,
/// `w = w + (step * m) / d`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamWCoefficients {
    /// `1 - lr * weight_decay`.
    pub decay: f32,
    /// Decay of the first moment.
    pub beta1: f32,
    /// `1 - beta1`, rounded to f32.
    pub beta1_rest: f32,
    /// Decay of the second moment.
    pub beta2: f32,
    /// `1 - beta2`, rounded to f32.
    pub beta2_rest: f32,
    /// `sqrt(1 - beta2^k)` of step k, counted from 1.
    pub correction2: f32,
    /// Constant that is added to the denominator.
    pub epsilon: f32,
    /// `-lr / (1 - beta1^k)`.
    pub step: f32,
    /// The clip coefficient that the gradient is multiplied by.
    pub clip: f32,
}

/// A linear layer's matrix and where its parameters lie in their buffer.
#[derive(Debug)]
pub struct MatrixPart<'a, M> {
    /// The parameters, `outputs` by `inputs` in row-major order.
    pub range: Range<usize>,
    /// The packed weights that products read.
    pub matrix: &'a mut M,
}

/// Neighbouring parameters of a layer that one update treats alike.
#[derive(Clone, Debug, PartialEq)]
pub struct AdamWRange {
    /// Range of the parameters in their buffer.
    pub range: Range<usize>,
    /// The numbers of their update.
    pub numbers: AdamWCoefficients,
}

/// The operands of an update.
#[derive(Debug)]
pub struct UpdateState<'a, B> {
    /// Buffer of the layer's weights.
    pub w: &'a B,
    /// Buffer of the first moments.
    pub m: &'a B,
    /// Buffer of the second moments.
    pub v: &'a B,
    /// Buffer of the layer's gradient.
    pub g: &'a B,
}

/// A layer's candidate, computed with the sums of squares of its gradient.
#[derive(Debug)]
pub struct LayerCandidate<'a, B, M> {
    /// The numbers of the layer's update, for all that is updated of it, in order.
    pub runs: &'a [AdamWRange],
    /// The state that the candidate is computed from.
    pub state: UpdateState<'a, B>,
    /// Receives the candidate of the parameters that lie in no matrix.
    pub rest: &'a mut B,
    /// The layer's matrices, in order.
    pub matrices: Vec<MatrixPart<'a, M>>,
    /// The layer's tensors that are updated, in order: each lies in one run, and in one matrix or
    /// in none. Together they are what runs cover.
    pub tensors: Vec<Range<usize>>,
}

/// AdamW in halves on a device where packed weights are a matrix's weights, rounded to the type
/// that products read, and use no more memory than these. There the candidate of a matrix is its
/// packed weights: a step before the verdict needs memory for the parameters in no matrix, and for
/// nothing else.
///
/// Runs are in order, and so are the matrices, all of the layer. What no run covers is frozen: nothing
/// of it is written, neither state nor candidate.
pub trait PackedWeightsOptimizer<B, M> {
    /// The weights after the step, from the unchanged state: matrices as packed weights, and
    /// parameters that lie in none of them into `rest`, at the place that they have in a layer
    /// without matrices.
    fn candidate(
        &self,
        runs: &[AdamWRange],
        state: UpdateState<'_, B>,
        rest: &mut B,
        matrices: &mut [MatrixPart<'_, M>],
    );

    /// The same for many layers, and the sum of squares of the gradient of each of their tensors,
    /// from one read of it: the bits of [`Self::candidate`] and of [`super::Optimizer::sum_squares`].
    fn candidates_and_squares(&self, layers: Vec<LayerCandidate<'_, B, M>>) -> Vec<SquareSum>;

    /// Weights and moments after the same step, in place: the bits of
    /// [`super::Optimizer::adamw_in_place`], whose packed weights are there already.
    fn commit(&self, runs: &[AdamWRange], g: &B, w: &mut B, m: &mut B, v: &mut B);

    /// The same, and the sums of the fingerprint of the state that it leaves, in the same pass.
    /// Runs cover `w`, `m` and `v` to their ends.
    fn commit_and_sum(
        &self,
        runs: &[AdamWRange],
        g: &B,
        w: &mut B,
        m: &mut B,
        v: &mut B,
    ) -> Pending<[u64; 2]>;
}
