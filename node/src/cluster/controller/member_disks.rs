//! Space on the disks of all members: this node's own, and the reports of others about theirs.

use std::collections::{BTreeMap, BTreeSet};

use zbelastic_types::{Bytes, NodeId};

use super::ports::{ControllerCompletion, ControllerTasks};
use crate::cluster::disk_space::{
    DiskSpace, DiskSpaceShortage, DiskSpaceWatch, MemberDiskChange, NodeDisks,
};
use zbelastic_api::{DiskStatus, ScrubPassStatus, ScrubStatus};
use zbelastic_policy::full_logs::FullLogs;
use zbelastic_policy::scrub::{ScrubProgress, ScrubReport};

/// The reported space of the members' disks.
#[derive(Default)]
pub(super) struct MemberDisks {
    own: DiskSpaceWatch,
    /// Of this node, and of those that are connected.
    reported: BTreeMap<NodeId, (DiskSpace, Option<DiskSpaceShortage>)>,
    full_logs: FullLogs,
    /// How far each has read everything on its disk again.
    scrubbed: BTreeMap<NodeId, ScrubReport>,
}

impl MemberDisks {
    /// A node is not connected any more.
    pub(super) fn note_down(&mut self, node: NodeId) {
        self.reported.remove(&node);
        self.scrubbed.remove(&node);
    }

    /// A member reports how far it has read everything on its disk again.
    pub(super) fn note_scrubbed(&mut self, node: NodeId, report: ScrubReport) {
        self.scrubbed.insert(node, report);
    }

    /// How far a node has read everything on its disk again, if it reported that.
    pub(super) fn scrub_status(&self, node: NodeId) -> Option<ScrubStatus> {
        let ScrubReport { progress, last } = *self.scrubbed.get(&node)?;
        let ScrubProgress { done, total, corrupt } = progress;
        let last = last.map(|pass| ScrubPassStatus {
            ended_at_ms: pass.ended_s * 1000,
            total: pass.total,
            corrupt: pass.corrupt,
        });
        Some(ScrubStatus { done, total, corrupt, last })
    }

    /// The space of a node's disk, if it reported that.
    pub(super) fn status(&self, node: NodeId) -> Option<DiskStatus> {
        let (DiskSpace { free, total }, low) = *self.reported.get(&node)?;
        Some(DiskStatus { free, total, low: low.is_some() })
    }

    /// A tick passes. Measures the own disks now and then, beside the event loop.
    pub(super) fn handle_tick(&mut self, tasks: &ControllerTasks) {
        if !self.own.handle_tick() {
            return;
        }
        let checkpoint_thread = tasks.checkpoint_thread().clone();
        tasks.spawn(async move { ControllerCompletion::Disks(checkpoint_thread.disks().await) });
    }

    /// The own disks were measured, on which a checkpoint needs so many bytes. Yields the report of
    /// it, as others report theirs.
    pub(super) fn note_measured(
        &mut self,
        found: NodeDisks,
        checkpoint: Bytes,
    ) -> Option<(DiskSpace, Option<DiskSpaceShortage>)> {
        self.own.note(found, checkpoint);
        Some((found.reported()?, self.own.low()))
    }

    /// The controllers for whose logs the run is to be held, if that is news.
    pub(super) fn full_logs(&mut self, controllers: &[NodeId]) -> Option<BTreeSet<NodeId>> {
        self.full_logs.report(controllers, |node| self.reported.contains_key(&node))
    }

    /// A member's disk has so much space. Yields the change for the person that looks after it.
    pub(super) fn note(
        &mut self,
        node: NodeId,
        (space, low): (DiskSpace, Option<DiskSpaceShortage>),
    ) -> Option<MemberDiskChange> {
        let before = self.reported.insert(node, (space, low));
        self.full_logs.note(node, space, low);
        let was_low = before.is_some_and(|(_, low)| low.is_some());
        match low {
            Some(shortage) if !was_low => {
                Some(MemberDiskChange::Low { node, total: space.total, shortage })
            }
            None if was_low => Some(MemberDiskChange::Ample { node, free: space.free }),
            Some(_) | None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_low_disk_is_reported_once_and_once_more_when_it_has_space_again() {
        let node = NodeId(3);
        let space = |free| DiskSpace { free: Bytes(free), total: Bytes(100) };
        let shortage = DiskSpaceShortage { wanted: Bytes(30), free: Bytes(10), reserve: Bytes(5) };
        let mut disks = MemberDisks::default();
        let low = MemberDiskChange::Low { node, total: Bytes(100), shortage };
        assert_eq!(disks.note(node, (space(50), None)), None);
        assert_eq!(disks.note(node, (space(10), Some(shortage))), Some(low));
        assert_eq!(disks.note(node, (space(9), Some(shortage))), None);
        assert!(disks.status(node).is_some_and(|status| status.low));
        let ample = MemberDiskChange::Ample { node, free: Bytes(60) };
        assert_eq!(disks.note(node, (space(60), None)), Some(ample));
        disks.note_down(node);
        assert_eq!(disks.status(node), None);
        let shortage = DiskSpaceShortage { wanted: Bytes(0), ..shortage };
        disks.note(node, (space(0), Some(shortage)));
        assert_eq!(disks.full_logs(&[node]), Some(BTreeSet::from([node])));
        disks.note_down(node);
        assert_eq!(disks.full_logs(&[node]), Some(BTreeSet::from([node])), "it ended for it");
    }
}
