//! Muon in two halves, for a verdict that comes later (Jordan et al., 2024, "Muon: An optimizer for
//! hidden layers in neural networks").

use super::{MatrixPart, MatrixShape, StateRange};

/// The coefficients of the quintic polynomial that each Newton-Schulz iteration applies to singular
/// values: `a x + b x^3 + c x^5` (Jordan et al., 2024). They are chosen for a steep slope at zero; singular
/// values end between about 0.7 and 1.2, not at 1.
pub const NEWTON_SCHULZ: [f32; 3] = [3.4445, -4.7750, 2.0315];

/// Newton-Schulz iterations of an update.
pub const NEWTON_SCHULZ_ITERATIONS: usize = 5;

/// Added to the norm that a matrix is divided by before the first iteration.
pub const NEWTON_SCHULZ_EPSILON: f64 = 1e-7;

/// The numbers of one Muon step, rounded once. For each element, without fused multiply-add and in
/// this order: `g' = clip * g`, `m = m * momentum + g' * momentum_rest`, and Nesterov's
/// `u = m * momentum + g' * momentum_rest`. Newton-Schulz iterations make `o` of a matrix `u`
/// ([`MuonMatrix`]), and `w = w * decay + step * o`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MuonCoefficients {
    /// `1 - lr * weight_decay`.
    pub decay: f32,
    /// Decay of the momentum.
    pub momentum: f32,
    /// `1 - momentum`, rounded to f32.
    pub momentum_rest: f32,
    /// The clip coefficient that the gradient is multiplied by.
    pub clip: f32,
}

/// A matrix that is orthogonalised by itself, and how far it goes.
///
/// With X the matrix, or its transpose where it has more rows than columns, so that X has no more
/// rows than columns: X is multiplied by the f32 nearest to `1 / (norm + `[`NEWTON_SCHULZ_EPSILON`]`)`,
/// the norm being the root of the sum of squares that [`super::Optimizer::sum_squares`] returns; then
/// [`NEWTON_SCHULZ_ITERATIONS`] times, with `[a, b, c]` of [`NEWTON_SCHULZ`], the products rounded as
/// the device rounds them and the rest element by element:
/// `A = X X^T`, `B = b * A + c * (A A)`, `X = a * X + B X`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MuonMatrix {
    /// Rows and columns of the matrix.
    pub shape: MatrixShape,
    /// The learning rate times the scale of the matrix's update, with a minus before it.
    pub step: f32,
}

/// Neighbouring matrices of a layer that Muon updates.
#[derive(Clone, Debug, PartialEq)]
pub struct MuonRange {
    /// The parameters, and where their state lies.
    pub range: StateRange,
    /// The matrices that lie there, one behind the other.
    pub matrices: Vec<MuonMatrix>,
    /// The numbers of their update.
    pub numbers: MuonCoefficients,
}

/// Muon on a device. The momentum takes the place of AdamW's first moments; the second
/// ones are neither read nor written.
pub trait MuonOptimizer<B, M> {
    /// The weights after the step, beside the state: reads `w`, `m` and `g` over the range and
    /// writes `candidate` there, if there is one. The matrices that lie within the range, in order, are packed
    /// into the form that products read. Where that form is the candidate
    /// ([`super::PackedWeightsOptimizer`]), what the range has of any of the matrices is packed.
    fn candidate(
        &self,
        run: &MuonRange,
        w: &B,
        m: &B,
        g: &B,
        candidate: Option<&mut B>,
        matrices: &mut [MatrixPart<'_, M>],
    );

    /// The momentum after the same step, in place.
    fn commit(&self, run: &MuonRange, g: &B, m: &mut B);

    /// The same step in place: the bits of [`Self::candidate`] and [`Self::commit`].
    fn in_place(
        &self,
        run: &MuonRange,
        g: &B,
        w: &mut B,
        m: &mut B,
        matrices: &mut [MatrixPart<'_, M>],
    );
}
