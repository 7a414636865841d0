//! Why a leader refuses a report of a worker.

use zbelastic_types::{Generation, LayerId, NodeId, StageIndex, TensorIndex};

use crate::contact::ContactRefusal;
use crate::entry::CHANGES_MAX;
use crate::member::Holder;
use crate::validation::{ReportRefusal, Turn};

/// Why a report or request of a node is dropped. Nothing changed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum InputRefusal {
    /// It is no member, or was fenced off.
    #[error("{holder} is no member that is counted on")]
    Fenced {
        /// The member that the report names as its sender.
        holder: Holder,
    },
    /// It names a plan that is not in force.
    #[error("about generation {found}, the plan is generation {expected}")]
    OtherGeneration {
        /// The plan in force.
        expected: Generation,
        /// The plan that the report names.
        found: Generation,
    },
    /// It is not at that stage.
    #[error("{holder} does not stand at stage {stage}")]
    NotItsStage {
        /// The member that sent the report.
        holder: Holder,
        /// The stage that the report names.
        stage: StageIndex,
    },
    /// It is about another turn.
    #[error("about {found}, open is {expected}")]
    OtherTurn {
        /// The turn that is open.
        expected: Turn,
        /// The turn that the report is about.
        found: Turn,
    },
    /// It names a tensor of another stage.
    #[error("tensor {tensor} is not at stage {stage}")]
    NotItsTensor {
        /// The stage that the report is about.
        stage: StageIndex,
        /// The tensor that the stage does not have.
        tensor: TensorIndex,
    },
    /// It names a tensor twice.
    #[error("tensor {tensor} is named twice")]
    TensorTwice {
        /// The tensor that is named twice.
        tensor: TensorIndex,
    },
    /// It leaves out tensors of the stage.
    #[error("{found} sums of stage {stage}, which has {expected} tensors")]
    MissingTensors {
        /// The stage that the report is about.
        stage: StageIndex,
        /// Number of tensors of the stage.
        expected: usize,
        /// Number of sums in the report.
        found: usize,
    },
    /// No gradient has such a sum.
    #[error("{square_sum} is no sum of squares of tensor {tensor}, {nonfinite} values not finite")]
    BadSum {
        /// The tensor that the sum is of.
        tensor: TensorIndex,
        /// The sum of squares in the report.
        square_sum: f64,
        /// Number of values that the report counts as not finite.
        nonfinite: u64,
    },
    /// It reports a loss that only another stage reports.
    #[error("stage {found} tells a loss, stage {expected} holds the head")]
    NotItsLoss {
        /// The stage that holds the head.
        expected: StageIndex,
        /// The stage that reports a loss.
        found: StageIndex,
    },
    /// It leaves out the loss.
    #[error("stage {stage} holds the head and tells no loss")]
    MissingLoss {
        /// The stage that holds the head.
        stage: StageIndex,
    },
    /// It names a layer the model does not have.
    #[error("layer {layer} of {layer_count}")]
    UnknownLayer {
        /// The layer that the report names.
        layer: LayerId,
        /// Number of layers of the model.
        layer_count: u32,
    },
    /// It names a layer twice.
    #[error("layer {layer} is named twice")]
    LayerTwice {
        /// The layer that is named twice.
        layer: LayerId,
    },
    /// It names more layers than the model has: no entry could hold it.
    #[error("{found} layers of {layer_count}")]
    TooManyLayers {
        /// Number of layers in the report.
        found: usize,
        /// Number of layers of the model.
        layer_count: u32,
    },
    /// It names more layers than a node may hold: few versions of each.
    #[error("{found} layers are reported, at most {held_max} may be held")]
    TooManyHeld {
        /// Number of layers in the report.
        found: usize,
        /// Number of layers that a node may hold, over all versions.
        held_max: usize,
    },
    /// The report is not counted.
    #[error(transparent)]
    Report(#[from] ReportRefusal),
    /// It was not requested, or there is no plan or job that it could be about.
    #[error("it was not requested")]
    NotRequested,
    /// An entry holds no more changes of members than wait already: this one comes when it is
    /// reported again.
    #[error("{CHANGES_MAX} changes of members wait already")]
    TooManyChanges,
    /// The node has no credential for that role, or it was revoked.
    #[error("node {node} has no credential")]
    NoCredential {
        /// The node without a credential.
        node: NodeId,
    },
    /// The contact that the node reported is not valid.
    #[error(transparent)]
    Contact(#[from] ContactRefusal),
    /// The node may not come back, or a later start of it is a member.
    #[error("node {node} is not admitted")]
    NotAdmitted {
        /// The node that requested to be admitted.
        node: NodeId,
    },
}

impl InputRefusal {
    /// The name under which the refusal is counted.
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
            Self::NotRequested => "unasked",
            Self::TooManyChanges => "too-many-changes",
            Self::NoCredential { .. } => "no-credential",
            Self::Contact(_) => "contact",
            Self::NotAdmitted { .. } => "not-admitted",
        }
    }
}
