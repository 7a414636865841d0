//! What every task of a transport shares.

use std::sync::Arc;

use tokio::sync::{Semaphore, mpsc, watch};

use super::hub::LocalHub;
use super::setup::ProcessStart;
use super::tally::Tallies;
use super::transport::{BulkSource, FrameSink};
use super::version::Spoken;
use crate::event::TransportEvent;
use crate::frame::{FrameRules, PartPool};
use crate::identity::PeerIdentity;
use crate::limits::Limits;
use crate::peers::{Directory, Wishes};

/// Of the room for events, one part in this many is kept for what must not be lost.
const EVENTS_KEPT_SHARE: usize = 8;

/// What every task of a transport shares. What changes here is changed by the node's calls and by
/// the keeper of the peers, and by nobody else.
pub(crate) struct Context {
    pub(crate) own: PeerIdentity,
    pub(crate) start: ProcessStart,
    pub(crate) limits: Limits,
    pub(crate) spoken: Spoken,
    pub(crate) tallies: Tallies,
    pub(crate) events: Events,
    pub(crate) directory: Directory,
    pub(crate) wishes: watch::Sender<Wishes>,
    pub(crate) rules: watch::Sender<Arc<FrameRules>>,
    pub(crate) parts: PartPool,
    pub(crate) sink: watch::Sender<Option<Arc<FrameSink>>>,
    pub(crate) source: watch::Sender<Option<Arc<BulkSource>>>,
    pub(crate) requests_open: Arc<Semaphore>,
    pub(crate) hub: Option<LocalHub>,
}

/// The sending end of the events.
pub(crate) struct Events {
    sender: mpsc::Sender<TransportEvent>,
    kept: usize,
}

impl Events {
    /// A queue, and its end for the node.
    pub(crate) fn new(events_max: usize) -> (Self, mpsc::Receiver<TransportEvent>) {
        let (sender, receiver) = mpsc::channel(events_max.max(EVENTS_KEPT_SHARE));
        (Self { sender, kept: events_max / EVENTS_KEPT_SHARE }, receiver)
    }

    /// Enqueues an event that must not be lost; waits for room. Drops it if the node has gone away.
    pub(crate) async fn tell(&self, event: TransportEvent) {
        let _ = self.sender.send(event).await;
    }

    /// Enqueues an event that may be lost or refused, if there is room beside what is kept.
    pub(crate) fn offer(&self, event: TransportEvent) -> bool {
        self.sender.capacity() > self.kept && self.sender.try_send(event).is_ok()
    }
}
