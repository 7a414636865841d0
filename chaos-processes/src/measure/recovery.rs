//! The faults of a row, and the result of them. Pure: recoveries in, a row with its
//! marks out.

use std::collections::BTreeMap;

use super::MeasureRow;
use super::plan_traffic::{allowed_ms, bandwidth};
use super::rows::MeasureRowKind;
use crate::durations::{SortedDurations, words};
use crate::events::PlanTraffic;
use crate::faults::ProcessFault;
use crate::goal::{GoalBound, GoalResult, GoalUnit};

/// Half of the kills of a controller delay the next seal at most so long, in milliseconds.
const LEADER_P50_MS: f64 = 1500.0;
/// Ninety-nine of a hundred.
const LEADER_P99_MS: f64 = 3000.0;
/// After a power cycle, the next seal may come so much later than the time that its step and
/// reading the disks need, in milliseconds.
const POWER_MS: f64 = 2000.0;
/// A power cycle costs the steps since the last checkpoint, which is at most so old: the value of
/// `checkpoint.every_time` that a run keeps by itself.
const AGAIN_MS: f64 = 60_000.0;
/// A fault that was injected, and the recovery that followed.
#[derive(Clone, Copy, Debug)]
pub struct RecoveryMeasurement {
    /// From the fault to the seal that shows recovery; where power went, from when all processes were
    /// started again to the first seal, be it of a step that is computed again.
    pub ms: f64,
    /// By how much that seal came later than it would have come undisturbed.
    pub late_ms: f64,
    /// A step before the fault.
    pub step_ms: f64,
    /// The plan of that seal.
    pub generation: u64,
    /// Whether it is another one than before.
    pub is_planned_anew: bool,
    /// The time that reading all files on disks needed, where power went.
    pub read_ms: f64,
}

/// The fault of a row.
#[must_use]
pub fn fault(kind: MeasureRowKind, draw: u64) -> ProcessFault {
    let down_ms = kind.lasts_ms();
    match kind {
        MeasureRowKind::ControllerKilled => ProcessFault::KillLeader { down_ms },
        MeasureRowKind::StoppedBriefly | MeasureRowKind::Stopped | MeasureRowKind::StoppedLong => {
            ProcessFault::PauseWorker { draw, ms: down_ms }
        }
        MeasureRowKind::Drains => ProcessFault::Drain { draw, killed_after_ms: None },
        MeasureRowKind::PowerCycle => ProcessFault::PowerCycle { order: draw, down_ms },
        MeasureRowKind::TwoKilled => ProcessFault::KillWorkers { draw, count: 2, down_ms },
        MeasureRowKind::WorkerKilled
        | MeasureRowKind::Mass
        | MeasureRowKind::Joins
        | MeasureRowKind::Undisturbed
        | MeasureRowKind::Speed => ProcessFault::KillWorkers { draw, count: 1, down_ms },
    }
}

/// The time of steps that had been sealed and were computed again, against the time that they may
/// need.
#[must_use]
pub fn computed_again(ms: f64) -> GoalResult {
    let what = "sealed steps computed again, each cycle";
    GoalResult::new(what, GoalBound::AtMost(AGAIN_MS), GoalUnit::Milliseconds, ms)
}

/// The words of a row.
const fn words_of(kind: MeasureRowKind) -> &'static str {
    match kind {
        MeasureRowKind::WorkerKilled => "worker killed",
        MeasureRowKind::ControllerKilled => "controller killed",
        MeasureRowKind::StoppedBriefly => "worker stopped for 0.3 s",
        MeasureRowKind::Stopped => "worker stopped for 3 s",
        MeasureRowKind::StoppedLong => "worker stopped for 30 s",
        MeasureRowKind::Drains => "worker drained",
        MeasureRowKind::PowerCycle => "power cycle (once all are up)",
        MeasureRowKind::TwoKilled => "two neighbours killed",
        MeasureRowKind::Undisturbed
        | MeasureRowKind::Speed
        | MeasureRowKind::Joins
        | MeasureRowKind::Mass => kind.name(),
    }
}

/// A row of injected faults, and the goals they are compared with.
#[must_use]
pub fn row_of(
    kind: MeasureRowKind,
    count: u64,
    recoveries: &[RecoveryMeasurement],
    traffic: &BTreeMap<u64, PlanTraffic>,
) -> MeasureRow {
    let next_seal = recoveries.iter().map(|one| one.ms).collect::<SortedDurations>().quantiles();
    let plans = recoveries.iter().filter(|one| one.is_planned_anew).count();
    let mut marks = vec![GoalResult::all_of("recovered from", recoveries.len() as u64, count)];
    let late = recoveries.iter().map(|one| one.late_ms).collect::<SortedDurations>().quantiles();
    let allowed = |one: &RecoveryMeasurement| {
        if kind == MeasureRowKind::PowerCycle {
            return one.step_ms + one.read_ms + POWER_MS;
        }
        allowed_ms(one.step_ms, traffic.get(&one.generation), bandwidth(traffic))
    };
    let shares = recoveries.iter().map(|one| one.ms / allowed(one));
    let worst = shares.max_by(f64::total_cmp);
    match kind {
        MeasureRowKind::ControllerKilled => {
            let late_by = |what, most, found: Option<f64>| {
                GoalResult::new(what, GoalBound::AtMost(most), GoalUnit::Milliseconds, found)
            };
            marks.push(late_by("seal later by, p50", LEADER_P50_MS, late.map(|late| late.p50_ms)));
            marks.push(late_by("seal later by, p99", LEADER_P99_MS, late.map(|late| late.p99_ms)));
        }
        MeasureRowKind::WorkerKilled | MeasureRowKind::TwoKilled => {
            let what = "seal over a step + moved x 1.3 + 0.5 s, worst";
            marks.push(GoalResult::new(what, GoalBound::AtMost(1.0), GoalUnit::Ratio, worst));
        }
        MeasureRowKind::PowerCycle => {
            let what = "seal over a step + reading disks + 2 s, worst";
            marks.push(GoalResult::new(what, GoalBound::AtMost(1.0), GoalUnit::Ratio, worst));
        }
        MeasureRowKind::StoppedBriefly => {
            marks.push(GoalResult::none_of("plans because of it", plans as u64));
        }
        MeasureRowKind::Stopped
        | MeasureRowKind::StoppedLong
        | MeasureRowKind::Drains
        | MeasureRowKind::Undisturbed
        | MeasureRowKind::Speed
        | MeasureRowKind::Joins
        | MeasureRowKind::Mass => {}
    }
    let step = recoveries.iter().map(|one| one.step_ms).collect::<SortedDurations>().quantiles();
    let step = step.map_or(0.0, |step| step.p50_ms);
    let late = late.map_or(0.0, |late| late.p50_ms);
    let note = format!("a step {}, later by {} p50", words(step), words(late));
    let plans = u32::try_from(plans).unwrap_or(u32::MAX);
    MeasureRow { what: words_of(kind), next_seal, plans, note, marks }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{RecoveryMeasurement, row_of};
    use crate::events::PlanTraffic;
    use crate::measure::MeasureRowKind;

    const CALM: RecoveryMeasurement = RecoveryMeasurement {
        ms: 500.0,
        late_ms: 400.0,
        step_ms: 100.0,
        generation: 3,
        is_planned_anew: true,
        read_ms: 0.0,
    };

    /// Which goals a row of two faults meets, in order.
    fn met(
        kind: MeasureRowKind,
        recoveries: &[RecoveryMeasurement],
        traffic: &BTreeMap<u64, PlanTraffic>,
    ) -> Vec<bool> {
        row_of(kind, 2, recoveries, traffic).marks.iter().map(|mark| mark.is_met).collect()
    }

    #[test]
    fn each_row_is_held_against_its_own_goal() {
        let none = BTreeMap::new();
        let check = |kind: MeasureRowKind, second: RecoveryMeasurement, expected: &[bool]| {
            assert_eq!(met(kind, &[CALM, second], &none), expected, "{kind}");
        };
        // A step of 100 ms and half a second.
        check(
            MeasureRowKind::WorkerKilled,
            RecoveryMeasurement { ms: 600.0, ..CALM },
            &[true, true],
        );
        check(
            MeasureRowKind::WorkerKilled,
            RecoveryMeasurement { ms: 601.0, ..CALM },
            &[true, false],
        );
        check(MeasureRowKind::TwoKilled, RecoveryMeasurement { ms: 601.0, ..CALM }, &[true, false]);
        let late = |late_ms| RecoveryMeasurement { late_ms, ms: 90_000.0, ..CALM };
        check(MeasureRowKind::ControllerKilled, late(3000.0), &[true, true, true]);
        check(MeasureRowKind::ControllerKilled, late(3001.0), &[true, true, false]);
        check(
            MeasureRowKind::PowerCycle,
            RecoveryMeasurement { ms: 2600.0, read_ms: 500.0, ..CALM },
            &[true, true],
        );
        check(
            MeasureRowKind::PowerCycle,
            RecoveryMeasurement { ms: 2600.0, read_ms: 400.0, ..CALM },
            &[true, false],
        );
        check(MeasureRowKind::StoppedBriefly, CALM, &[true, false]);
        check(MeasureRowKind::Drains, RecoveryMeasurement { ms: 90_000.0, ..CALM }, &[true]);
        let undisturbed = RecoveryMeasurement { is_planned_anew: false, ..CALM };
        assert_eq!(
            met(MeasureRowKind::StoppedBriefly, &[undisturbed, undisturbed], &none),
            [true, true]
        );
        assert_eq!(
            met(MeasureRowKind::WorkerKilled, &[CALM], &none),
            [false, true],
            "one is missing"
        );
        assert_eq!(met(MeasureRowKind::WorkerKilled, &[], &none), [false, false]);
    }

    #[test]
    fn what_moves_for_a_plan_is_allowed_for() {
        let traffic = PlanTraffic { generation: 3, bytes: 1000, floor: 1000, ms: 100.0 };
        let traffic = BTreeMap::from([(3, traffic)]);
        let recoveries = |ms| [CALM, RecoveryMeasurement { ms, ..CALM }];
        assert_eq!(met(MeasureRowKind::WorkerKilled, &recoveries(730.0), &traffic), [true, true]);
        assert_eq!(met(MeasureRowKind::WorkerKilled, &recoveries(731.0), &traffic), [true, false]);
        let other = RecoveryMeasurement { generation: 4, ms: 700.0, ..CALM };
        assert_eq!(met(MeasureRowKind::WorkerKilled, &[CALM, other], &traffic), [true, false]);
    }
}
