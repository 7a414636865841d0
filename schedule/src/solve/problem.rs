//! The problem that is solved: a pipeline with one chunk a stage, two in a vee, or several dealt
//! round, each chunk with times of its own.

use std::fmt;

use zbelastic_types::{ChunkIndex, StageIndex};

use super::{MemorySavings, OffloadTransfer, RecomputeCost, SolveError};
use crate::cost::{ChunkTimes, Costs, MemoryCosts, MemoryTimes};
use crate::memory::{ChunkMemory, peak_memory};
use crate::placement::Placement;
use crate::program::{Program, Window};
use crate::timeline::Timeline;

/// The times and memory of one chunk, for one microbatch. Times are in one unit of the caller's
/// choice, memory in another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChunkCosts {
    /// Duration of the forward pass.
    pub f: f64,
    /// Duration of the gradient of the input.
    pub b: f64,
    /// Duration of the gradient of the weights.
    pub w: f64,
    /// Memory from F to B: the activations.
    pub after_forward: f64,
    /// Memory from B to W: the operands of the weights' gradient.
    pub after_input_gradient: f64,
}

/// The times and memory of a whole stage, all its chunks together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StageCosts {
    /// The sums over its chunks.
    pub chunks: ChunkCosts,
    /// Memory there is for activations and operands; infinite if it is no matter.
    pub limit: f64,
}

/// A pipeline with operations that are to be put into an order.
#[derive(Clone, Debug, PartialEq)]
pub struct ScheduleProblem {
    /// Which stage holds which chunk.
    pub placement: Placement,
    /// By chunk, in model order: times and memory.
    pub chunks: Vec<ChunkCosts>,
    /// By stage: memory there is for the activations that its chunks keep; infinite if it is no
    /// matter.
    pub limits: Vec<f64>,
    /// From the end of a pass to the arrival of its result on another stage.
    pub link: f64,
    /// How long a result occupies its link for those after it ([`Costs::occupancy`]).
    pub occupancy: f64,
    /// Microbatches in a step.
    pub microbatch_count: u32,
    /// The ending of a step.
    pub ending: StepEnding,
    /// How stages may recompute and offload to keep less.
    pub memory_savings: MemorySavings,
}

/// The ending of a step, and how the next one follows.
#[derive(Clone, Debug, PartialEq)]
pub struct StepEnding {
    /// With one step open, the next begins on a stage when that is done with this one, and waits
    /// for the verdict on this one before its own first weight gradient: its cost is the longest
    /// span of a stage, or, if that is longer, the time from the first weight gradient of any stage
    /// to the verdict. Steps can follow each other that closely, and more so where stages that wait
    /// for the verdict are not those that others wait for. With none, all wait for all and for the
    /// verdict: the cost is the time from the first start to there.
    pub window: Window,
    /// From the last stage's end to the verdict being known on every stage.
    pub verdict: f64,
    /// By stage: the time of its work behind its last W, such as adding gradients up among copies
    /// of the pipeline; empty if there is none.
    pub after: Vec<f64>,
}

impl StepEnding {
    /// The cost of a step, from its longest span, its last end and the first gate that the next one
    /// meets.
    pub(super) fn cost(
        &self,
        span: impl FnOnce() -> f64,
        end: impl FnOnce() -> f64,
        gate: impl FnOnce() -> f64,
    ) -> f64 {
        match self.window {
            Window::One if self.is_gated() => span().max(end() + self.verdict - gate()),
            Window::One => span(),
            Window::Zero => end() + self.verdict,
        }
    }

    /// Whether the next step runs meanwhile, and may have to wait for the verdict within.
    pub(super) fn is_gated(&self) -> bool {
        match self.window {
            Window::One => self.verdict > 0.0,
            Window::Zero => false,
        }
    }
}

impl Default for StepEnding {
    /// The next step begins at once.
    fn default() -> Self {
        Self { window: Window::One, verdict: 0.0, after: Vec::new() }
    }
}

/// The part of a problem that a number belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CostOwner {
    /// The number belongs to a chunk.
    Chunk(ChunkIndex),
    /// The number belongs to a stage.
    Stage(StageIndex),
    /// The number holds for the whole problem.
    All,
}

impl ScheduleProblem {
    /// Stages, each of which divides its time evenly among its chunks.
    ///
    /// # Panics
    /// If there are not as many stages as `placement` has.
    #[must_use]
    pub fn of_stages(
        placement: Placement,
        stages: &[StageCosts],
        link: f64,
        microbatch_count: u32,
    ) -> Self {
        assert_eq!(stages.len(), placement.stage_count() as usize, "one entry a stage");
        let share = placement.chunk_share();
        let shared = |stage: StageIndex| {
            let ChunkCosts { f, b, w, after_forward, after_input_gradient } =
                stages[stage.index()].chunks;
            ChunkCosts {
                f: f * share,
                b: b * share,
                w: w * share,
                after_forward: after_forward * share,
                after_input_gradient: after_input_gradient * share,
            }
        };
        let holders =
            (0..placement.chunk_count()).map(|chunk| placement.stage_of(ChunkIndex(chunk)));
        let chunks = holders.map(|stage| shared(stage.expect("the chunk exists"))).collect();
        let limits = stages.iter().map(|stage| stage.limit).collect();
        Self {
            placement,
            chunks,
            limits,
            link,
            occupancy: 0.0,
            microbatch_count,
            ending: StepEnding::default(),
            memory_savings: MemorySavings::default(),
        }
    }

    /// The times of its passes, to simulate a program of it; verdict and step need no time.
    #[must_use]
    pub fn costs(&self) -> Costs {
        let times = |chunk: &ChunkCosts| {
            let ChunkCosts { f, b, w, .. } = *chunk;
            ChunkTimes { f, b, w, w_early: 0.0 }
        };
        let chunks = self.chunks.iter().map(times).collect();
        let Self { link, occupancy, .. } = *self;
        Costs {
            chunks,
            slice_shares: Vec::new(),
            link,
            occupancy,
            verdict: 0.0,
            step: 0.0,
            memory: self.memory_costs(),
            gradients: Vec::new(),
            tied: 0.0,
        }
    }

    fn memory_costs(&self) -> MemoryCosts {
        let MemorySavings { recomputes, offloads, lanes } = &self.memory_savings;
        if !self.memory_savings.is_any() {
            return MemoryCosts::default();
        }
        let times = |(chunk, costs): (usize, &ChunkCosts)| {
            let recompute = recomputes.get(chunk).map_or(costs.f, |recompute| recompute.time);
            let none = OffloadTransfer { offload: 0.0, reload: 0.0 };
            let OffloadTransfer { offload, reload } = offloads.get(chunk).copied().unwrap_or(none);
            MemoryTimes { recompute, offload, reload }
        };
        let chunks = self.chunks.iter().enumerate().map(times).collect();
        MemoryCosts { lanes: *lanes, chunks }
    }

    /// The cost of a step of arithmetic that was simulated with these costs, by its ending.
    ///
    /// # Panics
    /// If it has other stages.
    #[must_use]
    pub fn cost(&self, timeline: &Timeline) -> f64 {
        let longest = |of: &dyn Fn(StageIndex) -> f64| {
            let after = &self.ending.after;
            let after = |stage: StageIndex| after.get(stage.index()).copied().unwrap_or(0.0);
            timeline.stages().map(|stage| of(stage) + after(stage)).fold(0.0, f64::max)
        };
        let end = |stage| timeline.slices(stage).last().map_or(0.0, |slice| slice.end);
        let gate = |stage: StageIndex| {
            let mut slices = timeline.slices(stage).iter();
            slices.find(|slice| slice.op.accumulates()).map(|slice| slice.start)
        };
        self.ending.cost(
            || longest(&|stage| timeline.span(stage, 0)),
            || longest(&end),
            || timeline.stages().filter_map(gate).fold(f64::INFINITY, f64::min),
        )
    }

    /// The memory that its passes keep, in model order; a WE gives nothing back.
    #[must_use]
    pub fn memory(&self) -> Vec<ChunkMemory> {
        let recomputes = &self.memory_savings.recomputes;
        let kept = |(index, chunk): (usize, &ChunkCosts)| ChunkMemory {
            after_forward: chunk.after_forward,
            after_drop: recomputes
                .get(index)
                .map_or(chunk.after_forward, |recompute| recompute.after_drop),
            after_input_gradient: chunk.after_input_gradient,
            after_early_weights: chunk.after_input_gradient,
        };
        self.chunks.iter().enumerate().map(kept).collect()
    }

    /// Whether each stage's memory holds the activations it keeps under `program`, an order of this
    /// problem.
    ///
    /// # Panics
    /// If it is an order of another problem.
    #[must_use]
    pub fn fits_memory(&self, program: &Program) -> bool {
        self.stages_that_fit(program).all(|fits| fits)
    }

    /// By stage, whether its memory holds the activations it keeps under `program`.
    pub(super) fn stages_that_fit(&self, program: &Program) -> impl Iterator<Item = bool> {
        let peaks = peak_memory(program, &self.memory());
        let fits = |(peak, limit): (f64, &f64)| peak <= limit * (1.0 + TOLERANCE);
        peaks.into_iter().zip(&self.limits).map(fits)
    }

    /// A bound that no order of a step is below: the work of the busiest stage, with the work that
    /// follows its last W.
    pub(super) fn work_bound(&self) -> f64 {
        let mut work = vec![0.0; self.limits.len()];
        let mut weights = vec![0.0; self.limits.len()];
        for (chunk, costs) in (0..).map(ChunkIndex).zip(&self.chunks) {
            let stage = self.placement.stage_of(chunk).expect("it was counted");
            let microbatches = self.placement.microbatches_per_replica(self.microbatch_count);
            work[stage.index()] += f64::from(microbatches) * (costs.f + costs.b + costs.w);
            weights[stage.index()] += f64::from(microbatches) * costs.w;
        }
        let StepEnding { window, verdict, after } = &self.ending;
        let longest = |work: &[f64]| {
            let after = after.iter().copied().chain(std::iter::repeat(0.0));
            work.iter().zip(after).map(|(work, after)| work + after).fold(0.0, f64::max)
        };
        match window {
            Window::One if self.ending.is_gated() => {
                longest(&work).max(longest(&weights) + verdict)
            }
            Window::One => longest(&work),
            Window::Zero => longest(&work) + verdict,
        }
    }

    /// Whether the problem can be solved.
    ///
    /// # Errors
    /// As [`crate::solve`].
    pub fn check(&self) -> Result<(), SolveError> {
        self.check_counts()?;
        let StepEnding { verdict, after, .. } = &self.ending;
        for (name, found) in
            [("link", self.link), ("occupancy", self.occupancy), ("verdict", *verdict)]
        {
            check_number(name, CostOwner::All, found)?;
        }
        for (stage, found) in (0..).map(StageIndex).zip(after) {
            check_number("after", CostOwner::Stage(stage), *found)?;
        }
        for (chunk, costs) in (0..).map(ChunkIndex).zip(&self.chunks) {
            check_chunk(chunk, costs)?;
        }
        self.check_memory_savings()?;
        let needed = self.memory_needed();
        for ((stage, limit), needed) in (0..).map(StageIndex).zip(&self.limits).zip(needed) {
            if limit.is_nan() || *limit < 0.0 {
                let owner = CostOwner::Stage(stage);
                return Err(SolveError::Number { name: "limit", owner, found: *limit });
            }
            if needed > limit * (1.0 + TOLERANCE) {
                return Err(SolveError::Limit { stage, needed, limit: *limit });
            }
        }
        Ok(())
    }

    /// By stage: the least memory of one microbatch, each chunk's pass whole while it runs, and
    /// those of the chunks before it as small as stages can make them.
    fn memory_needed(&self) -> Vec<f64> {
        let mut needed = vec![0.0; self.limits.len()];
        let mut waiting = needed.clone();
        for (chunk, costs) in (0..).map(ChunkIndex).zip(&self.chunks) {
            let stage = self.placement.stage_of(chunk).expect("it was counted").index();
            needed[stage] = f64::max(needed[stage], waiting[stage] + costs.after_forward);
            // A microbatch runs through one replica.
            if self.placement.replica_count() == 1 {
                waiting[stage] += self.memory_savings.waiting_memory_min(chunk.index(), costs);
            }
        }
        needed
    }

    fn check_memory_savings(&self) -> Result<(), SolveError> {
        let MemorySavings { recomputes, offloads, .. } = &self.memory_savings;
        let chunks = || (0..).map(ChunkIndex);
        for ((chunk, recompute), costs) in chunks().zip(recomputes).zip(&self.chunks) {
            let RecomputeCost { time, after_drop } = *recompute;
            check_number("recompute", CostOwner::Chunk(chunk), time)?;
            check_number("after_drop", CostOwner::Chunk(chunk), after_drop)?;
            let after_forward = costs.after_forward;
            if after_drop > after_forward {
                return Err(SolveError::Drop { chunk, after_forward, after_drop });
            }
        }
        for (chunk, OffloadTransfer { offload, reload }) in chunks().zip(offloads) {
            check_number("offload", CostOwner::Chunk(chunk), *offload)?;
            check_number("reload", CostOwner::Chunk(chunk), *reload)?;
        }
        Ok(())
    }

    fn check_counts(&self) -> Result<(), SolveError> {
        if self.microbatch_count == 0 {
            return Err(SolveError::NoMicrobatch);
        }
        let check = |name, expected: u32, found: usize| {
            let is_equal = expected as usize == found;
            if is_equal { Ok(()) } else { Err(SolveError::Count { name, expected, found }) }
        };
        check("chunks", self.placement.chunk_count(), self.chunks.len())?;
        check("limits", self.placement.stage_count(), self.limits.len())?;
        let stages = self.placement.stage_count();
        let chunks = self.placement.chunk_count();
        let or_none = |name, expected, found| match found {
            0 => Ok(()),
            found => check(name, expected, found),
        };
        or_none("after", stages, self.ending.after.len())?;
        or_none("recomputes", chunks, self.memory_savings.recomputes.len())?;
        or_none("offloads", chunks, self.memory_savings.offloads.len())
    }
}

fn check_chunk(chunk: ChunkIndex, costs: &ChunkCosts) -> Result<(), SolveError> {
    let ChunkCosts { f, b, w, after_forward, after_input_gradient } = *costs;
    let numbers = [
        ("f", f),
        ("b", b),
        ("w", w),
        ("after_forward", after_forward),
        ("after_input_gradient", after_input_gradient),
    ];
    let owner = CostOwner::Chunk(chunk);
    numbers.into_iter().try_for_each(|(name, found)| check_number(name, owner, found))?;
    if after_input_gradient > after_forward {
        return Err(SolveError::Memory { chunk, after_forward, after_input_gradient });
    }
    Ok(())
}

/// Sums of the same numbers in another order differ by less, relative to themselves.
pub(super) const TOLERANCE: f64 = 1e-9;

fn check_number(name: &'static str, owner: CostOwner, found: f64) -> Result<(), SolveError> {
    let is_legal = found.is_finite() && found >= 0.0;
    if is_legal { Ok(()) } else { Err(SolveError::Number { name, owner, found }) }
}

impl fmt::Display for CostOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Chunk(chunk) => write!(f, "chunk {chunk}: "),
            Self::Stage(stage) => write!(f, "stage {stage}: "),
            Self::All => Ok(()),
        }
    }
}
