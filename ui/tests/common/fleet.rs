//! A simulated cluster of many nodes, as its pages are shown it.

use serde_json::{Value, json};
use zbelastic_api::{StatusReport, sample};

/// Passes of a microbatch, and their categories.
const PASSES: [(&str, &str); 3] =
    [("F", "forward"), ("B", "input gradient"), ("W", "weight gradient")];

/// A status with so many workers, one a stage.
pub fn status(nodes: u64) -> StatusReport {
    let mut status = sample::status();
    let like = status.members[1].clone();
    let more = (0..nodes).map(|stage| {
        let mut member = like.clone();
        member.id.0 = 100 + stage;
        member.name = format!("spot-{stage}");
        member.stage = Some(stage as u32);
        member
    });
    // The sample has workers of its own.
    status.members.truncate(1);
    status.members.extend(more);
    status
}

/// The passes of a stage in a step of a process of the trace.
fn passes(process: u64, stage: u64, step: u64, microbatches: u64) -> impl Iterator<Item = Value> {
    (0..3 * microbatches).map(move |slot| {
        let (kind, category) = PASSES[slot as usize % 3];
        json!({ "name": format!("{kind}{} step {step}", slot / 3), "ph": "X", "pid": process,
            "tid": stage, "cat": category, "ts": step * 900_000 + stage * 500 + slot * 2000,
            "dur": 1900 })
    })
}

/// A trace of three steps from this one on, of which the middle one is whole, and of a step as planned.
pub fn trace(from: u64, stages: u64, microbatches: u64) -> String {
    let process = |process: u64, name: &str| {
        json!({ "name": "process_name", "ph": "M", "pid": process, "tid": 0,
            "args": { "name": name } })
    };
    let mut rows = vec![process(1, "measured"), process(2, "planned: zb-h1")];
    for stage in 0..stages {
        let measured = (from..from + 3).flat_map(|step| passes(1, stage, step, microbatches));
        rows.extend(measured.chain(passes(2, stage, 1, microbatches)));
    }
    json!({ "traceEvents": rows }).to_string()
}
