//! The texts that the harness reads of processes, of clouds and of lives that failed.

use chaos_tests::case::LifeCase;
use chaos_tests::machine_traces::parse;
use zbelastic_chaos_processes::events::NodeEvent;
use zbelastic_chaos_processes::replay::FleetTrace;

use super::{any, file};
use crate::DecodeOutcome;

/// Workers of the fleet that follows a trace.
const WORKERS: u32 = 8;
/// Seconds of a trace that are followed.
const WINDOW_S: f64 = 3600.0;

/// Every line is an event, if only a torn one.
pub fn event_lines(bytes: &[u8]) -> DecodeOutcome {
    for line in bytes.split(|byte| *byte == b'\n') {
        let _ = NodeEvent::parse(&String::from_utf8_lossy(line));
    }
    DecodeOutcome::Accepted
}

/// A trace is read in either form, and a fleet follows it.
pub fn traces(bytes: &[u8]) -> DecodeOutcome {
    let Ok(text) = std::str::from_utf8(bytes) else { return DecodeOutcome::Refused };
    let trace = FleetTrace::parse(text);
    if let Ok(trace) = &trace {
        let _ = trace.follow((0.0, WINDOW_S), 1.0, WORKERS);
    }
    any([DecodeOutcome::of(trace.is_ok()), DecodeOutcome::of(parse(text).is_ok())])
}

/// A case is refused, or one that a life can begin with.
pub fn cases(bytes: &[u8]) -> DecodeOutcome {
    DecodeOutcome::of(LifeCase::load(&file("case.json", bytes)).is_ok())
}
