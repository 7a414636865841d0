//! A machine that becomes slow while a run is under way: the plan follows, and the bits do not.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::text;
use crate::text_folder::{OwnedProcess, PATIENCE, TextFolder, TrainingOutput};

/// Layers enough to be cut unevenly, and steps that take some tens of milliseconds.
const MODEL: &str = "--steps 90 --window 1 --set model.layers=6 --set model.width=128 \
    --set train.seq_len=64 --set train.microbatch=2 --set train.global_batch=16 \
    --set optimizer.decay=constant --set optimizer.warmup=0 --set optimizer.lr=1e-3";
/// The worker that becomes slow.
const SLOW: &str = "worker-2";
/// It has this share of the time: twenty of thirty milliseconds it stands still.
const PULSE: &str =
    "while kill -STOP $0 2>/dev/null; do sleep 0.02; kill -CONT $0; sleep 0.01; done";

/// The number of the process in this place that is a worker of this name, if it is there.
fn process_of(folder: &Path, name: &str) -> Option<String> {
    let is_it = |entry: &std::fs::DirEntry| {
        let works_in = std::fs::read_link(entry.path().join("cwd"));
        let command_line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let is_named = command_line.split(|byte| *byte == 0).any(|word| word == name.as_bytes());
        is_named && works_in.is_ok_and(|works_in| works_in.starts_with(folder))
    };
    let mut processes = std::fs::read_dir("/proc").expect("Linux has one").flatten();
    processes.find(is_it).map(|entry| entry.file_name().to_string_lossy().into_owned())
}

/// Runs in processes, of which one is slow from the beginning.
fn run_with_a_slow_worker(folder: &TextFolder, more: &str) -> TrainingOutput {
    let mut command = folder.small_in_processes(&format!("{MODEL} --json {more}"));
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut train = OwnedProcess(command.spawn().expect("it runs"));
    let began = Instant::now();
    let slow = loop {
        if let Some(slow) = process_of(&folder.path(""), SLOW) {
            break slow;
        }
        assert!(began.elapsed() < PATIENCE, "no process of {SLOW}");
        std::thread::sleep(Duration::from_millis(20));
    };
    let pulse = Command::new("sh").args(["-c", PULSE, &slow]).stderr(Stdio::null()).spawn();
    let _pulse = OwnedProcess(pulse.expect("there is a shell"));
    let mut stdout_bytes = Vec::new();
    let mut stderr_bytes = Vec::new();
    let stdout = train.0.stdout.as_mut().expect("piped");
    stdout.read_to_end(&mut stdout_bytes).expect("it can be read");
    train.0.stderr.as_mut().expect("piped").read_to_end(&mut stderr_bytes).expect("it can be read");
    assert!(train.0.wait().expect("it ends").success(), "{}", text(&stderr_bytes));
    TrainingOutput::read(folder, text(&stdout_bytes))
}

/// Events of this kind that the controller of a run recorded.
fn recorded_events(run: &TrainingOutput, kind: &str) -> Vec<Value> {
    let events = run.text("cluster/controller/events.jsonl");
    let parse = |line: &str| serde_json::from_str::<Value>(line).expect("JSON");
    events.lines().map(parse).filter(|event| event["event"] == kind).collect()
}

fn drifts(run: &TrainingOutput) -> Vec<Value> {
    let is_drift =
        |plan: &Value| plan["reason"].as_str().is_some_and(|why| why.contains("drifted"));
    recorded_events(run, "plan").into_iter().filter(is_drift).collect()
}

#[test]
fn a_slow_worker_leads_to_another_plan_that_names_it_and_to_the_same_bits() {
    let folder = TextFolder::new();
    let undisturbed = folder.run(&format!("{MODEL} --workers 3"));
    let run = run_with_a_slow_worker(&folder, "--workers 3");
    assert_eq!(run.digest(), undisturbed.digest(), "whoever computed what");
    let joined = recorded_events(&run, "joined");
    let slow = joined.iter().find(|event| event["name"] == SLOW).expect("it joined");
    let drifts = drifts(&run);
    // A plan that was made for a drift is left alone for longer than this run.
    let [plan] = &drifts[..] else { panic!("{drifts:#?}") };
    let stages = plan["stages"].as_array().expect("a list");
    let stage = stages.iter().position(|node| *node == slow["node"]).expect("it has one still");
    let expected = format!("stage {stage} (node {}) drifted: ", slow["node"]);
    let reason = plan["reason"].as_str().expect("a text");
    assert!(reason.starts_with(&expected), "{reason}, expected {expected}");
}

#[test]
fn a_run_that_is_to_keep_its_plan_keeps_it() {
    let folder = TextFolder::new();
    let run = run_with_a_slow_worker(&folder, "--workers 3 --set elastic.replan=never");
    assert_eq!(drifts(&run), [] as [Value; 0]);
    let plans = recorded_events(&run, "plan");
    assert_eq!(plans.len(), 1, "nobody came or went: {plans:#?}");
}
