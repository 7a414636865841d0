//! Draws timelines: as text, as an SVG picture, and as a trace for Perfetto or Chrome.

pub mod ascii;
pub mod chrome_trace;
pub mod svg;

use crate::op::{Compute, Op, Reduction};
use crate::timeline::Timeline;

const PASS_NAMES: [(Compute, &str); 6] = [
    (Compute::F, "F forward"),
    (Compute::R, "R forward again"),
    (Compute::B, "B input gradient"),
    (Compute::WE, "WE early share of W"),
    (Compute::W, "W weight gradient"),
    (Compute::BW, "BW both gradients"),
];

/// The kinds of pass that occur in a timeline, and what its legend calls them.
fn pass_names(timeline: &Timeline) -> impl Iterator<Item = (Compute, &'static str)> {
    PASS_NAMES.into_iter().filter(|(compute, _)| {
        let is_it = |op| matches!(op, Op::Compute(found, _) if found == *compute);
        timeline.all_slices().any(|slice| is_it(slice.op))
    })
}

/// Whether a stage holds more than one chunk.
fn has_later_chunks(timeline: &Timeline) -> bool {
    timeline.placement().chunk_count() > timeline.placement().stage_count()
}

/// Whether gradients of replicas are added.
fn has_reductions(timeline: &Timeline) -> bool {
    timeline.all_slices().any(|slice| matches!(slice.op, Op::Reduce(Reduction::Add, _)))
}

/// What a drawing says about its timeline in one line. Of several steps the last is measured, as
/// the first does not wait for a verdict on a step before it.
fn headline(timeline: &Timeline) -> String {
    let step = timeline.step_count() - 1;
    let of_steps = match timeline.step_count() {
        1 => String::new(),
        steps => format!(", the last of {steps} steps"),
    };
    format!(
        "{}, {} stages, {} microbatches{}{of_steps}: longest span {}, makespan {}, \
         bubble_span {:.2} %, bubble_sync {:.2} %",
        timeline.kind(),
        timeline.placement().stage_count(),
        timeline.microbatch_count(),
        of_slices(timeline),
        short(timeline.cost(step)),
        short(timeline.makespan(step)),
        100.0 * timeline.bubble_span(step),
        100.0 * timeline.bubble_sync(step),
    )
}

/// The slices of a microbatch, where there are several.
fn of_slices(timeline: &Timeline) -> String {
    match timeline.slice_count() {
        1 => String::new(),
        slices => format!(" of {slices} slices"),
    }
}

/// A time with at most three digits after the point.
fn short(time: f64) -> String {
    format!("{}", (time * 1000.0).round() / 1000.0)
}

/// When the last slice of any stage ends.
fn end(timeline: &Timeline) -> f64 {
    timeline.all_slices().map(|slice| slice.end).fold(0.0, f64::max)
}
