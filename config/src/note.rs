//! Notes on values of a configuration that are legal and yet may not be meant.

use std::fmt;
use std::fs;
use std::path::Path;

use zbelastic_trainer::hf::{ADAPTER_CONFIG, MODEL_CONFIG, dropout, parse_adapter_config};

use super::{RunConfig, WeightSource};

/// Something worth knowing before a run.
#[derive(Clone, Debug, PartialEq)]
pub enum ConfigNote {
    /// The run ends before its warm-up does.
    LongWarmup {
        /// Steps of the warm-up.
        warmup: u64,
        /// Steps of the run.
        steps: u64,
    },
    /// The learning rate rises where it should fall.
    RisingRate {
        /// The rate after warm-up.
        lr: f64,
        /// The rate at the end.
        lr_min: f64,
    },
    /// A model or adapters were trained with dropout, which training leaves out.
    Dropout {
        /// The file that says so: `config.json` or `adapter_config.json`.
        file: &'static str,
        /// Its key.
        key: String,
        /// The share of activations that were left out.
        rate: f64,
    },
    /// The folder's model knows fewer tokens than there are bytes.
    FewTokens {
        /// Tokens that the model knows.
        vocabulary: u32,
    },
    /// The folder's model knows tokens that no text read as bytes uses.
    ManyTokens {
        /// Tokens that the model knows.
        vocabulary: u32,
    },
}

/// Tokens that every text can be read with.
pub const BYTE_VALUES: u32 = 256;

/// The notes on `config`.
pub fn notes(config: &RunConfig) -> Vec<ConfigNote> {
    let warmup = config.optimizer.warmup;
    let steps = config.steps;
    let lr = config.optimizer.lr;
    let lr_min = config.optimizer.lr_min;
    let vocabulary = config.model.vocabulary;
    let from_folder = match config.weights {
        WeightSource::HuggingFace { .. } => true,
        WeightSource::Drawn => false,
    };
    let reads_bytes = config.tokens.is_bytes();
    let all = [
        (warmup > steps, ConfigNote::LongWarmup { warmup, steps }),
        (lr_min > lr, ConfigNote::RisingRate { lr, lr_min }),
        (
            from_folder && reads_bytes && vocabulary < BYTE_VALUES,
            ConfigNote::FewTokens { vocabulary },
        ),
        (
            from_folder && reads_bytes && vocabulary > BYTE_VALUES,
            ConfigNote::ManyTokens { vocabulary },
        ),
    ];
    let notes = all.into_iter().filter_map(|(holds, note)| holds.then_some(note));
    let notes = notes.chain(dropout_notes(&config.weights));
    notes.chain(adapter_dropout_note(config.adapters.as_deref())).collect()
}

fn dropout_notes(weights: &WeightSource) -> Vec<ConfigNote> {
    let folder = match weights {
        WeightSource::HuggingFace { folder } => folder,
        WeightSource::Drawn => return Vec::new(),
    };
    // It was read a moment ago; if it cannot be any more, the weights cannot be read either.
    let text = fs::read_to_string(folder.join(MODEL_CONFIG)).unwrap_or_default();
    let found = dropout(&text).into_iter();
    found.map(|(key, rate)| ConfigNote::Dropout { file: MODEL_CONFIG, key, rate }).collect()
}

/// PEFT drops inputs of adapters while it trains them, and at no other time (`torch.nn.Dropout`): what
/// trained adapters compute does not depend on it.
fn adapter_dropout_note(folder: Option<&Path>) -> Option<ConfigNote> {
    // It was read when the run began, and is not needed for what was recorded.
    let text = fs::read_to_string(folder?.join(ADAPTER_CONFIG)).ok()?;
    let rate = parse_adapter_config(&text).ok()?.dropout;
    let key = "lora_dropout".to_owned();
    (rate > 0.0).then_some(ConfigNote::Dropout { file: ADAPTER_CONFIG, key, rate })
}

impl fmt::Display for ConfigNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LongWarmup { warmup, steps } => write!(
                f,
                "optimizer.warmup = {warmup} is more than train.steps = {steps}: \
                 the learning rate rises to the end and never reaches optimizer.lr"
            ),
            Self::RisingRate { lr, lr_min } => write!(
                f,
                "optimizer.lr_min = {lr_min} is above optimizer.lr = {lr}: \
                 the learning rate rises after the warm-up"
            ),
            Self::Dropout { file, key, rate } => {
                write!(f, "{file} has {key} = {rate}: training has no dropout and leaves it out")
            }
            Self::FewTokens { vocabulary } => write!(
                f,
                "the model knows {vocabulary} tokens: text with bytes from {vocabulary} on \
                 cannot be read"
            ),
            Self::ManyTokens { vocabulary } => write!(
                f,
                "the model knows {vocabulary} tokens, and text is read as bytes: what it learnt \
                 about the others is of no use; data.tokenizer = \"FOLDER\" reads text by the \
                 model's own tokenizer.json in FOLDER"
            ),
        }
    }
}
