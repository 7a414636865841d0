//! The measurements of a cluster of real processes, row by row, each held against its goal: runs
//! that nothing disturbs, their speed, and the time that one run needs to go on after each kind of
//! fault. That run has an end, and its weights are compared with those of the same training in one
//! process.

mod fault_free;
mod measure_run;
mod plan_traffic;
mod recovery;
mod rows;

use std::fmt;
use std::path::PathBuf;

use serde::Serialize;

pub use self::plan_traffic::TotalTraffic;
pub use self::rows::MeasureRowKind;
use super::check::LogFindings;
use super::contract::{ReportedBenchmark, TestedConfiguration};
use super::durations::{DurationQuantiles, words};
use super::goal::{GoalBound, GoalResult, GoalUnit};
use super::local_cluster::{LocalClusterError, LocalClusterSetup};
use super::run_monitor::{RunMonitor, STANDSTILL};
use super::undisturbed::UndisturbedTraining;
use rows::steps_needed;

/// Steps from which the time of a step is measured.
const TRIAL_STEPS: u64 = 10;
/// Processes do at least this share of the tokens a second of threads.
const SPEED_MIN: f64 = 0.95;
/// A step while a checkpoint is written lasts at most so many times as long as one without.
const CHECKPOINT_MAX: f64 = 1.02;
/// The time from the last seal to the model's file is at most so many times that of writing plainly
/// the files that are written then: the last checkpoint with its copies, and the model.
const ENDING_MAX: f64 = 1.5;

/// The rows that are measured, and how often.
#[derive(Clone, Debug)]
pub struct MeasureSetup {
    /// The cluster that is measured.
    pub cluster: LocalClusterSetup,
    /// The configuration of the run.
    pub config: TestedConfiguration,
    /// The rows that are measured.
    pub rows: Vec<MeasureRowKind>,
    /// How often each fault is injected.
    pub times: u32,
    /// How often power goes.
    pub power_cycles: u32,
    /// Runs that nothing disturbs.
    pub undisturbed: u32,
    /// Steps of each of them, and of each run of the row `speed`.
    pub steps: u64,
    /// Rounds of the row `speed`.
    pub rounds: u32,
    /// Where runs without a cluster are kept, by binary, configuration and number of steps.
    pub cache: PathBuf,
}

/// A line of the table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MeasureRow {
    /// The faults of the row, in words.
    pub what: &'static str,
    /// The time until something was sealed that shows that the run goes on.
    pub next_seal: Option<DurationQuantiles>,
    /// How often a new plan followed.
    pub plans: u32,
    /// Further observations.
    pub note: String,
    /// The goals that it is held against.
    pub marks: Vec<GoalResult>,
}

/// All that was measured.
#[derive(Clone, Debug, Default, Serialize)]
pub struct MeasureReport {
    /// The rows of the table, in order.
    pub rows: Vec<MeasureRow>,
    /// The speed of processes beside that of threads.
    pub speed: Option<ReportedBenchmark>,
    /// The traffic between nodes, over all plans.
    pub moved: TotalTraffic,
    /// The findings of the check of the event files of the run with faults.
    pub findings: LogFindings,
    /// Steps of that run.
    pub steps: u64,
    /// The digest that the same training has in one process.
    pub digest_undisturbed: Option<String>,
    /// The faults that this machine permits.
    pub machine: Vec<String>,
}

/// Measures.
///
/// # Errors
/// If a cluster does not go on after a fault, or the output cannot be written.
pub fn run(
    setup: &MeasureSetup,
    monitor: &mut RunMonitor<'_>,
) -> Result<MeasureReport, LocalClusterError> {
    let mut measures =
        MeasureReport { machine: super::machine::report(), ..MeasureReport::default() };
    if setup.rows.contains(&MeasureRowKind::Undisturbed) {
        let expected = setup.training(setup.steps).alone(&setup.cache)?;
        let row = fault_free::measure(setup, &expected, monitor)?;
        measures.add_row(row, monitor)?;
    }
    if setup.rows.contains(&MeasureRowKind::Speed) {
        let sizes = (setup.steps, setup.cluster.workers, setup.rounds);
        let found = setup.cluster.program.bench_cluster(&setup.config, sizes)?;
        let row = speed_row(&found);
        measures.speed = Some(found);
        measures.add_row(row, monitor)?;
    }
    if setup.rows.iter().any(|row| row.injects_faults()) {
        measure_faults(setup, &mut measures, monitor)?;
    }
    Ok(measures)
}

/// Measures the rows of one run into which faults are injected, and its end.
fn measure_faults(
    setup: &MeasureSetup,
    measures: &mut MeasureReport,
    monitor: &mut RunMonitor<'_>,
) -> Result<(), LocalClusterError> {
    let config = setup.safe_config();
    let trial = UndisturbedTraining { config: config.clone(), ..setup.training(TRIAL_STEPS) };
    let step_ms = trial.undisturbed(&setup.cache, STANDSTILL, monitor)?.step_ms;
    let MeasureSetup { rows, times, power_cycles, .. } = setup;
    let steps = steps_needed(rows, *times, *power_cycles, step_ms);
    monitor
        .print_line(&format!("{} a step; {steps} steps, in one process first", words(step_ms)))?;
    let expected = UndisturbedTraining { steps, ..trial.clone() }.alone(&setup.cache)?;
    let mut run = measure_run::MeasureRun::start(setup, &config, (steps, step_ms), monitor)?;
    for kind in rows.iter().copied().filter(|row| row.injects_faults()) {
        let row = run.row(kind)?;
        run.print_row(&row)?;
        measures.rows.push(row);
    }
    let (row, findings, traffic) = run.end(&expected)?;
    (measures.findings, measures.moved, measures.steps) = (findings, traffic, steps);
    measures.digest_undisturbed = expected.digest;
    measures.add_row(row, monitor)
}

impl MeasureSetup {
    fn training(&self, steps: u64) -> UndisturbedTraining {
        let program = self.cluster.program.clone();
        let config = self.config.clone();
        UndisturbedTraining { program, config, steps, workers: self.cluster.workers }
    }

    /// The configuration, with as many copies of each layer as the rows need so that nothing sealed
    /// is lost.
    fn safe_config(&self) -> TestedConfiguration {
        let copies = self.rows.iter().map(|row| row.copies()).max().unwrap_or(1);
        if copies > 1 { self.config.with("elastic.copies", copies) } else { self.config.clone() }
    }
}

impl MeasureReport {
    fn add_row(
        &mut self,
        row: MeasureRow,
        monitor: &mut RunMonitor<'_>,
    ) -> Result<(), LocalClusterError> {
        monitor.print_line(&row.to_string())?;
        self.rows.push(row);
        Ok(())
    }

    /// Marks that are missed, over all rows.
    #[must_use]
    pub fn missed(&self) -> usize {
        self.rows.iter().flat_map(|row| &row.marks).filter(|mark| !mark.is_met).count()
    }
}

fn speed_row(found: &ReportedBenchmark) -> MeasureRow {
    let ReportedBenchmark { threads_ms, processes_ms, .. } = *found;
    let ratio =
        |what, goal, found: Option<f64>| GoalResult::new(what, goal, GoalUnit::Ratio, found);
    let marks = vec![
        ratio(
            "tokens a second, processes over threads",
            GoalBound::AtLeast(SPEED_MIN),
            Some(found.processes_over_threads),
        ),
        ratio(
            "step while a checkpoint is written, over without",
            GoalBound::AtMost(CHECKPOINT_MAX),
            found.checkpoint_ratio,
        ),
        ratio("end of a run over a plain write", GoalBound::AtMost(ENDING_MAX), found.ending_ratio),
    ];
    let threads = words(threads_ms);
    let processes = words(processes_ms);
    let note = format!("a step as threads {threads}, as processes {processes}");
    MeasureRow { what: "speed", next_seal: None, plans: 0, note, marks }
}

impl fmt::Display for MeasureRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<28}", self.what)?;
        match self.next_seal {
            Some(DurationQuantiles { count, p50_ms, p99_ms, max_ms }) => {
                let [p50, p99, max] = [p50_ms, p99_ms, max_ms].map(words);
                write!(f, "{count:>5}{p50:>12}{p99:>12}{max:>12}")?;
            }
            None => write!(f, "{:>5}{:>12}{:>12}{:>12}", 0, "-", "-", "-")?,
        }
        write!(f, "{:>8}  {}", self.plans, self.note)?;
        self.marks.iter().try_for_each(|mark| write!(f, "\n{mark}"))
    }
}

/// The heading above the rows.
#[must_use]
pub fn heading() -> String {
    format!(
        "{:<28}{:>5}{:>12}{:>12}{:>12}{:>8}",
        "what", "times", "seal p50", "p99", "max", "plans"
    )
}

#[cfg(test)]
mod tests {
    use super::{MeasureRow, heading, speed_row};
    use crate::contract::ReportedBenchmark;
    use crate::durations::SortedDurations;

    #[test]
    fn rows_stand_below_their_heading() {
        let times: SortedDurations = [40.0, 2500.0].into_iter().collect();
        let next_seal = times.quantiles();
        let marks = Vec::new();
        let row =
            MeasureRow { what: "leader killed", next_seal, plans: 2, note: String::new(), marks };
        let none = MeasureRow { next_seal: None, plans: 0, note: "-".to_owned(), ..row.clone() };
        let lines = [heading(), row.to_string(), none.to_string()];
        let expected = [
            "what                        times    seal p50         p99         max   plans",
            "leader killed                   2       40 ms      2.50 s      2.50 s       2  ",
            "leader killed                   0           -           -           -       0  -",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn speed_is_held_against_its_goals() {
        let mut found = ReportedBenchmark {
            threads_ms: 96.0,
            processes_ms: 100.0,
            processes_over_threads: 0.96,
            checkpoint_ratio: Some(1.05),
            ending_ratio: None,
        };
        let met = |found: &ReportedBenchmark| {
            speed_row(found).marks.iter().map(|mark| mark.is_met).collect::<Vec<_>>()
        };
        assert_eq!(met(&found), [true, false, false]);
        (found.checkpoint_ratio, found.ending_ratio) = (Some(1.01), Some(1.4));
        assert_eq!(met(&found), [true, true, true]);
    }
}
