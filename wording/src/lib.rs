//! The parts that every command prints alike: failures with their exit codes, numbers and
//! durations.
//!
//! A failure is one line, details below it, and a number for scripts ([`failure`]). Nothing here
//! knows the commands.

mod duration;
mod failure;
pub mod figures;
mod standard_error;

pub use duration::{DurationError, duration_word, parse_duration, parse_duration_above_zero};
pub use failure::{
    CommandError, CommandFailure, FailureCode, FailureDetail, cannot_write, is_storage_full,
};
pub use standard_error::print_error_line;
