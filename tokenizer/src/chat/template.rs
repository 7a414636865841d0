//! A chat template: Jinja, as transformers runs it.

use std::error::Error as _;
use std::fmt;
use std::io;
use std::ops::Range;

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Error, ErrorKind, Value};

use super::Conversation;
use super::date::TemplateDate;
use super::python;
use crate::EncodeError;

/// Instructions that one rendering may execute, so that no template runs for ever.
const FUEL: u64 = 50_000_000;
/// Most bytes of a rendered conversation: four times the longest line of chat data. Within its fuel a
/// template can write gigabytes.
pub(super) const RENDERED_BYTES_MAX: usize = 64 << 20;
const NAME: &str = "chat_template";
/// The function that transformers gives to templates for the day.
const STRFTIME_NOW: &str = "strftime_now";
/// Characters that never stand in a text (Unicode's noncharacters); they mark where the content of
/// a `{% generation %}` begins and ends while the text is rendered.
const GENERATION_BEGINS: char = '\u{fdd0}';
const GENERATION_ENDS: char = '\u{fdd1}';
const GENERATION_FILTER: &str = "zbelastic_generation";

/// How a template is rendered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TemplateOptions {
    /// Whether the beginning of an answer is put behind the messages.
    pub add_generation_prompt: bool,
    /// The time that `strftime_now` formats. Without it the function is not defined, and templates
    /// with a test for that (Llama 3.1's) write a fixed date: tokens do not depend on the day.
    pub date: Option<TemplateDate>,
}

/// Why a conversation has no text or no tokens. A message's index counts from 0.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChatError {
    /// The tokenizer has no template.
    #[error(
        "the tokenizer has no chat template: put a chat_template.jinja beside its tokenizer.json, \
         or use the tokenizer of the model's chat version"
    )]
    NoTemplate,
    /// The template is not Jinja as it is understood here.
    #[error("the chat template, line {line}: {cause}")]
    Malformed {
        /// Line of the template, counted from 1.
        line: usize,
        /// What is wrong there.
        cause: String,
    },
    /// The template calls `raise_exception`.
    #[error("the chat template refuses message {message}: {cause}")]
    Refused {
        /// Index of the first message with which it does.
        message: usize,
        /// What it says.
        cause: String,
    },
    /// The template fails.
    #[error("the chat template fails at message {message}, line {line}: {cause}")]
    Failed {
        /// Index of the first message with which it does.
        message: usize,
        /// Line of the template, counted from 1.
        line: usize,
        /// What is wrong there.
        cause: String,
        /// Whether the template has a filter, test or function there that is not known, which no
        /// other conversation helps.
        is_unknown_name: bool,
    },
    /// The template writes the day, and none was given.
    #[error(
        "the chat template writes the day (strftime_now), which is part of the data: give one, as \
         data prepare --date 2026-11-29 does"
    )]
    NoDate,
    /// The part that the assistant writes cannot be found.
    #[error(
        "the chat template writes the messages before the answer in message {message} differently \
         once it is there, so its tokens cannot be found: put {{% generation %}} and \
         {{% endgeneration %}} around answers in the template"
    )]
    NoAnswer {
        /// Index of the answer.
        message: usize,
    },
    /// A message, or a tool, has a character that marks answers.
    #[error(
        "the conversation holds U+FDD0 or U+FDD1, which no text may: remove them from the data"
    )]
    Noncharacter,
    /// The text has no ids.
    #[error(transparent)]
    Encode(#[from] EncodeError),
}

impl ChatError {
    /// Whether the conversation alone is at fault, so that the template renders others.
    #[must_use]
    pub const fn is_of_conversation(&self) -> bool {
        match self {
            Self::Refused { .. }
            | Self::Failed { is_unknown_name: false, .. }
            | Self::Noncharacter => true,
            Self::NoTemplate
            | Self::Malformed { .. }
            | Self::Failed { is_unknown_name: true, .. }
            | Self::NoDate
            | Self::NoAnswer { .. }
            | Self::Encode(_) => false,
        }
    }
}

/// That a template has called `raise_exception`.
#[derive(Debug)]
struct Raised;

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("raise_exception")
    }
}

impl std::error::Error for Raised {}

/// A compiled template.
#[derive(Debug)]
pub(crate) struct ChatTemplate {
    environment: Environment<'static>,
    special_tokens: Vec<(&'static str, Value)>,
    has_generation: bool,
}

/// A rendered conversation.
#[derive(Debug, Default)]
pub(super) struct Rendered {
    pub(super) text: String,
    /// The contents of `{% generation %}` blocks, in bytes of `text`.
    pub(super) generations: Vec<Range<usize>>,
}

impl ChatTemplate {
    /// `special_tokens` are the variables `bos_token` and so on, `additional` those without a name.
    pub(crate) fn compile(
        source: &str,
        special_tokens: &[(&'static str, String)],
        additional: &[String],
    ) -> Result<Self, ChatError> {
        let mut environment = Environment::new();
        let mut whitespace = SyntaxConfig::builder();
        let syntax = whitespace.trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.expect("only white space is configured"));
        environment.set_fuel(Some(FUEL));
        python::add_to(&mut environment);
        environment.add_filter(GENERATION_FILTER, |text: &str| {
            format!("{GENERATION_BEGINS}{text}{GENERATION_ENDS}")
        });
        environment.add_function("raise_exception", |cause: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, cause).with_source(Raised))
        });
        let rewritten = generation_as_filter(source);
        let has_generation = rewritten != source;
        environment.add_template_owned(NAME, rewritten).map_err(|cause| ChatError::Malformed {
            line: cause.line().unwrap_or_default(),
            cause: describe(&cause),
        })?;
        let value = |(name, content): &(&'static str, String)| (*name, Value::from(&content[..]));
        // A token without content is none.
        let special_tokens = special_tokens.iter().filter(|(_, content)| !content.is_empty());
        let mut special_tokens: Vec<_> = special_tokens.map(value).collect();
        if !additional.is_empty() {
            special_tokens
                .push(("additional_special_tokens", additional.iter().cloned().collect()));
        }
        Ok(Self { environment, special_tokens, has_generation })
    }

    /// Whether the template marks answers by `{% generation %}`.
    pub(super) fn has_generation(&self) -> bool {
        self.has_generation
    }

    /// The first `count` messages.
    pub(super) fn render(
        &self,
        conversation: &Conversation,
        count: usize,
        options: &TemplateOptions,
    ) -> Result<Rendered, Error> {
        let mut variables = self.special_tokens.clone();
        variables.push(("messages", conversation.first(count)));
        variables.push(("tools", conversation.tools().cloned().unwrap_or(Value::from(()))));
        variables.push(("documents", Value::from(())));
        variables.push(("add_generation_prompt", Value::from(options.add_generation_prompt)));
        if let Some(date) = options.date {
            let now = Value::from_function(move |format: &str| date.format(format));
            variables.push((STRFTIME_NOW, now));
        }
        let template = self.environment.get_template(NAME)?;
        let mut written = BoundedBytes(Vec::new());
        let done = template.render_captured_to(Value::from_pairs(variables), &mut written);
        done.map_err(|error| match error.kind() == ErrorKind::WriteFailure {
            true => Error::new(ErrorKind::WriteFailure, BoundedBytes::full().to_string()),
            false => error,
        })?;
        let text = String::from_utf8(written.0).expect("templates write text");
        Ok(if self.has_generation {
            cut_marks(&text)
        } else {
            Rendered { text, ..Rendered::default() }
        })
    }

    /// A failure of the whole conversation, with the first message with which it is there.
    pub(super) fn locate(
        &self,
        conversation: &Conversation,
        options: &TemplateOptions,
        failure: Error,
    ) -> ChatError {
        let fails = |count: &usize| self.render(conversation, *count, options).is_err();
        let count = (1..=conversation.len()).find(fails).unwrap_or(conversation.len());
        let message = count.saturating_sub(1);
        let cause = describe(&failure);
        let unknown = cause.split(' ').next();
        if failure.kind() == ErrorKind::UnknownFunction && unknown == Some(STRFTIME_NOW) {
            return ChatError::NoDate;
        }
        let mut source = failure.source();
        while let Some(found) = source {
            if found.is::<Raised>() {
                return ChatError::Refused { message, cause };
            }
            source = found.source();
        }
        let is_unknown_name = matches!(
            failure.kind(),
            ErrorKind::UnknownFilter | ErrorKind::UnknownTest | ErrorKind::UnknownFunction
        );
        let line = failure.line().unwrap_or_default();
        ChatError::Failed { message, line, cause, is_unknown_name }
    }

    /// Refuses a conversation with a character that marks answers.
    pub(super) fn check_marks(&self, conversation: &Conversation) -> Result<(), ChatError> {
        let marks = [GENERATION_BEGINS, GENERATION_ENDS];
        let is_wrong = self.has_generation && marks.iter().any(|mark| conversation.contains(*mark));
        if is_wrong { Err(ChatError::Noncharacter) } else { Ok(()) }
    }
}

/// Text that is rendered, up to [`RENDERED_BYTES_MAX`].
struct BoundedBytes(Vec<u8>);

impl BoundedBytes {
    fn full() -> io::Error {
        let what = format!("it writes more than {RENDERED_BYTES_MAX} bytes");
        io::Error::new(io::ErrorKind::FileTooLarge, what)
    }
}

impl io::Write for BoundedBytes {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > RENDERED_BYTES_MAX {
            return Err(Self::full());
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn describe(error: &Error) -> String {
    error.detail().map_or_else(|| error.kind().to_string(), str::to_owned)
}

/// The template with `{% generation %}` blocks, which transformers adds to Jinja, as blocks of a
/// filter, which have the same effect on white space, in a scope of their own.
fn generation_as_filter(source: &str) -> String {
    let mut result = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find('{') {
        let (before, tag) = rest.split_at(start);
        result.push_str(before);
        let end = tag_end(tag);
        let (tag, behind) = tag.split_at(end);
        result.push_str(&generation_tag(tag).unwrap_or_else(|| tag.to_owned()));
        rest = behind;
    }
    result + rest
}

/// The end of what begins with a brace: a comment, an expression or a statement, in whose strings a closing
/// brace is a character, a block of raw text, or the brace alone.
fn tag_end(tag: &str) -> usize {
    let close = match tag.get(..2) {
        Some("{#") => return tag.find("#}").map_or(tag.len(), |at| at + 2),
        Some("{{") => "}}",
        Some("{%") => "%}",
        Some(_) | None => return 1,
    };
    let mut quote = None;
    let mut is_escaped = false;
    for (at, c) in tag.char_indices().skip(2) {
        match quote {
            Some(_) if is_escaped => is_escaped = false,
            Some(_) if c == '\\' => is_escaped = true,
            Some(open) if c == open => quote = None,
            Some(_) => {}
            None if c == '"' || c == '\'' => quote = Some(c),
            None if tag[at..].starts_with(close) => {
                let end = at + close.len();
                let is_raw = statement(&tag[..end]) == Some("raw");
                return if is_raw { end + raw_len(&tag[end..]) } else { end };
            }
            None => {}
        }
    }
    tag.len()
}

/// The words of a statement.
fn statement(tag: &str) -> Option<&str> {
    let words = tag.strip_prefix("{%")?.strip_suffix("%}")?;
    Some(words.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+'))
}

/// The length of a raw text, with the statement that ends it.
fn raw_len(text: &str) -> usize {
    let mut at = 0;
    while let Some(start) = text[at..].find("{%").map(|start| at + start) {
        let Some(end) = text[start..].find("%}").map(|end| start + end + 2) else { break };
        if statement(&text[start..end]) == Some("endraw") {
            return end;
        }
        at = start + 2;
    }
    text.len()
}

/// The statements that stand for one of a `{% generation %}` block.
fn generation_tag(tag: &str) -> Option<String> {
    let words = statement(tag)?;
    let (first, second) = match words {
        "generation" => ("with".to_owned(), format!("filter {GENERATION_FILTER}")),
        "endgeneration" => ("endfilter".to_owned(), "endwith".to_owned()),
        _ => return None,
    };
    let start = tag.find(words)?;
    let (left, right) = (&tag[..start], &tag[start + words.len()..]);
    Some(format!("{left}{first} %}}{{% {second}{right}"))
}

fn cut_marks(marked: &str) -> Rendered {
    let mut rendered = Rendered::default();
    let mut begin = 0;
    for part in marked.split_inclusive([GENERATION_BEGINS, GENERATION_ENDS]) {
        rendered.text.push_str(part.trim_end_matches([GENERATION_BEGINS, GENERATION_ENDS]));
        if part.ends_with(GENERATION_BEGINS) {
            begin = rendered.text.len();
        } else if part.ends_with(GENERATION_ENDS) {
            rendered.generations.push(begin..rendered.text.len());
        }
    }
    rendered
}

#[cfg(test)]
mod tests;
