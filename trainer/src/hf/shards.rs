//! `model.safetensors.index.json`: which tensor is in which of several files.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

/// Files of weights at most.
pub const SHARDS_MAX: usize = 4096;

/// Why an index cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ShardIndexError {
    /// It is no JSON, or has no map of tensors.
    #[error("it is no index of weights: {0}")]
    Json(#[from] serde_json::Error),
    /// It names a file that is not beside it.
    #[error("it names {name:?}, which is no file of its folder")]
    Path {
        /// What it names.
        name: String,
    },
    /// It names no file, or too many.
    #[error("it names {found} files, expected 1 to {SHARDS_MAX}")]
    Count {
        /// How many it names.
        found: usize,
    },
}

#[derive(Deserialize)]
struct IndexFile {
    weight_map: BTreeMap<String, String>,
}

/// The file of each tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardIndex {
    tensors: BTreeMap<String, String>,
}

impl ShardIndex {
    /// Reads an index.
    ///
    /// # Errors
    /// If it is none, or names something that is no file beside it.
    pub fn parse(text: &str) -> Result<Self, ShardIndexError> {
        let IndexFile { weight_map: tensors } = serde_json::from_str(text)?;
        let index = Self { tensors };
        let files = index.files();
        let is_path =
            |name: &&&str| name.contains(['/', '\\']) || matches!(**name, "" | "." | "..");
        if let Some(name) = files.iter().find(is_path) {
            return Err(ShardIndexError::Path { name: (*name).to_owned() });
        }
        match files.len() {
            1..=SHARDS_MAX => Ok(index),
            found => Err(ShardIndexError::Count { found }),
        }
    }

    /// The files, each once, in order of their names.
    #[must_use]
    pub fn files(&self) -> Vec<&str> {
        let files: BTreeSet<&str> = self.tensors.values().map(String::as_str).collect();
        files.into_iter().collect()
    }

    /// Each tensor with its file.
    pub(super) fn tensors(&self) -> impl Iterator<Item = (&String, &String)> {
        self.tensors.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_names_files_of_its_folder() {
        let of = |file: &str| ShardIndex::parse(&format!(r#"{{"weight_map": {{"a": "{file}"}}}}"#));
        assert_eq!(of("a.safetensors").expect("a file").files(), ["a.safetensors"]);
        for path in ["../a", "/etc/a", "", ".."] {
            assert!(matches!(of(path), Err(ShardIndexError::Path { .. })), "{path}");
        }
        let none = ShardIndex::parse(r#"{"weight_map": {}}"#);
        assert!(matches!(none, Err(ShardIndexError::Count { found: 0 })));
        assert!(matches!(ShardIndex::parse("{}"), Err(ShardIndexError::Json(_))));
        let two = ShardIndex::parse(r#"{"weight_map": {"a": "2", "b": "1", "c": "2"}}"#);
        assert_eq!(two.expect("two files").files(), ["1", "2"]);
    }
}
