//! Small JSON objects in files of their own, each with a check over all its fields: a bit that
//! flipped on the disk is found, and the file refused. Files of earlier versions have no check, and
//! are read as they are.

use std::io;
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use zbelastic_whole_file as whole_file;

/// The field of the check.
const FIELD: &str = "check";
/// Bytes of the hash that are kept.
const CHECK_BYTES: usize = 8;

/// Why an object cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum CheckedError {
    /// The file cannot be read or written.
    #[error("cannot be read or written: {0}")]
    File(#[from] io::Error),
    /// It is no such object.
    #[error("cannot be read: {0}")]
    Form(#[from] serde_json::Error),
    /// The fields differ from those that were written.
    #[error("is damaged: its check is {expected}, what it says has {found}")]
    Check {
        /// The checksum in the file.
        expected: String,
        /// The checksum of the other fields.
        found: String,
    },
}

/// An object as it was read.
pub struct CheckedObject {
    fields: Map<String, Value>,
    check: Option<Value>,
}

impl CheckedObject {
    /// One of its fields, which may be damaged.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&Value> {
        self.fields.get(name)
    }

    /// The object as a `T`, if its check holds.
    ///
    /// # Errors
    /// If the check does not hold, or the object is no `T`.
    pub fn checked<T: DeserializeOwned>(self) -> Result<T, CheckedError> {
        if let Some(expected) = self.check {
            let found = check_of(&self.fields)?;
            if expected.as_str() != Some(&found) {
                let expected =
                    expected.as_str().map_or_else(|| expected.to_string(), str::to_owned);
                return Err(CheckedError::Check { expected, found });
            }
        }
        Ok(serde_json::from_value(Value::Object(self.fields))?)
    }
}

/// Reads a file; `None` if it is not there.
///
/// # Errors
/// If it cannot be read, has more than `bytes_max`, or is no object.
pub fn read(path: &Path, bytes_max: u64) -> Result<Option<CheckedObject>, CheckedError> {
    let Some(bytes) = whole_file::read(path, bytes_max)? else { return Ok(None) };
    let mut fields: Map<String, Value> = serde_json::from_slice(&bytes)?;
    let check = fields.remove(FIELD);
    Ok(Some(CheckedObject { fields, check }))
}

/// Writes an object with its check, durably, whole or not at all.
///
/// # Errors
/// If it is no object, or cannot be written.
pub fn write(path: &Path, value: &impl Serialize) -> Result<(), CheckedError> {
    // Through its text, as it will be read: a check must not depend on how numbers are held in
    // memory.
    let mut fields: Map<String, Value> = serde_json::from_slice(&serde_json::to_vec(value)?)?;
    let check = check_of(&fields)?;
    fields.insert(FIELD.to_owned(), Value::String(check));
    let mut text = serde_json::to_vec_pretty(&fields)?;
    text.push(b'\n');
    Ok(whole_file::write(path, &text)?)
}

fn check_of(fields: &Map<String, Value>) -> Result<String, serde_json::Error> {
    let hash = blake3::hash(&serde_json::to_vec(fields)?);
    Ok(hash.to_hex()[..2 * CHECK_BYTES].to_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde::Deserialize;

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct SampleFields {
        bind: String,
        boot: u64,
        #[serde(default)]
        zone: String,
    }

    fn place() -> SampleFields {
        SampleFields { bind: "10.0.0.1:7000".to_owned(), boot: u64::MAX, zone: String::new() }
    }

    fn load(path: &Path) -> Result<SampleFields, CheckedError> {
        read(path, 1 << 10)?.expect("it is there").checked()
    }

    /// Flips every bit of the file, one after the other: no file that reads as another place is
    /// accepted.
    #[test]
    fn a_bit_that_flipped_is_not_believed() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("node.json");
        write(&path, &place()).expect("room");
        assert_eq!(load(&path).expect("whole"), place());
        let whole = fs::read(&path).expect("there");
        for at in 0..8 * whole.len() {
            let mut flipped = whole.clone();
            flipped[at / 8] ^= 1 << (at % 8);
            fs::write(&path, &flipped).expect("writable");
            // Whitespace between the fields, and the name of the check, carry no value.
            assert!(
                load(&path).is_ok_and(|found| found == place()) || load(&path).is_err(),
                "{at}"
            );
        }
        let text = String::from_utf8(whole).expect("text").replace("7000", "7001");
        fs::write(&path, text).expect("writable");
        let error = load(&path).expect_err("another port");
        assert!(error.to_string().starts_with("is damaged: its check is "), "{error}");
    }

    #[test]
    fn a_file_of_an_earlier_version_is_read_as_it_is() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("node.json");
        assert!(read(&path, 10).expect("nothing is there").is_none());
        fs::write(&path, r#"{"bind": "10.0.0.1:7000", "boot": 18446744073709551615}"#)
            .expect("room");
        assert_eq!(load(&path).expect("legal"), place());
        fs::write(&path, "[]").expect("room");
        assert!(matches!(read(&path, 10), Err(CheckedError::Form(_))));
    }
}
