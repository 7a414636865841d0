//! The `config.json` of a Hugging Face model.

use serde_json::{Map, Value, json};

use super::config_keys::{ConfigError, ConfigKeys};
use super::distinct_keys::read_object;
use crate::model::{AttentionBias, Family, FrozenTensors, LlamaFeatures, ModelConfig, RopeScaling};

/// The model types of the Llama family, whose files say the same by other keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LlamaType {
    Llama,
    Mistral,
    Qwen2,
    Qwen3,
}

/// Base of rotary frequencies in a file that has none.
const ROPE_THETA: f64 = 10_000.0;
/// The window of Mistral, Qwen2 and Qwen3 in a file that has none.
const WINDOW: u32 = 4096;
/// The first block with a window in a file that has none.
const WINDOW_FIRST: u32 = 28;

/// The model that a `config.json` describes.
///
/// # Errors
/// If it is no configuration, or of a model that is not supported.
pub fn parse_config(text: &str) -> Result<ModelConfig, ConfigError> {
    let map = read_object(text)?;
    let keys = ConfigKeys::new(&map);
    let model = match map.get("model_type").and_then(Value::as_str) {
        Some("gpt2") => parse_gpt2(&keys),
        Some("llama") => parse_llama(&keys, LlamaType::Llama),
        Some("mistral") => parse_llama(&keys, LlamaType::Mistral),
        Some("qwen2") => parse_llama(&keys, LlamaType::Qwen2),
        Some("qwen3") => parse_llama(&keys, LlamaType::Qwen3),
        Some(_) | None => {
            let supported = "\"gpt2\", \"llama\", \"mistral\", \"qwen2\" or \"qwen3\"";
            Err(keys.unsupported("model_type", supported))
        }
    }?;
    check_common(&keys)?;
    keys.check_all_read()?;
    Ok(model)
}

/// What a full dump of a configuration says of all models, and where it would change one.
fn check_common(keys: &ConfigKeys<'_>) -> Result<(), ConfigError> {
    keys.only("pruned_heads", "{}", |heads| heads == &json!({}))?;
    keys.only_false("tie_encoder_decoder")?;
    keys.only_false("is_encoder_decoder")?;
    keys.only_false("add_cross_attention")?;
    keys.only("quantization_config", "null", |_| false)
}

fn parse_gpt2(keys: &ConfigKeys<'_>) -> Result<ModelConfig, ConfigError> {
    let tanh_gelu = |value: &Value| value == "gelu_new" || value == "gelu_pytorch_tanh";
    let supported = "\"gelu_new\" or \"gelu_pytorch_tanh\"";
    keys.only("activation_function", supported, tanh_gelu)?;
    keys.only_false("scale_attn_by_inverse_layer_idx")?;
    keys.only("scale_attn_weights", "true", |value| value == &json!(true))?;
    let width = keys.size("n_embd")?;
    let heads = keys.size("n_head")?;
    if heads > 0 && !width.is_multiple_of(heads) {
        return Err(keys.unsupported("n_head", "a number that divides n_embd"));
    }
    // Releases differ in what null is: tied, untied, or none.
    if keys.has("tie_word_embeddings") && keys.value("tie_word_embeddings").is_none() {
        return Err(keys.unsupported("tie_word_embeddings", "true or false"));
    }
    let positions = keys.size("n_positions")?;
    // Older files say the number of positions twice.
    keys.only("n_ctx", "the number of n_positions", |value| value == &json!(positions))?;
    Ok(ModelConfig {
        family: Family::Gpt2,
        blocks: keys.blocks("n_layer")?,
        width,
        heads,
        kv_heads: heads,
        head_width: width / heads.max(1),
        mlp_width: keys.optional("n_inner")?.unwrap_or(4 * width),
        features: LlamaFeatures::NONE,
        vocabulary: keys.size("vocab_size")?,
        sliding_window: None,
        positions,
        norm_epsilon: keys.float("layer_norm_epsilon", 1e-5)? as f32,
        rope_theta: ROPE_THETA,
        tied: keys.flag("tie_word_embeddings", true)?,
        frozen: FrozenTensors::NONE,
        without_moments: FrozenTensors::NONE,
        lora: None,
    })
}

fn parse_llama(keys: &ConfigKeys<'_>, kind: LlamaType) -> Result<ModelConfig, ConfigError> {
    keys.only("hidden_act", "\"silu\"", |value| value == "silu")?;
    keys.only_false("rope_interleaved")?;
    keys.only_false("use_mrope")?;
    let width = keys.size("hidden_size")?;
    let heads = keys.size("num_attention_heads")?;
    let blocks = keys.blocks("num_hidden_layers")?;
    let positions = keys.size("max_position_embeddings")?;
    let (rope_theta, rope_scaling) = rope(keys)?;
    let sliding_window = window(keys, kind, blocks)?;
    // What transformers has for a key that is not there; for one that is null, as many as heads.
    let kv_heads = match kind {
        LlamaType::Mistral if !keys.has("num_key_value_heads") => 8,
        LlamaType::Qwen2 | LlamaType::Qwen3 if !keys.has("num_key_value_heads") => 32,
        LlamaType::Llama | LlamaType::Mistral | LlamaType::Qwen2 | LlamaType::Qwen3 => heads,
    };
    // Qwen3 fixes the width of a head where the file has none.
    let head_width = match kind {
        LlamaType::Qwen3 => 128,
        LlamaType::Llama | LlamaType::Mistral | LlamaType::Qwen2 => width / heads.max(1),
    };
    Ok(ModelConfig {
        family: Family::Llama,
        blocks,
        width,
        heads,
        kv_heads: keys.optional("num_key_value_heads")?.unwrap_or(kv_heads),
        head_width: keys.optional("head_dim")?.unwrap_or(head_width),
        mlp_width: keys.size("intermediate_size")?,
        features: LlamaFeatures { rope_scaling, ..features(keys, kind)? },
        vocabulary: keys.size("vocab_size")?,
        sliding_window,
        positions,
        norm_epsilon: keys.float("rms_norm_eps", 1e-6)? as f32,
        rope_theta,
        frozen: FrozenTensors::NONE,
        without_moments: FrozenTensors::NONE,
        lora: None,
        tied: keys.flag("tie_word_embeddings", false)?,
    })
}

/// Biases and norms of a model type.
fn features(keys: &ConfigKeys<'_>, kind: LlamaType) -> Result<LlamaFeatures, ConfigError> {
    let of_key = |is_there| if is_there { AttentionBias::All } else { AttentionBias::None };
    let mut features = LlamaFeatures::NONE;
    match kind {
        LlamaType::Llama => {
            features.attention_bias = of_key(keys.flag("attention_bias", false)?);
            features.mlp_bias = keys.flag("mlp_bias", false)?;
        }
        LlamaType::Mistral => {
            keys.only_false("attention_bias")?;
            keys.only_false("mlp_bias")?;
        }
        LlamaType::Qwen2 => {
            // Other programs write what transformers has fixed.
            keys.only("attention_bias", "true", |value| value == &json!(true))?;
            keys.only_false("mlp_bias")?;
            features.attention_bias = AttentionBias::Qkv;
        }
        LlamaType::Qwen3 => {
            features.attention_bias = of_key(keys.flag("attention_bias", false)?);
            keys.only_false("mlp_bias")?;
            features.qk_norm = true;
        }
    }
    Ok(features)
}

/// The window that every block's attention is confined to, if there is one.
fn window(keys: &ConfigKeys<'_>, kind: LlamaType, blocks: u32) -> Result<Option<u32>, ConfigError> {
    let found = keys.optional("sliding_window")?;
    let size = if keys.has("sliding_window") { found } else { Some(WINDOW) };
    let first = keys.optional("max_window_layers")?.unwrap_or(WINDOW_FIRST);
    let has_window = match kind {
        LlamaType::Llama => {
            keys.only("sliding_window", "null", |_| false)?;
            keys.only_false("use_sliding_window")?;
            false
        }
        LlamaType::Mistral => {
            keys.only("use_sliding_window", "true", |value| value == &json!(true))?;
            size.is_some()
        }
        LlamaType::Qwen2 | LlamaType::Qwen3 => {
            keys.flag("use_sliding_window", false)? && size.is_some()
        }
    };
    let of_block = |block: u32| match kind {
        LlamaType::Llama | LlamaType::Mistral => has_window,
        LlamaType::Qwen2 | LlamaType::Qwen3 => has_window && block >= first,
    };
    let windows = match keys.value("layer_types") {
        None => (0..blocks).map(of_block).collect(),
        Some(types) => layer_types(types, blocks)
            .ok_or_else(|| keys.wrong("layer_types", "an attention type for each layer"))?,
    };
    let count = windows.iter().filter(|is_sliding| **is_sliding).count();
    if count > 0 && count < windows.len() {
        let key = if keys.has("layer_types") { "layer_types" } else { "max_window_layers" };
        return Err(keys.unsupported(key, "the same attention in all layers"));
    }
    if count > 0 && !has_window {
        return Err(keys.unsupported("layer_types", "\"full_attention\" without a window"));
    }
    Ok(size.filter(|_| count > 0))
}

/// Whether each block attends to a window.
fn layer_types(types: &Value, blocks: u32) -> Option<Vec<bool>> {
    let types = types.as_array().filter(|types| types.len() == blocks as usize)?;
    let windows = types.iter().map(|name| match name.as_str() {
        Some("full_attention") => Some(false),
        Some("sliding_attention") => Some(true),
        Some(_) | None => None,
    });
    windows.collect()
}

/// The base of rotary frequencies and their scaling: `rope_theta` and `rope_scaling`, or both in
/// `rope_parameters`.
fn rope(keys: &ConfigKeys<'_>) -> Result<(f64, Option<RopeScaling>), ConfigError> {
    let whole = |value: &Value| value.as_f64() == Some(1.0);
    keys.only("partial_rotary_factor", "1.0", whole)?;
    let theta = keys.optional_float("rope_theta")?;
    let scaling = keys.object("rope_scaling")?;
    let parameters = keys.object("rope_parameters")?;
    let older = scaling.map(|map| rope_object("rope_scaling.", map)).transpose()?;
    let newer = parameters.map(|map| rope_object("rope_parameters.", map)).transpose()?;
    let scaling = match (older, newer) {
        (Some((_, older)), Some((_, newer))) if older != newer => {
            return Err(contradiction(keys, "rope_scaling", "rope_parameters"));
        }
        (older, newer) => newer.or(older).and_then(|(_, scaling)| scaling),
    };
    let thetas = [
        ("rope_theta", theta),
        ("rope_parameters", newer.and_then(|(theta, _)| theta)),
        ("rope_scaling", older.and_then(|(theta, _)| theta)),
    ];
    let mut named = thetas.into_iter().filter_map(|(key, theta)| Some((key, theta?)));
    let Some((key, theta)) = named.next() else { return Ok((ROPE_THETA, scaling)) };
    match named.find(|(_, other)| *other != theta) {
        Some((other, _)) => Err(contradiction(keys, key, other)),
        None => Ok((theta, scaling)),
    }
}

fn contradiction(keys: &ConfigKeys<'_>, key: &str, other: &str) -> ConfigError {
    ConfigError::Contradiction {
        key: keys.name(key),
        found: keys.text(key),
        other: keys.name(other),
        expected: keys.text(other),
    }
}

/// The base, if it is there, and the scaling that an object of rotary parameters describes.
fn rope_object(
    prefix: &'static str,
    map: &Map<String, Value>,
) -> Result<(Option<f64>, Option<RopeScaling>), ConfigError> {
    let keys = ConfigKeys::within(prefix, map);
    keys.only("partial_rotary_factor", "1.0", |value| value.as_f64() == Some(1.0))?;
    let theta = keys.optional_float("rope_theta")?;
    let number = |key| keys.optional_float(key)?.ok_or_else(|| keys.wrong(key, "a number"));
    // Its name in files before transformers 4.43.
    let older = keys.value("type");
    let newer = keys.value("rope_type");
    // Which of the two counts differs between releases and models.
    if newer.zip(older).is_some_and(|(newer, older)| newer != older) {
        return Err(contradiction(&keys, "rope_type", "type"));
    }
    let scaling = match newer.or(older).map(Value::as_str) {
        None | Some(Some("default")) => None,
        Some(Some("linear")) => Some(RopeScaling::Linear { factor: number("factor")? }),
        Some(Some("llama3")) => Some(RopeScaling::Llama3 {
            factor: number("factor")?,
            low_freq_factor: number("low_freq_factor")?,
            high_freq_factor: number("high_freq_factor")?,
            original_positions: keys.size("original_max_position_embeddings")?,
        }),
        Some(_) => {
            let key = if keys.has("rope_type") { "rope_type" } else { "type" };
            return Err(keys.unsupported(key, "\"default\", \"linear\" or \"llama3\""));
        }
    };
    keys.check_all_read()?;
    Ok((theta, scaling))
}

#[cfg(test)]
mod tests;
