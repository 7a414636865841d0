//! Lines on standard error.

use std::fmt;
use std::io::{self, Write};

/// Prints a line on standard error. Where that is closed (`2>&1 | head`) nobody can read the line, and
/// it is dropped: a note that is not read must not end a run, as `eprintln!` does, which panics.
pub fn print_error_line(line: impl fmt::Display) {
    let _ = writeln!(io::stderr(), "{line}");
}
