//! The peers that are there now: where a message to a node is enqueued.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use zbelastic_types::NodeId;

use crate::endpoint::PeerLink;

/// The peers that are there now. Every send looks here, on any thread; the task of a connection
/// inserts it and removes it. The lock guards the map alone and is never held while another one is.
#[derive(Debug, Default)]
pub(crate) struct Directory {
    links: RwLock<BTreeMap<NodeId, Arc<PeerLink>>>,
}

impl Directory {
    pub(crate) fn get(&self, node: NodeId) -> Option<Arc<PeerLink>> {
        self.links.read().unwrap_or_else(PoisonError::into_inner).get(&node).cloned()
    }

    pub(crate) fn insert(&self, link: Arc<PeerLink>) {
        let mut links = self.links.write().unwrap_or_else(PoisonError::into_inner);
        let before = links.insert(link.peer.node, link);
        assert!(before.is_none(), "a connection begins after the one before has ended");
    }

    pub(crate) fn remove(&self, node: NodeId) {
        self.links.write().unwrap_or_else(PoisonError::into_inner).remove(&node);
    }
}
