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

/// Neighbouring parameters of a layer, and where their moments and their gradient lie, which follow one
/// another as they do. Where frozen parameters have none, those of others lie further ahead than the
/// parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateRange {
    /// The parameters in the buffer of weights.
    pub weights: Range<usize>,
    /// Where the first of their moments lies in the buffer of each.
    pub moments_start: usize,
    /// Where the first of their gradient lies in its buffer.
    pub gradient_start: usize,
}

impl StateRange {
    /// How many parameters they are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.weights.len()
    }

    /// Whether they are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.weights.is_empty()
    }

    /// Their moments in the buffer of each.
    #[must_use]
    pub fn moments(&self) -> Range<usize> {
        self.moments_start..self.moments_start + self.len()
    }

    /// Their gradient in its buffer.
    #[must_use]
    pub fn gradient(&self) -> Range<usize> {
        self.gradient_start..self.gradient_start + self.len()
    }

    /// Some of them, by their place in the buffer of weights.
    ///
    /// # Panics
    /// If they are not among these.
    #[must_use]
    pub fn part(&self, weights: Range<usize>) -> Self {
        let is_part = self.weights.start <= weights.start && weights.end <= self.weights.end;
        assert!(is_part, "{weights:?} lies within {:?}", self.weights);
        let skipped = weights.start - self.weights.start;
        Self {
            weights,
            moments_start: self.moments_start + skipped,
            gradient_start: self.gradient_start + skipped,
        }
    }

    /// Appends the parameters behind these if moments and gradient follow as well. Returns whether they
    /// do.
    pub fn extend(&mut self, next: &Self) -> bool {
        let follows = self.weights.end == next.weights.start
            && self.moments().end == next.moments_start
            && self.gradient().end == next.gradient_start;
        if follows {
            self.weights.end = next.weights.end;
        }
        follows
    }
}

/// Parameters whose moments and gradient lie as they do.
impl From<Range<usize>> for StateRange {
    fn from(weights: Range<usize>) -> Self {
        Self { moments_start: weights.start, gradient_start: weights.start, weights }
    }
}

/// Neighbouring parameters of a layer that one update treats alike.
#[derive(Clone, Debug, PartialEq)]
pub struct AdamWRange {
    /// The parameters, and where their state lies.
    pub range: StateRange,
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
    /// Runs cover `w`, `m` and `v` to their ends, which lie alike.
    fn commit_and_sum(
        &self,
        runs: &[AdamWRange],
        g: &B,
        w: &mut B,
        m: &mut B,
        v: &mut B,
    ) -> Pending<[u64; 2]>;
}
