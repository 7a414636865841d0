//! A conversation, as chat data has it: `{"messages": [{"role": "user", "content": "Hi"}, …]}`.

use std::collections::BTreeMap;

use minijinja::Value;
use minijinja::value::ValueKind;
use serde::Deserialize;

use super::python::as_python;

/// The author of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageRole {
    /// Instructions that hold for the whole conversation.
    System,
    /// The same, as some templates name it.
    Developer,
    /// The person.
    User,
    /// The model, which is trained on its messages.
    Assistant,
    /// The result of a tool's call.
    Tool,
    /// The same, as older templates name it.
    Function,
    /// The same, as Llama 3.1 names it.
    Ipython,
}

const ROLES: [(MessageRole, &str); 7] = [
    (MessageRole::System, "system"),
    (MessageRole::Developer, "developer"),
    (MessageRole::User, "user"),
    (MessageRole::Assistant, "assistant"),
    (MessageRole::Tool, "tool"),
    (MessageRole::Function, "function"),
    (MessageRole::Ipython, "ipython"),
];

impl MessageRole {
    /// The role's name in data and templates.
    #[must_use]
    pub fn name(self) -> &'static str {
        let row = ROLES.iter().find(|(role, _)| *role == self);
        row.expect("every role has a row").1
    }

    fn of_name(name: &str) -> Option<Self> {
        ROLES.iter().find(|row| row.1 == name).map(|row| row.0)
    }
}

/// Messages in order, and the tools that the assistant may call.
#[derive(Clone, Debug)]
pub struct Conversation {
    roles: Vec<MessageRole>,
    /// The messages with all their keys, as a template receives them.
    messages: Vec<Value>,
    tools: Option<Value>,
}

/// Why a text is no conversation. A message's index counts from 0.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConversationError {
    /// It is no JSON object with a list of messages.
    #[error(
        "column {column}: {cause}; expected {{\"messages\": [{{\"role\": …, \"content\": …}}]}}"
    )]
    Malformed {
        /// The column of the line, counted from 1.
        column: usize,
        /// What is wrong there.
        cause: String,
    },
    /// A message has no role.
    #[error("message {message} has no role; expected {{\"role\": …, \"content\": …}}")]
    NoRole {
        /// Its index.
        message: usize,
    },
    /// A message has a role that is none of a conversation's, such as `gpt` in ShareGPT's files.
    #[error(
        "message {message} has the role {found:?}; expected one of {}",
        ROLES.map(|row| row.1).join(", ")
    )]
    UnknownRole {
        /// Its index.
        message: usize,
        /// Its role.
        found: String,
    },
    /// The tools are no list of objects, nor a text that is one in JSON.
    #[error(
        "tools are {found}; expected a list of JSON schemas, {{\"type\": \"function\", …}} each"
    )]
    Tools {
        /// What they are.
        found: String,
    },
    /// A message has neither a content nor calls of tools.
    #[error("message {message} has neither a content nor tool_calls")]
    NoContent {
        /// Its index.
        message: usize,
    },
}

#[derive(Deserialize)]
struct ConversationDocument {
    messages: Vec<Value>,
    tools: Option<Value>,
}

/// The tools as a template receives them: the schemas of functions, as transformers requires them.
/// Data sets of one type a column have them as a text of JSON.
fn check_tools(tools: Value) -> Result<Option<Value>, ConversationError> {
    let found = |found: String| Err(ConversationError::Tools { found });
    let tools = match tools.as_str() {
        // Of no characters are no tools.
        Some("") => Value::from_iter::<[Value; 0]>([]),
        Some(text) => match serde_json::from_str(text) {
            Ok(tools) => tools,
            Err(error) => return found(format!("a text that is no JSON ({error})")),
        },
        None => tools,
    };
    let is_of_objects = |value: &Value| {
        let mut items = value.try_iter().into_iter().flatten();
        items.all(|item| item.kind() == ValueKind::Map)
    };
    let kind = tools.kind();
    if matches!(kind, ValueKind::None | ValueKind::Undefined) {
        return Ok(None);
    }
    match (kind == ValueKind::Seq, is_of_objects(&tools)) {
        (true, true) => Ok(Some(tools)),
        (true, false) => found("a list of other things".to_owned()),
        (false, _) => found(kind.to_string()),
    }
}

/// The key of the messages, unless another is named.
const MESSAGES: &str = "messages";
/// The key of the tools.
const TOOLS: &str = "tools";

fn malformed(cause: &serde_json::Error) -> ConversationError {
    let column = cause.column();
    let text = cause.to_string();
    let place = format!(" at line {} column {column}", cause.line());
    let cause = text.strip_suffix(&place).unwrap_or(&text).to_owned();
    ConversationError::Malformed { column, cause }
}

fn role_of(index: usize, message: &Value) -> Result<MessageRole, ConversationError> {
    let has = |key: &str| {
        message.get_attr(key).is_ok_and(|value| !value.is_undefined() && !value.is_none())
    };
    let role = message.get_attr("role").ok().and_then(|role| role.as_str().map(str::to_owned));
    let name = role.ok_or(ConversationError::NoRole { message: index })?;
    let role = MessageRole::of_name(&name);
    let role = role.ok_or(ConversationError::UnknownRole { message: index, found: name })?;
    if has("content") || has("tool_calls") {
        Ok(role)
    } else {
        Err(ConversationError::NoContent { message: index })
    }
}

impl Conversation {
    /// Messages of text.
    #[must_use]
    pub fn new<'a>(messages: impl IntoIterator<Item = (MessageRole, &'a str)>) -> Self {
        let message = |(role, content): (MessageRole, &str)| {
            let keys = [("role", Value::from(role.name())), ("content", Value::from(content))];
            (role, Value::from_pairs(keys))
        };
        let (roles, messages) = messages.into_iter().map(message).unzip();
        Self { roles, messages, tools: None }
    }

    /// A line of chat data: an object with `messages`, and `tools` if there are any. Other keys of
    /// a message reach the template as they are.
    ///
    /// # Errors
    /// If it is no conversation.
    pub fn from_json(line: &str) -> Result<Self, ConversationError> {
        let document: ConversationDocument =
            serde_json::from_str(line).map_err(|cause| malformed(&cause))?;
        let ConversationDocument { messages, tools } = document;
        Self::of_messages(messages, tools)
    }

    /// The same, with the messages in `field`, as some data sets have them.
    ///
    /// # Errors
    /// If it is no conversation.
    pub fn from_json_field(line: &str, field: &str) -> Result<Self, ConversationError> {
        if field == MESSAGES {
            return Self::from_json(line);
        }
        let mut keys: BTreeMap<String, Value> =
            serde_json::from_str(line).map_err(|cause| malformed(&cause))?;
        let messages =
            keys.remove(field).and_then(|messages| Some(messages.try_iter().ok()?.collect()));
        let messages = messages.ok_or_else(|| ConversationError::Malformed {
            column: 0,
            cause: format!("missing list `{field}`"),
        })?;
        Self::of_messages(messages, keys.remove(TOOLS))
    }

    fn of_messages(messages: Vec<Value>, tools: Option<Value>) -> Result<Self, ConversationError> {
        let roles = messages.iter().enumerate().map(|(index, message)| role_of(index, message));
        let roles = roles.collect::<Result<_, _>>()?;
        let tools = tools.map(check_tools).transpose()?.flatten();
        let messages = messages.iter().map(as_python).collect();
        Ok(Self { roles, messages, tools: tools.as_ref().map(as_python) })
    }

    /// Number of messages.
    #[must_use]
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// Whether there are no messages.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// The authors of the messages.
    #[must_use]
    pub fn roles(&self) -> &[MessageRole] {
        &self.roles
    }

    /// The first messages, so many.
    pub(super) fn first(&self, count: usize) -> Value {
        self.messages[..count].iter().cloned().collect()
    }

    pub(super) fn tools(&self) -> Option<&Value> {
        self.tools.as_ref()
    }

    /// Whether a character is in any text of the messages or the tools, of their keys too.
    pub(super) fn contains(&self, c: char) -> bool {
        self.messages.iter().chain(&self.tools).any(|value| has_char(value, c))
    }
}

/// Whether a character is in a text of a value. What the value is printed as has escapes in its place.
fn has_char(value: &Value, c: char) -> bool {
    if let Some(text) = value.as_str() {
        return text.contains(c);
    }
    let pairs = value.as_object().and_then(|object| object.try_iter_pairs());
    let has = |(key, value): (Value, Value)| has_char(&key, c) || has_char(&value, c);
    pairs.into_iter().flatten().any(has)
}
