//! Space on the disks that a node's store and its other data lie on: which pieces of checkpoints
//! fit, and when a disk counts as low, which is reported before it is full.
//!
//! A controller's log, its events and files that are replaced as a whole grow beside the store,
//! unless that has a disk of its own. So pieces leave a part of their disk free, and the other disk
//! is low without such a part: a full store costs a checkpoint, a full log a voter.

use std::fmt;

use serde::{Deserialize, Serialize};
use zbelastic_types::{Bytes, NodeId};

/// The part of a disk that pieces leave free: one of so many. As much as ext4 keeps for its owner.
const RESERVE_PARTS: u64 = 20;
/// The most that they leave free: many times the log of the largest cluster between two snapshots.
const RESERVE_MAX: Bytes = Bytes(512 << 20);
/// Ticks from one measurement to the next. Pieces written meanwhile are checked one by one.
const MEASURE_TICKS: u32 = 500;
/// A disk that was low is so until a checkpoint and one of so many parts of it fit, or of the reserve.
const AMPLE_PARTS: u64 = 4;

/// Free and total space of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskSpace {
    /// Bytes that this process may still write.
    pub free: Bytes,
    /// Bytes of the whole disk.
    pub total: Bytes,
}

/// A piece does not fit on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("the disk is low: {wanted} are wanted, {free} are free, of which {reserve} stay free")]
pub struct DiskSpaceShortage {
    /// Bytes of the piece.
    pub wanted: Bytes,
    /// Bytes that are free.
    pub free: Bytes,
    /// Bytes that pieces leave.
    pub reserve: Bytes,
}

impl DiskSpace {
    pub(crate) fn reserve(self) -> Bytes {
        RESERVE_MAX.min(Bytes(self.total.0 / RESERVE_PARTS))
    }

    /// Whether so many bytes of a piece fit.
    ///
    /// # Errors
    /// If they do not.
    pub fn check(self, wanted: Bytes) -> Result<(), DiskSpaceShortage> {
        let free = self.free;
        let reserve = self.reserve();
        if free.0.saturating_sub(wanted.0) >= reserve.0 && free >= wanted {
            return Ok(());
        }
        Err(DiskSpaceShortage { wanted, free, reserve })
    }
}

/// The space on the disks of a node, as far as they could be measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeDisks {
    /// The disk of its store.
    pub store: Option<DiskSpace>,
    /// The disk of everything else, as a controller's log. It may be the same one.
    pub data: Option<DiskSpace>,
}

impl NodeDisks {
    /// The disk to report: the store's, unless the other one is low.
    #[must_use]
    pub fn reported(self) -> Option<DiskSpace> {
        let low = self.data.filter(|space| space.check(Bytes(0)).is_err());
        low.or(self.store).or(self.data)
    }

    /// Whether a checkpoint of so many bytes fits beside the store, and the other data has its reserve;
    /// with a part more of each if there is to be ample space. A disk that was not measured is taken to have
    /// it.
    fn check(self, checkpoint: Bytes, is_ample: bool) -> Result<(), DiskSpaceShortage> {
        let more = |bytes: Bytes| if is_ample { bytes.0 / AMPLE_PARTS } else { 0 };
        self.data.map_or(Ok(()), |space| space.check(Bytes(more(space.reserve()))))?;
        let pieces = Bytes(checkpoint.0.saturating_add(more(checkpoint)));
        self.store.map_or(Ok(()), |space| space.check(pieces))
    }
}

/// A change of state that a measurement of the disks found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskSpaceChange {
    /// Less is free than a checkpoint needs, which was not so before.
    Low(DiskSpaceShortage),
    /// It was low, and has space again.
    Ample,
}

/// A node's measurements of its own disks.
#[derive(Debug, Default)]
pub struct DiskSpaceWatch {
    ticks: u32,
    is_measuring: bool,
    low: Option<DiskSpaceShortage>,
}

impl DiskSpaceWatch {
    /// A tick. Returns whether the disk is to be measured now: never twice at once, for a disk may
    /// hang.
    pub fn handle_tick(&mut self) -> bool {
        self.ticks += 1;
        if self.ticks < MEASURE_TICKS || self.is_measuring {
            return false;
        }
        (self.ticks, self.is_measuring) = (0, true);
        true
    }

    /// The shortage with which it was last measured as low, if it is.
    #[must_use]
    pub const fn low(&self) -> Option<DiskSpaceShortage> {
        self.low
    }

    /// Applies a measurement. `checkpoint` are the bytes of all layers, the most of one checkpoint
    /// that a node is requested to keep.
    pub fn note(&mut self, found: NodeDisks, checkpoint: Bytes) -> Option<DiskSpaceChange> {
        self.is_measuring = false;
        found.reported()?;
        if let Err(shortage) = found.check(checkpoint, false) {
            // Of two disks that are low one after the other the log's is the one that counts.
            let is_known = self.low.replace(shortage).is_some();
            return (!is_known).then_some(DiskSpaceChange::Low(shortage));
        }
        self.low?;
        found.check(checkpoint, true).ok()?;
        self.low = None;
        Some(DiskSpaceChange::Ample)
    }
}

/// A member's disk became low, or is not any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberDiskChange {
    /// It is low, which an operator is warned of.
    Low {
        /// The member.
        node: NodeId,
        /// Bytes of the disk.
        total: Bytes,
        /// What it lacks.
        shortage: DiskSpaceShortage,
    },
    /// It was low, and has free space again.
    Ample {
        /// The member.
        node: NodeId,
        /// Bytes that are free.
        free: Bytes,
    },
}

impl fmt::Display for MemberDiskChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Low {
                node,
                total,
                shortage: DiskSpaceShortage { wanted: Bytes(0), free, reserve },
            } => write!(
                f,
                "the disk of node {node} is low: {free} of {total} are free, below the {reserve} that its log and \
                 events are left: free space there"
            ),
            Self::Low { node, total, shortage: DiskSpaceShortage { wanted, free, .. } } => write!(
                f,
                "the disk of node {node} is low: {free} of {total} are free, a checkpoint takes up to {wanted}; \
                 pieces that do not fit are kept by other nodes: free space there, or keep fewer checkpoints \
                 (checkpoint.keep_last, runs remove)"
            ),
            Self::Ample { node, free } => {
                write!(f, "the disk of node {node} has free space again: {free}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn disk_space(free: u64, total: u64) -> DiskSpace {
        DiskSpace { free: Bytes(free * MIB), total: Bytes(total * MIB) }
    }

    #[test]
    fn pieces_leave_a_part_of_the_disk_free() {
        let check =
            |free, total, wanted| disk_space(free, total).check(Bytes(wanted * MIB)).is_ok();
        assert!(check(100, 1000, 50));
        assert!(!check(100, 1000, 51), "a twentieth stays free");
        assert!(check(600, 1 << 20, 88));
        assert!(!check(600, 1 << 20, 89), "of a large disk 512 MiB");
        assert!(!check(10, 1000, 0), "it was full before");
        assert!(!check(10, 20, u64::MAX >> 20));
    }

    #[test]
    fn a_disk_is_low_once_and_ample_only_with_more_than_a_checkpoint() {
        let mut watch = DiskSpaceWatch::default();
        let of_store = |free| NodeDisks { store: Some(disk_space(free, 1000)), data: None };
        let mut note = |free| watch.note(of_store(free), Bytes(100 * MIB));
        assert_eq!(note(150), None);
        let wanted = Bytes(100 * MIB);
        let free = Bytes(149 * MIB);
        let reserve = Bytes(50 * MIB);
        assert_eq!(
            note(149),
            Some(DiskSpaceChange::Low(DiskSpaceShortage { wanted, free, reserve }))
        );
        assert_eq!(note(140), None, "it is known");
        assert_eq!(note(174), None, "it would be low again at once");
        assert_eq!(note(175), Some(DiskSpaceChange::Ample));
        assert_eq!(note(175), None);
    }

    /// A store in `checkpoint.dir` has a disk of its own, and a log that fills up stops a voter.
    #[test]
    fn a_log_on_another_disk_than_the_store_is_measured_too() {
        let mut watch = DiskSpaceWatch::default();
        let disks = |data| NodeDisks {
            store: Some(disk_space(900, 1000)),
            data: Some(disk_space(data, 1000)),
        };
        let mut note = |data| watch.note(disks(data), Bytes(100 * MIB));
        assert_eq!(note(50), None, "no piece is kept there");
        let (free, reserve) = (Bytes(49 * MIB), Bytes(50 * MIB));
        let low = DiskSpaceShortage { wanted: Bytes(0), free, reserve };
        assert_eq!(note(49), Some(DiskSpaceChange::Low(low)));
        assert_eq!(note(62), None, "it would be low again at once");
        assert_eq!(note(63), Some(DiskSpaceChange::Ample));
        let store_is_low = NodeDisks { store: Some(disk_space(60, 1000)), ..disks(900) };
        assert!(watch.note(store_is_low, Bytes(100 * MIB)).is_some());
        let both_are = NodeDisks { data: disks(49).data, ..store_is_low };
        assert_eq!(watch.note(both_are, Bytes(100 * MIB)), None, "it is known");
        assert_eq!(watch.low(), Some(low), "and the log counts");
        assert_eq!(disks(49).reported(), Some(disk_space(49, 1000)));
        assert_eq!(disks(50).reported(), Some(disk_space(900, 1000)));
        let unopened = NodeDisks { store: None, ..disks(50) };
        assert_eq!(unopened.reported(), Some(disk_space(50, 1000)), "without a store");
    }

    #[test]
    fn a_disk_that_hangs_is_not_measured_again() {
        let mut watch = DiskSpaceWatch::default();
        let measurements = |watch: &mut DiskSpaceWatch| {
            (0..3 * MEASURE_TICKS).filter(|_| watch.handle_tick()).count()
        };
        assert_eq!(measurements(&mut watch), 1);
        assert_eq!(watch.note(NodeDisks::default(), Bytes(1)), None);
        assert_eq!(measurements(&mut watch), 1, "the measurement failed, and is repeated");
    }
}
