//! N3, N4, N5: verdicts follow from the undisturbed run's sums, so nothing that was dropped, came
//! late or came twice is in them.

use std::sync::Arc;

use zbelastic_consensus::duty::RECOMPUTE_REPLAYS_MAX;
use zbelastic_consensus::job::JobSpec;
use zbelastic_consensus::validation::{
    NORM_WINDOW, NonfinitePolicy, Reason, SPIKE_WARMUP, Seal, Verdict, clip_coefficient,
};

use super::FirstFailure;
use super::damage::DamageRecord;
use super::history::HistoryChecker;
use crate::failure::Invariant;
use crate::reference_sums::ReferenceSums;

/// Deviations at the border between spike and none that are not judged.
const BORDER: f64 = 1e-6;

/// The verdicts so far, and the policy's state after them.
pub(super) struct VerdictChecker {
    spec: Arc<JobSpec>,
    verdicts: (Option<Verdict>, Option<Verdict>),
    /// Replays of the open step so far, and those before the seal that is looked at.
    replays: u32,
    replays_before: u32,
}

impl VerdictChecker {
    pub(super) fn new(spec: Arc<JobSpec>) -> Self {
        Self { spec, verdicts: (None, None), replays: 0, replays_before: 0 }
    }

    /// The verdict before the last one.
    pub(super) fn before(&self) -> Option<Verdict> {
        self.verdicts.0
    }

    /// The open step begins anew, with no replay.
    pub(super) fn rewind(&mut self) {
        self.replays = 0;
    }

    /// A turn is sealed.
    pub(super) fn note(&mut self, verdict: Verdict) {
        self.verdicts = (self.verdicts.1, Some(verdict));
        self.replays_before = self.replays;
        self.replays = if verdict.is_final() { 0 } else { self.replays + 1 };
    }

    /// N3, N4, N5: a step is sealed for good, and comes to this in the undisturbed run.
    pub(super) fn check_sums(
        &self,
        failure: &mut FirstFailure,
        history: &HistoryChecker,
        seal: &Seal,
        sums: ReferenceSums,
    ) {
        let is_taken = seal.verdict.coefficient().is_some();
        let is_finite =
            f64::from_bits(seal.square_sum_bits).is_finite() && seal.loss_sum().is_finite();
        if is_taken && !is_finite {
            failure.set(Invariant::N4, || format!("{} is taken and not finite", seal.turn));
        }
        let is_judged = is_taken || matches!(seal.reason, Reason::Spike { .. });
        let same = sums.square_sum.to_bits() == seal.square_sum_bits
            && sums.loss_sum.to_bits() == seal.loss_sum_bits;
        if is_judged && !same {
            failure.set(Invariant::N3, || {
                let found = f64::from_bits(seal.square_sum_bits);
                format!("{}: the sum is {found:e}, undisturbed {:e}", seal.turn, sums.square_sum)
            });
        }
        let expected = self.expected_verdict(sums.square_sum);
        if is_taken && expected != seal.verdict {
            failure.set(Invariant::N5, || {
                format!("{}: {:?}, from the sums {expected:?}", seal.turn, seal.verdict)
            });
        }
        self.check_spike(failure, history, seal, sums.square_sum);
    }

    /// N5: a verdict fits its reason, its reason fits the faults of this very turn, and a step
    /// is run again as often as the policy has it.
    pub(super) fn check_verdict(
        &self,
        failure: &mut FirstFailure,
        damage: &DamageRecord,
        seal: &Seal,
        is_logged: bool,
    ) {
        let (counted, replays_max) = match seal.reason {
            Reason::Sound | Reason::LargeNorm { .. } | Reason::SpikeAccepted { .. } => {
                let is_taken = seal.verdict.coefficient().is_some();
                return check_reason(failure, seal, is_taken && !is_logged);
            }
            Reason::Spike { .. } => {
                let is_skipped = seal.verdict == Verdict::Skip;
                let has_guard = self.spec.policy.spike_deviations.is_some();
                return check_reason(failure, seal, is_skipped && has_guard && !is_logged);
            }
            Reason::DiffersFromLog { replays } => {
                check_reason(failure, seal, damage.is_marked(seal.turn) && is_logged);
                (replays, RECOMPUTE_REPLAYS_MAX)
            }
            Reason::NonfiniteGradient { replays, .. } | Reason::NonfiniteLoss { replays } => {
                check_reason(failure, seal, damage.is_marked(seal.turn) && !is_logged);
                let policy = self.spec.policy;
                let is_replayed = policy.nonfinite == NonfinitePolicy::Replay;
                (replays, if is_replayed { policy.replays_max } else { 0 })
            }
        };
        let replays = self.replays_before;
        let verdict = if replays < replays_max { Verdict::Replay } else { Verdict::Skip };
        check_reason(failure, seal, counted == replays && seal.verdict == verdict);
    }

    /// The order of addition differs from the ledger's, so a hair at the border is forgiven.
    fn check_spike(
        &self,
        failure: &mut FirstFailure,
        history: &HistoryChecker,
        seal: &Seal,
        square_sum: f64,
    ) {
        let is_called_spike = matches!(seal.reason, Reason::Spike { .. });
        let Some(excess) = self.spike_excess(history, square_sum) else {
            return check_reason(failure, seal, !is_called_spike);
        };
        if is_called_spike && excess < -BORDER {
            failure.set(Invariant::N5, || format!("{} is no spike", seal.turn));
        }
        let is_taken = seal.verdict.coefficient().is_some();
        if is_taken && !history.was_skipped() && excess > BORDER {
            failure.set(Invariant::N5, || format!("{} is a spike, and taken", seal.turn));
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

    /// By how many deviations a norm lies above the limit that follows from recently accepted
    /// steps.
    fn spike_excess(&self, history: &HistoryChecker, square_sum: f64) -> Option<f64> {
        let allowed = self.spec.policy.spike_deviations?;
        let taken = history.before_last().filter(|seal| seal.verdict.coefficient().is_some());
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

fn check_reason(failure: &mut FirstFailure, seal: &Seal, is_fit: bool) {
    if !is_fit {
        let Seal { turn, verdict, reason, .. } = seal;
        failure
            .set(Invariant::N5, || format!("{turn}: {} for no reason: {reason}", verdict.name()));
    }
}
