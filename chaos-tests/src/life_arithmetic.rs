//! The arithmetic of lives that compute with floats: what of a job changes bits and no order of messages.

use serde::{Deserialize, Serialize};
use zbelastic_trainer::model::{AttentionBias, Family, LlamaFeatures, ModelConfig, RopeScaling};
use zbelastic_trainer::optimizer::{
    DecayRates, LrDecay, OptimizerConfig, OptimizerKind, WeightDecayScope,
};

use crate::random::{DrawPurpose, Draws};

/// The share of lives with floats whose arithmetic is drawn.
const SHARE: f64 = 0.5;
/// Weights of z-loss, of which one is drawn: none, a usual one, and one that shows in every gradient.
const Z_LOSSES: [f64; 3] = [0.0, 1e-4, 0.02];
const DECAYS: [LrDecay; 5] =
    [LrDecay::Cosine, LrDecay::Linear, LrDecay::Constant, LrDecay::Wsd, LrDecay::InverseSqrt];
/// Last steps in which the learning rate falls, below this; 0 is a tenth of all.
const DECAY_STEPS: u64 = 20;
/// Rates for parts of a product, for norms, for a layer with its adapters, and none.
const DECAY_GROUPS: [&str; 4] =
    ["embed=0.02", "layers.*.norm*=0.3", "layers.*.attn.v=0", "layers.0.mlp=0.5"];
/// The longest window that slides, which is shorter than a sequence.
const WINDOW_MAX: u64 = 6;

/// The arithmetic of a life.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LifeArithmetic {
    /// The weight of z-loss; 0 for none.
    pub z_loss: f64,
    /// How the learning rate falls.
    pub decay: LrDecay,
    /// Last steps in which it falls, if it stays before; 0 for a tenth of all.
    pub decay_steps: u64,
    /// Which tensors weight decay acts on.
    pub decay_on: WeightDecayScope,
    /// Whether some tensors have a rate of decay of their own.
    pub has_decay_groups: bool,
    /// Features of a model of the Llama family.
    pub features: LlamaFeatures,
    /// Keys that a query of such a model sees at most.
    pub sliding_window: Option<u32>,
    /// Whether sequences hold several documents, and not all targets count.
    pub has_documents: bool,
}

impl LifeArithmetic {
    /// That of lives in which none is drawn.
    pub const USUAL: Self = Self {
        z_loss: 0.0,
        decay: LrDecay::Cosine,
        decay_steps: 0,
        decay_on: WeightDecayScope::Matrices,
        has_decay_groups: false,
        features: LlamaFeatures::NONE,
        sliding_window: None,
        has_documents: false,
    };

    /// The arithmetic of a seed, if one is drawn.
    #[must_use]
    pub fn draw(seed: u64) -> Option<Self> {
        let mut draws = Draws::new(seed, DrawPurpose::Arithmetic);
        if !draws.chance(SHARE) {
            return None;
        }
        Some(Self {
            z_loss: *draws.pick(&Z_LOSSES),
            decay: *draws.pick(&DECAYS),
            decay_steps: draws.below(DECAY_STEPS),
            decay_on: *draws.pick(&[WeightDecayScope::Matrices, WeightDecayScope::All]),
            has_decay_groups: draws.chance(0.5),
            features: draw_features(&mut draws),
            sliding_window: match draws.chance(0.3) {
                true => Some(draws.between(1, WINDOW_MAX) as u32),
                false => None,
            },
            has_documents: draws.chance(0.4),
        })
    }

    /// The model with its features, before tensors are frozen and adapters added.
    #[must_use]
    pub fn model(&self, model: ModelConfig) -> ModelConfig {
        match model.family {
            Family::Gpt2 => model,
            Family::Llama => {
                let Self { features, sliding_window, .. } = *self;
                ModelConfig { features, sliding_window, ..model }
            }
        }
    }

    /// The optimizer of a model.
    #[must_use]
    pub fn optimizer(&self, kind: OptimizerKind, model: &ModelConfig) -> OptimizerConfig {
        let groups = DECAY_GROUPS.map(str::to_owned);
        let groups = if self.has_decay_groups { &groups[..] } else { &[] };
        OptimizerConfig {
            kind,
            lr: 1e-2,
            lr_min: 0.0,
            warmup: 4,
            decay: self.decay,
            decay_steps: self.decay_steps,
            betas: [0.9, 0.95],
            epsilon: 1e-8,
            weight_decay: 0.1,
            decay_on: self.decay_on,
            decay_rates: DecayRates::of_groups(model, groups).expect("there are such tensors"),
        }
    }
}

/// Each feature in some lives; the tiny model's heads turn by two frequencies.
fn draw_features(draws: &mut Draws) -> LlamaFeatures {
    let biases = [AttentionBias::None, AttentionBias::Qkv, AttentionBias::All];
    let llama3 = RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_positions: 8,
    };
    LlamaFeatures {
        attention_bias: *draws.pick(&biases),
        mlp_bias: draws.chance(0.5),
        qk_norm: draws.chance(0.5),
        rope_scaling: *draws.pick(&[None, Some(RopeScaling::Linear { factor: 2.0 }), Some(llama3)]),
    }
}

#[cfg(test)]
mod tests {
    use zbelastic_trainer::model::ModelError;

    use super::*;
    use crate::case::LifeCase;
    use crate::life::parts;
    use crate::options::ComputeModelKind;

    /// Asserts that some of the seeds whose arithmetic is drawn have this feature, and others have not.
    fn occurs(has: impl Fn(&LifeArithmetic) -> bool) {
        let drawn: Vec<_> = (0..200).filter_map(LifeArithmetic::draw).collect();
        assert!((70..130).contains(&drawn.len()), "{}", drawn.len());
        let found = drawn.iter().filter(|arithmetic| has(arithmetic)).count();
        assert!(found > 5 && found < drawn.len() - 5, "{found} of {}", drawn.len());
    }

    #[test]
    fn every_feature_is_in_some_lives_and_not_in_others() {
        Z_LOSSES.into_iter().for_each(|z_loss| occurs(|it| it.z_loss == z_loss));
        DECAYS.into_iter().for_each(|decay| occurs(|it| it.decay == decay));
        occurs(|it| it.decay_on == WeightDecayScope::All);
        occurs(|it| it.has_decay_groups);
        occurs(|it| it.features.attention_bias == AttentionBias::Qkv);
        occurs(|it| it.features.attention_bias == AttentionBias::All);
        occurs(|it| it.features.mlp_bias);
        occurs(|it| it.features.qk_norm);
        occurs(|it| matches!(it.features.rope_scaling, Some(RopeScaling::Linear { .. })));
        occurs(|it| matches!(it.features.rope_scaling, Some(RopeScaling::Llama3 { .. })));
        occurs(|it| it.sliding_window.is_some());
        occurs(|it| it.has_documents);
    }

    /// A life has what its seed draws, frozen tensors and adapters beside it, and a life with hashes none.
    #[test]
    fn what_is_drawn_reaches_the_stages_of_a_life() {
        let usual = LifeArithmetic::USUAL;
        for seed in 0..200 {
            let digest = LifeCase::draw(seed, ComputeModelKind::Digest);
            assert_eq!(digest.options.arithmetic, None);
            let case = LifeCase::draw(seed, ComputeModelKind::Float);
            assert_eq!(case.options.arithmetic, LifeArithmetic::draw(seed));
            let drawn = case.options.arithmetic.as_ref().unwrap_or(&usual);
            let (_, stage) = parts(&case);
            // Lives train combinations that no other tool loads as well.
            let mut errors = stage.model.errors();
            errors.retain(|error| *error != ModelError::Features);
            assert_eq!(errors, []);
            assert_eq!((stage.z_loss, stage.optimizer.decay), (drawn.z_loss, drawn.decay));
            assert_eq!(stage.optimizer.decay_rates.is_none(), !drawn.has_decay_groups);
            if stage.model.family == Family::Llama {
                assert_eq!(stage.model.features, drawn.features, "seed {seed}");
                assert_eq!(stage.model.sliding_window, drawn.sliding_window, "seed {seed}");
            }
        }
    }
}
