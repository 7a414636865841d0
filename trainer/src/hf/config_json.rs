//! The `config.json` of a model of ours: the model type of transformers that has its features.

use serde_json::{Value, json};

use crate::model::{AttentionBias, Family, ModelConfig, RopeScaling};

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
    serde_json::to_string_pretty(&config_value(model)).expect("plain numbers are JSON") + "\n"
}

pub(super) fn config_value(model: &ModelConfig) -> Value {
    match model.family {
        Family::Gpt2 => gpt2(model),
        Family::Llama => llama(model),
    }
}

fn gpt2(model: &ModelConfig) -> Value {
    json!({
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
    })
}

/// The type, its class, and the keys that only it has.
fn type_keys(model: &ModelConfig) -> Vec<(&'static str, Value)> {
    let features = &model.features;
    let attention_bias = ("attention_bias", json!(features.attention_bias == AttentionBias::All));
    let window = ("sliding_window", json!(model.sliding_window));
    // Of both Qwens the window is that of the layers from max_window_layers on.
    let is_used = ("use_sliding_window", json!(model.sliding_window.is_some()));
    let first = ("max_window_layers", json!(0));
    let (class, name, keys) = if features.qk_norm {
        ("Qwen3ForCausalLM", "qwen3", vec![attention_bias, is_used, first, window])
    } else if features.attention_bias == AttentionBias::Qkv {
        ("Qwen2ForCausalLM", "qwen2", vec![is_used, first, window])
    } else if model.sliding_window.is_some() {
        ("MistralForCausalLM", "mistral", vec![window])
    } else {
        let mlp_bias = ("mlp_bias", json!(features.mlp_bias));
        ("LlamaForCausalLM", "llama", vec![attention_bias, mlp_bias])
    };
    let names = [("architectures", json!([class])), ("model_type", json!(name))];
    names.into_iter().chain(keys).collect()
}

fn llama(model: &ModelConfig) -> Value {
    let mut value = json!({
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
        "vocab_size": model.vocabulary,
        "tie_word_embeddings": model.tied,
        "bos_token_id": null,
        "eos_token_id": null,
        "dtype": "float32",
    });
    for (key, of_type) in type_keys(model) {
        value[key] = of_type;
    }
    if let Some(scaling) = model.features.rope_scaling {
        value["rope_scaling"] = rope_scaling(scaling);
    }
    value
}

fn rope_scaling(scaling: RopeScaling) -> Value {
    match scaling {
        RopeScaling::Linear { factor } => json!({ "rope_type": "linear", "factor": factor }),
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_positions } => {
            json!({
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": low_freq_factor,
                "high_freq_factor": high_freq_factor,
                "original_max_position_embeddings": original_positions,
            })
        }
    }
}
