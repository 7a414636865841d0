//! Ids of texts, why a text has none, and documents on several threads.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

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
