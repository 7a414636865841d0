//! What is to be solved: a pipeline with one chunk a stage, each stage with times of its own.

use super::SolveError;
use crate::cost::{ChunkTimes, Costs};
use crate::memory::{ChunkMemory, peak_memory};
use crate::program::Program;

/// What one stage takes, for one microbatch. Times are in one unit of the caller's choice, memory
/// in another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StageCosts {
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
    /// Memory there is for both; infinite if it is no matter.
    pub limit: f64,
}

/// A pipeline whose operations are to be put into an order.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    /// By stage, from the one that reads the tokens.
    pub stages: Vec<StageCosts>,
    /// From the end of a pass to the arrival of its result on the next stage.
    pub link: f64,
    /// Microbatches in a step.
    pub microbatch_count: u32,
}

impl Problem {
    /// What its passes take, to simulate a program of it; verdict and step take no time.
    #[must_use]
    pub fn costs(&self) -> Costs {
        let times = |s: &StageCosts| ChunkTimes { f: s.f, b: s.b, w: s.w, w_early: 0.0 };
        let chunks = self.stages.iter().map(times).collect();
        Costs { chunks, link: self.link, verdict: 0.0, step: 0.0 }
    }

    /// What its passes keep, in model order; a WE gives nothing back.
    #[must_use]
    pub fn memory(&self) -> Vec<ChunkMemory> {
        let kept = |s: &StageCosts| ChunkMemory {
            after_forward: s.after_forward,
            after_input_gradient: s.after_input_gradient,
            after_early_weights: s.after_input_gradient,
        };
        self.stages.iter().map(kept).collect()
    }

    /// Whether each stage's memory holds what it keeps under `program`, an order of this problem.
    ///
    /// # Panics
    /// If it is an order of another problem.
    #[must_use]
    pub fn holds(&self, program: &Program) -> bool {
        let peaks = peak_memory(program, &self.memory());
        let fits = |(peak, stage): (f64, &StageCosts)| peak <= stage.limit * (1.0 + TOLERANCE);
        peaks.into_iter().zip(&self.stages).all(fits)
    }

    /// Whether it is one that can be solved.
    ///
    /// # Errors
    /// As [`crate::solve`].
    pub fn check(&self) -> Result<(), SolveError> {
        if self.stages.is_empty() {
            return Err(SolveError::NoStage);
        }
        if self.microbatch_count == 0 {
            return Err(SolveError::NoMicrobatch);
        }
        check_number("link", None, self.link)?;
        for (stage, costs) in self.stages.iter().enumerate() {
            let StageCosts { f, b, w, after_forward, after_input_gradient, limit } = *costs;
            let numbers = [
                ("f", f),
                ("b", b),
                ("w", w),
                ("after_forward", after_forward),
                ("after_input_gradient", after_input_gradient),
            ];
            numbers.into_iter().try_for_each(|(name, x)| check_number(name, Some(stage), x))?;
            if limit.is_nan() || limit < 0.0 {
                return Err(SolveError::Number { name: "limit", stage: Some(stage), found: limit });
            }
            if after_input_gradient > after_forward {
                return Err(SolveError::Memory { stage, after_forward, after_input_gradient });
            }
            if after_forward > limit * (1.0 + TOLERANCE) {
                return Err(SolveError::Limit { stage, needed: after_forward, limit });
            }
        }
        Ok(())
    }

    /// Work that a stage has in a step.
    pub(super) fn work(&self, stage: usize) -> f64 {
        let StageCosts { f, b, w, .. } = self.stages[stage];
        f64::from(self.microbatch_count) * (f + b + w)
    }
}

/// Sums of the same numbers in another order differ by less, relative to themselves.
pub(super) const TOLERANCE: f64 = 1e-9;

fn check_number(name: &'static str, stage: Option<usize>, found: f64) -> Result<(), SolveError> {
    let is_legal = found.is_finite() && found >= 0.0;
    if is_legal { Ok(()) } else { Err(SolveError::Number { name, stage, found }) }
}
