//! Which tokens of a conversation the assistant writes.

use std::ops::Range;

use super::template::{ChatError, ChatTemplate, TemplateOptions};
use super::{Conversation, MessageRole};

/// Tokens that end a turn in well-known templates.
pub(super) const END_OF_TURN: [&str; 6] =
    ["<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>", "</s>"];

/// A rendered conversation, and the bytes of its text that the assistant writes, in order.
pub(super) struct MaskedText {
    pub(super) text: String,
    pub(super) answers: Vec<Range<usize>>,
}

pub(super) fn answers(
    template: &ChatTemplate,
    conversation: &Conversation,
    options: &TemplateOptions,
    end_of_turn: &[String],
) -> Result<MaskedText, ChatError> {
    template.check_marks(conversation)?;
    let render = |count, options: &TemplateOptions| {
        let rendered = template.render(conversation, count, options);
        rendered.map_err(|failure| template.locate(conversation, options, failure))
    };
    let whole = render(conversation.len(), options)?;
    if template.has_generation() {
        return Ok(MaskedText { text: whole.text, answers: whole.generations });
    }
    let prompt_options = TemplateOptions { add_generation_prompt: true, ..*options };
    let text = whole.text;
    let mut answers = Vec::new();
    let roles = conversation.roles().iter().enumerate();
    for (message, _) in roles.filter(|(_, role)| **role == MessageRole::Assistant) {
        let prompt = render(message, &prompt_options)?.text;
        let turn = render(message + 1, options)?.text;
        if !text.starts_with(&turn) || !turn.starts_with(&prompt) {
            return Err(ChatError::NoAnswer { message });
        }
        let start = prompt.len();
        let end =
            |token: &String| turn[start..].rfind(&token[..]).map(|at| start + at + token.len());
        let end = end_of_turn.iter().filter_map(end).max();
        answers.push(start..end.unwrap_or(turn.len()));
    }
    Ok(MaskedText { text, answers })
}

/// Whether each token has a character of an answer. Neither list need be without overlaps, both
/// are in order.
pub(super) fn of_offsets(offsets: &[Range<usize>], answers: &[Range<usize>]) -> Vec<bool> {
    let is_answer = |token: &Range<usize>| {
        let first = answers.partition_point(|answer| answer.end <= token.start);
        answers[first..].first().is_some_and(|answer| answer.start < token.end)
    };
    offsets.iter().map(|token| !token.is_empty() && is_answer(token)).collect()
}
