//! Rates of weight decay that single tensors have.
//!
//! A group is written `PATTERN=RATE`. The pattern chooses tensors as those of freezing do
//! ([`crate::model::frozen_tensors`]); of several that match a tensor the last one gives the rate.

use serde::{Deserialize, Serialize};
use zbelastic_types::TensorIndex;

use crate::model::{LayerSpec, ModelConfig, NamePattern, NamePatternError, model_layers};

/// Why a text gives no tensor a rate of weight decay.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecayGroupError {
    /// There is no pattern, or no rate behind it.
    #[error("`{group}` is not of the form PATTERN=RATE")]
    Form {
        /// The group as it was written.
        group: String,
    },
    /// The rate is negative, infinite or no number.
    #[error("the rate of `{group}` is not a finite number from 0")]
    Rate {
        /// The group as it was written.
        group: String,
    },
    /// What stands before the rate is no pattern.
    #[error(transparent)]
    Pattern(#[from] NamePatternError),
    /// No tensor has such a name.
    #[error("no tensor of the model matches `{pattern}`")]
    NoTensor {
        /// The pattern as it was written.
        pattern: String,
    },
}

/// The tensors of a model that have a rate of weight decay of their own, by their numbers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DecayRates {
    /// Neighbours of one rate together: the first, the one behind the last, and the rate. In order, and
    /// apart.
    runs: Vec<(u32, u32, f64)>,
}

impl DecayRates {
    /// No tensor has one.
    pub const NONE: Self = Self { runs: Vec::new() };

    /// The rates that groups give the tensors of `model`.
    ///
    /// # Errors
    /// With everything that is wrong with a group: it has another form or no rate, or its pattern is none
    /// or matches no tensor.
    pub fn of_groups(model: &ModelConfig, groups: &[String]) -> Result<Self, Vec<DecayGroupError>> {
        let layers = model_layers(model);
        let tensors: Vec<_> = layers.iter().flat_map(LayerSpec::own_tensors).collect();
        let mut rates = vec![None; tensors.len()];
        let mut errors = Vec::new();
        for group in groups {
            let matched = DecayGroup::parse(group).and_then(|DecayGroup { pattern, rate }| {
                let parsed = NamePattern::parse(pattern)?;
                let mut has_match = false;
                for (tensor, found) in tensors.iter().zip(&mut rates) {
                    if parsed.matches(&tensor.name) {
                        (*found, has_match) = (Some(rate), true);
                    }
                }
                let pattern = pattern.to_owned();
                if has_match { Ok(()) } else { Err(DecayGroupError::NoTensor { pattern }) }
            });
            errors.extend(matched.err());
        }
        let given = tensors.iter().zip(rates);
        let given = given.filter_map(|(tensor, rate)| Some((tensor.index, rate?)));
        if errors.is_empty() { Ok(given.collect()) } else { Err(errors) }
    }

    /// Whether no tensor has one.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.runs.is_empty()
    }

    /// The rate of a tensor, if it has one of its own.
    #[must_use]
    pub fn of(&self, tensor: TensorIndex) -> Option<f64> {
        let before = self.runs.partition_point(|(_, end, _)| *end <= tensor.0);
        let (first, _, rate) = self.runs.get(before)?;
        (*first <= tensor.0).then_some(*rate)
    }
}

impl FromIterator<(TensorIndex, f64)> for DecayRates {
    /// Tensors in canonical order.
    fn from_iter<I: IntoIterator<Item = (TensorIndex, f64)>>(tensors: I) -> Self {
        let mut runs: Vec<(u32, u32, f64)> = Vec::new();
        for (TensorIndex(tensor), rate) in tensors {
            match runs.last_mut() {
                Some((_, end, last)) if *end == tensor && *last == rate => *end += 1,
                Some(_) | None => runs.push((tensor, tensor + 1, rate)),
            }
        }
        Self { runs }
    }
}

/// A pattern and the rate of what it matches.
struct DecayGroup<'a> {
    pattern: &'a str,
    rate: f64,
}

impl<'a> DecayGroup<'a> {
    fn parse(group: &'a str) -> Result<Self, DecayGroupError> {
        let written = || group.to_owned();
        let (pattern, rate) =
            group.rsplit_once('=').ok_or_else(|| DecayGroupError::Form { group: written() })?;
        let [pattern, rate] = [pattern, rate].map(str::trim);
        if pattern.is_empty() || rate.is_empty() {
            return Err(DecayGroupError::Form { group: written() });
        }
        let rate = rate.parse().ok().filter(|rate: &f64| rate.is_finite() && *rate >= 0.0);
        let rate = rate.ok_or_else(|| DecayGroupError::Rate { group: written() })?;
        Ok(Self { pattern, rate })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Family, FrozenTensors, LlamaFeatures};
    use crate::optimizer::{LrDecay, OptimizerConfig, OptimizerKind, WeightDecayScope};

    fn model(tied: bool) -> ModelConfig {
        ModelConfig {
            family: Family::Gpt2,
            blocks: 2,
            width: 8,
            heads: 2,
            kv_heads: 2,
            head_width: 4,
            mlp_width: 16,
            features: LlamaFeatures::NONE,
            vocabulary: 10,
            sliding_window: None,
            positions: 8,
            norm_epsilon: 1e-5,
            rope_theta: 1e4,
            tied,
            frozen: FrozenTensors::NONE,
            without_moments: FrozenTensors::NONE,
            lora: None,
        }
    }

    fn rates(model: &ModelConfig, groups: &[&str]) -> Result<DecayRates, Vec<DecayGroupError>> {
        let groups: Vec<String> = groups.iter().map(|group| (*group).to_owned()).collect();
        DecayRates::of_groups(model, &groups)
    }

    fn optimizer(decay_on: WeightDecayScope, decay_rates: DecayRates) -> OptimizerConfig {
        OptimizerConfig {
            kind: OptimizerKind::AdamW,
            lr: 1.0,
            lr_min: 0.0,
            warmup: 0,
            decay: LrDecay::Constant,
            decay_steps: 0,
            betas: [0.9, 0.95],
            epsilon: 1e-8,
            weight_decay: 0.1,
            decay_on,
            decay_rates,
        }
    }

    /// The rates of all tensors by name.
    fn found(model: &ModelConfig, optimizer: &OptimizerConfig) -> Vec<(String, f64)> {
        let layers = model_layers(model);
        let tensors = layers.iter().flat_map(|layer| &layer.tensors);
        tensors.map(|tensor| (tensor.name.clone(), optimizer.decay_of(tensor))).collect()
    }

    #[test]
    fn the_last_group_that_matches_gives_the_rate_and_the_scope_all_others() {
        let groups = ["embed=0.01", "layers.*.norm*=0.5", "layers.1 = 2e-1", "layers.*.*.q=0"];
        for decay_on in [WeightDecayScope::Matrices, WeightDecayScope::All] {
            let model = model(false);
            let rates = rates(&model, &groups).expect("all match");
            for (name, rate) in found(&model, &optimizer(decay_on, rates)) {
                let is_vector = name.ends_with(".bias") || name == "norm";
                let expected = match name.as_str() {
                    "embed.tokens" | "embed.positions" => 0.01,
                    _ if name.contains("attn.q") => 0.0,
                    _ if name.starts_with("layers.1") => 0.2,
                    _ if name.starts_with("layers.0.norm") => 0.5,
                    _ if is_vector && decay_on == WeightDecayScope::Matrices => 0.0,
                    _ => 0.1,
                };
                assert_eq!(rate, expected, "{name} {decay_on:?}");
            }
        }
    }

    #[test]
    fn without_groups_the_scope_gives_all_rates() {
        let model = model(false);
        let none = rates(&model, &[]).expect("nothing is wrong");
        assert_eq!(none, DecayRates::NONE);
        for (name, rate) in found(&model, &optimizer(WeightDecayScope::Matrices, none)) {
            let is_vector = name.ends_with(".bias") || name.contains("norm");
            assert_eq!(rate, if is_vector { 0.0 } else { 0.1 }, "{name}");
        }
    }

    /// It is one tensor: both ends are updated alike.
    #[test]
    fn a_tied_head_has_the_rate_of_the_embedding() {
        let model = model(true);
        let rates = rates(&model, &["embed.tokens=0.3"]).expect("it matches");
        let found = found(&model, &optimizer(WeightDecayScope::Matrices, rates));
        let ends: Vec<f64> = found
            .iter()
            .filter(|(name, _)| name == "embed.tokens")
            .map(|(_, rate)| *rate)
            .collect();
        assert_eq!(ends, [0.3, 0.3]);
    }

    #[test]
    fn neighbours_of_one_rate_are_written_together() {
        let model = model(false);
        let rates = rates(&model, &["embed=0.25", "layers.0.norm1=0"]).expect("both match");
        assert_eq!(rates.runs, [(0, 2, 0.25), (2, 4, 0.0)]);
        let of = [0, 1, 2, 3, 4].map(|tensor| rates.of(TensorIndex(tensor)));
        assert_eq!(of, [Some(0.25), Some(0.25), Some(0.0), Some(0.0), None]);
        // The same rates, however they are written.
        let again = self::rates(&model, &["embed=7", "embed.*=0.25", "layers.0.norm1=0.0"]);
        assert_eq!(again, Ok(rates));
    }

    #[test]
    fn groups_that_give_no_rate_are_named() {
        let check = |group: &str, expected: DecayGroupError| {
            assert_eq!(rates(&model(false), &[group, "norm=0"]), Err(vec![expected]), "{group}");
        };
        let written = |group: &str| group.to_owned();
        for group in ["norm", "norm=", "=0", " = 1", ""] {
            check(group, DecayGroupError::Form { group: written(group) });
        }
        for group in ["norm=-0.1", "norm=inf", "norm=NaN", "norm=a", "norm=1e999"] {
            check(group, DecayGroupError::Rate { group: written(group) });
        }
        check("layers.2=0", DecayGroupError::NoTensor { pattern: written("layers.2") });
        check("norm=1=0", DecayGroupError::NoTensor { pattern: written("norm=1") });
        let empty = NamePatternError::EmptyPart { pattern: written("layers..q") };
        check("layers..q=0", empty.into());
    }
}
