//! Which rows there are, how often each fault is injected, and how many steps a run needs for them.
//! Pure.

use std::fmt;
use std::time::Duration;

use crate::campaign::{ProcessCampaignSetup, STEPS_APART_MIN};

/// How long a process that died stays away, in milliseconds.
pub const DOWN_MS: u64 = 500;
/// Steps without progress of its own after which a worker that came stands by.
pub const JOIN_STEPS: u64 = 12;
/// Steps are faster now and then than they were found to be.
const STEPS_SPARE: f64 = 1.5;
/// Workers of a large cluster that die at once.
pub const MASS_KILLED: usize = 8;
/// Workers that come to it at once.
pub const MASS_JOINED: usize = 16;

/// A row, or several that are measured together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MeasureRowKind {
    /// Runs that nothing disturbs, and the memory of their processes.
    Undisturbed,
    /// Processes beside threads, checkpoints, and the end of a run.
    Speed,
    /// SIGKILL to a worker.
    WorkerKilled,
    /// SIGKILL to the controller that leads.
    ControllerKilled,
    /// SIGSTOP to a worker, so short that no node should notice.
    StoppedBriefly,
    /// SIGSTOP to a worker for seconds.
    Stopped,
    /// SIGSTOP to a worker for much longer than any node waits.
    StoppedLong,
    /// A worker comes, and goes again.
    Joins,
    /// SIGTERM to a worker, which comes back.
    Drains,
    /// SIGKILL to every process at once.
    PowerCycle,
    /// SIGKILL to two workers with neighbouring stages.
    TwoKilled,
    /// SIGKILL to eight workers of a large cluster, and sixteen that come.
    Mass,
}

impl MeasureRowKind {
    /// All of them, in the order in which they are measured.
    pub const ALL: [Self; 12] = [
        Self::Undisturbed,
        Self::Speed,
        Self::WorkerKilled,
        Self::ControllerKilled,
        Self::StoppedBriefly,
        Self::Stopped,
        Self::StoppedLong,
        Self::Joins,
        Self::Drains,
        Self::PowerCycle,
        Self::TwoKilled,
        Self::Mass,
    ];
    /// Those that are measured if none are named: faults, one node at a time and all at once.
    pub const USUAL: [Self; 8] = [
        Self::WorkerKilled,
        Self::ControllerKilled,
        Self::StoppedBriefly,
        Self::Stopped,
        Self::StoppedLong,
        Self::Joins,
        Self::Drains,
        Self::PowerCycle,
    ];

    /// Its name, as it is typed.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Undisturbed => "undisturbed",
            Self::Speed => "speed",
            Self::WorkerKilled => "worker-killed",
            Self::ControllerKilled => "controller-killed",
            Self::StoppedBriefly => "stopped-0.3s",
            Self::Stopped => "stopped-3s",
            Self::StoppedLong => "stopped-30s",
            Self::Joins => "joins",
            Self::Drains => "drains",
            Self::PowerCycle => "power-cycle",
            Self::TwoKilled => "two-killed",
            Self::Mass => "mass",
        }
    }

    /// The row of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|row| row.name() == name)
    }

    /// Whether it injects faults into a run.
    #[must_use]
    pub const fn injects_faults(self) -> bool {
        match self {
            Self::Undisturbed | Self::Speed => false,
            Self::WorkerKilled
            | Self::ControllerKilled
            | Self::StoppedBriefly
            | Self::Stopped
            | Self::StoppedLong
            | Self::Joins
            | Self::Drains
            | Self::PowerCycle
            | Self::TwoKilled
            | Self::Mass => true,
        }
    }

    /// Copies of each layer that must be held elsewhere so that nothing sealed is lost.
    #[must_use]
    pub const fn copies(self) -> u32 {
        match self {
            Self::TwoKilled | Self::Mass => 2,
            Self::Undisturbed
            | Self::Speed
            | Self::WorkerKilled
            | Self::ControllerKilled
            | Self::StoppedBriefly
            | Self::Stopped
            | Self::StoppedLong
            | Self::Joins
            | Self::Drains
            | Self::PowerCycle => 1,
        }
    }

    /// How long the fault lasts, in milliseconds.
    #[must_use]
    pub const fn lasts_ms(self) -> u64 {
        match self {
            Self::StoppedBriefly => 300,
            Self::Stopped => 3_000,
            Self::StoppedLong => 30_000,
            Self::WorkerKilled
            | Self::ControllerKilled
            | Self::Drains
            | Self::PowerCycle
            | Self::TwoKilled => DOWN_MS,
            Self::Undisturbed | Self::Speed | Self::Joins | Self::Mass => 0,
        }
    }

    /// How often its fault is injected.
    #[must_use]
    pub const fn count(self, times: u32, power_cycles: u32) -> u32 {
        match self {
            Self::Undisturbed | Self::Speed => 0,
            Self::PowerCycle => power_cycles,
            Self::StoppedLong | Self::Joins => times.div_ceil(4),
            Self::Mass => 1,
            Self::WorkerKilled
            | Self::ControllerKilled
            | Self::StoppedBriefly
            | Self::Stopped
            | Self::Drains
            | Self::TwoKilled => times,
        }
    }

    /// Steps that pass for one fault, if the run goes on while it lasts.
    fn steps(self, step_ms: f64) -> u64 {
        let lasting = Duration::from_millis(self.lasts_ms());
        let lasting = ProcessCampaignSetup::distance(lasting, step_ms / STEPS_SPARE);
        let waits = match self {
            Self::Joins => JOIN_STEPS + STEPS_APART_MIN,
            Self::Mass => 2 * JOIN_STEPS,
            Self::Undisturbed
            | Self::Speed
            | Self::WorkerKilled
            | Self::ControllerKilled
            | Self::StoppedBriefly
            | Self::Stopped
            | Self::StoppedLong
            | Self::Drains
            | Self::PowerCycle
            | Self::TwoKilled => 0,
        };
        // Two steps show that it recovered.
        lasting + waits + STEPS_APART_MIN + 2
    }
}

impl fmt::Display for MeasureRowKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Steps of a run that is long enough for all faults of these rows.
#[must_use]
pub fn steps_needed(rows: &[MeasureRowKind], times: u32, power_cycles: u32, step_ms: f64) -> u64 {
    let of_row =
        |row: &MeasureRowKind| u64::from(row.count(times, power_cycles)) * row.steps(step_ms);
    rows.iter().map(of_row).sum::<u64>() + 2 * STEPS_APART_MIN
}

#[cfg(test)]
mod tests {
    use super::{MeasureRowKind, steps_needed};

    #[test]
    fn a_row_has_one_name() {
        for row in MeasureRowKind::ALL {
            assert_eq!(MeasureRowKind::named(row.name()), Some(row));
        }
        assert_eq!(MeasureRowKind::named("earthquake"), None);
        assert!(MeasureRowKind::USUAL.iter().all(|row| row.injects_faults() && row.copies() == 1));
    }

    #[test]
    fn a_run_is_long_enough_for_its_strikes() {
        let check = |rows: &[MeasureRowKind], times: u32, step_ms: f64, expected: u64| {
            assert_eq!(steps_needed(rows, times, 2, step_ms), expected, "{rows:?}");
        };
        check(&[], 20, 10.0, 8);
        check(&[MeasureRowKind::Undisturbed, MeasureRowKind::Speed], 20, 10.0, 8);
        // However long a step takes, some lie between two faults.
        check(&[MeasureRowKind::WorkerKilled], 20, 60_000.0, 8 + 20 * 10);
        // The run goes on while a worker stands still.
        check(&[MeasureRowKind::StoppedLong], 4, 15.0, 8 + 3000 + 6);
        check(&[MeasureRowKind::PowerCycle], 20, 60_000.0, 8 + 2 * 10);
        check(
            &[MeasureRowKind::WorkerKilled, MeasureRowKind::PowerCycle],
            1,
            60_000.0,
            8 + 10 + 2 * 10,
        );
    }
}
