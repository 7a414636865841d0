//! JSON of which no object has a key twice: readers differ in which of two values counts.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// The object that a text is.
pub(super) fn read_object(text: &str) -> Result<Map<String, Value>, serde_json::Error> {
    let DistinctKeys(value) = serde_json::from_str(text)?;
    serde_json::from_value(value)
}

/// A value, read as [`Value`] is, and refused if an object in it has a key twice.
struct DistinctKeys(Value);

impl<'de> Deserialize<'de> for DistinctKeys {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(DistinctKeysVisitor).map(Self)
    }
}

struct DistinctKeysVisitor;

impl<'de> Visitor<'de> for DistinctKeysVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Value, E> {
        Ok(flag.into())
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(DistinctKeys(value)) = items.next_element()? {
            values.push(value);
        }
        Ok(values.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = items.next_key::<String>()? {
            if map.contains_key(&key) {
                return Err(Error::custom(format_args!("the key `{key}` appears twice")));
            }
            let DistinctKeys(value) = items.next_value()?;
            map.insert(key, value);
        }
        Ok(map.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_of_serde_json() {
        let text = r#"{"a": [null, true, -1, 18446744073709551615, 0.1, 1e300, "\u00e9\n"],
            "b": {"a": {}, "c": []}, "": ""}"#;
        let expected: Map<String, Value> = serde_json::from_str(text).expect("an object");
        assert_eq!(read_object(text).expect("an object"), expected);
    }

    #[test]
    fn what_is_no_object_or_has_a_key_twice_is_refused() {
        let check = |text: &str, part: &str| {
            let error = read_object(text).expect_err(text).to_string();
            assert!(error.contains(part), "{error}, expected {part}");
        };
        check("", "EOF");
        check("[1]", "expected a map");
        check("{} 1", "trailing characters");
        check(r#"{"a": 1, "b": 2, "a": 1}"#, "the key `a` appears twice");
        check(r#"{"a": [{"b": 1, "b": 2}]}"#, "the key `b` appears twice");
        check(&("[".repeat(1000) + &"]".repeat(1000)), "recursion limit");
    }
}
