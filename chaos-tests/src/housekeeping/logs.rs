//! Logs of controllers that find hardly any space: what each controller knows of them, and that a leader seals nothing
//! while the controllers whose logs have space are no majority.

use std::collections::BTreeSet;

use zbelastic_policy::disk_space::{DiskSpace, DiskSpaceShortage};
use zbelastic_policy::full_logs::FullLogs;
use zbelastic_types::NodeId;

use super::cluster::HousekeepingCluster;
use crate::queue::VirtualTime;

/// From a log that is nearly full, or has space again, to a leader that knows of it: a look at the disk every 5 s, and
/// a message.
const KNOWN_S: u64 = 6;

/// The space that a controller reports of its disks, and why it is low.
pub(super) type DiskReport = (DiskSpace, Option<DiskSpaceShortage>);

/// What a controller knows of the logs of all controllers.
#[derive(Debug, Default)]
pub struct ControllerLogs {
    full: FullLogs,
    /// Controllers that reported, as long as they are connected.
    reported: BTreeSet<NodeId>,
    /// Since when this controller leads, if it does.
    leads_since: Option<VirtualTime>,
    /// The controllers for whose logs it holds the run, if it leads.
    pub(super) held: BTreeSet<NodeId>,
}

impl ControllerLogs {
    /// A controller is not connected any more.
    pub(super) fn note_down(&mut self, node: NodeId) {
        self.reported.remove(&node);
    }

    /// This controller leads, or does not. One that does not holds nothing.
    pub(super) fn note_leading(&mut self, leads: bool, now: VirtualTime) {
        self.leads_since = leads.then(|| self.leads_since.unwrap_or(now));
        if !leads {
            self.held.clear();
        }
    }

    pub(super) fn note_report(
        &mut self,
        node: NodeId,
        (space, low): DiskReport,
        (controllers, leads): (&[NodeId], bool),
    ) {
        self.reported.insert(node);
        self.full.note(node, space, low);
        let full = self.full.report(controllers, |node| self.reported.contains(&node));
        if let Some(full) = full.filter(|_| leads) {
            self.held = full;
        }
    }
}

/// H14: why a leader that is to seal a version may not hold the run, or has to hold it.
pub(super) fn broken_hold(
    cluster: &HousekeepingCluster,
    leader: NodeId,
    is_held: bool,
) -> Option<String> {
    let leads_since = cluster.members[&leader].process.logs.leads_since?;
    let controllers = cluster.controllers();
    let is_known = |node: &NodeId| {
        let member = &cluster.members[node];
        let is_near = *node == leader || cluster.is_linked(leader, *node);
        let since = leads_since.max(member.led_since).max(member.log_since);
        member.is_up() && is_near && cluster.is_over(since, KNOWN_S)
    };
    let (full, ample): (Vec<NodeId>, Vec<NodeId>) = { controllers.iter().copied() }
        .filter(is_known)
        .partition(|node| cluster.members[node].disk.is_log_full());
    let is_majority = |count: usize| 2 * count > controllers.len();
    match is_held {
        true => is_majority(ample.len())
            .then(|| format!("n{leader} holds the run, and the logs of {ample:?} have space")),
        false => (!full.is_empty() && !is_majority(controllers.len() - full.len()))
            .then(|| format!("n{leader} seals, and the logs of {full:?} are nearly full")),
    }
}
