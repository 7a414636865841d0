//! Whether the token stores that a configuration names can be trained on.

use std::path::PathBuf;

use zbelastic_data::store::StoreManifest;
use zbelastic_data::window::Packing;

use super::ConfigBuilder;
use crate::key::Key;
use crate::problem::ConfigProblem;
use crate::reader::SettingsReader;
use crate::settings::ConfigOrigin;
use crate::tokens::{BYTES_TOKENIZER, StoreShare, TOKENIZER_JSON, TokensConfig, TokensError};

/// The entries of the key that are no shares are left out here, and reported by the builder.
pub(crate) fn tokens_config(reader: &SettingsReader<'_>) -> TokensConfig {
    let tokenizer = match reader.text(Key::Tokenizer) {
        Some(BYTES_TOKENIZER) => None,
        Some(named) => Some(PathBuf::from(named)),
        None => source_tokenizer(reader),
    };
    let shares = reader.texts(Key::Tokens);
    TokensConfig {
        stores: shares.iter().filter_map(|entry| StoreShare::parse(entry).ok()).collect(),
        packing: reader.choice(Key::Packing),
        tokenizer,
    }
}

/// The folder that the model is from, if its tokenizer reads the text that is named. Stores say by their
/// hash whether it made them.
fn source_tokenizer(reader: &SettingsReader<'_>) -> Option<PathBuf> {
    let reads_text = !reader.texts(Key::Text).is_empty() && reader.texts(Key::Tokens).is_empty();
    let folder = reader.text(Key::FromHf).filter(|_| reads_text).map(PathBuf::from)?;
    folder.join(TOKENIZER_JSON).is_file().then_some(folder)
}

impl ConfigBuilder<'_> {
    /// The manifests of the stores that are named, with what is wrong with them reported.
    pub(crate) fn store_manifests(&mut self) -> Vec<(PathBuf, StoreManifest)> {
        let mut manifests: Vec<(PathBuf, StoreManifest)> = Vec::new();
        if self.origin == ConfigOrigin::Recorded {
            return manifests;
        }
        let entries = self.reader.texts(Key::Tokens);
        let has_tokenizer = tokens_config(&self.reader).tokenizer.is_some();
        let packing: Packing = self.reader.choice(Key::Packing);
        if entries.is_empty() && !has_tokenizer && packing == Packing::Documents {
            self.report_tokens(TokensError::BytePacking);
        }
        if entries.is_empty() && has_tokenizer && self.reader.texts(Key::Text).is_empty() {
            self.report_tokens(TokensError::NoText);
        }
        if !entries.is_empty() && !self.reader.texts(Key::Text).is_empty() {
            self.report_tokens(TokensError::BesideText);
        }
        for entry in &entries {
            let read = StoreShare::parse(entry).and_then(|StoreShare { folder, .. }| {
                let manifest = StoreManifest::read(&folder)?;
                Ok((folder, manifest))
            });
            match read {
                Ok(found) => manifests.push(found),
                Err(error) => self.report_tokens(error),
            }
        }
        let Some((first, expected)) = manifests.first().cloned() else { return manifests };
        for (folder, manifest) in &manifests {
            if manifest.tokenizer != expected.tokenizer {
                self.report_tokens(TokensError::OtherTokenizer {
                    folder: folder.clone(),
                    found: manifest.tokenizer.to_string(),
                    first: first.clone(),
                    expected: expected.tokenizer.to_string(),
                });
            }
        }
        manifests
    }

    /// Checks that the model knows the ids of all stores.
    pub(crate) fn check_stores(
        &mut self,
        manifests: Vec<(PathBuf, StoreManifest)>,
        vocabulary: u32,
    ) {
        for (folder, manifest) in manifests {
            let needed = manifest.vocabulary;
            if needed > vocabulary {
                self.report_tokens(TokensError::Vocabulary { folder, needed, vocabulary });
            }
        }
    }

    fn report_tokens(&mut self, error: TokensError) {
        let key = match error {
            TokensError::NoText => Key::Tokenizer,
            TokensError::BytePacking => Key::Packing,
            TokensError::BesideText
            | TokensError::Weight { .. }
            | TokensError::Address { .. }
            | TokensError::Store(_)
            | TokensError::OtherTokenizer { .. }
            | TokensError::Vocabulary { .. } => Key::Tokens,
        };
        let at = self.reader.settings.origin(key);
        self.report(&[key], |_, _| ConfigProblem::Tokens { at, error: Box::new(error) });
    }
}
