//! The peers that are there now: where a message to a node is enqueued. Frames to a peer without a
//! connection are held for the one that it will have.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockWriteGuard};

use zbelastic_types::NodeId;

use super::peer_link::PeerLink;
use crate::frame::{FrameNotQueued, FrameOutlet, FrameQueue, OutgoingFrame, frame_queue};

/// The peers that are there now. Every send looks here, on any thread; the task of a connection
/// inserts it and removes it. The lock guards the maps alone and is never held while another one is.
#[derive(Debug)]
pub(crate) struct Directory {
    peers: RwLock<Peers>,
    /// Frames of one urgency that wait for one peer.
    frames_max: usize,
}

#[derive(Debug, Default)]
struct Peers {
    links: BTreeMap<NodeId, Arc<PeerLink>>,
    /// Queues to peers that are not there, which their connections begin with. As many as a plan has
    /// receivers: a new plan discards them.
    held: BTreeMap<NodeId, (FrameQueue, FrameOutlet)>,
}

impl Directory {
    pub(crate) fn new(frames_max: usize) -> Self {
        Self { peers: RwLock::default(), frames_max }
    }

    pub(crate) fn get(&self, node: NodeId) -> Option<Arc<PeerLink>> {
        self.peers.read().unwrap_or_else(PoisonError::into_inner).links.get(&node).cloned()
    }

    /// Inserts the link that `make` makes around the queue of its frames, in which those that were
    /// held wait.
    pub(crate) fn insert(
        &self,
        node: NodeId,
        make: impl FnOnce(FrameQueue) -> PeerLink,
    ) -> (Arc<PeerLink>, FrameOutlet) {
        let mut peers = self.write();
        let held = peers.held.remove(&node);
        let (queue, outlet) = held.unwrap_or_else(|| frame_queue(self.frames_max));
        let link = Arc::new(make(queue));
        let before = peers.links.insert(node, Arc::clone(&link));
        assert!(before.is_none(), "a connection begins after the one before has ended");
        (link, outlet)
    }

    pub(crate) fn remove(&self, node: NodeId) {
        self.write().links.remove(&node);
    }

    /// Enqueues a frame to a peer, or holds it for the connection that the peer will have.
    ///
    /// # Errors
    /// If there is no space.
    pub(crate) fn enqueue(&self, node: NodeId, frame: OutgoingFrame) -> Result<(), FrameNotQueued> {
        match self.get(node) {
            Some(link) => link.frames.try_send(frame),
            None => self.queue(node).try_send(frame),
        }
    }

    /// The queue of frames to a peer, or the one that is held for its connection.
    pub(crate) fn queue(&self, node: NodeId) -> FrameQueue {
        if let Some(link) = self.get(node) {
            return link.frames.clone();
        }
        let mut peers = self.write();
        if let Some(link) = peers.links.get(&node) {
            return link.frames.clone();
        }
        let held = peers.held.entry(node).or_insert_with(|| frame_queue(self.frames_max));
        held.0.clone()
    }

    /// Discards the frames that are held for a peer that is not expected any more.
    pub(crate) fn discard_held(&self, node: NodeId) {
        // Their memory is freed behind the lock.
        let _held = self.write().held.remove(&node);
    }

    /// Discards all that are held: a plan ended, and nobody waits for its frames.
    pub(crate) fn discard_all_held(&self) {
        let _held = std::mem::take(&mut self.write().held);
    }

    fn write(&self) -> RwLockWriteGuard<'_, Peers> {
        self.peers.write().unwrap_or_else(PoisonError::into_inner)
    }
}
