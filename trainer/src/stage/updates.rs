//! REPORT, STEP, the gates and COMMIT: the stage's part of validation, carried out.

use zbelastic_consensus::validation::{
    CandidateAction, Gate, Prefix, SealApplication, TensorSum, Turn,
};
use zbelastic_kernels::{DeviceFault, Pending, PendingFloats};
use zbelastic_schedule::{UpdateOp, Window};
use zbelastic_types::{LayerId, StageIndex, Step};

use super::engine::{
    EngineActivity, EnginePhase, EngineProgress, Output, PendingSeal, StageEngine, Stop, WaitReason,
};
use super::evaluation::Evaluation;
use super::executor::{StageExecutor, UpdateRequest};
use crate::data::BatchSource;
use crate::elastic::{LayerGradient, PendingImage};

impl<W: StageExecutor, S: BatchSource> StageEngine<W, S> {
    /// The turn whose seal this stage applies next.
    #[must_use]
    pub fn open_turn(&self) -> Turn {
        self.half.open_turn()
    }

    pub(super) fn run_update(&mut self, update: UpdateOp) -> Result<(), Stop> {
        match update {
            UpdateOp::Report => self.freeze_and_report()?,
            UpdateOp::Step => self.step()?,
            UpdateOp::GatePrevious => self.gate_previous()?,
            UpdateOp::GateThis => self.gate_this()?,
            UpdateOp::Commit => self.commit_pending(),
        }
        Ok(())
    }

    fn freeze_and_report(&mut self) -> Result<(), DeviceFault> {
        self.executor.freeze(self.setup.plan.batch.microbatch_count);
        assert_eq!(self.executor.slots_in_use(), 0, "the last W freed the last slot");
        let step = self.turn.step;
        let setup = self.setup.clone();
        let replays = if self.replayed.0 == step { self.replayed.1 } else { 0 };
        for injection in setup.injections.iter().filter(|i| i.strikes(step, replays)) {
            self.executor.inject(injection);
        }
        let sums = self.sum_squares();
        // Where there are two heads, the first one has received the losses of the second replica.
        let has_loss = self.executor.has_chunk(setup.plan.placement().last_chunk());
        let loss_sum = if has_loss { Some(self.loss_sum()?) } else { None };
        let report = self.half.report(self.stage, sums, loss_sum);
        self.queue_gradients(setup.copies_wanted || self.has_standby_peers);
        let state = if setup.attests(step) { self.executor.attested()? } else { Vec::new() };
        self.outbox.push_back(Output::Report { report: report.clone(), state });
        self.report = Some(report);
        Ok(())
    }

    /// The cross-entropies of the step, added up slice by slice.
    fn loss_sum(&self) -> Result<f64, DeviceFault> {
        let losses = self.losses.iter().flatten();
        assert_eq!(losses.clone().count(), self.losses.len(), "every microbatch has a loss");
        losses.map(Pending::wait).try_fold(0.0, |sum, loss| Ok(sum + loss?))
    }

    /// The sums to report. Where the gate of the step before was open, this one's is taken to open
    /// as well: it does not depend on that whether a candidate is in force, only whether it is
    /// there already.
    fn sum_squares(&mut self) -> Vec<TensorSum> {
        let is_ahead = self.setup.plan.program.window == Some(Window::One) && self.seal.is_none();
        if is_ahead && self.was_gate_open {
            self.executor.square_sums_ahead(self.update_ahead())
        } else {
            self.executor.square_sums()
        }
    }

    /// The update that an open gate computes the candidate of.
    fn update_ahead(&self) -> UpdateRequest {
        UpdateRequest { step: self.turn.step, number: self.half.updates() + 1, clip: 1.0 }
    }

    fn step(&mut self) -> Result<(), WaitReason> {
        match self.setup.plan.program.window {
            Some(Window::One) => self.step_ahead(),
            Some(Window::Zero) | None => {
                let pending = self.pending.expect("the gate stands before the step");
                self.apply_candidate_order(pending);
                Ok(())
            }
        }
    }

    /// STEP before the verdict. If the sums so far speak against it, or the verdict is there
    /// already, there is nothing to try: the verdict is waited for and carried out.
    fn step_ahead(&mut self) -> Result<(), WaitReason> {
        if self.seal.is_some() {
            self.settle_open_step();
            return Ok(());
        }
        // Without a report the gate was closed before, and only the verdict is missing.
        let Some(report) = &self.report else {
            return Err(WaitReason::Seal(self.half.open_turn()));
        };
        let received = match self.stage {
            StageIndex(0) => None,
            _ => match self.prefix.take_if(|prefix| prefix.turn == self.turn) {
                Some(prefix) => Some(prefix),
                None => return Err(WaitReason::Prefix),
            },
        };
        let prefix = Prefix::of(report, received.as_ref());
        self.report = None;
        let to = self.stage.next();
        if to.0 < self.setup.plan.placement().stage_count() {
            self.outbox.push_back(Output::Prefix { to, prefix });
        }
        let gate = self.half.gate(&prefix);
        self.was_gate_open = gate == Gate::Open;
        match gate {
            Gate::Open => {
                self.executor.compute_candidate(self.update_ahead());
                Ok(())
            }
            Gate::ClosedLarge | Gate::ClosedNonfinite => {
                Err(WaitReason::Seal(self.half.open_turn()))
            }
        }
    }

    /// Waits for the verdict on the step before this one.
    fn gate_previous(&mut self) -> Result<(), WaitReason> {
        let open = self.half.open_turn();
        if open.step == self.turn.step {
            return Ok(());
        }
        let pending = self.apply_seal().ok_or(WaitReason::Seal(open))?;
        let SealApplication { candidate, drops_ahead, next, .. } = pending.application;
        assert!(!drops_ahead && next == self.turn, "what was overruled never reaches its gate");
        assert_eq!(candidate, CandidateAction::Stay, "a stage that went ahead has a candidate");
        self.pending = Some(pending);
        Ok(())
    }

    /// Drops work that ran ahead of a verdict which overruled it, or which ends the run. Looked at
    /// before every operation and not only at the gate, because a stage that waits for a neighbour
    /// that has already turned back would wait for ever.
    pub(super) fn drop_if_overruled(&mut self) -> Option<EngineProgress> {
        let open = self.half.open_turn();
        let seal = self.seal.filter(|_| open.step != self.turn.step)?;
        let is_over = seal.verdict.is_final() && self.is_last(open.step);
        if seal.next_turn() == self.turn && !is_over {
            return None;
        }
        let pending = self.apply_seal().expect("looked at above");
        self.executor.drop_passes();
        self.carry_out(pending);
        if is_over {
            self.phase = EnginePhase::Finished;
        } else {
            self.go_back(pending);
        }
        Some(EngineProgress::Ran(EngineActivity::Settled { turn: open }))
    }

    /// Begins the turn that a verdict leads to.
    fn go_back(&mut self, pending: PendingSeal) {
        let step = pending.seal.turn.step;
        let next = pending.application.next;
        if next.step == step {
            let before = if self.replayed.0 == step { self.replayed.1 } else { 0 };
            self.replayed = (step, before + 1);
        }
        self.begin(next);
    }

    fn gate_this(&mut self) -> Result<(), WaitReason> {
        let open = self.half.open_turn();
        self.pending = Some(self.apply_seal().ok_or(WaitReason::Seal(open))?);
        Ok(())
    }

    fn apply_seal(&mut self) -> Option<PendingSeal> {
        let seal = self.seal.take()?;
        let application = self.half.apply(&seal).expect("a seal is checked when it arrives");
        self.report = None;
        // What is about a later turn came early, and is still to be read.
        self.prefix = self.prefix.take().filter(|prefix| prefix.turn > seal.turn);
        Some(PendingSeal { application, seal })
    }

    /// COMMIT. With nothing pending there was no step before this one.
    fn commit_pending(&mut self) {
        let Some(pending) = self.pending.take() else { return };
        self.commit_moments(pending);
        if self.setup.plan.program.window == Some(Window::Zero) {
            self.after_verdict(pending);
        }
    }

    /// Applies the verdict on the open step at once and goes where it leads.
    fn settle_open_step(&mut self) {
        let pending = self.apply_seal().expect("the verdict is there");
        self.carry_out(pending);
        self.after_verdict(pending);
    }

    /// Behind the program, when nothing may run before the verdict.
    pub(super) fn settle(&mut self) -> Result<EngineProgress, Stop> {
        let turn = self.half.open_turn();
        if self.seal.is_none() {
            return Err(WaitReason::Seal(turn).into());
        }
        self.settle_open_step();
        Ok(EngineProgress::Ran(EngineActivity::Settled { turn }))
    }

    pub(super) fn end_program(&mut self) -> Result<EngineProgress, Stop> {
        if self.closes_after(self.turn.step) {
            self.phase = EnginePhase::Settling;
        } else {
            self.go_ahead();
        }
        self.run_phase()
    }

    /// Where to go once a step's verdict is carried out and nothing ran ahead of it.
    fn after_verdict(&mut self, pending: PendingSeal) {
        let next = pending.application.next;
        let step = pending.seal.turn.step;
        if next.step == step {
            self.go_back(pending);
        } else if self.evaluates_after(step) {
            self.phase = EnginePhase::Evaluating(Evaluation::new(next, step));
        } else {
            self.continue_after(next, step);
        }
    }

    /// The next turn, unless the run is over.
    pub(super) fn continue_after(&mut self, next: Turn, step: Step) {
        if self.is_last(step) {
            self.phase = EnginePhase::Finished;
        } else {
            self.begin(next);
        }
    }

    /// Carries out what is sealed, when nothing follows it: what a gate has found, or what has
    /// come and waits for one.
    pub(super) fn carry_out_last(&mut self) {
        if let Some(pending) = self.pending.take() {
            self.carry_out(pending);
        }
        if self.half.is_reported()
            && let Some(pending) = self.apply_seal()
        {
            self.carry_out(pending);
        }
    }

    fn carry_out(&mut self, pending: PendingSeal) {
        self.apply_candidate_order(pending);
        self.commit_moments(pending);
        self.executor.flush();
    }

    /// The sealed state of a layer on its way, and its gradient if one is frozen: what was sent
    /// before the layer was requested.
    pub(crate) fn pending_layer(
        &mut self,
        layer: LayerId,
    ) -> Option<(PendingImage, Option<PendingFloats>)> {
        let image = self.executor.pending_image(layer)?;
        let frozen = if self.has_frozen() { self.executor.gradient(layer) } else { None };
        Some((image, frozen))
    }

    /// Queues the gradient for the workers that keep this stage's copy, or its layers on standby.
    fn queue_gradients(&mut self, is_needed: bool) {
        if !is_needed {
            return;
        }
        let turn = self.turn;
        let gradient = |(layer, g)| LayerGradient { layer, turn, g };
        let gradients = self.executor.gradients().into_iter().map(gradient).collect();
        self.outbox.push_back(Output::Gradients { turn, gradients });
    }

    /// The candidate that a seal orders.
    fn apply_candidate_order(&mut self, pending: PendingSeal) {
        let PendingSeal { application, seal } = pending;
        match application.candidate {
            CandidateAction::Stay | CandidateAction::None => {}
            CandidateAction::Compute { coefficient: clip } => {
                let step = seal.turn.step;
                let number = seal.updates_after;
                self.executor.compute_candidate(UpdateRequest { step, number, clip });
            }
            CandidateAction::Drop => self.executor.drop_candidate(),
        }
    }

    /// The moments that a seal orders; with them the candidate is the state.
    fn commit_moments(&mut self, pending: PendingSeal) {
        let PendingSeal { application, seal } = pending;
        let step = seal.turn.step;
        match application.commit {
            Some(clip) => {
                let request = UpdateRequest { step, number: seal.updates_after, clip };
                if self.setup.attests(step.next()) {
                    self.executor.commit_to_attest(request);
                } else {
                    self.executor.commit(request);
                }
            }
            None if seal.verdict.is_final() => self.executor.skip(step),
            None => return,
        }
        self.outbox.push_back(Output::Sealed { version: step.next() });
    }
}
