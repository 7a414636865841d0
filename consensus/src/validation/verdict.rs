//! The verdict on a step, a pure function of its sums.

use std::fmt;

use serde::{Deserialize, Serialize};
use zbelastic_types::TensorIndex;

use super::tally::TallySummary;
use crate::mutant::{self, Mutant};

/// The treatment of a gradient that is not finite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NonfinitePolicy {
    /// Leave the batch out.
    Skip,
    /// Run the step again, as often as the policy allows, then leave the batch out.
    Replay,
}

/// The conditions that a step must satisfy.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct GuardPolicy {
    /// The largest global gradient norm that is applied as it is; `None` never clips.
    pub clip_norm: Option<f64>,
    /// The treatment of a gradient that is not finite.
    pub nonfinite: NonfinitePolicy,
    /// How often a step is run again.
    pub replays_max: u32,
    /// Skip a step with a norm this many standard deviations above the recent mean; `None` never
    /// does.
    pub spike_deviations: Option<f64>,
}

/// Sealed norms that must be known before one can be called a spike.
pub const SPIKE_WARMUP: usize = 16;
/// Steps in a row that may be skipped as spikes; the next one is accepted and becomes part of the
/// picture, so that a run goes on after its gradients have grown for good.
pub const SPIKE_SKIPS_MAX: u32 = 3;
/// The least standard deviation assumed, as a share of the mean: a run with norms that hardly vary
/// must not call a change in the second digit a spike.
const DEVIATION_SHARE_MIN: f64 = 0.01;

/// The decision on a step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Verdict {
    /// The optimistic candidate becomes the state.
    Keep,
    /// The step is applied with the gradient scaled.
    Clip {
        /// The scale of the gradient, at most one.
        coefficient: f32,
    },
    /// The state stays, the batch counts as consumed.
    Skip,
    /// The step is run again on the same data.
    Replay,
}

impl Verdict {
    /// The scale of the gradient, if the step is applied.
    #[must_use]
    pub const fn coefficient(self) -> Option<f32> {
        match self {
            Self::Keep => Some(1.0),
            Self::Clip { coefficient } => Some(coefficient),
            Self::Skip | Self::Replay => None,
        }
    }

    /// Whether the step is over with this verdict.
    #[must_use]
    pub const fn is_final(self) -> bool {
        match self {
            Self::Keep | Self::Clip { .. } | Self::Skip => true,
            Self::Replay => false,
        }
    }

    /// The word for logs and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Keep => "keep",
            Self::Clip { .. } => "clip",
            Self::Skip => "skip",
            Self::Replay => "replay",
        }
    }
}

/// The grounds of a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Reason {
    /// Finite, and not above the clip norm.
    Sound,
    /// The norm is above the clip norm; so far above, if the step is left out, that no `f32` scales
    /// the gradient to it.
    LargeNorm {
        /// The largest norm that is applied as it is.
        clip_norm: f64,
    },
    /// Some gradient is not finite, or the norm of all is not.
    NonfiniteGradient {
        /// The first such tensor in canonical order; the one at which the sum of squares overflows,
        /// if each is finite.
        tensor: TensorIndex,
        /// Its values that are not finite; none if only sums are not.
        values: u64,
        /// Number of tensors that have such values.
        tensor_count: u32,
        /// Replays of the step so far.
        replays: u32,
    },
    /// Gradients are finite, the loss is not.
    NonfiniteLoss {
        /// Replays of the step so far.
        replays: u32,
    },
    /// The step was sealed before a rewind, and does not come out with the same bits.
    DiffersFromLog {
        /// Replays of the step so far.
        replays: u32,
    },
    /// The norm lies far above those of the last steps.
    Spike {
        /// Standard deviations above the mean.
        deviations: f64,
        /// Standard deviations that the policy allows.
        deviations_max: f64,
    },
    /// A spike after as many skips in a row as are allowed.
    SpikeAccepted {
        /// Standard deviations above the mean.
        deviations: f64,
    },
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sound => write!(f, "finite and within the clip norm"),
            Self::LargeNorm { clip_norm } => write!(f, "norm above {clip_norm}"),
            Self::NonfiniteGradient { tensor, values: 0, replays, .. } => {
                write!(f, "the sum of squares overflows at tensor {tensor} after {replays} replays")
            }
            Self::NonfiniteGradient { tensor, values, tensor_count, replays } => {
                write!(f, "non-finite gradient in tensor {tensor} ({values} values")?;
                if *tensor_count > 1 {
                    write!(f, ", {tensor_count} tensors in all")?;
                }
                write!(f, ") after {replays} replays")
            }
            Self::NonfiniteLoss { replays } => {
                write!(f, "non-finite loss after {replays} replays")
            }
            Self::DiffersFromLog { replays } => {
                write!(f, "differs from what was sealed after {replays} replays")
            }
            Self::Spike { deviations, deviations_max } => {
                write!(
                    f,
                    "norm {deviations:.1} deviations above the mean, {deviations_max} allowed"
                )
            }
            Self::SpikeAccepted { deviations } => write!(
                f,
                "norm {deviations:.1} deviations above the mean, accepted after \
                 {SPIKE_SKIPS_MAX} skips in a row"
            ),
        }
    }
}

/// A verdict with its grounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct VerdictDecision {
    /// The decision on the step.
    pub verdict: Verdict,
    /// The grounds of the verdict.
    pub reason: Reason,
    /// The sum of squares over all tensors.
    pub square_sum: f64,
}

/// The agreed history that a verdict may depend on, beside the step's own sums.
#[derive(Clone, Copy, Debug)]
pub struct VerdictHistory<'a> {
    /// Norms of the steps that were applied lately.
    pub norms: &'a [f64],
    /// Replays of this step so far.
    pub replays: u32,
    /// Steps skipped in a row as spikes.
    pub spike_skips: u32,
}

/// The coefficient that scales a gradient with this sum of squares to the clip norm: below one if
/// it must be clipped. The additive term follows PyTorch's `clip_grad_norm_`, so a norm of exactly
/// the clip norm is clipped by a millionth.
#[must_use]
pub fn clip_coefficient(square_sum: f64, clip_norm: f64) -> f64 {
    clip_norm / (square_sum.sqrt() + 1e-6)
}

/// Decides on a step. The same sums and history give the same verdict on every node, in any order
/// of the reports (invariant N5).
#[must_use]
pub fn decide(
    summary: &TallySummary,
    policy: &GuardPolicy,
    history: VerdictHistory<'_>,
) -> VerdictDecision {
    let square_sum = summary.square_sum();
    let decision = |verdict, reason| VerdictDecision { verdict, reason, square_sum };
    let nonfinite = summary.nonfinite_reason(history.replays);
    if let Some(reason) = nonfinite.filter(|_| !mutant::is(Mutant::M10NanPasses)) {
        return decision(left_out(policy, history), reason);
    }
    if mutant::is(Mutant::M26GoodStepSkipped) && history.norms.len() % 8 == 7 {
        let replays = history.replays;
        return decision(Verdict::Skip, Reason::NonfiniteLoss { replays });
    }
    let norm = square_sum.sqrt();
    let mut reason = Reason::Sound;
    if let Some(deviations_max) = policy.spike_deviations
        && let Some(deviations) = deviations_above_mean(norm, history.norms)
        && deviations > deviations_max
    {
        if history.spike_skips < SPIKE_SKIPS_MAX {
            return decision(Verdict::Skip, Reason::Spike { deviations, deviations_max });
        }
        reason = Reason::SpikeAccepted { deviations };
    }
    match policy.clip_norm.map(|clip_norm| (clip_norm, clip_coefficient(square_sum, clip_norm))) {
        // If it were applied, it would count as a step and change nothing.
        Some((clip_norm, coefficient))
            if coefficient as f32 == 0.0 && !mutant::is(Mutant::M10NanPasses) =>
        {
            decision(left_out(policy, history), Reason::LargeNorm { clip_norm })
        }
        Some((clip_norm, coefficient)) if coefficient < 1.0 => {
            if reason == Reason::Sound {
                reason = Reason::LargeNorm { clip_norm };
            }
            decision(Verdict::Clip { coefficient: coefficient as f32 }, reason)
        }
        Some(_) | None => decision(Verdict::Keep, reason),
    }
}

/// The verdict on a step that cannot be applied.
fn left_out(policy: &GuardPolicy, history: VerdictHistory<'_>) -> Verdict {
    match policy.nonfinite {
        NonfinitePolicy::Replay if history.replays < policy.replays_max => Verdict::Replay,
        NonfinitePolicy::Replay | NonfinitePolicy::Skip => Verdict::Skip,
    }
}

fn deviations_above_mean(norm: f64, norms: &[f64]) -> Option<f64> {
    if norms.len() < SPIKE_WARMUP {
        return None;
    }
    let count = norms.len() as f64;
    let mean = norms.iter().sum::<f64>() / count;
    let variance = norms.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / count;
    let deviation = variance.sqrt().max(mean * DEVIATION_SHARE_MIN);
    (deviation > 0.0).then(|| (norm - mean) / deviation)
}

/// Whether a stage goes ahead with its candidate before the verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// Nothing known so far speaks against it.
    Open,
    /// The sums of the stages so far are not finite: the step will not be kept.
    ClosedNonfinite,
    /// The sums of the stages so far already force clipping.
    ClosedLarge,
}

impl Gate {
    /// The gate for the sums so far. It guesses at the verdict and need not agree with it: sums
    /// come stage by stage here and tensor by tensor there, which may differ in the last bit. A
    /// stage that stood behind a closed gate computes its candidate when the seal requires it.
    #[must_use]
    pub fn of(square_sum: f64, clip_norm: Option<f64>) -> Self {
        if !square_sum.is_finite() {
            return Self::ClosedNonfinite;
        }
        match clip_norm {
            Some(clip_norm) if clip_coefficient(square_sum, clip_norm) < 1.0 => Self::ClosedLarge,
            Some(_) | None => Self::Open,
        }
    }
}
