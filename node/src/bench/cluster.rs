//! `bench cluster`: what a process for each worker costs against a thread for each, and what a
//! checkpoint costs while it is written.
//!
//! Runs are started as a person would, in turns, and timed by what they tell of their steps. Of each
//! kind the best round counts.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

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

/// How long steps and checkpoints took, as the run tells it: when it tells of them says less, as it
/// asks its controller now and then.
#[derive(Clone, Debug, Default, PartialEq)]
struct Timeline {
    /// From seal to seal.
    steps_ms: Vec<f64>,
    /// After how many steps, and from their seal to the moment it was complete.
    checkpoints_ms: Vec<(usize, f64)>,
}

impl Timeline {
    /// A line that the run printed.
    fn note(&mut self, line: &str) {
        let Ok(value) = serde_json::from_str::<Value>(line) else { return };
        let Some(took) = value["ms"].as_f64() else { return };
        match value["event"].as_str() {
            Some("step") => self.steps_ms.push(took),
            Some("checkpoint") => {
                let after = value["step"].as_u64().unwrap_or(0);
                self.checkpoints_ms.push((after as usize, took));
            }
            Some(_) | None => {}
        }
    }

    /// How long steps took, the first ones aside: while a checkpoint was written, and without one.
    fn steps(&self) -> (Vec<f64>, Vec<f64>) {
        let mut now = 0.0;
        let mut span = |took: &f64| {
            now += took;
            (now - took, now)
        };
        let spans: Vec<(f64, f64)> = self.steps_ms.iter().map(&mut span).collect();
        let written = |(after, took): &(usize, f64)| {
            let (_, from) = after.checked_sub(1).and_then(|last| spans.get(last)).copied()?;
            Some((from, from + took))
        };
        let written: Vec<_> = self.checkpoints_ms.iter().filter_map(written).collect();
        let is_written = |(from, to): &&(f64, f64)| {
            written.iter().any(|(begins, ends)| begins < to && ends > from)
        };
        let settled = spans.get(STEPS_FIRST..).unwrap_or_default();
        let (with, without): (Vec<_>, Vec<_>) = settled.iter().partition(is_written);
        let took = |spans: Vec<&(f64, f64)>| spans.iter().map(|(from, to)| to - from).collect();
        (took(with), took(without))
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
        threads.push(median(train(args, true, CHECKPOINT_NEVER)?.steps().1)?);
        processes.push(median(train(args, false, CHECKPOINT_NEVER)?.steps().1)?);
        let (written, calm) = train(args, false, CHECKPOINT_EVERY)?.steps();
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
    let mut child = command.spawn().map_err(|error| failed(&error))?;
    let mut timeline = Timeline::default();
    let lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
    for line in lines.map_while(Result::ok) {
        timeline.note(&line);
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
    fn a_step_belongs_to_the_checkpoint_that_was_written_meanwhile() {
        let mut timeline = Timeline::default();
        for _ in 0..STEPS_FIRST {
            timeline.note("{\"event\":\"step\",\"ms\":100.0}");
        }
        for took in [10.0, 12.0, 8.0] {
            timeline.note(&format!("{{\"event\":\"step\",\"ms\":{took}}}"));
        }
        timeline.note("no JSON");
        let after = |steps: usize, took: f64| {
            format!("{{\"event\":\"checkpoint\",\"step\":{steps},\"ms\":{took}}}")
        };
        timeline.note(&after(STEPS_FIRST + 1, 12.0));
        assert_eq!(timeline.steps(), (vec![12.0], vec![10.0, 8.0]), "it ended with the step");
        timeline.note(&after(STEPS_FIRST, 1.0));
        assert_eq!(timeline.steps(), (vec![10.0, 12.0], vec![8.0]));
        timeline.note(&after(STEPS_FIRST + 3, 50.0));
        assert_eq!(timeline.steps(), (vec![10.0, 12.0], vec![8.0]), "no step was left");
    }

    #[test]
    fn a_run_too_short_is_told() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]).ok(), Some(2.0));
        let failure = median(Timeline::default().steps().1).expect_err("there is no step");
        assert!(failure.what.contains("--steps"), "{}", failure.what);
    }
}
