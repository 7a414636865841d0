//! Gives an asynchronous program times, with the clock of synchronous ones.
//!
//! There is no flush, so all of a program is simulated at once, as if it were one long step. What
//! an operation waits for, how long a result takes to arrive and which passes a stage runs are the
//! same events there and here. An update takes the time of STEP and waits for nothing; operations
//! on versions, a stash, a prediction, an average, need no time. The order of a region that has
//! none is found with the same clock first ([`dynamic_order`]), by the rule by which a stage finds
//! it.

mod dynamic_order;
mod steady_state;

pub use steady_state::SteadyPipeline;

use super::op::AsyncOp;
use super::program::AsyncProgram;
use crate::cost::Costs;
use crate::op::{Op, UpdateOp};
use crate::program::Program;
use crate::simulate::{SimulateError, simulate};
use crate::timeline::{Timeline, TimelineExtent, TimelineSlice};

/// A program with its times.
#[derive(Clone, Debug, PartialEq)]
pub struct AsyncSimulation {
    /// The program; in place of a region the order that was found in it.
    pub program: AsyncProgram,
    /// When its operations ran, and the region itself, if it has one, before the operations found
    /// in it.
    pub timeline: Timeline<AsyncOp>,
}

/// Runs all of `program`. Verdicts, early shares of W, recomputation and copies do not occur in it.
///
/// # Errors
/// If the costs are not this program's, or if it does not reach its end.
///
/// # Panics
/// If the program breaks a rule about regions.
pub fn simulate_async(
    program: &AsyncProgram,
    costs: &Costs,
) -> Result<AsyncSimulation, SimulateError> {
    costs.check(&program.placement, 1)?;
    let found = dynamic_order::with_dynamic_order(program, costs);
    let timeline = simulate(&events(&found), costs, 1)?;
    let slices = program.stages.iter().zip(&found.stages).zip(timeline.slices);
    let slices = slices.map(|((requested, ops), times)| with_region(requested, named(ops, times)));
    let timeline = Timeline {
        name: program.kind.name(),
        extent: TimelineExtent::Segment {
            minibatch_count: program.minibatch_count,
            replica_count: program.replica_count,
        },
        placement: program.placement.clone(),
        microbatch_count: program.microbatch_count,
        slice_count: 1,
        slices: slices.collect(),
    };
    Ok(AsyncSimulation { program: found, timeline })
}

impl AsyncSimulation {
    /// The pipeline while it is full; `None` if it never is for as long as a round of its
    /// pipelines.
    #[must_use]
    pub fn steady(&self) -> Option<SteadyPipeline> {
        SteadyPipeline::of(&self.program, &self.timeline)
    }
}

/// The synchronous program with the same dependencies and durations. Its kind means nothing.
fn events(program: &AsyncProgram) -> Program {
    let stages = program.stages.iter().map(|ops| ops.iter().map(|op| event(*op)).collect());
    Program { stages: stages.collect(), ..program.plain() }
}

fn event(op: AsyncOp) -> Op {
    match op {
        AsyncOp::Compute(compute, pass, _) => Op::Compute(compute, pass),
        AsyncOp::Transfer(transfer, flow, pass) => Op::Transfer(transfer, flow, pass),
        AsyncOp::Step(..) => Op::Update(UpdateOp::Step),
        // As COMMIT, these wait for nothing and need no time.
        AsyncOp::Predict(..) | AsyncOp::Stash(..) | AsyncOp::Free(..) | AsyncOp::Average(..) => {
            Op::Update(UpdateOp::Commit)
        }
        AsyncOp::Dynamic(..) => unreachable!("its order was found"),
    }
}

/// The times of a stage's events under the names of its operations.
fn named(ops: &[AsyncOp], times: Vec<TimelineSlice>) -> Vec<TimelineSlice<AsyncOp>> {
    let named = |(op, TimelineSlice { step, start, end, .. }): (&AsyncOp, TimelineSlice)| {
        TimelineSlice { op: *op, step, start, end }
    };
    ops.iter().zip(times).map(named).collect()
}

/// The slices, behind the region in which their order was found, if there is one.
fn with_region(
    requested: &[AsyncOp],
    mut slices: Vec<TimelineSlice<AsyncOp>>,
) -> Vec<TimelineSlice<AsyncOp>> {
    if let [op @ AsyncOp::Dynamic(..)] = *requested
        && let (Some(first), Some(last)) = (slices.first(), slices.last())
    {
        let region = TimelineSlice { op, step: first.step, start: first.start, end: last.end };
        slices.insert(0, region);
    }
    slices
}

#[cfg(test)]
mod tests;
