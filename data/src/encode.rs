//! Documents to token ids.

use crate::document::Document;

/// BLAKE3 of the bytes that determine an encoder's ids, such as the bytes of a `tokenizer.json` and
/// of a chat template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenizerHash(pub blake3::Hash);

/// The ids of a document or part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EncodedDocument {
    /// Token ids, each below the vocabulary's size.
    pub ids: Vec<u32>,
    /// For each id, whether it counts in the loss as a target; `None` if all do.
    pub loss_mask: Option<Vec<bool>>,
}

/// Why a document cannot be encoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// The encoder has no chat template.
    #[error("the tokenizer has no chat template, and the document is a chat")]
    NoChatTemplate,
    /// The chat template writes the day, and the encoder was given none.
    #[error("the chat template writes the day, which is part of the data, and none is given")]
    NoDate,
    /// A chat cannot be rendered, though others may be.
    #[error("the chat template cannot render the document: {reason}")]
    Render {
        /// The template's error.
        reason: String,
    },
    /// The chat template is wrong itself, whatever the chat.
    #[error("{reason}")]
    Template {
        /// The error in it.
        reason: String,
    },
    /// The tokenizer refuses a text.
    #[error("the tokenizer cannot encode the document: {reason}")]
    Tokenize {
        /// The tokenizer's error.
        reason: String,
    },
}

impl EncodeError {
    /// Whether the document is bad as a line is that is no document: other documents can be encoded.
    #[must_use]
    pub const fn is_of_document(&self) -> bool {
        match self {
            Self::Render { .. } => true,
            Self::NoChatTemplate | Self::NoDate | Self::Template { .. } | Self::Tokenize { .. } => {
                false
            }
        }
    }
}

/// An encoder. The same document gives the same ids, on every machine and beside any others.
pub trait EncodeDocuments: Sync {
    /// The name of this encoder by content.
    fn tokenizer_hash(&self) -> TokenizerHash;

    /// What determines ids beside the tokenizer, such as the day that a chat template writes.
    fn settings(&self) -> Option<String> {
        None
    }

    /// Number of token ids, all of which are below it.
    fn vocabulary(&self) -> u32;

    /// The id that is put behind every text, and that separates documents in files of ids.
    fn end_of_text(&self) -> Option<u32>;

    /// The ids of a document. The end-of-text token of a [`Document::Text`] is not among them, all
    /// tokens of a [`Document::Chat`] are.
    ///
    /// # Errors
    /// If the document cannot be encoded.
    fn encode(&self, document: &Document) -> Result<EncodedDocument, EncodeError>;
}

/// The built-in encoder: each byte of a text is its own id, and nothing is put between texts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BytesEncoder;

/// One token for each value of a byte.
const BYTES_VOCABULARY: u32 = 256;

impl EncodeDocuments for BytesEncoder {
    fn tokenizer_hash(&self) -> TokenizerHash {
        TokenizerHash(blake3::hash(b"zbelastic bytes"))
    }

    fn vocabulary(&self) -> u32 {
        BYTES_VOCABULARY
    }

    fn end_of_text(&self) -> Option<u32> {
        None
    }

    fn encode(&self, document: &Document) -> Result<EncodedDocument, EncodeError> {
        match document {
            Document::Text(part) => {
                let ids = part.text.bytes().map(u32::from).collect();
                Ok(EncodedDocument { ids, loss_mask: None })
            }
            Document::Chat(_) => Err(EncodeError::NoChatTemplate),
        }
    }
}
