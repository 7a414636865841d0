//! What templates expect of Python and of Jinja, where minijinja has it otherwise: how values are written,
//! methods of strings, lists and dicts, filters and tests, and JSON as `json.dumps` writes it.

mod arguments;
mod bounded;
mod characters;
mod collections;
mod filters;
mod json;
mod numbers;
mod repr;
mod text;

pub(super) use collections::as_python;

use minijinja::value::{ObjectRepr, Rest, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value};

/// Functions of minijinja that Jinja does not have, so that a template which asks whether they
/// are there gets the same answer.
const UNKNOWN_FUNCTIONS: [&str; 1] = ["debug"];

/// Makes an environment one of Jinja in Python.
pub(super) fn add_to(environment: &mut Environment<'static>) {
    environment.set_unknown_method_callback(method);
    environment.set_formatter(repr::print);
    filters::add_to(environment);
    UNKNOWN_FUNCTIONS.iter().for_each(|name| environment.remove_global(name));
    let cycler = |items: Rest<Value>| minijinja_contrib::globals::cycler(items.0);
    environment.add_function("cycler", cycler);
    environment.add_function("joiner", minijinja_contrib::globals::joiner);
    environment.add_test("sequence", is_sequence);
    environment.add_test("iterable", is_iterable);
    environment.add_test("callable", is_callable);
    let is_lower = |state: &State<'_, '_>, value: &Value| is_cased(state, value, "islower");
    environment.add_test("lower", is_lower);
    let is_upper = |state: &State<'_, '_>, value: &Value| is_cased(state, value, "isupper");
    environment.add_test("upper", is_upper);
}

/// Methods of Python's strings, lists and dicts.
fn method(
    state: &mut State<'_, '_>,
    value: &Value,
    name: &str,
    arguments: &[Value],
) -> Result<Value, Error> {
    let found = match (value.as_str(), value.kind()) {
        (Some(text), _) => text::method(state, text, name, arguments)?,
        (None, ValueKind::Map) => collections::of_dict(state, value, name, arguments)?,
        (None, _) if collections::is_list(value) => {
            collections::of_list(state, value, name, arguments)?
        }
        (None, _) => None,
    };
    match found {
        Some(found) => Ok(found),
        // What is left are `capitalize` and `format`.
        None if value.as_str().is_some() => {
            minijinja_contrib::pycompat::unknown_method_callback(state, value, name, arguments)
        }
        None => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}

/// The tests `lower` and `upper`.
fn is_cased(state: &State<'_, '_>, value: &Value, method: &str) -> Result<bool, Error> {
    Ok(text::is(&repr::text_of(state, value)?, method))
}

/// The test `sequence`: what has a length and items, as texts and dicts have.
fn is_sequence(value: &Value) -> bool {
    let has_items = matches!(value.kind(), ValueKind::Map | ValueKind::String | ValueKind::Bytes);
    has_items || collections::is_list(value)
}

/// The test `iterable`. What is undefined has no items, and nothing cannot have any.
fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

/// The test `callable`: functions, macros and methods.
fn is_callable(value: &Value) -> bool {
    value.as_object().is_some_and(|object| object.repr() == ObjectRepr::Plain)
}

#[cfg(test)]
mod tests;
