//! What is to be solved: a pipeline with one chunk a stage, or two in a vee, each chunk with times
//! of its own.

use std::fmt;

use zbelastic_types::{ChunkIndex, StageIndex};

use super::SolveError;
use crate::cost::{ChunkTimes, Costs, MemoryCosts};
use crate::memory::{ChunkMemory, peak_memory};
use crate::placement::{Placement, PlacementShape};
use crate::program::Program;

/// What one chunk takes, for one microbatch. Times are in one unit of the caller's choice, memory
/// in another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChunkCosts {
    /// The forward pass.
    pub f: f64,
    /// The gradient of the input.
    pub b: f64,
    /// The gradient of the weights.
    pub w: f64,
    /// Memory from F to B: the activations.
    pub after_forward: f64,
    /// Memory from B to W: the operands of the weights' gradient.
    pub after_input_gradient: f64,
}

/// What a whole stage takes, all its chunks together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StageCosts {
    /// Of its chunks, in sum.
    pub chunks: ChunkCosts,
    /// Memory there is for activations and operands; infinite if it is no matter.
    pub limit: f64,
}

/// A pipeline whose operations are to be put into an order.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    /// Which stage holds which chunk: a line or a vee.
    pub placement: Placement,
    /// By chunk, in model order.
    pub chunks: Vec<ChunkCosts>,
    /// By stage: memory there is for what its chunks keep; infinite if it is no matter.
    pub limits: Vec<f64>,
    /// From the end of a pass to the arrival of its result on another stage.
    pub link: f64,
    /// Microbatches in a step.
    pub microbatch_count: u32,
}

/// Whose number it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// A chunk's.
    Chunk(ChunkIndex),
    /// A stage's.
    Stage(StageIndex),
    /// Everyone's.
    All,
}

impl Problem {
    /// Stages, each of which divides what it takes evenly among its chunks.
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
        let count = f64::from(placement.chunk_count() / placement.stage_count());
        let shared = |stage: StageIndex| {
            let ChunkCosts { f, b, w, after_forward, after_input_gradient } =
                stages[stage.index()].chunks;
            ChunkCosts {
                f: f / count,
                b: b / count,
                w: w / count,
                after_forward: after_forward / count,
                after_input_gradient: after_input_gradient / count,
            }
        };
        let holders =
            (0..placement.chunk_count()).map(|chunk| placement.stage_of(ChunkIndex(chunk)));
        let chunks = holders.map(|stage| shared(stage.expect("the chunk exists"))).collect();
        let limits = stages.iter().map(|stage| stage.limit).collect();
        Self { placement, chunks, limits, link, microbatch_count }
    }

    /// What its passes take, to simulate a program of it; verdict and step take no time.
    #[must_use]
    pub fn costs(&self) -> Costs {
        let times = |chunk: &ChunkCosts| {
            let ChunkCosts { f, b, w, .. } = *chunk;
            ChunkTimes { f, b, w, w_early: 0.0 }
        };
        let chunks = self.chunks.iter().map(times).collect();
        Costs { chunks, link: self.link, verdict: 0.0, step: 0.0, memory: MemoryCosts::default() }
    }

    /// What its passes keep, in model order; a WE gives nothing back.
    #[must_use]
    pub fn memory(&self) -> Vec<ChunkMemory> {
        let kept = |chunk: &ChunkCosts| ChunkMemory {
            after_forward: chunk.after_forward,
            after_drop: chunk.after_forward,
            after_input_gradient: chunk.after_input_gradient,
            after_early_weights: chunk.after_input_gradient,
        };
        self.chunks.iter().map(kept).collect()
    }

    /// Whether each stage's memory holds what it keeps under `program`, an order of this problem.
    ///
    /// # Panics
    /// If it is an order of another problem.
    #[must_use]
    pub fn holds(&self, program: &Program) -> bool {
        let peaks = peak_memory(program, &self.memory());
        let fits = |(peak, limit): (f64, &f64)| peak <= limit * (1.0 + TOLERANCE);
        peaks.into_iter().zip(&self.limits).all(fits)
    }

    /// Whether it is one that can be solved.
    ///
    /// # Errors
    /// As [`crate::solve`].
    pub fn check(&self) -> Result<(), SolveError> {
        self.check_counts()?;
        check_number("link", Owner::All, self.link)?;
        for (chunk, costs) in (0..).map(ChunkIndex).zip(&self.chunks) {
            check_chunk(chunk, costs)?;
        }
        let mut needed = vec![0.0; self.limits.len()];
        for (chunk, costs) in (0..).map(ChunkIndex).zip(&self.chunks) {
            let stage = self.placement.stage_of(chunk).expect("it was counted");
            needed[stage.index()] += costs.after_forward;
        }
        for ((stage, limit), needed) in (0..).map(StageIndex).zip(&self.limits).zip(needed) {
            if limit.is_nan() || *limit < 0.0 {
                let owner = Owner::Stage(stage);
                return Err(SolveError::Number { name: "limit", owner, found: *limit });
            }
            if needed > limit * (1.0 + TOLERANCE) {
                return Err(SolveError::Limit { stage, needed, limit: *limit });
            }
        }
        Ok(())
    }

    fn check_counts(&self) -> Result<(), SolveError> {
        let shape = self.placement.shape();
        if shape == PlacementShape::Loop {
            return Err(SolveError::Shape { found: shape });
        }
        if self.microbatch_count == 0 {
            return Err(SolveError::NoMicrobatch);
        }
        let check = |name, expected: u32, found: usize| {
            let is_it = expected as usize == found;
            if is_it { Ok(()) } else { Err(SolveError::Count { name, expected, found }) }
        };
        check("chunks", self.placement.chunk_count(), self.chunks.len())?;
        check("limits", self.placement.stage_count(), self.limits.len())
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
    let owner = Owner::Chunk(chunk);
    numbers.into_iter().try_for_each(|(name, found)| check_number(name, owner, found))?;
    if after_input_gradient > after_forward {
        return Err(SolveError::Memory { chunk, after_forward, after_input_gradient });
    }
    Ok(())
}

/// Sums of the same numbers in another order differ by less, relative to themselves.
pub(super) const TOLERANCE: f64 = 1e-9;

fn check_number(name: &'static str, owner: Owner, found: f64) -> Result<(), SolveError> {
    let is_legal = found.is_finite() && found >= 0.0;
    if is_legal { Ok(()) } else { Err(SolveError::Number { name, owner, found }) }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Chunk(chunk) => write!(f, "chunk {chunk}: "),
            Self::Stage(stage) => write!(f, "stage {stage}: "),
            Self::All => Ok(()),
        }
    }
}
