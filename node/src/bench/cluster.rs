//! `bench cluster`: what a process for each worker costs against a thread for each, and what a
//! checkpoint costs while it is written.
//!
//! Runs are started as a person would, in turns, and timed by when they tell of a step. Of each
//! kind the best round counts.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use serde::Serialize;
use serde_json::Value;

use crate::args::BenchClusterArgs;
use crate::failure::{Failure, FailureCode, Stop};

/// Steps before a run is as fast as it gets.
const STEPS_FIRST: usize = 10;
/// Steps from one checkpoint to the next, in runs that write some: most steps are without one.
const CHECKPOINT_EVERY: &str = "20";
/// Only the one behind the last step, which is not looked at.
const CHECKPOINT_NEVER: &str = "0";

/// What was measured. Times are medians.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct ClusterReport {
    workers: u32,
    /// A step, each worker a thread of one process.
    threads_ms: f64,
    /// A step, each worker a process.
    processes_ms: f64,
    /// Tokens a second of processes over those of threads.
    processes_over_threads: f64,
    /// A step during which no checkpoint was written.
    without_checkpoint_ms: f64,
    /// A step during which one was.
    with_checkpoint_ms: f64,
    /// The second over the first.
    checkpoint_ratio: f64,
    /// Steps during which one was, over all rounds.
    steps_with_checkpoint: usize,
}

/// When a run told what, in milliseconds since its start.
#[derive(Clone, Debug, Default, PartialEq)]
struct Timeline {
    steps_ms: Vec<f64>,
    /// From the seal that a checkpoint is of to the moment it was complete.
    checkpoints_ms: Vec<(f64, f64)>,
}

impl Timeline {
    /// A line that the run printed at a moment.
    fn note(&mut self, line: &str, now_ms: f64) {
        let Ok(value) = serde_json::from_str::<Value>(line) else { return };
        match value["event"].as_str() {
            Some("step") => self.steps_ms.push(now_ms),
            Some("checkpoint") => {
                let took = value["ms"].as_f64().unwrap_or(0.0);
                self.checkpoints_ms.push((now_ms - took, now_ms));
            }
            Some(_) | None => {}
        }
    }

    /// From step to step, those first: while a checkpoint was written, and without one.
    fn gaps(&self) -> (Vec<f64>, Vec<f64>) {
        let settled = self.steps_ms.get(STEPS_FIRST..).unwrap_or_default();
        let is_written = |pair: &&[f64]| {
            self.checkpoints_ms.iter().any(|(from, to)| *from < pair[1] && *to > pair[0])
        };
        let (with, without): (Vec<_>, Vec<_>) = settled.windows(2).partition(is_written);
        let gaps = |pairs: Vec<&[f64]>| pairs.iter().map(|pair| pair[1] - pair[0]).collect();
        (gaps(with), gaps(without))
    }
}

/// Runs `bench cluster`.
pub fn run(args: &BenchClusterArgs, out: &mut dyn Write) -> Result<(), Stop> {
    let report = measure(args)?;
    if args.json {
        writeln!(out, "{}", serde_json::to_string(&report).expect("numbers are JSON"))?;
        return Ok(());
    }
    let ClusterReport { workers, threads_ms, processes_ms, processes_over_threads, .. } = report;
    let ClusterReport { without_checkpoint_ms, with_checkpoint_ms, checkpoint_ratio, .. } = report;
    writeln!(out, "{workers} workers, a thread each")?;
    writeln!(out, "  as threads    {threads_ms:>8.1} ms a step")?;
    writeln!(out, "  as processes  {processes_ms:>8.1} ms a step")?;
    writeln!(out, "  {processes_over_threads:.2} of the tokens a second of threads")?;
    writeln!(out, "checkpoints, every {CHECKPOINT_EVERY} steps")?;
    writeln!(out, "  none written  {without_checkpoint_ms:>8.1} ms a step")?;
    writeln!(out, "  one written   {with_checkpoint_ms:>8.1} ms a step")?;
    let steps = report.steps_with_checkpoint;
    writeln!(out, "  {checkpoint_ratio:.2} of the time without, over {steps} steps")?;
    Ok(())
}

fn measure(args: &BenchClusterArgs) -> Result<ClusterReport, Failure> {
    let (mut threads, mut processes) = (Vec::new(), Vec::new());
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for _ in 0..args.rounds {
        threads.push(median(train(args, true, CHECKPOINT_NEVER)?.gaps().1)?);
        processes.push(median(train(args, false, CHECKPOINT_NEVER)?.gaps().1)?);
        let (written, calm) = train(args, false, CHECKPOINT_EVERY)?.gaps();
        with.extend(written);
        without.extend(calm);
    }
    let best = |times: Vec<f64>| times.into_iter().fold(f64::INFINITY, f64::min);
    let (threads_ms, processes_ms) = (best(threads), best(processes));
    let steps_with_checkpoint = with.len();
    let (with_checkpoint_ms, without_checkpoint_ms) = (median(with)?, median(without)?);
    Ok(ClusterReport {
        workers: args.workers,
        threads_ms,
        processes_ms,
        processes_over_threads: threads_ms / processes_ms,
        without_checkpoint_ms,
        with_checkpoint_ms,
        checkpoint_ratio: with_checkpoint_ms / without_checkpoint_ms,
        steps_with_checkpoint,
    })
}

/// Trains once, and tells when it told what.
fn train(args: &BenchClusterArgs, has_threads: bool, every: &str) -> Result<Timeline, Failure> {
    let name = format!("zbelastic-bench-cluster-{}", std::process::id());
    let folder = std::env::temp_dir().join(name);
    let timeline = train_in(&folder, args, has_threads, every);
    // What cannot be removed does not make the measurement wrong.
    let _ = std::fs::remove_dir_all(&folder);
    timeline
}

fn train_in(
    folder: &Path,
    args: &BenchClusterArgs,
    has_threads: bool,
    every: &str,
) -> Result<Timeline, Failure> {
    let program = std::env::current_exe().map_err(|error| failed(&error))?;
    let mut command = Command::new(program);
    command.arg("train").args(&args.config).arg("--json").arg("--out").arg(folder);
    command.args(["--workers", &args.workers.to_string(), "--threads", "1"]);
    command.args(["--steps", &args.steps.to_string()]);
    command.args(["--set", &format!("checkpoint.every={every}")]);
    command.args(has_threads.then_some("--threads-only"));
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let began = Instant::now();
    let mut child = command.spawn().map_err(|error| failed(&error))?;
    let mut timeline = Timeline::default();
    let lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
    for line in lines.map_while(Result::ok) {
        timeline.note(&line, began.elapsed().as_secs_f64() * 1e3);
    }
    let status = child.wait().map_err(|error| failed(&error))?;
    if status.success() { Ok(timeline) } else { Err(failed(&format!("`train` ended: {status}"))) }
}

fn median(mut times: Vec<f64>) -> Result<f64, Failure> {
    times.sort_by(f64::total_cmp);
    let middle = times.get(times.len() / 2).copied();
    middle.ok_or_else(|| failed(&"too few steps to measure anything: raise --steps"))
}

fn failed(why: &dyn std::fmt::Display) -> Failure {
    Failure::new(FailureCode::Internal, format!("bench cluster: {why}"))
}

#[cfg(test)]
mod tests {
    use super::{STEPS_FIRST, Timeline, median};

    #[test]
    fn a_gap_belongs_to_the_checkpoint_that_was_written_meanwhile() {
        let mut timeline = Timeline::default();
        for step in 0..STEPS_FIRST {
            timeline.note("{\"event\":\"step\"}", step as f64);
        }
        for now in [100.0, 110.0, 122.0, 130.0] {
            timeline.note("{\"event\":\"step\",\"step\":7}", now);
        }
        timeline.note("{\"event\":\"checkpoint\",\"ms\":7.5}", 119.0);
        timeline.note("no JSON", 130.0);
        assert_eq!(timeline.gaps(), (vec![12.0], vec![10.0, 8.0]));
        timeline.note("{\"event\":\"checkpoint\",\"ms\":1.0}", 111.0);
        assert_eq!(timeline.gaps(), (vec![12.0], vec![10.0, 8.0]), "it touched, and ended there");
        timeline.note("{\"event\":\"checkpoint\",\"ms\":2.0}", 111.0);
        assert_eq!(timeline.gaps(), (vec![10.0, 12.0], vec![8.0]));
    }

    #[test]
    fn a_run_too_short_is_told() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]).ok(), Some(2.0));
        let failure = median(Timeline::default().gaps().1).expect_err("there is no step");
        assert!(failure.what.contains("--steps"), "{}", failure.what);
    }
}
