//! Members of the cluster: nodes, their lives and why they are lost.

use std::fmt;

use serde::{Deserialize, Serialize};
use zbelastic_types::{Bytes, Incarnation, NodeId};

use crate::class::DeviceClass;
use crate::contact::Contact;
use crate::tick::Ticks;

/// Members there may be, lost ones included: all that a plan can have stages for, as many spare
/// ones, and twice as many that were lost and may come back.
pub const MEMBERS_MAX: usize = 1024;

/// A node in one of its lives. Work that an earlier life left under way is not this one's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Holder {
    /// Number of the node in the cluster.
    pub node: NodeId,
    /// Number of its life: the index of the entry that admitted it, or 0 for the first controllers.
    pub incarnation: Incarnation,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {} ({})", self.node, self.incarnation)
    }
}

/// The purpose of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// Votes on the log.
    Controller,
    /// Holds layers and runs a stage.
    Worker,
}

/// Memory, speed and device class of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resources {
    /// Memory for training, in bytes.
    pub memory: Bytes,
    /// Its speed in thousandths of a reference device's.
    pub speed_permille: u32,
    /// The device that it computes on: bits differ between classes.
    pub class: DeviceClass,
}

impl Resources {
    /// The resources of a controller: it runs no stage.
    pub const NONE: Self =
        Self { memory: Bytes(0), speed_permille: 0, class: DeviceClass::Processors };
}

/// Why a member is not one any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LossReason {
    /// Its connection closed.
    Closed,
    /// No heartbeat of it was received for so long.
    Silent {
        /// Ticks without a heartbeat.
        ticks: u32,
    },
    /// Its heartbeats arrive, but its operation lasts longer than the plan allows.
    OpOverdue {
        /// Ticks the operation has lasted so far.
        ticks: u32,
        /// Ticks that the plan allows an operation.
        ticks_max: u32,
    },
    /// Its heartbeats arrive, but it made no progress with its awaited answer (rule R10).
    NoProgress {
        /// Ticks since its last progress.
        ticks: u32,
    },
    /// Its process was started again, and the incarnation before is lost.
    Superseded,
    /// It went after it announced that it would.
    Drained,
    /// Its numbers contradicted those of several others.
    Untrusted {
        /// Number of nodes that contradicted it.
        partners: u32,
    },
    /// A person ordered its removal.
    Removed,
    /// Its memory did not hold the layers that its plan gave it.
    OutOfMemory,
}

impl LossReason {
    /// Whether a node that is lost for this reason is not admitted again.
    #[must_use]
    pub const fn is_for_good(self) -> bool {
        match self {
            Self::Untrusted { .. } => true,
            Self::Closed
            | Self::Silent { .. }
            | Self::OpOverdue { .. }
            | Self::NoProgress { .. }
            | Self::Superseded
            | Self::Drained
            | Self::Removed
            | Self::OutOfMemory => false,
        }
    }
}

impl fmt::Display for LossReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => write!(f, "connection closed"),
            // How long it was silent stands beside it, as the time in which the loss was detected.
            Self::Silent { .. } => write!(f, "no heartbeat"),
            Self::OpOverdue { ticks, ticks_max } => {
                let most = Ticks(*ticks_max);
                write!(f, "an operation took {}, {most} at most by the plan", Ticks(*ticks))
            }
            Self::NoProgress { ticks } => {
                write!(f, "no progress for {} with an answer due", Ticks(*ticks))
            }
            Self::Superseded => write!(f, "its process was started again"),
            Self::Drained => write!(f, "drained"),
            Self::Untrusted { partners } => write!(f, "contradicted by {partners} others"),
            Self::Removed => write!(f, "removed by order"),
            Self::OutOfMemory => write!(f, "its memory did not hold its stage"),
        }
    }
}

/// Numbers between those of two starts of a process: each life that is fenced off takes the next.
pub const BOOTS_PER_START: u64 = 1 << 20;

/// Why the process of a worker is not admitted, however often it requests that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AdmissionRefusal {
    /// A life of this process was drained. Another start of it is admitted.
    Drained,
    /// Its node has no credential as a worker: it was removed, or was ephemeral and is forgotten.
    NoCredential,
}

/// A change of one member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MemberChange {
    /// A node is admitted; the index of the entry becomes its incarnation.
    Admit {
        /// The node that is admitted.
        node: NodeId,
        /// Grows with each start of the node, so that a late request of an earlier start is known.
        boot: u64,
        /// Controller or worker, as the node requested.
        role: Role,
        /// Memory, speed and device class of the node.
        resources: Resources,
        /// Name, addresses and place of the node.
        contact: Contact,
    },
    /// It is not counted on any more.
    Lost {
        /// The member that is lost, in its current life.
        holder: Holder,
        /// Why it is not counted on any more.
        reason: LossReason,
    },
    /// It is about to go: plans do without it as soon as they can.
    Drain {
        /// The member that is about to go.
        holder: Holder,
    },
    /// A member is reached elsewhere.
    Moved {
        /// The member with a changed contact.
        holder: Holder,
        /// Where it is reached now.
        contact: Contact,
    },
}

/// Whether a member is counted on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MembershipStatus {
    /// The member is counted on.
    Present,
    /// The member is counted on, and about to go.
    Draining,
    /// The member is not counted on any more.
    Lost(LossReason),
}

/// A node that was admitted to the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Number of its life: the index of the entry that admitted it, or 0 for the first controllers.
    pub incarnation: Incarnation,
    /// The start it was admitted with.
    pub boot: u64,
    /// Controller or worker.
    pub role: Role,
    /// Memory, speed and device class of the node.
    pub resources: Resources,
    /// Name, addresses and place of the node.
    pub contact: Contact,
    /// Whether it is present, about to go, or lost.
    pub status: MembershipStatus,
}

impl Member {
    /// Whether it is counted on still.
    #[must_use]
    pub const fn is_live(&self) -> bool {
        match self.status {
            MembershipStatus::Present | MembershipStatus::Draining => true,
            MembershipStatus::Lost(_) => false,
        }
    }

    /// Whether it was drained in a life of the process that has this start.
    #[must_use]
    pub const fn was_drained_in(&self, boot: u64) -> bool {
        let is_same_start = self.boot / BOOTS_PER_START == boot / BOOTS_PER_START;
        matches!(self.status, MembershipStatus::Lost(LossReason::Drained)) && is_same_start
    }
}
