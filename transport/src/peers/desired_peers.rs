//! The peers that the node desires. Its calls change them, the supervisor applies them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use zbelastic_identity::PeerRole;
use zbelastic_types::NodeId;

use crate::limits::PEER_ADDRESSES_MAX;

/// The desired state of the peers. As large as the cluster's list of members, which the log bounds.
#[derive(Clone, Debug, Default)]
pub(crate) struct DesiredPeers {
    /// The peers that should be there, and where they may be found.
    pub(crate) peers: BTreeMap<NodeId, DesiredPeer>,
    /// The peers that must never be there again.
    pub(crate) banned: BTreeSet<NodeId>,
    /// How often the connections of people were to end.
    pub(crate) clients_closed: u64,
    /// The transport should close.
    pub(crate) closing: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DesiredPeer {
    pub(crate) role: PeerRole,
    pub(crate) addresses: Vec<SocketAddr>,
}

impl DesiredPeers {
    /// Adds a desired peer. False if that changes nothing.
    pub(crate) fn add(
        &mut self,
        node: NodeId,
        role: PeerRole,
        mut addresses: Vec<SocketAddr>,
    ) -> bool {
        addresses.truncate(PEER_ADDRESSES_MAX);
        let peer = DesiredPeer { role, addresses };
        if self.banned.contains(&node) || self.peers.get(&node) == Some(&peer) {
            return false;
        }
        self.peers.insert(node, peer);
        true
    }

    pub(crate) fn remove(&mut self, node: NodeId) -> bool {
        self.peers.remove(&node).is_some()
    }

    pub(crate) fn ban(&mut self, node: NodeId) -> bool {
        self.peers.remove(&node);
        self.banned.insert(node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_banned_peer_is_never_desired_again_and_addresses_are_bounded() {
        let mut desired = DesiredPeers::default();
        let address: SocketAddr = "127.0.0.1:1".parse().unwrap();
        let many = vec![address; PEER_ADDRESSES_MAX + 1];
        assert!(desired.add(NodeId(2), PeerRole::Worker, many.clone()));
        assert_eq!(desired.peers[&NodeId(2)].addresses.len(), PEER_ADDRESSES_MAX);
        assert!(!desired.add(NodeId(2), PeerRole::Worker, many.clone()));
        assert!(desired.ban(NodeId(2)));
        assert!(!desired.add(NodeId(2), PeerRole::Worker, many));
        assert!(desired.peers.is_empty());
    }
}
