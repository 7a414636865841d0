//! Members of the cluster as this node has them from the log: the nodes from which it requests
//! pieces and texts, those it requests to keep pieces, and those with connections that it no longer
//! accepts.

use std::collections::{BTreeMap, BTreeSet};

use zbelastic_consensus::contacts::Contacts;
use zbelastic_consensus::member::Role;
use zbelastic_consensus::mutant::{self, Mutant};
use zbelastic_types::{LayerId, NodeId};

/// A change of members, as far as connections depend on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RosterChange {
    /// This node does not connect to them any more.
    pub gone: Vec<NodeId>,
    /// Their connections are closed, and no other one of theirs is accepted.
    pub banned: Vec<NodeId>,
}

/// The members of the cluster, and which nodes are connected.
#[derive(Clone, Debug)]
pub struct Roster {
    own: NodeId,
    /// Controllers from the configuration, or remembered.
    initial_controllers: BTreeSet<NodeId>,
    roles: BTreeMap<NodeId, Role>,
    up: BTreeSet<NodeId>,
    /// The index of the contacts that were applied last; none before the first.
    index: Option<u64>,
    banned: BTreeSet<NodeId>,
}

impl Roster {
    /// A roster that contains these controllers alone.
    #[must_use]
    pub fn new(own: NodeId, initial_controllers: BTreeSet<NodeId>) -> Self {
        let roles = BTreeMap::new();
        let up = BTreeSet::new();
        let banned = BTreeSet::new();
        Self { own, initial_controllers, roles, up, index: None, banned }
    }

    /// Whether these are the contacts that were applied last.
    #[must_use]
    pub fn has_applied(&self, index: u64) -> bool {
        self.index == Some(index)
    }

    /// Applies the replicated contacts, if they are others than before.
    pub fn apply_contacts(&mut self, contacts: &Contacts) -> Option<RosterChange> {
        if self.index.replace(contacts.index) == Some(contacts.index) {
            return None;
        }
        let roles: BTreeMap<_, _> =
            contacts.members.iter().map(|(node, (role, _))| (*node, *role)).collect();
        let before = std::mem::replace(&mut self.roles, roles);
        let is_gone = |node: &NodeId| *node != self.own && !self.roles.contains_key(node);
        let gone = before.into_keys().filter(is_gone).collect();
        let others = contacts.banned.iter().copied().filter(|node| *node != self.own);
        let new: Vec<NodeId> = others.filter(|node| !self.banned.contains(node)).collect();
        if mutant::is(Mutant::M41WorkersIgnoreBans)
            && self.roles.get(&self.own) == Some(&Role::Worker)
        {
            return Some(RosterChange { gone, banned: Vec::new() });
        }
        self.banned.extend(&new);
        Some(RosterChange { gone, banned: new })
    }

    /// Replaces the initial controllers by the remembered ones.
    pub fn remember(&mut self, controllers: impl IntoIterator<Item = NodeId>) {
        self.initial_controllers = controllers.into_iter().collect();
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
    pub fn role(&self, node: NodeId) -> Role {
        let initial = self.initial_controllers.contains(&node).then_some(Role::Controller);
        self.roles.get(&node).copied().or(initial).unwrap_or(Role::Worker)
    }

    /// Workers that are connected.
    #[must_use]
    pub fn workers_up(&self) -> usize {
        self.up.iter().filter(|node| self.role(**node) == Role::Worker).count()
    }

    /// Whether a controller is connected.
    #[must_use]
    pub fn is_controller_connected(&self) -> bool {
        self.initial_controllers.iter().any(|node| self.is_up(*node))
    }

    /// Nodes that may have a text or a piece: connected nodes first, and among these controllers
    /// first.
    #[must_use]
    pub fn holders(&self, contacts: &Contacts) -> Vec<NodeId> {
        let known = contacts.members.iter().map(|(node, (role, _))| (*node, *role));
        let initial = self.initial_controllers.iter().map(|node| (*node, Role::Controller));
        let all: BTreeMap<NodeId, Role> = initial.chain(known).collect();
        let mut holders: Vec<_> = all.into_iter().filter(|(node, _)| *node != self.own).collect();
        holders.sort_by_key(|(node, role)| (!self.is_up(*node), *role == Role::Worker, *node));
        holders.into_iter().map(|(node, _)| node).collect()
    }

    /// Nodes that may keep a piece of a layer too, the best first: controllers, as they are not
    /// preempted, then workers; layers are spread over them.
    #[must_use]
    pub fn keepers(&self, contacts: &Contacts, layer: LayerId) -> Vec<NodeId> {
        let of_role = |wanted: Role| {
            let members = contacts.members.iter().filter(move |(_, (role, _))| *role == wanted);
            let nodes = members.map(|(node, _)| *node);
            let mut nodes: Vec<_> =
                nodes.filter(|node| *node != self.own && self.is_up(*node)).collect();
            if !nodes.is_empty() {
                let offset = layer.index() % nodes.len();
                nodes.rotate_left(offset);
            }
            nodes
        };
        let mut keepers = of_role(Role::Controller);
        keepers.extend(of_role(Role::Worker));
        keepers
    }
}

#[cfg(test)]
mod tests {
    use zbelastic_consensus::contact::Contact;

    use super::*;

    fn contacts(index: u64, members: &[(u64, Role)], banned: &[u64]) -> Contacts {
        let member =
            |(node, role): &(u64, Role)| (NodeId(*node), (*role, Contact::of_node(NodeId(*node))));
        let members = members.iter().map(member);
        let banned = banned.iter().copied().map(NodeId);
        let members = members.collect();
        let banned = banned.collect();
        Contacts { index, members, banned, rotation: None }
    }

    #[test]
    fn a_member_that_goes_is_forgotten_and_one_banned_is_banned_once() {
        use Role::{Controller, Worker};
        let mut roster = Roster::new(NodeId(3), [NodeId(1)].into());
        let before = contacts(5, &[(1, Controller), (3, Worker), (4, Worker)], &[]);
        assert_eq!(roster.apply_contacts(&before), Some(RosterChange::default()));
        assert_eq!(roster.apply_contacts(&before), None);
        let after = contacts(6, &[(1, Controller), (3, Worker)], &[4]);
        let change = RosterChange { gone: vec![NodeId(4)], banned: vec![NodeId(4)] };
        assert_eq!(roster.apply_contacts(&after), Some(change));
        let later = contacts(7, &[(1, Controller), (3, Worker), (5, Worker)], &[4, 3]);
        assert_eq!(
            roster.apply_contacts(&later),
            Some(RosterChange::default()),
            "and never itself"
        );
    }

    #[test]
    fn keepers_are_connected_and_holders_need_not_be() {
        use Role::{Controller, Worker};
        let mut roster = Roster::new(NodeId(3), [NodeId(1)].into());
        let members = [(1, Controller), (2, Controller), (3, Worker), (4, Worker), (5, Worker)];
        let contacts = contacts(5, &members, &[]);
        roster.apply_contacts(&contacts);
        [1, 2, 5].map(NodeId).iter().for_each(|node| roster.note_up(*node));
        let keepers = |layer| roster.keepers(&contacts, LayerId(layer));
        assert_eq!(keepers(0), [1, 2, 5].map(NodeId));
        assert_eq!(keepers(1), [2, 1, 5].map(NodeId));
        assert_eq!(roster.holders(&contacts), [1, 2, 5, 4].map(NodeId));
        assert_eq!((roster.workers_up(), roster.is_controller_connected()), (1, true));
        assert_eq!((roster.role(NodeId(2)), roster.role(NodeId(9))), (Controller, Worker));
    }
}
