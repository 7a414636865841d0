//! The tokenizer itself: its vocabulary, its special tokens, and the parts that encode, decode and
//! render.

use std::num::NonZeroUsize;

use zbelastic_types::Digest;

use crate::backend::{Backend, DecodeError};
use crate::chat::{ChatError, ChatFormat, ChatTokens, Conversation, TemplateOptions};
use crate::encode::{EncodeDocumentsError, EncodeError, Encoding, SpecialTokens};
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
    pub(crate) chat: ChatFormat,
    pub(crate) vocab_size: u32,
    pub(crate) content_hash: Digest,
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
            chat: ChatFormat::default(),
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
        self.backend.is_fast()
    }

    /// The id of a token by its content, as `tokenizer.json` writes it.
    #[must_use]
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.backend.token_to_id(token)
    }

    /// The content of a token by its id, as `tokenizer.json` writes it.
    #[must_use]
    pub fn id_to_token(&self, id: u32) -> Option<String> {
        self.backend.id_to_token(id)
    }

    /// The ids of a text. Special and added tokens that are written in it become their ids.
    ///
    /// # Errors
    /// If the vocabulary has no token for a part of it.
    pub fn encode(&self, text: &str, special: SpecialTokens) -> Result<Vec<u32>, EncodeError> {
        self.backend.encode(text, special)
    }

    /// The ids of a text with their offsets; nothing is put in front or behind.
    ///
    /// # Errors
    /// If the vocabulary has no token for a part of it.
    pub fn encode_with_offsets(&self, text: &str) -> Result<Encoding, EncodeError> {
        self.backend.encode_with_offsets(text)
    }

    /// The ids of each of `documents`, encoded on `threads` threads. Any number of threads gives
    /// the same.
    ///
    /// # Errors
    /// If a document cannot be encoded: the first that cannot.
    pub fn encode_documents<D: AsRef<str> + Sync>(
        &self,
        documents: &[D],
        special: SpecialTokens,
        threads: NonZeroUsize,
    ) -> Result<Vec<Vec<u32>>, EncodeDocumentsError> {
        self.backend.encode_documents(documents, special, threads)
    }

    /// The text of ids. Bytes that are no UTF-8 become U+FFFD; an id that is no token's has no text.
    /// Spaces before punctuation stay (`clean_up_tokenization_spaces` is not applied).
    ///
    /// # Errors
    /// If a decoder fails.
    pub fn decode(&self, ids: &[u32], special: SpecialTokens) -> Result<String, DecodeError> {
        self.backend.decode(ids, special)
    }

    /// The text of a conversation by the tokenizer's chat template, as `apply_chat_template` of
    /// transformers renders it.
    ///
    /// # Errors
    /// If there is no template, or it fails.
    pub fn apply_chat_template(
        &self,
        conversation: &Conversation,
        options: &TemplateOptions,
    ) -> Result<String, ChatError> {
        self.chat.apply(conversation, options)
    }

    /// The tokens of a conversation and which of them to train on.
    ///
    /// A template with `{% generation %}` marks states itself which part the assistant writes. Without
    /// them an answer begins where the messages before it end, rendered with the prompt for a
    /// generation, and ends after its end-of-turn token. A token with any character of an answer
    /// counts. Special tokens that are written in a message become special tokens.
    ///
    /// # Errors
    /// If there is no template, it fails, its answers cannot be found, or the text has no ids.
    pub fn encode_chat(
        &self,
        conversation: &Conversation,
        options: &TemplateOptions,
    ) -> Result<ChatTokens, ChatError> {
        self.chat.encode(&self.backend, conversation, options)
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
