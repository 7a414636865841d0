//! Gives a program times: every operation starts as early as list order and dependencies allow.
//!
//! Promises: passes depend on passes alone, so a program has the same times before and after
//! lowering. Results leave a stage one after another, in the order in which they were made, if they
//! go to the same stage. The gradient of a replica takes as long to its twin as a result that nothing
//! stands in the way of, and stands in nobody's. Copies run on a lane of their own beside the passes of
//! their stage, in the order of the list: a stage waits at OFFLOAD until the copy is done, and a pass waits
//! for its RELOAD, not the stage. Does not model: memory that runs out, compute slowed down by
//! communication.

use std::collections::BTreeMap;

use zbelastic_types::{ChunkIndex, StageIndex};

use crate::cost::{CopyLanes, CostError, Costs};
use crate::op::{Compute, Flow, Memory, Op, Pass, Reduction, Transfer, Update};
use crate::pass_table::PassTable;
use crate::placement::Placement;
use crate::program::{Program, Window};
use crate::timeline::{Slice, Timeline};
use crate::walk::{Stuck, walk};

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
        /// The steps asked for.
        found: u32,
    },
    /// Only a lowered program says how one step follows another.
    #[error("{step_count} steps asked of a program without updates; lower it first")]
    NotLowered {
        /// The steps asked for.
        step_count: u32,
    },
    /// The program does not reach its end.
    #[error(transparent)]
    Stuck(#[from] Stuck),
}

/// Runs `step_count` steps of `program`.
///
/// Between steps there is nothing but the lists themselves: a stage begins its next step when its
/// list for this one is done, and waits where its gate stands.
///
/// # Errors
/// If the costs are not this program's, if the program is not lowered and more than one step is
/// asked for, or if the program does not reach its end.
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
    let mut clock = Clock::new(program, (costs, measured), step_count);
    walk(program, step_count, |stage, step, op| clock.run(stage, step, op))?;
    Ok(Timeline {
        kind: program.kind,
        placement: program.placement.clone(),
        microbatch_count: program.microbatch_count,
        slice_count: program.slice_count,
        step_count,
        slices: clock.slices,
    })
}

/// When the results of a pass had left its stage: at its end, or later if they had to wait for those
/// before them. Read only after they were written: the walk sees to that.
#[derive(Clone, Copy, Default)]
struct Ends {
    forward: f64,
    backward: f64,
    ran_early: bool,
    /// When what left is back.
    reload: f64,
}

/// When the lanes of a stage's copies are free.
#[derive(Clone, Copy, Default)]
struct Copies {
    out: f64,
    back: f64,
}

impl Copies {
    /// The lane that a copy takes, when it is free.
    fn free(self, lanes: CopyLanes, memory: Memory) -> f64 {
        match (lanes, memory) {
            (CopyLanes::Alternating, _) => self.out.max(self.back),
            (CopyLanes::Duplex, Memory::Reload) => self.back,
            (CopyLanes::Duplex, Memory::Offload | Memory::Drop) => self.out,
        }
    }
}

type Measured<'a> = &'a dyn Fn(StageIndex, Op) -> Option<f64>;

struct Clock<'a> {
    costs: &'a Costs,
    measured: Measured<'a>,
    placement: &'a Placement,
    slice_count: u32,
    window: Option<Window>,
    /// By stage: when its last operation ended.
    now: Vec<f64>,
    /// By stage: when its last copy ended.
    copies: Vec<Copies>,
    /// By step.
    ends: Vec<PassTable<Ends>>,
    /// By the stages that a way leads from and to: when it is free.
    ways: BTreeMap<(StageIndex, StageIndex), f64>,
    /// By step, then by stage.
    reports: Vec<Vec<f64>>,
    /// By step, then by chunk: when its own gradient left for its twin.
    told: Vec<Vec<f64>>,
    slices: Vec<Vec<Slice>>,
}

impl<'a> Clock<'a> {
    fn new(
        program: &'a Program,
        (costs, measured): (&'a Costs, Measured<'a>),
        step_count: u32,
    ) -> Self {
        let steps = step_count as usize;
        let room = |ops: &Vec<Op>| Vec::with_capacity(ops.len() * steps);
        Self {
            costs,
            measured,
            placement: &program.placement,
            slice_count: program.slice_count,
            window: program.window,
            now: vec![0.0; program.stages.len()],
            copies: vec![Copies::default(); program.stages.len()],
            ends: vec![PassTable::new(program, Ends::default()); steps],
            ways: BTreeMap::new(),
            reports: vec![vec![0.0; program.stages.len()]; steps],
            told: vec![vec![0.0; program.placement.chunk_count() as usize]; steps],
            slices: program.stages.iter().map(room).collect(),
        }
    }

    fn run(&mut self, stage: StageIndex, step: u32, op: Op) {
        if let Op::Memory(memory, pass) = op {
            return self.run_memory(stage, step, (memory, pass));
        }
        let start = self.now[stage.index()].max(self.released(stage, step, op));
        let duration = (self.measured)(stage, op).unwrap_or_else(|| self.duration(step, op));
        assert!(duration >= 0.0 && duration.is_finite(), "{op} on stage {stage} takes {duration}");
        let end = start + duration;
        self.note(stage, step, op, end);
        self.now[stage.index()] = end;
        self.slices[stage.index()].push(Slice { op, step, start, end });
    }

    fn run_memory(&mut self, stage: StageIndex, step: u32, (memory, pass): (Memory, Pass)) {
        let (now, op) = (self.now[stage.index()], Op::Memory(memory, pass));
        let ends = self.ends(step, pass);
        let free = self.copies[stage.index()].free(self.costs.memory.lanes, memory);
        let start = match memory {
            Memory::Offload => free.max(ends.forward),
            Memory::Reload => free.max(now),
            Memory::Drop => now,
        };
        let duration = (self.measured)(stage, op).unwrap_or_else(|| self.duration(step, op));
        assert!(duration >= 0.0 && duration.is_finite(), "{op} on stage {stage} takes {duration}");
        let end = start + duration;
        match memory {
            Memory::Offload => {
                self.copies[stage.index()].out = end;
                self.now[stage.index()] = now.max(end);
            }
            Memory::Reload => {
                self.copies[stage.index()].back = end;
                self.ends_mut(step, pass).reload = end;
            }
            Memory::Drop => {}
        }
        self.slices[stage.index()].push(Slice { op, step, start, end });
    }

    /// When what `op` depends on has arrived from elsewhere. What its own stage did is over: its
    /// list is run in order.
    fn released(&self, stage: StageIndex, step: u32, op: Op) -> f64 {
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
            Op::Update(Update::GatePrevious) => {
                step.checked_sub(1).map_or(0.0, |s| self.verdict(s))
            }
            Op::Update(Update::GateThis) => self.verdict(step),
            Op::Update(Update::Step) => match self.window {
                Some(Window::One) => self.prefix(stage, step),
                Some(Window::Zero) | None => 0.0,
            },
            Op::Update(Update::Report | Update::Commit) => 0.0,
            Op::Reduce(Reduction::Send | Reduction::Local, _) => 0.0,
            Op::Reduce(Reduction::Receive | Reduction::Add, chunk) => {
                self.twin_arrival(step, chunk)
            }
            Op::Memory(..) => unreachable!("copies run on lanes of their own"),
        }
    }

    /// When the twin's gradient is where `chunk` is.
    fn twin_arrival(&self, step: u32, chunk: ChunkIndex) -> f64 {
        let twin = self.placement.twin_of(chunk).expect("the walk visits no other");
        let is_here = self.placement.stage_of(twin) == self.placement.stage_of(chunk);
        let carried = if is_here { 0.0 } else { self.costs.occupancy };
        self.told[step as usize][twin.index()] + carried + self.hop(twin, chunk)
    }

    /// When the operand of `pass` is on its stage: it left the stage before, and a hop.
    fn arrival(&self, step: u32, flow: Flow, pass: Pass) -> f64 {
        let Some(chunk) = self.placement.chunk_before(pass.chunk, flow) else { return 0.0 };
        let before = self.ends(step, Pass { chunk, ..pass });
        let end = match flow {
            Flow::Forward => before.forward,
            Flow::Backward => before.backward,
        };
        end + self.hop(chunk, pass.chunk)
    }

    /// When the result that a pass has at `end` has left its stage.
    fn leaves(&mut self, flow: Flow, pass: Pass, end: f64) -> f64 {
        let to = self.placement.chunk_after(pass.chunk, flow);
        let to = to.and_then(|chunk| self.placement.stage_of(chunk));
        let from = self.placement.stage_of(pass.chunk).expect("a visited pass has a stage");
        match to {
            Some(to) if to != from && self.costs.occupancy > 0.0 => {
                let free = self.ways.entry((from, to)).or_default();
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
        let reports = &self.reports[step as usize][..stage.index()];
        reports.iter().fold(0.0, |prefix, report| report.max(prefix) + self.costs.link)
    }

    /// What a pass over a whole microbatch takes, and of it the share of its slice.
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
            Op::Update(Update::Step) => self.costs.step,
            Op::Compute(Compute::R, pass) => self.costs.memory_times(pass.chunk).recompute,
            Op::Memory(Memory::Offload, pass) => self.costs.memory_times(pass.chunk).offload,
            Op::Memory(Memory::Reload, pass) => self.costs.memory_times(pass.chunk).reload,
            Op::Memory(Memory::Drop, _) => 0.0,
            Op::Transfer(..)
            | Op::Reduce(..)
            | Op::Update(
                Update::Report | Update::GatePrevious | Update::GateThis | Update::Commit,
            ) => 0.0,
        }
    }

    fn note(&mut self, stage: StageIndex, step: u32, op: Op, end: f64) {
        match op {
            Op::Compute(Compute::F, pass) => {
                let end = self.leaves(Flow::Forward, pass, end);
                self.ends_mut(step, pass).forward = end;
            }
            Op::Compute(Compute::B | Compute::BW, pass) => {
                let end = self.leaves(Flow::Backward, pass, end);
                self.ends_mut(step, pass).backward = end;
            }
            Op::Compute(Compute::WE, pass) => self.ends_mut(step, pass).ran_early = true,
            Op::Update(Update::Report) => self.reports[step as usize][stage.index()] = end,
            Op::Reduce(Reduction::Send | Reduction::Local, chunk) => {
                self.told[step as usize][chunk.index()] = end;
            }
            Op::Compute(Compute::W | Compute::R, _)
            | Op::Transfer(..)
            | Op::Reduce(Reduction::Receive | Reduction::Add, _)
            | Op::Memory(..)
            | Op::Update(Update::Step | Update::GatePrevious | Update::GateThis | Update::Commit) =>
                {}
        }
    }

    fn ends(&self, step: u32, pass: Pass) -> Ends {
        self.ends[step as usize].get(pass).expect("a visited pass has a cell")
    }

    fn ends_mut(&mut self, step: u32, pass: Pass) -> &mut Ends {
        self.ends[step as usize].get_mut(pass).expect("a visited pass has a cell")
    }
}

#[cfg(test)]
mod tests {
    use zbelastic_types::StageIndex;

    use super::{STEP_COUNT_MAX, SimulateError, simulate, simulate_with};
    use crate::cost::{ChunkTimes, CopyLanes, CostError, Costs, MemoryCosts, MemoryTimes};
    use crate::generate::generate;
    use crate::kind::ScheduleKind;
    use crate::lower::{LowerOptions, lower};
    use crate::program::{Program, Window};
    use crate::timeline::{Slice, Timeline};

    fn program(kind: ScheduleKind) -> Program {
        generate(kind, 2, 2).expect("the size is legal")
    }

    fn lowered(window: Window) -> Program {
        let options = LowerOptions { window, early_head_weights: false };
        lower(&program(ScheduleKind::ZbH1), options)
    }

    fn unit_costs(program: &Program) -> Costs {
        Costs::even(&program.placement, 1.0, 1.0, 1.0, 0.0)
    }

    fn slice(timeline: &Timeline, stage: u32, step: u32, op: &str) -> Slice {
        let mut slices = timeline.slices(StageIndex(stage)).iter();
        let found = slices.find(|slice| slice.step == step && slice.op.to_string() == op);
        *found.expect("the operation is in the program")
    }

    /// Two stages, two microbatches, all passes 1: both stages report at 7, stage 1 reaches its
    /// gate in the second step 5.5 after that.
    fn second_step(window: Window, verdict: f64) -> Timeline {
        let program = lowered(window);
        let costs = Costs { verdict, step: 0.5, ..unit_costs(&program) };
        simulate(&program, &costs, 2).expect("the program is legal")
    }

    #[test]
    fn window_one_hides_the_verdict_behind_the_next_forwards() {
        let start = |timeline: &Timeline, stage, op| slice(timeline, stage, 1, op).start;
        let hidden = second_step(Window::One, 3.0);
        assert_eq!(slice(&hidden, 0, 0, "REPORT").start, 7.0);
        assert_eq!(slice(&hidden, 1, 0, "REPORT").start, 7.0);
        assert_eq!(start(&hidden, 0, "0F0"), 7.5);
        assert_eq!(start(&hidden, 0, "GATE_PREVIOUS"), 11.5);
        assert_eq!(start(&hidden, 1, "GATE_PREVIOUS"), 12.5);
        let seen = second_step(Window::One, 6.0);
        assert_eq!(start(&seen, 0, "0F0"), 7.5);
        assert_eq!(start(&seen, 0, "GATE_PREVIOUS"), 13.0);
        assert_eq!(start(&seen, 1, "GATE_PREVIOUS"), 13.0);
        assert_eq!(start(&seen, 1, "1W0"), 13.0);
    }

    #[test]
    fn window_zero_waits_for_the_verdict_before_the_step() {
        let timeline = second_step(Window::Zero, 3.0);
        assert_eq!(slice(&timeline, 0, 0, "GATE_THIS").start, 10.0);
        assert_eq!(slice(&timeline, 0, 0, "STEP").end, 10.5);
        assert_eq!(slice(&timeline, 0, 1, "0F0").start, 10.5);
    }

    #[test]
    fn the_first_step_waits_for_no_verdict() {
        let timeline = second_step(Window::One, 1000.0);
        assert_eq!(slice(&timeline, 0, 0, "GATE_PREVIOUS").start, 4.0);
    }

    #[test]
    fn a_speculative_step_waits_for_the_sums_of_the_stages_before() {
        let program = lowered(Window::One);
        let mut costs = unit_costs(&program);
        costs.link = 0.25;
        costs.chunks[0].w = 10.0;
        let timeline = simulate(&program, &costs, 1).expect("the program is legal");
        let report = slice(&timeline, 0, 0, "REPORT").start;
        assert!(slice(&timeline, 1, 0, "REPORT").start < report);
        assert_eq!(slice(&timeline, 0, 0, "STEP").start, report);
        assert_eq!(slice(&timeline, 1, 0, "STEP").start, report + 0.25);
    }

    #[test]
    fn early_weights_take_their_share_of_w() {
        let options = LowerOptions { window: Window::One, early_head_weights: true };
        let program = lower(&program(ScheduleKind::ZbH1), options);
        let times = ChunkTimes { f: 1.0, b: 1.0, w: 5.0, w_early: 3.0 };
        let costs = Costs { chunks: vec![times; 2], ..unit_costs(&program) };
        let timeline = simulate(&program, &costs, 1).expect("the program is legal");
        let duration = |stage, op| slice(&timeline, stage, 0, op).duration();
        assert_eq!(duration(1, "1WE0"), 3.0);
        assert_eq!(duration(1, "1W0"), 2.0);
        assert_eq!(duration(0, "0W0"), 5.0);
    }

    #[test]
    fn slices_take_their_shares_of_a_microbatch() {
        let program = program(ScheduleKind::Seq1F1B);
        let even = Costs::even(&program.placement, 1.0, 2.0, 4.0, 0.0);
        let check = |slice_shares, expected: [f64; 2]| {
            let costs = Costs { slice_shares, ..even.clone() };
            let timeline = simulate(&program, &costs, 1).expect("the program is legal");
            let duration = |op| slice(&timeline, 1, 0, op).duration();
            assert_eq!([duration("1F1"), duration("1F1.1")], expected);
            assert_eq!([duration("1BW0"), duration("1BW0.1")], expected.map(|time| 6.0 * time));
        };
        check(vec![], [0.5, 0.5]);
        check(vec![0.25, 0.75], [0.25, 0.75]);
    }

    #[test]
    fn a_way_carries_one_result_at_a_time() {
        let program = program(ScheduleKind::GPipe);
        let mut costs = Costs::even(&program.placement, 1.0, 2.0, 4.0, 0.5);
        costs.occupancy = 3.0;
        let timeline = simulate(&program, &costs, 1).expect("the program is legal");
        let start = |stage, op| slice(&timeline, stage, 0, op).start;
        // The first leaves from 1 to 4, the second, made at 2, from 4 to 7.
        assert_eq!((start(1, "1F0"), start(1, "1F1")), (4.5, 7.5));
        // Gradients go the other way, and last longer than their way is kept.
        assert_eq!((start(1, "1BW0"), start(0, "0BW0")), (8.5, 18.0));
        assert_eq!((start(1, "1BW1"), start(0, "0BW1")), (14.5, 24.0));
    }

    #[test]
    fn gradients_of_twins_meet_a_hop_after_the_later_one_is_complete() {
        let program = lower(
            &program(ScheduleKind::Gems),
            LowerOptions { window: Window::Zero, early_head_weights: false },
        );
        let costs = Costs::even(&program.placement, 1.0, 1.0, 1.0, 0.5);
        let at = |costs: &Costs, stage, op| {
            let timeline = simulate(&program, costs, 1).expect("the program is legal");
            slice(&timeline, stage, 0, op).start
        };
        assert_eq!((at(&costs, 1, "1SEND_G"), at(&costs, 1, "2SEND_G")), (4.5, 12.5));
        assert_eq!((at(&costs, 0, "0SEND_G"), at(&costs, 0, "3SEND_G")), (7.0, 10.0));
        assert_eq!((at(&costs, 0, "0REDUCE"), at(&costs, 0, "3REDUCE")), (13.0, 13.0));
        assert_eq!((at(&costs, 1, "1REDUCE"), at(&costs, 1, "REPORT")), (12.5, 12.5));
        // Two more each for F and B of both microbatches, and then for the gradient itself.
        let slow = Costs { occupancy: 2.0, ..costs };
        assert_eq!(at(&slow, 0, "0REDUCE"), 13.0 + 4.0 * 2.0);
    }

    #[test]
    fn a_fused_backward_releases_its_result_at_its_end() {
        let program = program(ScheduleKind::OneFOneB);
        let costs = Costs::even(&program.placement, 1.0, 2.0, 4.0, 0.5);
        let timeline = simulate(&program, &costs, 1).expect("the program is legal");
        let last = slice(&timeline, 1, 0, "1BW0");
        assert_eq!((last.start, last.end), (2.5, 8.5));
        assert_eq!(slice(&timeline, 0, 0, "0BW0").start, 9.0);
    }

    /// One stage, three microbatches; a pass takes 1, a copy out 3, a copy back 2, R half of F.
    fn moved(lanes: CopyLanes) -> Timeline {
        let text = "program gpipe line stages 1 chunks 1 microbatches 3 window -
            stage 0: 0F0 0F1 0DROP1 0OFFLOAD0 0F2 0RELOAD0 0BW2 0R1 0BW1 0BW0";
        let program: Program = text.parse().expect("the text is a program");
        let mut costs = Costs::even(&program.placement, 1.0, 0.5, 0.5, 0.0);
        let times = MemoryTimes { recompute: 0.5, offload: 3.0, reload: 2.0 };
        costs.memory = MemoryCosts { lanes, chunks: vec![times] };
        simulate(&program, &costs, 1).expect("the program is legal")
    }

    #[test]
    fn copies_run_beside_passes_and_are_waited_for() {
        let timeline = moved(CopyLanes::Alternating);
        let times = |op| {
            let slice = slice(&timeline, 0, 0, op);
            (slice.start, slice.end)
        };
        // The copy begins when F0 is done, and the stage waits for it where it stands.
        assert_eq!(times("0OFFLOAD0"), (1.0, 4.0));
        assert_eq!(times("0F2"), (4.0, 5.0));
        // The stage goes on while it comes back, and only its pass waits.
        assert_eq!(times("0RELOAD0"), (5.0, 7.0));
        assert_eq!(times("0BW2"), (5.0, 6.0));
        assert_eq!(times("0R1"), (6.0, 6.5));
        assert_eq!(times("0BW1"), (6.5, 7.5));
        assert_eq!(times("0BW0"), (7.5, 8.5));
        assert_eq!(timeline.work(StageIndex(0), 0), 6.5, "R is work, copies are not");
    }

    #[test]
    fn a_lane_carries_one_copy_at_a_time_or_one_each_way() {
        let text = "program gpipe line stages 1 chunks 1 microbatches 3 window -
            stage 0: 0F0 0OFFLOAD0 0F1 0F2 0RELOAD0 0OFFLOAD1 0BW2 0BW0 0RELOAD1 0BW1";
        let program: Program = text.parse().expect("the text is a program");
        let start = |lanes, op| {
            let mut costs = Costs::even(&program.placement, 1.0, 0.5, 0.5, 0.0);
            let times = MemoryTimes { recompute: 0.0, offload: 1.0, reload: 4.0 };
            costs.memory = MemoryCosts { lanes, chunks: vec![times] };
            slice(&simulate(&program, &costs, 1).expect("legal"), 0, 0, op).start
        };
        assert_eq!(start(CopyLanes::Alternating, "0OFFLOAD1"), 8.0);
        assert_eq!(start(CopyLanes::Duplex, "0OFFLOAD1"), 3.0);
        assert_eq!(start(CopyLanes::Duplex, "0RELOAD0"), 4.0);
    }

    #[test]
    fn what_was_measured_counts_and_the_rest_takes_what_it_costs() {
        let program = lowered(Window::One);
        let measured = |stage: StageIndex, op: crate::op::Op| {
            (stage == StageIndex(1) && op.to_string() == "1F0").then_some(4.0)
        };
        let found = simulate_with(&program, &unit_costs(&program), 2, &measured).expect("legal");
        assert_eq!(slice(&found, 1, 0, "1F0").duration(), 4.0);
        assert_eq!(slice(&found, 1, 1, "1F0").duration(), 4.0);
        assert_eq!(slice(&found, 1, 0, "1F1").duration(), 1.0);
        assert_eq!(slice(&found, 0, 0, "0F0").duration(), 1.0);
    }

    #[test]
    fn what_cannot_be_simulated_is_named() {
        let check = |program: &Program, costs: &Costs, steps, expected: SimulateError| {
            assert_eq!(simulate(program, costs, steps), Err(expected));
        };
        let bare = program(ScheduleKind::ZbH1);
        let costs = unit_costs(&bare);
        check(&bare, &costs, 0, SimulateError::StepCount { found: 0 });
        let found = STEP_COUNT_MAX + 1;
        check(&bare, &costs, found, SimulateError::StepCount { found });
        check(&bare, &costs, 2, SimulateError::NotLowered { step_count: 2 });
        assert!(simulate(&lowered(Window::One), &costs, STEP_COUNT_MAX).is_ok());
        let few = Costs { chunks: Vec::new(), ..costs.clone() };
        check(&bare, &few, 1, CostError::ChunkCount { expected: 2, found: 0 }.into());
    }

    /// Programs that were never checked: nothing panics, and the operation is named.
    #[test]
    fn a_twin_the_program_does_not_have_is_where_it_stops() {
        for kind in [ScheduleKind::ZbH1, ScheduleKind::Chimera] {
            for word in ["0REDUCE", "9SEND_G", "4294967295RECV_G", "2LOCAL_G"] {
                let mut broken = program(kind);
                let op = word.parse().expect("the word is an operation");
                broken.stages[1].insert(0, op);
                let stuck = simulate(&broken, &unit_costs(&broken), 1);
                let is_there = kind == ScheduleKind::Chimera && word == "2LOCAL_G";
                assert_eq!(stuck.is_ok(), is_there, "{kind} {word}");
            }
        }
    }

    #[test]
    fn a_pass_the_program_does_not_have_is_where_it_stops() {
        for word in ["2F0", "0F2", "9B9", "4294967295RECV_F0", "0RECV_F0", "2W0", "0SEND_F9"] {
            let mut broken = program(ScheduleKind::ZbH1);
            let op = word.parse().expect("the word is an operation");
            broken.stages[1].push(op);
            let stuck = simulate(&broken, &unit_costs(&broken), 1);
            let Err(SimulateError::Stuck(stuck)) = stuck else { panic!("{word}: {stuck:?}") };
            assert_eq!(stuck.places[0].op, None);
            assert_eq!(stuck.places[1].op, Some(op));
        }
    }
}
