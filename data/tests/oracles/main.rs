//! Figures made by others: windows that were packed for transformers, and one corpus in every format.

mod datasets;
mod encoders;
mod packing;

use std::path::Path;

use zbelastic_oracles::{OracleKind, Oracles};

const PACKING: OracleKind = OracleKind {
    name: "packing",
    what: "",
    has_vectors: true,
    is_case: packing::is_case,
    compare: packing::windows_are_those_of_the_oracle,
    missing: |_| None,
};
const DATASETS: OracleKind = OracleKind {
    name: "datasets",
    what: "",
    has_vectors: true,
    is_case: datasets::is_case,
    compare: datasets::documents_are_those_of_the_oracle,
    missing: |_| None,
};

fn main() {
    let vectors = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/oracles/vectors"));
    let oracles = Oracles::from_env();
    zbelastic_oracles::run(
        [PACKING, DATASETS].iter().flat_map(|kind| oracles.of_kind(kind, vectors)),
    )
}
