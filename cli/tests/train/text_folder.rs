//! A working folder to train in, and the output and files of a run in it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use crate::common::{text, zbelastic};

/// Of the runs of [`TextFolder::small`].
pub const STEPS: usize = 8;
/// Tokens of a step of theirs.
pub const STEP_TOKENS: f64 = 8.0 * 16.0;
/// Their clip norm, which some of their steps exceed and some do not.
pub const CLIP_NORM: f64 = 1.9;
/// A model so small that a step takes some milliseconds, and eight steps in which it learns.
const SMALL: &str = "train --set model.preset=tiny --set model.width=32 --set train.seq_len=16 \
    --set train.global_batch=8 --set train.microbatch=1 --set train.steps=8 \
    --set optimizer.lr=3e-3 --set optimizer.warmup=2 --set optimizer.clip=1.9 \
    --set data.text=text.txt --threads-only";

/// Patience with a run, on the slowest machine there is.
pub const PATIENCE: Duration = Duration::from_secs(240);

/// A process that does not outlive the test.
pub struct OwnedProcess(pub Child);

impl Drop for OwnedProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An empty folder but for a text.
pub struct TextFolder {
    folder: TempDir,
}

impl TextFolder {
    pub fn new() -> Self {
        let text_folder = Self { folder: tempfile::tempdir().expect("a folder") };
        let line = |n: u32| format!("{n} times {} is {}\n", n % 7 + 2, n * (n % 7 + 2));
        text_folder.write("text.txt", (1..=240).map(line).collect::<String>());
        text_folder
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        fs::write(self.path(name), content).expect("a file");
    }

    /// `zbelastic` in this folder. Between arguments are spaces.
    pub fn command(&self, arguments: &str) -> Command {
        let arguments: Vec<&str> = arguments.split_whitespace().collect();
        let mut command = zbelastic(&arguments);
        command.current_dir(self.folder.path());
        command
    }

    /// `train` of the small model, with `more` arguments.
    pub fn small(&self, more: &str) -> Command {
        self.command(&format!("{SMALL} {more}"))
    }

    /// The same in processes, which is the default.
    pub fn small_in_processes(&self, more: &str) -> Command {
        let in_threads = self.small(more);
        let mut command = self.command("");
        command.args(in_threads.get_args().filter(|argument| *argument != "--threads-only"));
        command
    }

    /// A run of the small model.
    pub fn run(&self, more: &str) -> TrainingOutput {
        self.finish(&mut self.small(more))
    }

    /// A run to its end, with `--json`.
    pub fn finish(&self, command: &mut Command) -> TrainingOutput {
        let stdout = succeed(command.arg("--json"));
        TrainingOutput::read(self, stdout)
    }

    /// Everything below, folders with nothing.
    pub fn contents(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut found = BTreeMap::new();
        let mut folders = vec![self.folder.path().to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).expect("readable") {
                let path = entry.expect("readable").path();
                let content = if path.is_dir() {
                    folders.push(path.clone());
                    Vec::new()
                } else {
                    fs::read(&path).expect("readable")
                };
                found.insert(path, content);
            }
        }
        found
    }
}

/// Standard output of a command that succeeds without warnings.
pub fn succeed(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().expect("it runs");
    assert_eq!(text(&stderr), "", "{command:?}");
    assert_eq!(status.code(), Some(0), "{command:?}");
    text(&stdout)
}

/// The output and the folder of a run.
pub struct TrainingOutput {
    pub stdout: String,
    pub events: Vec<Value>,
    pub folder: PathBuf,
}

impl TrainingOutput {
    pub fn read(text_folder: &TextFolder, stdout: String) -> Self {
        let parse = |line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
        let events: Vec<Value> = stdout.lines().map(parse).collect();
        let last = events.last().expect("a run tells something");
        assert_eq!(last["event"], "done", "{last}");
        let folder = text_folder.path(last["folder"].as_str().expect("a path"));
        Self { stdout, events, folder }
    }

    pub fn of(&self, event: &str) -> Vec<&Value> {
        self.events.iter().filter(|found| found["event"] == event).collect()
    }

    pub fn done(&self) -> &Value {
        self.events.last().expect("a run ends")
    }

    pub fn digest(&self) -> &str {
        self.done()["digest"].as_str().expect("a text")
    }

    /// A step, counted from 1.
    pub fn step(&self, number: usize) -> &Value {
        self.of("step")[number - 1]
    }

    /// The value of `key` in each step.
    pub fn each(&self, key: &str) -> Vec<Value> {
        self.of("step").into_iter().map(|step| step[key].clone()).collect()
    }

    pub fn file(&self, name: impl AsRef<Path>) -> Vec<u8> {
        let path = self.folder.join(name);
        fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    pub fn text(&self, name: &str) -> String {
        text(&self.file(name))
    }

    pub fn json(&self, name: &str) -> Value {
        serde_json::from_slice(&self.file(name)).expect("JSON")
    }
}
