//! Programs of others that tests run where they are installed.

use std::env;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::Command;

/// Prints why a test is skipped. The runner of tests captures what `println!` prints, and shows it of tests that fail
/// alone: this line goes past it.
pub fn print_skip(why: &str) {
    let _ = writeln!(io::stderr(), "skipped: {why}");
}

/// A program in the folder that `ZBELASTIC_DEPLOY_TOOLS` names or on the path.
pub fn find(name: &str) -> Option<Command> {
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = env::var_os("ZBELASTIC_DEPLOY_TOOLS").map(PathBuf::from);
    let mut candidates = folders.into_iter().chain(env::split_paths(&path)).map(|it| it.join(name));
    candidates.find(|candidate| candidate.is_file()).map(Command::new)
}

/// The same, or nothing and a printed line.
///
/// # Panics
/// Without it where `ZBELASTIC_TOOLS_REQUIRED` is set.
pub fn tool(name: &str) -> Option<Command> {
    let found = find(name);
    if found.is_none() {
        assert!(env::var_os("ZBELASTIC_TOOLS_REQUIRED").is_none(), "there is no {name}");
        print_skip(&format!("there is no {name}"));
    }
    found
}

/// What a command printed on standard output.
///
/// # Panics
/// With all that it printed if it fails.
pub fn content(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let shown = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success(), "{command:?}: {}", shown.join("\n"));
    shown[0].clone().into_owned()
}
