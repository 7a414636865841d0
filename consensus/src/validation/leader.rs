//! The leader's half: reports in, a proposal out.

use super::ledger::Ledger;
use super::report::GradientReport;
use super::seal::{Seal, Turn};
use super::tally::{ReportRefusal, Tally};
use super::verdict::{Gate, GuardPolicy, Verdict, VerdictDecision, decide};

/// A seal to be agreed on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Proposal {
    /// The seal with the verdict on the open turn.
    pub seal: Seal,
    /// Whether any stage's gate was open, so that a candidate was computed before the verdict.
    /// Gates close from some stage on, so the first stage's gate shows it.
    pub went_ahead: bool,
}

/// The duties of a leader towards validation. Starts from nothing: stages report until sealed.
#[derive(Clone, Debug)]
pub struct LeaderHalf {
    tally: Tally,
    tensor_count: u32,
    /// Stages that report: no seal is proposed before all have.
    stage_count: u32,
    policy: GuardPolicy,
}

impl LeaderHalf {
    /// A leader over `ledger` for a model with `tensor_count` tensors.
    #[must_use]
    pub fn new(ledger: &Ledger, tensor_count: u32, policy: GuardPolicy) -> Self {
        let tally = Tally::new(ledger.open_turn(), tensor_count);
        Self { tally, tensor_count, stage_count: 0, policy }
    }

    /// The same, which proposes no seal before so many stages have reported: also those that have no
    /// sum to report, as where other stages own all their layers. So each holds the update by then.
    #[must_use]
    pub fn of_stages(self, stage_count: u32) -> Self {
        Self { stage_count, ..self }
    }

    /// Counts a report; yields the proposal once nothing is missing.
    ///
    /// # Errors
    /// If the report is not about the open turn, or contradicts another.
    pub fn handle_report(
        &mut self,
        ledger: &Ledger,
        report: &GradientReport,
    ) -> Result<Option<Proposal>, ReportRefusal> {
        if self.tally.turn() != ledger.open_turn() {
            self.tally = Tally::new(ledger.open_turn(), self.tensor_count);
        }
        self.tally.add(report)?;
        if self.tally.stage_count() < self.stage_count {
            return Ok(None);
        }
        let Some(summary) = self.tally.summary() else { return Ok(None) };
        let turn = ledger.open_turn();
        let updates = ledger.updates();
        let decision = decide(&summary, &self.policy, ledger.history(&ledger.norms()));
        let went_ahead = Gate::of(summary.first_stage_sum, self.policy.clip_norm) == Gate::Open;
        let seal = seal(turn, updates, &decision, summary.loss_sum);
        Ok(Some(Proposal { seal, went_ahead }))
    }
}

fn seal(turn: Turn, updates: u64, decision: &VerdictDecision, loss_sum: f64) -> Seal {
    let is_taken = match decision.verdict {
        Verdict::Keep | Verdict::Clip { .. } => true,
        Verdict::Skip | Verdict::Replay => false,
    };
    Seal {
        turn,
        verdict: decision.verdict,
        reason: decision.reason,
        square_sum_bits: decision.square_sum.to_bits(),
        loss_sum_bits: loss_sum.to_bits(),
        updates_after: updates + u64::from(is_taken),
        cursor_after: turn.after(decision.verdict).step,
    }
}
