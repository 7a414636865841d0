//! A controller's knowledge of the connections to members: the path of each, when it last received
//! something, and the reports of workers about their work while they are connected.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use zbelastic_policy::machine_peak::WorkerPeak;
use zbelastic_transport::TransportPath;
use zbelastic_types::NodeId;

use zbelastic_api::WorkStatus;

/// A controller from which nothing was received for so long is not counted as reachable.
const REACHABLE: Duration = Duration::from_secs(1);

/// The connections to members.
#[derive(Default)]
pub(super) struct MemberLinks {
    last_received: BTreeMap<NodeId, Instant>,
    /// The path of the connection to each node, as it was reported last.
    paths: BTreeMap<NodeId, TransportPath>,
    work_status: BTreeMap<NodeId, WorkStatus>,
    /// Floating-point operations a second at best, of each worker that reported that.
    peaks: BTreeMap<NodeId, u64>,
    /// The same of all cores of its machine.
    machine_peaks: BTreeMap<NodeId, u64>,
}

impl MemberLinks {
    pub(super) fn note_up(&mut self, node: NodeId, path: TransportPath) {
        self.paths.insert(node, path);
    }

    /// The connection to a node ended, and with it the node's report of its work.
    pub(super) fn note_down(&mut self, node: NodeId) {
        self.paths.remove(&node);
        self.work_status.remove(&node);
        self.peaks.remove(&node);
        self.machine_peaks.remove(&node);
    }

    pub(super) fn note_received(&mut self, node: NodeId, now: Instant) {
        self.last_received.insert(node, now);
    }

    /// A worker reported its work.
    pub(super) fn note_work(&mut self, node: NodeId, status: WorkStatus) {
        self.work_status.insert(node, status);
    }

    /// A worker reported what it multiplies and adds at best.
    pub(super) fn note_peak(&mut self, node: NodeId, flop_per_s: u64) {
        // Of nodes that are connected, which bounds them.
        if self.paths.contains_key(&node) {
            self.peaks.insert(node, flop_per_s);
        }
    }

    pub(super) fn note_machine_peak(&mut self, node: NodeId, flop_per_s: u64) {
        if self.paths.contains_key(&node) {
            self.machine_peaks.insert(node, flop_per_s);
        }
    }

    /// What a worker on this machine multiplies and adds at best, if it reported that.
    pub(super) fn peak(&self, node: NodeId, machine: u64) -> Option<WorkerPeak> {
        let of_machine = self.machine_peaks.get(&node).copied();
        self.peaks.get(&node).map(|own| WorkerPeak { machine, own: *own, of_machine })
    }

    /// The path of the connection to a node, if it is connected.
    pub(super) fn path(&self, node: NodeId) -> Option<TransportPath> {
        self.paths.get(&node).copied()
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
        links.note_peak(node, 7);
        links.note_machine_peak(node, 7);
        assert_eq!(links.peak(node, 1), None, "it is not connected");
        links.note_up(node, TransportPath::Quic);
        links.note_peak(node, 8);
        assert_eq!(links.peak(node, 1), Some(WorkerPeak { machine: 1, own: 8, of_machine: None }));
        links.note_machine_peak(node, 9);
        assert_eq!(links.peak(node, 1).and_then(|peak| peak.of_machine), Some(9));
        links.note_received(node, start);
        links.note_work(node, WorkStatus { done: 3, activity: None });
        assert!(links.is_reachable(node, start + REACHABLE - Duration::from_millis(1)));
        assert!(!links.is_reachable(node, start + REACHABLE));
        assert_eq!(links.path(node), Some(TransportPath::Quic));
        links.note_down(node);
        assert_eq!(links.path(node), None);
        assert!(links.work_status().is_empty());
        assert_eq!(links.peak(node, 1), None);
        assert_eq!(links.silent_for(node, start + REACHABLE), Some(REACHABLE));
    }
}
