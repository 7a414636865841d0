//! Finds the order of regions that have none, by the clock.
//!
//! Every stage chooses when it is free and something is ready. Who can choose earliest is next, so what
//! arrives until then is known. A stage with a list has no choice, and its program is left alone.

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

/// `program` with the order that its regions find at these times; itself if it has none.
pub(super) fn with_dynamic_order(program: &AsyncProgram, costs: &Costs) -> AsyncProgram {
    let Some(mut seekers) = dynamic_stages(program) else { return program.clone() };
    let plain = Program { stages: vec![Vec::new(); seekers.len()], ..program.plain() };
    let mut clock = SimulationClock::new(&plain, (costs, &|_, _| None), 1);
    // Every choice is a pass, F or BW, of one microbatch on one chunk.
    for _ in 0..2 * program.pass_count() {
        let stages = (0..).map(StageIndex).zip(&seekers);
        let ready = stages.filter_map(|(stage, seeker)| {
            seeker.ready_at(clock.now(stage)).map(|time| (time, stage))
        });
        let next = ready.min_by(|(a, _), (b, _)| a.total_cmp(b));
        let (time, stage) = next.expect("some microbatch can always go on");
        seekers[stage.index()].choose(time);
        run_choice(program, &mut clock, &mut seekers, stage);
    }
    let stages = seekers.iter().map(|seeker| seeker.region.executed_ops().to_vec()).collect();
    AsyncProgram { stages, ..program.clone() }
}

/// A stage that looks for its order.
struct DynamicStage {
    region: DynamicRegion,
    /// Operands on their way or here, with the time at which they are here.
    arrivals: BTreeMap<(Flow, MicrobatchIndex), f64>,
}

impl DynamicStage {
    /// When a stage that is free at `now` has something to choose; `None` as long as nobody sends it
    /// anything.
    fn ready_at(&self, now: f64) -> Option<f64> {
        if self.region.choice(&ArrivedOperands::new()).is_some() {
            return Some(now);
        }
        let first = self.arrivals.values().copied().min_by(f64::total_cmp);
        first.map(|arrival| arrival.max(now))
    }

    fn choose(&mut self, time: f64) {
        let here = self.arrivals.iter().filter(|(_, arrival)| **arrival <= time);
        let arrived = here.map(|(operand, _)| *operand).collect();
        self.region.choose(&arrived);
    }
}

/// A seeker a stage; `None` if stages have lists.
fn dynamic_stages(program: &AsyncProgram) -> Option<Vec<DynamicStage>> {
    let chunk_count = program.placement.chunk_count();
    let microbatches = u32::try_from(program.microbatches_total()).expect("the size was checked");
    let seeker = |ops: &Vec<AsyncOp>| match ops[..] {
        [AsyncOp::Dynamic(chunk, dynamic)] => Some(DynamicStage {
            region: DynamicRegion::new(dynamic, chunk, chunk_count, microbatches),
            arrivals: BTreeMap::new(),
        }),
        _ => None,
    };
    program.stages.iter().map(seeker).collect()
}

/// Runs what a stage has chosen; results are on their way to its neighbours.
fn run_choice(
    program: &AsyncProgram,
    clock: &mut SimulationClock<'_>,
    seekers: &mut [DynamicStage],
    stage: StageIndex,
) {
    while let Some(op) = seekers[stage.index()].region.next_op() {
        clock.run(stage, 0, event(op));
        seekers[stage.index()].region.finish_op();
        let Some(Op::Transfer(transfer, flow, pass)) = op.plain() else { continue };
        match transfer {
            Transfer::Receive => {
                seekers[stage.index()].arrivals.remove(&(flow, pass.microbatch));
            }
            Transfer::Send | Transfer::Local => {
                let chunk = program.placement.chunk_after(pass.chunk, flow);
                let chunk = chunk.expect("what is sent is read by somebody");
                let arrival = clock.arrival(0, flow, Pass { chunk, ..pass });
                let to = program.placement.stage_of(chunk).expect("every chunk has a stage");
                seekers[to.index()].arrivals.insert((flow, pass.microbatch), arrival);
            }
        }
    }
}
