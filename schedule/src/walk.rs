//! Runs the lists of a program against each other, without times.
//!
//! A stage runs its list in order and waits at an operation until what it depends on has run.
//! Sends are buffered: a stage never waits for a peer to take a result. What an operation depends
//! on follows from the pass it names, not from the transfers, so a program walks alike before and
//! after lowering. The order in which operations are visited is one that respects every dependency;
//! `simulate` only has to add times, and `check` only tests whether the end is reached.

use std::collections::BTreeSet;
use std::fmt;

use zbelastic_types::{ChunkIndex, StageIndex};

use crate::op::{Compute, Flow, Op, Pass, Transfer, UpdateOp};
use crate::pass_table::PassTable;
use crate::program::{Program, Window};
use crate::reduction::{Reduction, TreeExchange};

/// Where one stage stands when nothing moves any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeadlockedStage {
    /// Index of the stage in pipeline order.
    pub stage: StageIndex,
    /// The step it is in, counted from 0.
    pub step: u32,
    /// The operation it waits at; `None` if it has run its whole list.
    pub op: Option<Op>,
}

/// A program that does not reach its end: the stages wait for each other, or for something that
/// never comes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the program stops: {}", places_text(places))]
pub struct Deadlock {
    /// Where each stage stands.
    pub places: Vec<DeadlockedStage>,
}

fn places_text(places: &[DeadlockedStage]) -> String {
    places.iter().map(DeadlockedStage::to_string).collect::<Vec<_>>().join(", ")
}

impl fmt::Display for DeadlockedStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.op {
            Some(op) => write!(f, "stage {} waits at {op} in step {}", self.stage, self.step),
            None => write!(f, "stage {} is done", self.stage),
        }
    }
}

/// Runs `step_count` steps of `program` and calls `visit` with every operation as it runs.
pub(crate) fn walk(
    program: &Program,
    step_count: u32,
    mut visit: impl FnMut(StageIndex, u32, Op),
) -> Result<(), Deadlock> {
    let mut walk = Walk::new(program, step_count);
    while let Some(stage) = walk.awake.pop() {
        while let Some(op) = walk.next_op(stage) {
            let step = walk.cursors[stage.index()].step;
            if !walk.is_ready(stage, step, op) {
                break;
            }
            visit(stage, step, op);
            walk.finish(stage, step, op);
        }
    }
    walk.outcome()
}

/// The operation of a stage that is next.
#[derive(Clone, Copy)]
struct StageCursor {
    step: u32,
    position: usize,
}

/// Which passes of a chunk and microbatch have run.
#[derive(Clone, Copy, Default)]
struct PassCompletion {
    forward: bool,
    backward: bool,
}

pub(crate) struct Walk<'a> {
    program: &'a Program,
    step_count: u32,
    cursors: Vec<StageCursor>,
    /// Stages that may be able to move. A stage is woken by what it may be waiting for, so a pass
    /// costs at most one check of another stage, and the reports of a step one of each.
    pub(crate) awake: Vec<StageIndex>,
    /// By step: what has run of each pass.
    done: Vec<PassTable<PassCompletion>>,
    /// By step: which stages have reported.
    reports: Vec<StepReports>,
    /// By step: the exchanges for which a chunk's sum was sent to its sibling.
    gradients_sent: Vec<BTreeSet<(ChunkIndex, TreeExchange)>>,
    /// By step, then by chunk: whether its part of a tied matrix's was sent to the other end.
    tied_sent: Vec<Vec<bool>>,
}

/// Which stages have reported a step.
#[derive(Clone)]
struct StepReports {
    /// By stage: whether it has reported.
    sent: Vec<bool>,
    /// How many stages have reported from the first one on without a gap.
    prefix: usize,
}

impl<'a> Walk<'a> {
    pub(crate) fn new(program: &'a Program, step_count: u32) -> Self {
        let stage_count = program.stages.len();
        let steps = step_count as usize;
        Self {
            program,
            step_count,
            cursors: vec![StageCursor { step: 0, position: 0 }; stage_count],
            awake: stages(program).rev().collect(),
            done: vec![PassTable::new(program, PassCompletion::default()); steps],
            reports: vec![StepReports { sent: vec![false; stage_count], prefix: 0 }; steps],
            gradients_sent: vec![BTreeSet::new(); steps],
            tied_sent: vec![vec![false; program.placement.chunk_count() as usize]; steps],
        }
    }

    fn next_op(&self, stage: StageIndex) -> Option<Op> {
        let cursor = self.cursors[stage.index()];
        let ops = self.program.ops(stage);
        if cursor.step == self.step_count { None } else { ops.get(cursor.position).copied() }
    }

    /// Whether all that `op` depends on has run.
    pub(crate) fn is_ready(&self, stage: StageIndex, step: u32, op: Op) -> bool {
        match op {
            Op::Compute(compute, pass) => self.is_compute_ready(step, compute, pass),
            Op::Transfer(Transfer::Receive, flow, pass) => {
                let before = self.program.placement.chunk_before(pass.chunk, flow);
                before.is_some_and(|chunk| self.is_done(step, flow, Pass { chunk, ..pass }))
            }
            Op::Transfer(Transfer::Send | Transfer::Local, flow, pass) => {
                self.is_done(step, flow, pass)
            }
            Op::Update(update) => self.is_update_ready(stage, step, update),
            Op::Reduce(reduction, chunk) => self.is_reduction_ready(step, reduction, chunk),
            Op::Memory(_, pass) => self.is_done(step, Flow::Forward, pass),
        }
    }

    fn is_compute_ready(&self, step: u32, compute: Compute, pass: Pass) -> bool {
        let from = |flow| {
            let before = self.program.placement.chunk_before(pass.chunk, flow);
            before.is_none_or(|chunk| self.is_done(step, flow, Pass { chunk, ..pass }))
        };
        match compute {
            Compute::F => self.has_pass(pass) && from(Flow::Forward),
            Compute::B | Compute::BW => {
                self.is_done(step, Flow::Forward, pass) && from(Flow::Backward)
            }
            Compute::W | Compute::WE => self.is_done(step, Flow::Backward, pass),
            Compute::R => self.is_done(step, Flow::Forward, pass),
        }
    }

    fn is_update_ready(&self, stage: StageIndex, step: u32, update: UpdateOp) -> bool {
        let prefix = |step: u32| self.reports[step as usize].prefix;
        let all = self.program.stages.len();
        match update {
            UpdateOp::Report | UpdateOp::Commit => true,
            UpdateOp::GatePrevious => step == 0 || prefix(step - 1) == all,
            UpdateOp::GateThis => prefix(step) == all,
            UpdateOp::Step => match self.program.window {
                Some(Window::One) => {
                    let source = self.program.placement.table().prefix_source(stage);
                    source.is_none_or(|source| prefix(step) > source.index())
                }
                Some(Window::Zero) | None => true,
            },
        }
    }

    fn is_reduction_ready(&self, step: u32, reduction: Reduction, chunk: ChunkIndex) -> bool {
        let placement = &self.program.placement;
        let tied = || {
            let Some(end) = placement.other_end_of(chunk) else { return false };
            let is_here = placement.stage_of(end) == placement.stage_of(chunk);
            let is_sent = self.tied_sent[step as usize][end.index()];
            reduction == Reduction::SendTied || is_here || is_sent
        };
        let sibling = |exchange: TreeExchange| placement.sibling_at(chunk, exchange.level());
        match reduction {
            Reduction::Send(exchange) | Reduction::Local(exchange) => sibling(exchange).is_some(),
            Reduction::Receive(exchange) | Reduction::Merge(exchange) => sibling(exchange)
                .is_some_and(|from| self.gradients_sent[step as usize].contains(&(from, exchange))),
            Reduction::SendTied | Reduction::ReceiveTied | Reduction::Tie => tied(),
        }
    }

    fn has_pass(&self, pass: Pass) -> bool {
        self.done.first().is_some_and(|table| table.get(pass).is_some())
    }

    fn is_done(&self, step: u32, flow: Flow, pass: Pass) -> bool {
        self.done[step as usize].get(pass).is_some_and(|done| match flow {
            Flow::Forward => done.forward,
            Flow::Backward => done.backward,
        })
    }

    fn finish(&mut self, stage: StageIndex, step: u32, op: Op) {
        self.complete(stage, step, op);
        let cursor = &mut self.cursors[stage.index()];
        cursor.position += 1;
        if cursor.position == self.program.ops(stage).len() {
            *cursor = StageCursor { step: step + 1, position: 0 };
        }
    }

    /// `op` has run, whether or not it is in a list of the program.
    pub(crate) fn complete(&mut self, stage: StageIndex, step: u32, op: Op) {
        match op {
            Op::Compute(Compute::F, pass) => self.finish_pass(step, Flow::Forward, pass),
            Op::Compute(Compute::B | Compute::BW, pass) => {
                self.finish_pass(step, Flow::Backward, pass);
            }
            Op::Update(UpdateOp::Report) => self.finish_report(stage, step),
            Op::Reduce(Reduction::Send(exchange) | Reduction::Local(exchange), chunk) => {
                self.gradients_sent[step as usize].insert((chunk, exchange));
                self.wake(self.program.placement.sibling_at(chunk, exchange.level()));
            }
            Op::Reduce(Reduction::SendTied, chunk) => {
                self.tied_sent[step as usize][chunk.index()] = true;
                self.wake(self.program.placement.other_end_of(chunk));
            }
            Op::Compute(Compute::W | Compute::WE | Compute::R, _)
            | Op::Transfer(..)
            | Op::Memory(..)
            | Op::Reduce(
                Reduction::Receive(_)
                | Reduction::Merge(_)
                | Reduction::ReceiveTied
                | Reduction::Tie,
                _,
            )
            | Op::Update(
                UpdateOp::Step | UpdateOp::GatePrevious | UpdateOp::GateThis | UpdateOp::Commit,
            ) => {}
        }
    }

    fn finish_pass(&mut self, step: u32, flow: Flow, pass: Pass) {
        let done = self.done[step as usize].get_mut(pass).expect("a ready pass has a cell");
        match flow {
            Flow::Forward => done.forward = true,
            Flow::Backward => done.backward = true,
        }
        let placement = &self.program.placement;
        self.wake(placement.chunk_after(pass.chunk, flow));
    }

    /// Wakes the stage that holds `chunk`.
    fn wake(&mut self, chunk: Option<ChunkIndex>) {
        let stage = chunk.and_then(|chunk| self.program.placement.stage_of(chunk));
        self.awake.extend(stage.filter(|stage| stage.index() < self.program.stages.len()));
    }

    /// The last report wakes all. A stage that waits at STEP could often move earlier, but nothing
    /// of this step waits for it.
    fn finish_report(&mut self, stage: StageIndex, step: u32) {
        let reports = &mut self.reports[step as usize];
        reports.sent[stage.index()] = true;
        reports.prefix += reports.sent[reports.prefix..].iter().take_while(|sent| **sent).count();
        if reports.prefix == reports.sent.len() {
            self.awake.extend(stages(self.program));
        }
    }

    fn outcome(&self) -> Result<(), Deadlock> {
        let place = |stage: StageIndex| DeadlockedStage {
            stage,
            step: self.cursors[stage.index()].step,
            op: self.next_op(stage),
        };
        let places: Vec<DeadlockedStage> = stages(self.program).map(place).collect();
        if places.iter().any(|place| place.op.is_some()) {
            Err(Deadlock { places })
        } else {
            Ok(())
        }
    }
}

fn stages(program: &Program) -> impl DoubleEndedIterator<Item = StageIndex> + use<> {
    let count = u32::try_from(program.stages.len()).expect("stages are counted in u32");
    (0..count).map(StageIndex)
}
