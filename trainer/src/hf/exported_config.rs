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

    /// Each with its key.
    fn named(&self) -> [(&'static str, &Value); 3] {
        [("bos_token_id", &self.bos), ("eos_token_id", &self.eos), ("pad_token_id", &self.pad)]
    }

    /// Those that there are, each with its key.
    fn known(&self) -> impl Iterator<Item = (&'static str, &Value)> {
        self.named().into_iter().filter(|(_, id)| !id.is_null())
    }
}

/// The `config.json` of a model that a run has trained, with those of these ids that there are.
///
/// # Panics
/// Never: the parts are plain numbers.
#[must_use]
pub fn trained_config_json(model: &ModelConfig, ids: &SpecialTokenIds) -> String {
    let mut keys = config_value(model);
    for (key, id) in ids.known() {
        keys[key] = id.clone();
    }
    serde_json::to_string_pretty(&keys).expect("plain numbers are JSON") + "\n"
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
    for (key, id) in ids.named() {
        keys[key] = id.clone();
    }
    // Programs older than transformers 4.56 read the type by its older name.
    for key in ["dtype", "torch_dtype"] {
        keys[key] = json!(kind.torch_name());
    }
    serde_json::to_string_pretty(&keys).expect("plain numbers are JSON") + "\n"
}

/// The `generation_config.json` of a model with these special tokens.
///
/// # Panics
/// Never: the parts are plain numbers.
#[must_use]
pub fn generation_config_json(ids: &SpecialTokenIds) -> String {
    let mut keys = Map::new();
    keys.insert("_from_model_config".to_owned(), json!(true));
    keys.extend(ids.known().map(|(key, id)| (key.to_owned(), id.clone())));
    serde_json::to_string_pretty(&keys).expect("plain numbers are JSON") + "\n"
}
