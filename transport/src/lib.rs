//! Bytes between nodes that know each other.
//!
//! One process has one [`Transport`]: a UDP socket that speaks QUIC with TLS on both sides, and
//! Unix sockets to processes of the same host. It promises that a peer is who its certificate says,
//! that every queue and length is bounded, and that what peers send was checked against their role
//! before the node sees it. It carries four lanes:
//!
//! - *Control*: messages that may be lost; the oldest are dropped first.
//! - *requests*: one question, one answer.
//! - *Tensor*: frames whose lengths are known before they come.
//! - *Bulk*: long bodies from several holders, in chunks that are verified.
//!
//! It does not know what the bytes mean, decides nothing about the cluster, and prints nothing:
//! what happens is a [`TransportEvent`] or a number in [`Counters`].

pub mod bulk;
pub mod control;
mod endpoint;
mod event;
pub mod frame;
pub mod identity;
mod limits;
pub mod local;
mod peers;
mod request;

pub use bulk::{BulkBody, BulkError, BulkFetch, ChunkSink};
pub use endpoint::{
    AdminClient, BindError, BulkSource, CloseCode, ConnectAttempt, ConnectError, ControlCounters,
    Counters, DialProblem, DoorCounters, FrameSender, FrameSink, Hello, HelloFault, LaneCounters,
    ProcessStart, RequestCounters, SendOutcome, Transport, TransportSetup, VERSIONS, VersionRange,
};
pub use event::{DownReason, EventQueue, Road, TransportEvent, Violation};
pub use frame::{
    FrameBody, FrameClass, FramePart, FrameRefusal, FrameRules, OutgoingFrame, ReceivedFrame,
    Urgency,
};
pub use identity::{Credentials, JoinAttempt, JoinReply, PeerIdentity, PeerRole};
pub use limits::{
    ANSWER_BYTES_MAX, CONTROL_FRAME_BYTES_MAX, CONTROL_MESSAGE_BYTES_MAX, CONTROL_PIECE_BYTES_MAX,
    Limits, PEER_ADDRESSES_MAX, REQUEST_BYTES_MAX,
};
pub use peers::{ControlKind, MessageKind, may};
pub use request::{Reply, RequestError};
