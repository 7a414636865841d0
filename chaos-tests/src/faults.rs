//! The faults that are injected at drawn times, drawn from a life's options.

use serde::{Deserialize, Serialize};

use crate::crash_points::CrashPoint;
use crate::machine_traces::{ChurnBatch, churn};
use crate::options::{FaultClass, LifeOptions};
use crate::random::{DrawPurpose, Draws};

/// Which links a partition cuts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PartitionKind {
    /// One node from all others.
    Isolate,
    /// One node receives nothing, and others receive its messages.
    Deaf,
    /// Nothing that one node sends arrives, and it receives.
    Mute,
    /// One pair of nodes.
    Pair,
    /// The controllers in two groups; workers stay connected with both.
    Controllers,
    /// All nodes in two groups.
    Halves,
}

/// A fault. Machines are named by a draw, so that a fault keeps its meaning when others are
/// removed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum SimulatedFault {
    /// A controller dies and comes back.
    CrashController {
        /// Draw that picks the controller.
        draw: u64,
        /// Microseconds until it comes back.
        down_us: u64,
    },
    /// The leader dies and comes back.
    CrashLeader {
        /// Microseconds until it comes back.
        down_us: u64,
    },
    /// Workers die and come back.
    CrashWorkers {
        /// Draw that picks the first of them.
        draw: u64,
        /// Number of workers that die.
        count: u32,
        /// Whether their stages lie side by side.
        contiguous: bool,
        /// Microseconds until they come back.
        down_us: u64,
    },
    /// All workers but one die.
    AllButOne {
        /// Draw that picks the worker that stays.
        draw: u64,
        /// Microseconds until the others come back.
        down_us: u64,
    },
    /// Every machine loses power.
    PowerCycle {
        /// Microseconds until the power is back, at least.
        down_us: u64,
    },
    /// The next process that comes to this point dies there.
    CrashAt {
        /// The crash point at which it dies.
        point: CrashPoint,
        /// How often it is passed before.
        passes: u32,
        /// After so long it comes back.
        down_us: u64,
    },
    /// A machine stands still and goes on.
    Pause {
        /// Draw that picks the machine.
        draw: u64,
        /// Microseconds for which it stands still.
        us: u64,
    },
    /// Links between nodes carry nothing.
    Partition {
        /// Which links are cut.
        cut: PartitionKind,
        /// Draw that picks the nodes of the cut.
        draw: u64,
        /// Microseconds for which they are cut.
        us: u64,
    },
    /// A worker's operations last longer.
    Slow {
        /// Draw that picks the worker.
        draw: u64,
        /// The factor by which an operation lasts longer.
        factor: u32,
        /// Microseconds for which it is slow.
        us: u64,
    },
    /// A worker's next operation never ends.
    Hang {
        /// Draw that picks the worker.
        draw: u64,
    },
    /// A connection between two machines closes.
    Close {
        /// Draw that picks the worker that the connection belongs to.
        draw: u64,
    },
    /// Syncs of a disk are slow.
    SlowDisk {
        /// Draw that picks the controller that the disk belongs to.
        draw: u64,
        /// Microseconds by which each sync lasts longer.
        sync_us: u64,
        /// Microseconds for which the disk is slow.
        us: u64,
    },
    /// A disk fails: its controller stops and begins anew as another node.
    FailDisk {
        /// Draw that picks the controller.
        draw: u64,
    },
    /// A controller dies, and its disk comes back as it was a while ago.
    StaleDisk {
        /// Draw that picks the controller.
        draw: u64,
        /// Age of the disk's contents when it comes back, in microseconds.
        age_us: u64,
    },
    /// A controller dies, and its disk is empty.
    LostDisk {
        /// Draw that picks the controller.
        draw: u64,
    },
    /// A bit of a disk flips, and its controller restarts.
    FlipDisk {
        /// Draw that picks the controller.
        draw: u64,
    },
    /// Writes to the store fail.
    FailStore {
        /// Microseconds for which writes fail.
        us: u64,
    },
    /// A bit of a checkpoint flips.
    FlipStore,
    /// A gradient is not finite.
    Mark {
        /// Draw that picks the worker.
        draw: u64,
        /// Infinite, not no number.
        infinite: bool,
        /// So many times one after the other.
        times: u32,
    },
    /// A sum is wrong.
    WrongSum {
        /// Draw that picks the worker.
        draw: u64,
        /// The factor by which the sum is wrong.
        factor: f64,
    },
    /// A bit of a state flips.
    FlipState {
        /// Draw that picks the worker.
        draw: u64,
        /// Index of the bit that flips.
        bit: u32,
    },
    /// A device whose sums are always wrong from now on.
    AlwaysWrong {
        /// Draw that picks the worker that the device belongs to.
        draw: u64,
    },
    /// Machines join the cluster as workers.
    Join {
        /// Number of machines that come.
        count: u32,
    },
    /// A worker announces that it goes, and goes after a while, done or not.
    Drain {
        /// Draw that picks the worker.
        draw: u64,
        /// Microseconds from the announcement until it goes.
        grace_us: u64,
    },
    /// A majority of the voters is gone for good.
    LoseMajority {
        /// Which is the first.
        draw: u64,
    },
    /// A controller is replaced by another while it is well, and goes a while later.
    Retire {
        /// Draw that picks the controller that goes.
        draw: u64,
        /// Whether the one that comes and the leader are cut off from the others, for so long, in
        /// the moment in which it has caught up.
        cut_us: Option<u64>,
    },
    /// Leadership is transferred to another voter.
    Transfer {
        /// Draw that picks the controller.
        draw: u64,
    },
}

/// A fault at its moment.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TimedFault {
    /// Moment of the fault, in microseconds of virtual time.
    pub at_us: u64,
    /// The fault that is injected.
    pub fault: SimulatedFault,
}

/// Faults of a life at least.
const FAULTS_MIN: u64 = 8;

/// And at most, but for churn from a trace.
const FAULTS_MAX: u64 = 16;

/// The faults of a life, in order.
#[must_use]
pub fn draw_faults(seed: u64, options: &LifeOptions) -> Vec<TimedFault> {
    let mut draws = Draws::new(seed, DrawPurpose::Faults);
    let mut faults = Vec::new();
    let timed: Vec<FaultClass> = options.classes.iter().copied().filter(is_timed).collect();
    let count = draws.between(FAULTS_MIN, FAULTS_MAX);
    for _ in 0..count {
        let class = if timed.is_empty() { FaultClass::Crashes } else { *draws.pick(&timed) };
        let at_us = draws.between(300_000, options.storm_us);
        if let Some(fault) = draw_fault(&mut draws, class, options) {
            faults.push(TimedFault { at_us, fault });
        }
    }
    if options.has(FaultClass::MajorityLost) {
        let at_us = draws.between(options.storm_us / 3, options.storm_us);
        faults.push(TimedFault {
            at_us,
            fault: SimulatedFault::LoseMajority { draw: draws.number() },
        });
    }
    if options.has(FaultClass::Churn) {
        faults.extend(draw_trace(&mut draws, options));
    }
    faults.sort_by_key(|timed| timed.at_us);
    faults
}

/// The joins and losses of a window of a trace.
fn draw_trace(draws: &mut Draws, options: &LifeOptions) -> Vec<TimedFault> {
    let batches = churn(draws, options);
    let contiguous = draws.chance(0.5);
    let timed = batches.map(|ChurnBatch { at_us, count, is_join }| {
        let fault = if is_join {
            SimulatedFault::Join { count }
        } else {
            // The trace shows when a machine came back; here that is a join of its own.
            let down_us = options.storm_us;
            SimulatedFault::CrashWorkers { draw: draws.number(), count, contiguous, down_us }
        };
        TimedFault { at_us, fault }
    });
    timed.collect()
}

/// Whether a class is injected at drawn times, and not at every message.
fn is_timed(class: &FaultClass) -> bool {
    match class {
        FaultClass::Loss
        | FaultClass::Duplication
        | FaultClass::Reordering
        | FaultClass::OldFrames
        | FaultClass::MajorityLost => false,
        FaultClass::Partitions
        | FaultClass::Crashes
        | FaultClass::CrashPoints
        | FaultClass::Pauses
        | FaultClass::SlowWork
        | FaultClass::Disks
        | FaultClass::Store
        | FaultClass::Numbers
        | FaultClass::SilentErrors
        | FaultClass::Mass
        | FaultClass::Churn => true,
    }
}

fn draw_fault(
    draws: &mut Draws,
    class: FaultClass,
    options: &LifeOptions,
) -> Option<SimulatedFault> {
    let draw = draws.number();
    let down_us = draws.between(50_000, 6_000_000);
    let us = draws.between(50_000, 5_000_000);
    let fault = match class {
        FaultClass::Crashes => draw_crash(draws, draw, down_us),
        FaultClass::CrashPoints => {
            let point = *draws.pick(&CrashPoint::ALL);
            SimulatedFault::CrashAt {
                point,
                passes: draws.below(point.passes_limit()) as u32,
                down_us,
            }
        }
        FaultClass::Pauses => SimulatedFault::Pause { draw, us },
        FaultClass::Partitions => {
            let cuts = [
                PartitionKind::Isolate,
                PartitionKind::Deaf,
                PartitionKind::Mute,
                PartitionKind::Pair,
                PartitionKind::Controllers,
                PartitionKind::Halves,
            ];
            SimulatedFault::Partition { cut: *draws.pick(&cuts), draw, us }
        }
        FaultClass::SlowWork => match draws.below(3) {
            0 => SimulatedFault::Hang { draw },
            1 => SimulatedFault::Close { draw },
            _ => SimulatedFault::Slow { draw, factor: draws.between(2, 12) as u32, us },
        },
        FaultClass::Disks => draw_disk_fault(draws, draw, us),
        FaultClass::Store if draws.chance(0.5) => SimulatedFault::FlipStore,
        FaultClass::Store => SimulatedFault::FailStore { us },
        FaultClass::Numbers => {
            let times = draws.between(1, 3) as u32;
            SimulatedFault::Mark { draw, infinite: draws.chance(0.5), times }
        }
        FaultClass::SilentErrors => draw_silent_error(draws, draw),
        FaultClass::Mass => draw_mass_fault(draws, (draw, down_us), options.workers),
        FaultClass::Churn => draw_churn(draws, draw, us),
        FaultClass::Loss
        | FaultClass::Duplication
        | FaultClass::Reordering
        | FaultClass::OldFrames
        | FaultClass::MajorityLost => return None,
    };
    Some(fault)
}

fn draw_crash(draws: &mut Draws, draw: u64, down_us: u64) -> SimulatedFault {
    match draws.below(4) {
        0 => SimulatedFault::CrashController { draw, down_us },
        1 => SimulatedFault::CrashLeader { down_us },
        2 => SimulatedFault::Transfer { draw },
        _ => SimulatedFault::CrashWorkers { draw, count: 1, contiguous: false, down_us },
    }
}

fn draw_disk_fault(draws: &mut Draws, draw: u64, us: u64) -> SimulatedFault {
    match draws.below(5) {
        0 => SimulatedFault::FailDisk { draw },
        1 => SimulatedFault::StaleDisk { draw, age_us: draws.between(100_000, 4_000_000) },
        2 => SimulatedFault::LostDisk { draw },
        3 => SimulatedFault::FlipDisk { draw },
        _ => SimulatedFault::SlowDisk { draw, sync_us: draws.between(100_000, 3_000_000), us },
    }
}

fn draw_silent_error(draws: &mut Draws, draw: u64) -> SimulatedFault {
    match draws.below(6) {
        0 => SimulatedFault::AlwaysWrong { draw },
        1 | 2 => SimulatedFault::FlipState { draw, bit: draws.below(64) as u32 },
        3 => SimulatedFault::WrongSum { draw, factor: 1e8 },
        _ => SimulatedFault::WrongSum { draw, factor: 1.0 + 1e-12 },
    }
}

fn draw_mass_fault(draws: &mut Draws, (draw, down_us): (u64, u64), workers: u32) -> SimulatedFault {
    match draws.below(4) {
        0 => SimulatedFault::PowerCycle { down_us },
        1 => SimulatedFault::AllButOne { draw, down_us },
        _ => {
            let count = draws.between(2, u64::from(workers.max(2))) as u32;
            SimulatedFault::CrashWorkers { draw, count, contiguous: draws.chance(0.5), down_us }
        }
    }
}

fn draw_churn(draws: &mut Draws, draw: u64, us: u64) -> SimulatedFault {
    match draws.below(4) {
        0 => {
            // Long enough for the controllers that are cut off to elect a leader.
            let cut_us = draws.chance(0.5).then_some(2_000_000 + us);
            SimulatedFault::Retire { draw, cut_us }
        }
        1 => SimulatedFault::Join { count: draws.between(1, 3) as u32 },
        _ => SimulatedFault::Drain { draw, grace_us: draws.between(20_000, 4_000_000) },
    }
}
