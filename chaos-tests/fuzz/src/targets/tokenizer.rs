//! Tokenizers, chat templates and chats.

use zbelastic_tokenizer::train::{TrainRequest, train};
use zbelastic_tokenizer::{
    Conversation, MessageRole, SpecialTokens, TemplateOptions, Tokenizer, TokenizerFiles,
};

use crate::DecodeOutcome;

/// What a tokenizer holds by itself: tables of single bytes and of merges, and compiled patterns.
pub const TOKENIZER_MEMORY: usize = 64 << 20;
/// What a template may write, which is doubled as it grows, twice where parts are compared, and its ids.
pub const TEMPLATE_MEMORY: usize = 512 << 20;

/// Texts that are encoded by each tokenizer that is accepted.
const TEXTS: [&str; 4] = ["", "a", "the cat's 12 hats\n\n ", "<|endoftext|>\u{e9}\u{1f600}\0 x"];

/// A small tokenizer.
pub fn files() -> TokenizerFiles {
    train(&TrainRequest::gpt2(280), ["the cat and the hat and the mat"], |_| {}).expect("a text")
}

/// A `tokenizer.json`, and behind a byte of zero a `tokenizer_config.json`. What it encodes has ids of its
/// own, which it decodes.
pub fn tokenizers(bytes: &[u8]) -> DecodeOutcome {
    let mut parts = bytes.splitn(2, |byte| *byte == 0).map(<[u8]>::to_vec);
    let tokenizer_json = parts.next().unwrap_or_default();
    let files =
        TokenizerFiles { tokenizer_json, tokenizer_config: parts.next(), ..Default::default() };
    let Ok(tokenizer) = Tokenizer::from_files(&files) else { return DecodeOutcome::Refused };
    for text in TEXTS {
        let Ok(ids) = tokenizer.encode(text, SpecialTokens::Include) else { continue };
        assert!(ids.iter().all(|id| *id < tokenizer.vocab_size()), "{ids:?}");
        let _ = tokenizer.decode(&ids, SpecialTokens::Exclude);
    }
    DecodeOutcome::Accepted
}

fn chat() -> Conversation {
    Conversation::new([
        (MessageRole::System, "s"),
        (MessageRole::User, "one?"),
        (MessageRole::Assistant, "\ntwo "),
    ])
}

/// A chat template: each id of what it renders is predicted or not.
pub fn templates(bytes: &[u8]) -> DecodeOutcome {
    let files = TokenizerFiles { chat_template: Some(bytes.to_vec()), ..files() };
    let Ok(tokenizer) = Tokenizer::from_files(&files) else { return DecodeOutcome::Refused };
    let options = TemplateOptions::default();
    let Ok(tokens) = tokenizer.encode_chat(&chat(), &options) else {
        return DecodeOutcome::Refused;
    };
    assert_eq!(tokens.ids.len(), tokens.mask.len());
    assert_eq!(tokenizer.apply_chat_template(&chat(), &options), Ok(tokens.text));
    DecodeOutcome::Accepted
}

/// A line of chat data.
pub fn chats(bytes: &[u8]) -> DecodeOutcome {
    let Ok(line) = std::str::from_utf8(bytes) else { return DecodeOutcome::Refused };
    let read = Conversation::from_json(line);
    assert_eq!(read.is_ok(), Conversation::from_json_field(line, "messages").is_ok());
    let _ = Conversation::from_json_field(line, "turns");
    let Ok(read) = read else { return DecodeOutcome::Refused };
    assert_eq!(read.roles().len(), read.len());
    DecodeOutcome::Accepted
}
