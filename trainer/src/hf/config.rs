//! The `config.json` of a Hugging Face model.

use serde_json::{Map, Value, json};

use crate::model::{Family, ModelConfig};

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It is no JSON object.
    #[error("config.json is no JSON object: {0}")]
    Json(#[from] serde_json::Error),
    /// A key is missing or of another type.
    #[error("config.json: expected `{key}` to be {expected}, found {found}")]
    Key {
        /// Name of the key in `config.json`.
        key: &'static str,
        /// What it should be.
        expected: &'static str,
        /// The value that the key has.
        found: String,
    },
    /// A key has a value that is not supported.
    #[error("config.json: `{key}` is {found}; only {supported} is supported")]
    Unsupported {
        /// Name of the key in `config.json`.
        key: &'static str,
        /// Value that stands there.
        found: String,
        /// What could stand there.
        supported: &'static str,
    },
}

/// The largest size taken for one: beyond it a file is broken sooner than a model that large.
const SIZE_MAX: u32 = 1 << 24;
const BLOCKS_MAX: u32 = 10_000;

struct ConfigKeys<'a>(&'a Map<String, Value>);

impl ConfigKeys<'_> {
    fn text(&self, key: &'static str) -> String {
        self.0.get(key).map_or("nothing".to_owned(), Value::to_string)
    }

    /// A whole number, or `None` if the key is missing or null.
    fn optional(&self, key: &'static str) -> Result<Option<u32>, ConfigError> {
        match self.0.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match value.as_u64().map(u32::try_from) {
                Some(Ok(size)) if size <= SIZE_MAX => Ok(Some(size)),
                Some(_) | None => Err(self.wrong(key, "a whole number up to 16777216")),
            },
        }
    }

    /// The number of blocks, each of which costs memory before anything is allocated.
    fn blocks(&self, key: &'static str) -> Result<u32, ConfigError> {
        let blocks = self.size(key)?;
        let wrong = || self.wrong(key, "a whole number up to 10000");
        (blocks <= BLOCKS_MAX).then_some(blocks).ok_or_else(wrong)
    }

    fn wrong(&self, key: &'static str, expected: &'static str) -> ConfigError {
        ConfigError::Key { key, expected, found: self.text(key) }
    }

    fn size(&self, key: &'static str) -> Result<u32, ConfigError> {
        self.optional(key)?.ok_or_else(|| self.wrong(key, "a whole number"))
    }

    fn float(&self, key: &'static str, default: f64) -> Result<f64, ConfigError> {
        match self.0.get(key) {
            None | Some(Value::Null) => Ok(default),
            Some(value) => value.as_f64().ok_or_else(|| self.wrong(key, "a number")),
        }
    }

    fn flag(&self, key: &'static str, default: bool) -> Result<bool, ConfigError> {
        match self.0.get(key) {
            None | Some(Value::Null) => Ok(default),
            Some(value) => value.as_bool().ok_or_else(|| self.wrong(key, "true or false")),
        }
    }

    /// Refuses anything but `supported` or nothing at all.
    fn only(
        &self,
        key: &'static str,
        supported: &'static str,
        is_supported: impl Fn(&Value) -> bool,
    ) -> Result<(), ConfigError> {
        match self.0.get(key) {
            Some(value) if !value.is_null() && !is_supported(value) => {
                Err(ConfigError::Unsupported { key, found: value.to_string(), supported })
            }
            Some(_) | None => Ok(()),
        }
    }

    fn only_false(&self, key: &'static str) -> Result<(), ConfigError> {
        self.only(key, "false", |value| value == &json!(false))
    }
}

/// The model that a `config.json` describes.
///
/// # Errors
/// If it is no configuration, or of a model that is not supported.
pub fn parse_config(text: &str) -> Result<ModelConfig, ConfigError> {
    let map: Map<String, Value> = serde_json::from_str(text)?;
    let keys = ConfigKeys(&map);
    match map.get("model_type").and_then(Value::as_str) {
        Some("gpt2") => parse_gpt2(&keys),
        Some("llama") => parse_llama(&keys),
        Some("mistral") => parse_mistral(&keys),
        Some(_) | None => Err(ConfigError::Unsupported {
            key: "model_type",
            found: keys.text("model_type"),
            supported: "\"gpt2\", \"llama\" or \"mistral\"",
        }),
    }
}

fn parse_gpt2(keys: &ConfigKeys<'_>) -> Result<ModelConfig, ConfigError> {
    let tanh_gelu = |value: &Value| value == "gelu_new" || value == "gelu_pytorch_tanh";
    keys.only("activation_function", "\"gelu_new\"", tanh_gelu)?;
    keys.only_false("scale_attn_by_inverse_layer_idx")?;
    keys.only("scale_attn_weights", "true", |value| value == &json!(true))?;
    let width = keys.size("n_embd")?;
    let heads = keys.size("n_head")?;
    Ok(ModelConfig {
        family: Family::Gpt2,
        blocks: keys.blocks("n_layer")?,
        width,
        heads,
        kv_heads: heads,
        head_width: width / heads.max(1),
        mlp_width: keys.optional("n_inner")?.unwrap_or(4 * width),
        vocabulary: keys.size("vocab_size")?,
        sliding_window: None,
        positions: keys.size("n_positions")?,
        norm_epsilon: keys.float("layer_norm_epsilon", 1e-5)? as f32,
        rope_theta: 10_000.0,
        tied: keys.flag("tie_word_embeddings", true)?,
    })
}

fn parse_llama(keys: &ConfigKeys<'_>) -> Result<ModelConfig, ConfigError> {
    keys.only("hidden_act", "\"silu\"", |value| value == "silu")?;
    keys.only_false("attention_bias")?;
    keys.only_false("mlp_bias")?;
    keys.only("rope_scaling", "null", |_| false)?;
    let empty = Map::new();
    let rope = keys.0.get("rope_parameters").and_then(Value::as_object).unwrap_or(&empty);
    let rope = ConfigKeys(rope);
    rope.only("rope_type", "\"default\"", |value| value == "default")?;
    let width = keys.size("hidden_size")?;
    let heads = keys.size("num_attention_heads")?;
    Ok(ModelConfig {
        family: Family::Llama,
        blocks: keys.blocks("num_hidden_layers")?,
        width,
        heads,
        kv_heads: keys.optional("num_key_value_heads")?.unwrap_or(heads),
        head_width: keys.optional("head_dim")?.unwrap_or(width / heads.max(1)),
        mlp_width: keys.size("intermediate_size")?,
        vocabulary: keys.size("vocab_size")?,
        sliding_window: None,
        positions: keys.size("max_position_embeddings")?,
        norm_epsilon: keys.float("rms_norm_eps", 1e-6)? as f32,
        rope_theta: keys.float("rope_theta", rope.float("rope_theta", 10_000.0)?)?,
        tied: keys.flag("tie_word_embeddings", false)?,
    })
}

/// A Llama whose queries see no more keys than a window has.
fn parse_mistral(keys: &ConfigKeys<'_>) -> Result<ModelConfig, ConfigError> {
    let sliding_window = keys.optional("sliding_window")?;
    Ok(ModelConfig { sliding_window, ..parse_llama(keys)? })
}

/// An f32 as the shortest decimal that reads back as it.
fn decimal(x: f32) -> Value {
    x.to_string().parse::<f64>().map_or(Value::Null, Value::from)
}

/// The `config.json` of a model. It names no special tokens, because bytes have none.
///
/// # Panics
/// Never: the parts are plain numbers.
#[must_use]
pub fn config_json(model: &ModelConfig) -> String {
    let mut value = match model.family {
        Family::Gpt2 => json!({
            "architectures": ["GPT2LMHeadModel"],
            "model_type": "gpt2",
            "activation_function": "gelu_new",
            "n_embd": model.width,
            "n_head": model.heads,
            "n_inner": model.mlp_width,
            "n_layer": model.blocks,
            "n_positions": model.positions,
            "layer_norm_epsilon": decimal(model.norm_epsilon),
            "vocab_size": model.vocabulary,
            "attn_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "resid_pdrop": 0.0,
            "tie_word_embeddings": model.tied,
            "bos_token_id": null,
            "eos_token_id": null,
            "dtype": "float32",
        }),
        Family::Llama => json!({
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_act": "silu",
            "hidden_size": model.width,
            "intermediate_size": model.mlp_width,
            "num_attention_heads": model.heads,
            "num_key_value_heads": model.kv_heads,
            "num_hidden_layers": model.blocks,
            "head_dim": model.head_width,
            "max_position_embeddings": model.positions,
            "rms_norm_eps": decimal(model.norm_epsilon),
            "rope_theta": model.rope_theta,
            "attention_bias": false,
            "mlp_bias": false,
            "vocab_size": model.vocabulary,
            "tie_word_embeddings": model.tied,
            "bos_token_id": null,
            "eos_token_id": null,
            "dtype": "float32",
        }),
    };
    if let Some(window) = model.sliding_window {
        value["architectures"] = json!(["MistralForCausalLM"]);
        value["model_type"] = json!("mistral");
        value["sliding_window"] = json!(window);
    }
    serde_json::to_string_pretty(&value).expect("plain numbers are JSON") + "\n"
}
