//! What controllers and workers tell each other. Tensors travel elsewhere.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use zbelastic_types::{
    ClusterId, Digest, Generation, Incarnation, LayerId, NodeId, StageIndex, Step,
};

use crate::checkpoint::LayerDigest;
use crate::codec::{self, DecodeError};
use crate::contact::{Contact, Contacts};
use crate::entry::ReadyRecord;
use crate::job::{JobPhase, JobSpec};
use crate::member::{Holder, Resources, Role};
use crate::plan::PlanRecord;
use crate::raft::RaftMessage;
use crate::rehearsal::Rehearsal;
use crate::told::Told;
use crate::validation::{LayerFingerprint, Report, Seal, TensorSum, Turn};

/// Bytes of a message at most: a snapshot of the replicated state is the largest.
pub const MESSAGE_BYTES_MAX: usize = 14 << 20;

/// What a worker is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pulse {
    /// Ticks the operation under way has taken; 0 if none is.
    pub busy_ticks: u32,
    /// Ticks the last verdict was waited for.
    pub wait_ticks: u32,
    /// Work that its process has done so far: operations that ran, pieces of layers that were hashed,
    /// loaded, drawn, received or written. It only grows; that it did says that the worker gets on
    /// (rule R10).
    pub progress: u64,
}

/// A layer that a worker holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldLayer {
    /// The layer.
    pub layer: LayerId,
    /// Its version: steps sealed before it.
    pub version: Step,
    /// The digest of its state.
    pub digest: Digest,
}

/// Why a layer cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LoadFault {
    /// Nobody who is named gives it, or what its checkpoint has is not it.
    Source,
    /// Memory does not hold the stage.
    Memory,
}

/// A stage's sums as whoever keeps its copy computed them, once the update is held.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeldUpdate {
    /// The turn.
    pub turn: Turn,
    /// The stage whose update it is.
    pub of: StageIndex,
    /// One sum for each of its tensors.
    pub sums: Vec<TensorSum>,
    /// Fingerprints of the state that the update begins with, if this step attests.
    pub state: Vec<LayerFingerprint>,
}

/// What a worker needs to know of what is agreed. One with a higher index replaces it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Briefing {
    /// Entries applied by who tells it.
    pub index: u64,
    /// Who leads, as far as is known.
    pub leader: Option<NodeId>,
    /// The receiver's start and life, if it is a member that is counted on.
    pub you: Option<(u64, Incarnation)>,
    /// The job's configuration, for who does not know the plan yet.
    pub spec: Option<Told<JobSpec>>,
    /// How far the job is.
    pub job: Option<JobPhase>,
    /// The number of the plan in force.
    pub generation: Generation,
    /// The plan in force, for who does not know it yet.
    pub plan: Option<Told<PlanRecord>>,
    /// Whether its program runs.
    pub is_running: bool,
    /// The turn that waits for its seal.
    pub open: Turn,
    /// Updates so far.
    pub updates: u64,
    /// The last seal, which may be of the plan before.
    pub seal: Option<Seal>,
    /// Whether a leader asks which layers the receiver holds.
    pub asks_inventory: bool,
    /// How often the run went back.
    pub rewinds: u64,
    /// Versions that become checkpoints once all their layers are durable. One that is not open yet may be
    /// among them.
    pub pending: Vec<Step>,
    /// Where members are reached, for who does not know it yet.
    pub contacts: Option<Told<Contacts>>,
    /// What is to be copied ahead of a planned change, as far as the sender knows.
    pub rehearsal: Option<Arc<Rehearsal>>,
}

/// What one node tells another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Message {
    /// Among controllers.
    Raft(RaftMessage),
    /// A node asks to be admitted.
    Join {
        /// Grows with each start of the node.
        boot: u64,
        /// What for.
        role: Role,
        /// What it brings.
        resources: Resources,
        /// Where it is reached.
        contact: Contact,
    },
    /// A worker is there.
    Beat {
        /// Who.
        holder: Holder,
        /// The index of the last briefing it took in.
        known: u64,
        /// The plan it knows.
        generation: Generation,
        /// The index of the contacts it knows.
        contacts: u64,
        /// What it is doing.
        pulse: Pulse,
    },
    /// A stage's sums.
    Report {
        /// Who.
        holder: Holder,
        /// The sums.
        report: Report,
        /// Fingerprints of the state that the step begins with, if this step attests.
        state: Vec<LayerFingerprint>,
    },
    /// An update is held elsewhere.
    Held {
        /// Who.
        holder: Holder,
        /// Which.
        update: HeldUpdate,
    },
    /// The layers a worker holds.
    Inventory {
        /// Who.
        holder: Holder,
        /// The briefing that asked.
        index: u64,
        /// What it holds.
        layers: Vec<HeldLayer>,
    },
    /// A holder has loaded its layers.
    Ready(ReadyRecord),
    /// A layer cannot be had as the plan says.
    LoadFailed {
        /// Who.
        holder: Holder,
        /// The plan.
        generation: Generation,
        /// The layer.
        layer: LayerId,
        /// Why.
        cause: LoadFault,
    },
    /// Layers are durable.
    Saved {
        /// Who.
        holder: Holder,
        /// Their version.
        version: Step,
        /// The plan under which it was sealed.
        generation: Generation,
        /// The layers.
        layers: Vec<LayerDigest>,
        /// How long reading them kept the device from computing, in thousandths of a tick.
        busy_milliticks: u32,
    },
    /// A worker follows the layers that it will need, but for those that its memory does not hold.
    Following {
        /// Who.
        holder: Holder,
        /// The plan in force.
        generation: Generation,
        /// What it follows.
        layers: Vec<LayerId>,
    },
    /// The sender is about to go.
    Drain {
        /// Who.
        holder: Holder,
    },
    /// The sender goes now.
    Leave {
        /// Who.
        holder: Holder,
    },
    /// What a worker needs to know.
    Briefing(Box<Briefing>),
    /// The start named in a request to be admitted is used up: whoever was admitted with it is not
    /// counted on any more. A request with a later one is taken.
    Spent {
        /// The last start that was admitted.
        boot: u64,
    },
    /// A controller is reached elsewhere than is agreed.
    Moved {
        /// Who.
        holder: Holder,
        /// Where it is reached.
        contact: Contact,
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
            Self::Raft(_) | Self::Join { .. } | Self::Briefing(_) | Self::Spent { .. } => None,
        }
    }
}

/// A message on its way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Envelope {
    /// The cluster it belongs to; members of others are strangers.
    pub cluster: ClusterId,
    /// The message.
    pub message: Message,
}

impl Envelope {
    /// Its bytes.
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
