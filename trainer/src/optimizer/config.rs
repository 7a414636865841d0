//! The optimizer's settings, and its numbers for a step.

use serde::{Deserialize, Serialize};
use zbelastic_kernels::AdamWCoefficients;
use zbelastic_types::Step;

use super::decay_rates::DecayRates;
use super::kind::OptimizerKind;
use crate::model::TensorSpec;

/// How the learning rate falls after its warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LrDecay {
    /// Half a cosine (Loshchilov and Hutter, arXiv 1608.03983).
    Cosine,
    /// The learning rate falls linearly to [`OptimizerConfig::lr_min`].
    Linear,
    /// It does not fall.
    Constant,
    /// Warm-up, stable, decay (Hu et al., arXiv 2404.06395, section 4): it stays until the last
    /// [`OptimizerConfig::decay_steps`], in which it falls as one less the root of the progress
    /// (Hägele et al., arXiv 2405.18392, section 3).
    Wsd,
    /// It falls as the inverse root of the step's number, counted so that the warm-up ends at
    /// [`OptimizerConfig::lr`] (Vaswani et al., arXiv 1706.03762, section 5.3). Without a warm-up
    /// it is at half of it after three times [`INVERSE_SQRT_TIMESCALE`] steps.
    InverseSqrt,
}

/// Steps over which [`LrDecay::InverseSqrt`] falls by a root of two where there is no warm-up, as
/// in transformers' schedule of that name.
pub const INVERSE_SQRT_TIMESCALE: u64 = 10_000;

/// The share of all steps that [`LrDecay::Wsd`] falls in, if none is given: one of so many.
pub const WSD_DECAY_SHARE: u64 = 10;

/// Which tensors weight decay acts on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WeightDecayScope {
    /// Matrices and embeddings, not biases and normalisations.
    Matrices,
    /// Every tensor of the model.
    All,
}

/// The optimizer's settings: those of AdamW (Loshchilov and Hutter, arXiv 1711.05101), of which Muon
/// has the learning rate and weight decay.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OptimizerConfig {
    /// AdamW, or Muon beside it.
    #[serde(default, skip_serializing_if = "OptimizerKind::is_adamw")]
    pub kind: OptimizerKind,
    /// The learning rate after warm-up.
    pub lr: f64,
    /// The learning rate at the end.
    pub lr_min: f64,
    /// Steps in which the learning rate rises.
    pub warmup: u64,
    /// How the learning rate falls after its warm-up.
    pub decay: LrDecay,
    /// [`LrDecay::Wsd`]: last steps, in which the learning rate falls; 0: one in
    /// [`WSD_DECAY_SHARE`] of all.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub decay_steps: u64,
    /// Decay of the moments.
    pub betas: [f64; 2],
    /// Added to the denominator.
    pub epsilon: f64,
    /// Decay of the weights, a share of the learning rate.
    pub weight_decay: f64,
    /// Which tensors weight decay acts on.
    pub decay_on: WeightDecayScope,
    /// Tensors whose weights decay at a rate of their own, whatever the two keys above say of them.
    #[serde(default, skip_serializing_if = "DecayRates::is_none")]
    pub decay_rates: DecayRates,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl OptimizerConfig {
    /// The learning rate of `step` in a run of `step_count`. A function of the step alone: it does
    /// not depend on what was clipped or skipped (rule R4).
    #[must_use]
    pub fn lr_at(&self, step: Step, step_count: u64) -> f64 {
        let step = step.0;
        if step < self.warmup {
            return self.lr * (step + 1) as f64 / self.warmup as f64;
        }
        let progress_since = |first: u64| {
            let falling = step_count.saturating_sub(first).max(1);
            (step.saturating_sub(first) as f64 / falling as f64).min(1.0)
        };
        let left = match self.decay {
            LrDecay::Cosine => {
                0.5 * (1.0 + libm::cos(std::f64::consts::PI * progress_since(self.warmup)))
            }
            LrDecay::Linear => 1.0 - progress_since(self.warmup),
            LrDecay::Constant => return self.lr,
            LrDecay::Wsd => 1.0 - progress_since(self.wsd_decay_start(step_count)).sqrt(),
            LrDecay::InverseSqrt => {
                let timescale =
                    if self.warmup == 0 { INVERSE_SQRT_TIMESCALE } else { self.warmup } as f64;
                (timescale / ((step - self.warmup) as f64 + timescale)).sqrt()
            }
        };
        self.lr_min + (self.lr - self.lr_min) * left
    }

    /// The step from which on [`LrDecay::Wsd`] falls, in a run of `step_count`.
    fn wsd_decay_start(&self, step_count: u64) -> u64 {
        let decay_steps =
            if self.decay_steps == 0 { step_count / WSD_DECAY_SHARE } else { self.decay_steps };
        step_count.saturating_sub(decay_steps).max(self.warmup)
    }

    /// The numbers of update number `update`, counted from 1, of a tensor that decays at this rate
    /// ([`Self::decay_of`]). Powers are taken in f64 by one fixed function, everything else is rounded
    /// once.
    #[must_use]
    pub fn numbers(&self, lr: f64, update: u64, clip: f32, weight_decay: f64) -> AdamWCoefficients {
        let [beta1, beta2] = self.betas;
        let correction = |beta: f64| 1.0 - libm::pow(beta, update as f64);
        AdamWCoefficients {
            decay: (1.0 - lr * weight_decay) as f32,
            beta1: beta1 as f32,
            beta1_rest: (1.0 - beta1) as f32,
            beta2: beta2 as f32,
            beta2_rest: (1.0 - beta2) as f32,
            correction2: correction(beta2).sqrt() as f32,
            epsilon: self.epsilon as f32,
            step: (-lr / correction(beta1)) as f32,
            clip,
        }
    }

    /// The rate at which the weights of a tensor decay, a share of the learning rate: its own, or that of
    /// all tensors that weight decay acts on.
    #[must_use]
    pub fn decay_of(&self, tensor: &TensorSpec) -> f64 {
        let is_decayed = match self.decay_on {
            WeightDecayScope::Matrices => tensor.is_matrix(),
            WeightDecayScope::All => true,
        };
        let usual = if is_decayed { self.weight_decay } else { 0.0 };
        self.decay_rates.of(tensor.index).unwrap_or(usual)
    }
}

#[cfg(test)]
mod tests {
    use super::{DecayRates, LrDecay, OptimizerConfig, OptimizerKind, WeightDecayScope};
    use zbelastic_types::Step;

    fn config(decay: LrDecay) -> OptimizerConfig {
        OptimizerConfig {
            kind: OptimizerKind::AdamW,
            lr: 1.0,
            lr_min: 0.2,
            warmup: 4,
            decay,
            decay_steps: 0,
            betas: [0.9, 0.95],
            epsilon: 1e-8,
            weight_decay: 0.1,
            decay_on: WeightDecayScope::Matrices,
            decay_rates: DecayRates::NONE,
        }
    }

    #[test]
    fn learning_rate_rises_then_falls_as_configured() {
        let check = |decay, step, expected: f64| {
            let found = config(decay).lr_at(Step(step), 12);
            assert!((found - expected).abs() < 1e-12, "{decay:?} at {step}: {found}");
        };
        let all = [
            LrDecay::Cosine,
            LrDecay::Linear,
            LrDecay::Constant,
            LrDecay::Wsd,
            LrDecay::InverseSqrt,
        ];
        for decay in all {
            check(decay, 0, 0.25);
            check(decay, 3, 1.0);
            check(decay, 4, 1.0);
        }
        check(LrDecay::Linear, 8, 0.6);
        check(LrDecay::Cosine, 8, 0.6);
        check(LrDecay::Cosine, 6, 0.2 + 0.8 * 0.5 * (1.0 + 0.5f64.sqrt()));
        check(LrDecay::Linear, 12, 0.2);
        check(LrDecay::Linear, 50, 0.2);
        check(LrDecay::Constant, 50, 1.0);
        check(LrDecay::InverseSqrt, 16, 0.2 + 0.8 * 0.5);
        check(LrDecay::InverseSqrt, 100, 0.2 + 0.8 * 0.2);
    }

    #[test]
    fn a_stable_learning_rate_falls_in_the_last_steps() {
        let check = |decay_steps, step, expected: f64| {
            let config = OptimizerConfig { decay_steps, ..config(LrDecay::Wsd) };
            let found = config.lr_at(Step(step), 100);
            assert!((found - expected).abs() < 1e-12, "{decay_steps} at {step}: {found}");
        };
        check(0, 90, 1.0);
        check(0, 91, 0.2 + 0.8 * (1.0 - 0.1f64.sqrt()));
        check(40, 60, 1.0);
        check(40, 70, 0.6);
        check(40, 100, 0.2);
        // More steps than there are behind the warm-up: it falls from there on.
        check(1000, 4, 1.0);
        check(1000, 28, 0.6);
    }

    #[test]
    fn without_a_warm_up_the_inverse_root_begins_at_the_full_rate() {
        let config = OptimizerConfig { warmup: 0, lr_min: 0.0, ..config(LrDecay::InverseSqrt) };
        assert_eq!(config.lr_at(Step(0), 12), 1.0);
        assert_eq!(config.lr_at(Step(30_000), 12), 0.5);
    }

    #[test]
    fn a_run_shorter_than_its_warm_up_never_leaves_it() {
        assert_eq!(config(LrDecay::Cosine).lr_at(Step(1), 2), 0.5);
    }
}
