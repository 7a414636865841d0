//! A stage's half: when to compute a candidate, when to drop it, when to make it the state.

use zbelastic_types::{Generation, StageIndex};

use super::report::{GradientReport, Prefix, TensorSum};
use super::seal::{Seal, SealRefusal, Turn, check_turn};
use super::verdict::{Gate, Verdict};

/// The action on the candidate when a seal is applied.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CandidateAction {
    /// The one there is was computed with the sealed coefficient: leave it.
    Stay,
    /// Compute one with this coefficient from the untouched state, in place of any other.
    Compute {
        /// The scale of the gradient: one, or below one if it is clipped.
        coefficient: f32,
    },
    /// Drop the candidate, if there is one: the state's weights are in force again.
    Drop,
    /// There is none, and none is needed.
    None,
}

/// The actions of a stage on a seal, in this order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SealApplication {
    /// The first action, on the candidate.
    pub candidate: CandidateAction,
    /// Then, if the step is applied, the moments with this coefficient, and the candidate becomes
    /// the state (rule R8: from version `t - 1` only).
    pub commit: Option<f32>,
    /// Whether work on the next step was begun on weights that are not its weights; it must be
    /// dropped, activations freed, before the turn that follows begins (rule R6).
    pub drops_ahead: bool,
    /// The turn that is open once the seal is applied.
    pub next: Turn,
}

/// The phase of a stage in the open step.
#[derive(Clone, Copy, Debug, PartialEq)]
enum StepPhase {
    /// Its gradient is not complete yet.
    Accumulating,
    /// Frozen and reported; `candidate` holds the coefficient of the one in force, if any.
    Reported { candidate: Option<f32> },
}

/// The state of a stage towards validation.
#[derive(Clone, Debug)]
pub struct StageHalf {
    open: Turn,
    updates: u64,
    phase: StepPhase,
    clip_norm: Option<f64>,
}

impl StageHalf {
    /// A stage whose next step is that of `open`, after `updates` applied updates.
    #[must_use]
    pub fn new(open: Turn, updates: u64, clip_norm: Option<f64>) -> Self {
        Self { open, updates, phase: StepPhase::Accumulating, clip_norm }
    }

    /// The turn with the seal that is applied next.
    #[must_use]
    pub fn open_turn(&self) -> Turn {
        self.open
    }

    /// Updates applied so far. Changes only when a seal is applied (rule R4).
    #[must_use]
    pub fn updates(&self) -> u64 {
        self.updates
    }

    /// The plan this stage works under.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.open.generation
    }

    /// Whether the open step's gradient is frozen and reported.
    #[must_use]
    pub fn is_reported(&self) -> bool {
        self.phase != StepPhase::Accumulating
    }

    /// The gradient is frozen: the report of it.
    ///
    /// # Panics
    /// If it was reported before.
    pub fn report(
        &mut self,
        stage: StageIndex,
        sums: Vec<TensorSum>,
        loss_sum: Option<f64>,
    ) -> GradientReport {
        assert_eq!(self.phase, StepPhase::Accumulating, "{} is reported once", self.open);
        self.phase = StepPhase::Reported { candidate: None };
        GradientReport { turn: self.open, stage, sums, loss_sum }
    }

    /// Whether to go ahead, given the sums up to and including this stage's. An open gate means
    /// that a candidate is computed with coefficient one.
    ///
    /// # Panics
    /// If nothing was reported, or the prefix is about another turn.
    pub fn gate(&mut self, prefix: &Prefix) -> Gate {
        let found = prefix.turn;
        assert_eq!(found, self.open, "a prefix of the open turn");
        assert_eq!(self.phase, StepPhase::Reported { candidate: None }, "the report comes first");
        let gate = Gate::of(prefix.square_sum, self.clip_norm);
        if gate == Gate::Open {
            self.phase = StepPhase::Reported { candidate: Some(1.0) };
        }
        gate
    }

    /// Whether a seal is the one that is applied next.
    ///
    /// # Errors
    /// If it is of another generation (rule R2), was applied before (rule R8), or something before
    /// it is missing.
    pub fn check(&self, seal: &Seal) -> Result<(), SealRefusal> {
        check_turn(self.open, seal.turn)
    }

    /// Applies a seal. Only now may the pre-image go (rule R1: a seal is agreed on, not merely
    /// known).
    ///
    /// # Errors
    /// As [`Self::check`].
    ///
    /// # Panics
    /// If this stage's gradient was not reported: no leader could have decided.
    pub fn apply(&mut self, seal: &Seal) -> Result<SealApplication, SealRefusal> {
        self.check(seal)?;
        let candidate = match self.phase {
            StepPhase::Reported { candidate } => candidate,
            StepPhase::Accumulating => panic!("{} was sealed before it was reported", self.open),
        };
        let action = match (seal.verdict.coefficient(), candidate) {
            (Some(sealed), Some(computed)) if sealed.to_bits() == computed.to_bits() => {
                CandidateAction::Stay
            }
            (Some(coefficient), Some(_) | None) => CandidateAction::Compute { coefficient },
            (None, Some(_)) => CandidateAction::Drop,
            (None, None) => CandidateAction::None,
        };
        let keeps_ahead = match seal.verdict {
            Verdict::Keep => true,
            Verdict::Clip { .. } | Verdict::Skip | Verdict::Replay => false,
        };
        self.updates = seal.updates_after;
        self.open = seal.next_turn();
        self.phase = StepPhase::Accumulating;
        Ok(SealApplication {
            candidate: action,
            commit: seal.verdict.coefficient(),
            drops_ahead: !keeps_ahead,
            next: self.open,
        })
    }
}
