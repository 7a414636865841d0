//! The state that follows from the seals, and how far they can be undone.

use serde::{Deserialize, Serialize};
use zbelastic_types::{Generation, Step};

use super::EntryRefusal;
use crate::history::SealHistory;
use crate::validation::{Ledger, Seal, Turn};

/// The steps that were sealed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SealedSteps {
    pub(super) ledger: Ledger,
    pub(super) history: SealHistory,
    last_seal: Option<Seal>,
    rewinds: u64,
}

impl SealedSteps {
    /// No step, under the plan of this number.
    pub(super) fn new(generation: Generation) -> Self {
        let ledger = Ledger::new(generation, Step(0), 0);
        Self { ledger, history: SealHistory::default(), last_seal: None, rewinds: 0 }
    }

    /// The ledger that follows from the seals.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The turn that waits for its seal.
    #[must_use]
    pub fn open_turn(&self) -> Turn {
        self.ledger.open_turn()
    }

    /// Final seals, as far back as they are kept.
    #[must_use]
    pub fn history(&self) -> &SealHistory {
        &self.history
    }

    /// The last seal applied.
    #[must_use]
    pub fn last_seal(&self) -> Option<&Seal> {
        self.last_seal.as_ref()
    }

    /// How often the run went back. Layers that were held before it did are not trusted.
    #[must_use]
    pub fn rewinds(&self) -> u64 {
        self.rewinds
    }

    /// Applies a seal. One that is final and new replaces the oldest if there is no room and the
    /// oldest may be forgotten. Yields whether the step was sealed before.
    pub(super) fn apply(&mut self, seal: Seal, may_forget: bool) -> Result<bool, EntryRefusal> {
        self.ledger.check(&seal)?;
        self.history.check(&seal)?;
        self.ledger.apply(&seal).expect("checked above");
        let is_new = seal.turn.step >= self.history.head();
        if seal.verdict.is_final() && is_new && self.history.is_full() && may_forget {
            self.history.forget_oldest();
        }
        self.history.push(seal);
        self.last_seal = Some(seal);
        Ok(seal.verdict.is_final() && !is_new)
    }

    /// Forgets all steps: another run begins, after plans up to this number.
    pub(super) fn restart(&mut self, generation: Generation) {
        self.ledger = Ledger::new(generation, Step(0), 0);
        self.history = SealHistory::default();
    }

    /// Begins at a version that another run or cluster ended with, and of which the steps are not
    /// known.
    pub(super) fn begin_at(&mut self, version: Step, ledger: Ledger) {
        self.ledger = ledger;
        self.history = SealHistory::starting_at(version);
    }

    /// Goes back to the ledger of an earlier version, under the plan of this number.
    pub(super) fn rewind(&mut self, generation: Generation, ledger: Ledger) {
        self.ledger = ledger;
        self.ledger.adopt(generation);
        self.rewinds += 1;
    }

    /// Drops the last seal: workers drop the layers that they hold.
    pub(super) fn drop_held(&mut self) {
        self.last_seal = None;
        self.rewinds += 1;
    }
}
