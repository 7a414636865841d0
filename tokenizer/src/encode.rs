//! Text to ids: one text, one with offsets, or many on several threads.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::Tokenizer;
use crate::tokenizer::Backend;

/// Documents that a thread encodes before it claims the next ones.
const DOCUMENTS_PER_CLAIM: usize = 16;

/// Whether special tokens count: for encoding those that a model expects in front of a text or
/// behind it, for decoding all of them. Hugging Face's `add_special_tokens`, and the opposite of
/// its `skip_special_tokens`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecialTokens {
    /// They are put in front and behind; they are decoded.
    Include,
    /// They are not put anywhere; they are left out of decoded text.
    Exclude,
}

/// A text as ids, with the place of each in the text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Encoding {
    /// Token ids.
    pub ids: Vec<u32>,
    /// The bytes of the text that each id stands for, in whole characters and with the white space
    /// that `trim_offsets` of a `tokenizer.json` would cut off. Tokens of one character's bytes
    /// have the same range.
    pub offsets: Vec<Range<usize>>,
}

/// Why a text has no ids.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// The vocabulary has no token for a part of the text, nor an unknown token.
    #[error(
        "the tokenizer cannot encode the text: {cause}; a tokenizer with byte fallback or an \
         unknown token can encode any text"
    )]
    Tokenizers {
        /// The error that the crate `tokenizers` reports.
        cause: String,
    },
}

/// Why documents have no ids: the first of them that has none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("document {document}: {cause}")]
pub struct EncodeDocumentsError {
    /// Index of the document.
    pub document: usize,
    /// Why this one has none.
    pub cause: EncodeError,
}

impl Tokenizer {
    /// The ids of a text. Special and added tokens that are written in it become their ids.
    ///
    /// # Errors
    /// If the vocabulary has no token for a part of it.
    pub fn encode(&self, text: &str, special: SpecialTokens) -> Result<Vec<u32>, EncodeError> {
        let json = match &self.backend {
            Backend::Bytes => return Ok(text.bytes().map(u32::from).collect()),
            Backend::Json(json) => json,
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
    pub fn encode_with_offsets(&self, text: &str) -> Result<Encoding, EncodeError> {
        match &self.backend {
            Backend::Bytes => {
                let lengths = text.char_indices().map(|(start, c)| start..start + c.len_utf8());
                let offsets = lengths.flat_map(|range| range.clone().map(move |_| range.clone()));
                let ids = text.bytes().map(u32::from).collect();
                Ok(Encoding { ids, offsets: offsets.collect() })
            }
            Backend::Json(json) => {
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
    pub fn encode_documents<D: AsRef<str> + Sync>(
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
}

fn encode_error(cause: tokenizers::Error) -> EncodeError {
    EncodeError::Tokenizers { cause: cause.to_string() }
}

/// `map` of each item, in the order of the items, computed on `threads` threads.
pub(crate) fn map_in_order<T: Sync, R: Send>(
    items: &[T],
    threads: NonZeroUsize,
    map: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    let batches: Vec<_> = items.chunks(DOCUMENTS_PER_CLAIM).collect();
    let next = AtomicUsize::new(0);
    let claim_all = || {
        let mut results = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(batch) = batches.get(index) else { return results };
            results.push((index, batch.iter().map(&map).collect::<Vec<_>>()));
        }
    };
    let mut results = thread::scope(|scope| {
        let thread_count = threads.get().min(batches.len().max(1));
        let others: Vec<_> = (1..thread_count).map(|_| scope.spawn(claim_all)).collect();
        let mut results = claim_all();
        for other in others {
            results.extend(other.join().expect("encoding does not panic"));
        }
        results
    });
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().flat_map(|(_, batch)| batch).collect()
}
