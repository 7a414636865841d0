//! Runs that train apart and exchange weights through folders.

use std::fs;
use std::process::Command;

use crate::common::text;
use crate::endings::{RunningTraining, STEADY};
use crate::text_folder::{TextFolder, TrainingOutput};

/// Two islands, which exchange weights in folders of these names.
fn islands(folders: [&str; 2], island: u32, more: &str) -> String {
    let [one, two] = folders;
    format!(
        "--steps 60 {STEADY} --set sync.every=12 --set sync.overlap=3 --set sync.fragments=2 \
         --set sync.folders=[\"{one}\",\"{two}\"] --set sync.island={island} --out {more}"
    )
}

fn model(folder: &TextFolder, run: &str) -> Vec<u8> {
    fs::read(folder.path(run).join("model/model.safetensors")).expect("written")
}

/// The process that works as a worker of a run.
fn kill(folder: &TextFolder, run: &str, worker: &str) {
    let lock = folder.path(run).join("cluster").join(worker).join("LOCK");
    let process = fs::read_to_string(lock).expect("its number");
    let status = Command::new("kill").args(["-9", process.trim()]).status();
    assert!(status.expect("there is a kill").success());
}

/// One island in threads and one in processes that lose workers come to what two in threads come to,
/// whichever of them computes with how many workers; and both end with one model.
#[test]
#[cfg(target_os = "linux")]
fn islands_that_lose_workers_change_no_bit() {
    let folder = TextFolder::new();
    let start = |command: &mut Command| RunningTraining::start(command.arg("--json"));
    let mut other = start(&mut folder.small(&islands(["a", "b"], 1, "threads-1 --workers 2")));
    let threads = folder.run(&islands(["a", "b"], 0, "threads-0 --workers 1"));
    let (_, stderr, code) = other.end();
    assert_eq!((stderr.as_str(), code), ("", Some(0)));
    let mut other = start(&mut folder.small(&islands(["c", "d"], 1, "processes-1 --workers 1")));
    let more = islands(["c", "d"], 0, "processes-0 --workers 3");
    let mut killed = start(&mut folder.small_in_processes(&more));
    let mut stdout = String::new();
    for (step, worker) in [(13, "worker-1"), (37, "worker-2")] {
        stdout += &killed.read_to(&format!("{{\"event\":\"step\",\"step\":{step},"));
        kill(&folder, "processes-0", worker);
    }
    let (rest, stderr, code) = killed.end();
    assert_eq!(code, Some(0), "{stderr}");
    let killed = TrainingOutput::read(&folder, stdout + &rest);
    // It may say that it waited.
    let (_, stderr, code) = other.end();
    assert_eq!(code, Some(0), "{stderr}");
    assert_eq!(killed.digest(), threads.digest());
    let one = model(&folder, "threads-0");
    for run in ["threads-1", "processes-0", "processes-1"] {
        assert!(model(&folder, run) == one, "{run} ends with the model of all");
    }
    let alone = folder.run(&format!("--steps 60 {STEADY} --out alone"));
    assert_ne!(alone.digest(), threads.digest());
}

/// A folder that another run wrote into is named, and nothing of it is used.
#[test]
#[cfg(target_os = "linux")]
fn a_folder_of_another_run_is_refused_with_what_to_do() {
    let folder = TextFolder::new();
    let mut first = folder.small(&islands(["a", "b"], 0, "first --workers 1"));
    let mut first = RunningTraining::start(first.arg("--json"));
    first.read_to("{\"event\":\"step\",\"step\":1,");
    first.signal("-KILL");
    let more = islands(["a", "b"], 0, "second --workers 1 --set optimizer.lr=5e-3");
    let mut second = RunningTraining::start(&mut folder.small(&more));
    let note = second.next_note();
    assert!(note.contains("island 0") && note.contains("folders of its own"), "{note}");
    second.signal("-KILL");
}

#[test]
fn settings_that_no_islands_can_have_are_refused() {
    let folder = TextFolder::new();
    for (settings, expected) in [
        ("--set sync.every=9", "0 islands"),
        ("--set sync.every=9 --set sync.folders=[\"a\"]", "1 islands"),
        ("--set sync.every=9 --set sync.folders=[\"a\",\"b\",\"a\"]", "islands 0 and 2"),
        (
            "--set sync.every=9 --set sync.folders=[\"a\",\"b\"] --set sync.island=2",
            "island 2 of 2",
        ),
        ("--set sync.every=5 --set sync.folders=[\"a\",\"b\"]", "sync.overlap = 4 or less"),
        (
            "--set sync.every=9 --set sync.fragments=10 --set sync.folders=[\"a\",\"b\"]",
            "sync.fragments = 9 or less",
        ),
        (
            "--set sync.every=9 --set sync.folders=[\"a\",\"b\"] --set train.steps=5",
            "train.steps = 6 or more",
        ),
        (
            "--set sync.every=9 --set sync.folders=[\"a\",\"b\"] --schedule pipedream-2bw",
            "sync.every",
        ),
        ("--set sync.every=9 --set sync.folders=[\"https://a/b\",\"b\"]", "sync.folders"),
    ] {
        let output = folder.small(settings).output().expect("it runs");
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{settings}: {stderr}");
        assert!(stderr.contains(expected), "{settings}: {stderr}");
    }
}
