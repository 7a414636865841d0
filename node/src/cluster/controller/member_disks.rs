//! Space on the disks of all members: this node's own, and what others report of theirs.

use std::collections::BTreeMap;

use zbelastic_api::DiskStatus;
use zbelastic_types::NodeId;

use super::{ControllerCompletion, ControllerNode};
use crate::cluster::disk_space::{DiskSpace, DiskSpaceShortage, DiskSpaceWatch};
use crate::cluster::wire::NodeMessage;

/// What is known of the members' disks.
#[derive(Default)]
pub(super) struct MemberDisks {
    own: DiskSpaceWatch,
    /// Of this node, and of those that are connected.
    reported: BTreeMap<NodeId, (DiskSpace, Option<DiskSpaceShortage>)>,
}

impl MemberDisks {
    /// A node is not connected any more.
    pub(super) fn note_down(&mut self, node: NodeId) {
        self.reported.remove(&node);
    }

    /// What a node's disk has, if it reported that.
    pub(super) fn status(&self, node: NodeId) -> Option<DiskStatus> {
        let (DiskSpace { free, total }, low) = *self.reported.get(&node)?;
        Some(DiskStatus { free, total, low: low.is_some() })
    }
}

impl ControllerNode {
    /// Measures the own disk now and then, beside the event loop.
    pub(super) fn check_disk_space(&mut self) {
        if !self.member_disks.own.handle_tick() {
            return;
        }
        let checkpoint_thread = self.checkpoint_thread.clone();
        let completions = self.completions.clone();
        tokio::spawn(async move {
            let _ = completions
                .send(ControllerCompletion::DiskSpace(checkpoint_thread.disk_space().await))
                .await;
        });
    }

    pub(super) fn handle_disk_space(&mut self, found: Option<DiskSpace>) {
        self.member_disks.own.note(found, self.run_log.checkpoint_bytes());
        let Some(space) = found else { return };
        let own = self.setup.node;
        let low = self.member_disks.own.low();
        self.note_member_disk(own, space, low);
        let others = self.core.state().controllers().filter(|node| *node != own);
        others.for_each(|node| self.send_node(node, &NodeMessage::Room { room: space, low }));
    }

    /// A member reported the space on its disk. Each controller warns once, and the leader has
    /// removed what is not referred to.
    pub(super) fn note_member_disk(
        &mut self,
        node: NodeId,
        space: DiskSpace,
        low: Option<DiskSpaceShortage>,
    ) {
        if !self.core.state().members().contains_key(&node) {
            return;
        }
        let before = self.member_disks.reported.insert(node, (space, low));
        let was_low = before.is_some_and(|(_, low)| low.is_some());
        match low {
            Some(DiskSpaceShortage { wanted, free, .. }) if !was_low => {
                self.journal.warn(format!(
                    "the disk of node {node} is low: {free} of {} are free, a checkpoint takes up to {wanted}; \
                     pieces that do not fit are kept by other nodes: free space there, or keep fewer checkpoints \
                     (checkpoint.keep_last, runs remove)",
                    space.total
                ));
                self.collect_unused();
            }
            None if was_low => {
                self.journal
                    .log(format!("the disk of node {node} has free space again: {}", space.free));
            }
            Some(_) | None => {}
        }
    }
}
