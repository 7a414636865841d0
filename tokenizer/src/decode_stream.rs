//! Text of ids that arrive one by one, without half a character.

use crate::{DecodeError, SpecialTokens, Tokenizer};

/// Ids that come without text before they are decoded as they stand. A character has at most four bytes,
/// so more of them only wait where the bytes are no UTF-8.
const WAITING_MAX: usize = 64;
/// Ids of a window: more only where each ends within a character, for which the texts of all of them are
/// decoded again with each.
const WINDOW_MAX: usize = 16 * WAITING_MAX;
const REPLACEMENT: char = '\u{fffd}';

/// Decodes ids as they are generated. The texts in a row are [`Tokenizer::decode`] of all ids,
/// except where these are bytes that are no UTF-8.
#[derive(Debug)]
pub struct DecodeStream<'t> {
    tokenizer: &'t Tokenizer,
    special: SpecialTokens,
    /// The ids of the last whole text, since decoders treat the first word of a text differently,
    /// and behind them the ids that wait.
    window: Vec<u32>,
    /// How many of the window's ids were of the last whole text.
    context_len: usize,
    /// Bytes of the window's text that were returned.
    returned_bytes: usize,
    /// Ids since text was returned last.
    waiting: usize,
}

impl<'t> DecodeStream<'t> {
    /// A stream that has seen no ids.
    #[must_use]
    pub fn new(tokenizer: &'t Tokenizer, special: SpecialTokens) -> Self {
        Self {
            tokenizer,
            special,
            window: Vec::new(),
            context_len: 0,
            returned_bytes: 0,
            waiting: 0,
        }
    }

    /// The text that `id` completes; empty while a character is incomplete.
    ///
    /// # Errors
    /// As [`Tokenizer::decode`].
    pub fn push(&mut self, id: u32) -> Result<String, DecodeError> {
        self.window.push(id);
        let text = self.tokenizer.decode(&self.window, self.special)?;
        let whole = text.trim_end_matches(REPLACEMENT).len();
        let is_whole = whole == text.len();
        let is_full = self.waiting >= WAITING_MAX || self.window.len() >= WINDOW_MAX;
        let end = if is_full { text.len() } else { whole };
        let new = text.get(self.returned_bytes..end).unwrap_or_default().to_owned();
        self.returned_bytes = self.returned_bytes.max(end);
        self.waiting = if new.is_empty() { self.waiting + 1 } else { 0 };
        // An id without text, such as a special one, is no context for the next.
        if is_whole && !new.is_empty() || is_full {
            self.waiting = 0;
            self.window.drain(..self.context_len);
            self.context_len = self.window.len();
            self.returned_bytes = self.tokenizer.decode(&self.window, self.special)?.len();
        }
        Ok(new)
    }

    /// The text that is left, with U+FFFD for an incomplete character.
    ///
    /// # Errors
    /// As [`Tokenizer::decode`].
    pub fn finish(self) -> Result<String, DecodeError> {
        let text = self.tokenizer.decode(&self.window, self.special)?;
        Ok(text.get(self.returned_bytes..).unwrap_or_default().to_owned())
    }
}
