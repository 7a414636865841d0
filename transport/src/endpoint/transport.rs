//! The handle the node holds.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use bytes::Bytes;
use quinn::{ClientConfig, Endpoint};
use tokio::runtime::Handle;
use tokio::sync::watch;
use zbelastic_identity::{Credentials, PeerIdentity, PeerRole};
use zbelastic_types::NodeId;

use super::bind;
use super::bulk_path::open_bulk;
use super::context::TransportContext;
use super::counters::TransportCounters;
use super::setup::{BindError, TransportSetup};
use super::tuning::QuicConfigs;
use crate::bulk::{
    BulkBody, BulkError, BulkFetch, CheckedChunks, CheckedFetch, ChunkSink, PartialBody,
    UnfinishedFetch, fetch_checked_into, fetch_into, fetch_joined_into,
};
use crate::control::EnqueueOutcome;
use crate::event::{EventQueue, TransportPath};
use crate::frame::{FrameNotQueued, FrameRules, OutgoingFrame, ReceivedFrame};
use crate::request::{RequestError, send_request};

/// Function that is called with every frame that arrived, on the task that received it.
pub type FrameSink = Box<dyn Fn(ReceivedFrame) + Send + Sync>;
/// Function that finds the body that a peer requests by its key. Called on a task; it may look at
/// files, and must not block for long.
pub type BulkSource = Box<dyn Fn(&PeerIdentity, &[u8]) -> Option<Arc<dyn BulkBody>> + Send + Sync>;

/// A cheap handle. All tasks live on the runtime it was bound on, and end when the last handle is
/// dropped or [`Transport::close`] is called.
#[derive(Clone, Debug)]
pub struct Transport {
    shared: Arc<Shared>,
}

/// The state that the handles share. Dropped with the last of them, it closes the transport.
pub(super) struct Shared {
    pub(super) context: Arc<TransportContext>,
    pub(super) address: SocketAddr,
    pub(super) endpoint: Endpoint,
    pub(super) client: watch::Sender<ClientConfig>,
    pub(super) closed: watch::Receiver<bool>,
    /// The runtime that its tasks run on.
    pub(super) runtime: Handle,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.context.desired_peers.send_modify(|desired| desired.closing = true);
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("own", &self.context.own)
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
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
        let (shared, events) = bind::bind(setup).await?;
        Ok((Self { shared: Arc::new(shared) }, events))
    }

    /// The address this process listens at.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.shared.address
    }

    /// Uses a renewed certificate for handshakes from now on. Connections that are there stay.
    ///
    /// # Errors
    ///
    /// They do not make a TLS configuration; the old ones stay in use.
    pub fn set_credentials(&self, credentials: Credentials) -> Result<(), BindError> {
        let configs = QuicConfigs::new(&credentials, &self.shared.context.limits)?;
        self.shared.endpoint.set_server_config(Some(configs.server));
        self.shared.client.send_replace(configs.client);
        Ok(())
    }

    /// Adds a desired peer: dials it at its addresses, again and again with a bounded pause. Called
    /// again it replaces role and addresses.
    pub fn add_peer(&self, node: NodeId, role: PeerRole, addresses: Vec<SocketAddr>) {
        let desired = &self.shared.context.desired_peers;
        desired.send_if_modified(|desired| desired.add(node, role, addresses));
    }

    /// Removes a desired peer, and closes its connection.
    pub fn forget(&self, node: NodeId) {
        self.shared.context.directory.discard_held(node);
        self.shared.context.desired_peers.send_if_modified(|desired| desired.remove(node));
    }

    /// The member was removed: closes its connection at once, and refuses it from now on.
    pub fn ban(&self, node: NodeId) {
        self.shared.context.directory.discard_held(node);
        self.shared.context.desired_peers.send_if_modified(|desired| desired.ban(node));
    }

    /// Retires the versions before this one between members: connections that are there stay, and a
    /// program that is older is refused when it comes, with the reason.
    pub fn retire_versions_before(&self, oldest: u16) {
        self.shared.context.versions.retire_before(oldest);
    }

    /// Closes the connections of people. A person with a trusted certificate can connect again.
    pub fn close_clients(&self) {
        self.shared.context.desired_peers.send_modify(|desired| desired.clients_closed += 1);
    }

    /// Sends a control message: its first byte is a [`crate::ControlKind`]. Never blocks; a message
    /// that does not fit or has no path is dropped and counted.
    pub fn send(&self, to: NodeId, bytes: Bytes) {
        let counters = &self.shared.context.counters;
        let Some(link) = self.shared.context.directory.get(to) else {
            return counters.control_no_path.increment();
        };
        match link.control.put(bytes) {
            EnqueueOutcome::Waits { dropped: 0 } => {}
            EnqueueOutcome::Waits { dropped } => counters.control_queue_full.add(dropped),
            EnqueueOutcome::NotSendable => counters.control_not_sendable.increment(),
        }
    }

    /// The sender of the Tensor lane.
    #[must_use]
    pub fn frame_sender(&self) -> FrameSender {
        let Shared { context, runtime, .. } = &*self.shared;
        FrameSender { context: Arc::clone(context), runtime: runtime.clone() }
    }

    /// Sets which frames peers may send from now on; replaces the rules before.
    pub fn set_frame_rules(&self, rules: FrameRules) {
        self.shared.context.rules.send_replace(Arc::new(rules));
    }

    /// Discards the frames that are held for peers that are not `Up`: the plan that they belong to
    /// has ended.
    pub fn discard_held_frames(&self) {
        self.shared.context.directory.discard_all_held();
    }

    /// Sets where frames go that arrive. Frames that arrive before are dropped and counted.
    pub fn set_frame_sink(&self, sink: FrameSink) {
        self.shared.context.frame_sink.send_replace(Some(Arc::new(sink)));
    }

    /// Sets where bodies of the Bulk lane are found.
    pub fn set_bulk_source(&self, source: BulkSource) {
        self.shared.context.bulk_source.send_replace(Some(Arc::new(source)));
    }

    /// Fetches a body from the nodes that hold it, into a sink.
    ///
    /// # Errors
    ///
    /// No holder could give all of it, or the sink failed.
    pub async fn fetch_bulk_into<S: ChunkSink>(
        &self,
        request: BulkFetch,
        sink: S,
    ) -> Result<S, BulkError> {
        let context = Arc::clone(&self.shared.context);
        fetch_into(request, sink, move |node| open_bulk(Arc::clone(&context), node)).await
    }

    /// Fetches what a body lacks from the nodes that hold it, and from those that join meanwhile, into
    /// its sink.
    ///
    /// # Errors
    ///
    /// No holder could give all of it, or the sink failed. What came is there for the next fetch.
    pub async fn fetch_bulk_joined<S: ChunkSink>(
        &self,
        body: PartialBody<S>,
        holders: watch::Receiver<Vec<NodeId>>,
        progress: Option<Arc<AtomicU64>>,
    ) -> Result<S, UnfinishedFetch<S>> {
        let context = Arc::clone(&self.shared.context);
        let open = move |node| open_bulk(Arc::clone(&context), node);
        fetch_joined_into(body, holders, progress, open).await
    }

    /// Fetches chunks of a body from the nodes that hold it, each compared with what was meant, into
    /// a sink.
    pub async fn fetch_bulk_checked<S: ChunkSink>(
        &self,
        request: BulkFetch,
        chunks: CheckedChunks,
        sink: S,
    ) -> CheckedFetch<S> {
        let context = Arc::clone(&self.shared.context);
        let open = move |node| open_bulk(Arc::clone(&context), node);
        fetch_checked_into(request, chunks, sink, open).await
    }

    /// Sends a request to a peer and waits for its answer. To drop the future is to cancel the
    /// request.
    ///
    /// # Errors
    ///
    /// There is no answer.
    pub async fn request(&self, to: NodeId, bytes: Vec<u8>) -> Result<Vec<u8>, RequestError> {
        let context = &self.shared.context;
        let link = context.directory.get(to).ok_or(RequestError::NoPath)?;
        context.counters.requests_sent.increment();
        send_request(&link.connection, &bytes, context.limits.request_within).await
    }

    /// The round trip to a peer as its QUIC connection estimates it; none if it is not `Up`, or if
    /// its lanes use the sockets of this host.
    #[must_use]
    pub fn round_trip(&self, to: NodeId) -> Option<Duration> {
        let link = self.shared.context.directory.get(to)?;
        match link.path {
            TransportPath::Quic => Some(link.connection.rtt()),
            TransportPath::SameHost => None,
        }
    }

    /// A reading of the counters.
    #[must_use]
    pub fn counters(&self) -> TransportCounters {
        self.shared.context.counters.read()
    }

    /// Closes every connection in order, and waits until the peers could know. It ends even if
    /// they do not answer.
    pub async fn close(&self) {
        self.shared.context.desired_peers.send_modify(|desired| desired.closing = true);
        let mut closed = self.shared.closed.clone();
        // An error means that the runtime ended the tasks; then all is closed as well.
        let _ = closed.wait_for(|closed| *closed).await;
    }
}

/// Sends frames of the Tensor lane, from any thread, with or without a runtime. Cheap to clone.
#[derive(Clone)]
pub struct FrameSender {
    context: Arc<TransportContext>,
    runtime: Handle,
}

impl fmt::Debug for FrameSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrameSender").field("own", &self.context.own).finish_non_exhaustive()
    }
}

impl FrameSender {
    /// Enqueues a frame to a peer. Never blocks. Until the peer is `Up` its frames are held, as many
    /// as its queue has space for: the first of a plan may be sent while its workers still connect.
    #[must_use]
    pub fn send(&self, to: NodeId, frame: OutgoingFrame) -> SendOutcome {
        match self.context.directory.enqueue(to, frame) {
            Ok(()) => SendOutcome::Queued,
            Err(FrameNotQueued::Full(frame)) => SendOutcome::Full(frame),
            Err(FrameNotQueued::Closed(frame)) => SendOutcome::NoPath(frame),
        }
    }

    /// Enqueues a frame once there is space for it in the queue to a peer, or in the one that is held for its
    /// connection. Drops it if `superseded` is ready or becomes so, if the connection ends, or if frames to the peer
    /// are held no more.
    ///
    /// # Panics
    /// On a thread that runs tasks: it blocks.
    pub fn send_blocking(
        &self,
        to: NodeId,
        frame: OutgoingFrame,
        superseded: impl Future<Output = ()>,
    ) {
        let queue = self.context.directory.queue(to);
        self.runtime.block_on(async {
            tokio::select! {
                biased;
                () = superseded => {}
                _queued_or_lost = queue.send(frame) => {}
            }
        });
    }
}

/// The result of sending a frame.
#[derive(Clone, Debug)]
pub enum SendOutcome {
    /// It waits in the queue of the peer or for its connection, or is on its way. Lost if the peer
    /// goes `Down` then.
    Queued,
    /// The connection is ending, or this process may send no frames. The frame is given back.
    NoPath(OutgoingFrame),
    /// The queue of the peer is full. The frame is given back.
    Full(OutgoingFrame),
}
