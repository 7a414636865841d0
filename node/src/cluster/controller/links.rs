//! A controller's knowledge of the connections to members: the path of each, when it last received
//! something, and the reports of workers about their work while they are connected.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use zbelastic_policy::drain_cause::DrainCause;
use zbelastic_policy::machine_peak::WorkerPeak;
use zbelastic_transport::TransportPath;
use zbelastic_types::{Bytes, NodeId};

use zbelastic_api::{EventKind, WorkStatus};

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
    /// The resident memory of each process that reported it.
    resident: BTreeMap<NodeId, Bytes>,
    /// Why nodes drain of which it is not agreed yet.
    draining: BTreeMap<NodeId, DrainCause>,
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
        self.resident.remove(&node);
        self.draining.remove(&node);
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

    /// A member reported the memory of its process.
    pub(super) fn note_resident(&mut self, node: NodeId, memory: Bytes) {
        if self.paths.contains_key(&node) {
            self.resident.insert(node, memory);
        }
    }

    /// The resident memory of a member's process, if it reported that.
    pub(super) fn resident(&self, node: NodeId) -> Option<Bytes> {
        self.resident.get(&node).copied()
    }

    /// A worker reported why it drains, or an operator has it drained.
    pub(super) fn note_drain(&mut self, node: NodeId, cause: DrainCause) {
        if self.paths.contains_key(&node) {
            self.draining.insert(node, cause);
        }
    }

    /// The event with the reason why a node drains, if it is about that and the reason is known.
    pub(super) fn with_drain_reason(&mut self, mut kind: EventKind) -> EventKind {
        if let EventKind::Draining { node, reason, .. } = &mut kind {
            *reason = self.draining.remove(node).map(|cause| cause.to_string());
        }
        kind
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
    fn the_reason_of_draining_is_in_the_event_that_it_was_reported_for() {
        let node = NodeId(4);
        let draining = || EventKind::Draining { node, name: "a".to_owned(), reason: None };
        let mut links = MemberLinks::default();
        links.note_drain(node, DrainCause::Notice);
        assert_eq!(links.with_drain_reason(draining()), draining(), "it is not connected");
        links.note_up(node, TransportPath::Quic);
        links.note_drain(node, DrainCause::Notice);
        assert_eq!(links.with_drain_reason(EventKind::QuorumLost), EventKind::QuorumLost);
        let text = links.with_drain_reason(draining()).to_string();
        assert_eq!(text, "node a (4) is draining: the cloud takes the machine away");
        assert_eq!(links.with_drain_reason(draining()), draining(), "the next time is another");
    }

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
        links.note_resident(node, Bytes(7));
        assert_eq!(links.resident(node), Some(Bytes(7)));
        links.note_received(node, start);
        links.note_work(node, WorkStatus { done: 3, activity: None });
        assert!(links.is_reachable(node, start + REACHABLE - Duration::from_millis(1)));
        assert!(!links.is_reachable(node, start + REACHABLE));
        assert_eq!(links.path(node), Some(TransportPath::Quic));
        links.note_down(node);
        assert_eq!(links.path(node), None);
        assert!(links.work_status().is_empty());
        assert_eq!(links.peak(node, 1), None);
        assert_eq!(links.resident(node), None);
        links.note_resident(node, Bytes(8));
        assert_eq!(links.resident(node), None, "it is not connected");
        assert_eq!(links.silent_for(node, start + REACHABLE), Some(REACHABLE));
    }
}
