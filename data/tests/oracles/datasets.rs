//! The same documents in every format.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use ring::digest::{SHA256, digest};
use serde::Deserialize;
use serde_json::Value;
use zbelastic_data::store::{TokenSpan, TokenStore};

use crate::encoders::{EndedBytesEncoder, TableEncoder, store};

#[derive(Deserialize)]
struct Expected {
    documents: u64,
    bytes: u64,
    sha256: String,
    tokens_with_end_of_text: u64,
    bytes_per_document: Vec<usize>,
    tokens_per_document: Vec<usize>,
}

impl Expected {
    fn read(file: &Path) -> Self {
        let text = std::fs::read(file.with_file_name("expected.json")).expect("readable");
        serde_json::from_slice(&text).expect("the expected figures")
    }

    fn empty(&self) -> u64 {
        self.bytes_per_document.iter().filter(|bytes| **bytes == 0).count() as u64
    }
}

pub fn is_case(path: &Path) -> bool {
    path.file_name().expect("a name").to_string_lossy().starts_with("documents")
}

/// Ids of `documents.bin`, which the oracle's tokenizer made.
fn oracle_ids(file: &Path) -> Vec<u32> {
    let bytes = std::fs::read(file.with_file_name("documents.bin")).expect("readable");
    bytes.as_chunks().0.iter().map(|id| u16::from_le_bytes(*id).into()).collect()
}

/// The ids of each text.
fn table(file: &Path, expected: &Expected) -> TableEncoder {
    let text = std::fs::read_to_string(file.with_file_name("documents.jsonl")).expect("readable");
    let ids = oracle_ids(file);
    let mut start = 0;
    let mut table = BTreeMap::new();
    for (line, count) in text.split_terminator('\n').zip(&expected.tokens_per_document) {
        let object: Value = serde_json::from_str(line).expect("JSON");
        let text = object["text"].as_str().expect("a text").to_owned();
        table.insert(text, ids[start..start + count].to_vec());
        start += count + 1;
    }
    TableEncoder(table)
}

fn everything(store: &TokenStore) -> TokenSpan {
    store.read(0..store.tokens()).expect("whole")
}

/// The bytes of the documents are the oracle's.
fn check_bytes(file: &Path, expected: &Expected) {
    let (store, _folder) = store(file, &EndedBytesEncoder);
    let sources = store.manifest().sources;
    assert_eq!(sources.documents, expected.documents);
    assert_eq!((sources.empty, sources.bad), (expected.empty(), 0));
    let span = everything(&store);
    let lengths = span.documents.chunk_by(|a, b| a == b).map(|document| document.len() - 1);
    assert_eq!(lengths.collect::<Vec<_>>(), expected.bytes_per_document);
    let bytes: Vec<u8> = span.ids.iter().filter_map(|id| u8::try_from(*id).ok()).collect();
    assert_eq!(bytes.len() as u64, expected.bytes);
    let mut sha256 = String::new();
    for byte in digest(&SHA256, &bytes).as_ref() {
        write!(sha256, "{byte:02x}").expect("a string");
    }
    assert_eq!(sha256, expected.sha256);
}

pub fn documents_are_those_of_the_oracle(file: &Path) {
    let expected = Expected::read(file);
    if file.extension().is_none_or(|extension| extension != "bin") {
        check_bytes(file, &expected);
    }
    let (store, _folder) = store(file, &table(file, &expected));
    assert_eq!(store.documents(), expected.documents);
    assert_eq!(store.manifest().sources.empty, expected.empty());
    assert_eq!(store.tokens(), expected.tokens_with_end_of_text);
    let span = everything(&store);
    assert_eq!(span.ids, oracle_ids(file));
    let lengths = span.documents.chunk_by(|a, b| a == b).map(|document| document.len() - 1);
    assert_eq!(lengths.collect::<Vec<_>>(), expected.tokens_per_document);
}
