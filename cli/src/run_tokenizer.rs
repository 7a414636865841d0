//! The tokenizer of a run: for the text of samples, and for whoever uses the model.

use std::fs;
use std::io;
use std::path::Path;

use zbelastic_config::RunConfig;
use zbelastic_data::encode::{BytesEncoder, EncodeDocuments};
use zbelastic_data::store::StoreManifest;
use zbelastic_tokenizer::TokenizerFiles;
use zbelastic_wording::{CommandFailure, FailureDetail, cannot_write};

use crate::data_failure;
use crate::tokenizer_encoder::TokenizerEncoder;

/// What a sample of bytes begins behind: a text begins as a paragraph does.
const BYTES_PROMPT: &[u8] = b"\n\n";

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
    },
    /// Stores name a tokenizer by its hash, and the configuration does not say where it lies.
    Unknown {
        /// The token that ends a text, if there is one.
        end_of_text: Option<u32>,
    },
}

impl RunTokenizer {
    /// The tokenizer that a store was made with.
    ///
    /// # Errors
    /// If the configuration names another, or one that cannot be read.
    pub fn of_store(manifest: &StoreManifest, config: &RunConfig) -> Result<Self, CommandFailure> {
        if let Some(path) = &config.tokens.tokenizer {
            let opened = TokenizerEncoder::open_with_files(path);
            let (encoder, files) = opened.map_err(|error| data_failure::of_folder(path, &error))?;
            let found = encoder.tokenizer_hash().0;
            if found != manifest.tokenizer {
                return Err(other_tokenizer(path, &found.to_string(), manifest));
            }
            return Ok(match files {
                Some(files) => Self::Files { encoder: Box::new(encoder), files: Box::new(files) },
                None => Self::Bytes,
            });
        }
        if BytesEncoder.tokenizer_hash().0 == manifest.tokenizer {
            return Ok(Self::Bytes);
        }
        Ok(Self::Unknown { end_of_text: manifest.end_of_text })
    }

    /// The ids that a sample begins behind; at least one.
    #[must_use]
    pub fn prompt(&self) -> Vec<u32> {
        let end_of_text = match self {
            Self::Bytes => return BYTES_PROMPT.iter().map(|byte| u32::from(*byte)).collect(),
            Self::Files { encoder, .. } => encoder.end_of_text(),
            Self::Unknown { end_of_text } => *end_of_text,
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
    use super::*;

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
