//! Filters of Jinja that minijinja lacks, or has in a way of its own.

use std::borrow::Cow;

use minijinja::value::{Kwargs, Rest, StringInput, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, State, Value, filters};

use super::arguments::{Arguments, refused};
use super::bounded::{Bounded, charge};
use super::characters::{LETTER, is_numeric};
use super::collections::by_keys;
use super::repr::{text_of, write_text_of};
use super::{json, numbers, text};

/// Filters of minijinja that Jinja does not have.
const UNKNOWN: [&str; 5] = ["bool", "chain", "lines", "split", "zip"];

type Filter = fn(&mut State<'_, '_>, &Value, &[Value]) -> Result<Value, Error>;

const FILTERS: [(&str, Filter); 22] = [
    ("attr", attribute),
    ("capitalize", capitalized),
    ("center", centered),
    ("d", or_default),
    ("default", or_default),
    ("e", escaped),
    ("escape", escaped),
    ("float", numbers::float),
    ("forceescape", escaped),
    ("indent", indented),
    ("int", numbers::integer),
    ("join", joined),
    ("lower", lower),
    ("replace", replaced),
    ("safe", safe),
    ("string", as_text),
    ("title", titled),
    ("tojson", json::to_json),
    ("trim", trimmed),
    ("truncate", truncated),
    ("upper", upper),
    ("wordcount", word_count),
];

type NamedFilter = fn(&State<'_, '_>, Value, Kwargs) -> Result<Value, Error>;

/// Filters of which minijinja knows the arguments by name alone, with the names in Jinja's order.
const NAMED_FILTERS: [(&str, [&str; 3], NamedFilter); 5] = [
    ("dictsort", ["case_sensitive", "by", "reverse"], |_, dict, named| {
        filters::dictsort(&dict, named)
    }),
    ("max", ["case_sensitive", "attribute", ""], filters::max),
    ("min", ["case_sensitive", "attribute", ""], filters::min),
    ("sort", ["reverse", "case_sensitive", "attribute"], filters::sort),
    ("unique", ["case_sensitive", "attribute", ""], filters::unique),
];

type SelectingFilter = for<'a> fn(
    &mut State<'_, '_>,
    Value,
    Cow<'a, str>,
    Option<Cow<'a, str>>,
    Rest<ValueOrKwargs>,
) -> Result<Vec<Value>, Error>;

const SELECTING_FILTERS: [(&str, SelectingFilter); 2] =
    [("selectattr", filters::selectattr), ("rejectattr", filters::rejectattr)];

/// Puts the filters in place of those that minijinja has.
pub(super) fn add_to(environment: &mut Environment<'static>) {
    UNKNOWN.iter().for_each(|name| environment.remove_filter(name));
    for (name, filter) in FILTERS {
        let filter = move |state: &mut State<'_, '_>, value: &Value, rest: Rest<ValueOrKwargs>| {
            filter(state, value, &rest.into_values())
        };
        environment.add_filter(name, filter);
    }
    for (name, names, filter) in NAMED_FILTERS {
        let filter = move |state: &State<'_, '_>, value: Value, rest: Rest<ValueOrKwargs>| {
            let named = by_name(name, names, &rest.into_values())?;
            by_keys(|| filter(state, value, named))
        };
        environment.add_filter(name, filter);
    }
    add_filters_by_keys(environment);
}

/// The other filters of minijinja that take the name of an attribute.
fn add_filters_by_keys(environment: &mut Environment<'static>) {
    type Rests = Rest<ValueOrKwargs>;
    environment.add_filter("map", |state: &mut State<'_, '_>, value: Value, rest: Rests| {
        by_keys(|| filters::map(state, value, rest))
    });
    for (name, filter) in SELECTING_FILTERS {
        let filter = move |state: &mut State<'_, '_>,
                           value: Value,
                           key: String,
                           test: Option<String>,
                           rest: Rests| {
            by_keys(|| filter(state, value, key.into(), test.map(Cow::from), rest))
        };
        environment.add_filter(name, filter);
    }
    environment.add_filter(
        "groupby",
        |state: &State<'_, '_>, value: Value, key: Option<String>, named: Kwargs| {
            charge(state, value.len().unwrap_or(0))?;
            by_keys(|| filters::groupby(value, key.as_deref(), named))
        },
    );
    environment.add_filter(
        "sum",
        |state: &State<'_, '_>,
         value: Value,
         key: Option<String>,
         start: Option<Value>,
         named: Kwargs| {
            by_keys(|| filters::sum(state, value, key.as_deref(), start, named))
        },
    );
}

/// Arguments by their names, in whatever way they were given.
fn by_name(name: &str, names: [&str; 3], arguments: &[Value]) -> Result<Kwargs, Error> {
    let names = names.into_iter().filter(|name| !name.is_empty());
    let arguments = Arguments::of(name, arguments, names.clone().count())?;
    let named = names
        .enumerate()
        .map(|(position, name)| Ok(arguments.value(position, name)?.map(|value| (name, value))));
    let named: Vec<_> = named.collect::<Result<_, Error>>()?;
    arguments.finish()?;
    Ok(named.into_iter().flatten().collect())
}

fn trimmed(state: &mut State<'_, '_>, value: &Value, arguments: &[Value]) -> Result<Value, Error> {
    let arguments = Arguments::of("trim", arguments, 1)?;
    let characters = arguments.text(0, "chars")?;
    arguments.finish()?;
    Ok(Value::from(text::strip(&text_of(state, value)?, characters.as_deref(), "strip")))
}

fn as_text(state: &mut State<'_, '_>, value: &Value, arguments: &[Value]) -> Result<Value, Error> {
    Arguments::of("string", arguments, 0)?.finish()?;
    // A text that is safe stays so.
    Ok(if value.as_str().is_some() { value.clone() } else { Value::from(text_of(state, value)?) })
}

fn safe(state: &mut State<'_, '_>, value: &Value, arguments: &[Value]) -> Result<Value, Error> {
    Arguments::of("safe", arguments, 0)?.finish()?;
    Ok(Value::from_safe_string(text_of(state, value)?.into_owned()))
}

fn upper(state: &mut State<'_, '_>, value: &Value, arguments: &[Value]) -> Result<Value, Error> {
    Arguments::of("upper", arguments, 0)?.finish()?;
    Ok(Value::from(text_of(state, value)?.to_uppercase()))
}

fn lower(state: &mut State<'_, '_>, value: &Value, arguments: &[Value]) -> Result<Value, Error> {
    Arguments::of("lower", arguments, 0)?.finish()?;
    Ok(Value::from(text_of(state, value)?.to_lowercase()))
}

fn capitalized(
    state: &mut State<'_, '_>,
    value: &Value,
    arguments: &[Value],
) -> Result<Value, Error> {
    Arguments::of("capitalize", arguments, 0)?.finish()?;
    Ok(filters::capitalize(StringInput::new(state, &Value::from(text_of(state, value)?))?))
}

fn titled(state: &mut State<'_, '_>, value: &Value, arguments: &[Value]) -> Result<Value, Error> {
    Arguments::of("title", arguments, 0)?.finish()?;
    Ok(Value::from(filters::title(text_of(state, value)?)))
}

fn replaced(state: &mut State<'_, '_>, value: &Value, arguments: &[Value]) -> Result<Value, Error> {
    let arguments = Arguments::of("replace", arguments, 3)?;
    let part = |position, name| {
        let part = arguments.value(position, name)?;
        let missing = || refused(format!("replace needs the argument {name}"));
        Ok::<_, Error>(text_of(state, &part.ok_or_else(missing)?)?.into_owned())
    };
    let (old, new) = (part(0, "old")?, part(1, "new")?);
    let count = arguments.integer(2, "count")?;
    arguments.finish()?;
    Ok(Value::from(text::replace(state, &text_of(state, value)?, &old, &new, count)?))
}

fn centered(state: &mut State<'_, '_>, value: &Value, arguments: &[Value]) -> Result<Value, Error> {
    let arguments = Arguments::of("center", arguments, 1)?;
    let width = arguments.integer(0, "width")?.unwrap_or(80);
    arguments.finish()?;
    Ok(Value::from(text::fill(state, &text_of(state, value)?, "center", width, ' ')?))
}

fn or_default(_: &mut State<'_, '_>, value: &Value, arguments: &[Value]) -> Result<Value, Error> {
    let (rest, named): (Rest<Value>, Kwargs) = minijinja::value::from_args(arguments)?;
    let named_default = named.get::<Option<Value>>("default_value")?;
    let or_else = rest.first().cloned().or(named_default).unwrap_or_else(|| Value::from(""));
    let named_boolean = named.get::<Option<Value>>("boolean")?;
    let is_for_false = rest.get(1).cloned().or(named_boolean).is_some_and(|value| value.is_true());
    named.assert_all_used()?;
    let is_missing = value.is_undefined() || (is_for_false && !value.is_true());
    Ok(if is_missing { or_else } else { value.clone() })
}

/// An attribute, which a key of a dict is not.
fn attribute(_: &mut State<'_, '_>, value: &Value, arguments: &[Value]) -> Result<Value, Error> {
    let arguments = Arguments::of("attr", arguments, 1)?;
    let name = arguments.needed_text(0, "name")?;
    arguments.finish()?;
    if value.kind() == ValueKind::Map { Ok(Value::UNDEFINED) } else { value.get_attr(&name) }
}

/// Texts in a row; of other values the text that they have.
fn joined(state: &mut State<'_, '_>, value: &Value, arguments: &[Value]) -> Result<Value, Error> {
    let arguments = Arguments::of("join", arguments, 2)?;
    let between = arguments.value(0, "d")?.unwrap_or_else(|| Value::from(""));
    let attribute = arguments.value(1, "attribute")?;
    arguments.finish()?;
    let items = match attribute {
        Some(attribute) => {
            let named = Kwargs::from_iter([("attribute", attribute)]);
            state.apply_filter("map", &[value.clone(), Value::from(named)])?
        }
        None => value.clone(),
    };
    if items.is_none() {
        return Err(refused("join: none has no items"));
    }
    let between = text_of(state, &between)?;
    charge(state, items.len().unwrap_or(0))?;
    let mut written = Bounded::new();
    for (index, item) in items.try_iter()?.enumerate() {
        written.push_str(if index == 0 { "" } else { &between })?;
        write_text_of(&mut written, &item)?;
    }
    written.finish(state).map(Value::from)
}

/// A text with spaces, or another text, in front of its lines.
fn indented(state: &mut State<'_, '_>, value: &Value, arguments: &[Value]) -> Result<Value, Error> {
    let arguments = Arguments::of("indent", arguments, 3)?;
    let width = arguments.value(0, "width")?.unwrap_or_else(|| Value::from(4));
    let is_first = arguments.flag(1, "first")?;
    let is_blank = arguments.flag(2, "blank")?;
    let indent = match width.as_str() {
        Some(indent) => indent.to_owned(),
        None => text::spaces(state, arguments.integer(0, "width")?.unwrap_or(4))?,
    };
    arguments.finish()?;
    let text = text_of(state, value)?.into_owned() + "\n";
    let mut written = Bounded::new();
    for (index, line) in text::lines(&text).enumerate() {
        written.push_str(if index == 0 { "" } else { "\n" })?;
        let is_indented = if index == 0 { is_first } else { is_blank || !line.is_empty() };
        written.push_str(if is_indented { &indent } else { "" })?;
        written.push_str(line)?;
    }
    written.finish(state).map(Value::from)
}

fn truncated(
    state: &mut State<'_, '_>,
    value: &Value,
    arguments: &[Value],
) -> Result<Value, Error> {
    let arguments = Arguments::of("truncate", arguments, 4)?;
    let size = |at, name, otherwise: i64| {
        let size = arguments.integer(at, name)?.unwrap_or(otherwise);
        usize::try_from(size).map_err(|_| refused(format!("truncate: {name} is below zero")))
    };
    let (length, leeway) = (size(0, "length", 255)?, size(3, "leeway", 5)?);
    let cuts_words = arguments.flag(1, "killwords")?;
    let end = arguments.text(2, "end")?.unwrap_or_else(|| "...".to_owned());
    arguments.finish()?;
    let kept = length.checked_sub(end.chars().count());
    let kept = kept.ok_or_else(|| refused("truncate: the end is longer than the length"))?;
    let text = text_of(state, value)?;
    if text.chars().count() <= length + leeway {
        return Ok(Value::from(text));
    }
    let cut = &text[..text.char_indices().nth(kept).map_or(text.len(), |(at, _)| at)];
    let whole = cut.rsplit_once(' ').map_or(cut, |(before, _)| before);
    Ok(Value::from(if cuts_words { cut } else { whole }.to_owned() + &end))
}

fn word_count(
    state: &mut State<'_, '_>,
    value: &Value,
    arguments: &[Value],
) -> Result<Value, Error> {
    Arguments::of("wordcount", arguments, 0)?.finish()?;
    let is_of_word = |c: char| c == '_' || LETTER.contains(c) || is_numeric(c);
    let text = text_of(state, value)?;
    let words = text.split(|c| !is_of_word(c)).filter(|word| !word.is_empty());
    Ok(Value::from(words.count()))
}

/// As markupsafe escapes. What is safe already stays as it is.
fn escaped(state: &mut State<'_, '_>, value: &Value, arguments: &[Value]) -> Result<Value, Error> {
    Arguments::of("escape", arguments, 0)?.finish()?;
    if value.is_safe() {
        return Ok(value.clone());
    }
    let escape = |c: char| {
        let escaped = match c {
            '&' => "&amp;",
            '<' => "&lt;",
            '>' => "&gt;",
            '\'' => "&#39;",
            '"' => "&#34;",
            _ => return None,
        };
        Some(escaped.to_owned())
    };
    let mut written = Bounded::new();
    written.push_escaped(&text_of(state, value)?, escape)?;
    written.finish(state).map(Value::from_safe_string)
}
