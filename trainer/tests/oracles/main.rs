//! Figures made by others: models of transformers, and PyTorch's AdamW.

mod adamw;
mod adapters;
mod models;
mod written;

use std::path::Path;

use zbelastic_oracles::{OracleKind, Oracles};

const ADAMW: OracleKind = OracleKind {
    name: "adamw_vectors.json",
    what: "",
    has_vectors: true,
    is_case: |_| false,
    compare: adamw::vectors_are_met_bit_for_bit,
    missing: |_| None,
};

/// Models below the folder `name`.
const fn models(name: &'static str, has_vectors: bool) -> OracleKind {
    OracleKind {
        name,
        what: "",
        has_vectors,
        is_case: Path::is_dir,
        compare: models::model_trains_as_in_transformers,
        missing: |_| None,
    }
}

/// Their configurations alone.
const fn configurations(name: &'static str, has_vectors: bool) -> OracleKind {
    let compare = models::configuration_is_read_in_all_spellings;
    OracleKind { what: "_config", compare, ..models(name, has_vectors) }
}

/// Weights as transformers has written them.
const fn written(name: &'static str, has_vectors: bool) -> OracleKind {
    let compare = written::weights_are_written_as_transformers_writes_them;
    OracleKind { what: "_written", compare, missing: written::missing, ..models(name, has_vectors) }
}

const KINDS: [OracleKind; 9] = [
    models("hf", true),
    configurations("hf", true),
    written("hf", true),
    models("models", false),
    configurations("models", false),
    written("models", false),
    models("packing", false),
    models("chat", false),
    ADAMW,
];

fn main() {
    let vectors = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/oracles/vectors"));
    let oracles = Oracles::from_env();
    let all = KINDS.iter().flat_map(|kind| oracles.of_kind(kind, vectors));
    zbelastic_oracles::run(all.chain(adapters::tests(&vectors.join("lora"))))
}
