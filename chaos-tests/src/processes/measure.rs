//! What a cluster of real processes comes to, row by row, each held against its goal: runs that
//! nothing disturbs, their speed, and how long one run takes to go on after each kind of fault. That
//! run has an end, and its weights are compared with those of the same training in one process.

mod bench;
mod calm;
mod moved;
mod rows;
mod struck;

use std::fmt;
use std::path::PathBuf;

use serde::Serialize;

pub use self::moved::MovedInAll;
pub use self::rows::RowKind;
use super::check::Findings;
use super::contract::{BenchAnswer, Configuration};
use super::goal::{Bound, Mark, Unit};
use super::group::{GroupError, GroupSetup};
use super::times::{Quantiles, words};
use super::undisturbed::Training;
use super::watch::{STANDSTILL, Watch};
use rows::steps_needed;

/// Steps from which the time of a step is measured.
const TRIAL_STEPS: u64 = 10;
/// Processes do at least this share of the tokens a second of threads.
const SPEED_MIN: f64 = 0.95;
/// A step while a checkpoint is written takes at most so many times one without.
const CHECKPOINT_MAX: f64 = 1.02;
/// From the last seal to the model's file it takes at most so many times writing plainly what is written then:
/// the last checkpoint with its copies, and the model.
const ENDING_MAX: f64 = 1.5;

/// What is measured, and how often.
#[derive(Clone, Debug)]
pub struct MeasureSetup {
    /// The cluster that is measured.
    pub group: GroupSetup,
    /// The configuration of the run.
    pub config: Configuration,
    /// The rows that are measured.
    pub rows: Vec<RowKind>,
    /// How often each fault strikes.
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
pub struct Row {
    /// What was done to the cluster, in words.
    pub what: &'static str,
    /// How long it took until something was sealed that shows that the run goes on.
    pub next_seal: Option<Quantiles>,
    /// How often a new plan followed.
    pub plans: u32,
    /// What else was to be seen.
    pub note: String,
    /// What it is held against.
    pub marks: Vec<Mark>,
}

/// All that was measured.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Measures {
    /// The rows of the table, in order.
    pub rows: Vec<Row>,
    /// What processes took beside threads.
    pub speed: Option<BenchAnswer>,
    /// What moved between nodes, over all plans.
    pub moved: MovedInAll,
    /// What the check of the event files of the run that was struck found.
    pub findings: Findings,
    /// Steps of that run.
    pub steps: u64,
    /// The digest that the same training has in one process.
    pub digest_undisturbed: Option<String>,
    /// What this machine lets one do.
    pub machine: Vec<String>,
}

/// Measures.
///
/// # Errors
/// If a cluster does not go on after a fault, or the output cannot be written.
pub fn run(setup: &MeasureSetup, watch: &mut Watch<'_>) -> Result<Measures, GroupError> {
    let mut measures = Measures { machine: super::machine::report(), ..Measures::default() };
    if setup.rows.contains(&RowKind::Undisturbed) {
        let expected = setup.training(setup.steps).alone(&setup.cache)?;
        let row = calm::measure(setup, &expected, watch)?;
        measures.tell(row, watch)?;
    }
    if setup.rows.contains(&RowKind::Speed) {
        let sizes = (setup.steps, setup.group.workers, setup.rounds);
        let found = setup.group.program.bench_cluster(&setup.config, sizes)?;
        let row = speed_row(&found);
        measures.speed = Some(found);
        measures.tell(row, watch)?;
    }
    if setup.rows.iter().any(|row| row.strikes()) {
        struck(setup, &mut measures, watch)?;
    }
    Ok(measures)
}

/// The rows of one run that is struck, and its end.
fn struck(
    setup: &MeasureSetup,
    measures: &mut Measures,
    watch: &mut Watch<'_>,
) -> Result<(), GroupError> {
    let config = setup.safe_config();
    let trial = Training { config: config.clone(), ..setup.training(TRIAL_STEPS) };
    let step_ms = trial.undisturbed(&setup.cache, STANDSTILL, watch)?.step_ms;
    let MeasureSetup { rows, times, power_cycles, .. } = setup;
    let steps = steps_needed(rows, *times, *power_cycles, step_ms);
    watch.tell(&format!("{} a step; {steps} steps, in one process first", words(step_ms)))?;
    let expected = Training { steps, ..trial.clone() }.alone(&setup.cache)?;
    let mut bench = bench::Bench::start(setup, &config, (steps, step_ms), watch)?;
    for kind in rows.iter().copied().filter(|row| row.strikes()) {
        let row = bench.row(kind)?;
        bench.tell(&row)?;
        measures.rows.push(row);
    }
    let (row, findings, moved) = bench.end(&expected)?;
    (measures.findings, measures.moved, measures.steps) = (findings, moved, steps);
    measures.digest_undisturbed = expected.digest;
    measures.tell(row, watch)
}

impl MeasureSetup {
    fn training(&self, steps: u64) -> Training {
        let (program, config) = (self.group.program.clone(), self.config.clone());
        Training { program, config, steps, workers: self.group.workers }
    }

    /// The configuration, with as many copies of each layer as the rows need so that nothing sealed
    /// is lost.
    fn safe_config(&self) -> Configuration {
        let copies = self.rows.iter().map(|row| row.copies()).max().unwrap_or(1);
        if copies > 1 { self.config.with("elastic.copies", copies) } else { self.config.clone() }
    }
}

impl Measures {
    fn tell(&mut self, row: Row, watch: &mut Watch<'_>) -> Result<(), GroupError> {
        watch.tell(&row.to_string())?;
        self.rows.push(row);
        Ok(())
    }

    /// Marks that are missed, over all rows.
    #[must_use]
    pub fn missed(&self) -> usize {
        self.rows.iter().flat_map(|row| &row.marks).filter(|mark| !mark.is_met).count()
    }
}

fn speed_row(found: &BenchAnswer) -> Row {
    let BenchAnswer { threads_ms, processes_ms, .. } = *found;
    let ratio = |what, goal, found: Option<f64>| Mark::new(what, goal, Unit::Ratio, found);
    let marks = vec![
        ratio(
            "tokens a second, processes over threads",
            Bound::AtLeast(SPEED_MIN),
            Some(found.processes_over_threads),
        ),
        ratio(
            "step while a checkpoint is written, over without",
            Bound::AtMost(CHECKPOINT_MAX),
            found.checkpoint_ratio,
        ),
        ratio("end of a run over a plain write", Bound::AtMost(ENDING_MAX), found.ending_ratio),
    ];
    let (threads, processes) = (words(threads_ms), words(processes_ms));
    let note = format!("a step as threads {threads}, as processes {processes}");
    Row { what: "speed", next_seal: None, plans: 0, note, marks }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<28}", self.what)?;
        match self.next_seal {
            Some(Quantiles { count, p50_ms, p99_ms, max_ms }) => {
                let [p50, p99, max] = [p50_ms, p99_ms, max_ms].map(words);
                write!(f, "{count:>5}{p50:>12}{p99:>12}{max:>12}")?;
            }
            None => write!(f, "{:>5}{:>12}{:>12}{:>12}", 0, "-", "-", "-")?,
        }
        write!(f, "{:>8}  {}", self.plans, self.note)?;
        self.marks.iter().try_for_each(|mark| write!(f, "\n{mark}"))
    }
}

/// What stands above the rows.
#[must_use]
pub fn heading() -> String {
    format!(
        "{:<28}{:>5}{:>12}{:>12}{:>12}{:>8}",
        "what", "times", "seal p50", "p99", "max", "plans"
    )
}

#[cfg(test)]
mod tests {
    use super::{Row, heading, speed_row};
    use crate::processes::contract::BenchAnswer;
    use crate::processes::times::Times;

    #[test]
    fn rows_stand_below_their_heading() {
        let times: Times = [40.0, 2500.0].into_iter().collect();
        let (next_seal, marks) = (times.quantiles(), Vec::new());
        let row = Row { what: "leader killed", next_seal, plans: 2, note: String::new(), marks };
        let none = Row { next_seal: None, plans: 0, note: "-".to_owned(), ..row.clone() };
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
        let mut found = BenchAnswer {
            threads_ms: 96.0,
            processes_ms: 100.0,
            processes_over_threads: 0.96,
            checkpoint_ratio: Some(1.05),
            ending_ratio: None,
        };
        let met = |found: &BenchAnswer| {
            speed_row(found).marks.iter().map(|mark| mark.is_met).collect::<Vec<_>>()
        };
        assert_eq!(met(&found), [true, false, false]);
        (found.checkpoint_ratio, found.ending_ratio) = (Some(1.01), Some(1.4));
        assert_eq!(met(&found), [true, true, true]);
    }
}
