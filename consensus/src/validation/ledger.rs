//! What is agreed about the steps so far: the part of the replicated state that seals change.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use zbelastic_types::{Attempt, Generation, Step};

use super::seal::{Seal, SealRefusal, Turn, check_turn};
use super::verdict::{History, Reason, Verdict};

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

    /// What the next verdict may depend on.
    pub(super) fn history(&mut self) -> History<'_> {
        let (replays, spike_skips) = (self.replays, self.spike_skips);
        History { norms: self.norms.make_contiguous(), replays, spike_skips }
    }

    /// Applies a seal.
    ///
    /// # Errors
    /// If the seal is not about the open turn.
    ///
    /// # Panics
    /// If the seal's counters do not follow from the ledger's: who proposed it had another ledger.
    pub fn apply(&mut self, seal: &Seal) -> Result<(), SealRefusal> {
        check_turn(self.open, seal.turn)?;
        if seal.verdict.coefficient().is_some() {
            self.updates += 1;
            if self.norms.len() == NORM_WINDOW {
                self.norms.pop_front();
            }
            self.norms.push_back(seal.norm());
        }
        assert_eq!(seal.updates_after, self.updates, "updates follow from the seals");
        self.spike_skips = match (seal.verdict, seal.reason) {
            (Verdict::Skip, Reason::Spike { .. }) => self.spike_skips + 1,
            (Verdict::Keep | Verdict::Clip { .. }, _) => 0,
            (Verdict::Skip | Verdict::Replay, _) => self.spike_skips,
        };
        self.replays = if seal.verdict.is_final() { 0 } else { self.replays + 1 };
        self.open = seal.next_turn();
        assert_eq!(seal.cursor_after, self.open.step, "the cursor follows from the seals");
        Ok(())
    }
}
