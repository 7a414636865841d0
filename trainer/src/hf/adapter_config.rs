//! `adapter_config.json` of PEFT, read: what of it this program trains, and what it refuses by its key.

use serde_json::{Map, Value};

use crate::model::{LoraInit, LoraScaling, LoraSettings};

/// Keys that say nothing of what is computed, or of a method that another key asks for.
const UNREAD: [&str; 10] = [
    "auto_mapping",
    "base_model_name_or_path",
    "fan_in_fan_out",
    "inference_mode",
    "loftq_config",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "revision",
    "task_type",
];

/// Adapters as PEFT describes them.
#[derive(Clone, Debug, PartialEq)]
pub struct PeftAdapters {
    /// The adapters.
    pub settings: LoraSettings,
    /// The share of inputs of adapters that PEFT drops while it trains.
    pub dropout: f64,
}

/// Why an `adapter_config.json` describes no adapters that can be trained.
#[derive(Debug, thiserror::Error)]
pub enum AdapterConfigError {
    /// It is no JSON object.
    #[error("it is no JSON object: {0}")]
    Json(#[from] serde_json::Error),
    /// A key is missing.
    #[error("it has no {key}")]
    Missing {
        /// Name of the key.
        key: &'static str,
    },
    /// A key has another value than is understood.
    #[error("{key} is {found}, expected {expected}")]
    Value {
        /// Name of the key.
        key: String,
        /// What is understood.
        expected: &'static str,
        /// The value, as JSON.
        found: String,
    },
    /// A key asks for what is not known.
    #[error("{key} = {found} is not supported")]
    Unknown {
        /// Name of the key.
        key: String,
        /// The value, as JSON.
        found: String,
    },
}

/// The adapters that `adapter_config.json` describes. A key that is not understood may stand there if it asks
/// for nothing: null, false, or empty.
///
/// # Errors
/// If it is none, or describes what this program does not train.
pub fn parse_adapter_config(text: &str) -> Result<PeftAdapters, AdapterConfigError> {
    let mut keys = PeftKeys(serde_json::from_str(text)?);
    keys.expect_word("peft_type", &["LORA"], "\"LORA\": no other method of peft")?;
    if keys.0.contains_key("bias") {
        keys.expect_word("bias", &["none"], "\"none\": biases are frozen")?;
    }
    let rank = keys.needed("r", "a number from 1", |value| {
        value.as_u64().and_then(|rank| u32::try_from(rank).ok()).filter(|rank| *rank > 0)
    })?;
    let above_zero = |value: &Value| value.as_f64().filter(|alpha| *alpha > 0.0);
    let alpha = keys.needed("lora_alpha", "a number above 0", above_zero)?;
    let targets = keys.needed("target_modules", "a list of names, or all-linear", targets)?;
    let flag = |value: &Value| value.as_bool().or(value.is_null().then_some(false));
    let is_root = keys.optional("use_rslora", "true or false", flag)?.unwrap_or(false);
    let init = keys.optional("init_lora_weights", "true, false or gaussian", init)?;
    let share = |value: &Value| value.as_f64().filter(|share| (0.0..1.0).contains(share));
    let dropout = keys.optional("lora_dropout", "a number from 0, below 1", share)?;
    keys.check_rest()?;
    let scaling = if is_root { LoraScaling::RsLora } else { LoraScaling::Standard };
    let init = init.unwrap_or_default();
    let settings = LoraSettings { rank, alpha, scaling, init, targets };
    Ok(PeftAdapters { settings, dropout: dropout.unwrap_or(0.0) })
}

/// A text other than that is an expression over names.
fn targets(value: &Value) -> Option<Vec<String>> {
    match value {
        Value::String(all) if all == "all-linear" => Some(vec![all.clone()]),
        Value::Array(names) if !names.is_empty() => {
            names.iter().map(|name| name.as_str().map(str::to_owned)).collect()
        }
        Value::Null
        | Value::Bool(_)
        | Value::Number(_)
        | Value::String(_)
        | Value::Array(_)
        | Value::Object(_) => None,
    }
}

/// How adapters began, which is over. Other methods began with another base as well.
fn init(value: &Value) -> Option<LoraInit> {
    match value {
        Value::Null | Value::Bool(_) => Some(LoraInit::Kaiming),
        Value::String(word) if word == "gaussian" => Some(LoraInit::Gaussian),
        Value::Number(_) | Value::String(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

/// The keys that were not read yet.
struct PeftKeys(Map<String, Value>);

impl PeftKeys {
    fn optional<T>(
        &mut self,
        key: &str,
        expected: &'static str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<T>, AdapterConfigError> {
        let Some(value) = self.0.remove(key) else { return Ok(None) };
        let wrong =
            || AdapterConfigError::Value { key: key.to_owned(), expected, found: shown(&value) };
        read(&value).map(Some).ok_or_else(wrong)
    }

    fn needed<T>(
        &mut self,
        key: &'static str,
        expected: &'static str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<T, AdapterConfigError> {
        self.optional(key, expected, read)?.ok_or(AdapterConfigError::Missing { key })
    }

    fn expect_word(
        &mut self,
        key: &'static str,
        words: &[&str],
        expected: &'static str,
    ) -> Result<(), AdapterConfigError> {
        let is_known = |value: &Value| value.as_str().filter(|word| words.contains(word)).map(drop);
        self.needed(key, expected, is_known)
    }

    fn check_rest(self) -> Result<(), AdapterConfigError> {
        let asks =
            |(key, value): &(String, Value)| !UNREAD.contains(&&key[..]) && !is_nothing(value);
        match self.0.into_iter().find(asks) {
            Some((key, value)) => Err(AdapterConfigError::Unknown { key, found: shown(&value) }),
            None => Ok(()),
        }
    }
}

fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(items) => items.is_empty(),
        Value::String(text) => text.is_empty(),
        Value::Bool(true) | Value::Number(_) => false,
    }
}

/// A value as JSON, cut short.
fn shown(value: &Value) -> String {
    const CHARS_MAX: usize = 60;
    let text = value.to_string();
    match text.char_indices().nth(CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// As peft 0.21 writes it for GPT-2.
    fn peft() -> Value {
        json!({
            "alora_invocation_tokens": null, "alpha_pattern": {}, "arrow_config": null, "auto_mapping": null,
            "base_model_name_or_path": "gpt2", "bias": "none", "corda_config": null,
            "ensure_weight_tying": false, "eva_config": null, "exclude_modules": null, "fan_in_fan_out": true,
            "inference_mode": true, "init_lora_weights": true, "layer_replication": null,
            "layers_pattern": null, "layers_to_transform": null, "loftq_config": {}, "lora_alpha": 16,
            "lora_bias": false, "lora_dropout": 0.05, "megatron_config": null, "megatron_core": "megatron.core",
            "modules_to_save": null, "peft_type": "LORA", "peft_version": "0.21.2", "qalora_group_size": 16,
            "r": 8, "rank_pattern": {}, "revision": null, "target_modules": ["c_attn", "c_proj"],
            "target_parameters": null, "task_type": "CAUSAL_LM", "trainable_token_indices": null,
            "use_dora": false, "use_qalora": false, "use_rslora": false
        })
    }

    fn with(key: &str, value: Value) -> Result<PeftAdapters, AdapterConfigError> {
        let mut config = peft();
        config[key] = value;
        parse_adapter_config(&config.to_string())
    }

    #[test]
    fn what_peft_writes_is_read() {
        let read = parse_adapter_config(&peft().to_string()).expect("it is LoRA");
        let LoraSettings { rank, alpha, scaling, init, targets } = read.settings;
        assert_eq!(
            (rank, alpha, scaling, init),
            (8, 16.0, LoraScaling::Standard, LoraInit::Kaiming)
        );
        assert_eq!((targets, read.dropout), (vec!["c_attn".to_owned(), "c_proj".to_owned()], 0.05));
        let root = with("use_rslora", json!(true)).expect("it is known").settings;
        assert_eq!(root.scaling, LoraScaling::RsLora);
        let gaussian = with("init_lora_weights", json!("gaussian")).expect("it is known");
        assert_eq!(gaussian.settings.init, LoraInit::Gaussian);
        let all = with("target_modules", json!("all-linear")).expect("it is known");
        assert_eq!(all.settings.targets, ["all-linear"]);
        assert!(with("a_key_of_tomorrow", json!([])).is_ok(), "it asks for nothing");
    }

    #[test]
    fn what_is_not_understood_is_refused_by_the_name_of_its_key() {
        for (key, value) in [
            ("peft_type", json!("LOHA")),
            ("bias", json!("all")),
            ("r", json!(0)),
            ("r", json!(1.5)),
            ("r", json!(1_u64 << 40)),
            ("lora_alpha", json!(-1)),
            ("lora_alpha", json!("16")),
            ("lora_dropout", json!(1)),
            ("target_modules", json!("h\\.[0-3]\\..*")),
            ("target_modules", json!([])),
            ("target_modules", json!(["c_attn", 3])),
            ("use_rslora", json!("yes")),
            ("init_lora_weights", json!("pissa")),
            ("use_dora", json!(true)),
            ("modules_to_save", json!(["lm_head"])),
            ("rank_pattern", json!({ "c_attn": 4 })),
            ("layers_to_transform", json!([1])),
            ("a_key_of_tomorrow", json!(1)),
        ] {
            let error = with(key, value.clone()).expect_err("it is not trained");
            assert!(error.to_string().contains(key), "{key} = {value}: {error}");
        }
        for key in ["peft_type", "r", "lora_alpha", "target_modules"] {
            let mut config = peft();
            config.as_object_mut().expect("an object").remove(key);
            let found = parse_adapter_config(&config.to_string());
            assert!(matches!(found, Err(AdapterConfigError::Missing { key: of }) if of == key));
        }
        for text in ["", "[]", "{\"r\": 8", "3"] {
            assert!(
                matches!(parse_adapter_config(text), Err(AdapterConfigError::Json(_))),
                "{text}"
            );
        }
    }
}
