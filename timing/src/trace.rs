//! The last steps of a run as tracks for Perfetto: the operations of stages, and below them those
//! of their plan.

use zbelastic_schedule::render::chrome_trace::{
    ChromeTraceTrack, TraceSlice, category, timeline_tracks, write_trace,
};
use zbelastic_trainer::stage::EngineActivity;
use zbelastic_types::{StageIndex, Step};

use super::{MeasuredSlice, PLANNED_STEPS, RunTiming, SliceActivity, TRACE_STEPS};

/// The text of the trace file: of all steps that are kept, or of those from `from` on where it is one
/// of them, with no more of the plan than its steady state.
pub fn trace(timing: &RunTiming, stage_count: u32, from: Option<Step>) -> String {
    let from_us = from.and_then(|step| timing.start_us(step)).unwrap_or_else(|| timing.oldest_us());
    let planned_steps = if from.is_some() { PLANNED_STEPS } else { TRACE_STEPS as u32 };
    let measured = (0..stage_count).map(StageIndex).map(|stage| ChromeTraceTrack {
        process: "measured".to_owned(),
        thread: format!("worker {stage}"),
        slices: timing
            .slices(stage)
            .filter(|slice| slice.start_us >= from_us)
            .filter_map(|slice| trace_slice(slice, from_us))
            .collect(),
    });
    let planned = timeline_tracks(&timing.planned_timeline(planned_steps), 1.0);
    let planned = planned.into_iter().zip(0..).map(|(track, stage)| ChromeTraceTrack {
        process: format!("planned: {}", track.process),
        thread: format!("worker {stage}"),
        slices: track.slices,
    });
    write_trace(&measured.chain(planned).collect::<Vec<_>>())
}

fn trace_slice(slice: &MeasuredSlice, from_us: f64) -> Option<TraceSlice> {
    let (name, category) = match slice.doing {
        SliceActivity::Ran(EngineActivity::Op { turn, op }) => {
            (format!("{op} step {}", turn.step.0 + 1), category(op)?)
        }
        SliceActivity::Ran(EngineActivity::Evaluation { pass }) => {
            (format!("{}F{} held out", pass.chunk, pass.microbatch_text(1)), "evaluation")
        }
        SliceActivity::Ran(EngineActivity::Settled { turn }) => {
            (format!("verdict on step {}", turn.step.0 + 1), "update")
        }
        SliceActivity::Waited(turn) => (format!("gate of step {}", turn.step.0 + 1), "gate"),
    };
    let duration_us = slice.end_us - slice.start_us;
    Some(TraceSlice { name, category, start_us: slice.start_us - from_us, duration_us })
}
