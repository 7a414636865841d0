//! The measured slices of stages, how much of a step was waiting, and how much it should be by the
//! plan.
//!
//! Measured and planned are the same two rates that `schedule` knows: under window 1 the longest
//! span of a stage from its first pass of a step to its last, under window 0 the time from the
//! first pass anywhere to the last anywhere; and of that the share in which the busiest stage did
//! not work. Passes of a turn that was dropped are no work, so a rollback shows as a bubble. The
//! plan is simulated with the medians of the latest times of passes.

mod arrivals;
mod causes;
pub mod checkpoint_times;
pub mod commit_times;
pub mod layer_moves;
mod measure;
pub mod run_pace;
mod slice_log;
pub mod step_timings;
pub mod trace;

pub use arrivals::{ARRIVALS_REPORTED_MAX, ArrivalKind, MessageArrival};
use causes::BaselineProfile;
pub use causes::StepTimeBreakdown;
pub use slice_log::{SliceLog, TakenSlices};

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use zbelastic_consensus::validation::Turn;
use zbelastic_schedule::{
    ChunkTimes, Compute, Costs, MemoryTimes, Op, Pass, Program, Timeline, UpdateOp, Window,
    simulate,
};
use zbelastic_trainer::model::LayerClock;
use zbelastic_trainer::plan::{Pace, median};
use zbelastic_trainer::stage::{EngineActivity, StageSetup};
use zbelastic_types::{ChunkIndex, SliceIndex, StageIndex, Step};

/// Microseconds on a clock that all parts of a run share and that never goes back.
#[derive(Clone, Copy, Debug)]
pub struct RunClock {
    start: Instant,
    start_us: f64,
}

impl RunClock {
    /// A clock that begins now, the same for all threads that get it.
    pub fn start() -> Self {
        Self { start: Instant::now(), start_us: 0.0 }
    }

    /// A clock that begins now, by which layers of a stage are timed.
    #[must_use]
    pub fn of_layers() -> LayerClock {
        let clock = Self::start();
        Box::new(move || clock.now_us())
    }

    /// A clock that shows the time since 1970, the same for all processes of a machine as long as
    /// its clock is not set.
    pub fn of_day() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { start: Instant::now(), start_us: since.as_secs_f64() * 1e6 }
    }

    /// The clock's time, in microseconds.
    pub fn now_us(&self) -> f64 {
        self.at_us(Instant::now())
    }

    /// The time that it showed then.
    pub fn at_us(&self, at: Instant) -> f64 {
        self.start_us + at.saturating_duration_since(self.start).as_secs_f64() * 1e6
    }
}

/// The activity of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum SliceActivity {
    /// It ran this activity.
    Ran(EngineActivity),
    /// It had nothing to run before the verdict on this turn, or before the sums for its gate.
    Waited(Turn),
}

/// Something a stage did.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasuredSlice {
    /// The activity of the stage.
    pub doing: SliceActivity,
    /// When it began, on the run's clock.
    pub start_us: f64,
    /// When it ended, on the run's clock.
    pub end_us: f64,
}

/// No clock shows so many microseconds: three thousand years. Computations with less stay finite.
pub(crate) const US_MAX: f64 = 1e17;

impl MeasuredSlice {
    /// Whether its times can be, and the pass, if it is one, is of a run of `program`.
    pub fn is_sound(&self, program: &Program) -> bool {
        let are_times =
            (0.0..=US_MAX).contains(&self.end_us) && (0.0..=self.end_us).contains(&self.start_us);
        are_times
            && self.pass().is_none_or(|(_, _, pass)| {
                pass.chunk.0 < program.placement.chunk_count()
                    && pass.microbatch.0 < program.microbatch_count
                    && pass.slice.0 < program.slice_count
            })
    }

    fn duration_us(&self) -> f64 {
        self.end_us - self.start_us
    }

    /// The pass that was run, if it was one, and its turn.
    fn pass(&self) -> Option<(Turn, Compute, Pass)> {
        match self.doing {
            SliceActivity::Ran(EngineActivity::Op { turn, op: Op::Compute(compute, pass) }) => {
                Some((turn, compute, pass))
            }
            SliceActivity::Ran(_) | SliceActivity::Waited(_) => None,
        }
    }

    /// Whether it was part of the optimizer's work.
    fn is_update(&self) -> bool {
        match self.doing {
            SliceActivity::Ran(EngineActivity::Op { op: Op::Update(update), .. }) => match update {
                UpdateOp::Report | UpdateOp::Step | UpdateOp::Commit => true,
                UpdateOp::GatePrevious | UpdateOp::GateThis => false,
            },
            SliceActivity::Ran(
                EngineActivity::Settled { .. } | EngineActivity::Op { op: Op::Reduce(..), .. },
            ) => true,
            SliceActivity::Ran(EngineActivity::Op {
                op: Op::Compute(..) | Op::Transfer(..) | Op::Memory(..),
                ..
            })
            | SliceActivity::Ran(EngineActivity::Evaluation { .. })
            | SliceActivity::Waited(_) => false,
        }
    }
}

/// The share of a step in which the busiest stage waits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BubbleShares {
    /// The share as it was measured.
    pub measured: f64,
    /// As it is planned, with the times of passes on this machine.
    pub planned: f64,
    /// Where the time of the steps so far went, once there is a plan to hold it against.
    pub causes: Option<StepTimeBreakdown>,
}

/// Slices that a stage reports at once; a step has fewer, except with thousands of microbatches.
pub const SLICES_REPORTED_MAX: usize = 4096;
/// Slices of a stage that are kept: of more, the oldest go.
const SLICES_STORED_MAX: usize = 16 * SLICES_REPORTED_MAX;
/// Steps of which slices are kept.
pub const TRACE_STEPS: usize = 8;
/// Durations remembered of each kind of pass of a chunk.
const SAMPLES_MAX: usize = 64;

/// The times of a run.
pub struct RunTiming {
    setup: Arc<StageSetup>,
    /// By stage, in order, of the last steps.
    slices: Vec<VecDeque<MeasuredSlice>>,
    /// By stage, in order.
    arrivals: Vec<VecDeque<MessageArrival>>,
    /// When the first pass of each of the last steps began.
    starts_us: VecDeque<f64>,
    passes: BTreeMap<(ChunkIndex, Compute, SliceIndex), DurationSamples>,
    steps: DurationSamples,
    commits: DurationSamples,
    /// Steps that have ended.
    ended: u32,
    /// The times of passes in the first of them, against which the others are compared.
    profile: Option<BaselineProfile>,
    causes: Option<StepTimeBreakdown>,
    /// The step that ended last, and by stage from its first pass to its last.
    last: Option<(Step, Vec<MeasuredSpan>)>,
}

/// Steps that make the profile. The very first ones touch memory for the first time.
const PROFILED_STEPS: u32 = 4;

impl RunTiming {
    /// A timing without any slices yet.
    pub fn new(setup: Arc<StageSetup>) -> Self {
        let stage_count = setup.plan.placement().stage_count() as usize;
        Self {
            slices: vec![VecDeque::new(); stage_count],
            arrivals: vec![VecDeque::new(); stage_count],
            starts_us: VecDeque::new(),
            passes: BTreeMap::new(),
            steps: DurationSamples::default(),
            commits: DurationSamples::default(),
            ended: 0,
            profile: None,
            causes: None,
            last: None,
            setup,
        }
    }

    /// Whether a stage can have done this.
    pub fn takes(&self, slices: &[MeasuredSlice]) -> bool {
        slices.iter().all(|slice| slice.is_sound(&self.setup.plan.program))
    }

    /// Records slices of a stage.
    pub fn record(&mut self, stage: StageIndex, slices: Vec<MeasuredSlice>) {
        for slice in &slices {
            if let Some((_, compute, pass)) = slice.pass() {
                let of = (pass.chunk, compute, pass.slice);
                let samples = self.passes.entry(of).or_default();
                samples.push(slice.duration_us());
            }
            if let SliceActivity::Ran(EngineActivity::Op { op: Op::Update(update), .. }) =
                slice.doing
            {
                match update {
                    UpdateOp::Step => self.steps.push(slice.duration_us()),
                    UpdateOp::Commit => self.commits.push(slice.duration_us()),
                    UpdateOp::Report | UpdateOp::GatePrevious | UpdateOp::GateThis => {}
                }
            }
        }
        let stored = &mut self.slices[stage.index()];
        stored.extend(slices);
        stored.drain(..stored.len().saturating_sub(SLICES_STORED_MAX));
    }

    /// Whether all stages reported passes of this turn.
    pub fn has_all_of(&self, turn: Turn) -> bool {
        let is_of_turn =
            |slice: &MeasuredSlice| slice.pass().is_some_and(|(found, ..)| found == turn);
        self.slices.iter().all(|slices| slices.iter().any(is_of_turn))
    }

    /// The bubbles of the step that `turn` brought to its end.
    pub fn end_step(&mut self, turn: Turn) -> BubbleShares {
        let window = self.setup.plan.program.window.expect("a plan is lowered");
        let extents: Vec<MeasuredSpan> =
            self.slices.iter().filter_map(|slices| MeasuredSpan::of_step(slices, turn)).collect();
        self.forget_before_step(earliest_us(&extents));
        let timeline = self.planned_timeline(PLANNED_STEPS);
        let step = PLANNED_STEPS - 2;
        let planned = match window {
            Window::Zero => timeline.bubble_sync(step),
            Window::One => timeline.bubble_span(step),
        };
        self.explain(turn, &extents);
        let measured = measured_bubble(&extents, window);
        self.last = Some((turn.step, extents));
        BubbleShares { measured, planned, causes: self.causes }
    }

    /// Adds the step to the means of the causes.
    fn explain(&mut self, turn: Turn, extents: &[MeasuredSpan]) {
        self.ended += 1;
        let Some(profile) = &self.profile else {
            let program = &self.setup.plan.program;
            self.profile = (self.ended >= PROFILED_STEPS)
                .then(|| self.costs())
                .and_then(|costs| BaselineProfile::new(program, costs));
            return;
        };
        let program = &self.setup.plan.program;
        let before = self
            .last
            .as_ref()
            .filter(|(step, spans)| step.0 + 1 == turn.step.0 && spans.len() == extents.len());
        let before = before.map(|(_, spans)| spans.as_slice());
        let measured = (self.slices.as_slice(), extents);
        let Some(found) = profile.causes(program, measured, before, turn) else { return };
        let count = self.ended - PROFILED_STEPS - 1;
        self.causes = Some(self.causes.map_or(found, |mean| mean.mean_with(found, count)));
    }

    fn forget_before_step(&mut self, start_us: f64) {
        self.starts_us.push_back(start_us);
        if self.starts_us.len() > TRACE_STEPS {
            self.starts_us.pop_front();
        }
        let oldest_us = self.starts_us[0];
        for slices in &mut self.slices {
            while slices.front().is_some_and(|slice| slice.end_us < oldest_us) {
                slices.pop_front();
            }
        }
    }

    /// The program simulated with the measured times, in microseconds.
    pub fn planned_timeline(&self, step_count: u32) -> Timeline {
        let program = &self.setup.plan.program;
        simulate(program, &self.costs(), step_count).expect("a plan's program runs to its end")
    }

    /// The medians of the last steps; before there are any, an estimate from arithmetic alone.
    fn costs(&self) -> Costs {
        let StageSetup { model, plan, optimizer, .. } = &*self.setup;
        let pace = Pace::estimated(model, plan.batch.microbatch);
        let mut costs = pace.with_updates(model, &optimizer.kind).costs(plan);
        if self.passes.is_empty() {
            return costs;
        }
        costs.memory.chunks.clear();
        for (chunk, times) in (0..).map(ChunkIndex).zip(&mut costs.chunks) {
            // A pass is over a slice, times are those of a microbatch.
            let median = |compute| -> f64 {
                let of = |slice| (chunk, compute, SliceIndex(slice));
                let all = of(0)..=of(u32::MAX);
                self.passes.range(all).map(|(_, samples)| samples.median()).sum()
            };
            let w_early = median(Compute::WE);
            *times = ChunkTimes {
                f: median(Compute::F),
                b: median(Compute::B) + median(Compute::BW),
                w: median(Compute::W) + w_early,
                w_early,
            };
            // Copies are made between passes here: the plan has no time for them.
            let recompute = median(Compute::R);
            costs.memory.chunks.push(MemoryTimes { recompute, offload: 0.0, reload: 0.0 });
        }
        costs.step = self.steps.median() + self.commits.median();
        costs.slice_shares = self.slice_shares().unwrap_or(costs.slice_shares);
        costs
    }

    /// Share of each slice in the time of a microbatch's passes, where sequences are cut.
    fn slice_shares(&self) -> Option<Vec<f64>> {
        let slice_count = self.setup.plan.program.slice_count as usize;
        let mut took = vec![0.0; slice_count];
        for ((.., slice), samples) in &self.passes {
            took[slice.index()] += samples.median();
        }
        let sum: f64 = took.iter().sum();
        (slice_count > 1 && sum > 0.0).then(|| took.iter().map(|time| time / sum).collect())
    }

    /// Slices that each microbatch is cut into.
    pub fn slice_count(&self) -> u32 {
        self.setup.plan.program.slice_count
    }

    /// The slices of a stage in the last steps.
    pub fn slices(&self, stage: StageIndex) -> impl Iterator<Item = &MeasuredSlice> {
        self.slices[stage.index()].iter()
    }

    /// When the first stored pass of a step began, on any stage.
    pub(crate) fn start_us(&self, step: Step) -> Option<f64> {
        let of_step =
            |slice: &&MeasuredSlice| slice.pass().is_some_and(|(turn, ..)| turn.step == step);
        let starts =
            self.slices.iter().filter_map(|slices| Some(slices.iter().find(of_step)?.start_us));
        starts.reduce(f64::min)
    }

    /// When the oldest stored slice begins.
    pub fn oldest_us(&self) -> f64 {
        self.starts_us.front().copied().unwrap_or(0.0)
    }
}

/// Steps simulated for the planned bubble; a run repeats the one in the middle.
const PLANNED_STEPS: u32 = 3;

/// One stage's part of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
struct MeasuredSpan {
    start_us: f64,
    end_us: f64,
    work_us: f64,
}

impl MeasuredSpan {
    /// From the first pass of the step, dropped or not, to the last of the turn that counts.
    fn of_step(slices: &VecDeque<MeasuredSlice>, turn: Turn) -> Option<Self> {
        let of_step = |step: Step| {
            let passes = slices.iter().filter_map(|slice| Some((slice, slice.pass()?.0)));
            passes.filter(move |(_, found)| found.step == step)
        };
        let start_us = of_step(turn.step).next()?.0.start_us;
        let mut of_turn = of_step(turn.step).filter(|(_, found)| *found == turn);
        let end_us = of_turn.next_back()?.0.end_us;
        let within = slices
            .iter()
            .filter(|slice| slice.start_us >= start_us && slice.end_us <= end_us)
            .filter(|slice| {
                slice.is_update() || slice.pass().is_some_and(|(found, ..)| found == turn)
            });
        let work_us = within.map(MeasuredSlice::duration_us).sum();
        Some(Self { start_us, end_us, work_us })
    }
}

fn longest(extents: &[MeasuredSpan], of: fn(&MeasuredSpan) -> f64) -> f64 {
    extents.iter().map(of).fold(0.0, f64::max)
}

/// When the first pass of any stage began.
fn earliest_us(extents: &[MeasuredSpan]) -> f64 {
    extents.iter().map(|extent| extent.start_us).fold(f64::INFINITY, f64::min)
}

/// The duration of a step, in the measure of its window.
fn total_us(extents: &[MeasuredSpan], window: Window) -> f64 {
    match window {
        Window::One => longest(extents, |extent| extent.end_us - extent.start_us),
        Window::Zero => longest(extents, |extent| extent.end_us) - earliest_us(extents),
    }
}

fn measured_bubble(extents: &[MeasuredSpan], window: Window) -> f64 {
    let total_us = total_us(extents, window);
    let work_us = longest(extents, |extent| extent.work_us);
    if total_us > 0.0 { (total_us - work_us) / total_us } else { 0.0 }
}

/// The latest durations of one kind.
#[derive(Clone, Debug, Default)]
struct DurationSamples(VecDeque<f64>);

impl DurationSamples {
    fn push(&mut self, duration_us: f64) {
        if self.0.len() == SAMPLES_MAX {
            self.0.pop_front();
        }
        self.0.push_back(duration_us);
    }

    /// The median, or 0 if there is nothing.
    fn median(&self) -> f64 {
        median(self.0.iter().copied(), f64::total_cmp).unwrap_or(0.0)
    }
}

/// The time of day, in milliseconds since 1970. A clock before 1970 counts as 1970.
#[must_use]
pub fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}

#[cfg(test)]
mod tests;
