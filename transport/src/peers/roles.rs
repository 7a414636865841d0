//! Which role may send what: one function, exhaustive.

use zbelastic_identity::PeerRole;

/// The kinds of things a member can send, as far as the transport distinguishes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MessageKind {
    /// A control message of the given kind.
    Control(ControlKind),
    /// A frame of the Tensor lane.
    Tensor,
    /// A request for a body of the Bulk lane.
    Bulk,
    /// A request. Whether it is allowed, the node decides by role and content.
    Request,
}

/// The kind of a control message, which its first byte encodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ControlKind {
    /// Raft messages, between controllers.
    Raft,
    /// Between the leader and a member.
    Member,
    /// About pieces of checkpoints.
    Blob,
}

impl ControlKind {
    /// The byte that stands for the kind.
    #[must_use]
    pub const fn byte(self) -> u8 {
        match self {
            Self::Raft => 0,
            Self::Member => 1,
            Self::Blob => 2,
        }
    }

    /// The kind of a first byte, if this program knows it.
    #[must_use]
    pub const fn of(byte: u8) -> Option<Self> {
        match byte {
            0 => Some(Self::Raft),
            1 => Some(Self::Member),
            2 => Some(Self::Blob),
            _ => None,
        }
    }
}

/// Whether a peer of that role may send that kind.
#[must_use]
pub const fn may_send(role: PeerRole, kind: MessageKind) -> bool {
    match (role, kind) {
        (PeerRole::Controller, MessageKind::Control(ControlKind::Raft))
        | (
            PeerRole::Controller | PeerRole::Worker,
            MessageKind::Control(ControlKind::Member | ControlKind::Blob) | MessageKind::Bulk,
        )
        | (PeerRole::Worker, MessageKind::Tensor)
        | (
            PeerRole::Admin
            | PeerRole::Controller
            | PeerRole::Worker
            | PeerRole::Viewer
            | PeerRole::Operator,
            MessageKind::Request,
        ) => true,
        (PeerRole::Worker, MessageKind::Control(ControlKind::Raft))
        | (PeerRole::Controller, MessageKind::Tensor)
        | (
            PeerRole::Admin | PeerRole::Viewer | PeerRole::Operator,
            MessageKind::Control(ControlKind::Raft | ControlKind::Member | ControlKind::Blob)
            | MessageKind::Tensor
            | MessageKind::Bulk,
        ) => false,
    }
}
