//! The reports of stages about their gradients.

use super::seal::Turn;
use serde::{Deserialize, Serialize};
use zbelastic_types::{Fingerprint, LayerId, StageIndex, TensorIndex};

/// A layer with the fingerprint of its state, as a holder attests it.
pub type LayerFingerprint = (LayerId, Fingerprint);

/// One parameter tensor's gradient in a number.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TensorSum {
    /// The tensor, in canonical order.
    pub tensor: TensorIndex,
    /// The sum of its squares, in f64, in index order.
    pub square_sum: f64,
    /// Elements that are NaN or infinite.
    pub nonfinite: u64,
}

impl TensorSum {
    /// Whether some gradient has this sum. Squares add up to a number, unless a value is none; they
    /// may be too large for one.
    #[must_use]
    pub fn may_be(&self) -> bool {
        self.nonfinite > 0 || self.square_sum >= 0.0
    }

    /// Whether two sums are the same to the bit; a NaN equals itself.
    #[must_use]
    pub fn same_bits(&self, other: &Self) -> bool {
        self.tensor == other.tensor
            && self.square_sum.to_bits() == other.square_sum.to_bits()
            && self.nonfinite == other.nonfinite
    }
}

/// A stage's report on its gradient of a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GradientReport {
    /// The generation, attempt and step that it is about.
    pub turn: Turn,
    /// The stage of the gradient.
    pub stage: StageIndex,
    /// One sum for each tensor of the stage.
    pub sums: Vec<TensorSum>,
    /// The sum of cross-entropies over the step's tokens, from the stage that holds the head.
    pub loss_sum: Option<f64>,
}

/// The sums of all stages so far, on the way down the pipeline. It decides whether a stage goes
/// ahead with its candidate, and never sets the verdict.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prefix {
    /// The generation, attempt and step that it is about.
    pub turn: Turn,
    /// The sum of squares of the stages up to the sender's.
    pub square_sum: f64,
}

impl Prefix {
    /// The sums that a stage passes on: those it received, if it is not the first, and its own
    /// sums.
    #[must_use]
    pub fn of(report: &GradientReport, received: Option<&Self>) -> Self {
        let start = received.map_or(0.0, |prefix| prefix.square_sum);
        let own = report.sums.iter().fold(0.0, |sum, tensor| sum + tensor.square_sum);
        Self { turn: report.turn, square_sum: start + own }
    }
}
