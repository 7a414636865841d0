//! Runs of a real size: a model of more than 100 million parameters, and a cluster of 32 processes.
//! What holds for the quickstart must hold for them: whichever node is killed, no sealed step is
//! lost, and the bits are those of a run in one process.
#![cfg(target_os = "linux")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;

use serde_json::Value;
use tempfile::TempDir;

/// One run of a real size at a time: each wants all cores, and gigabytes.
static ALONE: Mutex<()> = Mutex::new(());

/// GPT-2 with its 124 million parameters (and a head of its own), and steps as short as they can
/// be.
const LARGE: &str = "train --set model.preset=gpt2-124m --set train.seq_len=32 \
    --set train.microbatch=1 --set train.global_batch=3 --steps 4 --set data.text=text.txt \
    --set optimizer.warmup=0 --json";
/// A chain of 32 stages, each with a block of a few thousand weights.
const WIDE: &str = "train --set model.preset=tiny --set model.layers=32 --set model.width=32 \
    --set train.seq_len=16 --set train.microbatch=1 --set train.global_batch=32 --steps 12 \
    --set data.text=text.txt --set optimizer.warmup=0 --set elastic.copies=2 --json";

struct SizesFolder(TempDir);

impl SizesFolder {
    fn new() -> Self {
        let folder = Self(tempfile::tempdir().expect("a folder"));
        let line = |n: u32| format!("{n} times {} is {}\n", n % 7 + 2, n * (n % 7 + 2));
        let text: String = (1..=240).map(line).collect();
        fs::write(folder.path("text.txt"), text).expect("a file");
        folder
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn command(&self, line: &str, more: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_zbelastic"));
        command.args(line.split_whitespace().chain(more.split_whitespace()));
        command.current_dir(self.0.path()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        command
    }

    /// The digest of a run in one process.
    fn digest_in_threads(&self, line: &str) -> String {
        let output = self.command(line, "--threads-only --workers 1 --threads 2").output();
        let output = output.expect("it runs");
        assert!(output.status.success());
        let stdout = String::from_utf8(output.stdout).expect("UTF-8");
        digest(stdout.lines().map(parse).collect::<Vec<_>>().as_slice())
    }
}

fn parse(line: &str) -> Value {
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
}

fn digest(events: &[Value]) -> String {
    let last = events.last().expect("a run tells something");
    assert_eq!(last["event"], "done", "{last}");
    last["digest"].as_str().expect("a text").to_owned()
}

/// A run in processes that does not outlive its test.
struct SizesRun(Child);

impl Drop for SizesRun {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Trains in processes, kills these workers at once when a step is sealed, and returns the printed
/// events.
fn train_and_kill(command: &mut Command, site: &Path, at_step: u64, victims: &[u32]) -> Vec<Value> {
    let mut running = SizesRun(command.spawn().expect("it runs"));
    let stdout = running.0.stdout.take().expect("piped");
    let mut events = Vec::new();
    for line in BufReader::new(stdout).lines() {
        let event = parse(&line.expect("UTF-8"));
        if event["event"] == "step" && event["step"] == at_step {
            let processes = victims.iter().map(|number| process_of(site, *number));
            kill(&processes.collect::<Vec<_>>());
        }
        events.push(event);
    }
    assert!(running.0.wait().expect("it ends").success());
    events
}

/// The process of a worker, by its data folder.
fn process_of(site: &Path, number: u32) -> String {
    let folder = format!("worker-{number}");
    let is_it = |entry: &fs::DirEntry| {
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let mut words = line.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word));
        let works_here = fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd == site);
        works_here && words.any(|word| word == folder)
    };
    let found = fs::read_dir("/proc").expect("Linux").flatten().find(is_it);
    found.expect("the worker runs").file_name().into_string().expect("a number")
}

fn kill(processes: &[String]) {
    let status = Command::new("kill").arg("-9").args(processes).status();
    assert!(status.expect("there is a kill").success());
}

/// Each step was sealed once, in order, and the run never went back.
fn check_nothing_was_lost(events: &[Value], steps: u64) {
    let of = |name: &str| events.iter().filter(|event| event["event"] == name).collect::<Vec<_>>();
    let sealed: Vec<u64> =
        of("step").iter().map(|step| step["step"].as_u64().expect("a number")).collect();
    assert_eq!(sealed, (1..=steps).collect::<Vec<_>>());
    assert!(of("rewound").is_empty(), "{:?}", of("rewound"));
}

fn lost(events: &[Value]) -> usize {
    events.iter().filter(|event| event["event"] == "lost").count()
}

#[test]
fn a_model_of_a_hundred_million_parameters_loses_a_worker_and_no_step() {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let folder = SizesFolder::new();
    let expected = folder.digest_in_threads(LARGE);
    let mut command = folder.command(LARGE, "--workers 3 --threads 1 --out killed");
    let events = train_and_kill(&mut command, folder.0.path(), 2, &[2]);
    check_nothing_was_lost(&events, 4);
    // That no other worker is suspected is measured by `chaos measure`: it is a matter of time.
    assert!(lost(&events) >= 1);
    assert_eq!(digest(&events), expected);
}

#[test]
fn thirty_two_processes_lose_two_workers_at_once_and_no_step() {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let folder = SizesFolder::new();
    let expected = folder.digest_in_threads(WIDE);
    let mut command = folder.command(WIDE, "--workers 32 --threads 1 --out killed");
    let events = train_and_kill(&mut command, folder.0.path(), 4, &[7, 8]);
    check_nothing_was_lost(&events, 12);
    assert!(lost(&events) >= 2);
    assert_eq!(digest(&events), expected);
}
