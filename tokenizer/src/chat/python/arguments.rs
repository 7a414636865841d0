//! Arguments of a call as Python has them: by position, or by name.

use minijinja::value::{Kwargs, Rest, from_args};
use minijinja::{Error, ErrorKind, Value};

/// An error with what is wrong about a call.
pub(super) fn refused(cause: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, cause.into())
}

/// The arguments of a method or a filter. An argument that is `None` counts as left out.
pub(super) struct Arguments {
    name: String,
    positional: Vec<Value>,
    named: Kwargs,
}

impl Arguments {
    /// The arguments of a call of `name`, at most so many of them.
    pub(super) fn of(name: &str, arguments: &[Value], count_max: usize) -> Result<Self, Error> {
        let (positional, named): (Rest<Value>, Kwargs) = from_args(arguments)?;
        let name = name.to_owned();
        if positional.0.len() > count_max {
            let found = positional.0.len();
            return Err(refused(format!("{name} takes {count_max} arguments, not {found}")));
        }
        Ok(Self { name, positional: positional.0, named })
    }

    /// An argument, whatever it is.
    pub(super) fn value(&self, position: usize, name: &str) -> Result<Option<Value>, Error> {
        let value = match self.positional.get(position) {
            Some(value) => Some(value.clone()),
            None => self.named.get(name)?,
        };
        Ok(value.filter(|value| !value.is_none()))
    }

    /// A text.
    pub(super) fn text(&self, position: usize, name: &str) -> Result<Option<String>, Error> {
        let value = self.value(position, name)?;
        let text = |value: Value| {
            let text = value.as_str().map(str::to_owned);
            text.ok_or_else(|| self.wrong(name, "a text", &value))
        };
        value.map(text).transpose()
    }

    /// A text that has to be there.
    pub(super) fn needed_text(&self, position: usize, name: &str) -> Result<String, Error> {
        let missing = || refused(format!("{} needs the argument {name}", self.name));
        self.text(position, name)?.ok_or_else(missing)
    }

    /// A whole number, which `True` and `False` are too.
    pub(super) fn integer(&self, position: usize, name: &str) -> Result<Option<i64>, Error> {
        let value = self.value(position, name)?;
        let integer = |value: Value| match bool::try_from(value.clone()) {
            Ok(value) => Ok(i64::from(value)),
            Err(_) => {
                let integer = value.as_i64().filter(|_| value.is_integer());
                integer.ok_or_else(|| self.wrong(name, "a whole number", &value))
            }
        };
        value.map(integer).transpose()
    }

    /// Whether an argument is true, as any value may be.
    pub(super) fn flag(&self, position: usize, name: &str) -> Result<bool, Error> {
        Ok(self.value(position, name)?.is_some_and(|value| value.is_true()))
    }

    /// Refuses names that were not asked for.
    pub(super) fn finish(&self) -> Result<(), Error> {
        self.named.assert_all_used()
    }

    fn wrong(&self, name: &str, expected: &str, found: &Value) -> Error {
        refused(format!("{}: {name} is {}; expected {expected}", self.name, found.kind()))
    }
}
