//! Conversations: rendered by the tokenizer's own chat template, encoded, and masked to the part
//! that the assistant writes.

mod conversation;
mod mask;
mod python;
mod template;

pub use conversation::{Conversation, ConversationError, Role};
pub use template::{ChatError, TemplateDate, TemplateOptions};

pub(crate) use template::ChatTemplate;

use crate::{Encoding, Tokenizer};

/// A conversation as tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChatTokens {
    /// All messages as the template renders them.
    pub text: String,
    /// The ids of `text`, to which nothing is added: the template writes special tokens itself.
    pub ids: Vec<u32>,
    /// For each id whether it is to be predicted: whether the assistant writes it. Those of its
    /// answers, and the end-of-turn token of each.
    pub mask: Vec<bool>,
}

impl Tokenizer {
    /// The text of a conversation by the tokenizer's chat template, as `apply_chat_template` of
    /// transformers renders it.
    ///
    /// # Errors
    /// If there is no template, or it fails.
    pub fn apply_chat_template(
        &self,
        conversation: &Conversation,
        options: &TemplateOptions,
    ) -> Result<String, ChatError> {
        let template = self.chat_template()?;
        let rendered = template.render(conversation, conversation.len(), options);
        rendered
            .map(|rendered| rendered.text)
            .map_err(|failure| template.locate(conversation, options, failure))
    }

    /// The tokens of a conversation and which of them to train on.
    ///
    /// A template with `{% generation %}` marks states itself which part the assistant writes. Without
    /// them an answer begins where the messages before it end, rendered with the prompt for a
    /// generation, and ends after its end-of-turn token. A token with any character of an answer
    /// counts. Special tokens that are written in a message become special tokens.
    ///
    /// # Errors
    /// If there is no template, it fails, its answers cannot be found, or the text has no ids.
    pub fn encode_chat(
        &self,
        conversation: &Conversation,
        options: &TemplateOptions,
    ) -> Result<ChatTokens, ChatError> {
        let template = self.chat_template()?;
        let options = TemplateOptions { add_generation_prompt: false, ..*options };
        let ends = self.end_of_turn_tokens();
        let masked = mask::answers(template, conversation, &options, &ends)?;
        let Encoding { ids, offsets } = self.encode_with_offsets(&masked.text)?;
        let mask = mask::of_offsets(&offsets, &masked.answers);
        Ok(ChatTokens { text: masked.text, ids, mask })
    }

    fn chat_template(&self) -> Result<&ChatTemplate, ChatError> {
        let template = self.chat_template.as_ref().ok_or(ChatError::NoTemplate)?;
        template.as_ref().map_err(Clone::clone)
    }

    /// The contents of tokens that end a turn: those that end generation, and well-known ones that
    /// the tokenizer has.
    fn end_of_turn_tokens(&self) -> Vec<String> {
        let known = mask::END_OF_TURN.into_iter().filter(|token| self.token_to_id(token).is_some());
        let stops = self.stop_ids().iter().filter_map(|id| self.id_to_token(*id));
        known.map(str::to_owned).chain(stops).collect()
    }
}
