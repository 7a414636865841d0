//! Commands of a session to the worker's runtime, and events that the runtime reports.

use std::sync::Arc;

use zbelastic_types::{Generation, LayerId, StageIndex, Step};

use crate::checkpoint::LayerDigest;
use crate::job::JobSpec;
use crate::member::Holder;
use crate::message::{HeldLayer, HeldUpdate, LoadFault};
use crate::plan::PlanRecord;
use crate::pre_copy::PreCopyPlan;
use crate::validation::{GradientReport, LayerFingerprint, Seal, Turn};

/// A stage to be made ready.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadCommand {
    /// The plan that the stage belongs to.
    pub plan: Arc<PlanRecord>,
    /// Index of the stage in the plan.
    pub stage: StageIndex,
    /// Configuration of the job that is trained.
    pub spec: Arc<JobSpec>,
    /// The turn it begins with; layers have this step's version.
    pub turn: Turn,
    /// Optimizer updates applied before this turn.
    pub updates: u64,
    /// Whether the version it begins with becomes a checkpoint, and is to be written.
    pub is_pending: bool,
}

/// A command that the runtime must execute, in the sequence in which it was issued.
#[derive(Clone, Debug, PartialEq)]
pub enum WorkerCommand {
    /// Apply a seal that is agreed on.
    ApplySeal(Seal),
    /// Give up the attempt under way and keep the layers, as sealed (rule R1 makes that possible).
    Stop,
    /// Get the layers of a stage, and of the copies it keeps; answered by [`WorkerEvent::Loaded`].
    Load(Box<LoadCommand>),
    /// Start the program of the plan that was loaded.
    Run {
        /// Generation of the plan to start.
        generation: Generation,
    },
    /// Write a version as soon as it is the sealed one, if it still can be; answered by
    /// [`WorkerEvent::Saved`]. Checkpoints by the configuration are written without a command.
    Save {
        /// Generation of the plan under which the version is sealed.
        generation: Generation,
        /// The version to write: the number of steps sealed before it.
        version: Step,
    },
    /// Copy ahead the layers that a planned change will need here, and help others to; answered by
    /// [`WorkerEvent::Following`] if anything is to be followed here. Replaces the layers that were
    /// copied ahead before.
    PreCopy {
        /// This worker, in its current life.
        holder: Holder,
        /// The layers to follow, each with its follower and owner; `None` ends copying ahead.
        pre_copy: Option<Arc<PreCopyPlan>>,
    },
    /// Give up the attempt under way and all layers: the run was rewound, and the state held before
    /// is not trusted.
    Rewind,
    /// Drop layers that no stage here uses: every holder has the layers of its stage and copies.
    Release,
    /// Report the layers that are held; answered by [`WorkerEvent::Inventory`]. The plan is about
    /// to change, so work ahead of a seal that waits for its gate may be given up.
    TakeInventory {
        /// This worker, in its current life: the sender of the layers that others request.
        holder: Holder,
        /// Index of the briefing that requested the inventory, returned with the answer.
        index: u64,
    },
    /// This life of the node is over: give up the attempt under way and keep the layers, as sealed
    /// (rule R1 makes that possible). The next life reports them when its inventory is requested.
    EndLife,
    /// Forget everything: the layers are those of another cluster.
    Forget,
}

/// An event that the runtime reports to its session.
#[derive(Clone, Debug, PartialEq)]
pub enum WorkerEvent {
    /// An operation began or ended.
    Busy {
        /// Whether one is under way.
        is_busy: bool,
    },
    /// How much work the process has done so far, as
    /// [`WorkerActivity::progress`](crate::message::WorkerActivity) counts it. The next heartbeats
    /// carry it.
    Progress {
        /// All of it, since the process began.
        done: u64,
    },
    /// How long the last verdict was waited for.
    VerdictWaited {
        /// Duration of the wait in ticks.
        ticks: u32,
    },
    /// The stage's gradient is frozen.
    Reported {
        /// Sums of squares of the stage's tensors, and the loss if it holds the head.
        report: GradientReport,
        /// Fingerprints of the state it was computed from, if this step attests.
        state: Vec<LayerFingerprint>,
    },
    /// An update of another stage is held.
    UpdateHeld(HeldUpdate),
    /// The layers that are held, as requested by [`WorkerCommand::TakeInventory`].
    Inventory {
        /// The index given with the command.
        index: u64,
        /// Each layer with its version and digest.
        layers: Vec<HeldLayer>,
    },
    /// All layers that are to be followed here are, or will not be: memory does not hold those that
    /// are left out.
    Following {
        /// Generation of the plan in force.
        generation: Generation,
        /// Layers that are followed here.
        layers: Vec<LayerId>,
    },
    /// The layers of a plan are there.
    Loaded {
        /// Generation of the plan that was loaded.
        generation: Generation,
        /// Layers of the stage with their digests, in model order.
        layers: Vec<LayerDigest>,
        /// Layers of the copies with their digests, in model order.
        copies: Vec<LayerDigest>,
    },
    /// A layer cannot be loaded.
    LoadFailed {
        /// Generation of the plan that is loaded.
        generation: Generation,
        /// Index of the layer in the model.
        layer: LayerId,
        /// Whether the source or the memory is at fault.
        cause: LoadFault,
    },
    /// Layers of a version were made durable.
    Saved {
        /// Version of the layers: the number of steps sealed before it.
        version: Step,
        /// The plan under which it was sealed.
        generation: Generation,
        /// The durable layers, each with the digest of its state.
        layers: Vec<LayerDigest>,
        /// How long reading them kept the device from computing, in thousandths of a tick.
        busy_milliticks: u32,
    },
}
