//! The tokenizer that is exported with a model, or what is known of one that is not at hand.

use std::path::{Path, PathBuf};

use serde_json::Value;
use zbelastic_tokenizer::{Tokenizer, TokenizerFiles};
use zbelastic_trainer::hf::SpecialTokenIds;
use zbelastic_trainer::model::ModelConfig;
use zbelastic_wording::CommandFailure;

use crate::commands::saved_model::{RunTokens, check_is_of_run, open_encoder, reads_bytes};

/// What makes tokens of text for an exported model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExportedTokenizer {
    /// These files, which are exported with it.
    Files(TokenizerFiles),
    /// Nothing: each byte of a text is the token of its value.
    Bytes,
    /// A tokenizer that is not at hand.
    Unknown,
}

impl ExportedTokenizer {
    /// The files that are exported.
    pub fn files(&self) -> Option<&TokenizerFiles> {
        match self {
            Self::Files(files) => Some(files),
            Self::Bytes | Self::Unknown => None,
        }
    }

    /// The length of all of them.
    pub fn bytes(&self) -> u64 {
        let files = self.files().into_iter().flat_map(TokenizerFiles::named);
        files.map(|(_, bytes)| bytes.len() as u64).sum()
    }
}

/// Where a tokenizer is read, and what is known of the model's.
pub struct TokenizerSource<'a> {
    /// The folder that `--tokenizer` names.
    pub named: Option<&'a Path>,
    /// The one that lies beside the model.
    pub beside: Option<PathBuf>,
    /// The tokens of the run, if one made the model.
    pub of_run: Option<RunTokens>,
    /// The ids that the model's own configuration names.
    pub of_model: SpecialTokenIds,
}

impl TokenizerSource<'_> {
    /// The tokenizer, and the special tokens that a model has with it.
    ///
    /// # Errors
    /// If it cannot be read, has more tokens than the model, or is not that of the run.
    pub fn read(
        self,
        config: &ModelConfig,
    ) -> Result<(ExportedTokenizer, SpecialTokenIds), CommandFailure> {
        let Some(folder) = self.named.map(Path::to_owned).or(self.beside) else {
            let known = match reads_bytes(self.of_run.as_ref(), config.vocabulary) {
                true => ExportedTokenizer::Bytes,
                false => ExportedTokenizer::Unknown,
            };
            return Ok((known, self.of_model));
        };
        let (encoder, files) = open_encoder(&folder, config.vocabulary)?;
        if let Some(tokens) = self.of_run.as_ref().filter(|_| self.named.is_some()) {
            check_is_of_run(&encoder, &folder, tokens)?;
        }
        let ids = ids_of(encoder.tokenizer(), self.of_model);
        Ok((files.map_or(ExportedTokenizer::Bytes, ExportedTokenizer::Files), ids))
    }
}

/// The tokenizer's special tokens; where it names none, those of the model.
fn ids_of(tokenizer: &Tokenizer, of_model: SpecialTokenIds) -> SpecialTokenIds {
    let or = |id: Option<u32>, of_model: Value| id.map_or(of_model, Value::from);
    SpecialTokenIds {
        bos: or(tokenizer.bos_id(), of_model.bos),
        eos: or(tokenizer.eos_id(), of_model.eos),
        pad: or(tokenizer.pad_id(), of_model.pad),
    }
}
