//! A folder in which a test runs commands as a person does.

use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

use crate::common::{refusal, text, zbelastic};

/// A folder in which commands are run.
pub struct Site(pub tempfile::TempDir);

impl Site {
    pub fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A command with the words of a line.
    pub fn command(&self, line: &str) -> Command {
        let mut command = zbelastic(&line.split_whitespace().collect::<Vec<_>>());
        command.current_dir(self.0.path());
        command
    }

    /// Standard output of a command that succeeds.
    pub fn output(command: &mut Command) -> String {
        let Output { status, stdout, stderr } = command.output().expect("it runs");
        assert!(status.success(), "{command:?}: {}", text(&stderr));
        text(&stdout)
    }

    /// The same of the command with the words of a line.
    pub fn printed(&self, line: &str) -> String {
        Self::output(&mut self.command(line))
    }

    pub fn json(&self, line: &str) -> Value {
        let printed = self.printed(&format!("{line} --json"));
        serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{printed}: {error}"))
    }

    /// Runs a command that fails with `code`, and whose message has all of `parts`.
    pub fn refused(&self, line: &str, code: i32, parts: &[&str]) {
        let message = refusal(&mut self.command(line), code);
        for part in parts {
            assert!(message.contains(part), "{line}: no {part:?} in:\n{message}");
        }
    }
}
