//! The events that the transport reports to the node, through one bounded queue.
//!
//! Events of peers, requests and joins are never dropped in silence: an event of a peer waits for
//! space, a request or a join without space is answered as busy. Control messages may be dropped,
//! and are counted: the protocols above resend.

use std::net::SocketAddr;

use bytes::Bytes;
use thiserror::Error;
use tokio::sync::{mpsc, oneshot};
use zbelastic_identity::{JoinAttempt, JoinReply, PeerIdentity};
use zbelastic_types::NodeId;

use crate::close_code::CloseCode;
use crate::dial_problem::DialProblem;
use crate::frame::FrameRejection;
use crate::version::VersionRange;

/// One thing that happened on the wire.
#[derive(Debug)]
pub enum TransportEvent {
    /// A peer is there, and every lane to it works.
    Up {
        /// Identity of the peer, by its certificate.
        peer: PeerIdentity,
        /// The boot number that the process sent in its hello.
        boot: u64,
        /// The protocol versions that it supports, as it sent them in its hello.
        versions: VersionRange,
        /// The path that the lanes to it use.
        path: TransportPath,
    },
    /// A peer that was up is not there any more. Messages on the way may be lost. When another
    /// connection replaced it, an `Up` follows at once.
    Down {
        /// Identity of the peer.
        peer: PeerIdentity,
        /// Why the peer is not there any more.
        reason: DownReason,
    },
    /// A control message. Its first byte was checked against the sender's role.
    Control {
        /// Identity of the sender.
        from: PeerIdentity,
        /// The whole message, first byte included.
        bytes: Bytes,
    },
    /// A request that waits for an answer.
    Request {
        /// Identity of the sender.
        from: PeerIdentity,
        /// Bytes of the request, without its length.
        bytes: Bytes,
        /// Where the answer goes. To drop it is to leave the request unanswered.
        reply: RequestReply,
    },
    /// A joiner with a token requests to become a member, or a member requests another certificate
    /// after its own ended.
    Join {
        /// The attempt: token, key, name and address of the joiner.
        attempt: JoinAttempt,
        /// Where the answer goes.
        reply: JoinReply,
    },
    /// A desired peer cannot be reached. Reported again only when the problem changes or it was up
    /// meanwhile.
    DialFailed {
        /// Node id of the desired peer.
        node: NodeId,
        /// The address tried last.
        address: SocketAddr,
        /// The reason why the dial failed.
        problem: DialProblem,
    },
    /// A peer has met another living process with our identity, one that started later: a data
    /// folder was copied, or an old process still runs. This process should stop.
    DuplicateIdentity {
        /// Node id of the peer that refused or closed our connection for this reason.
        reported_by: NodeId,
    },
    /// Unauthenticated connection attempts that failed, counted since the last such event. At most
    /// one event in [`crate::TransportLimits::strangers_reported_every`].
    Strangers {
        /// Number of attempts that failed.
        count: u64,
        /// Address of the last attempt that failed.
        last: SocketAddr,
        /// The error of the last attempt, as text.
        reason: String,
    },
}

/// Where the answer of a request goes. If it is dropped without one, the requester gets
/// [`RequestError::Unanswered`](crate::RequestError::Unanswered).
#[derive(Debug)]
pub struct RequestReply {
    pub(crate) answer: oneshot::Sender<Vec<u8>>,
}

impl RequestReply {
    /// Sends the answer. False if the requester has gone away meanwhile.
    pub fn answer(self, bytes: Vec<u8>) -> bool {
        self.answer.send(bytes).is_ok()
    }

    /// Waits until the requester has gone away.
    pub async fn cancelled(&mut self) {
        self.answer.closed().await;
    }

    /// Whether the requester has gone away: an answer would not be read.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.answer.is_closed()
    }
}

/// The path of the bytes to and from a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TransportPath {
    /// QUIC over UDP, between any two hosts.
    Quic,
    /// Unix sockets, between processes of one host.
    SameHost,
}

/// A violation of the protocol by a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PeerViolation {
    /// It announced a frame that its rule does not allow.
    #[error(transparent)]
    Frame(#[from] FrameRejection),
    /// Something else, which the code names that the connection is closed with.
    #[error("{0}")]
    Other(CloseCode),
}

impl PeerViolation {
    /// The code that the connection is closed with.
    #[must_use]
    pub const fn code(self) -> CloseCode {
        match self {
            Self::Frame(_) => CloseCode::Length,
            Self::Other(code) => code,
        }
    }
}

/// Why a peer is not there any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DownReason {
    /// It closed in order.
    Left,
    /// Its process ended without closing the connection: its end of a same-host socket is gone.
    ProcessEnded,
    /// It was silent for too long.
    Silent,
    /// Its address answers, but its process has forgotten the connection: it started again.
    Reset,
    /// A newer connection of the same peer replaced it.
    Replaced,
    /// The node removed it from its desired peers: [`crate::Transport::forget`].
    Forgotten,
    /// The node refuses it from now on: [`crate::Transport::ban`].
    Banned,
    /// It closed the connection for a reason of its own.
    ClosedByPeer(CloseCode),
    /// We closed the connection because of a message or frame that it sent.
    Violation(PeerViolation),
    /// The connection broke below us.
    Broken,
    /// This process closes its transport.
    Closing,
}

/// The receiving end of the events. One owner, which receives them in order.
#[derive(Debug)]
pub struct EventQueue {
    pub(crate) receiver: mpsc::Receiver<TransportEvent>,
}

impl EventQueue {
    /// The next event; `None` after the transport has closed and all events were received.
    pub async fn next(&mut self) -> Option<TransportEvent> {
        self.receiver.recv().await
    }

    /// The next event if one is there.
    pub fn try_next(&mut self) -> Option<TransportEvent> {
        self.receiver.try_recv().ok()
    }
}
