//! The entries of the log, which is agreed on one entry at a time.

use serde::{Deserialize, Serialize};
use zbelastic_types::{Generation, LayerId, Step};

use crate::access::AccessChange;
use crate::checkpoint::LayerDigest;
use crate::codec::{self, Format};
use crate::job::JobChange;
use crate::member::{Holder, MEMBERS_MAX, MemberChange};
use crate::plan::PlanRecord;
use crate::validation::Seal;

/// Changes of members in one entry: all that a cluster may have come at once. With the longest
/// names and the most addresses that is less than an entry holds.
pub const CHANGES_MAX: usize = MEMBERS_MAX;

/// That a holder has loaded the layers that a plan gives it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadyRecord {
    /// Generation of the plan whose layers are loaded.
    pub generation: Generation,
    /// The worker that is ready, in its current life.
    pub holder: Holder,
    /// Its layers, in model order.
    pub layers: Vec<LayerDigest>,
    /// The layers it keeps copies of, in model order.
    pub copies: Vec<LayerDigest>,
}

/// Why a run goes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RewindReason {
    /// No node holds this layer at a newer version.
    LayerLost {
        /// Index in the model of the first such layer.
        layer: LayerId,
    },
    /// The digests of this layer differ between owner and copy, and only a checkpoint decides.
    StateDiffers {
        /// Index of the layer in the model.
        layer: LayerId,
    },
    /// An operator continues from there. Steps that were sealed since do not bind the run any more.
    Ordered,
}

/// An entry of the log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Entry {
    /// Members come and go; those that come together come in one entry.
    Members(Vec<MemberChange>),
    /// A plan, from its step on.
    Adopt(Box<PlanRecord>),
    /// A holder is ready for the plan.
    Ready(ReadyRecord),
    /// Every holder is ready: the plan's program starts.
    Resume {
        /// Generation of the plan that starts.
        generation: Generation,
    },
    /// The verdict on a turn.
    Seal(Seal),
    /// Layers of a version are durable.
    Durable {
        /// Version of the layers: the number of steps sealed before it.
        version: Step,
        /// The plan under which it was sealed.
        generation: Generation,
        /// The worker that wrote the layers.
        holder: Holder,
        /// The durable layers, each with the digest of its state.
        layers: Vec<LayerDigest>,
    },
    /// The version that follows the open one becomes a checkpoint: so much time has passed since
    /// the last one.
    Keep {
        /// The version that follows the open one.
        version: Step,
    },
    /// All layers of a version are durable: it becomes a checkpoint.
    Checkpoint {
        /// Version of the checkpoint: the number of steps sealed before it.
        version: Step,
    },
    /// The run goes back to a checkpoint, or to its beginning.
    Rewind {
        /// The plan in force, which ends with this.
        generation: Generation,
        /// The version that the run goes back to.
        to: Step,
        /// Whether state was lost, two copies differ, or a person ordered it.
        reason: RewindReason,
    },
    /// A change of the job: it starts, is paused, continues, halts, stops, or an ended run is
    /// removed.
    Job(JobChange),
    /// A change of tokens, credentials or the certificate authority.
    Access(AccessChange),
    /// Entries and snapshots are written in a newer format from here on. Format 9 does not have
    /// this entry.
    Format(Format),
}

impl Entry {
    /// Name of the entry's kind, for logs.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Members(_) => "members",
            Self::Adopt(_) => "adopt",
            Self::Ready(_) => "ready",
            Self::Resume { .. } => "resume",
            Self::Seal(_) => "seal",
            Self::Durable { .. } => "durable",
            Self::Keep { .. } => "keep",
            Self::Checkpoint { .. } => "checkpoint",
            Self::Rewind { .. } => "rewind",
            Self::Job(_) => "job",
            Self::Access(_) => "access",
            Self::Format(_) => "format",
        }
    }

    /// Encodes this entry for a log whose format is `agreed`. The entry that raises the format is
    /// written in the format it names: a node that does not read that format stops at this entry.
    #[must_use]
    pub fn encode(&self, agreed: Format) -> Vec<u8> {
        match self {
            Self::Format(to) => codec::encode_in(*to, self),
            Self::Members(_)
            | Self::Adopt(_)
            | Self::Ready(_)
            | Self::Resume { .. }
            | Self::Seal(_)
            | Self::Durable { .. }
            | Self::Keep { .. }
            | Self::Checkpoint { .. }
            | Self::Rewind { .. }
            | Self::Job(_)
            | Self::Access(_) => codec::encode_in(agreed, self),
        }
    }
}
