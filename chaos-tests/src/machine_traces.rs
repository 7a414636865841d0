//! Machines that come and go as real ones did: public traces of preemptible instances.
//!
//! `traces/README.md` states where the tables come from and under which licence. A life chooses a
//! window of one of them, compresses its time into its storm, and scales the batches down to its
//! own number of machines.

use crate::options::LifeOptions;
use crate::random::Draws;

/// The tables: name, text, nodes it was about.
const TRACES: [(&str, &str, f64); 3] = [
    ("aws_p3_2021", include_str!("../traces/aws_p3_2021.csv"), 32.0),
    ("aws_g4dn_2021", include_str!("../traces/aws_g4dn_2021.csv"), 24.0),
    ("gcp_v100_2021", include_str!("../traces/gcp_v100_2021.csv"), 80.0),
];
/// Seconds of a trace that a life replays.
const WINDOW_S: u64 = 3600;

/// How many machines there were more or less, at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MachineCountChange {
    /// Seconds since the beginning of the trace.
    pub at_s: u64,
    /// Machines that came, less those that went.
    pub change: i64,
}

/// Why a text is no trace.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line} is not `time_s,..,nodes_alive`: {text}")]
pub struct MachineTraceError {
    /// The line, counted from 1.
    pub line: usize,
    /// The text of the line.
    pub text: String,
}

/// The batches of a table with the time in its first column and the nodes alive in its last.
///
/// # Errors
/// If a line is not of that form.
pub fn parse(text: &str) -> Result<Vec<MachineCountChange>, MachineTraceError> {
    let mut batches: Vec<MachineCountChange> = Vec::new();
    let mut alive: Option<i64> = None;
    for (index, line) in text.lines().enumerate().skip(1) {
        let error = || MachineTraceError { line: index + 1, text: line.to_owned() };
        let mut fields = line.split(',');
        let at_s = fields.next().and_then(|field| field.parse().ok()).ok_or_else(error)?;
        let now: u32 = fields.next_back().and_then(|f| f.parse().ok()).ok_or_else(error)?;
        let now = i64::from(now);
        let change = now - alive.replace(now).unwrap_or(now);
        match batches.last_mut() {
            Some(last) if last.at_s == at_s => last.change += change,
            Some(_) | None if change != 0 => batches.push(MachineCountChange { at_s, change }),
            Some(_) | None => {}
        }
    }
    Ok(batches)
}

/// Machines of a life that come or go at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChurnBatch {
    /// Microseconds since the storm began.
    pub at_us: u64,
    /// Number of machines.
    pub count: u32,
    /// Whether they come; else they go.
    pub is_join: bool,
}

/// The churn of a life: a window of a trace, in the time of its storm and for its number of machines.
pub fn churn(draws: &mut Draws, options: &LifeOptions) -> impl Iterator<Item = ChurnBatch> + use<> {
    let (name, text, nodes) = draws.pick(&TRACES);
    let batches = parse(text).unwrap_or_else(|error| panic!("{name}: {error}"));
    let end = batches.last().map_or(0, |batch| batch.at_s);
    let from = draws.below(end.saturating_sub(WINDOW_S).max(1));
    let storm_us = options.storm_us;
    let scale = f64::from(options.workers) / nodes;
    let within = batches.into_iter().filter(move |b| (from..from + WINDOW_S).contains(&b.at_s));
    within.map(move |batch| ChurnBatch {
        at_us: (batch.at_s - from) * storm_us / WINDOW_S,
        count: ((batch.change.unsigned_abs() as f64 * scale).round() as u32).max(1),
        is_join: batch.change > 0,
    })
}

#[cfg(test)]
mod tests {
    use super::{MachineCountChange, MachineTraceError, TRACES, parse};

    #[test]
    fn the_traces_are_read_to_the_last_line() {
        for (name, text, _) in TRACES {
            let batches = parse(text).expect(name);
            assert!(batches.len() > 50, "{name}");
            assert!(batches.is_sorted_by_key(|batch| batch.at_s), "{name}");
        }
    }

    #[test]
    fn lines_of_one_moment_are_one_batch() {
        let text = "time_s,event,node,nodes_alive\n0,join,a,1\n60,join,b,2\n60,join,c,3\n";
        assert_eq!(parse(text), Ok(vec![MachineCountChange { at_s: 60, change: 2 }]));
        let error = MachineTraceError { line: 2, text: "x,1".to_owned() };
        assert_eq!(parse("time_s,nodes_alive\nx,1"), Err(error));
        let many = "0,9223372036854775807".to_owned();
        let error = MachineTraceError { line: 2, text: many.clone() };
        assert_eq!(parse(&format!("time_s,nodes_alive\n{many}")), Err(error));
    }
}
