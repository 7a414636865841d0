//! `config.json` and `generation_config.json` of a model that is written with its tokenizer.

use serde_json::{Map, Value, json};

use super::config_json::config_value;
use super::weight_type::WeightType;
use crate::model::ModelConfig;

/// The ids of special tokens, as `config.json` has them: a number, a list of numbers, or nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SpecialTokenIds {
    /// `bos_token_id`
    pub bos: Value,
    /// `eos_token_id`
    pub eos: Value,
    /// `pad_token_id`
    pub pad: Value,
}

impl SpecialTokenIds {
    /// Those that a `config.json` names; nothing where it is none.
    #[must_use]
    pub fn of_config(text: &str) -> Self {
        let keys: Map<String, Value> = serde_json::from_str(text).unwrap_or_default();
        let id = |key: &str| keys.get(key).cloned().unwrap_or_default();
        Self { bos: id("bos_token_id"), eos: id("eos_token_id"), pad: id("pad_token_id") }
    }
}

/// The `config.json` of a model whose weights are of this type.
///
/// # Panics
/// Never: the parts are plain numbers.
#[must_use]
pub fn exported_config_json(
    model: &ModelConfig,
    kind: WeightType,
    ids: &SpecialTokenIds,
) -> String {
    let mut keys = config_value(model);
    let SpecialTokenIds { bos, eos, pad } = ids.clone();
    let dtype = json!(kind.torch_name());
    // Programs older than transformers 4.56 read the type by its older name.
    let more = [
        ("bos_token_id", bos),
        ("eos_token_id", eos),
        ("pad_token_id", pad),
        ("dtype", dtype.clone()),
        ("torch_dtype", dtype),
    ];
    for (key, value) in more {
        keys[key] = value;
    }
    serde_json::to_string_pretty(&keys).expect("plain numbers are JSON") + "\n"
}

/// The `generation_config.json` of a model with these special tokens.
///
/// # Panics
/// Never: the parts are plain numbers.
#[must_use]
pub fn generation_config_json(ids: &SpecialTokenIds) -> String {
    let SpecialTokenIds { bos, eos, pad } = ids;
    let mut keys = Map::new();
    keys.insert("_from_model_config".to_owned(), json!(true));
    for (key, id) in [("bos_token_id", bos), ("eos_token_id", eos), ("pad_token_id", pad)] {
        if !id.is_null() {
            keys.insert(key.to_owned(), id.clone());
        }
    }
    serde_json::to_string_pretty(&keys).expect("plain numbers are JSON") + "\n"
}
