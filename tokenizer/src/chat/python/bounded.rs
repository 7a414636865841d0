//! Text of a limited length, so that no template takes all memory.

use minijinja::{Error, State};

use super::arguments::refused;
use crate::chat::template::RENDERED_BYTES_MAX;

/// Bytes that are written for one unit of fuel, as minijinja has it.
const BYTES_PER_FUEL: usize = 64;

/// A text that is written piece by piece. What would make it longer than its limit is refused before memory is
/// taken.
pub(super) struct Bounded {
    text: String,
    bytes_max: usize,
}

impl Bounded {
    /// A text of a template: no longer than what is rendered may be.
    pub(super) fn new() -> Self {
        Self::up_to(RENDERED_BYTES_MAX)
    }

    /// A text of at most so many bytes.
    pub(super) fn up_to(bytes_max: usize) -> Self {
        Self { text: String::new(), bytes_max }
    }

    pub(super) fn push_str(&mut self, text: &str) -> Result<(), Error> {
        self.check(text.len())?;
        self.text.push_str(text);
        Ok(())
    }

    pub(super) fn push(&mut self, c: char) -> Result<(), Error> {
        self.push_str(c.encode_utf8(&mut [0; 4]))
    }

    /// Puts a text in so many times.
    pub(super) fn repeat(&mut self, text: &str, count: usize) -> Result<(), Error> {
        self.check(text.len().saturating_mul(count))?;
        self.text.push_str(&text.repeat(count));
        Ok(())
    }

    /// Puts a text in with others in place of the characters that have one.
    pub(super) fn push_escaped(
        &mut self,
        text: &str,
        escape: impl Fn(char) -> Option<String>,
    ) -> Result<(), Error> {
        let mut behind = 0;
        for (at, c) in text.char_indices() {
            if let Some(escaped) = escape(c) {
                self.push_str(&text[behind..at])?;
                self.push_str(&escaped)?;
                behind = at + c.len_utf8();
            }
        }
        self.push_str(&text[behind..])
    }

    /// Refuses so many bytes more if they are too many.
    fn check(&self, more: usize) -> Result<(), Error> {
        let is_wrong = self.text.len().saturating_add(more) > self.bytes_max;
        let refuse = || refused(format!("it makes a text of more than {} bytes", self.bytes_max));
        if is_wrong { Err(refuse()) } else { Ok(()) }
    }

    /// The text, unpaid.
    pub(super) fn into_text(self) -> String {
        self.text
    }

    /// The text, once its length is paid with fuel.
    pub(super) fn finish(self, state: &State<'_, '_>) -> Result<String, Error> {
        charge(state, self.text.len() / BYTES_PER_FUEL)?;
        Ok(self.text)
    }
}

/// Pays with fuel for so many steps.
pub(super) fn charge(state: &State<'_, '_>, steps: usize) -> Result<(), Error> {
    state.consume_fuel(u64::try_from(steps).unwrap_or(u64::MAX))
}
