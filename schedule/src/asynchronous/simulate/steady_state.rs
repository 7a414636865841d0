//! A pipeline that is full: a run without its beginning and its end.
//!
//! It is full from when every stage has run its first backward pass, behind a warm-up if there is
//! one, until some stage begins its last forward pass. In between time is measured from the end of
//! one microbatch's backward pass to another's, over as many as make up whole steps, of all
//! pipelines alike.

use zbelastic_types::{ChunkIndex, StageIndex};

use crate::asynchronous::op::AsyncOp;
use crate::asynchronous::program::AsyncProgram;
use crate::op::{Compute, Op};
use crate::timeline::{Timeline, TimelineSlice};

/// The period of a full pipeline, and the work in it.
#[derive(Clone, Debug, PartialEq)]
pub struct SteadyPipeline {
    /// Steps that are over when the measurement begins.
    pub from: u32,
    /// Steps that are over when it ends.
    pub to: u32,
    /// From the end of a step to the end of the next one.
    pub period: f64,
    /// Of each stage, the time in which it computes during one period.
    pub work: Vec<f64>,
}

impl SteadyPipeline {
    /// The share of a period in which the busiest stage does not compute.
    #[must_use]
    pub fn bubble(&self) -> f64 {
        let most = self.work.iter().copied().fold(0.0, f64::max);
        if self.period == 0.0 { 0.0 } else { (self.period - most) / self.period }
    }

    pub(super) fn of(program: &AsyncProgram, timeline: &Timeline<AsyncOp>) -> Option<Self> {
        let stages = || timeline.stages().map(|stage| timeline.slices(stage));
        let begin = stages().map(|slices| first_return(program, slices)).fold(0.0, f64::max);
        let end = stages().map(last_departure).fold(f64::INFINITY, f64::min);
        let ends = ends_of_steps(program, timeline);
        let within = |time: &f64| begin <= *time && *time <= end;
        let first = ends.iter().position(within)?;
        let last = ends.iter().rposition(within)?;
        let round = program.replica_count as usize;
        let last = first + (last - first) / round * round;
        let step_count = u32::try_from(last - first).expect("steps are counted in u32");
        if step_count == 0 {
            return None;
        }
        let share = 1.0 / f64::from(step_count);
        let work = stages().map(|slices| share * work_between(slices, ends[first], ends[last]));
        let from = u32::try_from(first).expect("steps are counted in u32") + 1;
        let period = share * (ends[last] - ends[first]);
        Some(Self { from, to: from + step_count, period, work: work.collect() })
    }
}

/// When the microbatches of 1, 2, 3 .. steps have had their last backward pass.
fn ends_of_steps(program: &AsyncProgram, timeline: &Timeline<AsyncOp>) -> Vec<f64> {
    let first = ChunkIndex(0);
    let stage = program.placement.stage_of(first).unwrap_or(StageIndex(0));
    let backward = timeline.slices(stage).iter().filter(|slice| match slice.op {
        AsyncOp::Compute(Compute::BW, pass, _) => pass.chunk == first,
        AsyncOp::Compute(..)
        | AsyncOp::Transfer(..)
        | AsyncOp::Step(..)
        | AsyncOp::Predict(..)
        | AsyncOp::Stash(..)
        | AsyncOp::Free(..)
        | AsyncOp::Average(..)
        | AsyncOp::Dynamic(..) => false,
    });
    let of_a_step = program.microbatch_count as usize;
    backward.map(|slice| slice.end).skip(of_a_step - 1).step_by(of_a_step).collect()
}

fn first_return(program: &AsyncProgram, slices: &[TimelineSlice<AsyncOp>]) -> f64 {
    let is_first = |slice: &&TimelineSlice<AsyncOp>| match slice.op.plain() {
        Some(Op::Compute(Compute::BW, pass)) => !program.is_warm_up(pass.microbatch),
        Some(_) | None => false,
    };
    // All of a run may be warm-up; then the pipeline is never full.
    slices.iter().find(is_first).map_or(f64::INFINITY, |slice| slice.end)
}

fn last_departure(slices: &[TimelineSlice<AsyncOp>]) -> f64 {
    slices.iter().rfind(|slice| is(slice, Compute::F)).map_or(0.0, |slice| slice.start)
}

fn is(slice: &TimelineSlice<AsyncOp>, compute: Compute) -> bool {
    matches!(slice.op, AsyncOp::Compute(found, ..) if found == compute)
}

/// The time in which a stage computes from `from` to `to`.
fn work_between(slices: &[TimelineSlice<AsyncOp>], from: f64, to: f64) -> f64 {
    let passes = slices.iter().filter(|slice| matches!(slice.op, AsyncOp::Compute(..)));
    passes.map(|slice| (slice.end.min(to) - slice.start.max(from)).max(0.0)).sum()
}
