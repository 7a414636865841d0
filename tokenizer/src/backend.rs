//! Encodes texts and decodes ids, by bytes or by a `tokenizer.json`.

use std::num::NonZeroUsize;

use tokenizers::{Decoder as _, Model as _};

use crate::byte_level::ByteLevelBpe;
use crate::encode::{EncodeDocumentsError, EncodeError, Encoding, SpecialTokens, map_in_order};

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

impl Backend {
    /// Whether texts are encoded by the fast path of byte-level BPE, or by bytes; else the crate
    /// `tokenizers` encodes, several times as slowly.
    pub(crate) fn is_fast(&self) -> bool {
        match self {
            Self::Bytes => true,
            Self::Json(json) => json.fast.is_some(),
        }
    }

    /// The id of a token by its content, as `tokenizer.json` writes it.
    pub(crate) fn token_to_id(&self, token: &str) -> Option<u32> {
        match self {
            Self::Bytes => match token.as_bytes() {
                [byte] => Some(u32::from(*byte)),
                [] | [_, ..] => None,
            },
            Self::Json(json) => json.slow.token_to_id(token),
        }
    }

    /// The content of a token by its id, as `tokenizer.json` writes it.
    pub(crate) fn id_to_token(&self, id: u32) -> Option<String> {
        match self {
            Self::Bytes => u8::try_from(id).ok().map(|byte| char::from(byte).to_string()),
            Self::Json(json) => json.token(id).map(|(content, _)| content),
        }
    }

    /// The ids of a text. Special and added tokens that are written in it become their ids.
    ///
    /// # Errors
    /// If the vocabulary has no token for a part of it.
    pub(crate) fn encode(
        &self,
        text: &str,
        special: SpecialTokens,
    ) -> Result<Vec<u32>, EncodeError> {
        let json = match self {
            Self::Bytes => return Ok(text.bytes().map(u32::from).collect()),
            Self::Json(json) => json,
        };
        let is_included = special == SpecialTokens::Include;
        let mut ids = if is_included { json.prefix.clone() } else { Vec::new() };
        let is_encoded = json.fast.as_ref().is_some_and(|fast| fast.encode(text, &mut ids));
        if !is_encoded {
            let encoding = json.slow.encode_fast(text, false).map_err(encode_error)?;
            ids.extend_from_slice(encoding.get_ids());
        }
        ids.extend_from_slice(if is_included { &json.suffix } else { &[] });
        Ok(ids)
    }

    /// The ids of a text with their offsets; nothing is put in front or behind.
    ///
    /// # Errors
    /// If the vocabulary has no token for a part of it.
    pub(crate) fn encode_with_offsets(&self, text: &str) -> Result<Encoding, EncodeError> {
        match self {
            Self::Bytes => {
                let lengths = text.char_indices().map(|(start, c)| start..start + c.len_utf8());
                let offsets = lengths.flat_map(|range| range.clone().map(move |_| range.clone()));
                let ids = text.bytes().map(u32::from).collect();
                Ok(Encoding { ids, offsets: offsets.collect() })
            }
            Self::Json(json) => {
                let encoding = json.slow.encode(text, false).map_err(encode_error)?;
                let offsets = encoding.get_offsets().iter().map(|(start, end)| *start..*end);
                Ok(Encoding { ids: encoding.get_ids().to_vec(), offsets: offsets.collect() })
            }
        }
    }

    /// The ids of each of `documents`, encoded on `threads` threads. Any number of threads gives
    /// the same.
    ///
    /// # Errors
    /// If a document cannot be encoded: the first that cannot.
    pub(crate) fn encode_documents<D: AsRef<str> + Sync>(
        &self,
        documents: &[D],
        special: SpecialTokens,
        threads: NonZeroUsize,
    ) -> Result<Vec<Vec<u32>>, EncodeDocumentsError> {
        let encode = |document: &D| self.encode(document.as_ref(), special);
        map_in_order(documents, threads, encode)
            .into_iter()
            .enumerate()
            .map(|(document, ids)| ids.map_err(|cause| EncodeDocumentsError { document, cause }))
            .collect()
    }

    /// The text of ids. Bytes that are no UTF-8 become U+FFFD; an id that is no token's has no text.
    /// Spaces before punctuation stay (`clean_up_tokenization_spaces` is not applied).
    ///
    /// # Errors
    /// If a decoder fails.
    pub(crate) fn decode(
        &self,
        ids: &[u32],
        special: SpecialTokens,
    ) -> Result<String, DecodeError> {
        match self {
            Self::Bytes => {
                let bytes = ids.iter().filter_map(|id| u8::try_from(*id).ok());
                Ok(String::from_utf8_lossy(&bytes.collect::<Vec<_>>()).into_owned())
            }
            Self::Json(json) => json.decode(ids, special),
        }
    }
}

impl JsonBackend {
    /// The content of a token, and whether it is a special one. The crate has the content of an added
    /// token as the normalizer changes it, by which it also knows special ones, since its release
    /// 0.23; transformers 4 has it as it is written.
    fn token(&self, id: u32) -> Option<(String, bool)> {
        match self.slow.get_added_vocabulary().get_added_tokens_decoder().get(&id) {
            Some(added) => Some((added.content.clone(), added.special)),
            None => self.slow.get_model().id_to_token(id).map(|content| (content, false)),
        }
    }

    fn decode(&self, ids: &[u32], special: SpecialTokens) -> Result<String, DecodeError> {
        let is_left_out = |is_special: bool| is_special && special == SpecialTokens::Exclude;
        let tokens = ids.iter().filter_map(|id| self.token(*id));
        let tokens = tokens.filter(|(_, is_special)| !is_left_out(*is_special));
        let tokens: Vec<String> = tokens.map(|(content, _)| content).collect();
        match self.slow.get_decoder() {
            Some(decoder) => decoder
                .decode(tokens)
                .map_err(|cause| DecodeError::Tokenizers { cause: cause.to_string() }),
            None => Ok(tokens.join(" ")),
        }
    }
}

fn encode_error(cause: tokenizers::Error) -> EncodeError {
    EncodeError::Tokenizers { cause: cause.to_string() }
}
