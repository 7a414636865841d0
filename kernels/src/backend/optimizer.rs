//! AdamW in two halves, for a verdict that comes later: the candidate, and the commit.

use super::{
    AdamWCoefficients, BufferView, DeviceMemory, MatrixPart, MuonOptimizer, PackedWeightsOptimizer,
    Pending, SquareSum, StateRange,
};

/// The optimizer of a device.
pub trait Optimizer: DeviceMemory {
    /// The sum of squares of a tensor.
    fn sum_squares(&self, x: BufferView<'_, Self::Buffer>) -> SquareSum {
        self.sum_squares_of_each(&[x]).pop().expect("one tensor, one sum")
    }

    /// The sum of squares of each tensor, to the bits that it has alone.
    fn sum_squares_of_each(&self, tensors: &[BufferView<'_, Self::Buffer>]) -> Vec<SquareSum>;

    /// The sums of a state's fingerprint ([`crate::fingerprint`]) over all of `w`, `m` and `v`.
    /// Moments are of equal length, and may be fewer than weights. A device may leave them unfinished until they are read.
    fn state_sums(&self, w: &Self::Buffer, m: &Self::Buffer, v: &Self::Buffer)
    -> Pending<[u64; 2]>;

    /// How an update ahead of its verdict is computed where candidates are packed weights; `None`
    /// where they lie beside the state, as [`Optimizer::adamw_candidate`] leaves them.
    fn packed_weights_optimizer(
        &self,
    ) -> Option<&dyn PackedWeightsOptimizer<Self::Buffer, Self::Matrix>> {
        None
    }

    /// Muon.
    fn muon_optimizer(&self) -> &dyn MuonOptimizer<Self::Buffer, Self::Matrix>;

    /// The weights after an AdamW step, beside the state: reads `w`, `m`, `v`, `g` over `range`
    /// and writes `candidate` where `w` is read. The matrices, which lie within `range` in order, are packed
    /// into the form that products read at once, as by [`DeviceMemory::load_matrix`].
    #[allow(clippy::too_many_arguments)]
    fn adamw_candidate(
        &self,
        range: &StateRange,
        w: &Self::Buffer,
        m: &Self::Buffer,
        v: &Self::Buffer,
        g: &Self::Buffer,
        numbers: AdamWCoefficients,
        candidate: &mut Self::Buffer,
        matrices: &mut [MatrixPart<'_, Self::Matrix>],
    );

    /// The moments after the same step, in place.
    fn adamw_commit(
        &self,
        range: &StateRange,
        g: &Self::Buffer,
        numbers: AdamWCoefficients,
        m: &mut Self::Buffer,
        v: &mut Self::Buffer,
    );

    /// The same step as a trainer without validation takes it: weights and moments in place, in
    /// one pass, and the matrices packed. What optimistic steps are measured against.
    #[allow(clippy::too_many_arguments)]
    fn adamw_in_place(
        &self,
        range: &StateRange,
        g: &Self::Buffer,
        numbers: AdamWCoefficients,
        w: &mut Self::Buffer,
        m: &mut Self::Buffer,
        v: &mut Self::Buffer,
        matrices: &mut [MatrixPart<'_, Self::Matrix>],
    );
}

/// What asynchronous schedules do with whole buffers of weights of one length, to the bits of
/// [`crate::reference`].
pub trait AsyncOptimizer: DeviceMemory {
    /// `to = w + step * (m / (sqrt(v) / correction2 + epsilon))`: weights that many of Adam's steps
    /// ahead as `step` is large.
    fn adam_ahead(
        &self,
        w: &Self::Buffer,
        m: &Self::Buffer,
        v: &Self::Buffer,
        numbers: AdamWCoefficients,
        to: &mut Self::Buffer,
    );

    /// `to = w - rate * direction`.
    fn weights_along(
        &self,
        w: &Self::Buffer,
        direction: &Self::Buffer,
        rate: f32,
        to: &mut Self::Buffer,
    );

    /// `change = decay * change + (1 - decay) * (after - before)`.
    fn track_change(
        &self,
        before: &Self::Buffer,
        after: &Self::Buffer,
        decay: f32,
        change: &mut Self::Buffer,
    );

    /// `w` and `reference` move towards each other, each by `alpha` of their difference.
    fn pull_together(&self, alpha: f32, w: &mut Self::Buffer, reference: &mut Self::Buffer);
}
