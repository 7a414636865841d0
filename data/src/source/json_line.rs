//! A line of JSON as a document.

use serde_json::{Map, Value};

use super::{BadDocument, LINE_BYTES_MAX};
use crate::document::{Chat, Document, TextPart};

/// Fields that are read if none is named: the first that is there.
const FIELDS: [&str; 2] = ["text", "messages"];
/// The field with the tools of a chat, which templates read beside the messages.
pub(super) const TOOLS: &str = "tools";

/// The document in a line: a JSON object with a field that is a text or a list of messages.
pub(crate) fn read_line(line: &[u8], field: Option<&str>) -> Result<Document, BadDocument> {
    let json = |reason: String| BadDocument::Json { reason };
    let text = str::from_utf8(line).map_err(|error| json(error.to_string()))?;
    let object: Map<String, Value> =
        serde_json::from_str(text).map_err(|error| json(error.to_string()))?;
    let names = || object.keys().cloned().collect::<Vec<_>>();
    let field = choose_field(field, &names())?;
    document(&field, object.get(&field).unwrap_or(&Value::Null), text)
}

/// The field to read, of those that are there.
pub(super) fn choose_field(field: Option<&str>, names: &[String]) -> Result<String, BadDocument> {
    let is_there = |field: &&str| names.iter().any(|name| name == field);
    let (found, expected) = match field {
        Some(field) => (Some(field).filter(is_there), field.to_owned()),
        None => (FIELDS.into_iter().find(is_there), FIELDS.join(" or ")),
    };
    let found = found.map(ToOwned::to_owned);
    found.ok_or_else(|| BadDocument::NoField { expected, found: names.to_vec() })
}

/// The document that `value` is, in a record of this JSON.
fn document(field: &str, value: &Value, record: &str) -> Result<Document, BadDocument> {
    let other = |found| Err(BadDocument::FieldType { field: field.to_owned(), found });
    match value {
        Value::String(text) => text_document(text.clone()),
        Value::Array(messages) if messages.iter().all(Value::is_object) => {
            let message_count = messages.len();
            let messages_field = field.to_owned();
            let record = record.to_owned();
            Ok(Document::Chat(Chat { record, messages_field, message_count }))
        }
        Value::Array(_) => other("a list of other things"),
        Value::Null => other("null"),
        Value::Bool(_) => other("a truth value"),
        Value::Number(_) => other("a number"),
        Value::Object(_) => other("an object"),
    }
}

pub(super) fn text_document(text: String) -> Result<Document, BadDocument> {
    if text.len() > LINE_BYTES_MAX {
        return Err(BadDocument::TooLong { max: LINE_BYTES_MAX });
    }
    Ok(Document::Text(TextPart::whole(text)))
}

#[cfg(test)]
mod tests {
    use super::read_line;
    use crate::document::{Chat, Document, TextPart};

    #[test]
    fn a_field_is_a_text_or_a_chat() {
        let check = |line: &str, field, expected: Document| {
            assert_eq!(read_line(line.as_bytes(), field), Ok(expected), "{line}");
        };
        let text = |text: &str| Document::Text(TextPart::whole(text.to_owned()));
        check(r#"{"text": "a\u00e9\ud83d\ude00\u0000", "messages": 3}"#, None, text("aé😀\0"));
        check(r#" {"text": 1, "body": ""} "#, Some("body"), text(""));
        let chat = r#"{"tools": [], "messages": [{"role": "user", "content": "b"}]}"#;
        let messages_field = "messages".to_owned();
        let expected = Chat { record: chat.to_owned(), messages_field, message_count: 1 };
        check(chat, None, Document::Chat(expected));
    }

    #[test]
    fn what_is_wrong_with_a_line_is_said() {
        let check = |line: &[u8], field, expected: &str| {
            let found = read_line(line, field).expect_err("no document").to_string();
            assert!(found.starts_with(expected), "{found}");
        };
        check(b"{\"text\": \"a", None, "is no JSON object: EOF");
        check(b"[1]", None, "is no JSON object: invalid type");
        check(b"{\"text\": \"\xff\"}", None, "is no JSON object: invalid utf-8");
        check(br#"{"text": "\ud800"}"#, None, "is no JSON object: unexpected end of hex");
        check(br#"{"b": 1, "a": 2}"#, None, "has no field text or messages, only a, b");
        check(b"{}", Some("text"), "has no field text, only none");
        check(br#"{"text": null}"#, None, "has null in field text, expected text");
        check(br#"{"messages": ["a"]}"#, None, "has a list of other things in field messages");
    }
}
