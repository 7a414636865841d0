//! Documents, as encoders read them.

/// A document, or a part of one that is longer than
/// [`PART_BYTES_MAX`](crate::source::PART_BYTES_MAX).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Document {
    /// Plain text.
    Text(TextPart),
    /// A conversation, which the encoder renders with the tokenizer's chat template.
    Chat(Chat),
}

impl Document {
    /// Whether the document has no text and no messages.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Text(part) => part.is_first && part.is_last && part.text.is_empty(),
            Self::Chat(chat) => chat.message_count == 0,
        }
    }
}

/// Text of a document. Short documents are one part, which is first and last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextPart {
    /// The text as it is in the source; nothing is added, trimmed or normalised.
    pub text: String,
    /// Whether the document begins here, where some tokenizers put a token in front.
    pub is_first: bool,
    /// Whether the document ends here. [`prepare`](crate::prepare::prepare) puts the end-of-text
    /// token behind this part.
    pub is_last: bool,
}

impl TextPart {
    /// A document of one part.
    #[must_use]
    pub fn whole(text: String) -> Self {
        Self { text, is_first: true, is_last: true }
    }
}

/// A conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chat {
    /// The JSON object as it is in the source, with its keys in their order: a template may print
    /// them, and may read others than the messages (`tools`).
    pub record: String,
    /// The key of the list of messages, `messages` as a rule.
    pub messages_field: String,
    /// Number of its messages.
    pub message_count: usize,
}
