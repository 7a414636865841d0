//! A boundary tensor on its way from stage to stage.

use zbelastic_consensus::validation::Turn;
use zbelastic_kernels::TensorHandle;
use zbelastic_schedule::{Flow, Pass};

/// What a pass is for.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
pub enum PassMode {
    /// Held-out text: F alone, on sealed weights, before the turn it is tagged with.
    Evaluation,
    /// The passes of a training step.
    Training,
}

/// A boundary tensor with the turn, the mode and the pass that it belongs to.
#[derive(Clone, Debug)]
pub struct Frame {
    /// The turn it was computed in; a receiver drops those of a turn that was dropped (rule R6).
    pub turn: Turn,
    /// Whether it belongs to a step or to an evaluation.
    pub mode: PassMode,
    /// Whether the tensor is an activation or a gradient.
    pub flow: Flow,
    /// The pass that reads it.
    pub pass: Pass,
    /// `rows` by `width`, in the type the next operation reads.
    pub tensor: TensorHandle,
}
