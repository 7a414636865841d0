//! Messages that controllers and workers send each other. Tensors travel elsewhere.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use zbelastic_types::{
    ClusterId, Digest, Generation, Incarnation, LayerId, NodeId, StageIndex, Step,
};

use crate::checkpoint::LayerDigest;
use crate::codec::{self, DecodeError, MESSAGE_BYTES_MAX};
use crate::contact::Contact;
use crate::contacts::Contacts;
use crate::entry::ReadyRecord;
use crate::job::{JobPhase, JobSpec};
use crate::member::{AdmissionRefusal, Holder, Resources, Role};
use crate::plan::PlanRecord;
use crate::pre_copy::PreCopyPlan;
use crate::pre_encoded::PreEncoded;
use crate::raft::RaftMessage;
use crate::validation::{GradientReport, LayerFingerprint, Seal, TensorSum, Turn};

/// The activity of a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerActivity {
    /// Ticks the operation under way has lasted; 0 if none is.
    pub busy_ticks: u32,
    /// Ticks the last verdict was waited for.
    pub wait_ticks: u32,
    /// Work that its process has done so far: operations that ran, pieces of layers that were
    /// hashed, loaded, drawn, received or written. It only grows, and its growth shows that the
    /// worker makes progress (rule R10).
    pub progress: u64,
}

/// A layer that a worker holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldLayer {
    /// Index of the layer in the model.
    pub layer: LayerId,
    /// Its version: steps sealed before it.
    pub version: Step,
    /// The digest of its state.
    pub digest: Digest,
}

/// Why a layer cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LoadFault {
    /// None of the named source nodes provides it, or the state read from the checkpoint does not
    /// match.
    Source,
    /// Memory does not hold the stage.
    Memory,
}

/// A stage's sums as the keeper of its copy computed them, once the keeper holds the update.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeldUpdate {
    /// Generation, attempt and step of the update.
    pub turn: Turn,
    /// The stage of the update.
    pub of: StageIndex,
    /// One sum for each of its tensors.
    pub sums: Vec<TensorSum>,
    /// Fingerprints of the state that the update begins with, if this step attests.
    pub state: Vec<LayerFingerprint>,
}

/// The part of the agreed state that a worker needs. A briefing with a higher index replaces it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Briefing {
    /// Index of the last log entry that the sender has applied.
    pub index: u64,
    /// The leader, as far as the sender knows.
    pub leader: Option<NodeId>,
    /// The receiver's start and life, if it is a member that is counted on.
    pub you: Option<(u64, Incarnation)>,
    /// The job's configuration, if the receiver does not know the plan in force yet.
    pub spec: Option<PreEncoded<JobSpec>>,
    /// How far the job is.
    pub job: Option<JobPhase>,
    /// The number of the plan in force.
    pub generation: Generation,
    /// The plan in force, if the receiver does not know it yet.
    pub plan: Option<PreEncoded<PlanRecord>>,
    /// Whether the program of the plan in force runs.
    pub is_running: bool,
    /// The turn that waits for its seal.
    pub open: Turn,
    /// Optimizer updates applied so far in the run.
    pub updates: u64,
    /// The last seal, which may be of the plan before.
    pub seal: Option<Seal>,
    /// Whether the sender is a leader that requests the receiver's inventory of layers.
    pub requests_inventory: bool,
    /// How often the run went back.
    pub rewinds: u64,
    /// Versions that become checkpoints once all their layers are durable. One that is not open yet
    /// may be among them.
    pub pending: Vec<Step>,
    /// Where members are reached, if the receiver does not know the newest contacts yet.
    pub contacts: Option<PreEncoded<Contacts>>,
    /// The layers to copy ahead of a planned change, as far as the sender knows.
    pub pre_copy: Option<Arc<PreCopyPlan>>,
}

/// A message that one node sends another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Message {
    /// A Raft message between controllers.
    Raft(RaftMessage),
    /// A node requests admission to the cluster.
    Join {
        /// Grows with each start of the node.
        boot: u64,
        /// Role that the node requests: controller or worker.
        role: Role,
        /// Memory, speed and device class of the node.
        resources: Resources,
        /// Name, addresses and place of the node.
        contact: Contact,
    },
    /// A worker's heartbeat.
    Beat {
        /// The worker that sends the heartbeat.
        holder: Holder,
        /// Index of the last briefing that the worker applied.
        known: u64,
        /// Generation of the newest plan that the worker knows.
        generation: Generation,
        /// Index of the contacts that the worker knows.
        contacts: u64,
        /// Its waits and its progress, as it counts them.
        pulse: WorkerActivity,
    },
    /// A stage reports the sums of its gradient.
    Report {
        /// The worker that runs the stage.
        holder: Holder,
        /// One sum for each tensor of the stage, and the loss if the stage holds the head.
        report: GradientReport,
        /// Fingerprints of the state that the step begins with, if this step attests.
        state: Vec<LayerFingerprint>,
    },
    /// The keeper of a copy holds an update of another stage.
    Held {
        /// The worker that keeps the copy.
        holder: Holder,
        /// The update that it holds, with its turn, stage and sums.
        update: HeldUpdate,
    },
    /// The layers a worker holds.
    Inventory {
        /// The worker that sends its inventory.
        holder: Holder,
        /// Index of the briefing that requested the inventory.
        index: u64,
        /// Each layer it holds, with version and digest.
        layers: Vec<HeldLayer>,
    },
    /// A holder has loaded its layers.
    Ready(ReadyRecord),
    /// A worker cannot get a layer from the source that the plan names.
    LoadFailed {
        /// The worker that cannot get the layer.
        holder: Holder,
        /// Generation of the plan that it loads.
        generation: Generation,
        /// Index of the layer in the model.
        layer: LayerId,
        /// Whether the source or the worker's memory is at fault.
        cause: LoadFault,
    },
    /// A worker has made layers of a version durable.
    Saved {
        /// The worker that wrote the layers.
        holder: Holder,
        /// Version of the layers: the number of steps sealed before it.
        version: Step,
        /// The plan under which it was sealed.
        generation: Generation,
        /// The durable layers, each with the digest of its state.
        layers: Vec<LayerDigest>,
        /// How long reading them kept the device from computing, in thousandths of a tick.
        busy_milliticks: u32,
    },
    /// A worker follows the layers that it will need, but for those that its memory does not hold.
    Following {
        /// The worker that follows the layers.
        holder: Holder,
        /// Generation of the plan in force.
        generation: Generation,
        /// Layers that it keeps a copy of ahead of the planned change.
        layers: Vec<LayerId>,
    },
    /// The sender is about to go.
    Drain {
        /// The worker that is about to go.
        holder: Holder,
    },
    /// The sender goes now, and is not to be waited for.
    Leave {
        /// The worker that goes.
        holder: Holder,
    },
    /// The part of the agreed state that a worker needs, sent by a controller.
    Briefing(Box<Briefing>),
    /// The start named in an admission request is used up: the member admitted with it is lost. A
    /// request with a later start is accepted.
    Spent {
        /// The last start that was admitted.
        boot: u64,
    },
    /// A controller reports that its address differs from the agreed one.
    Moved {
        /// The controller with a changed address.
        holder: Holder,
        /// Name, addresses and place of the controller now.
        contact: Contact,
    },
    /// A leader refuses a worker's request for admission, and will for as long as its process
    /// lives. A worker of an earlier version does not know it and drops it.
    NotAdmitted {
        /// The start that the request named.
        boot: u64,
        /// Why the request is refused.
        cause: AdmissionRefusal,
    },
}

impl Message {
    /// The worker that speaks, if one does.
    #[must_use]
    pub const fn holder(&self) -> Option<Holder> {
        match self {
            Self::Beat { holder, .. }
            | Self::Report { holder, .. }
            | Self::Held { holder, .. }
            | Self::Inventory { holder, .. }
            | Self::LoadFailed { holder, .. }
            | Self::Saved { holder, .. }
            | Self::Following { holder, .. }
            | Self::Drain { holder }
            | Self::Leave { holder }
            | Self::Moved { holder, .. } => Some(*holder),
            Self::Ready(ready) => Some(ready.holder),
            Self::Raft(_)
            | Self::Join { .. }
            | Self::Briefing(_)
            | Self::Spent { .. }
            | Self::NotAdmitted { .. } => None,
        }
    }
}

/// A message on its way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Envelope {
    /// The cluster it belongs to; members of others are strangers.
    pub cluster: ClusterId,
    /// The message that is sent: that of a controller or a worker.
    pub message: Message,
}

impl Envelope {
    /// Encodes the envelope with its format byte.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        codec::encode(self)
    }

    /// The envelope in `bytes`.
    ///
    /// # Errors
    /// If they are too many, of another version, or no envelope.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        codec::decode(bytes, MESSAGE_BYTES_MAX)
    }
}
