//! Bytes between nodes that authenticate each other.
//!
//! One process has one [`Transport`]: a UDP socket that speaks QUIC with TLS on both sides, and
//! Unix sockets to processes of the same host. It promises that a peer has the identity in its
//! certificate, that every queue and length is bounded, and that messages of peers were checked
//! against their role before the node sees it. It carries four lanes:
//!
//! - *Control*: messages that may be lost; the oldest are dropped first.
//! - *requests*: one request, one answer.
//! - *Tensor*: frames whose lengths are known before they come.
//! - *Bulk*: long bodies from several holders, in chunks that are verified.
//!
//! It does not interpret the bytes, decides nothing about the cluster, and prints nothing:
//! each occurrence is a [`TransportEvent`] or a number in [`TransportCounters`].

pub mod bulk;
mod close_code;
pub mod control;
mod dial_problem;
mod endpoint;
mod event;
pub mod frame;
mod limits;
pub mod local;
mod peers;
mod request;
mod version;

pub use bulk::{
    BulkBody, BulkError, BulkFetch, CheckedChunks, CheckedFetch, ChunkCheck, ChunkSink, MemorySink,
    PartialBody, UnfinishedFetch,
};
pub use close_code::CloseCode;
pub use dial_problem::DialProblem;
pub use endpoint::{
    AcceptCounters, AdminClient, BindError, BulkSource, ConnectAttempt, ConnectError,
    ControlCounters, FrameSender, FrameSink, HelloFault, LaneCounters, PeerHello, RequestCounters,
    SendOutcome, Transport, TransportCounters, TransportSetup,
};
pub use event::{
    DownReason, EventQueue, PeerViolation, RequestReply, TransportEvent, TransportPath,
};
pub use frame::{
    FrameBody, FrameClass, FramePart, FrameRejection, FrameRules, OutgoingFrame, ReceivedFrame,
    Urgency,
};
pub use limits::{
    ANSWER_BYTES_MAX, CONTROL_FRAME_BYTES_MAX, CONTROL_MESSAGE_BYTES_MAX, CONTROL_PIECE_BYTES_MAX,
    PEER_ADDRESSES_MAX, REQUEST_BYTES_MAX, TransportLimits,
};
pub use peers::{ControlKind, MessageKind, ProcessStart, may_send};
pub use request::RequestError;
pub use version::{VERSIONS, VersionRange};
