//! The agreed record of the steps so far: the part of the replicated state that seals change.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use zbelastic_types::{Attempt, Generation, Step};

use super::seal::{Seal, SealRefusal, Turn, check_turn};
use super::verdict::{Reason, Verdict, VerdictHistory};
use crate::mutant::{self, Mutant};

/// Norms remembered for the spike guard.
pub const NORM_WINDOW: usize = 64;

/// The ledger of seals. A function of the seals applied, and of nothing else.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ledger {
    open: Turn,
    updates: u64,
    replays: u32,
    spike_skips: u32,
    norms: VecDeque<f64>,
}

impl Ledger {
    /// The ledger of a run that continues at `step` after `updates` applied updates.
    #[must_use]
    pub fn new(generation: Generation, step: Step, updates: u64) -> Self {
        let open = Turn { generation, step, attempt: Attempt(0) };
        Self { open, updates, replays: 0, spike_skips: 0, norms: VecDeque::new() }
    }

    /// The turn that waits for its seal.
    #[must_use]
    pub fn open_turn(&self) -> Turn {
        self.open
    }

    /// Updates applied so far.
    #[must_use]
    pub fn updates(&self) -> u64 {
        self.updates
    }

    /// Replays of the open step so far.
    #[must_use]
    pub fn replays(&self) -> u32 {
        self.replays
    }

    /// The history that the next verdict may depend on.
    pub(super) fn history<'a>(&self, norms: &'a [f64]) -> VerdictHistory<'a> {
        VerdictHistory { norms, replays: self.replays, spike_skips: self.spike_skips }
    }

    /// Norms of the steps that were applied lately, oldest first.
    pub(super) fn norms(&self) -> Vec<f64> {
        self.norms.iter().copied().collect()
    }

    /// Checks a seal against the open turn and the counters before it.
    ///
    /// # Errors
    /// If it is not about the open turn (rules R2 and R8), or its counters do not follow.
    pub fn check(&self, seal: &Seal) -> Result<(), SealRefusal> {
        check_turn(self.open, seal.turn)?;
        let expected = self.updates + u64::from(seal.verdict.coefficient().is_some());
        let cursor = seal.next_turn().step;
        if seal.updates_after != expected || seal.cursor_after != cursor {
            let found = seal.updates_after;
            return Err(SealRefusal::Counters { expected, found, cursor: seal.cursor_after });
        }
        Ok(())
    }

    /// Applies a seal to the ledger.
    ///
    /// # Errors
    /// As [`Self::check`]; the ledger stays as it was.
    pub fn apply(&mut self, seal: &Seal) -> Result<(), SealRefusal> {
        self.check(seal)?;
        let is_taken = seal.verdict.coefficient().is_some();
        if is_taken {
            self.updates += 1;
        }
        if is_taken || mutant::is(Mutant::M25RejectedCounted) {
            if self.norms.len() == NORM_WINDOW {
                self.norms.pop_front();
            }
            self.norms.push_back(seal.norm());
        }
        self.spike_skips = match (seal.verdict, seal.reason) {
            (Verdict::Skip, Reason::Spike { .. }) => self.spike_skips + 1,
            (Verdict::Keep | Verdict::Clip { .. }, _) => 0,
            (Verdict::Skip | Verdict::Replay, _) => self.spike_skips,
        };
        self.replays = if seal.verdict.is_final() { 0 } else { self.replays + 1 };
        self.open = seal.next_turn();
        Ok(())
    }

    /// Goes on under another plan: the open step begins anew.
    pub(crate) fn adopt(&mut self, generation: Generation) {
        self.open = Turn { generation, step: self.open.step, attempt: Attempt(0) };
    }
}
