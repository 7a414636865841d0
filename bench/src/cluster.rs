//! `bench cluster`: the cost of a process for each worker against a thread for each, that of a
//! checkpoint while it is written, and the time of the end of a run.
//!
//! Runs are started as a person would, in turns, and timed by the `at_ms` of their steps. Of each
//! kind the best round counts.

use std::cmp::Ordering;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::Value;
use zbelastic_trainer::plan::median;
use zbelastic_whole_file::TemporaryFolder;
use zbelastic_wording::{CommandError, CommandFailure, FailureCode};

use crate::args::BenchClusterArgs;

/// Steps before a run is as fast as it gets, of one that has many; of a short one, a share of them.
const STEPS_FIRST_MAX: usize = 10;
const FIRST_PARTS: usize = 4;
/// Checkpoints of a run that writes some: few enough that most steps are without one.
const CHECKPOINTS: u64 = 6;
/// Steps from one checkpoint to the next at least, so that some are without.
const CHECKPOINT_EVERY_MIN: u64 = 3;
/// Only the one behind the last step, which is not measured.
const CHECKPOINT_NEVER: u64 = 0;
/// The model of a run, below its folder.
const MODEL_FILE: &str = "model/model.safetensors";
/// Where the folders of a run's processes are, below its folder, where each keeps checkpoints, and
/// the files that each of them writes.
const CLUSTER_FOLDER: &str = "cluster";
const STORE_FOLDER: &str = "store";
const EVENTS_FILE: &str = "events.jsonl";

/// The measurements. Times are medians.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct ClusterReport {
    workers: u32,
    /// A step, each worker a thread of one process.
    threads_ms: f64,
    /// A step, each worker a process.
    processes_ms: f64,
    /// Tokens a second of processes over those of threads.
    processes_over_threads: f64,
    /// A step during which no checkpoint was written, if there was one.
    without_checkpoint_ms: Option<f64>,
    /// A step during which one was.
    with_checkpoint_ms: Option<f64>,
    /// `with_checkpoint_ms` over `without_checkpoint_ms`.
    checkpoint_ratio: Option<f64>,
    /// Steps during which one was, over all rounds.
    steps_with_checkpoint: usize,
    /// From the last seal to the model's file under its name, as processes.
    ending_ms: Option<f64>,
    /// Writing the same bytes as the end to the same disk, until it is durable: the last checkpoint
    /// with its copies, and the model.
    plain_write_ms: Option<f64>,
    /// `ending_ms` over `plain_write_ms`.
    ending_ratio: Option<f64>,
}

/// Measurements of one run, from its output and its files.
#[derive(Debug, Default)]
struct RunMeasurement {
    timeline: RunTimeline,
    ending: Option<RunEndingTimes>,
}

/// The end of a run of processes.
#[derive(Clone, Copy, Debug, PartialEq)]
struct RunEndingTimes {
    /// From the last seal to the model's file.
    took_ms: f64,
    /// Writing all bytes that are on the disk then, plainly.
    plain_ms: f64,
}

/// The durations of steps and checkpoints, by the times in the run's events: the moment of their
/// printing is less exact, as the run requests them from its controller now and then.
#[derive(Clone, Debug, Default, PartialEq)]
struct RunTimeline {
    /// From seal to seal.
    steps_ms: Vec<f64>,
    /// After how many steps, and from their seal to the moment it was complete.
    checkpoints_ms: Vec<(usize, f64)>,
}

impl RunTimeline {
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

    /// The durations of steps, the first ones aside: while a checkpoint was written, and without
    /// one.
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
        let first = STEPS_FIRST_MAX.min(spans.len() / FIRST_PARTS);
        let settled = spans.get(first..).unwrap_or_default();
        let (with, without): (Vec<_>, Vec<_>) = settled.iter().partition(is_written);
        let took = |spans: Vec<&(f64, f64)>| spans.iter().map(|(from, to)| to - from).collect();
        (took(with), took(without))
    }
}

/// Runs `bench cluster`.
pub fn run(args: &BenchClusterArgs, out: &mut dyn Write) -> Result<(), CommandError> {
    let report = measure(args)?;
    if args.json {
        writeln!(out, "{}", serde_json::to_string(&report).expect("numbers are JSON"))?;
        return Ok(());
    }
    let ClusterReport { workers, threads_ms, processes_ms, processes_over_threads, .. } = report;
    writeln!(out, "{workers} workers, a thread each")?;
    writeln!(out, "  as threads    {threads_ms:>8.1} ms a step")?;
    writeln!(out, "  as processes  {processes_ms:>8.1} ms a step")?;
    writeln!(out, "  {processes_over_threads:.2} of the tokens a second of threads")?;
    let milliseconds =
        |found: Option<f64>| found.map_or("-".to_owned(), |found| format!("{found:.1}"));
    let ratio = |found: Option<f64>| found.map_or("-".to_owned(), |found| format!("{found:.2}"));
    writeln!(out, "checkpoints, every {} steps", checkpoint_every(args.steps))?;
    writeln!(out, "  none written  {:>8} ms a step", milliseconds(report.without_checkpoint_ms))?;
    writeln!(out, "  one written   {:>8} ms a step", milliseconds(report.with_checkpoint_ms))?;
    let share = ratio(report.checkpoint_ratio);
    let steps = report.steps_with_checkpoint;
    writeln!(out, "  {share} of the time without, over {steps} steps")?;
    writeln!(out, "the end of a run")?;
    writeln!(out, "  last seal to model  {:>8} ms", milliseconds(report.ending_ms))?;
    writeln!(out, "  its files plainly   {:>8} ms", milliseconds(report.plain_write_ms))?;
    writeln!(out, "  {} of the time of a plain write", ratio(report.ending_ratio))?;
    Ok(())
}

/// Steps from one checkpoint to the next, in runs that write some.
fn checkpoint_every(steps: u64) -> u64 {
    (steps / CHECKPOINTS).max(CHECKPOINT_EVERY_MIN)
}

fn measure(args: &BenchClusterArgs) -> Result<ClusterReport, CommandFailure> {
    let mut threads = Vec::new();
    let mut processes = Vec::new();
    let mut with = Vec::new();
    let mut without = Vec::new();
    let mut endings = Vec::new();
    for _ in 0..args.rounds {
        threads.push(pace(train(args, true, CHECKPOINT_NEVER)?.timeline)?);
        let calm = train(args, false, CHECKPOINT_NEVER)?;
        endings.extend(calm.ending);
        processes.push(pace(calm.timeline)?);
        // It has older checkpoints on its disks, so the bytes that its end wrote cannot be
        // distinguished.
        let saving = train(args, false, checkpoint_every(args.steps))?;
        let (written, calm) = saving.timeline.steps();
        with.extend(written);
        without.extend(calm);
    }
    let best = |times: Vec<f64>| times.into_iter().fold(f64::INFINITY, f64::min);
    let threads_ms = best(threads);
    let processes_ms = best(processes);
    let steps_with_checkpoint = with.len();
    let with_checkpoint_ms = median(with, f64::total_cmp);
    let without_checkpoint_ms = median(without, f64::total_cmp);
    let share = |one: Option<f64>, other: Option<f64>| Some(one? / other?);
    let ending_ms = median(endings.iter().map(|ending| ending.took_ms), f64::total_cmp);
    let plain_write_ms = median(endings.iter().map(|ending| ending.plain_ms), f64::total_cmp);
    Ok(ClusterReport {
        workers: args.workers,
        threads_ms,
        processes_ms,
        processes_over_threads: threads_ms / processes_ms,
        without_checkpoint_ms,
        with_checkpoint_ms,
        checkpoint_ratio: share(with_checkpoint_ms, without_checkpoint_ms),
        steps_with_checkpoint,
        ending_ms,
        plain_write_ms,
        ending_ratio: share(ending_ms, plain_write_ms),
    })
}

/// The duration of a step of a run.
fn pace(timeline: RunTimeline) -> Result<f64, CommandFailure> {
    let pace = median(timeline.steps().1, f64::total_cmp);
    pace.ok_or_else(|| failed(&"too few steps to measure anything: raise --steps"))
}

/// Trains once, and returns when steps were sealed and checkpoints complete.
fn train(
    args: &BenchClusterArgs,
    has_threads: bool,
    every: u64,
) -> Result<RunMeasurement, CommandFailure> {
    let folder = TemporaryFolder::temporary("bench-cluster").map_err(|error| failed(&error))?;
    train_in(&folder.path().join("run"), args, has_threads, every)
}

fn train_in(
    folder: &Path,
    args: &BenchClusterArgs,
    has_threads: bool,
    every: u64,
) -> Result<RunMeasurement, CommandFailure> {
    let program = std::env::current_exe().map_err(|error| failed(&error))?;
    let mut command = Command::new(program);
    command.arg("train").args(&args.config).arg("--json").arg("--out").arg(folder);
    command.args(["--workers", &args.workers.to_string(), "--threads", "1"]);
    command.args(["--steps", &args.steps.to_string()]);
    let preset = args.preset.iter().map(|name| format!("model.preset={name}"));
    for set in preset.chain(args.set.clone()) {
        command.arg("--set").arg(set);
    }
    command.args(["--set", &format!("checkpoint.every={every}")]);
    command.args(has_threads.then_some("--threads-only"));
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(|error| failed(&error))?;
    let mut timeline = RunTimeline::default();
    let lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
    for line in lines.map_while(Result::ok) {
        timeline.note(&line);
    }
    let status = child.wait().map_err(|error| failed(&error))?;
    if !status.success() {
        return Err(failed(&format!("`train` ended: {status}")));
    }
    let ending = if has_threads { None } else { ending(folder).map_err(|error| failed(&error))? };
    Ok(RunMeasurement { timeline, ending })
}

/// What the end of the run in a folder took, and what writing beside it takes what it wrote: the
/// checkpoint in the stores of its nodes, and its model.
fn ending(folder: &Path) -> io::Result<Option<RunEndingTimes>> {
    let model = folder.join(MODEL_FILE);
    let found = fs::metadata(&model)?;
    // When it got its name: it is written beside it.
    let named_ms = found.ctime() as f64 * 1e3 + found.ctime_nsec() as f64 / 1e6;
    let mut last: Option<(u64, u64)> = None;
    let mut written = vec![model];
    for node in fs::read_dir(folder.join(CLUSTER_FOLDER))? {
        let node = node?.path();
        collect_files(&node.join(STORE_FOLDER), &mut written)?;
        let Ok(events) = fs::read_to_string(node.join(EVENTS_FILE)) else { continue };
        last = events.lines().filter_map(seal_of).fold(last, later_seal);
    }
    let Some((_, sealed_ms)) = last else { return Ok(None) };
    let plain_ms = plain_write_ms(&written, &folder.join("plain"))?;
    Ok(Some(RunEndingTimes { took_ms: named_ms - sealed_ms as f64, plain_ms }))
}

/// The files below a folder, if there is one.
fn collect_files(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    if !folder.is_dir() {
        return Ok(());
    }
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            collect_files(&entry.path(), files)?;
        } else if kind.is_file() {
            files.push(entry.path());
        }
    }
    Ok(())
}

/// The time to write the bytes of these files into one until they are durable. Reading them does
/// not count.
fn plain_write_ms(files: &[PathBuf], to: &Path) -> io::Result<f64> {
    let mut file = fs::File::create(to)?;
    let mut took = Duration::ZERO;
    for source in files {
        let bytes = fs::read(source)?;
        let began = Instant::now();
        file.write_all(&bytes)?;
        took += began.elapsed();
    }
    let began = Instant::now();
    file.sync_all()?;
    Ok((took + began.elapsed()).as_secs_f64() * 1e3)
}

/// The step of a line, and when it was sealed, in milliseconds since 1970.
fn seal_of(line: &str) -> Option<(u64, u64)> {
    let value = serde_json::from_str::<Value>(line).ok()?;
    if value["event"].as_str() != Some("step") {
        return None;
    }
    Some((value["step"].as_u64()?, value["at_ms"].as_u64()?))
}

/// The seal of the later step; of several for one step, the earliest.
fn later_seal(known: Option<(u64, u64)>, seal: (u64, u64)) -> Option<(u64, u64)> {
    Some(known.map_or(seal, |known| match known.0.cmp(&seal.0) {
        Ordering::Less => seal,
        Ordering::Equal => (known.0, known.1.min(seal.1)),
        Ordering::Greater => known,
    }))
}

fn failed(error: &dyn std::fmt::Display) -> CommandFailure {
    CommandFailure::new(FailureCode::Internal, format!("bench cluster: {error}"))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{
        RunTimeline, STEPS_FIRST_MAX, checkpoint_every, collect_files, later_seal, pace,
        plain_write_ms, seal_of,
    };

    #[test]
    fn a_step_belongs_to_the_checkpoint_that_was_written_meanwhile() {
        let mut timeline = RunTimeline::default();
        for _ in 0..STEPS_FIRST_MAX {
            timeline.note("{\"event\":\"step\",\"ms\":100.0}");
        }
        let last = [10.0, 12.0, 8.0];
        let calm = vec![9.0; 3 * STEPS_FIRST_MAX - last.len()];
        for took in last.iter().chain(&calm) {
            timeline.note(&format!("{{\"event\":\"step\",\"ms\":{took}}}"));
        }
        let beside = |steps: &[f64]| [steps, &calm].concat();
        timeline.note("no JSON");
        let after = |steps: usize, took: f64| {
            format!("{{\"event\":\"checkpoint\",\"step\":{steps},\"ms\":{took}}}")
        };
        timeline.note(&after(STEPS_FIRST_MAX + 1, 12.0));
        assert_eq!(timeline.steps(), (vec![12.0], beside(&[10.0, 8.0])), "it ended with the step");
        timeline.note(&after(STEPS_FIRST_MAX, 1.0));
        assert_eq!(timeline.steps(), (vec![10.0, 12.0], beside(&[8.0])));
        timeline.note(&after(4 * STEPS_FIRST_MAX, 50.0));
        assert_eq!(timeline.steps(), (vec![10.0, 12.0], beside(&[8.0])), "no step was left");
    }

    #[test]
    fn of_a_short_run_a_share_of_its_steps_is_measured() {
        let mut timeline = RunTimeline::default();
        for took in [100.0, 90.0, 9.0, 8.0, 7.0, 6.0, 5.0, 4.0] {
            timeline.note(&format!("{{\"event\":\"step\",\"ms\":{took}}}"));
        }
        assert_eq!(timeline.steps().1, [9.0, 8.0, 7.0, 6.0, 5.0, 4.0]);
        assert_eq!([6, 20, 150].map(checkpoint_every), [3, 3, 25]);
    }

    #[test]
    fn a_run_ends_with_the_first_event_of_its_last_seal() {
        let line = |event: &str, step: u64, at_ms: u64| {
            format!("{{\"event\":\"{event}\",\"step\":{step},\"at_ms\":{at_ms}}}")
        };
        let steps = [line("step", 1, 50), line("step", 3, 90), line("step", 2, 70)];
        let others = [line("step", 3, 80), line("done", 4, 99), "no JSON".to_owned()];
        let seals = steps.iter().chain(&others).filter_map(|line| seal_of(line));
        assert_eq!(seals.fold(None, later_seal), Some((3, 80)));
    }

    #[test]
    fn all_files_of_all_stores_are_written_plainly() {
        let folder = tempfile::tempdir().expect("a folder");
        let chunks = folder.path().join("store/chunks/a0");
        fs::create_dir_all(&chunks).expect("made");
        for (path, bytes) in [(chunks.join("one"), "four"), (folder.path().join("other"), "x")] {
            fs::write(path, bytes).expect("written");
        }
        let mut files = Vec::new();
        collect_files(&folder.path().join("nobody"), &mut files).expect("there is none");
        collect_files(&folder.path().join("store"), &mut files).expect("readable");
        assert_eq!(files, [chunks.join("one")]);
        let plain = folder.path().join("plain");
        plain_write_ms(&[files[0].clone(), folder.path().join("other")], &plain).expect("written");
        assert_eq!(fs::read(plain).expect("there"), b"fourx");
    }

    #[test]
    fn a_run_too_short_is_refused() {
        let failure = pace(RunTimeline::default()).expect_err("there is no step");
        assert!(failure.what.contains("--steps"), "{}", failure.what);
    }
}
