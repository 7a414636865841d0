//! Finds the order of regions that have none, by the clock.
//!
//! Every stage chooses when it is free and something is ready. The stage that can choose earliest
//! is next, so what arrives until then is known. A stage with a list has no choice, and its program
//! is left as it is.

use std::collections::BTreeMap;

use zbelastic_types::{MicrobatchIndex, StageIndex};

use super::event;
use crate::asynchronous::op::AsyncOp;
use crate::asynchronous::program::AsyncProgram;
use crate::asynchronous::region::{ArrivedOperands, DynamicRegion};
use crate::cost::Costs;
use crate::op::{Flow, Op, Pass, Transfer};
use crate::program::Program;
use crate::simulate::SimulationClock;

/// `program` with the order that its regions find at these times; unchanged if it has no region.
pub(super) fn with_dynamic_order(program: &AsyncProgram, costs: &Costs) -> AsyncProgram {
    let Some(mut dynamic_stages) = dynamic_stages_of(program) else { return program.clone() };
    let plain = Program { stages: vec![Vec::new(); dynamic_stages.len()], ..program.plain() };
    let mut clock = SimulationClock::new(&plain, (costs, &|_, _| None), 1);
    // Every choice is a pass, F or BW, of one microbatch on one chunk.
    for _ in 0..2 * program.pass_count() {
        let stages = (0..).map(StageIndex).zip(&dynamic_stages);
        let ready = stages.filter_map(|(stage, dynamic_stage)| {
            dynamic_stage.ready_at(clock.now(stage)).map(|time| (time, stage))
        });
        let next = ready.min_by(|(a, _), (b, _)| a.total_cmp(b));
        let (time, stage) = next.expect("some microbatch can always go on");
        dynamic_stages[stage.index()].choose(time);
        run_choice(program, &mut clock, &mut dynamic_stages, stage);
    }
    let stages = dynamic_stages
        .iter()
        .map(|dynamic_stage| dynamic_stage.region.executed_ops().to_vec())
        .collect();
    AsyncProgram { stages, ..program.clone() }
}

/// A stage whose order is found by the clock.
struct DynamicStage {
    region: DynamicRegion,
    /// Operands in flight or arrived, with the time of their arrival.
    arrivals: BTreeMap<(Flow, MicrobatchIndex), f64>,
}

impl DynamicStage {
    /// When a stage that is free at `now` has something to choose; `None` as long as no operand was
    /// sent to it.
    fn ready_at(&self, now: f64) -> Option<f64> {
        if self.region.choice(&ArrivedOperands::new()).is_some() {
            return Some(now);
        }
        let first = self.arrivals.values().copied().min_by(f64::total_cmp);
        first.map(|arrival| arrival.max(now))
    }

    fn choose(&mut self, time: f64) {
        let arrived = self.arrivals.iter().filter(|(_, arrival)| **arrival <= time);
        let arrived = arrived.map(|(operand, _)| *operand).collect();
        self.region.choose(&arrived);
    }
}

/// One dynamic stage for each stage; `None` if stages have lists.
fn dynamic_stages_of(program: &AsyncProgram) -> Option<Vec<DynamicStage>> {
    let chunk_count = program.placement.chunk_count();
    let microbatches = u32::try_from(program.microbatches_total()).expect("the size was checked");
    let dynamic_stage = |ops: &Vec<AsyncOp>| match ops[..] {
        [AsyncOp::Dynamic(chunk, dynamic)] => Some(DynamicStage {
            region: DynamicRegion::new(dynamic, chunk, chunk_count, microbatches),
            arrivals: BTreeMap::new(),
        }),
        _ => None,
    };
    program.stages.iter().map(dynamic_stage).collect()
}

/// Runs the operations that a stage has chosen, and sends their results to its neighbours.
fn run_choice(
    program: &AsyncProgram,
    clock: &mut SimulationClock<'_>,
    dynamic_stages: &mut [DynamicStage],
    stage: StageIndex,
) {
    while let Some(op) = dynamic_stages[stage.index()].region.next_op() {
        clock.run(stage, 0, event(op));
        dynamic_stages[stage.index()].region.finish_op();
        let Some(Op::Transfer(transfer, flow, pass)) = op.plain() else { continue };
        match transfer {
            Transfer::Receive => {
                dynamic_stages[stage.index()].arrivals.remove(&(flow, pass.microbatch));
            }
            Transfer::Send | Transfer::Local => {
                let chunk = program.placement.chunk_after(pass.chunk, flow);
                let chunk = chunk.expect("a result that is sent has a reader");
                let arrival = clock.arrival(0, flow, Pass { chunk, ..pass });
                let to = program.placement.stage_of(chunk).expect("every chunk has a stage");
                dynamic_stages[to.index()].arrivals.insert((flow, pass.microbatch), arrival);
            }
        }
    }
}
