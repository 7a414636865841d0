//! What a seat orders of its host, and what the host tells.

use std::sync::Arc;

use zbelastic_types::{Generation, LayerId, StageIndex, Step};

use crate::checkpoint::LayerDigest;
use crate::job::JobSpec;
use crate::member::Holder;
use crate::message::{HeldLayer, HeldUpdate, LoadFault};
use crate::plan::PlanRecord;
use crate::rehearsal::Rehearsal;
use crate::validation::{LayerFingerprint, Report, Seal, Turn};

/// A stage to be made ready.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadOrder {
    /// The plan.
    pub plan: Arc<PlanRecord>,
    /// The stage.
    pub stage: StageIndex,
    /// The job.
    pub spec: Arc<JobSpec>,
    /// The turn it begins with; layers have this step's version.
    pub turn: Turn,
    /// Updates before it.
    pub updates: u64,
    /// Whether the version it begins with becomes a checkpoint, and is to be written.
    pub is_pending: bool,
}

/// What the host must do, in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum Order {
    /// Apply a seal that is agreed on.
    Settle(Seal),
    /// Give up the attempt under way and keep the layers, as sealed (rule R1 makes that possible).
    Stop,
    /// Get the layers of a stage, and of the copies it keeps; answered by [`News::Loaded`].
    Load(Box<LoadOrder>),
    /// Start the program of the plan that was loaded.
    Run {
        /// The plan.
        generation: Generation,
    },
    /// Write a version as soon as it is the sealed one, if it still can be; answered by
    /// [`News::Saved`]. What the configuration makes a checkpoint is written without an order.
    Save {
        /// The plan.
        generation: Generation,
        /// The version.
        version: Step,
    },
    /// Copy ahead what a planned change will need here, and help others to; answered by
    /// [`News::Following`] if anything is to be followed here. Replaces what was rehearsed before.
    Rehearse {
        /// Who this is.
        me: Holder,
        /// What; nothing ends it.
        rehearsal: Option<Arc<Rehearsal>>,
    },
    /// Give up the attempt under way and all layers: the run went back, and what was held before
    /// that is not believed.
    GoBack,
    /// Let go of layers that no stage here uses: everybody has what the plan gives them.
    Release,
    /// Say which layers there are; answered by [`News::Inventory`]. The plan is about to change, so
    /// what ran ahead of a seal that waits for its gate may be given up.
    TakeInventory {
        /// To be given back with the answer.
        index: u64,
    },
    /// Forget everything: this life of the node is over.
    Forget,
}

/// What the host tells.
#[derive(Clone, Debug, PartialEq)]
pub enum News {
    /// An operation began or ended.
    Busy {
        /// Whether one is under way.
        is_busy: bool,
    },
    /// How much work the process has done so far, as [`Pulse::progress`](crate::message::Pulse) counts
    /// it. The next heartbeats carry it.
    Progress {
        /// All of it, since the process began.
        done: u64,
    },
    /// How long the last verdict was waited for.
    Waited {
        /// In ticks.
        ticks: u32,
    },
    /// The stage's gradient is frozen.
    Reported {
        /// Its sums.
        report: Report,
        /// Fingerprints of the state it was computed from, if this step attests.
        state: Vec<LayerFingerprint>,
    },
    /// An update of another stage is held.
    Held(HeldUpdate),
    /// The layers there are.
    Inventory {
        /// As ordered.
        index: u64,
        /// Layers with their versions.
        layers: Vec<HeldLayer>,
    },
    /// All layers that are to be followed here are, or will not be: memory does not hold those that
    /// are left out.
    Following {
        /// The plan in force.
        generation: Generation,
        /// The layers.
        layers: Vec<LayerId>,
    },
    /// The layers of a plan are there.
    Loaded {
        /// The plan.
        generation: Generation,
        /// The stage's, in model order.
        layers: Vec<LayerDigest>,
        /// The copies', in model order.
        copies: Vec<LayerDigest>,
    },
    /// A layer cannot be had.
    LoadFailed {
        /// The plan.
        generation: Generation,
        /// The layer.
        layer: LayerId,
        /// Why.
        cause: LoadFault,
    },
    /// Layers are durable.
    Saved {
        /// Their version.
        version: Step,
        /// The plan under which it was sealed.
        generation: Generation,
        /// The layers.
        layers: Vec<LayerDigest>,
        /// How long reading them kept the device from computing, in thousandths of a tick.
        busy_milliticks: u32,
    },
}
