//! Methods of Python's strings.

mod case;
mod split;

pub(super) use split::lines;

use std::collections::BTreeSet;
use std::ops::Range;

use minijinja::value::Tuple;
use minijinja::{Error, State, Value};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::arguments::{Arguments, refused};
use super::bounded::{Bounded, charge};
use super::characters::{
    CASED, DECIMAL, DIGIT, LETTER, NAME, NAME_START, UNPRINTABLE, is_numeric, is_space,
};

/// A method of a string, if there is one of this name.
pub(super) fn method(
    state: &mut State<'_, '_>,
    text: &str,
    name: &str,
    arguments: &[Value],
) -> Result<Option<Value>, Error> {
    let of = |count_max| Arguments::of(name, arguments, count_max);
    let value = match name {
        "strip" | "lstrip" | "rstrip" => stripped(text, name, &of(1)?)?,
        "removeprefix" | "removesuffix" | "partition" | "rpartition" => {
            around(text, name, &of(1)?)?
        }
        "split" | "rsplit" => split::separated(text, name, &of(2)?)?,
        "splitlines" => split::lines_of(text, &of(1)?)?,
        "find" | "rfind" | "index" | "rindex" | "count" => found(text, name, &of(3)?)?,
        "startswith" | "endswith" => is_at_end(text, name, &of(3)?)?,
        "replace" => replaced(state, text, &of(3)?)?,
        "center" | "ljust" | "rjust" => filled(state, text, name, &of(2)?)?,
        "zfill" => with_zeros(state, text, &of(1)?)?,
        "expandtabs" => with_spaces(state, text, &of(1)?)?,
        "join" => joined(state, text, &of(1)?)?,
        _ => {
            let capitalize = |word: &str| {
                let word = Value::from(word);
                Ok(unknown_method_callback(state, &word, "capitalize", &[])?.to_string())
            };
            let value = case::cased(text, name, capitalize)?.map(Value::from);
            let value = value.or_else(|| tested(text, name).map(Value::from));
            if value.is_some() {
                of(0)?.finish()?;
            }
            return Ok(value);
        }
    };
    Ok(Some(value))
}

/// A text without white space, or without the characters of a set, at its ends.
pub(super) fn strip(text: &str, characters: Option<&str>, name: &str) -> String {
    let set = characters.map(|characters| characters.chars().collect::<BTreeSet<_>>());
    let belongs = |c: char| set.as_ref().map_or_else(|| is_space(c), |set| set.contains(&c));
    let text = if name == "rstrip" { text } else { text.trim_start_matches(belongs) };
    let text = if name == "lstrip" { text } else { text.trim_end_matches(belongs) };
    text.to_owned()
}

fn stripped(text: &str, name: &str, arguments: &Arguments) -> Result<Value, Error> {
    arguments.finish()?;
    let characters = arguments.text(0, "chars")?;
    Ok(Value::from(strip(text, characters.as_deref(), name)))
}

/// Methods of a string with a part of it.
fn around(text: &str, name: &str, arguments: &Arguments) -> Result<Value, Error> {
    arguments.finish()?;
    let part = &arguments.needed_text(0, "sep")?[..];
    let three = |split: Option<(&str, &str)>, whole: [&str; 3]| {
        if part.is_empty() {
            return Err(refused(format!("{name}: the separator is empty")));
        }
        let parts = split.map_or(whole, |(before, behind)| [before, part, behind]);
        Ok(Value::from(Tuple::from(parts.map(Value::from))))
    };
    match name {
        "removeprefix" => Ok(Value::from(text.strip_prefix(part).unwrap_or(text))),
        "removesuffix" => Ok(Value::from(text.strip_suffix(part).unwrap_or(text))),
        "rpartition" => three(text.rsplit_once(part), ["", "", text]),
        _ => three(text.split_once(part), [text, "", ""]),
    }
}

/// The bytes between two places, which are counted in characters and from the end if they are below zero.
/// None where the first lies behind the text's end, or behind the second.
fn part(text: &str, arguments: &Arguments) -> Result<Option<Range<usize>>, Error> {
    let [start, end] = [arguments.integer(1, "start")?, arguments.integer(2, "end")?];
    let count = i64::try_from(text.chars().count()).unwrap_or(i64::MAX);
    let at = |place: i64| if place < 0 { (place + count).max(0) } else { place };
    let (start, end) = (at(start.unwrap_or(0)), at(end.unwrap_or(count)).min(count));
    let byte = |place: i64| {
        let place = usize::try_from(place).unwrap_or(0);
        text.char_indices().nth(place).map_or(text.len(), |(byte, _)| byte)
    };
    Ok((start <= end).then(|| byte(start)..byte(end)))
}

fn found(text: &str, name: &str, arguments: &Arguments) -> Result<Value, Error> {
    let wanted = arguments.needed_text(0, "sub")?;
    let range = part(text, arguments)?;
    arguments.finish()?;
    if name == "count" {
        let count = |range: Range<usize>| text[range].matches(&wanted).count();
        return Ok(Value::from(range.map_or(0, count)));
    }
    let place = range.and_then(|range| {
        let within = &text[range.clone()];
        let is_first = name == "find" || name == "index";
        let at = if is_first { within.find(&wanted) } else { within.rfind(&wanted) };
        Some(text[..range.start + at?].chars().count())
    });
    match place {
        Some(place) => Ok(Value::from(place)),
        None if name.ends_with("find") => Ok(Value::from(-1)),
        None => Err(refused(format!("{name}: the text has no {wanted:?}"))),
    }
}

fn is_at_end(text: &str, name: &str, arguments: &Arguments) -> Result<Value, Error> {
    let wanted = arguments.value(0, "prefix")?.unwrap_or_default();
    let range = part(text, arguments)?;
    arguments.finish()?;
    let is_at = |wanted: &Value| {
        let wanted = wanted.as_str().ok_or_else(|| {
            refused(format!("{name} takes a text or a tuple of them, not {}", wanted.kind()))
        })?;
        let is_in = |range: Range<usize>| match name {
            "startswith" => text[range].starts_with(wanted),
            _ => text[range].ends_with(wanted),
        };
        Ok(range.clone().is_some_and(is_in))
    };
    if !wanted.is_tuple() {
        return is_at(&wanted).map(Value::from);
    }
    for wanted in wanted.try_iter()? {
        if is_at(&wanted)? {
            return Ok(Value::from(true));
        }
    }
    Ok(Value::from(false))
}

fn replaced(state: &State<'_, '_>, text: &str, arguments: &Arguments) -> Result<Value, Error> {
    arguments.finish()?;
    let [old, new] = [arguments.needed_text(0, "old")?, arguments.needed_text(1, "new")?];
    replace(state, text, &old, &new, arguments.integer(2, "count")?).map(Value::from)
}

/// A text with another in place of a part of it, so many times.
pub(super) fn replace(
    state: &State<'_, '_>,
    text: &str,
    old: &str,
    new: &str,
    count: Option<i64>,
) -> Result<String, Error> {
    let count = usize::try_from(count.unwrap_or(-1)).unwrap_or(usize::MAX);
    let mut written = Bounded::new();
    let mut behind = 0;
    for (at, found) in text.match_indices(old).take(count) {
        written.push_str(&text[behind..at])?;
        written.push_str(new)?;
        behind = at + found.len();
    }
    written.push_str(&text[behind..])?;
    written.finish(state)
}

/// So many spaces.
pub(super) fn spaces(state: &State<'_, '_>, count: i64) -> Result<String, Error> {
    let mut written = Bounded::new();
    written.repeat(" ", usize::try_from(count).unwrap_or(0))?;
    written.finish(state)
}

/// A text with spaces or another character at its sides.
pub(super) fn fill(
    state: &State<'_, '_>,
    text: &str,
    name: &str,
    width: i64,
    with: char,
) -> Result<String, Error> {
    let width = usize::try_from(width).unwrap_or(0);
    let missing = width.saturating_sub(text.chars().count());
    let left = match name {
        "ljust" => 0,
        "center" => missing / 2 + (missing & width & 1),
        _ => missing,
    };
    let with = with.to_string();
    let mut written = Bounded::new();
    written.repeat(&with, left)?;
    written.push_str(text)?;
    written.repeat(&with, missing - left)?;
    written.finish(state)
}

fn width_of(name: &str, arguments: &Arguments) -> Result<i64, Error> {
    let missing = || refused(format!("{name} needs a width"));
    arguments.integer(0, "width")?.ok_or_else(missing)
}

/// A text with zeros between its sign and its digits.
fn with_zeros(state: &State<'_, '_>, text: &str, arguments: &Arguments) -> Result<Value, Error> {
    arguments.finish()?;
    let width = width_of("zfill", arguments)?;
    let (sign, digits) = text.split_at(usize::from(text.starts_with(['+', '-'])));
    let width = width.saturating_sub(i64::from(!sign.is_empty()));
    let filled = fill(state, digits, "zfill", width, '0')?;
    Ok(Value::from(sign.to_owned() + &filled))
}

fn filled(
    state: &State<'_, '_>,
    text: &str,
    name: &str,
    arguments: &Arguments,
) -> Result<Value, Error> {
    arguments.finish()?;
    let width = width_of(name, arguments)?;
    let with = arguments.text(1, "fillchar")?.unwrap_or_else(|| " ".to_owned());
    let mut characters = with.chars();
    match (characters.next(), characters.next()) {
        (Some(with), None) => fill(state, text, name, width, with).map(Value::from),
        (None, _) | (Some(_), Some(_)) => {
            Err(refused(format!("{name}: a text is filled with one character")))
        }
    }
}

/// A text with spaces in place of tabs.
fn with_spaces(state: &State<'_, '_>, text: &str, arguments: &Arguments) -> Result<Value, Error> {
    let width = arguments.integer(0, "tabsize")?.unwrap_or(8);
    arguments.finish()?;
    let width = usize::try_from(width).unwrap_or(0);
    let mut spaced = Bounded::new();
    let mut column = 0;
    for c in text.chars() {
        match c {
            '\t' if width > 0 => {
                let count = width - column % width;
                spaced.repeat(" ", count)?;
                column += count;
            }
            '\t' => {}
            c => {
                spaced.push(c)?;
                column = if c == '\n' || c == '\r' { 0 } else { column + 1 };
            }
        }
    }
    spaced.finish(state).map(Value::from)
}

fn joined(state: &State<'_, '_>, text: &str, arguments: &Arguments) -> Result<Value, Error> {
    arguments.finish()?;
    let items = arguments.value(0, "iterable")?.unwrap_or_default();
    charge(state, items.len().unwrap_or(0))?;
    let mut written = Bounded::new();
    for (index, item) in items.try_iter()?.enumerate() {
        let wrong = || refused(format!("join: item {index} is {}, not a text", item.kind()));
        written.push_str(if index == 0 { "" } else { text })?;
        written.push_str(item.as_str().ok_or_else(wrong)?)?;
    }
    written.finish(state).map(Value::from)
}

/// Whether a text passes the test that this method is.
pub(super) fn is(text: &str, name: &str) -> bool {
    tested(text, name).unwrap_or(false)
}

/// Tests of all characters of a string.
fn tested(text: &str, name: &str) -> Option<bool> {
    let all = |belongs: &dyn Fn(char) -> bool| !text.is_empty() && text.chars().all(belongs);
    let is_numeric = |c: char| DIGIT.contains(c) || is_numeric(c);
    Some(match name {
        "isalpha" => all(&|c| LETTER.contains(c)),
        "isdecimal" => all(&|c| DECIMAL.contains(c)),
        "isdigit" => all(&|c| DIGIT.contains(c)),
        "isnumeric" => all(&is_numeric),
        "isalnum" => all(&|c| LETTER.contains(c) || is_numeric(c)),
        "isspace" => all(&is_space),
        "isascii" => text.is_ascii(),
        "isprintable" => text.chars().all(|c| !UNPRINTABLE.contains(c)),
        "isupper" => text.chars().any(char::is_uppercase) && !text.chars().any(is_not_upper),
        "islower" => text.chars().any(char::is_lowercase) && !text.chars().any(is_not_lower),
        "istitle" => case::is_title(text),
        "isidentifier" => {
            text.starts_with(|c| NAME_START.contains(c))
                && text.chars().skip(1).all(|c| NAME.contains(c))
        }
        _ => return None,
    })
}

/// Lower case, or the form of letters at the beginning of a title.
fn is_not_upper(c: char) -> bool {
    CASED.contains(c) && !c.is_uppercase()
}

fn is_not_lower(c: char) -> bool {
    CASED.contains(c) && !c.is_lowercase()
}
