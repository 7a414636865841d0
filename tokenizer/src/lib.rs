//! Text to token ids and back.
//!
//! A [`Tokenizer`] is a `tokenizer.json` of Hugging Face with the files beside it, or the built-in
//! [`Tokenizer::bytes`], for which each byte is a token. It encodes text ([`Tokenizer::encode`]),
//! decodes ids ([`Tokenizer::decode`], [`DecodeStream`]), renders conversations by its own chat
//! template ([`Tokenizer::apply_chat_template`]) and marks the tokens to train on
//! ([`Tokenizer::encode_chat`]). [`train`] makes a new one.
//!
//! Ids are those of the crate `tokenizers`. Byte-level BPE, which GPT-2, Llama 3, Qwen and their
//! like use, has a path of its own here that is several times as fast and gives the same ids.
//!
//! Files are read in `files.rs` alone; everything else is a function of bytes.

mod backend;
mod byte_level;
mod char_set;
mod chat;
mod decode_stream;
mod encode;
mod files;
mod load;
mod load_error;
mod special_tokens;
mod table;
mod tokenizer;
pub mod train;

pub use backend::DecodeError;
pub use byte_level::SplitPattern;
pub use chat::{
    ChatError, ChatTokens, Conversation, ConversationError, DateError, MessageRole, TemplateDate,
    TemplateOptions,
};
pub use decode_stream::DecodeStream;
pub use encode::{EncodeDocumentsError, EncodeError, Encoding, SpecialTokens};
pub use files::{FolderError, TokenizerFiles};
pub use load_error::LoadError;
pub use tokenizer::{Tokenizer, VocabularyError};
