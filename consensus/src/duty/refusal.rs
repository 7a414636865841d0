//! Why a leader does not take in what it is told.

use zbelastic_types::{Generation, LayerId, NodeId, StageIndex, TensorIndex};

use crate::contact::ContactRefusal;
use crate::entry::CHANGES_MAX;
use crate::member::Holder;
use crate::validation::{ReportRefusal, Turn};

/// Why what a worker tells is dropped. Nothing changed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum InputRefusal {
    /// It is a stranger, or was fenced off.
    #[error("{holder} is no member that is counted on")]
    Fenced {
        /// Who.
        holder: Holder,
    },
    /// It names a plan that is not in force.
    #[error("about generation {found}, the plan is generation {expected}")]
    OtherGeneration {
        /// The plan in force.
        expected: Generation,
        /// The one named.
        found: Generation,
    },
    /// It is not at that stage.
    #[error("{holder} does not stand at stage {stage}")]
    NotItsStage {
        /// Who.
        holder: Holder,
        /// The stage named.
        stage: StageIndex,
    },
    /// It is about another turn.
    #[error("about {found}, open is {expected}")]
    OtherTurn {
        /// What is open.
        expected: Turn,
        /// What it is about.
        found: Turn,
    },
    /// It names a tensor of another stage.
    #[error("tensor {tensor} is not at stage {stage}")]
    NotItsTensor {
        /// The stage.
        stage: StageIndex,
        /// The tensor.
        tensor: TensorIndex,
    },
    /// It names a tensor twice.
    #[error("tensor {tensor} is named twice")]
    TensorTwice {
        /// The tensor.
        tensor: TensorIndex,
    },
    /// It leaves out tensors of the stage.
    #[error("{found} sums of stage {stage}, which has {expected} tensors")]
    MissingTensors {
        /// The stage.
        stage: StageIndex,
        /// Tensors there are.
        expected: usize,
        /// Sums told.
        found: usize,
    },
    /// No gradient has such a sum.
    #[error("{square_sum} is no sum of squares of tensor {tensor}, {nonfinite} values not finite")]
    BadSum {
        /// The tensor.
        tensor: TensorIndex,
        /// The sum told.
        square_sum: f64,
        /// Values told to be not finite.
        nonfinite: u64,
    },
    /// It tells a loss that is another stage's to tell.
    #[error("stage {found} tells a loss, stage {expected} holds the head")]
    NotItsLoss {
        /// The stage that holds the head.
        expected: StageIndex,
        /// Who tells it.
        found: StageIndex,
    },
    /// It leaves out the loss.
    #[error("stage {stage} holds the head and tells no loss")]
    MissingLoss {
        /// The stage.
        stage: StageIndex,
    },
    /// It names a layer the model does not have.
    #[error("layer {layer} of {layer_count}")]
    UnknownLayer {
        /// The layer named.
        layer: LayerId,
        /// Layers there are.
        layer_count: u32,
    },
    /// It names a layer twice.
    #[error("layer {layer} is named twice")]
    LayerTwice {
        /// The layer.
        layer: LayerId,
    },
    /// It names more layers than the model has: no entry could hold it.
    #[error("{found} layers of {layer_count}")]
    TooManyLayers {
        /// Layers named.
        found: usize,
        /// Layers there are.
        layer_count: u32,
    },
    /// It names more layers than a node may hold: few versions of each.
    #[error("{found} layers are told, {held_max} may be held")]
    TooManyHeld {
        /// Layers told.
        found: usize,
        /// Layers that may be.
        held_max: usize,
    },
    /// The report is not counted.
    #[error(transparent)]
    Report(#[from] ReportRefusal),
    /// Nobody asked.
    #[error("nobody asked for it")]
    Unasked,
    /// An entry holds no more changes of members than wait already: this one comes when it is told
    /// again.
    #[error("{CHANGES_MAX} changes of members wait already")]
    TooManyChanges,
    /// The node has no credential for that role, or it was revoked.
    #[error("node {node} has no credential")]
    NoCredential {
        /// The node.
        node: NodeId,
    },
    /// Where it is reached is not told as it must be.
    #[error(transparent)]
    Contact(#[from] ContactRefusal),
    /// The node may not come back, or a later start of it is a member.
    #[error("node {node} is not admitted")]
    NotAdmitted {
        /// The node.
        node: NodeId,
    },
}

impl InputRefusal {
    /// The word under which it is counted.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Fenced { .. } => "fenced",
            Self::OtherGeneration { .. } => "other-generation",
            Self::NotItsStage { .. } => "not-its-stage",
            Self::OtherTurn { .. } => "other-turn",
            Self::NotItsTensor { .. } => "not-its-tensor",
            Self::TensorTwice { .. } => "tensor-twice",
            Self::MissingTensors { .. } => "missing-tensors",
            Self::BadSum { .. } => "bad-sum",
            Self::NotItsLoss { .. } => "not-its-loss",
            Self::MissingLoss { .. } => "missing-loss",
            Self::UnknownLayer { .. } => "unknown-layer",
            Self::LayerTwice { .. } => "layer-twice",
            Self::TooManyLayers { .. } => "too-many-layers",
            Self::TooManyHeld { .. } => "too-many-held",
            Self::Report(refusal) => refusal.name(),
            Self::Unasked => "unasked",
            Self::TooManyChanges => "too-many-changes",
            Self::NoCredential { .. } => "no-credential",
            Self::Contact(_) => "contact",
            Self::NotAdmitted { .. } => "not-admitted",
        }
    }
}
