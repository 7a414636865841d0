//! Which optimizer updates which tensors, and Muon's numbers for a step.

use serde::{Deserialize, Serialize};
use zbelastic_kernels::{MatrixShape, MuonCoefficients, MuonMatrix, NEWTON_SCHULZ_ITERATIONS};

use crate::model::{LayerKind, LayerSpec, TensorSpec};

/// The optimizer of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OptimizerKind {
    /// AdamW for every tensor (Loshchilov and Hutter, arXiv 1711.05101).
    #[default]
    AdamW,
    /// Muon for the matrices of blocks (Jordan et al., 2024), AdamW for every other tensor.
    Muon {
        /// Decay of the momentum.
        momentum: f64,
    },
}

/// The root mean square of an update of AdamW, which Muon's are brought to so that both have use
/// for one learning rate (Liu et al., arXiv 2502.16982, section 2.2). An orthogonal matrix has a
/// root mean square of one over the root of its longer side.
const UPDATE_RMS: f64 = 0.2;

impl OptimizerKind {
    /// Whether it is AdamW alone.
    #[must_use]
    pub fn is_adamw(&self) -> bool {
        matches!(self, Self::AdamW)
    }

    /// The decay of Muon's momentum, if Muon updates this tensor of a layer: a matrix within a
    /// block. Embeddings and heads are none, as Jordan et al. recommend.
    #[must_use]
    pub fn muon_momentum(&self, spec: &LayerSpec, tensor: &TensorSpec) -> Option<f64> {
        let is_hidden = match spec.kind {
            LayerKind::Attention { .. } | LayerKind::Mlp { .. } => tensor.is_matrix(),
            LayerKind::Embed | LayerKind::Head => false,
        };
        match self {
            Self::Muon { momentum } if is_hidden => Some(*momentum),
            Self::Muon { .. } | Self::AdamW => None,
        }
    }

    /// Floating-point operations of the Newton-Schulz iterations of a layer's update. AdamW's few an
    /// element are bound by memory, and not counted.
    #[must_use]
    pub fn update_flop(&self, spec: &LayerSpec) -> f64 {
        let of_tensor = |tensor: &TensorSpec| match self.muon_momentum(spec, tensor) {
            Some(_) => newton_schulz_flop(tensor.matrix_shape()),
            None => 0.0,
        };
        spec.trained_tensors().map(of_tensor).sum()
    }
}

/// Three products an iteration: the matrix by its transpose, the square of that, and that by the
/// matrix.
fn newton_schulz_flop(MatrixShape { outputs, inputs }: MatrixShape) -> f64 {
    let short = outputs.min(inputs) as f64;
    let long = outputs.max(inputs) as f64;
    let iteration = 2.0 * short * short * (2.0 * long + short);
    NEWTON_SCHULZ_ITERATIONS as f64 * iteration
}

/// A matrix of Muon in an update with this learning rate.
#[must_use]
pub(super) fn muon_matrix(shape: MatrixShape, lr: f64) -> MuonMatrix {
    let longer = shape.outputs.max(shape.inputs) as f64;
    MuonMatrix { shape, step: (-lr * UPDATE_RMS * longer.sqrt()) as f32 }
}

/// Muon's numbers in an update, everything formed in f64 and rounded once.
#[must_use]
pub(super) fn muon_coefficients(
    momentum: f64,
    lr: f64,
    weight_decay: f64,
    clip: f32,
) -> MuonCoefficients {
    MuonCoefficients {
        decay: (1.0 - lr * weight_decay) as f32,
        momentum: momentum as f32,
        momentum_rest: (1.0 - momentum) as f32,
        clip,
    }
}

#[cfg(test)]
mod tests {
    use zbelastic_kernels::MatrixShape;

    use super::{muon_matrix, newton_schulz_flop};

    #[test]
    fn operations_are_those_of_three_products_an_iteration() {
        let check = |outputs, inputs, expected| {
            assert_eq!(newton_schulz_flop(MatrixShape { outputs, inputs }), expected);
        };
        check(2, 3, 5.0 * (24.0 + 16.0 + 24.0));
        check(3, 2, 5.0 * (24.0 + 16.0 + 24.0));
    }

    #[test]
    fn steps_grow_with_the_root_of_the_longer_side() {
        let check = |outputs, inputs, expected| {
            assert_eq!(muon_matrix(MatrixShape { outputs, inputs }, 0.5).step, expected);
        };
        check(4, 4, -0.2);
        check(4, 16, -0.4);
        check(16, 4, -0.4);
    }
}
