//! Ids, texts and masks made by transformers and the Python package tokenizers.

mod chat;
mod tokenizers;

use std::path::Path;

use serde::de::DeserializeOwned;
use zbelastic_oracles::{OracleKind, Oracles};

const TOKENIZERS: OracleKind = OracleKind {
    name: "tokenizers",
    what: "",
    has_vectors: true,
    is_case: |path| path.join("tokenizer.json").is_file(),
    compare: tokenizers::ids_and_texts_are_those_of_tokenizers,
    missing: |_| None,
};
const CHAT: OracleKind = OracleKind {
    name: "chat",
    what: "",
    has_vectors: true,
    is_case: chat::is_case,
    compare: chat::texts_ids_and_masks_are_those_of_transformers,
    missing: |_| None,
};

/// The lines of a file. Texts hold other separators, which are no ends of lines.
fn raw_lines(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    text.split('\n').filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

fn lines<T: DeserializeOwned>(path: &Path) -> Vec<T> {
    let parse = |line: &String| serde_json::from_str(line).expect("a line of JSON");
    raw_lines(path).iter().map(parse).collect()
}

fn main() {
    let vectors = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/oracles/vectors"));
    let oracles = Oracles::from_env();
    zbelastic_oracles::run(
        [TOKENIZERS, CHAT].iter().flat_map(|kind| oracles.of_kind(kind, vectors)),
    )
}
