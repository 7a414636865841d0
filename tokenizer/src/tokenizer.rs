//! The tokenizer itself: its vocabulary, its special tokens, decoding.

use zbelastic_types::Digest;

use crate::SpecialTokens;
use crate::byte_level::ByteLevelBpe;
use crate::chat::ChatTemplate;
use crate::special_tokens::SpecialTokensMap;

/// Tokens of [`Tokenizer::bytes`].
const BYTE_VALUES: u32 = 256;
/// The bytes that the content hash of [`Tokenizer::bytes`] is the hash of.
const BYTES_CONTENT: &[u8] = b"bytes";

/// Turns text into token ids and back.
///
/// Ids are indices of a model's embedding table, from 0 to [`Tokenizer::vocab_size`] - 1.
#[derive(Debug)]
pub struct Tokenizer {
    pub(crate) backend: Backend,
    pub(crate) special: SpecialTokensMap,
    /// The template, or why it cannot be compiled.
    pub(crate) chat_template: Option<Result<ChatTemplate, crate::ChatError>>,
    pub(crate) vocab_size: u32,
    pub(crate) content_hash: Digest,
}

/// The implementation that encodes and decodes.
#[derive(Debug)]
pub(crate) enum Backend {
    Bytes,
    Json(Box<JsonBackend>),
}

/// A `tokenizer.json`.
#[derive(Debug)]
pub(crate) struct JsonBackend {
    /// The crate's tokenizer, without its post-processor.
    pub(crate) slow: tokenizers::Tokenizer,
    pub(crate) fast: Option<ByteLevelBpe>,
    /// Special tokens that the post-processor puts in front.
    pub(crate) prefix: Vec<u32>,
    /// Special tokens that the post-processor puts behind.
    pub(crate) suffix: Vec<u32>,
}

/// That ids have no text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// A decoder of the `tokenizer.json` fails.
    #[error("the tokenizer cannot decode the ids: {cause}")]
    Tokenizers {
        /// The error that the crate `tokenizers` reports.
        cause: String,
    },
}

/// That a model has fewer tokens than its tokenizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the tokenizer has {tokenizer} tokens, the model's vocabulary {model}: use the tokenizer that \
     came with the model, or set model.vocab to at least {tokenizer}"
)]
pub struct VocabularyError {
    /// Tokens of the tokenizer.
    pub tokenizer: u32,
    /// Tokens of the model.
    pub model: u32,
}

impl Tokenizer {
    /// The built-in tokenizer: each byte of UTF-8 is the token of its value, and there are no
    /// special tokens.
    #[must_use]
    pub fn bytes() -> Self {
        Self {
            backend: Backend::Bytes,
            special: SpecialTokensMap::default(),
            chat_template: None,
            vocab_size: BYTE_VALUES,
            content_hash: Digest(*blake3::hash(BYTES_CONTENT).as_bytes()),
        }
    }

    /// One more than the highest id, added tokens included. Ids below it may be unused.
    #[must_use]
    pub fn vocab_size(&self) -> u32 {
        self.vocab_size
    }

    /// The id that marks the beginning of a text (`bos_token`).
    #[must_use]
    pub fn bos_id(&self) -> Option<u32> {
        self.special.bos
    }

    /// The id that marks the end of a text, or of a turn in a chat model (`eos_token`).
    #[must_use]
    pub fn eos_id(&self) -> Option<u32> {
        self.special.eos
    }

    /// The id that fills sequences up (`pad_token`).
    #[must_use]
    pub fn pad_id(&self) -> Option<u32> {
        self.special.pad
    }

    /// Ids after which generation ends, in ascending order: `eos_token` and the `eos_token_id` of
    /// `generation_config.json`.
    #[must_use]
    pub fn stop_ids(&self) -> &[u32] {
        &self.special.stop
    }

    /// BLAKE3 of the bytes of `tokenizer.json`; for [`Tokenizer::bytes`] of the word `bytes`.
    #[must_use]
    pub fn content_hash(&self) -> Digest {
        self.content_hash
    }

    /// Whether texts are encoded by the fast path of byte-level BPE, or by bytes; else the crate
    /// `tokenizers` encodes, several times as slowly.
    #[must_use]
    pub fn is_fast(&self) -> bool {
        match &self.backend {
            Backend::Bytes => true,
            Backend::Json(json) => json.fast.is_some(),
        }
    }

    /// The id of a token by its content, as `tokenizer.json` writes it.
    #[must_use]
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        match &self.backend {
            Backend::Bytes => match token.as_bytes() {
                [byte] => Some(u32::from(*byte)),
                [] | [_, ..] => None,
            },
            Backend::Json(json) => json.slow.token_to_id(token),
        }
    }

    /// The content of a token by its id, as `tokenizer.json` writes it.
    #[must_use]
    pub fn id_to_token(&self, id: u32) -> Option<String> {
        match &self.backend {
            Backend::Bytes => u8::try_from(id).ok().map(|byte| char::from(byte).to_string()),
            Backend::Json(json) => json.slow.id_to_token(id),
        }
    }

    /// The text of ids. Bytes that are no UTF-8 become U+FFFD; an id that is no token's has no text.
    /// Spaces before punctuation stay (`clean_up_tokenization_spaces` is not applied).
    ///
    /// # Errors
    /// If a decoder fails.
    pub fn decode(&self, ids: &[u32], special: SpecialTokens) -> Result<String, DecodeError> {
        match &self.backend {
            Backend::Bytes => {
                let bytes = ids.iter().filter_map(|id| u8::try_from(*id).ok());
                Ok(String::from_utf8_lossy(&bytes.collect::<Vec<_>>()).into_owned())
            }
            Backend::Json(json) => json
                .slow
                .decode(ids, special == SpecialTokens::Exclude)
                .map_err(|cause| DecodeError::Tokenizers { cause: cause.to_string() }),
        }
    }

    /// Whether a model of `model` tokens has one for each id. A model may have more: many pad their
    /// embedding tables.
    ///
    /// # Errors
    /// If it has fewer, with both figures.
    pub fn check_vocabulary(&self, model: u32) -> Result<(), VocabularyError> {
        let tokenizer = self.vocab_size;
        if tokenizer > model { Err(VocabularyError { tokenizer, model }) } else { Ok(()) }
    }
}
