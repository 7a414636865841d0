//! The seal: a verdict that is agreed on.

use std::fmt;

use serde::{Deserialize, Serialize};
use zbelastic_types::{Attempt, Generation, Step};

use super::verdict::{Reason, Verdict};
use crate::mutant::{self, Mutant};

/// One attempt at one step under one plan. It tags every tensor that travels, and fences those of
/// a run that was dropped.
///
/// Attempts count on from step to step as long as a plan lasts, so that no two runs of a step ever
/// carry the same tag, and turns order as they happened: work that was dropped lies before work
/// that came after it, even if it had got further.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Turn {
    /// Number of the plan that the step is computed under.
    pub generation: Generation,
    /// How often work was dropped under this plan so far.
    pub attempt: Attempt,
    /// The step that is computed.
    pub step: Step,
}

impl fmt::Display for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { generation, step, attempt } = self;
        write!(f, "step {step} attempt {attempt} of generation {generation}")
    }
}

impl Turn {
    /// The turn that follows once this one got `verdict`. Work on the next step that was begun on a
    /// candidate which was not kept is fenced off by the next attempt number.
    #[must_use]
    pub fn after(self, verdict: Verdict) -> Self {
        let Self { generation, attempt, step } = self;
        let (attempt, step) = match verdict {
            Verdict::Keep => (attempt, step.next()),
            Verdict::Clip { .. } | Verdict::Skip => (attempt.next(), step.next()),
            Verdict::Replay if mutant::is(Mutant::M9ReplayLeftOut) => (attempt.next(), step.next()),
            Verdict::Replay => (attempt.next(), step),
        };
        Self { generation, attempt, step }
    }
}

/// The committed decision on a turn. Floats travel as bits, so that every stage computes with the
/// very same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Seal {
    /// The turn that is decided on.
    pub turn: Turn,
    /// The decision on the step.
    pub verdict: Verdict,
    /// Why; for people, and for the spike guard's count.
    pub reason: Reason,
    /// The sum of squares over all tensors, an f64.
    pub square_sum_bits: u64,
    /// The sum of cross-entropies over the step's tokens, an f64.
    pub loss_sum_bits: u64,
    /// Optimizer updates applied so far, this one included if it is applied.
    pub updates_after: u64,
    /// The step with the batch that is read next.
    pub cursor_after: Step,
}

impl Seal {
    /// The global gradient norm.
    #[must_use]
    pub fn norm(&self) -> f64 {
        f64::from_bits(self.square_sum_bits).sqrt()
    }

    /// The sum of cross-entropies over the step's tokens.
    #[must_use]
    pub fn loss_sum(&self) -> f64 {
        f64::from_bits(self.loss_sum_bits)
    }

    /// The turn that follows.
    #[must_use]
    pub fn next_turn(&self) -> Turn {
        self.turn.after(self.verdict)
    }
}

/// Why a seal was not applied. The state stays as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealRefusal {
    /// It belongs to another plan (rule R2: checked when it is applied, not when it is proposed).
    #[error("the seal is of generation {found}, the plan is generation {expected}")]
    OtherGeneration {
        /// Generation of the plan in force.
        expected: Generation,
        /// Generation that the seal names.
        found: Generation,
    },
    /// It was applied before (rule R8: a repeated delivery does nothing).
    #[error("{found} is behind {expected}")]
    Past {
        /// The turn that waits for its seal.
        expected: Turn,
        /// The turn that the seal is about.
        found: Turn,
    },
    /// Its counters do not follow from the ledger's: the leader that proposed it had another
    /// ledger.
    #[error("the seal leads to {found} updates and step {cursor}, expected {expected} updates")]
    Counters {
        /// Updates that follow from the ledger and the verdict.
        expected: u64,
        /// Updates that the seal states.
        found: u64,
        /// The next step that the seal states.
        cursor: Step,
    },
    /// Something before it is missing.
    #[error("{found} is ahead of {expected}")]
    Gap {
        /// The turn that waits for its seal.
        expected: Turn,
        /// The turn that the seal is about.
        found: Turn,
    },
}

/// Checks a seal against the turn that is open.
pub(super) fn check_turn(expected: Turn, found: Turn) -> Result<(), SealRefusal> {
    if expected.generation != found.generation {
        let expected = expected.generation;
        let found = found.generation;
        return Err(SealRefusal::OtherGeneration { expected, found });
    }
    match found.cmp(&expected) {
        std::cmp::Ordering::Less => Err(SealRefusal::Past { expected, found }),
        std::cmp::Ordering::Equal => Ok(()),
        std::cmp::Ordering::Greater => Err(SealRefusal::Gap { expected, found }),
    }
}
