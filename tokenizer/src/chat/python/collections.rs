//! Python's lists and dicts with their methods. Those that change one are refused: templates may not.

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;

use minijinja::value::{DynObject, Enumerator, Object, ObjectRepr, Tuple, ValueKind};
use minijinja::{Error, State, Value};

use super::arguments::{Arguments, refused};
use super::bounded::{Bounded, charge};
use super::repr::write;

/// The keys, values or pairs of a dict.
#[derive(Debug)]
pub(super) struct DictView {
    name: &'static str,
    items: Vec<Value>,
}

impl DictView {
    pub(super) fn name(&self) -> &'static str {
        self.name
    }
}

impl Object for DictView {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.items.clone())
    }
}

thread_local! {
    /// Whether a filter looks up keys, and not a template attributes: minijinja asks a dict for both alike.
    static IS_KEY: Cell<bool> = const { Cell::new(false) };
}

/// Runs a filter for which the name of an attribute is a key of a dict, as `map(attribute='items')` has it.
pub(super) fn by_keys<T>(filter: impl FnOnce() -> T) -> T {
    let outer = IS_KEY.replace(true);
    let found = filter();
    IS_KEY.set(outer);
    found
}

/// A dict of a conversation. As in Jinja `dict.items` is the method, whatever the dict has under that key,
/// and `dict['items']` is the value.
#[derive(Debug)]
struct Dict(DynObject);

impl Object for Dict {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.0.get_value(key)
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        let is_key = IS_KEY.get();
        let method = DICT_METHODS.iter().find(|name| !is_key && **name == key);
        let method = method.map(|name| DictMethod { dict: Arc::clone(self), name });
        method.map(Value::from_object).or_else(|| self.0.get_value_by_str(key))
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        self.0.enumerate()
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        self.0.enumerator_len()
    }

    /// Beside `~` a value is written by its object, which may not fail there. What a line of data holds is
    /// neither long nor deep.
    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = Bounded::up_to(usize::MAX);
        let written = write(&mut text, &Value::from_dyn_object(Arc::clone(self)), 0);
        written.map_err(|_| fmt::Error)?;
        f.write_str(&text.into_text())
    }
}

/// A method of a dict that is not called yet.
#[derive(Debug)]
struct DictMethod {
    dict: Arc<Dict>,
    name: &'static str,
}

impl Object for DictMethod {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(
        self: &Arc<Self>,
        state: &mut State<'_, '_>,
        arguments: &[Value],
    ) -> Result<Value, Error> {
        let dict = Value::from_dyn_object(Arc::clone(&self.dict));
        let found = of_dict(state, &dict, self.name, arguments)?;
        Ok(found.expect("it is one of the methods"))
    }
}

/// The value of a conversation with dicts as Python has them.
pub(in super::super) fn as_python(value: &Value) -> Value {
    match (value.kind(), value.as_object()) {
        (ValueKind::Seq, Some(list)) => {
            list.try_iter().into_iter().flatten().map(|item| as_python(&item)).collect()
        }
        (ValueKind::Map, Some(dict)) => {
            let pairs = dict.try_iter_pairs().into_iter().flatten();
            let pairs: Vec<_> = pairs.map(|(key, value)| (key, as_python(&value))).collect();
            let dict = Value::from_pairs(pairs);
            dict.as_object()
                .map_or_else(|| dict.clone(), |dict| Value::from_object(Dict(dict.clone())))
        }
        _ => value.clone(),
    }
}

const DICT_METHODS: [&str; 5] = ["copy", "get", "items", "keys", "values"];
const CHANGES_LIST: [&str; 8] =
    ["append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"];
const CHANGES_DICT: [&str; 5] = ["clear", "pop", "popitem", "setdefault", "update"];

/// A method of a dict, if there is one of this name.
pub(super) fn of_dict(
    state: &State<'_, '_>,
    value: &Value,
    name: &str,
    arguments: &[Value],
) -> Result<Option<Value>, Error> {
    if CHANGES_DICT.contains(&name) {
        return Err(refused(format!("{name} changes the dict, which templates may not")));
    }
    if ["keys", "values", "items"].contains(&name) {
        charge(state, value.len().unwrap_or(0))?;
    }
    let pairs = || value.as_object().and_then(|dict| dict.try_iter_pairs()).into_iter().flatten();
    let view = |name: &'static str, items: Vec<Value>| {
        Arguments::of(name, arguments, 0)?.finish()?;
        Ok(Some(Value::from_object(DictView { name, items })))
    };
    match name {
        "keys" => view("dict_keys", pairs().map(|(key, _)| key).collect()),
        "values" => view("dict_values", pairs().map(|(_, value)| value).collect()),
        "items" => {
            let pair = |(key, value)| Value::from(Tuple::from([key, value]));
            view("dict_items", pairs().map(pair).collect())
        }
        "copy" => {
            Arguments::of(name, arguments, 0)?.finish()?;
            Ok(Some(value.clone()))
        }
        "get" => {
            let arguments = Arguments::of(name, arguments, 2)?;
            arguments.finish()?;
            let key = arguments.value(0, "key")?.unwrap_or(Value::from(()));
            let found = value.as_object().and_then(|dict| dict.get_value(&key));
            let or_else = arguments.value(1, "default")?.unwrap_or(Value::from(()));
            Ok(Some(found.unwrap_or(or_else)))
        }
        _ => Ok(None),
    }
}

/// A method of a list or a tuple, if there is one of this name.
pub(super) fn of_list(
    state: &State<'_, '_>,
    value: &Value,
    name: &str,
    arguments: &[Value],
) -> Result<Option<Value>, Error> {
    if CHANGES_LIST.contains(&name) && !value.is_tuple() {
        return Err(refused(format!("{name} changes the list, which templates may not")));
    }
    // Each of the methods walks the list.
    charge(state, value.len().unwrap_or(0))?;
    let items = || value.try_iter().into_iter().flatten();
    match name {
        "copy" if !value.is_tuple() => {
            Arguments::of(name, arguments, 0)?.finish()?;
            Ok(Some(items().collect()))
        }
        "count" | "index" => {
            let arguments = Arguments::of(name, arguments, 1)?;
            arguments.finish()?;
            let wanted = arguments.value(0, "value")?.unwrap_or(Value::from(()));
            if name == "count" {
                return Ok(Some(Value::from(items().filter(|item| *item == wanted).count())));
            }
            let found = items().position(|item| item == wanted);
            let missing = || refused("index: the value is not in the list");
            Ok(Some(Value::from(found.ok_or_else(missing)?)))
        }
        _ => Ok(None),
    }
}

/// Whether a value is a list of Python: also a part of one, and what two of them make.
pub(super) fn is_list(value: &Value) -> bool {
    let is_part = || {
        let has_len = value.kind() == ValueKind::Iterable && value.len().is_some();
        has_len && value.downcast_object_ref::<DictView>().is_none()
    };
    value.kind() == ValueKind::Seq || is_part()
}
