//! Where the other nodes are: from the contacts that were agreed on to requested connections.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use zbelastic_consensus::contact::Contacts;
use zbelastic_consensus::member::Role;
use zbelastic_identity::PeerRole;
use zbelastic_policy::roster::{Roster, RosterChange};
use zbelastic_transport::Transport;
use zbelastic_types::NodeId;

use super::name_resolver::{NameResolver, numbers, system_lookup};

/// The nodes that this one requests connections to.
pub struct PeerDirectory {
    me: NodeId,
    roster: Roster,
    /// Controllers known before anything was agreed.
    initial_controllers: BTreeMap<NodeId, Vec<SocketAddr>>,
    resolver: NameResolver,
    /// Where members are, as far as that was resolved; this node too.
    addresses: BTreeMap<NodeId, (Role, Vec<SocketAddr>)>,
    /// Banned nodes that [`Self::poll_banned`] has not returned yet.
    banned_now: Vec<NodeId>,
}

impl PeerDirectory {
    /// A directory of these controllers only.
    #[must_use]
    pub fn new(me: NodeId, first: BTreeMap<NodeId, Vec<SocketAddr>>) -> Self {
        let roster = Roster::new(me, first.keys().copied().collect());
        let resolver = NameResolver::new(system_lookup());
        Self {
            me,
            roster,
            initial_controllers: first,
            resolver,
            addresses: BTreeMap::new(),
            banned_now: Vec::new(),
        }
    }

    /// The members of the cluster, and which of them are connected.
    #[must_use]
    pub const fn roster(&self) -> &Roster {
        &self.roster
    }

    /// Requests connections to the known controllers.
    pub fn begin(&self, transport: &Transport) {
        for (node, addresses) in &self.initial_controllers {
            if *node != self.me {
                transport.add_peer(*node, PeerRole::Controller, addresses.clone());
            }
        }
    }

    /// Whether these are the contacts that were followed last.
    #[must_use]
    pub fn is_current(&self, index: u64) -> bool {
        self.roster.has_applied(index)
    }

    /// Requests connections to the members, if they changed; without contacts they are those of
    /// before. Yields where controllers are now, if that is to be remembered.
    pub fn follow(
        &mut self,
        transport: &Transport,
        contacts: Option<&Contacts>,
    ) -> Option<BTreeMap<NodeId, Vec<SocketAddr>>> {
        let mut has_changed = false;
        for (node, addresses) in self.resolver.poll() {
            let Some((role, previous)) = self.addresses.get_mut(&node) else { continue };
            if !addresses.is_empty() && *previous != addresses {
                previous.clone_from(&addresses);
                let role = peer_role(*role);
                has_changed = true;
                self.add_peer(transport, node, role, addresses);
            }
        }
        if let Some(contacts) = contacts
            && let Some(change) = self.roster.apply_contacts(contacts)
        {
            has_changed = true;
            self.follow_members(transport, contacts, change);
        }
        if !has_changed {
            return None;
        }
        let is_controller = |(role, found): &(Role, Vec<SocketAddr>)| {
            (*role == Role::Controller && !found.is_empty()).then(|| found.clone())
        };
        let found =
            self.addresses.iter().filter_map(|(node, at)| Some((*node, is_controller(at)?)));
        let found: BTreeMap<_, _> = found.collect();
        (!found.is_empty() && found != self.initial_controllers).then(|| {
            self.initial_controllers.clone_from(&found);
            self.roster.remember(found.keys().copied());
            found
        })
    }

    fn follow_members(&mut self, transport: &Transport, contacts: &Contacts, change: RosterChange) {
        let mut all_addresses = BTreeMap::new();
        for (node, (role, contact)) in &contacts.members {
            let numbers = self.resolver.resolve_node(*node, &contact.addresses);
            // Until its name is resolved again, the last known addresses of the node are used.
            let previous =
                self.addresses.remove(node).map(|(_, previous)| previous).unwrap_or_default();
            let addresses = if numbers.is_empty() { previous } else { numbers };
            self.add_peer(transport, *node, peer_role(*role), addresses.clone());
            all_addresses.insert(*node, (*role, addresses));
        }
        self.addresses = all_addresses;
        change.gone.iter().for_each(|node| transport.forget(*node));
        change.banned.iter().for_each(|node| transport.ban(*node));
        self.banned_now.extend(change.banned);
    }

    /// Nodes with connections that were closed for good since the last call.
    pub fn poll_banned(&mut self) -> Vec<NodeId> {
        std::mem::take(&mut self.banned_now)
    }

    /// Where a node is that named these addresses: names as far as they were resolved by now.
    #[must_use]
    pub fn addresses_of(&self, node: NodeId, addresses: &[String]) -> Vec<SocketAddr> {
        let numbers = numbers(addresses);
        let previous = self.addresses.get(&node).map(|(_, addresses)| addresses.clone());
        if numbers.len() < addresses.len() { previous.unwrap_or(numbers) } else { numbers }
    }

    fn add_peer(&self, transport: &Transport, node: NodeId, role: PeerRole, at: Vec<SocketAddr>) {
        if node != self.me {
            transport.add_peer(node, role, at);
        }
    }

    /// A node is connected.
    pub fn note_up(&mut self, node: NodeId) {
        self.roster.note_up(node);
    }

    /// It is not any more.
    pub fn note_down(&mut self, node: NodeId) {
        self.roster.note_down(node);
    }

    /// The role in which a node is known, as certificates name it; that of a worker if it is not.
    #[must_use]
    pub fn role(&self, node: NodeId) -> PeerRole {
        peer_role(self.roster.role(node))
    }
}

/// A member's role as certificates name it.
#[must_use]
pub const fn peer_role(role: Role) -> PeerRole {
    match role {
        Role::Controller => PeerRole::Controller,
        Role::Worker => PeerRole::Worker,
    }
}
