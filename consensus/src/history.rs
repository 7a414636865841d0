//! The sealed steps, as far back as the run may have to go again.
//!
//! A run that lost memory goes back to a checkpoint and computes the steps since anew. They were
//! sealed before, and a step is sealed once: so the same verdict stands, and the sums must come
//! out with the same bits. They are compared with the history.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use zbelastic_types::Step;

use crate::mutant::{self, Mutant};
use crate::validation::{Seal, Verdict};

/// Seals kept at most. A leader that would exceed it withholds seals until a checkpoint is there.
pub const SEALS_KEPT_MAX: usize = 4096;
/// Seals that the leader looks back at to count how often work is dropped.
pub const ROLLBACK_WINDOW: usize = 32;

/// Final seals from `base` up to, not including, `head`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SealHistory {
    base: Step,
    seals: VecDeque<Seal>,
}

/// A recomputed step that does not come out as it was sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("step {step} was sealed with other bits")]
pub struct DiffersFromLog {
    /// The step that came out differently.
    pub step: Step,
}

impl SealHistory {
    /// The first step it knows.
    #[must_use]
    pub fn base(&self) -> Step {
        self.base
    }

    /// The first step that was never sealed.
    #[must_use]
    pub fn head(&self) -> Step {
        Step(self.base.0 + self.seals.len() as u64)
    }

    /// The final seal of a step, if it was sealed and is still known.
    #[must_use]
    pub fn logged(&self, step: Step) -> Option<&Seal> {
        self.seals.get(usize::try_from(step.0.checked_sub(self.base.0)?).ok()?)
    }

    /// The seals, oldest first.
    pub fn seals(&self) -> impl DoubleEndedIterator<Item = &Seal> + ExactSizeIterator {
        self.seals.iter()
    }

    /// Whether there is no room for another seal.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.seals.len() >= SEALS_KEPT_MAX
    }

    /// How many of the last seals were not kept as they were, and how many seals that is of.
    #[must_use]
    pub fn rollbacks(&self) -> (u32, u32) {
        let last = self.seals.iter().rev().take(ROLLBACK_WINDOW);
        let dropped = last.clone().filter(|seal| seal.verdict != Verdict::Keep).count();
        (dropped as u32, last.count() as u32)
    }

    /// The agreed part of a seal: everything but the turn, which a recomputation does not share.
    #[must_use]
    pub fn agrees(logged: &Seal, found: &Seal) -> bool {
        let Seal {
            turn,
            verdict,
            reason: _,
            square_sum_bits,
            loss_sum_bits,
            updates_after,
            cursor_after,
        } = *found;
        logged.turn.step == turn.step
            && logged.verdict == verdict
            && logged.square_sum_bits == square_sum_bits
            && logged.loss_sum_bits == loss_sum_bits
            && logged.updates_after == updates_after
            && logged.cursor_after == cursor_after
    }

    /// Checks a seal against the record of its step.
    ///
    /// # Errors
    /// If the step was sealed with other bits.
    pub fn check(&self, seal: &Seal) -> Result<(), DiffersFromLog> {
        let step = seal.turn.step;
        match self.logged(step) {
            Some(logged) if seal.verdict.is_final() && !Self::agrees(logged, seal) => {
                Err(DiffersFromLog { step })
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Remembers a seal, if it is final and new.
    ///
    /// # Panics
    /// If a step is left out (invariant S1).
    pub(crate) fn push(&mut self, seal: Seal) {
        let step = seal.turn.step;
        if !seal.verdict.is_final() || step < self.head() {
            return;
        }
        let is_next = step == self.head() || mutant::is(Mutant::M9ReplayLeftOut);
        assert!(is_next, "S1: steps are sealed in order, none left out");
        self.seals.push_back(seal);
    }

    /// Forgets the steps before `base`.
    pub(crate) fn forget_before(&mut self, base: Step) {
        while self.base < base && self.seals.pop_front().is_some() {
            self.base = self.base.next();
        }
    }

    /// Forgets the steps that were sealed from `head` on. If all remembered steps are among them,
    /// the history begins anew there.
    pub(crate) fn forget_from(&mut self, head: Step) {
        match head.0.checked_sub(self.base.0) {
            Some(count) => self.seals.truncate(count as usize),
            None => *self = Self::starting_at(head),
        }
    }

    /// Forgets the oldest seal.
    pub(crate) fn forget_oldest(&mut self) {
        self.forget_before(self.base.next());
    }

    /// A history that begins at `base`.
    pub(crate) fn starting_at(base: Step) -> Self {
        Self { base, seals: VecDeque::new() }
    }
}
