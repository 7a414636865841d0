//! Controllers whose logs find hardly any space: each of them is about to end, since it can promise nothing that it
//! cannot write. While so few others are there that these would be no majority, no further step is to be sealed: logs
//! grow by seals.

use std::collections::BTreeSet;

use zbelastic_consensus::mutant::{self, Mutant};
use zbelastic_types::{Bytes, NodeId};

use crate::disk_space::{DiskSpace, DiskSpaceShortage};

/// A log is nearly full while less than one of so many parts of the reserve, which pieces leave free, is free. Pieces of
/// checkpoints never come so far, so that a store on the same disk holds no run by itself.
const FULL_PARTS: u64 = 4;
/// It is so until one of so many parts is free.
const AMPLE_PARTS: u64 = 2;

/// The controllers whose logs are nearly full.
#[derive(Debug, Default)]
pub struct FullLogs {
    nodes: BTreeSet<NodeId>,
    /// Those that were reported last.
    reported: BTreeSet<NodeId>,
}

impl FullLogs {
    /// A node has reported so much space on its disk, and why it is low.
    pub fn note(&mut self, node: NodeId, space: DiskSpace, low: Option<DiskSpaceShortage>) {
        let parts = if self.nodes.contains(&node) { AMPLE_PARTS } else { FULL_PARTS };
        // A disk with too little for a piece wants the bytes of one.
        let is_log = low.is_some_and(|low| low.wanted == Bytes(0));
        if is_log && space.free.0 < space.reserve().0 / parts {
            self.nodes.insert(node);
        } else {
            self.nodes.remove(&node);
        }
    }

    /// The controllers for whose logs the run is to be held, which are none while the others that are there are a
    /// majority. Nothing if there were none before either.
    pub fn report(
        &mut self,
        controllers: &[NodeId],
        is_there: impl Fn(NodeId) -> bool,
    ) -> Option<BTreeSet<NodeId>> {
        let is_full = |node: &NodeId| self.nodes.contains(node);
        let is_left = |node: &&NodeId| is_there(**node) && !is_full(node);
        let left = controllers.iter().filter(is_left).count();
        let is_safe =
            2 * left > controllers.len() || left > 0 && mutant::is(Mutant::M62HeldWithTheLastLog);
        let full = controllers.iter().copied().filter(|node| !is_safe && is_full(node)).collect();
        let before = std::mem::replace(&mut self.reported, full);
        let is_news = !self.reported.is_empty() || !before.is_empty();
        is_news.then(|| self.reported.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const CONTROLLERS: [NodeId; 3] = [NodeId(1), NodeId(2), NodeId(3)];

    /// A node reports its log's disk, of which 400 MiB stay free.
    fn note(logs: &mut FullLogs, node: u64, free_mib: u64) {
        let free = Bytes(free_mib * MIB);
        let space = DiskSpace { free, total: Bytes(8000 * MIB) };
        logs.note(NodeId(node), space, space.check(Bytes(0)).err());
    }

    #[test]
    fn a_log_is_nearly_full_long_after_its_disk_is_low_and_ample_only_with_more() {
        let mut logs = FullLogs::default();
        let mut full = |free| {
            note(&mut logs, 1, free);
            logs.report(&CONTROLLERS[..1], |_| true)
        };
        assert_eq!(full(399), None, "it is low");
        assert_eq!(full(100), None);
        let one = BTreeSet::from([NodeId(1)]);
        assert_eq!(full(99), Some(one.clone()));
        assert_eq!(full(99), Some(one.clone()), "another leader does not know it yet");
        assert_eq!(full(199), Some(one), "it would be nearly full again at once");
        assert_eq!(full(200), Some(BTreeSet::new()));
        assert_eq!(full(200), None);
    }

    #[test]
    fn a_run_is_held_only_where_the_others_are_no_majority() {
        let mut logs = FullLogs::default();
        note(&mut logs, 1, 10);
        assert_eq!(logs.report(&CONTROLLERS, |_| true), None);
        let first = Some(BTreeSet::from([NodeId(1)]));
        assert_eq!(logs.report(&CONTROLLERS, |node| node != NodeId(3)), first, "another is gone");
        assert_eq!(logs.report(&CONTROLLERS, |_| true), Some(BTreeSet::new()));
        note(&mut logs, 3, 10);
        let both = Some(BTreeSet::from([NodeId(1), NodeId(3)]));
        assert_eq!(logs.report(&CONTROLLERS, |_| true), both);
        assert_eq!(
            logs.report(&CONTROLLERS, |node| node != NodeId(1)),
            both,
            "it has ended for it"
        );
        assert_eq!(logs.report(&CONTROLLERS[1..2], |_| true), Some(BTreeSet::new()), "removed");
    }

    #[test]
    fn a_disk_without_space_for_a_piece_is_no_full_log() {
        let mut logs = FullLogs::default();
        let space = DiskSpace { free: Bytes(MIB), total: Bytes(8000 * MIB) };
        logs.note(NodeId(1), space, space.check(Bytes(MIB)).err());
        assert_eq!(logs.report(&CONTROLLERS[..1], |_| true), None);
    }
}
