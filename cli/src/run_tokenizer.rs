//! The tokenizer of a run: for the text of samples, and for whoever uses the model.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use zbelastic_api::HexDigest;
use zbelastic_config::{RunConfig, WeightSource};
use zbelastic_data::encode::{BytesEncoder, EncodeDocuments};
use zbelastic_data::store::StoreManifest;
use zbelastic_tokenizer::{FolderError, TokenizerFiles};
use zbelastic_trainer::hf::{MODEL_CONFIG, SpecialTokenIds};
use zbelastic_types::Digest;
use zbelastic_wording::figures::grouped;
use zbelastic_wording::{CommandFailure, FailureDetail, cannot_write};

use crate::data_failure;
use crate::tokenizer_encoder::TokenizerEncoder;

/// What a sample of bytes begins behind: a text begins as a paragraph does.
const BYTES_PROMPT: &[u8] = b"\n\n";

/// The folder of the tokenizers of runs that were submitted from here, in that of all runs.
const TOKENIZERS: &str = "tokenizers";
/// Digits of a tokenizer's hash that name its folder there.
const NAME_DIGITS: usize = 16;

/// The tokenizer of a run.
#[derive(Debug)]
pub enum RunTokenizer {
    /// Each byte is a token.
    Bytes,
    /// A tokenizer of files.
    Files {
        /// Makes text of ids.
        encoder: Box<TokenizerEncoder>,
        /// Its files as they were read when the run began, for the run's folder.
        files: Box<TokenizerFiles>,
        /// Where they lie.
        folder: PathBuf,
    },
    /// Stores name a tokenizer by its hash, and the configuration does not say where it lies.
    Unknown {
        /// That hash, in hexadecimal.
        hash: String,
        /// The token that ends a text, if there is one.
        end_of_text: Option<u32>,
    },
}

impl RunTokenizer {
    /// The tokenizer that a store was made with: the one that the configuration names, or else that of
    /// the folder that the model is from, if its hash is the store's.
    ///
    /// # Errors
    /// If the configuration names another, or one that cannot be read.
    pub fn of_store(manifest: &StoreManifest, config: &RunConfig) -> Result<Self, CommandFailure> {
        if let Some(path) = &config.tokens.tokenizer {
            let opened = Self::open(path);
            let (tokenizer, found) =
                opened.map_err(|error| data_failure::of_folder(path, &error))?;
            if found != manifest.tokenizer.to_string() {
                return Err(other_tokenizer(path, &found, manifest));
            }
            return Ok(tokenizer);
        }
        if BytesEncoder.tokenizer_hash().0 == manifest.tokenizer {
            return Ok(Self::Bytes);
        }
        let hash = manifest.tokenizer.to_string();
        let of_source = source_folder(&config.weights).and_then(|folder| Self::open(folder).ok());
        let of_source = of_source.filter(|(_, found)| *found == hash);
        let unknown = || Self::Unknown { hash, end_of_text: manifest.end_of_text };
        Ok(of_source.map_or_else(unknown, |(tokenizer, _)| tokenizer))
    }

    /// The tokenizer of a folder, and its hash in hexadecimal.
    fn open(path: &Path) -> Result<(Self, String), FolderError> {
        let (encoder, files) = TokenizerEncoder::open_with_files(path)?;
        let hash = encoder.tokenizer_hash().0.to_string();
        let folder = path.to_owned();
        let files = files.map(Box::new);
        let tokenizer = files.map_or(Self::Bytes, |files| {
            let encoder = Box::new(encoder);
            Self::Files { encoder, files, folder }
        });
        Ok((tokenizer, hash))
    }

    /// The special tokens that the configuration of the model's source names, unless the run reads bytes
    /// or ids of another tokenizer than lies in the source's folder.
    #[must_use]
    pub fn special_ids(&self, weights: &WeightSource) -> SpecialTokenIds {
        let own = match self {
            Self::Bytes => return SpecialTokenIds::default(),
            Self::Files { encoder, .. } => encoder.tokenizer_hash().0.to_string(),
            Self::Unknown { hash, .. } => hash.clone(),
        };
        let Some(folder) = source_folder(weights) else { return SpecialTokenIds::default() };
        let is_own = Self::open(folder).is_ok_and(|(_, found)| found == own);
        let text = fs::read_to_string(folder.join(MODEL_CONFIG)).unwrap_or_default();
        if is_own { SpecialTokenIds::of_config(&text) } else { SpecialTokenIds::default() }
    }

    /// What makes tokens, and where that is from; nothing of bytes.
    #[must_use]
    pub fn heading(&self, weights: &WeightSource) -> Option<String> {
        match self {
            Self::Bytes => None,
            Self::Files { encoder, folder, .. } => {
                let is_of_source = source_folder(weights) == Some(folder);
                let key = if is_of_source { "model.from_hf" } else { "data.tokenizer" };
                let tokens = grouped(encoder.vocabulary().into());
                let folder = folder.display();
                Some(format!("{tokens} tokens of the tokenizer in {folder} ({key})"))
            }
            Self::Unknown { hash, .. } => {
                Some(format!("that of the tokenizer with hash {hash}, which is not here"))
            }
        }
    }

    /// The ids that a sample begins behind; at least one.
    #[must_use]
    pub fn prompt(&self) -> Vec<u32> {
        let end_of_text = match self {
            Self::Bytes => return BYTES_PROMPT.iter().map(|byte| u32::from(*byte)).collect(),
            Self::Files { encoder, .. } => encoder.end_of_text(),
            Self::Unknown { end_of_text, .. } => *end_of_text,
        };
        vec![end_of_text.unwrap_or(0)]
    }

    /// The text of ids.
    #[must_use]
    pub fn decode(&self, ids: &[u32]) -> String {
        match self {
            Self::Bytes => {
                // A vocabulary beyond bytes has tokens that no text of this run uses.
                let bytes = ids.iter().map(|id| u8::try_from(*id).unwrap_or(b'?'));
                String::from_utf8_lossy(&bytes.collect::<Vec<_>>()).into_owned()
            }
            Self::Files { encoder, .. } => encoder.decode(ids),
            Self::Unknown { .. } => {
                ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
            }
        }
    }

    /// Writes its files beside a model. Bytes have none.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn write(&self, folder: &Path) -> Result<(), CommandFailure> {
        match self {
            Self::Bytes | Self::Unknown { .. } => Ok(()),
            Self::Files { files, .. } => {
                files.write(folder).map_err(|error| data_failure::of_folder(folder, &error))
            }
        }
    }

    /// Keeps its files below the folder of all runs, where [`kept_tokenizer`] finds them. Bytes have none.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn keep(&self, parent: &Path) -> Result<(), CommandFailure> {
        let Self::Files { encoder, .. } = self else { return Ok(()) };
        let hash = HexDigest(Digest(*encoder.tokenizer_hash().0.as_bytes()));
        if kept_tokenizer(parent, hash).is_some() {
            return Ok(());
        }
        self.replace(&kept_folder(parent, hash))
    }

    /// Writes its files in place of those of another run.
    ///
    /// # Errors
    /// If those cannot be removed, or its own cannot be written.
    pub fn replace(&self, folder: &Path) -> Result<(), CommandFailure> {
        for name in TokenizerFiles::NAMES {
            let path = folder.join(name);
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(cannot_write(&path, &error));
                }
                Ok(()) | Err(_) => {}
            }
        }
        self.write(folder)
    }

    /// A note where samples are ids.
    #[must_use]
    pub fn note(&self) -> Option<&'static str> {
        match self {
            Self::Bytes | Self::Files { .. } => None,
            Self::Unknown { .. } => {
                Some("the sample is ids: data.tokenizer names what makes text of them")
            }
        }
    }
}

/// The folder of the tokenizer with this hash, if a run that was submitted from here had it: a cluster has
/// a run's tokens, and knows of the tokenizer its hash alone.
#[must_use]
pub fn kept_tokenizer(parent: &Path, hash: HexDigest) -> Option<PathBuf> {
    let folder = kept_folder(parent, hash);
    let (_, found) = RunTokenizer::open(&folder).ok()?;
    (found == hash.to_string()).then_some(folder)
}

fn kept_folder(parent: &Path, hash: HexDigest) -> PathBuf {
    parent.join(TOKENIZERS).join(&hash.to_string()[..NAME_DIGITS])
}

/// The folder that a model is from.
fn source_folder(weights: &WeightSource) -> Option<&PathBuf> {
    match weights {
        WeightSource::Drawn => None,
        WeightSource::HuggingFace { folder } => Some(folder),
    }
}

fn other_tokenizer(path: &Path, found: &str, manifest: &StoreManifest) -> CommandFailure {
    let expected = manifest.tokenizer;
    let what = format!("data.tokenizer: has hash {found}, the stores were made with {expected}");
    let detail = FailureDetail::new(what)
        .at(path.display().to_string())
        .why("an id is another token in each")
        .hint("the tokenizer that `zbelastic data prepare` was given, or leave it out");
    CommandFailure::usage("the tokenizer", vec![detail])
}

#[cfg(test)]
mod tests {
    use zbelastic_config::{LoadedConfig, load_document};
    use zbelastic_data::encode::TokenizerHash;
    use zbelastic_data::source::SourceCounts;
    use zbelastic_tokenizer::train::{TrainRequest, train};

    use super::*;

    /// A tokenizer of 300 tokens, and the hash of it.
    fn write_tokenizer(folder: &Path, text: &str) -> TokenizerHash {
        let files = train(&TrainRequest::gpt2(300), [text], |_| {}).expect("a text");
        files.write(folder).expect("writable");
        TokenizerEncoder::open(folder).expect("its own").tokenizer_hash()
    }

    /// The hash of something else.
    fn another() -> TokenizerHash {
        TokenizerHash(manifest(BytesEncoder.tokenizer_hash()).hash())
    }

    fn manifest(TokenizerHash(tokenizer): TokenizerHash) -> StoreManifest {
        let sources = SourceCounts::default();
        let shards = Vec::new();
        let end_of_text = Some(0);
        StoreManifest { version: 1, tokenizer, vocabulary: 300, end_of_text, sources, shards }
    }

    fn config(more: &str) -> RunConfig {
        let text = format!("[model]\npreset = \"tiny\"\n{more}");
        let LoadedConfig { config, .. } = load_document("test", &text).expect("legal");
        config
    }

    #[test]
    fn stores_of_the_models_own_tokenizer_need_no_name_of_it() {
        let source = tempfile::tempdir().expect("a folder");
        let config_json = r#"{"bos_token_id": null, "eos_token_id": [0, 7], "pad_token_id": 5}"#;
        fs::write(source.path().join(MODEL_CONFIG), config_json).expect("room");
        let hash = write_tokenizer(source.path(), "the cat and the hat");
        let weights = WeightSource::HuggingFace { folder: source.path().to_owned() };
        let config = RunConfig { weights, ..config("") };
        let found =
            |hash| RunTokenizer::of_store(&manifest(hash), &config).expect("as far as known");
        let own = found(hash);
        assert!(matches!(&own, RunTokenizer::Files { .. }) && own.note().is_none());
        let heading = own.heading(&config.weights).expect("no bytes");
        let place =
            format!("260 tokens of the tokenizer in {} (model.from_hf)", source.path().display());
        assert_eq!(heading, place);
        let ids = own.special_ids(&config.weights);
        assert_eq!((ids.eos, ids.pad), (serde_json::json!([0, 7]), 5.into()));
        assert_eq!(own.special_ids(&WeightSource::Drawn), SpecialTokenIds::default());
        // Ids of another one mean other tokens.
        let other = found(another());
        assert!(matches!(&other, RunTokenizer::Unknown { .. }) && other.note().is_some());
        assert!(other.heading(&config.weights).is_some_and(|line| line.contains("not here")));
        assert_eq!(other.special_ids(&config.weights), SpecialTokenIds::default());
        let bytes = found(BytesEncoder.tokenizer_hash());
        assert!(matches!(&bytes, RunTokenizer::Bytes) && bytes.heading(&config.weights).is_none());
        assert_eq!(bytes.special_ids(&config.weights), SpecialTokenIds::default());
    }

    #[test]
    fn the_tokenizer_of_a_submitted_run_is_found_by_its_hash() {
        let parent = tempfile::tempdir().expect("a folder");
        let named = parent.path().join("tok");
        let hash = write_tokenizer(&named, "the cat and the hat");
        let tokens =
            format!("[data]\ntext = \"a\"\ntokenizer = {:?}\n", named.display().to_string());
        let tokenizer = RunTokenizer::of_store(&manifest(hash), &config(&tokens)).expect("its own");
        let runs = parent.path().join("runs");
        let of = |hash: TokenizerHash| HexDigest(Digest(*hash.0.as_bytes()));
        assert_eq!(kept_tokenizer(&runs, of(hash)), None);
        tokenizer.keep(&runs).expect("writable");
        let kept = kept_tokenizer(&runs, of(hash)).expect("kept");
        let read = |folder: &Path| TokenizerFiles::read(folder).expect("whole");
        assert_eq!(read(&kept), read(&named));
        assert_eq!(kept_tokenizer(&runs, of(another())), None);
        // Somebody wrote another one there.
        write_tokenizer(&kept, "a dog in the fog");
        assert_eq!(kept_tokenizer(&runs, of(hash)), None);
        RunTokenizer::Bytes.keep(&runs).expect("nothing to keep");
    }

    #[test]
    fn the_tokenizer_of_another_run_does_not_stay() {
        let folder = tempfile::tempdir().expect("a folder");
        let files = TokenizerFiles {
            tokenizer_json: b"{}".to_vec(),
            chat_template: Some(b"{{ messages }}".to_vec()),
            ..TokenizerFiles::default()
        };
        files.write(folder.path()).expect("writable");
        RunTokenizer::Bytes.write(folder.path()).expect("nothing to write");
        assert_eq!(TokenizerFiles::read(folder.path()).expect("it stays"), files);
        RunTokenizer::Bytes.replace(folder.path()).expect("removable");
        assert_eq!(fs::read_dir(folder.path()).expect("readable").count(), 0);
    }
}
