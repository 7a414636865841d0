//! Small models, and rates at which their weights decay.

use zbelastic_trainer::model::{
    AttentionBias, Family, FrozenTensors, LlamaFeatures, ModelConfig, RopeScaling,
};
use zbelastic_trainer::optimizer::DecayRates;

/// A model small enough to train hundreds of times in a test.
pub fn tiny_model(family: Family) -> ModelConfig {
    let (kv_heads, mlp_width) = match family {
        Family::Gpt2 => (4, 32),
        Family::Llama => (2, 20),
    };
    ModelConfig {
        family,
        blocks: 4,
        width: 16,
        heads: 4,
        kv_heads,
        head_width: 4,
        mlp_width,
        features: LlamaFeatures::NONE,
        vocabulary: 128,
        sliding_window: None,
        positions: 8,
        norm_epsilon: 1e-5,
        rope_theta: 10_000.0,
        tied: false,
        frozen: FrozenTensors::NONE,
        without_moments: FrozenTensors::NONE,
        lora: None,
    }
}

/// The Llama of these tests with every feature that a later one has.
pub fn featured_model() -> ModelConfig {
    let features = LlamaFeatures {
        attention_bias: AttentionBias::All,
        mlp_bias: true,
        qk_norm: true,
        rope_scaling: Some(RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_positions: 8,
        }),
    };
    ModelConfig { head_width: 6, features, ..tiny_model(Family::Llama) }
}

/// Rates for parts of matrices that products read as one, for norms, and none for a layer.
const DECAY_GROUPS: [&str; 6] = [
    "embed=0.03",
    "layers.*.attn.k=0.5",
    "layers.*.norm*=0.2",
    "norm=0.4",
    "layers.2.mlp.up=0.7",
    "layers.1.mlp=0",
];

/// Rates of decay for a model of four blocks.
pub fn decay_rates(model: &ModelConfig) -> DecayRates {
    DecayRates::of_groups(model, &DECAY_GROUPS.map(str::to_owned)).expect("all match")
}

/// What [`decay_rates`] gives a tensor.
pub fn decay_rate(name: &str) -> Option<f64> {
    match name {
        "norm" | "norm.bias" => Some(0.4),
        _ if name.starts_with("embed.") => Some(0.03),
        _ if name.starts_with("layers.1.mlp.") => Some(0.0),
        _ if name.starts_with("layers.2.mlp.up") => Some(0.7),
        _ if name.contains(".norm") => Some(0.2),
        _ if name.ends_with(".attn.k") || name.ends_with(".attn.k.bias") => Some(0.5),
        _ => None,
    }
}
