//! REPORT, STEP, the gates and COMMIT: the stage's part of validation, carried out.

use zbelastic_consensus::validation::{CandidateAction, Gate, SealApplication, Turn};
use zbelastic_schedule::{UpdateOp, Window};
use zbelastic_types::Step;

use super::engine::StageEngine;
use super::evaluation::Evaluation;
use super::events::{EngineActivity, EngineProgress, Output, Stop, WaitReason};
use super::executor::StageExecutor;
use super::gathering::carry_out;
use super::phase::{EnginePhase, PendingSeal};
use crate::data::BatchSource;

impl<W: StageExecutor, S: BatchSource> StageEngine<W, S> {
    pub(super) fn run_update(&mut self, update: UpdateOp) -> Result<(), Stop> {
        match update {
            UpdateOp::Report => self.freeze_and_report()?,
            UpdateOp::Step => self.step()?,
            UpdateOp::GatePrevious => self.gate_previous()?,
            UpdateOp::GateThis => {
                let open = self.validation.open_turn();
                let pending = self.validation.apply_seal().ok_or(WaitReason::Seal(open))?;
                self.phase.running().pending = Some(pending);
            }
            UpdateOp::Commit => self.commit_pending(),
        }
        Ok(())
    }

    fn freeze_and_report(&mut self) -> Result<(), Stop> {
        self.runner.exchange.check(self.runner.turn.step)?;
        let window = self.runner.setup.plan.program.window;
        let expected = self.validation.expected_update(window, self.runner.turn.step);
        let sums = self.runner.freeze(expected);
        let program = self.phase.running();
        let loss_sum = if self.runner.reports_loss() {
            let targets = self.runner.step_targets(&mut program.losses);
            Some(targets.reported_sum(program.losses.sum()?))
        } else {
            None
        };
        let report = self.validation.report(self.runner.stage, sums, loss_sum);
        program.report = Some(report.clone());
        Ok(self.runner.queue_report(report, self.has_standby_peers)?)
    }

    fn step(&mut self) -> Result<(), WaitReason> {
        match self.runner.setup.plan.program.window {
            Some(Window::One) => self.step_ahead(),
            Some(Window::Zero) | None => {
                let pending = self.phase.pending().expect("the gate stands before the step");
                self.runner.apply_candidate_order(pending);
                Ok(())
            }
        }
    }

    /// STEP before the verdict. If the sums so far speak against it, or the verdict is there
    /// already, there is nothing to try: the verdict is waited for and carried out.
    fn step_ahead(&mut self) -> Result<(), WaitReason> {
        if self.validation.seal().is_some() {
            self.settle_open_step();
            return Ok(());
        }
        let turn = self.runner.turn;
        let program = self.phase.running();
        // Without a report the gate was closed before, and only the verdict is missing.
        let missing = WaitReason::Seal(self.validation.open_turn());
        let report = program.report.as_ref().ok_or(missing)?;
        let placement = self.runner.setup.plan.placement();
        let has_source = placement.table().prefix_source(self.runner.stage).is_some();
        let (prefix, gate) = self.validation.gate(turn, report, has_source)?;
        program.report = None;
        let readers = self.runner.setup.plan.placement().table().prefix_readers(self.runner.stage);
        let outputs = readers.map(|to| Output::Prefix { to, prefix });
        self.runner.outbox.extend(outputs);
        match gate {
            Gate::Open => {
                let request = self.validation.update_ahead(turn.step);
                self.runner.executor.compute_candidate(request);
                Ok(())
            }
            Gate::ClosedLarge | Gate::ClosedNonfinite => Err(missing),
        }
    }

    /// Waits for the verdict on the step before this one.
    fn gate_previous(&mut self) -> Result<(), WaitReason> {
        let open = self.validation.open_turn();
        if open.step == self.runner.turn.step {
            return Ok(());
        }
        let pending = self.validation.apply_seal().ok_or(WaitReason::Seal(open))?;
        let SealApplication { candidate, drops_ahead, next, .. } = pending.application;
        let is_of_turn = !drops_ahead && next == self.runner.turn;
        assert!(is_of_turn, "what was overruled never reaches its gate");
        assert_eq!(candidate, CandidateAction::Stay, "a stage that went ahead has a candidate");
        self.phase.running().pending = Some(pending);
        Ok(())
    }

    /// Drops work that ran ahead of a verdict which overruled it, or which ends the run. Looked at
    /// before every operation and not only at the gate, because a stage that waits for a neighbour
    /// that has already turned back would wait for ever.
    pub(super) fn drop_if_overruled(&mut self) -> Option<EngineProgress> {
        let open = self.validation.open_turn();
        let turn = self.runner.turn;
        let seal = self.validation.seal().filter(|_| open.step != turn.step)?;
        let is_over = seal.verdict.is_final() && self.runner.is_last(open.step);
        if seal.next_turn() == turn && !is_over {
            return None;
        }
        let pending = self.validation.apply_seal().expect("looked at above");
        self.runner.executor.drop_passes();
        if carry_out(self, pending) {
            if is_over {
                self.phase = EnginePhase::Finished;
            } else {
                self.go_back(pending);
            }
        }
        Some(EngineProgress::Ran(EngineActivity::Settled { turn: open }))
    }

    /// Begins the turn that a verdict leads to.
    fn go_back(&mut self, pending: PendingSeal) {
        let step = pending.seal.turn.step;
        let next = pending.application.next;
        if next.step == step {
            self.runner.count_replay(step);
        }
        self.begin(next);
    }

    /// COMMIT. With nothing pending there was no step before this one.
    fn commit_pending(&mut self) {
        let Some(pending) = self.phase.running().pending.take() else { return };
        self.runner.commit_moments(pending);
        if self.runner.setup.plan.program.window == Some(Window::Zero) {
            self.after_verdict(pending);
        }
    }

    /// Applies the verdict on the open step at once and goes where it leads.
    pub(super) fn settle_open_step(&mut self) {
        let pending = self.validation.apply_seal().expect("the verdict is there");
        if carry_out(self, pending) {
            self.after_verdict(pending);
        }
    }

    /// Behind the program, when nothing may run before the verdict.
    pub(super) fn settle(&mut self) -> Result<EngineProgress, Stop> {
        let turn = self.validation.open_turn();
        if self.validation.seal().is_none() {
            return Err(WaitReason::Seal(turn).into());
        }
        self.settle_open_step();
        Ok(EngineProgress::Ran(EngineActivity::Settled { turn }))
    }

    /// Waits for the verdict, or begins the next step on the candidate before it is known.
    pub(super) fn end_program(&mut self) -> Result<EngineProgress, Stop> {
        let turn = self.runner.turn;
        if self.runner.closes_after(turn.step) {
            self.phase = EnginePhase::Settling;
        } else {
            self.begin(Turn { step: turn.step.next(), ..turn });
        }
        self.run_phase()
    }

    /// Where to go once a step's verdict is carried out and nothing ran ahead of it.
    pub(super) fn after_verdict(&mut self, pending: PendingSeal) {
        let next = pending.application.next;
        let step = pending.seal.turn.step;
        if next.step == step {
            self.go_back(pending);
        } else if self.runner.setup.evaluates_after(step) {
            self.phase = EnginePhase::Evaluating(Evaluation::new(next, step));
        } else {
            self.continue_after(next, step);
        }
    }

    /// The next turn, unless the run is over.
    pub(super) fn continue_after(&mut self, next: Turn, step: Step) {
        if self.runner.is_last(step) {
            self.phase = EnginePhase::Finished;
        } else {
            self.begin(next);
        }
    }

    /// Begins a turn from the top of the program.
    fn begin(&mut self, turn: Turn) {
        self.runner.begin(turn);
        self.phase = EnginePhase::program(&self.runner.setup);
    }

    /// Carries out what is sealed and drops what is not. The program cannot go on after this.
    pub fn abandon_unsealed(&mut self) {
        self.runner.executor.drop_passes();
        match &mut self.phase {
            EnginePhase::Program(program) => {
                if let Some(pending) = program.pending.take() {
                    self.runner.carry_out(pending);
                }
            }
            // Of layers whose candidates did not come the state stays behind.
            EnginePhase::Gathering(gathering) => {
                let pending = gathering.pending;
                self.runner.commit_moments(pending);
                self.phase = EnginePhase::Settling;
            }
            EnginePhase::Settling | EnginePhase::Evaluating(_) | EnginePhase::Finished => {}
        }
        if self.validation.is_reported()
            && let Some(pending) = self.validation.apply_seal()
        {
            self.runner.carry_out(pending);
        }
        self.runner.executor.drop_candidate();
    }
}
