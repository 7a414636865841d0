//! The configuration of a stage, the events that it handles and the outputs that it yields.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use zbelastic_consensus::validation::{
    GradientReport, LayerFingerprint, Prefix, Seal, SealRefusal, Turn,
};
use zbelastic_kernels::{DeviceFault, PendingFloats};
use zbelastic_schedule::{Flow, Op, Pass};
use zbelastic_types::{ChunkIndex, LayerId, StageIndex, Step};

use super::frame::Frame;
use super::inbox::BoundaryFrameRefusal;
use super::initial_weights::InitialWeights;
use super::injection::Injection;
use super::partial::{PartialGradient, PartialRefusal};
use super::stash_store::StashStoreError;
use crate::model::ModelConfig;
use crate::optimizer::OptimizerConfig;
use crate::outer::{OuterRequest, OuterSchedule, OuterWeights};
use crate::plan::Plan;

/// The configuration of a run, the same for all its stages.
#[derive(Clone, Debug)]
pub struct StageSetup {
    /// Shape of the model.
    pub model: ModelConfig,
    /// The plan: which stage has which layers, and the program that each runs.
    pub plan: Plan,
    /// Settings of the optimizer.
    pub optimizer: OptimizerConfig,
    /// Weight of the mean squared log sum of the head in the gradient (z-loss); 0 for none. The
    /// loss that is reported is the cross-entropy alone.
    pub z_loss: f64,
    /// The largest gradient norm that is applied as it is.
    pub clip_norm: Option<f64>,
    /// Steps of the run.
    pub step_count: u64,
    /// Evaluate after every so many steps; 0 only after the last.
    pub evaluate_every: u64,
    /// Weights of the layers before the first step.
    pub weights: InitialWeights,
    /// Gradients corrupted on purpose.
    pub injections: Vec<Injection>,
    /// Whether gradients are sent to the workers that keep a copy of the stage's layers.
    pub copies_wanted: bool,
    /// A report carries the fingerprints of the state every so many steps; 0 never.
    pub attest_every: u64,
    /// When weights are exchanged with other islands, if the run is one of several.
    pub outer: Option<Arc<OuterSchedule>>,
}

impl StageSetup {
    /// The step whose batches are trained on in `step`: of several islands each has its own.
    pub(crate) fn batch_step(&self, step: Step) -> Step {
        let outer = self.outer.as_ref().map(|outer| outer.config().batches_of(step.0));
        outer.map_or(step, Step)
    }

    /// Whether the fingerprints of the state that `step` begins with are reported.
    pub(super) fn attests(&self, step: Step) -> bool {
        self.attest_every > 0 && step.0.is_multiple_of(self.attest_every)
    }
}

/// A layer's gradient on its way to a worker that keeps the layer's copy.
#[derive(Clone, Debug)]
pub struct LayerGradient {
    /// Id of the layer in model order.
    pub layer: LayerId,
    /// The turn it was computed in.
    pub turn: Turn,
    /// The gradient, in the layer's order. That of a device may still be on its way.
    pub g: PendingFloats,
}

/// An event from outside the stage.
#[derive(Clone, Debug)]
pub enum Event {
    /// A boundary tensor arrived.
    Frame(Frame),
    /// The sums of the stages before this one.
    Prefix(Prefix),
    /// A verdict that was agreed on.
    Seal(Seal),
    /// The run ends after this step; sent before that step's seal.
    Halt {
        /// The last step of the run.
        after: Step,
    },
    /// Another replica's gradient of a chunk.
    Partial(PartialGradient),
    /// The weights of a version of a layer are durable where other islands read them.
    Published {
        /// The layer.
        layer: LayerId,
        /// The version.
        version: Step,
    },
    /// The weights that an outer step of all islands led to.
    Outer(OuterWeights),
}

/// A message that the engine's owner delivers.
#[derive(Clone, Debug)]
pub enum Output {
    /// A boundary tensor for another stage.
    Frame {
        /// Stage that the tensor is sent to.
        to: StageIndex,
        /// The tensor, with the turn and the pass that reads it.
        frame: Frame,
    },
    /// The sums up to this stage, for the next.
    Prefix {
        /// Stage that the sums are sent to.
        to: StageIndex,
        /// Sum of squares of the gradients of this stage and those before it.
        prefix: Prefix,
    },
    /// This stage's gradient, for the workers that keep its copy or its layers on standby.
    Gradients {
        /// Turn that the gradients were computed in.
        turn: Turn,
        /// One for each layer.
        gradients: Vec<LayerGradient>,
    },
    /// This stage's sums, for the leader.
    Report {
        /// The turn, and the sum of squares of each tensor's gradient.
        report: GradientReport,
        /// Fingerprints of the state that the step began with, if this step attests.
        state: Vec<LayerFingerprint>,
    },
    /// A verdict was carried out: the state is this version, until the next is (rule R5).
    Sealed {
        /// Version of the state: the steps sealed so far.
        version: Step,
    },
    /// The loss on held-out text, from the stage that holds the head. Nothing sealed later can
    /// change it (rule R5); after a change of plans it may be reported twice.
    Evaluated {
        /// Steps done before the evaluation.
        steps_done: u64,
        /// Sum of the cross-entropies of all held-out tokens, in nats.
        loss_sum: f64,
        /// Number of held-out tokens that the sum is over.
        token_count: u64,
    },
    /// A chunk's gradient over the microbatches of some replicas, for the stage of its sibling.
    Partial {
        /// Stage that the gradient is sent to.
        to: StageIndex,
        /// The gradient, with its turn and the chunk that adds it.
        partial: PartialGradient,
    },
    /// A request to the exchange between islands.
    Outer(OuterRequest),
}

/// Why an event was dropped. The engine stays as it was.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum EventRefusal {
    /// A boundary tensor was refused.
    #[error(transparent)]
    Frame(#[from] BoundaryFrameRefusal),
    /// A seal was refused.
    #[error(transparent)]
    Seal(#[from] SealRefusal),
    /// A partial gradient of another replica was refused.
    #[error(transparent)]
    Partial(#[from] PartialRefusal),
}

/// The outcome of [`StageEngine::run_next`].
#[derive(Clone, Debug, PartialEq)]
pub enum EngineProgress {
    /// An operation, an evaluation pass or a verdict was carried out.
    Ran(EngineActivity),
    /// Nothing can be run until this arrives.
    Blocked(WaitReason),
    /// The second store refused what was next. Nothing was run; the next call tries it again.
    Failed(StashStoreError),
    /// The device gave up. Nothing leaves this stage any more, and only a new process may get the
    /// device back.
    Faulted(DeviceFault),
    /// The run is over.
    Finished,
}

/// Why what was next was not run.
#[derive(Debug)]
pub(super) enum Stop {
    Blocked(WaitReason),
    Failed(StashStoreError),
    Faulted(DeviceFault),
}

impl From<WaitReason> for Stop {
    fn from(reason: WaitReason) -> Self {
        Self::Blocked(reason)
    }
}

impl From<StashStoreError> for Stop {
    fn from(error: StashStoreError) -> Self {
        Self::Failed(error)
    }
}

impl From<DeviceFault> for Stop {
    fn from(fault: DeviceFault) -> Self {
        Self::Faulted(fault)
    }
}

impl From<Stop> for EngineProgress {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::Blocked(reason) => Self::Blocked(reason),
            Stop::Failed(error) => Self::Failed(error),
            Stop::Faulted(fault) => Self::Faulted(fault),
        }
    }
}

/// The operation, evaluation pass or verdict that the engine carried out.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum EngineActivity {
    /// An operation of the program.
    Op {
        /// The turn it belongs to.
        turn: Turn,
        /// The operation as it stands in the program.
        op: Op,
    },
    /// F on held-out text.
    Evaluation {
        /// Chunk, microbatch and slice that it ran over.
        pass: Pass,
    },
    /// A verdict that came after the end of the program.
    Settled {
        /// The turn it was about.
        turn: Turn,
    },
}

/// What the engine waits for before it can go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitReason {
    /// A boundary tensor that has not arrived.
    Frame {
        /// Whether the tensor is an activation or a gradient.
        flow: Flow,
        /// The pass that reads it.
        pass: Pass,
    },
    /// The sums of the stages before this one.
    Prefix,
    /// The verdict on this turn.
    Seal(Turn),
    /// Another replica's gradient.
    Partial {
        /// The chunk that adds it.
        chunk: ChunkIndex,
    },
    /// The exchange of a layer with other islands.
    Outer {
        /// The layer.
        layer: LayerId,
    },
    /// Tokens that are on their way to this node.
    Data {
        /// The step that reads them, or the version that held-out text is read at.
        step: Step,
    },
}
