//! A controller's knowledge of the connections to members: the path of each, when it last received
//! something, and the reports of members about themselves and their work while they are connected.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use zbelastic_policy::connected_members::ConnectedMembers;
use zbelastic_transport::TransportPath;
use zbelastic_types::NodeId;

use zbelastic_api::WorkStatus;

/// A controller from which nothing was received for so long is not counted as reachable.
const REACHABLE: Duration = Duration::from_secs(1);

/// The connections to members.
#[derive(Default)]
pub(super) struct MemberLinks {
    last_received: BTreeMap<NodeId, Instant>,
    /// The path of the connection to each node, and what it reported of itself.
    pub(super) connected: ConnectedMembers,
    work_status: BTreeMap<NodeId, WorkStatus>,
}

impl MemberLinks {
    pub(super) fn note_up(&mut self, node: NodeId, path: TransportPath) {
        self.connected.note_up(node, path);
    }

    /// The connection to a node ended, and with it the node's reports.
    pub(super) fn note_down(&mut self, node: NodeId) {
        self.connected.note_down(node);
        self.work_status.remove(&node);
    }

    pub(super) fn note_received(&mut self, node: NodeId, now: Instant) {
        self.last_received.insert(node, now);
    }

    /// A worker reported its work.
    pub(super) fn note_work(&mut self, node: NodeId, status: WorkStatus) {
        self.work_status.insert(node, status);
    }

    /// How long nothing was received from a node, if anything ever was.
    pub(super) fn silent_for(&self, node: NodeId, now: Instant) -> Option<Duration> {
        self.last_received.get(&node).map(|since| now - *since)
    }

    /// Whether something was received from a node lately.
    pub(super) fn is_reachable(&self, node: NodeId, now: Instant) -> bool {
        self.silent_for(node, now).is_some_and(|silent| silent < REACHABLE)
    }

    /// The last reports of workers about their work, while they are connected.
    pub(super) const fn work_status(&self) -> &BTreeMap<NodeId, WorkStatus> {
        &self.work_status
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_reachable_for_a_second_and_its_work_is_known_while_it_is_connected() {
        let node = NodeId(4);
        let start = Instant::now();
        let mut links = MemberLinks::default();
        assert!(!links.is_reachable(node, start));
        links.note_up(node, TransportPath::Quic);
        links.note_received(node, start);
        links.note_work(node, WorkStatus { done: 3, activity: None });
        assert!(links.is_reachable(node, start + REACHABLE - Duration::from_millis(1)));
        assert!(!links.is_reachable(node, start + REACHABLE));
        assert_eq!(links.connected.path(node), Some(TransportPath::Quic));
        links.note_down(node);
        assert_eq!(links.connected.path(node), None);
        assert!(links.work_status().is_empty());
        assert_eq!(links.silent_for(node, start + REACHABLE), Some(REACHABLE));
    }
}
