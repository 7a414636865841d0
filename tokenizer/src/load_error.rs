//! Why the bytes of files are no tokenizer.

/// The models that a `tokenizer.json` can have.
pub(crate) const MODELS: [&str; 4] = ["BPE", "Unigram", "WordLevel", "WordPiece"];

/// Why files are no tokenizer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// A file is no JSON, or has not the keys that it should have.
    #[error("{file}, line {line} column {column}: {cause}; download or write the file again")]
    Malformed {
        /// Its name.
        file: &'static str,
        /// Counted from 1; 0 where it is not known.
        line: usize,
        /// Counted from 1; 0 where it is not known.
        column: usize,
        /// Expected there, and found.
        cause: String,
    },
    /// The model is of a type that does not exist yet.
    #[error(
        "tokenizer.json: expected a model of type {}, found {found:?}; this program has to be \
         taught it", MODELS.join(", ")
    )]
    UnknownModel {
        /// Its type.
        found: String,
    },
    /// The post-processor does more than put tokens in front and behind.
    #[error(
        "tokenizer.json: the post-processor does not keep a text's ids in one piece; expected \
         special tokens in front and behind, as TemplateProcessing has with one $A"
    )]
    PostProcessor,
    /// A token that `tokenizer_config.json` names cannot be added.
    #[error("tokenizer_config.json: a token that it names cannot be added: {cause}")]
    AddedToken {
        /// The error that the crate `tokenizers` reports.
        cause: String,
    },
}

impl LoadError {
    pub(crate) fn malformed(file: &'static str, cause: &serde_json::Error) -> Self {
        let text = cause.to_string();
        let place = format!(" at line {} column {}", cause.line(), cause.column());
        let cause_text = text.strip_suffix(&place).unwrap_or(&text).to_owned();
        Self::Malformed { file, line: cause.line(), column: cause.column(), cause: cause_text }
    }
}
