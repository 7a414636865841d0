//! The stage's part of validation: its half of the protocol, with the prefixes and seals that have
//! come.

use zbelastic_consensus::validation::{
    Gate, GradientReport, Prefix, Seal, SealRefusal, StageHalf, TensorSum, Turn,
};
use zbelastic_schedule::Window;
use zbelastic_types::{StageIndex, Step};

use super::events::WaitReason;
use super::executor::UpdateRequest;
use super::phase::PendingSeal;

/// A stage's share of the validation of its steps: prefix, seal and gate.
pub(super) struct StageValidation {
    half: StageHalf,
    /// The sums of the stages before, until the gate reads them.
    prefix: Option<Prefix>,
    /// A seal that has come, until a gate applies it.
    seal: Option<Seal>,
    /// Whether this stage's last gate was open: the next one probably is.
    was_gate_open: bool,
}

impl StageValidation {
    /// Of a stage that goes on with `open` after `updates` updates.
    pub(super) fn new(open: Turn, updates: u64, clip_norm: Option<f64>) -> Self {
        let half = StageHalf::new(open, updates, clip_norm);
        Self { half, prefix: None, seal: None, was_gate_open: true }
    }

    /// The turn whose seal is applied next.
    pub(super) fn open_turn(&self) -> Turn {
        self.half.open_turn()
    }

    /// Updates applied and sealed.
    pub(super) fn updates(&self) -> u64 {
        self.half.updates()
    }

    /// Whether the gradient of the open turn is frozen and reported.
    pub(super) fn is_reported(&self) -> bool {
        self.half.is_reported()
    }

    /// The seal that has come and is not applied.
    pub(super) fn seal(&self) -> Option<Seal> {
        self.seal
    }

    /// The sums of the stages before this one have come.
    pub(super) fn receive_prefix(&mut self, prefix: Prefix) {
        self.prefix = Some(prefix);
    }

    /// A verdict has come.
    pub(super) fn receive_seal(&mut self, seal: Seal) -> Result<(), SealRefusal> {
        self.half.check(&seal)?;
        self.seal = Some(seal);
        Ok(())
    }

    /// The update that an open gate computes the candidate of, if this one's is expected to open.
    /// Where the gate of the step before was open, this one's is expected to open as well: it does
    /// not depend on that whether a candidate is in force, only whether it is there already.
    pub(super) fn expected_update(
        &self,
        window: Option<Window>,
        step: Step,
    ) -> Option<UpdateRequest> {
        let is_ahead = window == Some(Window::One) && self.seal.is_none();
        (is_ahead && self.was_gate_open).then(|| self.update_ahead(step))
    }

    /// The update that an open gate computes the candidate of.
    pub(super) fn update_ahead(&self, step: Step) -> UpdateRequest {
        UpdateRequest { step, number: self.half.updates() + 1, clip: 1.0 }
    }

    /// The gradient is frozen: its report.
    pub(super) fn report(
        &mut self,
        stage: StageIndex,
        sums: Vec<TensorSum>,
        loss_sum: Option<f64>,
    ) -> GradientReport {
        self.half.report(stage, sums, loss_sum)
    }

    /// The prefix up to this stage and its gate's decision on it, once the sums of the stages
    /// before are there, if there are such.
    pub(super) fn gate(
        &mut self,
        turn: Turn,
        report: &GradientReport,
        has_source: bool,
    ) -> Result<(Prefix, Gate), WaitReason> {
        let received = if has_source {
            let received = self.prefix.take_if(|prefix| prefix.turn == turn);
            Some(received.ok_or(WaitReason::Prefix)?)
        } else {
            None
        };
        let prefix = Prefix::of(report, received.as_ref());
        let gate = self.half.gate(&prefix);
        self.was_gate_open = gate == Gate::Open;
        Ok((prefix, gate))
    }

    /// Applies the seal that has come, if one has.
    pub(super) fn apply_seal(&mut self) -> Option<PendingSeal> {
        let seal = self.seal.take()?;
        let application = self.half.apply(&seal).expect("a seal is checked when it arrives");
        // A prefix of a later turn came early, and is still to be read.
        self.prefix = self.prefix.take().filter(|prefix| prefix.turn > seal.turn);
        Some(PendingSeal { application, seal })
    }
}
