//! The binary on a machine with an emulated driver of NVIDIA's: runs, clusters, and what is
//! printed when something is missing or gives up. Where there is no C++ compiler nothing is tried.

#![cfg(all(target_arch = "x86_64", unix))]

mod cluster;
#[path = "../common/mod.rs"]
mod common;
#[path = "../cluster/harness.rs"]
#[allow(dead_code)]
mod harness;
mod missing;
mod runs;

use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;
use zbelastic_emulator::{EmulatedLibrary, EmulatedToolkit, EmulatorSettings};

use common::{text, zbelastic};

/// A run small enough for a device that is a program.
const RUN: &str = "[model]\nfamily = \"gpt2\"\nlayers = 3\nwidth = 16\nheads = 2\n\
    [train]\nseq_len = 8\nmicrobatch = 2\nglobal_batch = 8\nseed = 5\nsteps = 4\ndevice = \"cuda\"\n";

/// The libraries of a machine, in a folder that all tests share: kernels are compiled once.
fn toolkit(name: &str, parts: &[EmulatedLibrary]) -> EmulatedToolkit {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    EmulatedToolkit::new(&folder, parts).expect("a folder")
}

/// A folder with a run, and a machine to run it on.
struct DriverSetup {
    folder: TempDir,
    toolkit: EmulatedToolkit,
}

impl DriverSetup {
    /// None where there is no C++ compiler.
    fn new() -> Option<Self> {
        Self::with("whole", &EmulatedLibrary::ALL)
    }

    fn with(name: &str, parts: &[EmulatedLibrary]) -> Option<Self> {
        if !EmulatedToolkit::is_possible() {
            return None;
        }
        let toolkit = toolkit(name, parts);
        let folder = tempfile::tempdir().expect("a folder");
        let text: Vec<u8> = (0..20_000_u32).map(|i| (i * i % 97) as u8 + 20).collect();
        std::fs::write(folder.path().join("text"), text).expect("writable");
        std::fs::write(folder.path().join("run.toml"), RUN).expect("writable");
        Some(Self { folder, toolkit })
    }

    /// `train` with these words, on such a machine.
    fn train(&self, settings: EmulatorSettings, words: &str) -> Command {
        let mut command = zbelastic(&["train", "run.toml", "--text", "text", "--threads", "1"]);
        command.args(words.split_whitespace()).current_dir(self.folder.path());
        self.toolkit.equip(&mut command, settings);
        command
    }
}

/// The digest that a run prints in the end.
fn digest(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().expect("it runs");
    let stdout_text = String::from_utf8_lossy(&stdout).into_owned();
    let stderr_text = text(&stderr);
    assert!(status.success(), "{command:?}: {stderr_text}");
    let line = stdout_text.lines().find_map(|line| line.strip_prefix("digest"));
    line.unwrap_or_else(|| panic!("no digest: {stdout_text}")).trim().to_owned()
}
