//! Where the other nodes are: from the contacts that were agreed on to connections that are wanted.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, ToSocketAddrs};

use zbelastic_consensus::contact::Contacts;
use zbelastic_consensus::member::Role;
use zbelastic_transport::{PeerRole, Transport};
use zbelastic_types::{LayerId, NodeId};

/// The nodes that this one wants to be connected with.
#[derive(Debug)]
pub struct Peers {
    me: NodeId,
    /// Controllers known before anything was agreed.
    first: BTreeMap<NodeId, Vec<SocketAddr>>,
    wanted: BTreeSet<NodeId>,
    up: BTreeSet<NodeId>,
    /// The index of the contacts that were followed.
    index: u64,
}

impl Peers {
    /// Knows these controllers, and nobody else.
    #[must_use]
    pub fn new(me: NodeId, first: BTreeMap<NodeId, Vec<SocketAddr>>) -> Self {
        Self { me, first, wanted: BTreeSet::new(), up: BTreeSet::new(), index: 0 }
    }

    /// Wants the controllers that are known.
    pub fn begin(&self, transport: &Transport) {
        for (node, addresses) in &self.first {
            if *node != self.me {
                transport.know(*node, PeerRole::Controller, addresses.clone());
            }
        }
    }

    /// Wants the members, if they are others than before.
    /// Yields where controllers are now, if that is to be remembered.
    pub fn follow(
        &mut self,
        transport: &Transport,
        contacts: &Contacts,
    ) -> Option<BTreeMap<NodeId, Vec<SocketAddr>>> {
        if contacts.index == self.index {
            return None;
        }
        self.index = contacts.index;
        let mut wanted = BTreeSet::new();
        for (node, (role, contact)) in &contacts.members {
            if *node == self.me {
                continue;
            }
            wanted.insert(*node);
            transport.know(*node, peer_role(*role), resolve(&contact.addresses));
        }
        for gone in self.wanted.difference(&wanted) {
            transport.forget(*gone);
        }
        self.wanted = wanted;
        let members = contacts.members.iter();
        let controllers = members.filter(|(_, (role, _))| *role == Role::Controller);
        let found = controllers.map(|(node, (_, contact))| (*node, resolve(&contact.addresses)));
        let found: BTreeMap<_, _> = found.collect();
        (!found.is_empty() && found != self.first).then(|| {
            self.first.clone_from(&found);
            found
        })
    }

    /// A node is connected.
    pub fn note_up(&mut self, node: NodeId) {
        self.up.insert(node);
    }

    /// It is not any more.
    pub fn note_down(&mut self, node: NodeId) {
        self.up.remove(&node);
    }

    /// Whether a node is connected.
    #[must_use]
    pub fn is_up(&self, node: NodeId) -> bool {
        self.up.contains(&node)
    }

    /// Whether a controller is connected.
    #[must_use]
    pub fn hears_controller(&self) -> bool {
        self.first.keys().any(|node| self.is_up(*node))
    }

    /// Whoever may have a text or a piece: controllers first, those who are connected first.
    #[must_use]
    pub fn holders(&self, contacts: &Contacts) -> Vec<NodeId> {
        let known = contacts.members.iter().map(|(node, (role, _))| (*node, *role));
        let first = self.first.keys().map(|node| (*node, Role::Controller));
        let all: BTreeMap<NodeId, Role> = first.chain(known).collect();
        let mut holders: Vec<_> = all.into_iter().filter(|(node, _)| *node != self.me).collect();
        holders.sort_by_key(|(node, role)| (!self.is_up(*node), *role == Role::Worker, *node));
        holders.into_iter().map(|(node, _)| node).collect()
    }

    /// Whoever may keep a piece of a layer too, the best first: controllers, as they are not
    /// preempted, then workers; layers are spread over them.
    #[must_use]
    pub fn keepers(&self, contacts: &Contacts, layer: LayerId) -> Vec<NodeId> {
        let of_role = |wanted: Role| {
            let members = contacts.members.iter().filter(move |(_, (role, _))| *role == wanted);
            let nodes = members.map(|(node, _)| *node);
            let mut nodes: Vec<_> =
                nodes.filter(|node| *node != self.me && self.is_up(*node)).collect();
            if !nodes.is_empty() {
                let first = layer.index() % nodes.len();
                nodes.rotate_left(first);
            }
            nodes
        };
        let mut keepers = of_role(Role::Controller);
        keepers.extend(of_role(Role::Worker));
        keepers
    }
}

/// A member's role as certificates tell it.
#[must_use]
pub const fn peer_role(role: Role) -> PeerRole {
    match role {
        Role::Controller => PeerRole::Controller,
        Role::Worker => PeerRole::Worker,
    }
}

/// Addresses as a socket takes them; a name that does not resolve now is left out.
#[must_use]
pub fn resolve(addresses: &[String]) -> Vec<SocketAddr> {
    let all = addresses.iter().filter_map(|address| address.to_socket_addrs().ok());
    all.flatten().collect()
}
