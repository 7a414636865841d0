//! When passes run: B and W as early as they can, F as late as leaves all other passes in place.

use zbelastic_types::StageIndex;

use crate::cost::Costs;
use crate::op::{Compute, Flow, MemoryOp, Op, Pass};
use crate::pass_table::PassTable;
use crate::program::Program;
use crate::simulate::{SimulateError, simulate};
use crate::walk::walk;

/// The times of every operation, by stage and position.
pub(super) struct Timetable {
    pub(super) starts: Vec<Vec<f64>>,
    pub(super) ends: Vec<Vec<f64>>,
}

impl Timetable {
    pub(super) fn new(program: &Program, costs: &Costs) -> Result<Self, SimulateError> {
        let timeline = simulate(program, costs, 1)?;
        let times = |pick: fn(&crate::timeline::TimelineSlice) -> f64| {
            let of_stage = |stage| timeline.slices(stage).iter().map(pick).collect();
            timeline.stages().map(of_stage).collect()
        };
        let mut table = Self { starts: times(|slice| slice.start), ends: times(|slice| slice.end) };
        table.delay_forwards(program, costs);
        Ok(table)
    }

    /// Moves every F, and the DROP behind it, to the latest time that leaves all other passes where
    /// they are.
    fn delay_forwards(&mut self, program: &Program, costs: &Costs) {
        let mut forward_starts = PassTable::new(program, f64::INFINITY);
        for (stage, position) in execution_order(program).into_iter().rev() {
            let op = program.ops(stage)[position];
            let next = self.starts[stage.index()].get(position + 1).copied();
            let next = next.unwrap_or(f64::INFINITY);
            let latest = match op {
                Op::Compute(Compute::F, pass) => {
                    next.min(reader_start(program, costs, pass, &forward_starts))
                }
                Op::Memory(MemoryOp::Drop, _) => next,
                Op::Compute(..)
                | Op::Transfer(..)
                | Op::Update(_)
                | Op::Reduce(..)
                | Op::Memory(..) => continue,
            };
            let start = &mut self.starts[stage.index()][position];
            let end = &mut self.ends[stage.index()][position];
            // An F whose result no pass waits for stays where it is.
            if latest.is_finite() {
                (*start, *end) = (*start + (latest - *end).max(0.0), end.max(latest));
            }
            if let Op::Compute(_, pass) = op
                && let Some(cell) = forward_starts.get_mut(pass)
            {
                *cell = *start;
            }
        }
    }
}

/// When the result of an F must be sent to the next chunk.
fn reader_start(program: &Program, costs: &Costs, pass: Pass, starts: &PassTable<f64>) -> f64 {
    let placement = &program.placement;
    let Some(chunk) = placement.chunk_after(pass.chunk, Flow::Forward) else {
        return f64::INFINITY;
    };
    let is_here = placement.stage_of(chunk) == placement.stage_of(pass.chunk);
    let hop = if is_here { 0.0 } else { costs.link + costs.occupancy };
    starts.get(Pass { chunk, ..pass }).unwrap_or(f64::INFINITY) - hop
}

/// Every operation by stage and position, in an order that respects all dependencies.
fn execution_order(program: &Program) -> Vec<(StageIndex, usize)> {
    let mut next = vec![0; program.stages.len()];
    let mut order = Vec::new();
    walk(program, 1, |stage, _, _| {
        order.push((stage, next[stage.index()]));
        next[stage.index()] += 1;
    })
    .expect("a program that was simulated reaches its end");
    order
}
