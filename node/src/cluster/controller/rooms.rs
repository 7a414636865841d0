//! Room on the disks of all members: this node's own, and what others report of theirs.

use std::collections::BTreeMap;

use zbelastic_types::NodeId;

use super::{Arrived, Controller};
use crate::api::DiskStatus;
use crate::cluster::room::{DiskRoom, NoRoom, RoomWatch};
use crate::cluster::wire::NodeMessage;

/// What is known of the members' disks.
#[derive(Default)]
pub(super) struct Rooms {
    own: RoomWatch,
    /// Of this node, and of those that are connected.
    known: BTreeMap<NodeId, (DiskRoom, Option<NoRoom>)>,
}

impl Rooms {
    /// A node is not connected any more.
    pub(super) fn note_down(&mut self, node: NodeId) {
        self.known.remove(&node);
    }

    /// What a node's disk has, if it reported that.
    pub(super) fn status(&self, node: NodeId) -> Option<DiskStatus> {
        let (DiskRoom { free, total }, low) = *self.known.get(&node)?;
        Some(DiskStatus { free, total, low: low.is_some() })
    }
}

impl Controller {
    /// Looks at the own disk now and then, beside the loop.
    pub(super) fn look_at_room(&mut self) {
        if !self.rooms.own.handle_tick() {
            return;
        }
        let (keeper, arrivals) = (self.keeper.clone(), self.arrivals.clone());
        tokio::spawn(async move {
            let _ = arrivals.send(Arrived::Room(keeper.room().await)).await;
        });
    }

    pub(super) fn handle_room(&mut self, found: Option<DiskRoom>) {
        self.rooms.own.note(found, self.chronicle.checkpoint_bytes());
        let Some(room) = found else { return };
        let (own, low) = (self.setup.node, self.rooms.own.low());
        self.note_room(own, room, low);
        let others = self.core.state().controllers().filter(|node| *node != own);
        others.for_each(|node| self.send_node(node, &NodeMessage::Room { room, low }));
    }

    /// A member reports the room on its disk. Each controller warns once, and the leader has removed what
    /// nobody refers to.
    pub(super) fn note_room(&mut self, node: NodeId, room: DiskRoom, low: Option<NoRoom>) {
        if !self.core.state().members().contains_key(&node) {
            return;
        }
        let before = self.rooms.known.insert(node, (room, low));
        let was_low = before.is_some_and(|(_, low)| low.is_some());
        match low {
            Some(NoRoom { wanted, free, .. }) if !was_low => {
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
