//! Gives a program times: every operation starts as early as list order and dependencies allow.
//!
//! Promises: passes depend on passes alone, so a program has the same times before and after
//! lowering. Results leave a stage one after another, in the order in which they were made, if they
//! go to the same stage. The floats of a gradient take as long to a sibling as their part of it, where a
//! whole one takes as long as a result whose link is free, and occupy no link. Copies run on a lane of their own beside the passes of their
//! stage, in the order of the list: a stage waits at OFFLOAD until the copy is done, and a pass
//! waits for its RELOAD, not the stage. Does not model: memory that runs out, compute slowed down
//! by communication.

use std::collections::BTreeMap;

use zbelastic_types::{ChunkIndex, StageIndex};

use crate::cost::{CopyLanes, CostError, Costs};
use crate::op::{Compute, Flow, MemoryOp, Op, Pass, Transfer, UpdateOp};
use crate::pass_table::PassTable;
use crate::placement::Placement;
use crate::program::{Program, Window};
use crate::reduction::{Reduction, TreeExchange};
use crate::timeline::{Timeline, TimelineExtent, TimelineSlice};
use crate::walk::{Deadlock, walk};

/// Most steps of one simulation. A pipeline has found its rhythm by the third step; the rest
/// would only repeat it.
pub const STEP_COUNT_MAX: u32 = 64;

/// Why a program has no times.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SimulateError {
    /// The costs do not fit the program, or are no durations.
    #[error(transparent)]
    Costs(#[from] CostError),
    /// No step, or too many.
    #[error("expected 1 to {STEP_COUNT_MAX} steps, found {found}")]
    StepCount {
        /// The requested number of steps.
        found: u32,
    },
    /// Only a lowered program defines how one step follows another.
    #[error("{step_count} steps requested of a program without updates; lower it first")]
    NotLowered {
        /// The requested number of steps.
        step_count: u32,
    },
    /// The program does not reach its end.
    #[error(transparent)]
    Deadlock(#[from] Deadlock),
}

/// Runs `step_count` steps of `program`.
///
/// Between steps there is nothing but the lists themselves: a stage begins its next step when its
/// list for this one is done, and waits where its gate stands.
///
/// # Errors
/// If the costs are not this program's, if the program is not lowered and more than one step is
/// requested, or if the program does not reach its end.
pub fn simulate(
    program: &Program,
    costs: &Costs,
    step_count: u32,
) -> Result<Timeline, SimulateError> {
    simulate_with(program, costs, step_count, &|_, _| None)
}

/// The same, with durations of single operations, the same in every step, where `measured` has one.
///
/// # Errors
/// As [`simulate`].
///
/// # Panics
/// If a measured duration is no duration.
pub fn simulate_with(
    program: &Program,
    costs: &Costs,
    step_count: u32,
    measured: &dyn Fn(StageIndex, Op) -> Option<f64>,
) -> Result<Timeline, SimulateError> {
    costs.check(&program.placement, program.slice_count)?;
    if !(1..=STEP_COUNT_MAX).contains(&step_count) {
        return Err(SimulateError::StepCount { found: step_count });
    }
    if step_count > 1 && program.window.is_none() {
        return Err(SimulateError::NotLowered { step_count });
    }
    let mut clock = SimulationClock::new(program, (costs, measured), step_count);
    walk(program, step_count, |stage, step, op| clock.run(stage, step, op))?;
    Ok(Timeline {
        name: program.kind.name(),
        extent: TimelineExtent::Steps(step_count),
        placement: program.placement.clone(),
        microbatch_count: program.microbatch_count,
        slice_count: program.slice_count,
        slices: clock.slices,
    })
}

/// When the results of a pass had left its stage: at its end, or later if they had to wait for
/// those before them. Read only after they were written: the walk sees to that.
#[derive(Clone, Copy, Default)]
struct PassEnds {
    forward: f64,
    backward: f64,
    ran_early: bool,
    /// When its RELOAD ends.
    reload: f64,
}

/// When the lanes of a stage's copies are free.
#[derive(Clone, Copy, Default)]
struct CopyLaneClock {
    out: f64,
    back: f64,
}

impl CopyLaneClock {
    /// The time at which the lane of a copy is free.
    fn free(self, lanes: CopyLanes, memory: MemoryOp) -> f64 {
        match (lanes, memory) {
            (CopyLanes::Alternating | CopyLanes::InTurn, _) => self.out.max(self.back),
            (CopyLanes::Duplex, MemoryOp::Reload) => self.back,
            (CopyLanes::Duplex, MemoryOp::Offload | MemoryOp::Drop) => self.out,
        }
    }
}

type MeasuredDurations<'a> = &'a dyn Fn(StageIndex, Op) -> Option<f64>;

/// How far each stage has come and when, while operations are run in an order that respects their
/// dependencies.
pub(crate) struct SimulationClock<'a> {
    costs: &'a Costs,
    measured: MeasuredDurations<'a>,
    placement: &'a Placement,
    slice_count: u32,
    window: Option<Window>,
    /// By stage: when its last operation ended.
    now: Vec<f64>,
    /// By stage: when its last copy ended.
    copies: Vec<CopyLaneClock>,
    /// By step: when each pass's results had left its stage.
    ends: Vec<PassTable<PassEnds>>,
    /// By the stages that a link leads from and to: when it is free.
    link_free_at: BTreeMap<(StageIndex, StageIndex), f64>,
    /// By step, then by stage: when it has reported.
    reports: Vec<Vec<f64>>,
    /// By step, then by chunk and exchange: when floats of its sum were sent to its sibling.
    gradient_sent_at: Vec<BTreeMap<(ChunkIndex, TreeExchange), f64>>,
    /// By step, then by chunk: when its part of a tied matrix's gradient was sent to the other end of
    /// the model.
    tied_sent_at: Vec<BTreeMap<ChunkIndex, f64>>,
    slices: Vec<Vec<TimelineSlice>>,
}

impl<'a> SimulationClock<'a> {
    /// No stage has begun.
    pub(crate) fn new(
        program: &'a Program,
        (costs, measured): (&'a Costs, MeasuredDurations<'a>),
        step_count: u32,
    ) -> Self {
        let steps = step_count as usize;
        let empty_list = |ops: &Vec<Op>| Vec::with_capacity(ops.len() * steps);
        Self {
            costs,
            measured,
            placement: &program.placement,
            slice_count: program.slice_count,
            window: program.window,
            now: vec![0.0; program.stages.len()],
            copies: vec![CopyLaneClock::default(); program.stages.len()],
            ends: vec![PassTable::new(program, PassEnds::default()); steps],
            link_free_at: BTreeMap::new(),
            reports: vec![vec![0.0; program.stages.len()]; steps],
            gradient_sent_at: vec![BTreeMap::new(); steps],
            tied_sent_at: vec![BTreeMap::new(); steps],
            slices: program.stages.iter().map(empty_list).collect(),
        }
    }

    /// When the last operation of `stage` ended.
    pub(crate) fn now(&self, stage: StageIndex) -> f64 {
        self.now[stage.index()]
    }

    /// When `op` would start if it was the next of its stage: its dependencies have run.
    pub(crate) fn start(&self, stage: StageIndex, step: u32, op: Op) -> f64 {
        let now = self.now(stage);
        match op {
            Op::Memory(..) => now,
            Op::Compute(..) | Op::Transfer(..) | Op::Update(_) | Op::Reduce(..) => {
                now.max(self.ready_at(stage, step, op))
            }
        }
    }

    /// Runs `op` as soon as its stage and its dependencies allow.
    pub(crate) fn run(&mut self, stage: StageIndex, step: u32, op: Op) {
        if let Op::Memory(memory, pass) = op {
            return self.run_memory(stage, step, (memory, pass));
        }
        let start = self.start(stage, step, op);
        let duration = (self.measured)(stage, op).unwrap_or_else(|| self.duration(step, op));
        assert!(duration >= 0.0 && duration.is_finite(), "{op} on stage {stage} takes {duration}");
        let end = start + duration;
        self.record(stage, step, op, end);
        self.now[stage.index()] = end;
        self.slices[stage.index()].push(TimelineSlice { op, step, start, end });
    }

    fn run_memory(&mut self, stage: StageIndex, step: u32, (memory, pass): (MemoryOp, Pass)) {
        let now = self.now[stage.index()];
        let op = Op::Memory(memory, pass);
        let ends = self.ends(step, pass);
        let free = self.copies[stage.index()].free(self.costs.memory.lanes, memory);
        let start = match memory {
            MemoryOp::Offload if self.costs.memory.lanes == CopyLanes::InTurn => now,
            MemoryOp::Offload => free.max(ends.forward),
            MemoryOp::Reload => free.max(now),
            MemoryOp::Drop => now,
        };
        let duration = (self.measured)(stage, op).unwrap_or_else(|| self.duration(step, op));
        assert!(duration >= 0.0 && duration.is_finite(), "{op} on stage {stage} takes {duration}");
        let end = start + duration;
        match memory {
            MemoryOp::Offload => {
                self.copies[stage.index()].out = end;
                self.now[stage.index()] = now.max(end);
            }
            MemoryOp::Reload => {
                if self.costs.memory.lanes == CopyLanes::InTurn {
                    self.now[stage.index()] = end;
                }
                self.copies[stage.index()].back = end;
                self.ends_mut(step, pass).reload = end;
            }
            MemoryOp::Drop => {}
        }
        self.slices[stage.index()].push(TimelineSlice { op, step, start, end });
    }

    /// When the dependencies of `op` have arrived from other stages. Its own stage's work is over:
    /// its list is run in order.
    fn ready_at(&self, stage: StageIndex, step: u32, op: Op) -> f64 {
        match op {
            Op::Compute(Compute::F, pass) => self.arrival(step, Flow::Forward, pass),
            Op::Compute(Compute::B | Compute::BW, pass) => {
                let reload = self.ends(step, pass).reload;
                self.arrival(step, Flow::Backward, pass).max(reload)
            }
            Op::Compute(Compute::R, pass) => self.ends(step, pass).reload,
            Op::Compute(Compute::W | Compute::WE, _) => 0.0,
            Op::Transfer(Transfer::Receive, flow, pass) => self.arrival(step, flow, pass),
            Op::Transfer(Transfer::Send | Transfer::Local, ..) => 0.0,
            Op::Update(UpdateOp::GatePrevious) => {
                step.checked_sub(1).map_or(0.0, |s| self.verdict(s))
            }
            Op::Update(UpdateOp::GateThis) => self.verdict(step),
            Op::Update(UpdateOp::Step) => match self.window {
                Some(Window::One) => self.prefix(stage, step),
                Some(Window::Zero) | None => 0.0,
            },
            Op::Update(UpdateOp::Report | UpdateOp::Commit) => 0.0,
            Op::Reduce(Reduction::Send(_) | Reduction::Local(_) | Reduction::SendTied, _) => 0.0,
            Op::Reduce(Reduction::Receive(exchange) | Reduction::Merge(exchange), chunk) => {
                self.sibling_arrival(step, chunk, exchange)
            }
            Op::Reduce(Reduction::ReceiveTied | Reduction::Tie, chunk) => {
                self.tied_arrival(step, chunk)
            }
            Op::Memory(..) => unreachable!("copies run on lanes of their own"),
        }
    }

    /// When what the sibling sends in `exchange` is on the stage of `chunk`.
    fn sibling_arrival(&self, step: u32, chunk: ChunkIndex, exchange: TreeExchange) -> f64 {
        let sibling = self.placement.sibling_at(chunk, exchange.level());
        let sibling = sibling.expect("the walk visits chunks with a sibling only");
        let is_here = self.placement.stage_of(sibling) == self.placement.stage_of(chunk);
        let part = exchange.part(self.placement);
        let carried = if is_here { 0.0 } else { part * self.costs.gradient_time(sibling) };
        let sent = self.gradient_sent_at[step as usize][&(sibling, exchange)];
        sent + carried + self.hop(sibling, chunk)
    }

    /// When the other end's part of a tied matrix's gradient is on the stage of `chunk`.
    fn tied_arrival(&self, step: u32, chunk: ChunkIndex) -> f64 {
        let end = self.placement.other_end_of(chunk).expect("the walk visits ends only");
        if self.placement.stage_of(end) == self.placement.stage_of(chunk) {
            return 0.0;
        }
        let sent = self.tied_sent_at[step as usize][&end];
        sent + self.costs.tied + self.hop(end, chunk)
    }

    /// When the operand of `pass` is on its stage: a hop after it was sent by the stage before.
    pub(crate) fn arrival(&self, step: u32, flow: Flow, pass: Pass) -> f64 {
        let Some(chunk) = self.placement.chunk_before(pass.chunk, flow) else { return 0.0 };
        let before = self.ends(step, Pass { chunk, ..pass });
        let end = match flow {
            Flow::Forward => before.forward,
            Flow::Backward => before.backward,
        };
        end + self.hop(chunk, pass.chunk)
    }

    /// When the result that a pass has at `end` has left its stage.
    fn departure(&mut self, flow: Flow, pass: Pass, end: f64) -> f64 {
        let to = self.placement.chunk_after(pass.chunk, flow);
        let to = to.and_then(|chunk| self.placement.stage_of(chunk));
        let from = self.placement.stage_of(pass.chunk).expect("a visited pass has a stage");
        match to {
            Some(to) if to != from && self.costs.occupancy > 0.0 => {
                let free = self.link_free_at.entry((from, to)).or_default();
                *free = free.max(end) + self.costs.occupancy / f64::from(self.slice_count);
                *free
            }
            Some(_) | None => end,
        }
    }

    fn hop(&self, from: ChunkIndex, to: ChunkIndex) -> f64 {
        let is_here = self.placement.stage_of(from) == self.placement.stage_of(to);
        if is_here { 0.0 } else { self.costs.link }
    }

    /// When the verdict on `step` is known on every stage.
    fn verdict(&self, step: u32) -> f64 {
        self.reports[step as usize].iter().fold(0.0, |last, report| report.max(last))
            + self.costs.verdict
    }

    /// When the sums of all earlier stages have come down the pipeline to `stage`.
    fn prefix(&self, stage: StageIndex, step: u32) -> f64 {
        let source = |stage: &StageIndex| self.placement.table().prefix_source(*stage);
        let chain: Vec<StageIndex> =
            std::iter::successors(self.placement.table().prefix_source(stage), source).collect();
        let reports = &self.reports[step as usize];
        chain
            .iter()
            .rev()
            .fold(0.0, |prefix: f64, stage| reports[stage.index()].max(prefix) + self.costs.link)
    }

    /// The time of a pass over a whole microbatch, times the share of its slice.
    fn duration(&self, step: u32, op: Op) -> f64 {
        let share = |pass: Pass| self.costs.slice_share(pass.slice, self.slice_count);
        op.pass().map_or(1.0, share) * self.whole_duration(step, op)
    }

    fn whole_duration(&self, step: u32, op: Op) -> f64 {
        let times = |pass: Pass| self.costs.chunks[pass.chunk.index()];
        match op {
            Op::Compute(Compute::F, pass) => times(pass).f,
            Op::Compute(Compute::B, pass) => times(pass).b,
            Op::Compute(Compute::BW, pass) => times(pass).b + times(pass).w,
            Op::Compute(Compute::WE, pass) => times(pass).w_early,
            Op::Compute(Compute::W, pass) if self.ends(step, pass).ran_early => {
                times(pass).w - times(pass).w_early
            }
            Op::Compute(Compute::W, pass) => times(pass).w,
            Op::Update(UpdateOp::Step) => self.costs.step,
            Op::Compute(Compute::R, pass) => self.costs.memory_times(pass.chunk).recompute,
            Op::Memory(MemoryOp::Offload, pass) => self.costs.memory_times(pass.chunk).offload,
            Op::Memory(MemoryOp::Reload, pass) => self.costs.memory_times(pass.chunk).reload,
            Op::Memory(MemoryOp::Drop, _) => 0.0,
            Op::Transfer(..)
            | Op::Reduce(..)
            | Op::Update(
                UpdateOp::Report | UpdateOp::GatePrevious | UpdateOp::GateThis | UpdateOp::Commit,
            ) => 0.0,
        }
    }

    fn record(&mut self, stage: StageIndex, step: u32, op: Op, end: f64) {
        match op {
            Op::Compute(Compute::F, pass) => {
                let end = self.departure(Flow::Forward, pass, end);
                self.ends_mut(step, pass).forward = end;
            }
            Op::Compute(Compute::B | Compute::BW, pass) => {
                let end = self.departure(Flow::Backward, pass, end);
                self.ends_mut(step, pass).backward = end;
            }
            Op::Compute(Compute::WE, pass) => self.ends_mut(step, pass).ran_early = true,
            Op::Update(UpdateOp::Report) => self.reports[step as usize][stage.index()] = end,
            Op::Reduce(Reduction::Send(exchange) | Reduction::Local(exchange), chunk) => {
                self.gradient_sent_at[step as usize].insert((chunk, exchange), end);
            }
            Op::Reduce(Reduction::SendTied, chunk) => {
                self.tied_sent_at[step as usize].insert(chunk, end);
            }
            Op::Compute(Compute::W | Compute::R, _)
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

    fn ends(&self, step: u32, pass: Pass) -> PassEnds {
        self.ends[step as usize].get(pass).expect("a visited pass has a cell")
    }

    fn ends_mut(&mut self, step: u32, pass: Pass) -> &mut PassEnds {
        self.ends[step as usize].get_mut(pass).expect("a visited pass has a cell")
    }
}

#[cfg(test)]
mod tests;
