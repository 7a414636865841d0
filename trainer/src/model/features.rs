//! What members of the Llama family have beyond its first model: biases, norms of queries and keys,
//! and scaled rotary frequencies.

use serde::{Deserialize, Serialize};

/// Which projections of attention have a bias.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AttentionBias {
    /// None of them.
    #[default]
    None,
    /// Queries, keys and values, as in Qwen2.
    Qkv,
    /// These and the output: `attention_bias` of Llama and of Qwen3.
    All,
}

/// How rotary frequencies are changed for sequences that are longer than those of the first
/// training.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RopeScaling {
    /// All frequencies divided by a number (Chen et al., arXiv 2306.15595).
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// Low frequencies divided, high ones kept, those between blended (Llama 3.1).
    Llama3 {
        /// The divisor of low frequencies.
        factor: f64,
        /// Wavelengths beyond `original_positions` over this are divided.
        low_freq_factor: f64,
        /// Wavelengths below `original_positions` over this are kept.
        high_freq_factor: f64,
        /// Positions of the first training.
        original_positions: u32,
    },
}

impl RopeScaling {
    /// The frequency used in place of `frequency`, both in radians a position.
    #[must_use]
    pub fn scaled(self, frequency: f64) -> f64 {
        match self {
            Self::Linear { factor } => frequency / factor,
            Self::Llama3 { factor, low_freq_factor, high_freq_factor, original_positions } => {
                let turns = f64::from(original_positions) * frequency / std::f64::consts::TAU;
                if turns < low_freq_factor {
                    frequency / factor
                } else if turns > high_freq_factor {
                    frequency
                } else {
                    let kept = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor);
                    (1.0 - kept) * frequency / factor + kept * frequency
                }
            }
        }
    }

    /// Those of its numbers that are not above 0 and finite, by name.
    pub(super) fn wrong_numbers(self) -> Vec<(&'static str, f64)> {
        let (factor, bands) = match self {
            Self::Linear { factor } => (factor, None),
            Self::Llama3 { factor, low_freq_factor, high_freq_factor, original_positions } => {
                (factor, Some((low_freq_factor, high_freq_factor, original_positions)))
            }
        };
        let mut numbers = vec![("the factor of rope_scaling", factor)];
        if let Some((low, high, positions)) = bands {
            numbers.push(("low_freq_factor of rope_scaling", low));
            numbers.push(("high_freq_factor over low_freq_factor of rope_scaling", high - low));
            numbers.push(("original positions of rope_scaling", f64::from(positions)));
        }
        numbers.retain(|(_, x)| !(x.is_finite() && *x > 0.0));
        numbers
    }
}

/// Features of single models of the Llama family. GPT-2 has none of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LlamaFeatures {
    /// Biases of attention's projections.
    pub attention_bias: AttentionBias,
    /// Whether gate, up and down projection have biases.
    pub mlp_bias: bool,
    /// QK-norm: whether each head of queries and of keys is normalised before it is rotated, all heads
    /// by one weight (Qwen3; Dehghani et al., arXiv 2302.05442, section 2).
    pub qk_norm: bool,
    /// Changed rotary frequencies.
    pub rope_scaling: Option<RopeScaling>,
}

impl LlamaFeatures {
    /// None of them.
    pub const NONE: Self = Self {
        attention_bias: AttentionBias::None,
        mlp_bias: false,
        qk_norm: false,
        rope_scaling: None,
    };

    /// Whether there is none of them.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::NONE
    }

    /// Whether a model type of transformers has these together: `llama` has no norms of queries and
    /// keys, `qwen2` and `qwen3` have no bias in the MLP, only `qwen2` has biases of queries, keys and
    /// values alone.
    #[must_use]
    pub fn is_of_transformers(&self, sliding_window: Option<u32>) -> bool {
        if sliding_window.is_some() && !self.qk_norm {
            return !self.mlp_bias && self.attention_bias != AttentionBias::All;
        }
        match (self.attention_bias, self.mlp_bias, self.qk_norm) {
            (AttentionBias::Qkv, mlp_bias, qk_norm) => !mlp_bias && !qk_norm,
            (AttentionBias::None | AttentionBias::All, mlp_bias, qk_norm) => !(mlp_bias && qk_norm),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn llama3_divides_low_frequencies_keeps_high_ones_and_blends_between() {
        let scaling = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_positions: 64,
        };
        let of_turns = |turns: f64| turns * std::f64::consts::TAU / 64.0;
        let check = |turns: f64, share: f64| {
            let found = scaling.scaled(of_turns(turns)) / of_turns(turns);
            assert!((found - share).abs() < 1e-12, "{turns} turns: {found}, expected {share}");
        };
        check(0.5, 0.125);
        check(0.999, 0.125);
        check(2.5, 0.5 / 8.0 + 0.5);
        check(4.001, 1.0);
        check(10.0, 1.0);
        assert_eq!(RopeScaling::Linear { factor: 4.0 }.scaled(1.0), 0.25);
    }

    #[test]
    fn wrong_numbers_of_a_scaling_are_named() {
        let check = |scaling: RopeScaling, expected: usize| {
            assert_eq!(scaling.wrong_numbers().len(), expected, "{scaling:?}");
        };
        let llama3 = |low_freq_factor, high_freq_factor| RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor,
            high_freq_factor,
            original_positions: 64,
        };
        check(RopeScaling::Linear { factor: 2.0 }, 0);
        check(RopeScaling::Linear { factor: 0.0 }, 1);
        check(RopeScaling::Linear { factor: f64::INFINITY }, 1);
        check(llama3(1.0, 4.0), 0);
        check(llama3(1.0, 1.0), 1);
        check(llama3(0.0, f64::NAN), 2);
    }
}
