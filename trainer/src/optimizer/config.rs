//! The optimizer's settings, and its numbers for a step.

use serde::{Deserialize, Serialize};
use zbelastic_kernels::AdamWCoefficients;
use zbelastic_types::Step;

/// How the learning rate falls after its warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LrDecay {
    /// Half a cosine (Loshchilov and Hutter, arXiv 1608.03983).
    Cosine,
    /// The learning rate falls linearly to [`OptimizerConfig::lr_min`].
    Linear,
    /// It does not fall.
    Constant,
}

/// Which tensors weight decay acts on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WeightDecayScope {
    /// Matrices and embeddings, not biases and normalisations.
    Matrices,
    /// Every tensor of the model.
    All,
}

/// AdamW's settings (Loshchilov and Hutter, arXiv 1711.05101).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OptimizerConfig {
    /// The learning rate after warm-up.
    pub lr: f64,
    /// The learning rate at the end.
    pub lr_min: f64,
    /// Steps in which the learning rate rises.
    pub warmup: u64,
    /// How the learning rate falls after its warm-up.
    pub decay: LrDecay,
    /// Decay of the moments.
    pub betas: [f64; 2],
    /// Added to the denominator.
    pub epsilon: f64,
    /// Decay of the weights, a share of the learning rate.
    pub weight_decay: f64,
    /// Which tensors weight decay acts on.
    pub decay_on: WeightDecayScope,
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
        let falling = step_count.saturating_sub(self.warmup).max(1);
        let progress = ((step - self.warmup) as f64 / falling as f64).min(1.0);
        let left = match self.decay {
            LrDecay::Cosine => 0.5 * (1.0 + libm::cos(std::f64::consts::PI * progress)),
            LrDecay::Linear => 1.0 - progress,
            LrDecay::Constant => return self.lr,
        };
        self.lr_min + (self.lr - self.lr_min) * left
    }

    /// The numbers of update number `update`, counted from 1. Powers are taken in f64 by one fixed
    /// function, everything else is rounded once.
    #[must_use]
    pub fn numbers(&self, lr: f64, update: u64, clip: f32, is_decayed: bool) -> AdamWCoefficients {
        let [beta1, beta2] = self.betas;
        let correction = |beta: f64| 1.0 - libm::pow(beta, update as f64);
        let weight_decay = if is_decayed { self.weight_decay } else { 0.0 };
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

    /// Whether weight decay acts on a tensor.
    #[must_use]
    pub fn decays(&self, is_matrix: bool) -> bool {
        match self.decay_on {
            WeightDecayScope::Matrices => is_matrix,
            WeightDecayScope::All => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{LrDecay, OptimizerConfig, WeightDecayScope};
    use zbelastic_types::Step;

    fn config(decay: LrDecay) -> OptimizerConfig {
        OptimizerConfig {
            lr: 1.0,
            lr_min: 0.2,
            warmup: 4,
            decay,
            betas: [0.9, 0.95],
            epsilon: 1e-8,
            weight_decay: 0.1,
            decay_on: WeightDecayScope::Matrices,
        }
    }

    #[test]
    fn learning_rate_rises_then_falls_as_configured() {
        let check = |decay, step, expected: f64| {
            let found = config(decay).lr_at(Step(step), 12);
            assert!((found - expected).abs() < 1e-12, "{decay:?} at {step}: {found}");
        };
        for decay in [LrDecay::Cosine, LrDecay::Linear, LrDecay::Constant] {
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
    }

    #[test]
    fn a_run_shorter_than_its_warm_up_never_leaves_it() {
        assert_eq!(config(LrDecay::Cosine).lr_at(Step(1), 2), 0.5);
    }
}
