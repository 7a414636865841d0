//! Where the other nodes are: from the contacts that were agreed on to requested connections.

use std::net::SocketAddr;

use zbelastic_consensus::contacts::Contacts;
use zbelastic_consensus::member::Role;
use zbelastic_identity::PeerRole;
use zbelastic_machine::name_resolver::{NameResolver, system_lookup};
use zbelastic_policy::member_addresses::{ControllerAddresses, MemberAddresses, MemberSockets};
use zbelastic_policy::roster::Roster;
use zbelastic_transport::Transport;
use zbelastic_types::NodeId;

/// The nodes that this one requests connections to.
pub struct PeerDirectory {
    me: NodeId,
    roster: Roster,
    /// Where controllers are, as that was remembered last.
    known: ControllerAddresses,
    members: MemberAddresses<NameResolver>,
    /// Banned nodes that [`Self::poll_banned`] has not returned yet.
    banned_now: Vec<NodeId>,
}

impl PeerDirectory {
    /// A directory of these controllers only.
    #[must_use]
    pub fn new(me: NodeId, known: ControllerAddresses) -> Self {
        let roster = Roster::new(me, known.sockets.keys().copied().collect());
        let members = MemberAddresses::new(NameResolver::new(system_lookup()), &known);
        Self { me, roster, known, members, banned_now: Vec::new() }
    }

    /// The members of the cluster, and which of them are connected.
    #[must_use]
    pub const fn roster(&self) -> &Roster {
        &self.roster
    }

    /// Requests connections to the known controllers.
    pub fn begin(&self, transport: &Transport) {
        for (node, addresses) in &self.known.sockets {
            self.add_peer(transport, (*node, Role::Controller, addresses.clone()));
        }
    }

    /// Whether these are the contacts that were followed last.
    #[must_use]
    pub fn is_current(&self, index: u64) -> bool {
        self.roster.has_applied(index)
    }

    /// A tick passes. Requests connections to the members, if they changed or are elsewhere; without
    /// contacts they are those of before. Yields where controllers are now, if that is to be
    /// remembered.
    pub fn follow(
        &mut self,
        transport: &Transport,
        contacts: Option<&Contacts>,
    ) -> Option<ControllerAddresses> {
        let me = self.me;
        let roster = &self.roster;
        let mut moved = self.members.handle_tick(|node| node == me || roster.is_up(node));
        if let Some(contacts) = contacts
            && let Some(change) = self.roster.apply_contacts(contacts)
        {
            moved = self.members.follow(contacts);
            change.gone.iter().for_each(|node| transport.forget(*node));
            change.banned.iter().for_each(|node| transport.ban(*node));
            self.banned_now.extend(change.banned);
        }
        if moved.is_empty() {
            return None;
        }
        moved.into_iter().for_each(|member| self.add_peer(transport, member));
        let found = self.members.controllers();
        (!found.sockets.is_empty() && found != self.known).then(|| {
            self.known.clone_from(&found);
            self.roster.remember(found.sockets.keys().copied());
            found
        })
    }

    /// Nodes with connections that were closed for good since the last call.
    pub fn poll_banned(&mut self) -> Vec<NodeId> {
        std::mem::take(&mut self.banned_now)
    }

    /// Where a node is that named these addresses: names as far as they were resolved by now.
    #[must_use]
    pub fn addresses_of(&self, node: NodeId, addresses: &[String]) -> Vec<SocketAddr> {
        self.members.of(node, addresses)
    }

    fn add_peer(&self, transport: &Transport, (node, role, at): MemberSockets) {
        if node != self.me {
            transport.add_peer(node, peer_role(role), at);
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
