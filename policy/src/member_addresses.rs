//! Where members are: the addresses that were agreed on, names among them resolved, and resolved
//! again while their node is not connected.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use zbelastic_consensus::contacts::Contacts;
use zbelastic_consensus::member::Role;
use zbelastic_types::NodeId;

use crate::tick::ticks_of;

/// Between two look-ups of the names of a node that is not connected: as long as the longest pause
/// between two dials of it.
const LOOKUP_PAUSE: Duration = Duration::from_secs(5);

/// Resolves names of machines, beside its caller: a resolver answers when it likes.
pub trait NameResolution {
    /// Looks up where a node is. Yields the addresses that are numbers; those of names are returned
    /// by [`Self::poll`], with the numbers.
    fn resolve_node(&mut self, node: NodeId, addresses: &[String]) -> Vec<SocketAddr>;

    /// The addresses found since the last call. A name that does not resolve now is left out.
    fn poll(&mut self) -> Vec<(NodeId, Vec<SocketAddr>)>;
}

/// Those of the addresses that are numbers, and need no resolver.
#[must_use]
pub fn numbers(addresses: &[String]) -> Vec<SocketAddr> {
    addresses.iter().filter_map(|address| address.parse().ok()).collect()
}

/// Where controllers are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ControllerAddresses {
    /// Where each was found last.
    pub sockets: BTreeMap<NodeId, Vec<SocketAddr>>,
    /// The addresses, as they were agreed on, of those that have names among them.
    pub names: BTreeMap<NodeId, Vec<String>>,
}

/// A node, its role, and where it is dialled from now on.
pub type MemberSockets = (NodeId, Role, Vec<SocketAddr>);

/// The addresses of members, as far as they were resolved.
pub struct MemberAddresses<R> {
    resolver: R,
    /// Where members are, this node too.
    sockets: BTreeMap<NodeId, (Role, Vec<SocketAddr>)>,
    /// The addresses, as they were agreed on, of members that have names among them.
    named: BTreeMap<NodeId, Vec<String>>,
    ticks: u32,
}

impl<R: NameResolution> MemberAddresses<R> {
    /// The addresses of the controllers that are known before anything was agreed, resolved by
    /// this resolver.
    #[must_use]
    pub fn new(resolver: R, known: &ControllerAddresses) -> Self {
        let controller =
            |(node, at): (&NodeId, &Vec<SocketAddr>)| (*node, (Role::Controller, at.clone()));
        let sockets = known.sockets.iter().map(controller).collect();
        let named = known.names.clone();
        // The first tick looks names up: they may mean other addresses than before.
        Self { resolver, sockets, named, ticks: ticks_of(LOOKUP_PAUSE) }
    }

    /// A tick passes. Yields the nodes that are elsewhere, as their names were resolved since.
    pub fn handle_tick(&mut self, is_up: impl Fn(NodeId) -> bool) -> Vec<MemberSockets> {
        self.ticks += 1;
        if self.ticks >= ticks_of(LOOKUP_PAUSE) {
            self.ticks = 0;
            for (node, addresses) in self.named.iter().filter(|(node, _)| !is_up(**node)) {
                self.resolver.resolve_node(*node, addresses);
            }
        }
        let mut moved = Vec::new();
        for (node, found) in self.resolver.poll() {
            let Some((role, previous)) = self.sockets.get_mut(&node) else { continue };
            if !found.is_empty() && *previous != found {
                previous.clone_from(&found);
                moved.push((node, *role, found));
            }
        }
        moved
    }

    /// Replaces the addresses by those that were agreed on. Yields where all members are: until the
    /// names of one are resolved again, where it was before.
    pub fn follow(&mut self, contacts: &Contacts) -> Vec<MemberSockets> {
        let mut before = std::mem::take(&mut self.sockets);
        self.named.clear();
        for (node, (role, contact)) in &contacts.members {
            let found = self.resolver.resolve_node(*node, &contact.addresses);
            if found.len() < contact.addresses.len() {
                self.named.insert(*node, contact.addresses.clone());
            }
            let previous = before.remove(node).map(|(_, previous)| previous).unwrap_or_default();
            let sockets = if found.is_empty() { previous } else { found };
            self.sockets.insert(*node, (*role, sockets));
        }
        let all = self.sockets.iter().map(|(node, (role, at))| (*node, *role, at.clone()));
        all.collect()
    }

    /// The controllers, for the next start.
    #[must_use]
    pub fn controllers(&self) -> ControllerAddresses {
        let controllers = self.sockets.iter().filter(|(_, (role, _))| *role == Role::Controller);
        let found = controllers.clone().filter(|(_, (_, at))| !at.is_empty());
        let named = controllers.filter_map(|(node, _)| self.named.get_key_value(node));
        ControllerAddresses {
            sockets: found.map(|(node, (_, at))| (*node, at.clone())).collect(),
            names: named.map(|(node, addresses)| (*node, addresses.clone())).collect(),
        }
    }

    /// Where a node is that named these addresses: names as far as they were resolved by now.
    #[must_use]
    pub fn of(&self, node: NodeId, addresses: &[String]) -> Vec<SocketAddr> {
        let numbers = numbers(addresses);
        let previous = self.sockets.get(&node).map(|(_, at)| at.clone());
        if numbers.len() < addresses.len() { previous.unwrap_or(numbers) } else { numbers }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use zbelastic_consensus::contact::Contact;

    use super::*;

    const NODE: NodeId = NodeId(1);

    fn at(port: u16) -> Vec<SocketAddr> {
        vec![SocketAddr::from(([10, 0, 0, 1], port))]
    }

    /// Every name resolves to the port that stands in the cell.
    struct OnePort {
        port: Rc<Cell<u16>>,
        asked: Vec<NodeId>,
    }

    impl NameResolution for OnePort {
        fn resolve_node(&mut self, node: NodeId, addresses: &[String]) -> Vec<SocketAddr> {
            let found = numbers(addresses);
            if found.len() < addresses.len() {
                self.asked.push(node);
            }
            found
        }

        fn poll(&mut self) -> Vec<(NodeId, Vec<SocketAddr>)> {
            self.asked.drain(..).map(|node| (node, at(self.port.get()))).collect()
        }
    }

    fn addresses(port: &Rc<Cell<u16>>, known: &ControllerAddresses) -> MemberAddresses<OnePort> {
        MemberAddresses::new(OnePort { port: Rc::clone(port), asked: Vec::new() }, known)
    }

    fn contacts(addresses: &[&str]) -> Contacts {
        let addresses = addresses.iter().map(|address| (*address).to_owned()).collect();
        let contact = Contact { addresses, ..Contact::of_node(NODE) };
        let members = BTreeMap::from([(NODE, (Role::Controller, contact))]);
        Contacts { index: 1, members, banned: Default::default(), rotation: None }
    }

    /// All that moved while twice the time between two look-ups passed.
    fn moved(addresses: &mut MemberAddresses<OnePort>, is_up: bool) -> Vec<MemberSockets> {
        (0..2 * ticks_of(LOOKUP_PAUSE)).flat_map(|_| addresses.handle_tick(|_| is_up)).collect()
    }

    /// A controller whose machine came back elsewhere under the same name is found there, and the
    /// next start of this process finds it too.
    #[test]
    fn the_names_of_a_node_that_is_not_connected_are_resolved_again() {
        let port = Rc::new(Cell::new(1));
        let mut found = addresses(&port, &ControllerAddresses::default());
        assert_eq!(found.follow(&contacts(&["a:7000"])), [(NODE, Role::Controller, vec![])]);
        assert_eq!(moved(&mut found, true), [(NODE, Role::Controller, at(1))]);
        port.set(2);
        assert_eq!(moved(&mut found, true), [], "it is connected");
        assert_eq!(moved(&mut found, false), [(NODE, Role::Controller, at(2))]);
        let remembered = found.controllers();
        assert_eq!(remembered.sockets, BTreeMap::from([(NODE, at(2))]));
        assert_eq!(remembered.names, BTreeMap::from([(NODE, vec!["a:7000".to_owned()])]));
        port.set(3);
        let mut next_start = addresses(&port, &remembered);
        assert_eq!(moved(&mut next_start, false), [(NODE, Role::Controller, at(3))]);
    }

    #[test]
    fn addresses_that_are_numbers_are_never_looked_up() {
        let mut found = addresses(&Rc::new(Cell::new(1)), &ControllerAddresses::default());
        let sockets = vec![(NODE, Role::Controller, at(7))];
        assert_eq!(found.follow(&contacts(&["10.0.0.1:7"])), sockets);
        assert_eq!(moved(&mut found, false), []);
        assert_eq!(found.controllers().names, BTreeMap::new());
        assert_eq!(found.of(NODE, &["10.0.0.9:7".to_owned()]).len(), 1);
    }
}
