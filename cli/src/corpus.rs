//! What a run trains on, cut into windows: a text, or token stores.

mod stores;

pub use stores::{LoadedStores, StoresSummary, load_stores};

use std::fmt;
use std::path::PathBuf;

use serde_json::{Value, json};
use zbelastic_config::text::builtin;
use zbelastic_config::text::{self, TrainingText};
use zbelastic_config::{Key, LoadedConfig};
use zbelastic_data::training_data::TrainingData;
use zbelastic_trainer::data::{Corpus, CorpusConfig, CorpusError};
use zbelastic_types::Bytes;
use zbelastic_wording::{CommandFailure, FailureDetail};

use crate::run_tokenizer::RunTokenizer;

/// A text or stores as training will read them.
pub struct RunCorpus {
    /// Windows to train on and held out.
    pub corpus: TrainingData,
    /// Summary for the heading and the notes.
    pub about: DataSummary,
    /// The tokenizer of its tokens.
    pub tokenizer: RunTokenizer,
}

/// Summary of what a run trains on.
#[derive(Clone, Debug, PartialEq)]
pub enum DataSummary {
    /// It trains on a text.
    Text(TextSummary),
    /// It trains on token stores.
    Stores(StoresSummary),
}

/// Summary of a text for the heading and the notes.
#[derive(Clone, Debug, PartialEq)]
pub struct TextSummary {
    /// Whether it is the one that the binary carries.
    pub is_builtin: bool,
    /// Files it was read from.
    pub file_count: usize,
    /// Bytes of the text.
    pub size: Bytes,
    /// Files that were left out because they are not UTF-8.
    pub skipped: Vec<std::path::PathBuf>,
    /// Files with notes on how they are read.
    pub noted: Vec<(std::path::PathBuf, &'static str)>,
    /// BLAKE3 of its bytes, in hexadecimal.
    pub hash: String,
    /// The loss per token, in nats, of a model that knows only how often each byte occurs.
    pub byte_entropy: f64,
    /// Windows that are trained on.
    pub training_windows: u64,
    /// Windows that are held out.
    pub held_out_windows: u64,
}

/// Opens the stores that `loaded` names, or gathers the text that it names, or uses the built-in
/// one, and cuts it.
///
/// # Errors
/// With everything that is wrong with it.
pub fn load_data(loaded: &LoadedConfig) -> Result<RunCorpus, CommandFailure> {
    if !loaded.config.tokens.stores.is_empty() {
        let LoadedStores { mixture, about, tokenizer } = load_stores(loaded)?;
        let corpus = TrainingData::Stores(mixture);
        return Ok(RunCorpus { corpus, about: DataSummary::Stores(about), tokenizer });
    }
    let (corpus, about) = cut_text(gather_text(loaded)?, loaded)?;
    let corpus = TrainingData::Text(corpus);
    let tokenizer = RunTokenizer::Bytes;
    Ok(RunCorpus { corpus, about: DataSummary::Text(about), tokenizer })
}

/// Gathers the text that `loaded` names, or uses the built-in one.
///
/// # Errors
/// With everything that is wrong with it.
pub fn gather_text(loaded: &LoadedConfig) -> Result<TrainingText, CommandFailure> {
    let config = &loaded.config;
    let place = loaded.settings.origin(Key::Text).to_string();
    if config.text.is_empty() {
        return Ok(builtin::text());
    }
    text::gather(&config.text).map_err(|errors| {
        CommandFailure::usage("the text", errors.iter().map(|error| error.detail(&place)).collect())
    })
}

/// Cuts a text into windows by the configuration in `loaded`.
///
/// # Errors
/// If it cannot be trained on.
pub fn cut_text(
    text: TrainingText,
    loaded: &LoadedConfig,
) -> Result<(Corpus, TextSummary), CommandFailure> {
    let config = &loaded.config;
    let place = loaded.settings.origin(Key::Text).to_string();
    let cut = CorpusConfig {
        shape: config.batch.microbatch,
        microbatch_count: config.batch.microbatch_count,
        held_out_share: config.held_out_share,
        seed: config.seed,
        vocabulary: config.model.vocabulary,
    };
    let noted = text.files.iter().filter_map(|file| Some((file.path.clone(), file.note?)));
    let noted = noted.collect();
    let file_count = text.files.len();
    let size = Bytes(text.bytes.len() as u64);
    let byte_entropy = byte_entropy(&text.bytes);
    let corpus = Corpus::new(text.bytes, &cut).map_err(|error| corpus_failure(&error, &place))?;
    let about = TextSummary {
        is_builtin: config.text.is_empty(),
        file_count,
        size,
        skipped: text.skipped,
        noted,
        hash: text.hash.to_string(),
        byte_entropy,
        training_windows: corpus.training_windows(),
        held_out_windows: corpus.held_out_windows(),
    };
    Ok((corpus, about))
}

/// The failure for a text that cannot be trained on; `place` is where its entries were named.
fn corpus_failure(error: &CorpusError, place: &str) -> CommandFailure {
    let detail = FailureDetail::new(format!("data.text: {error}")).at(place);
    let detail = match error {
        CorpusError::Empty => detail.hint("text of some thousand bytes"),
        CorpusError::Short { .. } => {
            detail.hint("more text, a smaller train.seq_len or a smaller data.held_out")
        }
        CorpusError::Vocabulary { .. } => detail
            .why("text is read as bytes, and each byte is a token")
            .hint("a model with model.vocab = 256 or more"),
    };
    CommandFailure::usage("the text", vec![detail])
}

/// The entropy of the single bytes, in nats.
fn byte_entropy(bytes: &[u8]) -> f64 {
    let mut counts = [0u64; 256];
    bytes.iter().for_each(|byte| counts[usize::from(*byte)] += 1);
    let shares = counts.iter().filter(|count| **count > 0);
    let shares = shares.map(|count| *count as f64 / bytes.len() as f64);
    shares.map(|share| -share * share.ln()).sum()
}

impl DataSummary {
    /// Notes, printed before a run.
    pub fn notes(&self) -> Vec<String> {
        match self {
            Self::Text(text) => text.notes().collect(),
            Self::Stores(_) => Vec::new(),
        }
    }

    /// Windows that are trained on in an epoch.
    pub fn training_windows(&self) -> u64 {
        match self {
            Self::Text(text) => text.training_windows,
            Self::Stores(stores) => stores.training_windows,
        }
    }

    /// Windows that are held out.
    pub fn held_out_windows(&self) -> u64 {
        match self {
            Self::Text(text) => text.held_out_windows,
            Self::Stores(stores) => stores.held_out_windows,
        }
    }

    /// Folders of token stores.
    pub fn folders(&self) -> Vec<PathBuf> {
        match self {
            Self::Text(_) => Vec::new(),
            Self::Stores(summary) => {
                summary.stores.iter().map(|store| store.share.folder.clone()).collect()
            }
        }
    }

    /// What `run.json` has of it, under its [word](Self::word).
    pub fn json(&self) -> Value {
        match self {
            Self::Text(text) => json!({
                "bytes": text.size, "files": text.file_count, "blake3": text.hash,
                "skipped": text.skipped, "builtin": text.is_builtin,
                "byte_entropy": text.byte_entropy,
            }),
            Self::Stores(stores) => stores.json(),
        }
    }

    /// The word for it in headings.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Text(_) => "text",
            Self::Stores(_) => "tokens",
        }
    }
}

impl fmt::Display for DataSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => write!(f, "{text}"),
            Self::Stores(stores) => write!(f, "{stores}"),
        }
    }
}

impl TextSummary {
    /// Notes on the text, printed before a run.
    pub fn notes(&self) -> impl Iterator<Item = String> {
        let note =
            |path: &std::path::PathBuf| format!("{} is not UTF-8 and is left out", path.display());
        let noted =
            |(path, note): &(std::path::PathBuf, &str)| format!("{} {note}", path.display());
        self.skipped.iter().map(note).chain(self.noted.iter().map(noted))
    }
}

impl fmt::Display for TextSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let files = match self.file_count {
            1 => "1 file".to_owned(),
            count => format!("{count} files"),
        };
        match self.is_builtin {
            true => write!(f, "built in: the project's own documentation, {} bytes", self.size.0),
            false => write!(f, "{} bytes in {files}", self.size.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::byte_entropy;

    #[test]
    fn entropy_is_that_of_the_bytes_one_by_one() {
        let check = |text: &str, expected: f64| {
            let found = byte_entropy(text.as_bytes());
            assert!((found - expected).abs() < 1e-12, "{text}: {found}, expected {expected}");
        };
        check("aaaa", 0.0);
        check("abab", 2f64.ln());
        check("abcd", 4f64.ln());
        check("aaab", 0.75 * (4f64 / 3.0).ln() + 0.25 * 4f64.ln());
    }
}
