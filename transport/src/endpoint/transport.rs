//! The handle the node holds.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::mpsc;
use zbelastic_types::NodeId;

use super::counters::Counters;
use super::setup::{BindError, TransportSetup};
use crate::bulk::{BulkBody, BulkError, BulkFetch};
use crate::event::EventQueue;
use crate::frame::{FrameRules, OutgoingFrame, ReceivedFrame};
use crate::identity::{Credentials, PeerIdentity, PeerRole};
use crate::request::RequestError;

/// What is called with every frame that arrived, on the task that received it.
pub type FrameSink = Box<dyn Fn(ReceivedFrame) + Send + Sync>;
/// What finds the body that a peer asks for by its key. Called on a task; it may read files.
pub type BulkSource = Box<dyn Fn(&PeerIdentity, &[u8]) -> Option<Arc<dyn BulkBody>> + Send + Sync>;

/// A cheap handle. All tasks live on the runtime it was bound on, and end when the last handle is
/// dropped or [`Transport::close`] is called.
#[derive(Clone, Debug)]
pub struct Transport {
    address: SocketAddr,
}

impl Transport {
    /// Listens, and gives the handle and the queue of events.
    ///
    /// # Errors
    ///
    /// The address, the credentials or the same-host folder cannot be used.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub async fn bind(setup: TransportSetup) -> Result<(Self, EventQueue), BindError> {
        let (_, receiver) = mpsc::channel(setup.limits.events_max);
        Ok((Self { address: setup.bind }, EventQueue { receiver }))
    }

    /// The address this process listens at.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Uses a renewed certificate for handshakes from now on. Connections that are there stay.
    ///
    /// # Errors
    ///
    /// They do not make a TLS configuration; the old ones stay in use.
    pub fn set_credentials(&self, credentials: Credentials) -> Result<(), BindError> {
        let _ = credentials;
        Ok(())
    }

    /// Wants a peer: dials it at its addresses, again and again with a bounded pause. Called again
    /// it replaces role and addresses.
    pub fn know(&self, node: NodeId, role: PeerRole, addresses: Vec<SocketAddr>) {
        let _ = (node, role, addresses);
    }

    /// Wants a peer no more, and closes what is there.
    pub fn forget(&self, node: NodeId) {
        let _ = node;
    }

    /// The member was removed: closes what is there at once, and refuses it from now on.
    pub fn ban(&self, node: NodeId) {
        let _ = node;
    }

    /// Sends a control message: its first byte is a [`crate::ControlKind`]. Never blocks; what does
    /// not fit or has no road is dropped and counted.
    pub fn send(&self, to: NodeId, bytes: Bytes) {
        let _ = (to, bytes);
    }

    /// The sender of the Tensor lane.
    #[must_use]
    pub const fn frame_sender(&self) -> FrameSender {
        FrameSender {}
    }

    /// Says which frames peers may send from now on; replaces what was said before.
    pub fn expect(&self, rules: FrameRules) {
        let _ = rules;
    }

    /// Says where frames go that arrive. Frames that arrive before are dropped and counted.
    pub fn set_frame_sink(&self, sink: FrameSink) {
        let _ = sink;
    }

    /// Says where bodies of the Bulk lane are found.
    pub fn serve_bulk(&self, source: BulkSource) {
        let _ = source;
    }

    /// Fetches a body from those who hold it.
    ///
    /// # Errors
    ///
    /// No holder could give all of it.
    pub async fn fetch_bulk(&self, fetch: BulkFetch) -> Result<Vec<u8>, BulkError> {
        let _ = fetch;
        Err(BulkError::NoHolders)
    }

    /// Asks a peer and waits for its answer. To drop the future is to cancel the request.
    ///
    /// # Errors
    ///
    /// There is no answer.
    pub async fn request(&self, to: NodeId, bytes: Vec<u8>) -> Result<Vec<u8>, RequestError> {
        let _ = (to, bytes);
        Err(RequestError::NoRoad)
    }

    /// A reading of the counters.
    #[must_use]
    pub fn counters(&self) -> Counters {
        Counters::default()
    }

    /// Closes every connection in order, and waits until the peers could know. Bounded by
    /// [`crate::Limits::handshake_within`].
    pub async fn close(&self) {}
}

/// Sends frames of the Tensor lane, from any thread, with or without a runtime. Cheap to clone.
#[derive(Clone, Debug)]
pub struct FrameSender {}

impl FrameSender {
    /// Gives a frame to the queue of a peer. Never blocks.
    #[must_use]
    pub fn send(&self, to: NodeId, frame: OutgoingFrame) -> SendOutcome {
        let _ = to;
        SendOutcome::NoRoad(frame)
    }
}

/// What became of a frame.
#[derive(Clone, Debug)]
pub enum SendOutcome {
    /// It waits in the queue of the peer, or is on its way.
    Queued,
    /// The peer is not there. The frame is given back.
    NoRoad(OutgoingFrame),
    /// The queue of the peer is full. The frame is given back.
    Full(OutgoingFrame),
}
