//! `tokenizer train`: a byte-level BPE of a given vocabulary size over texts.
//!
//! The algorithm is that of `BpeTrainer` in the crate `tokenizers`: the most frequent pair is
//! merged, of equally frequent ones the pair of lower ids. Where no token comes about in two ways
//! the file is the same byte for byte. It is written again here since the crate counts in 32 bits
//! with a sign, keeps a pair twice in its queue once such a token is there, in an order that depends
//! on a random hash, and reports progress to a terminal alone. Here the same texts give the same
//! bytes for any number of threads.

mod document;
mod merges;
mod words;

use std::num::NonZeroUsize;

use crate::{SplitPattern, TokenizerFiles};

/// Tokens of single bytes, which every vocabulary begins with, after the special tokens.
const BYTE_TOKENS: usize = 256;

/// What to train.
#[derive(Clone, Debug)]
pub struct TrainRequest {
    /// Tokens of the vocabulary at most, special ones included. Fewer come out if no pair is left
    /// that is frequent enough.
    pub vocab_size: usize,
    /// How often a pair has to be in the texts to be merged.
    pub min_frequency: u64,
    /// Special tokens, which get the lowest ids in this order.
    pub special_tokens: Vec<String>,
    /// The special token that ends a text: `eos_token`, and `bos_token` as GPT-2 has it.
    pub eos_token: Option<String>,
    /// How texts are cut into the pieces within which pairs are merged.
    pub pattern: SplitPattern,
    /// Threads that count words.
    pub threads: NonZeroUsize,
}

impl TrainRequest {
    /// GPT-2's settings for a vocabulary of this size.
    #[must_use]
    pub fn gpt2(vocab_size: usize) -> Self {
        let end = "<|endoftext|>".to_owned();
        Self {
            vocab_size,
            min_frequency: 2,
            special_tokens: vec![end.clone()],
            eos_token: Some(end),
            pattern: SplitPattern::Gpt2,
            threads: NonZeroUsize::MIN,
        }
    }
}

/// How far the training is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrainProgress {
    /// Texts are cut into words, and these counted.
    Words {
        /// Bytes of text that were read.
        bytes: u64,
        /// Different words so far.
        words: usize,
    },
    /// Pairs are merged.
    Merges {
        /// Tokens of the vocabulary so far.
        tokens: usize,
        /// Tokens at the end.
        vocab_size: usize,
    },
}

/// Why a tokenizer cannot be trained.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TrainError {
    /// The vocabulary has no room for all bytes.
    #[error(
        "a vocabulary of {found} tokens is too small: 256 bytes and {special} special tokens need \
         {}", BYTE_TOKENS + special
    )]
    VocabularyTooSmall {
        /// Tokens of the vocabulary.
        found: usize,
        /// Special tokens.
        special: usize,
    },
    /// A special token is empty, there twice, or the character of a byte.
    #[error(
        "{token:?} cannot be a special token: expected texts of two characters or more, each once"
    )]
    SpecialToken {
        /// The token.
        token: String,
    },
    /// The token that ends a text is none of the special ones.
    #[error("eos_token is {token:?}, which is not among the special tokens")]
    UnknownEos {
        /// The token.
        token: String,
    },
    /// There is nothing to learn from.
    #[error("the texts are empty")]
    Empty,
}

impl TrainRequest {
    fn check(&self) -> Result<(), TrainError> {
        let special = self.special_tokens.len();
        if self.vocab_size < BYTE_TOKENS + special {
            return Err(TrainError::VocabularyTooSmall { found: self.vocab_size, special });
        }
        for (index, token) in self.special_tokens.iter().enumerate() {
            if token.chars().count() < 2 || self.special_tokens[..index].contains(token) {
                return Err(TrainError::SpecialToken { token: token.clone() });
            }
        }
        let unknown = self.eos_token.iter().find(|token| !self.special_tokens.contains(token));
        unknown.map_or(Ok(()), |token| Err(TrainError::UnknownEos { token: token.clone() }))
    }
}

/// Trains a byte-level BPE on texts, and returns its `tokenizer.json` and `tokenizer_config.json`.
///
/// A text is read whole and then dropped; different words stay in memory. `report` is
/// called after each batch of texts and each few merges.
///
/// # Errors
/// If the request contradicts itself, or the texts are empty.
pub fn train<T: AsRef<str> + Sync>(
    request: &TrainRequest,
    texts: impl IntoIterator<Item = T>,
    mut report: impl FnMut(TrainProgress),
) -> Result<TokenizerFiles, TrainError> {
    request.check()?;
    let words = words::count(texts, request.pattern, request.threads, &mut report);
    if words.is_empty() {
        return Err(TrainError::Empty);
    }
    let alphabet = request.alphabet();
    let mut vocabulary = merges::LearntVocabulary::new(&request.special_tokens, &alphabet);
    vocabulary.learn(&words, request.vocab_size, request.min_frequency, |tokens| {
        report(TrainProgress::Merges { tokens, vocab_size: request.vocab_size });
    });
    Ok(document::files(request, &vocabulary))
}

impl TrainRequest {
    /// Each byte's character, in the order of ids: ascending characters.
    fn alphabet(&self) -> Vec<(char, u8)> {
        let characters = crate::byte_level::byte_characters();
        let mut alphabet: Vec<_> = characters.into_iter().zip(0..=u8::MAX).collect();
        alphabet.sort_unstable();
        alphabet
    }
}

#[cfg(test)]
mod tests;
