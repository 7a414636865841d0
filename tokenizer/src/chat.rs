//! Conversations: rendered by the tokenizer's own chat template, encoded, and masked to the part
//! that the assistant writes.

mod conversation;
mod date;
mod mask;
mod python;
mod template;

pub use conversation::{Conversation, ConversationError, MessageRole};
pub use date::{DateError, TemplateDate};
pub use template::{ChatError, TemplateOptions};

pub(crate) use template::ChatTemplate;

use crate::backend::Backend;
use crate::encode::Encoding;

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

/// How a tokenizer renders conversations: its template, and the tokens that end a turn.
#[derive(Debug, Default)]
pub(crate) struct ChatFormat {
    /// The template, or why it cannot be compiled.
    template: Option<Result<ChatTemplate, ChatError>>,
    /// The one for conversations with tools, where that is another.
    tool_template: Option<Result<ChatTemplate, ChatError>>,
    /// The contents of tokens that end a turn: well-known ones that the tokenizer has, and those
    /// that end generation.
    end_of_turn: Vec<String>,
}

impl ChatFormat {
    pub(crate) fn new(
        template: Option<Result<ChatTemplate, ChatError>>,
        tool_template: Option<Result<ChatTemplate, ChatError>>,
        backend: &Backend,
        stop_ids: &[u32],
    ) -> Self {
        let known = mask::END_OF_TURN.into_iter();
        let known = known.filter(|token| backend.token_to_id(token).is_some()).map(str::to_owned);
        let stops = stop_ids.iter().filter_map(|id| backend.id_to_token(*id));
        Self { template, tool_template, end_of_turn: known.chain(stops).collect() }
    }

    /// The text of a conversation.
    ///
    /// # Errors
    /// If there is no template, or it fails.
    pub(crate) fn apply(
        &self,
        conversation: &Conversation,
        options: &TemplateOptions,
    ) -> Result<String, ChatError> {
        let template = self.template(conversation)?;
        let rendered = template.render(conversation, conversation.len(), options);
        rendered
            .map(|rendered| rendered.text)
            .map_err(|failure| template.locate(conversation, options, failure))
    }

    /// The tokens of a conversation and which of them to train on.
    ///
    /// # Errors
    /// If there is no template, it fails, its answers cannot be found, or the text has no ids.
    pub(crate) fn encode(
        &self,
        backend: &Backend,
        conversation: &Conversation,
        options: &TemplateOptions,
    ) -> Result<ChatTokens, ChatError> {
        let template = self.template(conversation)?;
        let options = TemplateOptions { add_generation_prompt: false, ..*options };
        let masked = mask::answers(template, conversation, &options, &self.end_of_turn)?;
        let Encoding { ids, offsets } = backend.encode_with_offsets(&masked.text)?;
        let mask = mask::of_offsets(&offsets, &masked.answers);
        Ok(ChatTokens { text: masked.text, ids, mask })
    }

    fn template(&self, conversation: &Conversation) -> Result<&ChatTemplate, ChatError> {
        let of_tools = self.tool_template.as_ref().filter(|_| conversation.tools().is_some());
        let template = of_tools.or(self.template.as_ref()).ok_or(ChatError::NoTemplate)?;
        template.as_ref().map_err(Clone::clone)
    }
}
