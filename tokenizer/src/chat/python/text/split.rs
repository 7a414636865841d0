//! Parts of strings: between separators or white space, and lines.

use minijinja::{Error, Value};

use super::super::arguments::{Arguments, refused};
use super::super::characters::is_space;

/// `split` and `rsplit`, by a separator or by white space.
pub(super) fn separated(text: &str, name: &str, arguments: &Arguments) -> Result<Value, Error> {
    let separator = arguments.text(0, "sep")?;
    let count = arguments.integer(1, "maxsplit")?.unwrap_or(-1);
    arguments.finish()?;
    let parts = usize::try_from(count).map_or(usize::MAX, |count| count.saturating_add(1));
    let mut found: Vec<&str> = match (separator.as_deref(), name) {
        (Some(""), _) => return Err(refused(format!("{name}: the separator is empty"))),
        (Some(separator), "split") => text.splitn(parts, separator).collect(),
        (Some(separator), _) => text.rsplitn(parts, separator).collect(),
        (None, "split") => words(text, parts),
        (None, _) => words_from_end(text, parts),
    };
    if name == "rsplit" {
        found.reverse();
    }
    Ok(found.into_iter().map(Value::from).collect())
}

/// Words, of which the last has all that is left.
fn words(text: &str, parts: usize) -> Vec<&str> {
    let mut found = Vec::new();
    let mut rest = text.trim_start_matches(is_space);
    while !rest.is_empty() {
        if found.len() + 1 == parts {
            found.push(rest);
            break;
        }
        let (word, behind) = rest.split_at(rest.find(is_space).unwrap_or(rest.len()));
        found.push(word);
        rest = behind.trim_start_matches(is_space);
    }
    found
}

/// The same from the end.
fn words_from_end(text: &str, parts: usize) -> Vec<&str> {
    let mut found = Vec::new();
    let mut rest = text.trim_end_matches(is_space);
    while !rest.is_empty() {
        if found.len() + 1 == parts {
            found.push(rest);
            break;
        }
        let end = rest.char_indices().rev().find(|(_, c)| is_space(*c));
        let (before, word) = rest.split_at(end.map_or(0, |(at, c)| at + c.len_utf8()));
        found.push(word);
        rest = before.trim_end_matches(is_space);
    }
    found
}

/// `splitlines`.
pub(super) fn lines_of(text: &str, arguments: &Arguments) -> Result<Value, Error> {
    let keeps_ends = arguments.flag(0, "keepends")?;
    arguments.finish()?;
    let lines = line_ends(text).map(|(line, with_end)| if keeps_ends { with_end } else { line });
    Ok(lines.map(Value::from).collect())
}

/// The lines of a text without their ends.
pub(in super::super) fn lines(text: &str) -> impl Iterator<Item = &str> {
    line_ends(text).map(|(line, _)| line)
}

/// Each line without and with its end. Python knows more ends than most.
fn line_ends(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let is_end =
        |c| matches!(c, '\n'..='\r' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}');
    let mut rest = text;
    std::iter::from_fn(move || {
        let end = rest.find(is_end).unwrap_or(rest.len());
        let length = match rest[end..].chars().next() {
            Some('\r') if rest[end..].starts_with("\r\n") => 2,
            first => first.map_or(0, char::len_utf8),
        };
        let (line, behind) = rest.split_at(end + length);
        let found = (!rest.is_empty()).then_some((&line[..end], line));
        rest = behind;
        found
    })
}
