//! Gradients, candidates and commits of a stage, as its validation orders them.

use zbelastic_consensus::validation::{CandidateAction, GradientReport, TensorSum};
use zbelastic_kernels::DeviceFault;

use super::events::{LayerGradient, Output};
use super::executor::{StageExecutor, UpdateRequest};
use super::phase::PendingSeal;
use super::runner::StageRunner;
use crate::data::BatchSource;

impl<W: StageExecutor, S: BatchSource> StageRunner<W, S> {
    /// Freezes the gradient of the turn; yields its sums. The candidate of `expected` is computed
    /// with them where a device gains by it.
    pub(super) fn freeze(&mut self, expected: Option<UpdateRequest>) -> Vec<TensorSum> {
        self.executor.freeze();
        assert_eq!(self.executor.slots_in_use(), 0, "the last W freed the last slot");
        let step = self.turn.step;
        let replays = self.replays_of(step);
        for injection in self.setup.injections.iter().filter(|i| i.strikes(step, replays)) {
            self.executor.inject(injection);
        }
        match expected {
            Some(request) => self.executor.square_sums_ahead(request),
            None => self.executor.square_sums(),
        }
    }

    /// Whether the losses of the step are reported from here. Where there are several heads, the
    /// first one has received the losses of the other replicas.
    pub(super) fn reports_loss(&self) -> bool {
        self.executor.has_chunk(self.setup.plan.placement().last_chunk())
    }

    /// Queues the gradient, if workers need it, and the report.
    pub(super) fn queue_report(
        &mut self,
        report: GradientReport,
        has_standby_peers: bool,
    ) -> Result<(), DeviceFault> {
        if self.setup.copies_wanted || has_standby_peers {
            let turn = self.turn;
            let gradient = |(layer, g)| LayerGradient { layer, turn, g };
            let gradients = self.executor.gradients().into_iter().map(gradient).collect();
            self.outbox.push_back(Output::Gradients { turn, gradients });
        }
        let attests = self.setup.attests(self.turn.step);
        let state = if attests { self.executor.attested()? } else { Vec::new() };
        self.outbox.push_back(Output::Report { report, state });
        Ok(())
    }

    /// Carries out all that a seal orders.
    pub(super) fn carry_out(&mut self, pending: PendingSeal) {
        self.apply_candidate_order(pending);
        self.commit_moments(pending);
        self.executor.flush();
    }

    /// The candidate that a seal orders.
    pub(super) fn apply_candidate_order(&mut self, pending: PendingSeal) {
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
    pub(super) fn commit_moments(&mut self, pending: PendingSeal) {
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
        let Self { exchange, executor, outbox, .. } = self;
        exchange.advance(step.next(), executor, outbox);
        self.outbox.push_back(Output::Sealed { version: step.next() });
    }
}
