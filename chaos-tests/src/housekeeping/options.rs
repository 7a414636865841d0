//! What a life is lived from, drawn from its seed.

use std::fmt;

use zbelastic_checkpoint::FileOperation;

use crate::queue::VirtualTime;
use crate::random::{DrawPurpose, Draws};

/// Faults are injected until then.
pub const STORM_US: u64 = 100_000_000;
/// And everything is well from then to the end: long enough for two passes over a disk, and for a
/// look at a certificate.
pub const CALM_US: u64 = 100_000_000;
/// The longest that a fault with an end lasts.
const FAULT_US_MAX: u64 = 25_000_000;
const HOUR_S: u64 = 3600;
/// Operations of which one may fail: those that write. What is damaged for readers flips bits.
const FAILING_OPERATIONS: [FileOperation; 5] = [
    FileOperation::Create,
    FileOperation::Write,
    FileOperation::Sync,
    FileOperation::SyncFolder,
    FileOperation::Rename,
];
/// Operations of its kind that work before one fails: as many as a few pieces take.
const OPERATIONS_BEFORE_MAX: u64 = 12;

/// A fault. Its member is drawn before: a number (`whom`) that is turned into a member when the
/// fault is injected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HousekeepingFault {
    /// Something else fills the disk.
    DiskFull {
        /// The member, by a draw.
        whom: u64,
        /// Microseconds for which the disk is full.
        for_us: u64,
    },
    /// Something else fills the disks of controllers' logs, which are others than those of their stores.
    LogsFill {
        /// The controllers, by the bits of a draw.
        whom: u64,
        /// Microseconds for which there is hardly any space.
        for_us: u64,
    },
    /// The store accepts nothing, though there is space.
    StoreStuck {
        /// The member, by a draw.
        whom: u64,
        /// Microseconds for which the store takes nothing.
        for_us: u64,
    },
    /// One operation of the store's files fails, in the midst of whatever the store does then.
    OperationFails {
        /// The member, by a draw.
        whom: u64,
        /// The kind of operation.
        operation: FileOperation,
        /// Operations of that kind that work until then.
        after: u64,
    },
    /// A bit of the index of a store flips while its process runs, and a read finds that.
    IndexRots {
        /// The member, by a draw.
        whom: u64,
    },
    /// The process dies and comes back.
    Crash {
        /// The member, by a draw.
        whom: u64,
        /// Microseconds until it comes back.
        for_us: u64,
        /// Whether the index of its store is damaged then.
        is_damaged: bool,
    },
    /// The process stands still.
    Pause {
        /// The member, by a draw.
        whom: u64,
        /// Microseconds for which it stands still.
        for_us: u64,
    },
    /// A machine is suspended, and hours pass for all.
    Suspend {
        /// The member, by a draw.
        whom: u64,
        /// Seconds for which the machine is suspended.
        seconds: u64,
    },
    /// All clocks are moved forward.
    ClocksMove {
        /// By so many seconds.
        seconds: u64,
    },
    /// A bit of a piece flips on a disk.
    RotPiece {
        /// The member, by a draw.
        whom: u64,
    },
    /// A bit of a text flips on a disk.
    RotText {
        /// The member, by a draw.
        whom: u64,
    },
    /// A bit of the text flips on every disk, of a chunk that is another one on each as far as chunks go.
    RotTextEverywhere {
        /// The place, by a draw.
        place: u64,
    },
    /// A bit flips on a disk in the hashes of a text's chunks.
    RotHashes {
        /// The member, by a draw.
        whom: u64,
    },
    /// A worker is removed by an operator: the hostile one, if there is one.
    Remove {
        /// Another worker, by a draw, if no member is hostile.
        whom: u64,
    },
    /// A worker joins the cluster.
    Join,
    /// Another certificate authority follows.
    RotateAuthority {
        /// Whether those who are away are not waited for.
        is_forced: bool,
    },
}

/// What a life is lived from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HousekeepingOptions {
    /// Number of controllers of the cluster.
    pub controllers: u64,
    /// Workers at the beginning.
    pub workers: u64,
    /// Whether one of them has the credentials of a member and means harm.
    pub is_hostile: bool,
    /// Whether workers are ephemeral.
    pub is_ephemeral: bool,
    /// Layers of the model as checkpoints have it.
    pub layers: u32,
    /// Number of checkpoints that are kept.
    pub kept: usize,
    /// Copies of a piece that are wanted on other nodes.
    pub copies: usize,
    /// From one checkpoint to the next.
    pub checkpoint_us: u64,
    /// The longest that a message takes.
    pub link_us: u64,
    /// The longest that a piece takes to be fetched or written.
    pub write_us: u64,
    /// Workers that have little memory, by their place.
    pub small: Vec<bool>,
    /// Faults, each with the time at which it is injected.
    pub faults: Vec<(VirtualTime, HousekeepingFault)>,
}

impl HousekeepingOptions {
    /// Those of a seed.
    #[must_use]
    pub fn draw(seed: u64) -> Self {
        let mut draws = Draws::new(seed, DrawPurpose::Housekeeping);
        let workers = draws.between(1, 5);
        let small_chance = if draws.chance(0.5) { 0.4 } else { 0.0 };
        let mut options = Self {
            controllers: *draws.pick(&[1, 3, 3]),
            workers,
            is_hostile: draws.chance(0.6),
            is_ephemeral: draws.chance(0.5),
            layers: draws.between(2, 5) as u32,
            kept: draws.between(2, 3) as usize,
            copies: draws.between(1, 2) as usize,
            checkpoint_us: draws.between(3_000_000, 9_000_000),
            link_us: draws.between(200, 50_000),
            write_us: draws.between(500, 400_000),
            small: (0..workers).map(|_| draws.chance(small_chance)).collect(),
            faults: Vec::new(),
        };
        let count = draws.between(4, 14);
        let faults = (0..count).map(|_| (VirtualTime(draws.below(STORM_US)), fault(&mut draws)));
        options.faults = faults.collect();
        let mut draws = Draws::new(seed, DrawPurpose::HousekeepingRotation);
        for _ in 0..draws.below(3) {
            let at = VirtualTime(draws.below(STORM_US));
            let is_forced = draws.chance(0.6);
            options.faults.push((at, HousekeepingFault::RotateAuthority { is_forced }));
        }
        let mut draws = Draws::new(seed, DrawPurpose::HousekeepingHashes);
        for _ in 0..draws.below(3) {
            let at = VirtualTime(draws.below(STORM_US));
            options.faults.push((at, HousekeepingFault::RotHashes { whom: draws.number() }));
        }
        if draws.chance(0.25) {
            let at = VirtualTime(draws.below(STORM_US));
            let fault = HousekeepingFault::RotTextEverywhere { place: draws.number() };
            options.faults.push((at, fault));
        }
        let mut draws = Draws::new(seed, DrawPurpose::HousekeepingDisks);
        for _ in 0..draws.below(4) {
            let at = VirtualTime(draws.below(STORM_US));
            let (whom, operation) = (draws.number(), *draws.pick(&FAILING_OPERATIONS));
            let after = draws.below(OPERATIONS_BEFORE_MAX);
            options.faults.push((at, HousekeepingFault::OperationFails { whom, operation, after }));
        }
        let mut draws = Draws::new(seed, DrawPurpose::HousekeepingLogs);
        for _ in 0..draws.below(3) {
            let at = VirtualTime(draws.below(STORM_US));
            let whom = draws.number();
            let for_us = draws.between(200_000, FAULT_US_MAX);
            options.faults.push((at, HousekeepingFault::LogsFill { whom, for_us }));
        }
        let mut draws = Draws::new(seed, DrawPurpose::HousekeepingIndexes);
        for _ in 0..draws.below(3) {
            let at = VirtualTime(draws.below(STORM_US));
            options.faults.push((at, HousekeepingFault::IndexRots { whom: draws.number() }));
        }
        options.faults.sort_by_key(|(at, _)| *at);
        options
    }
}

fn fault(draws: &mut Draws) -> HousekeepingFault {
    let whom = draws.number();
    let for_us = draws.between(200_000, FAULT_US_MAX);
    match draws.below(11) {
        0 => HousekeepingFault::DiskFull { whom, for_us },
        1 => HousekeepingFault::StoreStuck { whom, for_us },
        2 | 3 => {
            HousekeepingFault::Crash { whom, for_us: for_us / 4, is_damaged: draws.chance(0.5) }
        }
        4 => HousekeepingFault::Pause { whom, for_us },
        5 => HousekeepingFault::Suspend { whom, seconds: draws.between(1, 60) * HOUR_S },
        6 => HousekeepingFault::ClocksMove { seconds: draws.between(1, 20) * HOUR_S },
        7 => HousekeepingFault::RotPiece { whom },
        8 => HousekeepingFault::RotText { whom },
        9 => HousekeepingFault::Remove { whom },
        _ => HousekeepingFault::Join,
    }
}

impl fmt::Display for HousekeepingOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { controllers, workers, is_hostile, layers, kept, copies, .. } = self;
        let hostile = if *is_hostile { ", one hostile" } else { "" };
        write!(
            f,
            "{controllers} controllers, {workers} workers{hostile}; {layers} layers, {kept} checkpoints \
             kept with {copies} copies; {} faults",
            self.faults.len()
        )
    }
}
