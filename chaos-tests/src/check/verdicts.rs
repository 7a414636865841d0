//! N3, N4, N5: verdicts follow from the undisturbed run's sums, so nothing that was dropped, came
//! late or came twice is in them.

use zbelastic_consensus::duty::RECOMPUTE_REPLAYS_MAX;
use zbelastic_consensus::validation::{
    NORM_WINDOW, NonfinitePolicy, Reason, SPIKE_WARMUP, Seal, Verdict, clip_coefficient,
};

use super::InvariantChecker;
use crate::failure::Invariant;

/// Deviations at the border between spike and none that are not judged.
const BORDER: f64 = 1e-6;

impl InvariantChecker {
    pub(super) fn check_seal(&mut self, seal: &Seal, is_repeated: bool) {
        self.verdicts = (self.verdicts.1, Some(seal.verdict));
        if !self.resumed.contains(&seal.turn.generation) {
            let turn = seal.turn;
            self.fail(Invariant::S4, || format!("{turn} is sealed, and its plan does not run"));
        }
        self.check_order(seal, is_repeated);
        let replays = self.replays;
        self.replays = if seal.verdict.is_final() { 0 } else { replays + 1 };
        if self.failure.is_some() || is_repeated {
            return;
        }
        self.check_verdict(seal, replays);
        if !seal.verdict.is_final() {
            return;
        }
        let sums = self.reference.advance(seal);
        self.acked.push(*seal);
        let is_taken = seal.verdict.coefficient().is_some();
        let is_finite =
            f64::from_bits(seal.square_sum_bits).is_finite() && seal.loss_sum().is_finite();
        if is_taken && !is_finite {
            self.fail(Invariant::N4, || format!("{} is taken and not finite", seal.turn));
        }
        let is_judged = is_taken || matches!(seal.reason, Reason::Spike { .. });
        let same = sums.square_sum.to_bits() == seal.square_sum_bits
            && sums.loss_sum.to_bits() == seal.loss_sum_bits;
        if is_judged && !same {
            self.fail(Invariant::N3, || {
                let found = f64::from_bits(seal.square_sum_bits);
                format!("{}: the sum is {found:e}, undisturbed {:e}", seal.turn, sums.square_sum)
            });
        }
        let expected = self.expected_verdict(sums.square_sum);
        if is_taken && expected != seal.verdict {
            self.fail(Invariant::N5, || {
                format!("{}: {:?}, from the sums {expected:?}", seal.turn, seal.verdict)
            });
        }
        self.check_spike(seal, sums.square_sum);
    }

    /// N5: a verdict fits its reason, its reason fits what was done to this very turn, and a step
    /// is run again as often as the policy has it.
    fn check_verdict(&mut self, seal: &Seal, replays: u32) {
        let is_logged = seal.turn.step.0 < self.acked.len() as u64;
        let (counted, replays_max) = match seal.reason {
            Reason::Sound | Reason::LargeNorm { .. } | Reason::SpikeAccepted { .. } => {
                let is_taken = seal.verdict.coefficient().is_some();
                return self.check_reason(seal, is_taken && !is_logged);
            }
            Reason::Spike { .. } => {
                let is_skipped = seal.verdict == Verdict::Skip;
                let has_guard = self.spec.policy.spike_deviations.is_some();
                return self.check_reason(seal, is_skipped && has_guard && !is_logged);
            }
            Reason::DiffersFromLog { replays } => {
                let is_spoiled = self.is_marked(seal.turn) || self.has_flipped();
                self.check_reason(seal, is_spoiled && is_logged);
                (replays, RECOMPUTE_REPLAYS_MAX)
            }
            Reason::NonfiniteGradient { replays, .. } | Reason::NonfiniteLoss { replays } => {
                self.check_reason(seal, self.is_marked(seal.turn) && !is_logged);
                let policy = self.spec.policy;
                let is_replayed = policy.nonfinite == NonfinitePolicy::Replay;
                (replays, if is_replayed { policy.replays_max } else { 0 })
            }
        };
        let verdict = if replays < replays_max { Verdict::Replay } else { Verdict::Skip };
        self.check_reason(seal, counted == replays && seal.verdict == verdict);
    }

    fn check_reason(&mut self, seal: &Seal, is_fit: bool) {
        if !is_fit {
            let Seal { turn, verdict, reason, .. } = seal;
            self.fail(Invariant::N5, || {
                format!("{turn}: {} for no reason: {reason}", verdict.name())
            });
        }
    }

    /// The order of addition differs from the ledger's, so a hair at the border is forgiven.
    fn check_spike(&mut self, seal: &Seal, square_sum: f64) {
        let is_called_spike = matches!(seal.reason, Reason::Spike { .. });
        let Some(excess) = self.spike_excess(square_sum) else {
            return self.check_reason(seal, !is_called_spike);
        };
        if is_called_spike && excess < -BORDER {
            self.fail(Invariant::N5, || format!("{} is no spike", seal.turn));
        }
        let before = self.acked.iter().rev().nth(1);
        let was_skipped = before.is_some_and(|seal| seal.verdict == Verdict::Skip);
        let is_taken = seal.verdict.coefficient().is_some();
        if is_taken && !was_skipped && excess > BORDER {
            self.fail(Invariant::N5, || format!("{} is a spike, and taken", seal.turn));
        }
    }

    fn expected_verdict(&self, square_sum: f64) -> Verdict {
        match self.spec.policy.clip_norm.map(|norm| clip_coefficient(square_sum, norm)) {
            Some(coefficient) if coefficient < 1.0 => {
                Verdict::Clip { coefficient: coefficient as f32 }
            }
            Some(_) | None => Verdict::Keep,
        }
    }

    /// By how many deviations a norm lies above what the steps that were taken lately allow.
    fn spike_excess(&self, square_sum: f64) -> Option<f64> {
        let allowed = self.spec.policy.spike_deviations?;
        let before = self.acked.iter().rev().skip(1);
        let taken = before.filter(|seal| seal.verdict.coefficient().is_some());
        let norms: Vec<f64> = taken.take(NORM_WINDOW).map(Seal::norm).collect();
        if norms.len() < SPIKE_WARMUP {
            return None;
        }
        let mean = norms.iter().sum::<f64>() / norms.len() as f64;
        let variance = norms.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / norms.len() as f64;
        let deviation = variance.sqrt().max(mean * 0.01);
        Some((square_sum.sqrt() - mean) / deviation - allowed)
    }
}
