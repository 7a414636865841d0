//! A value as it stands in a configuration: read from TOML, written as TOML.

use std::fmt;

use toml::de::{DeInteger, DeValue};

/// A value of a configuration.
#[derive(Clone, Debug, PartialEq)]
pub enum ConfigValue {
    /// A string of TOML.
    Text(String),
    /// A TOML integer.
    Whole(i128),
    /// A float; TOML has `nan` and `inf`.
    Number(f64),
    /// A TOML boolean.
    Flag(bool),
    /// A TOML array.
    List(Vec<ConfigValue>),
    /// A type that no key accepts, by name.
    Other(&'static str),
}

impl ConfigValue {
    /// A TOML value.
    ///
    /// # Errors
    /// If it is none, with the reason.
    pub fn parse(text: &str) -> Result<Self, String> {
        match DeValue::parse(text) {
            Ok(value) => Ok(Self::of(value.get_ref())),
            Err(error) => Err(error.message().to_owned()),
        }
    }

    pub(super) fn of(value: &DeValue<'_>) -> Self {
        match value {
            DeValue::String(text) => Self::Text(text.clone().into_owned()),
            DeValue::Integer(number) => Self::of_integer(number),
            // A number too large for a float reads as infinite, which no key accepts.
            DeValue::Float(number) => {
                number.as_str().parse().map_or(Self::Other("a number"), Self::Number)
            }
            DeValue::Boolean(flag) => Self::Flag(*flag),
            DeValue::Datetime(_) => Self::Other("a date"),
            DeValue::Array(items) => {
                Self::List(items.iter().map(|item| Self::of(item.get_ref())).collect())
            }
            DeValue::Table(_) => Self::Other("a table"),
        }
    }

    fn of_integer(number: &DeInteger<'_>) -> Self {
        i128::from_str_radix(number.as_str(), number.radix())
            .map_or(Self::Other("a number too large to read"), Self::Whole)
    }
}

/// Writes a text as a string of TOML.
fn write_text(text: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.write_str("\"")?;
    for letter in text.chars() {
        match letter {
            '"' => f.write_str("\\\"")?,
            '\\' => f.write_str("\\\\")?,
            '\n' => f.write_str("\\n")?,
            '\t' => f.write_str("\\t")?,
            control if control.is_control() => write!(f, "\\u{:04X}", u32::from(control))?,
            other => write!(f, "{other}")?,
        }
    }
    f.write_str("\"")
}

impl fmt::Display for ConfigValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => write_text(text, f),
            Self::Whole(number) => write!(f, "{number}"),
            Self::Number(number) if number.is_nan() => f.write_str("nan"),
            // The shortest digits that read back as the same number, with a point or exponent.
            Self::Number(number) => write!(f, "{number:?}"),
            Self::Flag(flag) => write!(f, "{flag}"),
            Self::List(items) => {
                f.write_str("[")?;
                for (index, item) in items.iter().enumerate() {
                    let comma = if index == 0 { "" } else { ", " };
                    write!(f, "{comma}{item}")?;
                }
                f.write_str("]")
            }
            Self::Other(name) => f.write_str(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ConfigValue;

    #[test]
    fn text_and_value_are_inverses() {
        let check = |text: &str, value: ConfigValue| {
            assert_eq!(ConfigValue::parse(text), Ok(value.clone()));
            assert_eq!(value.to_string(), text);
        };
        check("\"zb-h1\"", ConfigValue::Text("zb-h1".to_owned()));
        check(
            "\"a \\\"b\\\" \\\\ \\n\\t\\u0007\"",
            ConfigValue::Text("a \"b\" \\ \n\t\u{7}".to_owned()),
        );
        check("-3", ConfigValue::Whole(-3));
        check("18446744073709551615", ConfigValue::Whole(u64::MAX.into()));
        check("0.1", ConfigValue::Number(0.1));
        check("1e-8", ConfigValue::Number(1e-8));
        check("1e300", ConfigValue::Number(1e300));
        check("inf", ConfigValue::Number(f64::INFINITY));
        check("false", ConfigValue::Flag(false));
        check(
            "[0.9, 0.95]",
            ConfigValue::List(vec![ConfigValue::Number(0.9), ConfigValue::Number(0.95)]),
        );
        check("[]", ConfigValue::List(vec![]));
    }

    #[test]
    fn what_no_key_takes_is_named() {
        let check = |text: &str, expected: &str| {
            assert_eq!(ConfigValue::parse(text).expect("TOML").to_string(), expected);
        };
        check("nan", "nan");
        check("-nan", "nan");
        check("0xff", "255");
        check("1_000", "1000");
        check("1e999", "inf");
        check("2024-01-01", "a date");
        check("{ a = 1 }", "a table");
        check(&"9".repeat(50), "a number too large to read");
        assert!(ConfigValue::parse("zb-h1").is_err());
        assert!(ConfigValue::parse("1 2").is_err());
        assert!(ConfigValue::parse("").is_err());
    }
}
