//! The state that every task of a transport shares.

use std::sync::Arc;

use tokio::sync::{Semaphore, mpsc, watch};
use zbelastic_identity::PeerIdentity;

use super::hub::LocalHub;
use super::live_counters::LiveCounters;
use super::transport::{BulkSource, FrameSink};
use crate::event::TransportEvent;
use crate::frame::{FrameRules, PartPool};
use crate::limits::TransportLimits;
use crate::peers::{DesiredPeers, Directory, ProcessStart};
use crate::version::SpokenVersions;

/// Of the space for events, one part in this many is kept for events that must not be lost.
const EVENTS_RESERVED_SHARE: usize = 8;

/// The state that every task of a transport shares. It is changed by the node's calls and by the
/// supervisor of the peers alone.
pub(crate) struct TransportContext {
    pub(crate) own: PeerIdentity,
    pub(crate) start: ProcessStart,
    pub(crate) limits: TransportLimits,
    pub(crate) versions: SpokenVersions,
    pub(crate) counters: LiveCounters,
    pub(crate) events: EventSender,
    pub(crate) directory: Directory,
    pub(crate) desired_peers: watch::Sender<DesiredPeers>,
    pub(crate) rules: watch::Sender<Arc<FrameRules>>,
    pub(crate) part_pool: PartPool,
    pub(crate) frame_sink: watch::Sender<Option<Arc<FrameSink>>>,
    pub(crate) bulk_source: watch::Sender<Option<Arc<BulkSource>>>,
    pub(crate) requests_open: Arc<Semaphore>,
    pub(crate) local_hub: Option<LocalHub>,
}

/// The sending end of the events.
pub(crate) struct EventSender {
    sender: mpsc::Sender<TransportEvent>,
    reserved: usize,
}

impl EventSender {
    /// A queue, and its end for the node.
    pub(crate) fn new(events_max: usize) -> (Self, mpsc::Receiver<TransportEvent>) {
        let (sender, receiver) = mpsc::channel(events_max.max(EVENTS_RESERVED_SHARE));
        (Self { sender, reserved: events_max / EVENTS_RESERVED_SHARE }, receiver)
    }

    /// Enqueues an event that must not be lost; waits for space. Drops it if the node has gone
    /// away.
    pub(crate) async fn send(&self, event: TransportEvent) {
        let _ = self.sender.send(event).await;
    }

    /// Enqueues an event that may be lost or refused, if there is space beside the reserved part.
    pub(crate) fn try_send(&self, event: TransportEvent) -> bool {
        self.sender.capacity() > self.reserved && self.sender.try_send(event).is_ok()
    }
}
