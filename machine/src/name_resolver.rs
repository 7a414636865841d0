//! Names of machines, resolved beside the event loop: a resolver answers when it likes, and a loop
//! that waits for it sends no heartbeats.

use std::collections::{BTreeMap, VecDeque};
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use zbelastic_policy::member_addresses::{NameResolution, numbers};
use zbelastic_types::NodeId;

/// Nodes with names that are resolved at once, each on a thread: one slow name delays as many
/// others, not all.
const RESOLVING_MAX: usize = 16;

/// Finds the addresses of a name and port; may last as long as it likes.
pub type NameLookup = Arc<dyn Fn(&str) -> Vec<SocketAddr> + Send + Sync>;

/// Looks addresses up with the system's resolver.
#[must_use]
pub fn system_lookup() -> NameLookup {
    Arc::new(|address| address.to_socket_addrs().map(Iterator::collect).unwrap_or_default())
}

/// Addresses as a socket accepts them, for callers that may wait for the resolver; a name that does
/// not resolve now is left out.
#[must_use]
pub fn resolve(addresses: &[String]) -> Vec<SocketAddr> {
    let lookup = system_lookup();
    addresses.iter().flat_map(|address| lookup(address)).collect()
}

/// Resolves the addresses of nodes, each node once at a time.
pub struct NameResolver {
    lookup: NameLookup,
    /// Nodes that wait, in order, each with the addresses that were passed last.
    waiting: VecDeque<(NodeId, Vec<String>)>,
    /// The nodes with addresses that are being resolved.
    under_way: BTreeMap<NodeId, Vec<String>>,
    answers: Receiver<(NodeId, Vec<SocketAddr>)>,
    answer: Sender<(NodeId, Vec<SocketAddr>)>,
}

impl NameResolver {
    /// Resolves with this lookup.
    #[must_use]
    pub fn new(lookup: NameLookup) -> Self {
        let (answer, answers) = channel();
        Self { lookup, waiting: VecDeque::new(), under_way: BTreeMap::new(), answers, answer }
    }

    fn start(&mut self) {
        while self.under_way.len() < RESOLVING_MAX {
            let is_free = |(node, _): &(NodeId, _)| !self.under_way.contains_key(node);
            let Some(next) = self.waiting.iter().position(is_free) else { return };
            let Some((node, addresses)) = self.waiting.remove(next) else { return };
            self.under_way.insert(node, addresses.clone());
            let lookup = self.lookup.clone();
            let answer = self.answer.clone();
            let work = move || {
                let found = addresses.iter().flat_map(|address| lookup(address)).collect();
                let _ = answer.send((node, found));
            };
            if thread::Builder::new().name("names".to_owned()).spawn(work).is_err() {
                // The machine has no thread to spare now: the next look-up of its names tries again.
                self.under_way.remove(&node);
                return;
            }
        }
    }
}

impl NameResolution for NameResolver {
    fn resolve_node(&mut self, node: NodeId, addresses: &[String]) -> Vec<SocketAddr> {
        let numbers = numbers(addresses);
        let is_other = self.under_way.get(&node).is_none_or(|resolving| resolving != addresses);
        let is_new = numbers.len() < addresses.len() && is_other;
        // A node that waits keeps its place: names are passed again and again, and where each look-up
        // takes long the last nodes would never have their turn.
        match self.waiting.iter().position(|(waiting, _)| *waiting == node) {
            Some(place) if is_new => self.waiting[place].1 = addresses.to_vec(),
            Some(place) => drop(self.waiting.remove(place)),
            None if is_new => self.waiting.push_back((node, addresses.to_vec())),
            None => {}
        }
        self.start();
        numbers
    }

    fn poll(&mut self) -> Vec<(NodeId, Vec<SocketAddr>)> {
        let found: Vec<_> = self.answers.try_iter().collect();
        for (node, _) in &found {
            self.under_way.remove(node);
        }
        if !found.is_empty() {
            self.start();
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;
    use std::sync::{Mutex, PoisonError};
    use std::time::{Duration, Instant};

    use super::*;

    fn local_address() -> SocketAddr {
        "10.0.0.1:7000".parse().expect("an address")
    }

    /// Until something is found; fails after far longer than threads take to run.
    fn wait(resolver: &mut NameResolver) -> Vec<(NodeId, Vec<SocketAddr>)> {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let found = resolver.poll();
            if !found.is_empty() {
                return found;
            }
            assert!(Instant::now() < end, "nothing was resolved");
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_name_that_hangs_delays_nobody_else() {
        let (release, hangs) = sync_channel::<()>(0);
        let hangs = Mutex::new(hangs);
        let lookup: NameLookup = Arc::new(move |address| {
            if address.starts_with("slow") {
                let _ = hangs.lock().unwrap_or_else(PoisonError::into_inner).recv();
            }
            vec![local_address()]
        });
        let mut resolver = NameResolver::new(lookup);
        let text = |address: &str| vec![address.to_owned()];
        assert_eq!(
            resolver.resolve_node(NodeId(1), &text("10.0.0.9:1")).len(),
            1,
            "a number is there at once"
        );
        assert_eq!(resolver.resolve_node(NodeId(2), &text("slow:1")), []);
        assert_eq!(resolver.resolve_node(NodeId(3), &text("fast:1")), []);
        assert_eq!(wait(&mut resolver), [(NodeId(3), vec![local_address()])]);
        // What is passed again while it is resolved is not looked up twice.
        assert_eq!(resolver.resolve_node(NodeId(2), &text("slow:1")), []);
        assert!(resolver.waiting.is_empty());
        release.send(()).expect("it waits");
        assert_eq!(wait(&mut resolver), [(NodeId(2), vec![local_address()])]);
        assert!(resolver.under_way.is_empty());
    }

    #[test]
    fn no_more_are_resolved_at_once_than_the_limit() {
        let (release, hangs) = sync_channel::<()>(0);
        let hangs = Mutex::new(hangs);
        let mut resolver = NameResolver::new(Arc::new(move |_| {
            let _ = hangs.lock().unwrap_or_else(PoisonError::into_inner).recv();
            Vec::new()
        }));
        for node in 0..2 * RESOLVING_MAX as u64 {
            resolver.resolve_node(NodeId(node), &["slow:1".to_owned()]);
        }
        assert_eq!(
            (resolver.under_way.len(), resolver.waiting.len()),
            (RESOLVING_MAX, RESOLVING_MAX)
        );
        // Passed again while all hang, the first one that waits is still the next.
        let next = resolver.waiting[0].0;
        resolver.resolve_node(next, &["slow:1".to_owned()]);
        assert_eq!((resolver.waiting[0].0, resolver.waiting.len()), (next, RESOLVING_MAX));
        release.send(()).expect("one waits");
        let found = wait(&mut resolver).len();
        assert_eq!(resolver.waiting.len(), RESOLVING_MAX - found);
    }
}
