//! How many bytes of text tokens stand for.

use zbelastic_tokenizer::{DecodeStream, SpecialTokens, Tokenizer};
use zbelastic_wording::{CommandFailure, FailureDetail};

/// Counts the bytes of the tokens that count in a loss. Special tokens have none; the bytes of a
/// character that several tokens make count with the last of these, and not at all if it was cut
/// off.
pub struct TargetBytes<'t> {
    text: DecodeStream<'t>,
    count: u64,
}

impl<'t> TargetBytes<'t> {
    /// None so far.
    pub fn new(tokenizer: &'t Tokenizer) -> Self {
        Self { text: DecodeStream::new(tokenizer, SpecialTokens::Exclude), count: 0 }
    }

    /// The next token of the text, and whether it counts.
    ///
    /// # Errors
    /// If it cannot be decoded.
    pub fn add(&mut self, id: u32, counts: bool) -> Result<(), CommandFailure> {
        let piece = self.text.push(id).map_err(|error| {
            CommandFailure::usage("the tokenizer", vec![FailureDetail::new(error.to_string())])
        })?;
        if counts {
            self.count += piece.len() as u64;
        }
        Ok(())
    }

    /// Bytes of the tokens that count.
    pub fn count(&self) -> u64 {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_character_counts_with_its_last_token() {
        let tokenizer = Tokenizer::bytes();
        let mut bytes = TargetBytes::new(&tokenizer);
        let counts = |id: u8, counts, expected: u64, bytes: &mut TargetBytes<'_>| {
            bytes.add(u32::from(id), counts).expect("a byte");
            assert_eq!(bytes.count(), expected);
        };
        counts(b'a', false, 0, &mut bytes);
        counts(b'b', true, 1, &mut bytes);
        for id in &"ü".as_bytes()[..1] {
            counts(*id, true, 1, &mut bytes);
        }
        counts("ü".as_bytes()[1], true, 3, &mut bytes);
        counts(b'c', false, 3, &mut bytes);
    }
}
