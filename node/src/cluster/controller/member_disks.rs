//! Room on the disks of all members: this node's own, and what others report of theirs.

use std::collections::BTreeMap;

use zbelastic_types::NodeId;

use super::{ControllerCompletion, ControllerNode};
use crate::api::DiskStatus;
use crate::cluster::disk_space::{DiskSpace, DiskSpaceShortage, DiskSpaceWatch};
use crate::cluster::wire::NodeMessage;

/// What is known of the members' disks.
#[derive(Default)]
pub(super) struct MemberDisks {
    own: DiskSpaceWatch,
    /// Of this node, and of those that are connected.
    known: BTreeMap<NodeId, (DiskSpace, Option<DiskSpaceShortage>)>,
}

impl MemberDisks {
    /// A node is not connected any more.
    pub(super) fn note_down(&mut self, node: NodeId) {
        self.known.remove(&node);
    }

    /// What a node's disk has, if it reported that.
    pub(super) fn status(&self, node: NodeId) -> Option<DiskStatus> {
        let (DiskSpace { free, total }, low) = *self.known.get(&node)?;
        Some(DiskStatus { free, total, low: low.is_some() })
    }
}

impl ControllerNode {
    /// Looks at the own disk now and then, beside the loop.
    pub(super) fn check_disk_space(&mut self) {
        if !self.member_disks.own.handle_tick() {
            return;
        }
        let (keeper, arrivals) = (self.checkpoint_thread.clone(), self.completions.clone());
        tokio::spawn(async move {
            let _ = arrivals.send(ControllerCompletion::DiskSpace(keeper.disk_space().await)).await;
        });
    }

    pub(super) fn handle_disk_space(&mut self, found: Option<DiskSpace>) {
        self.member_disks.own.note(found, self.run_log.checkpoint_bytes());
        let Some(room) = found else { return };
        let (own, low) = (self.setup.node, self.member_disks.own.low());
        self.note_member_disk(own, room, low);
        let others = self.core.state().controllers().filter(|node| *node != own);
        others.for_each(|node| self.send_node(node, &NodeMessage::Room { room, low }));
    }

    /// A member reports the room on its disk. Each controller warns once, and the leader has removed what
    /// nobody refers to.
    pub(super) fn note_member_disk(
        &mut self,
        node: NodeId,
        room: DiskSpace,
        low: Option<DiskSpaceShortage>,
    ) {
        if !self.core.state().members().contains_key(&node) {
            return;
        }
        let before = self.member_disks.known.insert(node, (room, low));
        let was_low = before.is_some_and(|(_, low)| low.is_some());
        match low {
            Some(DiskSpaceShortage { wanted, free, .. }) if !was_low => {
                self.journal.warn(format!(
                    "the disk of node {node} is low: {free} of {} are free, a checkpoint takes up to {wanted}; \
                     pieces that find no room go to other nodes: free space there, or keep fewer checkpoints \
                     (checkpoint.keep_last, runs remove)",
                    room.total
                ));
                self.collect_unused();
            }
            None if was_low => {
                self.journal.log(format!("the disk of node {node} has room again: {}", room.free));
            }
            Some(_) | None => {}
        }
    }
}
