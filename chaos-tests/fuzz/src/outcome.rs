//! What a reader made of an input.

/// The result of a reader for an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeOutcome {
    /// It accepted the input, or the first part of it.
    Accepted,
    /// The reader refused the input.
    Refused,
}

impl DecodeOutcome {
    pub(crate) const fn of(is_taken: bool) -> Self {
        if is_taken { Self::Accepted } else { Self::Refused }
    }
}
