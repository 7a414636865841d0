//! Windows of documents, as they were packed for models of transformers.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use zbelastic_data::window::{PackedWindow, Packing, window_count};

use crate::encoders::{TableEncoder, store};

/// A line of `windows_L.jsonl`.
#[derive(Deserialize)]
struct OracleWindow {
    ids: Vec<u32>,
    positions: Vec<u32>,
    documents: Vec<u64>,
    loss_mask: Vec<u8>,
}

#[derive(Deserialize)]
struct OracleDocument {
    text: String,
}

fn lines<T: serde::de::DeserializeOwned>(path: &Path) -> Vec<T> {
    let text = std::fs::read_to_string(path).expect("readable");
    let lines = text.split_terminator('\n');
    lines.map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// Files of windows: folders are of models, which the trainer is compared with.
pub fn is_case(path: &Path) -> bool {
    let name = path.file_name().expect("a name").to_string_lossy();
    name.starts_with("windows_")
}

/// The ids of each document that the windows hold as a whole, without the end-of-text token, and the
/// ids of the last one as far as they go.
fn ids_of_documents(windows: &[OracleWindow]) -> BTreeMap<u64, Vec<u32>> {
    let mut ids: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
    for (index, window) in windows.iter().enumerate() {
        // A window begins with the last id of the one before.
        let from = usize::from(index > 0);
        for (id, document) in window.ids.iter().zip(&window.documents).skip(from) {
            ids.entry(*document).or_default().push(*id);
        }
    }
    for ids in ids.values_mut() {
        ids.pop_if(|id| *id == 0);
    }
    ids
}

/// The corpus as far as the windows go, from a table of ids: this package has no tokenizer.
fn corpus(path: &Path, windows: &[OracleWindow]) -> (String, TableEncoder) {
    let documents: Vec<OracleDocument> = lines(&path.with_file_name("documents.jsonl"));
    let mut corpus = String::new();
    let mut table = BTreeMap::new();
    let ids_of_documents = ids_of_documents(windows);
    let last = ids_of_documents.keys().next_back().copied();
    for (number, ids) in ids_of_documents {
        // The last document may be cut: its text, which an earlier one may have as well, stands for
        // fewer ids than it has.
        let text = match Some(number) == last {
            true => format!("document {number}, as far as windows go"),
            false => documents[number as usize].text.clone(),
        };
        let known = table.insert(text.clone(), ids.clone());
        assert!(known.is_none_or(|known| known == ids), "a text has one row of ids");
        corpus += &format!("{}\n", serde_json::json!({ "text": text }));
    }
    (corpus, TableEncoder(table))
}

pub fn windows_are_those_of_the_oracle(path: &Path) {
    let expected: Vec<OracleWindow> = lines(path);
    let sequence_len = expected[0].positions.len();
    let (text, encoder) = corpus(path, &expected);
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("documents.jsonl");
    std::fs::write(&file, text).expect("writable");
    let (store, _store_folder) = store(&file, &encoder);
    let windows = window_count(store.tokens(), sequence_len as u64);
    assert_eq!(windows as usize, expected.len());
    for (number, expected) in expected.iter().enumerate() {
        let first = (number * sequence_len) as u64;
        let window = store.window(first, sequence_len, Packing::Documents).expect("whole");
        let loss_mask = expected.loss_mask.iter().map(|bit| *bit == 1).collect();
        let OracleWindow { ids, positions, documents, .. } = expected;
        let (ids, positions, documents) = (ids.clone(), positions.clone(), documents.clone());
        assert_eq!(window, PackedWindow { ids, positions, documents, loss_mask }, "{number}");
    }
}
