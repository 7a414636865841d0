//! The keys of a `config.json`, of which none is passed over: one that nothing reads, and that is not
//! known to change nothing of training, is an error.

use std::cell::RefCell;
use std::collections::BTreeSet;

use serde_json::{Map, Value};

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It is no JSON object, or an object in it has a key twice.
    #[error("config.json is no JSON object: {0}")]
    Json(#[from] serde_json::Error),
    /// A key is missing or of another type.
    #[error("config.json: expected `{key}` to be {expected}, found {found}")]
    Key {
        /// Name of the key in `config.json`.
        key: String,
        /// What it should be.
        expected: &'static str,
        /// The value that the key has.
        found: String,
    },
    /// A key has a value that is not supported.
    #[error("config.json: `{key}` is {found}; only {supported} is supported")]
    Unsupported {
        /// Name of the key in `config.json`.
        key: String,
        /// Value that stands there.
        found: String,
        /// What could stand there.
        supported: &'static str,
    },
    /// Two keys contradict each other.
    #[error("config.json: `{key}` is {found}, and `{other}` has {expected}; leave out one of them")]
    Contradiction {
        /// Name of the key.
        key: String,
        /// Its value.
        found: String,
        /// Name of the other key.
        other: String,
        /// The value that follows from the other key.
        expected: String,
    },
    /// A key that nothing reads.
    #[error(
        "config.json: `{key}` = {found} is not understood; remove the key if the model is the same \
         without it"
    )]
    Unknown {
        /// Name of the key in `config.json`.
        key: String,
        /// Value that stands there.
        found: String,
    },
}

/// The largest size that is read: beyond it a file is broken sooner than a model that large.
const SIZE_MAX: u32 = 1 << 24;
const BLOCKS_MAX: u32 = 10_000;
/// Characters of a value that an error shows.
const SHOWN_MAX: usize = 100;

/// Keys that change no weight of a model that is trained: names and versions, how it is run or
/// generates text, heads for other tasks, and what older releases and other programs wrote.
const WITHOUT_EFFECT: [&str; 77] = [
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_commit_hash",
    "_name_or_path",
    "_num_labels",
    "architectures",
    "attn_implementation",
    "bad_words_ids",
    "begin_suppress_tokens",
    "bos_token_id",
    "chunk_size_feed_forward",
    "cross_attention_hidden_size",
    "decoder_start_token_id",
    "diversity_penalty",
    "do_sample",
    "dtype",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "eos_token_id",
    "exponential_decay_length_penalty",
    "finetuning_task",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "gradient_checkpointing",
    "id2label",
    "initializer_range",
    "is_decoder",
    "is_llama_config",
    "label2id",
    "length_penalty",
    "max_length",
    "max_sequence_length",
    "min_length",
    "model_type",
    "n_special",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_labels",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_past",
    "output_scores",
    "pad_token_id",
    "predict_special_tokens",
    "prefix",
    "pretraining_tp",
    "problem_type",
    "remove_invalid_values",
    "reorder_and_upcast_attn",
    "repetition_penalty",
    "return_dict",
    "return_dict_in_generate",
    "sep_token_id",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    "suppress_tokens",
    "task_specific_params",
    "temperature",
    "tf_legacy_loss",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torch_dtype",
    "torchscript",
    "transformers.js_config",
    "transformers_version",
    "typical_p",
    "unk_token_id",
    "unsloth_fixed",
    "unsloth_version",
    "use_bfloat16",
    "use_cache",
];

/// Shares of activations that a forward pass of transformers leaves out.
const DROPOUTS: [&str; 7] = [
    "attention_dropout",
    "attn_pdrop",
    "embd_pdrop",
    "hidden_dropout",
    "hidden_dropout_prob",
    "mlp_dropout",
    "resid_pdrop",
];

/// The dropout that a `config.json` has, by its keys, and that training leaves out.
#[must_use]
pub fn dropout(text: &str) -> Vec<(String, f64)> {
    let map: Map<String, Value> = serde_json::from_str(text).unwrap_or_default();
    let rate = |key: &str| map.get(key).and_then(Value::as_f64).filter(|rate| *rate != 0.0);
    DROPOUTS.iter().filter_map(|key| Some(((*key).to_owned(), rate(key)?))).collect()
}

/// The keys of an object, and which of them were read.
pub(super) struct ConfigKeys<'a> {
    map: &'a Map<String, Value>,
    /// The key of the object within the file, with a point behind it.
    prefix: &'static str,
    read: RefCell<BTreeSet<&'static str>>,
}

impl<'a> ConfigKeys<'a> {
    /// Of the file itself.
    pub(super) const fn new(map: &'a Map<String, Value>) -> Self {
        Self::within("", map)
    }

    /// Of an object in it.
    pub(super) const fn within(prefix: &'static str, map: &'a Map<String, Value>) -> Self {
        Self { map, prefix, read: RefCell::new(BTreeSet::new()) }
    }

    /// The value of a key, or `None` if it is missing or null.
    pub(super) fn value(&self, key: &'static str) -> Option<&'a Value> {
        self.read.borrow_mut().insert(key);
        self.map.get(key).filter(|value| !value.is_null())
    }

    /// Whether the key is there, though it may be null.
    pub(super) fn has(&self, key: &'static str) -> bool {
        self.map.contains_key(key)
    }

    /// The name of a key within the file.
    pub(super) fn name(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    /// The value of a key as an error shows it.
    pub(super) fn text(&self, key: &str) -> String {
        let text = self.map.get(key).map_or("nothing".to_owned(), Value::to_string);
        match text.char_indices().nth(SHOWN_MAX) {
            Some((end, _)) => format!("{}…", &text[..end]),
            None => text,
        }
    }

    pub(super) fn wrong(&self, key: &'static str, expected: &'static str) -> ConfigError {
        ConfigError::Key { key: self.name(key), expected, found: self.text(key) }
    }

    pub(super) fn unsupported(&self, key: &'static str, supported: &'static str) -> ConfigError {
        ConfigError::Unsupported { key: self.name(key), found: self.text(key), supported }
    }

    /// A whole number, or `None` if the key is missing or null.
    pub(super) fn optional(&self, key: &'static str) -> Result<Option<u32>, ConfigError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        match value.as_u64().map(u32::try_from) {
            Some(Ok(size)) if size <= SIZE_MAX => Ok(Some(size)),
            Some(_) | None => Err(self.wrong(key, "a whole number up to 16777216")),
        }
    }

    /// The number of blocks, each of which costs memory before anything is allocated.
    pub(super) fn blocks(&self, key: &'static str) -> Result<u32, ConfigError> {
        let blocks = self.size(key)?;
        let wrong = || self.wrong(key, "a whole number up to 10000");
        (blocks <= BLOCKS_MAX).then_some(blocks).ok_or_else(wrong)
    }

    pub(super) fn size(&self, key: &'static str) -> Result<u32, ConfigError> {
        self.optional(key)?.ok_or_else(|| self.wrong(key, "a whole number"))
    }

    /// A number, or `None` if the key is missing or null.
    pub(super) fn optional_float(&self, key: &'static str) -> Result<Option<f64>, ConfigError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        value.as_f64().map(Some).ok_or_else(|| self.wrong(key, "a number"))
    }

    pub(super) fn float(&self, key: &'static str, default: f64) -> Result<f64, ConfigError> {
        Ok(self.optional_float(key)?.unwrap_or(default))
    }

    pub(super) fn flag(&self, key: &'static str, default: bool) -> Result<bool, ConfigError> {
        let Some(value) = self.value(key) else { return Ok(default) };
        value.as_bool().ok_or_else(|| self.wrong(key, "true or false"))
    }

    /// An object, or an empty one if the key is missing or null.
    pub(super) fn object(
        &self,
        key: &'static str,
    ) -> Result<Option<&'a Map<String, Value>>, ConfigError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        value.as_object().map(Some).ok_or_else(|| self.wrong(key, "an object"))
    }

    /// Refuses anything but `supported` or nothing at all.
    pub(super) fn only(
        &self,
        key: &'static str,
        supported: &'static str,
        is_supported: impl Fn(&Value) -> bool,
    ) -> Result<(), ConfigError> {
        match self.value(key) {
            Some(value) if !is_supported(value) => Err(self.unsupported(key, supported)),
            Some(_) | None => Ok(()),
        }
    }

    pub(super) fn only_false(&self, key: &'static str) -> Result<(), ConfigError> {
        self.only(key, "false", |value| value == &Value::Bool(false))
    }

    /// Refuses the first key that nothing has read and that does matter. Dropout is
    /// [noted](super::dropout) and not refused: weights that were trained with it are the same model.
    pub(super) fn check_all_read(&self) -> Result<(), ConfigError> {
        for (key, value) in self.map {
            if self.read.borrow().contains(key.as_str()) || WITHOUT_EFFECT.contains(&key.as_str()) {
                continue;
            }
            let is_rate = value.is_null() || value.is_number();
            if DROPOUTS.contains(&key.as_str()) && is_rate {
                continue;
            }
            return Err(ConfigError::Unknown { key: self.name(key), found: self.text(key) });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_read_or_known_to_have_no_effect_or_refused_by_name() {
        assert!(WITHOUT_EFFECT.is_sorted() && DROPOUTS.is_sorted());
        let check = |text: &str, expected: Option<&str>| {
            let map: Map<String, Value> = serde_json::from_str(text).expect("an object");
            let keys = ConfigKeys::within("rope.", &map);
            assert_eq!(keys.size("width").ok(), Some(4));
            let found = keys.check_all_read().map_err(|error| error.to_string());
            match expected {
                None => assert_eq!(found, Ok(()), "{text}"),
                Some(part) => assert!(found.as_ref().is_err_and(|e| e.contains(part)), "{found:?}"),
            }
        };
        check(r#"{"width": 4, "use_cache": true, "attn_pdrop": 0, "resid_pdrop": 0.0}"#, None);
        check(r#"{"width": 4, "attention_dropout": null}"#, None);
        check(r#"{"width": 4, "attn_pdrop": 0.1}"#, None);
        check(r#"{"width": 4, "attn_pdrop": "0"}"#, Some("`rope.attn_pdrop` = \"0\" is not"));
        check(r#"{"width": 4, "hue": [1]}"#, Some("`rope.hue` = [1] is not understood"));
        check(r#"{"width": 4, "hue": null}"#, Some("`rope.hue`"));
    }

    #[test]
    fn dropout_is_what_is_not_zero() {
        let text = r#"{"attn_pdrop": 0.1, "embd_pdrop": 0.0, "resid_pdrop": null}"#;
        assert_eq!(dropout(text), [("attn_pdrop".to_owned(), 0.1)]);
        assert_eq!(dropout("no JSON"), []);
    }
}
