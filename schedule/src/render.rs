//! Draws timelines: as text, as an SVG picture, and as a trace for Perfetto or Chrome.

pub mod ascii;
pub mod chrome_trace;
pub mod svg;

use zbelastic_types::StageIndex;

use crate::appearance::{OpAppearance, TimelineMark, TimelineOp};
use crate::op::{Compute, Pass};
use crate::placement::Placement;
use crate::timeline::{Timeline, TimelineExtent};

/// How the time of a timeline is written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimeUnit {
    /// How many there are in a unit of the timeline's time.
    per_time: f64,
    /// What follows a number.
    suffix: &'static str,
}

impl TimeUnit {
    /// The timeline's own, which has no name.
    pub const OWN: Self = Self { per_time: 1.0, suffix: "" };
    /// Milliseconds, of a timeline in seconds.
    pub const MILLISECONDS: Self = Self { per_time: 1e3, suffix: " ms" };

    fn text(self, time: f64) -> String {
        format!("{}{}", short(time * self.per_time), self.suffix)
    }
}

const PASS_NAMES: [(Compute, &str); 6] = [
    (Compute::F, "F forward"),
    (Compute::R, "R forward again"),
    (Compute::B, "B input gradient"),
    (Compute::WE, "WE early share of W"),
    (Compute::W, "W weight gradient"),
    (Compute::BW, "BW both gradients"),
];

/// The kinds of pass that occur in a timeline, and what its legend calls them.
fn pass_names<O: TimelineOp>(
    timeline: &Timeline<O>,
) -> impl Iterator<Item = (Compute, &'static str)> {
    PASS_NAMES.into_iter().filter(|(compute, _)| {
        let is_kind = |op: O| matches!(op.computed(), Some((found, _)) if found == *compute);
        timeline.all_slices().any(|slice| is_kind(slice.op))
    })
}

/// Every mark with its letter in a text and its name, in the order of legends.
const MARKS: [(TimelineMark, char, &str); 7] = [
    (TimelineMark::Gate, 'G', "gate"),
    (TimelineMark::Reduce, 'R', "reduce"),
    (TimelineMark::Stash, '+', "stash"),
    (TimelineMark::Predict, 'P', "predict"),
    (TimelineMark::Free, '-', "free"),
    (TimelineMark::Step, 'S', "step"),
    (TimelineMark::Average, 'A', "average"),
];

/// The marks that a legend names.
fn marks_of<O: TimelineOp>(
    timeline: &Timeline<O>,
) -> impl Iterator<Item = (TimelineMark, char, &'static str)> {
    MARKS.into_iter().filter(|(mark, ..)| has(timeline, OpAppearance::Mark(*mark)))
}

fn has<O: TimelineOp>(timeline: &Timeline<O>, appearance: OpAppearance) -> bool {
    timeline.all_slices().any(|slice| slice.op.appearance() == appearance)
}

/// The name of the passes that are drawn fainter than those of a stage's first chunk or pipeline.
fn later_name<O: TimelineOp>(timeline: &Timeline<O>) -> Option<&'static str> {
    let placement = timeline.placement();
    match timeline.extent() {
        TimelineExtent::Segment { replica_count, .. } if replica_count > 1 => {
            Some("later pipeline")
        }
        TimelineExtent::Steps(_) if placement.is_table() => Some("later chunk or replica"),
        TimelineExtent::Segment { .. } | TimelineExtent::Steps(_) => {
            (placement.chunk_count() > placement.stage_count()).then_some("later chunk")
        }
    }
}

/// Whether a pass is of a stage's later chunk, or of a later pipeline.
fn is_later<O: TimelineOp>(
    timeline: &Timeline<O>,
    stage: StageIndex,
    (pass, replica): (Pass, u32),
) -> bool {
    let first_chunk = timeline.placement().chunks_of(stage).next();
    Some(pass.chunk) != first_chunk || replica > 0
}

/// The line that heads the drawing of a timeline. Of several steps the last is measured, as
/// the first does not wait for a verdict on a step before it; without steps all of it is.
fn headline<O: TimelineOp>(timeline: &Timeline<O>, unit: TimeUnit) -> String {
    let step = timeline.step_count() - 1;
    let of_steps = match timeline.extent() {
        TimelineExtent::Steps(1) => "",
        TimelineExtent::Steps(steps) => &format!(", the last of {steps} steps"),
        TimelineExtent::Segment { .. } => ", the whole of it",
    };
    format!(
        "{}{of_steps}: longest stage {}, makespan {}, bubble rate {:.2} %, synchronized {:.2} %",
        title(timeline),
        unit.text(timeline.cost(step)),
        unit.text(timeline.makespan(step)),
        100.0 * timeline.bubble_span(step),
        100.0 * timeline.bubble_sync(step),
    )
}

/// The schedule and its size.
fn title<O: TimelineOp>(timeline: &Timeline<O>) -> String {
    let name = timeline.name();
    let stages = stages_text(timeline.placement());
    let size = match timeline.extent() {
        TimelineExtent::Steps(_) => match timeline.slice_count() {
            1 => String::new(),
            slices => format!(" of {slices} slices"),
        },
        TimelineExtent::Segment { minibatch_count, replica_count } => {
            let pipelines = match replica_count {
                1 => String::new(),
                pipelines => format!(", in turn through {pipelines} pipelines"),
            };
            format!(" in each of {minibatch_count} steps{pipelines}")
        }
    };
    format!("{name}, {stages}, {} microbatches{size}", timeline.microbatch_count())
}

/// How many stages there are, and how often.
fn stages_text(placement: &Placement) -> String {
    let stages = placement.stages_per_column();
    match placement.column_count() {
        1 => format!("{stages} stages"),
        columns if placement.is_table() => {
            format!("{stages} stages × {columns} replicas on {}", placement.stage_count())
        }
        columns => format!("{stages} stages × {columns} replicas"),
    }
}

/// The name of a stage's row: with its replicas in front where there are several.
fn stage_name(placement: &Placement, stage: StageIndex) -> String {
    let place = placement.table().place_of(stage);
    match placement.column_count() {
        1 => format!("stage {stage}"),
        _ => {
            let columns: Vec<String> =
                placement.table().columns_of(stage).map(|c| c.to_string()).collect();
            format!("r{} s{place}", columns.join("+"))
        }
    }
}

/// A time with at most three digits after the point.
fn short(time: f64) -> String {
    format!("{}", (time * 1000.0).round() / 1000.0)
}

/// When the last slice of any stage ends.
fn end<O: TimelineOp>(timeline: &Timeline<O>) -> f64 {
    timeline.all_slices().map(|slice| slice.end).fold(0.0, f64::max)
}
