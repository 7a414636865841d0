//! Stores that are closed while their processes run.

use std::collections::BTreeMap;

use zbelastic_types::NodeId;

use super::cluster::HousekeepingCluster;
use crate::queue::VirtualTime;

/// From a store that stopped to the first attempt to open it again, which is made at once: a second that
/// has begun, and the next.
const AT_ONCE_S: u64 = 2;
/// From the first attempt to the second; each further one doubles it.
const PAUSE_S: u64 = 10;

/// What is known of stores that are closed.
#[derive(Default)]
pub(super) struct ClosedStores {
    /// Since when the store of a member is closed, though its process runs and its disk has space.
    since: BTreeMap<NodeId, VirtualTime>,
    /// Faults that were injected into each disk, of which every one may end an attempt.
    faults: BTreeMap<NodeId, u32>,
}

impl ClosedStores {
    /// A fault was injected into the disk of a member.
    pub(super) fn note_fault(&mut self, node: NodeId) {
        *self.faults.entry(node).or_default() += 1;
    }

    /// H15: a member whose store is closed for longer than the attempts that failed before account for.
    pub(super) fn late(&mut self, cluster: &HousekeepingCluster) -> Option<String> {
        for member in cluster.members.values().filter(|member| !member.is_hostile) {
            let node = member.node;
            if !member.disk.has_stopped() {
                self.since.remove(&node);
                continue;
            }
            let is_able = member.is_up() && !member.disk.is_filled && !member.disk.is_stuck;
            if !is_able {
                self.since.insert(node, cluster.now);
                continue;
            }
            let since = *self.since.entry(node).or_insert(cluster.now);
            // The last of them is the one that stopped the store.
            let failed = self.faults.get(&node).map_or(0, |faults| faults.saturating_sub(1));
            let pause = failed.checked_sub(1).map_or(0, |doubled| PAUSE_S << doubled);
            if cluster.is_over(since, AT_ONCE_S + pause) {
                return Some(format!(
                    "the store of n{node} is closed since {since}, and its disk takes what is written"
                ));
            }
        }
        None
    }
}
