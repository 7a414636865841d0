//! What the harness reads of processes, of clouds and of lives that failed.

use chaos_tests::case::Case;
use chaos_tests::processes::events::Event;
use chaos_tests::processes::replay::Trace;
use chaos_tests::traces::parse;

use super::{any, file};
use crate::Outcome;

/// Workers of the fleet that follows a trace.
const WORKERS: u32 = 8;
/// Seconds of a trace that are followed.
const WINDOW_S: f64 = 3600.0;

/// Every line is an event, if only a torn one.
pub fn event_lines(bytes: &[u8]) -> Outcome {
    for line in bytes.split(|byte| *byte == b'\n') {
        let _ = Event::parse(&String::from_utf8_lossy(line));
    }
    Outcome::Taken
}

/// A trace is read in either form, and a fleet follows it.
pub fn traces(bytes: &[u8]) -> Outcome {
    let Ok(text) = std::str::from_utf8(bytes) else { return Outcome::Refused };
    let trace = Trace::parse(text);
    if let Ok(trace) = &trace {
        let _ = trace.follow((0.0, WINDOW_S), 1.0, WORKERS);
    }
    any([Outcome::of(trace.is_ok()), Outcome::of(parse(text).is_ok())])
}

/// A case is refused, or one that a life can begin with.
pub fn cases(bytes: &[u8]) -> Outcome {
    Outcome::of(Case::load(&file("case.json", bytes)).is_ok())
}
