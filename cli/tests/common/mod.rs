//! Helpers that tests of the binary share.

use std::process::{Command, Output};

pub fn zbelastic(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zbelastic"));
    command.args(arguments);
    command
}

/// Standard error of a command that fails with `code`, and prints nothing on standard output.
pub fn refusal(command: &mut Command, code: i32) -> String {
    let Output { status, stdout, stderr } = command.output().expect("it runs");
    assert_eq!(status.code(), Some(code), "{command:?}: {}", text(&stderr));
    assert_eq!(text(&stdout), "", "{command:?}");
    text(&stderr)
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}
