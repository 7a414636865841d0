//! N3, N4, N5: verdicts follow from the undisturbed run's sums, so nothing that was dropped, came
//! late or came twice is in them.

use zbelastic_consensus::validation::{
    NORM_WINDOW, Reason, SPIKE_WARMUP, Seal, Verdict, clip_coefficient,
};

use super::Checker;
use crate::failure::Invariant;

/// Deviations at the border between spike and none that are not judged.
const BORDER: f64 = 1e-6;

impl Checker {
    pub(super) fn check_seal(&mut self, seal: &Seal, is_repeated: bool) {
        self.verdicts = (self.verdicts.1, Some(seal.verdict));
        self.was_leaderless = std::mem::take(&mut self.is_leaderless);
        if !self.resumed.contains(&seal.turn.generation) {
            let turn = seal.turn;
            self.fail(Invariant::S4, || format!("{turn} is sealed, and its plan does not run"));
        }
        self.check_order(seal, is_repeated);
        if !seal.verdict.is_final() || self.failure.is_some() {
            return;
        }
        if is_repeated {
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

    /// The order of addition differs from the ledger's, so a hair at the border is forgiven.
    fn check_spike(&mut self, seal: &Seal, square_sum: f64) {
        let Some(excess) = self.spike_excess(square_sum) else { return };
        let is_called_spike = matches!(seal.reason, Reason::Spike { .. });
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
