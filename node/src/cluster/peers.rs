//! Where the other nodes are: from the contacts that were agreed on to connections that are wanted.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use zbelastic_consensus::contact::Contacts;
use zbelastic_consensus::member::Role;
use zbelastic_transport::{PeerRole, Transport};
use zbelastic_types::{LayerId, NodeId};

use super::names::{Names, numbers, system_lookup};

/// The nodes that this one wants to be connected with.
pub struct Peers {
    me: NodeId,
    /// Controllers known before anything was agreed.
    first: BTreeMap<NodeId, Vec<SocketAddr>>,
    names: Names,
    /// Where members are, as far as that was resolved; this node too.
    places: BTreeMap<NodeId, (Role, Vec<SocketAddr>)>,
    up: BTreeSet<NodeId>,
    /// The index of the contacts that were followed; none before the first.
    index: Option<u64>,
    banned: BTreeSet<NodeId>,
    /// Of these, whose ban was not told of yet.
    banned_now: Vec<NodeId>,
}

impl Peers {
    /// Knows these controllers, and nobody else.
    #[must_use]
    pub fn new(me: NodeId, first: BTreeMap<NodeId, Vec<SocketAddr>>) -> Self {
        let names = Names::new(system_lookup());
        Self {
            me,
            first,
            names,
            places: BTreeMap::new(),
            up: BTreeSet::new(),
            index: None,
            banned: BTreeSet::new(),
            banned_now: Vec::new(),
        }
    }

    /// Wants the controllers that are known.
    pub fn begin(&self, transport: &Transport) {
        for (node, addresses) in &self.first {
            if *node != self.me {
                transport.know(*node, PeerRole::Controller, addresses.clone());
            }
        }
    }

    /// Whether these are the contacts that were followed last.
    #[must_use]
    pub fn follows(&self, index: u64) -> bool {
        self.index == Some(index)
    }

    /// Wants the members, if they are others than before; none are those of before.
    /// Yields where controllers are now, if that is to be remembered.
    pub fn follow(
        &mut self,
        transport: &Transport,
        contacts: Option<&Contacts>,
    ) -> Option<BTreeMap<NodeId, Vec<SocketAddr>>> {
        let mut has_changed = false;
        for (node, addresses) in self.names.poll() {
            let Some((role, known)) = self.places.get_mut(&node) else { continue };
            if !addresses.is_empty() && *known != addresses {
                known.clone_from(&addresses);
                let role = peer_role(*role);
                has_changed = true;
                self.know(transport, node, role, addresses);
            }
        }
        if let Some(contacts) = contacts
            && self.index.replace(contacts.index) != Some(contacts.index)
        {
            has_changed = true;
            self.follow_members(transport, contacts);
        }
        if !has_changed {
            return None;
        }
        let is_controller = |(role, found): &(Role, Vec<SocketAddr>)| {
            (*role == Role::Controller && !found.is_empty()).then(|| found.clone())
        };
        let found = self.places.iter().filter_map(|(node, at)| Some((*node, is_controller(at)?)));
        let found: BTreeMap<_, _> = found.collect();
        (!found.is_empty() && found != self.first).then(|| {
            self.first.clone_from(&found);
            found
        })
    }

    fn follow_members(&mut self, transport: &Transport, contacts: &Contacts) {
        let mut places = BTreeMap::new();
        for (node, (role, contact)) in &contacts.members {
            let numbers = self.names.ask(*node, &contact.addresses);
            // Until its name is resolved again, a node is looked for where it was.
            let known = self.places.remove(node).map(|(_, known)| known).unwrap_or_default();
            let addresses = if numbers.is_empty() { known } else { numbers };
            self.know(transport, *node, peer_role(*role), addresses.clone());
            places.insert(*node, (*role, addresses));
        }
        for gone in self.places.keys().filter(|node| **node != self.me) {
            transport.forget(*gone);
        }
        self.places = places;
        for node in &contacts.banned {
            if *node != self.me && self.banned.insert(*node) {
                transport.ban(*node);
                self.banned_now.push(*node);
            }
        }
    }

    /// Nodes whose connections were closed for good since this was asked last.
    pub fn poll_banned(&mut self) -> Vec<NodeId> {
        std::mem::take(&mut self.banned_now)
    }

    /// Where a node is that says so at these addresses: names as far as they were resolved by now.
    #[must_use]
    pub fn places(&self, node: NodeId, addresses: &[String]) -> Vec<SocketAddr> {
        let numbers = numbers(addresses);
        let known = self.places.get(&node).map(|(_, addresses)| addresses.clone());
        if numbers.len() < addresses.len() { known.unwrap_or(numbers) } else { numbers }
    }

    fn know(&self, transport: &Transport, node: NodeId, role: PeerRole, at: Vec<SocketAddr>) {
        if node != self.me {
            transport.know(node, role, at);
        }
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

    /// The role in which a node is known; that of a worker if it is not.
    #[must_use]
    pub fn role(&self, node: NodeId) -> PeerRole {
        let agreed = self.places.get(&node).map(|(role, _)| peer_role(*role));
        let first = self.first.contains_key(&node).then_some(PeerRole::Controller);
        agreed.or(first).unwrap_or(PeerRole::Worker)
    }

    /// Workers that are connected.
    #[must_use]
    pub fn workers_up(&self) -> usize {
        self.up.iter().filter(|node| self.role(**node) == PeerRole::Worker).count()
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
