//! A tokenizer as the encoder of a token store: documents to ids, chats by the chat template.

use std::path::Path;

use zbelastic_data::document::{Chat, Document, TextPart};
use zbelastic_data::encode::{
    BytesEncoder, EncodeDocuments, EncodeError, EncodedDocument, TokenizerHash,
};
use zbelastic_tokenizer::{
    ChatError, Conversation, DecodeError, DecodeStream, FolderError, SpecialTokens, TemplateDate,
    TemplateOptions, Tokenizer, TokenizerFiles,
};

/// What `--tokenizer` says for the built-in tokenizer.
const BYTES: &str = "bytes";

/// A tokenizer with the name of its content.
#[derive(Debug)]
pub struct TokenizerEncoder {
    tokenizer: Tokenizer,
    hash: TokenizerHash,
    /// The beginning-of-text token, if the tokenizer puts one in front of a text. What it puts
    /// behind is left to the store, which ends every text with the end-of-text token.
    beginning: Option<u32>,
    /// The day and time that a chat template may write.
    date: Option<TemplateDate>,
}

impl TokenizerEncoder {
    /// The built-in tokenizer, with the ids and the hash of [`BytesEncoder`].
    pub fn bytes() -> Self {
        let hash = BytesEncoder.tokenizer_hash();
        Self { tokenizer: Tokenizer::bytes(), hash, beginning: None, date: None }
    }

    /// The tokenizer of a model's folder, of a `tokenizer.json`, or for `bytes` the built-in one.
    ///
    /// # Errors
    /// If there is none, or its files cannot be read or understood.
    pub fn open(path: &Path) -> Result<Self, FolderError> {
        Self::open_with_files(path).map(|(encoder, _)| encoder)
    }

    /// The same with the files that it was read from; the built-in one has none.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with_files(path: &Path) -> Result<(Self, Option<TokenizerFiles>), FolderError> {
        if path == Path::new(BYTES) {
            return Ok((Self::bytes(), None));
        }
        let files = TokenizerFiles::read(path)?;
        let tokenizer = Tokenizer::from_files(&files);
        let tokenizer =
            tokenizer.map_err(|cause| FolderError::Load { folder: path.to_owned(), cause })?;
        let hash = hash_of(&files, &tokenizer);
        // An empty text has those tokens alone that are put around every text.
        let around = tokenizer.encode("", SpecialTokens::Include).unwrap_or_default();
        let beginning = around.first().copied().filter(|first| tokenizer.bos_id() == Some(*first));
        Ok((Self { tokenizer, hash, beginning, date: None }, Some(files)))
    }

    /// The same with the day and time that a chat template may write.
    #[must_use]
    pub fn with_date(self, date: Option<TemplateDate>) -> Self {
        Self { date, ..self }
    }

    /// The tokenizer itself.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The ids of a text as those of a document's beginning: nothing is put behind.
    ///
    /// # Errors
    /// If the vocabulary has no token for a part of it.
    pub fn encode_prompt(&self, text: &str) -> Result<Vec<u32>, EncodeError> {
        let part = TextPart { text: text.to_owned(), is_first: true, is_last: false };
        Ok(self.encode_text(&part)?.ids)
    }

    /// The text of ids, special tokens included.
    pub fn decode(&self, ids: &[u32]) -> String {
        let text = self.tokenizer.decode(ids, SpecialTokens::Include);
        text.unwrap_or_else(|error| format!("({error})"))
    }

    /// The texts of runs of ids, which in a row are the text of all of them: a character belongs to the run
    /// with its last id.
    ///
    /// # Errors
    /// As [`Tokenizer::decode`].
    pub fn decode_runs<'r>(
        &self,
        runs: impl Iterator<Item = &'r [u32]>,
    ) -> Result<Vec<String>, DecodeError> {
        let mut stream = DecodeStream::new(&self.tokenizer, SpecialTokens::Include);
        let mut texts = Vec::new();
        for run in runs {
            let pushed = run.iter().map(|id| stream.push(*id));
            texts.push(pushed.collect::<Result<String, _>>()?);
        }
        let rest = stream.finish()?;
        if let Some(last) = texts.last_mut() {
            last.push_str(&rest);
        }
        Ok(texts)
    }

    fn encode_text(&self, part: &TextPart) -> Result<EncodedDocument, EncodeError> {
        let encoded = self.tokenizer.encode(&part.text, SpecialTokens::Exclude);
        let encoded =
            encoded.map_err(|error| EncodeError::Tokenize { reason: error.to_string() })?;
        let mut ids: Vec<u32> = self.beginning.filter(|_| part.is_first).into_iter().collect();
        ids.extend(encoded);
        Ok(EncodedDocument { ids, loss_mask: None })
    }

    fn encode_chat(&self, chat: &Chat) -> Result<EncodedDocument, EncodeError> {
        let conversation = Conversation::from_json_field(&chat.record, &chat.messages_field);
        let conversation =
            conversation.map_err(|error| EncodeError::Render { reason: error.to_string() })?;
        let options = TemplateOptions { date: self.date, ..TemplateOptions::default() };
        let tokens = self.tokenizer.encode_chat(&conversation, &options);
        let tokens = tokens.map_err(|error| match error {
            ChatError::NoTemplate => EncodeError::NoChatTemplate,
            ChatError::NoDate => EncodeError::NoDate,
            ChatError::Encode(error) => EncodeError::Tokenize { reason: error.to_string() },
            ChatError::Malformed { .. }
            | ChatError::Refused { .. }
            | ChatError::Failed { .. }
            | ChatError::NoAnswer { .. }
            | ChatError::Noncharacter => {
                let reason = error.to_string();
                match error.is_of_conversation() {
                    true => EncodeError::Render { reason },
                    false => EncodeError::Template { reason },
                }
            }
        })?;
        Ok(EncodedDocument { ids: tokens.ids, loss_mask: Some(tokens.mask) })
    }
}

impl EncodeDocuments for TokenizerEncoder {
    fn tokenizer_hash(&self) -> TokenizerHash {
        self.hash
    }

    fn settings(&self) -> Option<String> {
        self.date.map(|date| date.to_string())
    }

    fn vocabulary(&self) -> u32 {
        self.tokenizer.vocab_size()
    }

    fn end_of_text(&self) -> Option<u32> {
        self.tokenizer.eos_id()
    }

    fn encode(&self, document: &Document) -> Result<EncodedDocument, EncodeError> {
        match document {
            Document::Text(part) => self.encode_text(part),
            Document::Chat(chat) => self.encode_chat(chat),
        }
    }
}

/// BLAKE3 of what determines ids and loss masks: of each file that is read for them its length and
/// bytes, and the ids that end generation. What else `generation_config.json` has, such as a
/// temperature, changes no id.
fn hash_of(files: &TokenizerFiles, tokenizer: &Tokenizer) -> TokenizerHash {
    let mut hasher = blake3::Hasher::new();
    let TokenizerFiles { tokenizer_json, tokenizer_config, special_tokens_map, .. } = files;
    let others = [tokenizer_config, special_tokens_map, &files.chat_template];
    let others = others.into_iter().map(|bytes| bytes.as_deref().unwrap_or_default());
    for bytes in std::iter::once(&tokenizer_json[..]).chain(others) {
        hasher.update(&(bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    }
    for id in tokenizer.stop_ids() {
        hasher.update(&id.to_le_bytes());
    }
    TokenizerHash(hasher.finalize())
}

#[cfg(test)]
mod tests;
