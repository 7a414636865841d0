//! Figures made by others: models of transformers, and PyTorch's AdamW. A few travel with the
//! package; all of those in the folder that `ZBELASTIC_ORACLES` names are run beside them. Without
//! the folder, and for what is not supported yet, a test is counted as ignored; with
//! `ZBELASTIC_ORACLES_REQUIRED=1` a missing folder fails.

mod adamw;
mod models;
mod written;

use std::path::{Path, PathBuf};

use libtest_mimic::{Arguments, Trial};

/// A comparison with one file or folder.
type Compare = fn(&Path);

/// Figures of one kind, and how a case of them is compared.
struct Kind {
    name: &'static str,
    /// What is compared, behind the kind in a test's name.
    what: &'static str,
    compare: Compare,
    /// Whether what the case requires is supported; if not, its test is ignored.
    is_supported: fn(&Path) -> bool,
    /// Whether its cases are too large to travel with the package.
    is_large: bool,
}

const MODELS: Kind = Kind {
    name: "hf",
    what: "",
    compare: models::model_trains_as_in_transformers,
    is_supported: models::is_importable,
    is_large: false,
};
const PACKED: Kind = Kind { name: "packing", is_large: true, ..MODELS };
const CHAT: Kind = Kind { name: "chat", is_large: true, ..MODELS };
const WRITTEN: Kind = Kind {
    name: "hf",
    what: "_written",
    compare: written::weights_are_written_as_transformers_writes_them,
    is_supported: written::is_readable,
    is_large: false,
};
const MORE_WRITTEN: Kind = Kind { name: "models", is_large: true, ..WRITTEN };
const ADAMW: Kind = Kind {
    name: "adamw_vectors.json",
    what: "",
    compare: adamw::vectors_are_met_bit_for_bit,
    is_supported: |_| true,
    is_large: false,
};

/// The cases of a kind below `folder`: each folder in its folder, or its one file. None where
/// neither is there.
fn cases(kind: &Kind, folder: &Path) -> Vec<PathBuf> {
    let path = folder.join(kind.name);
    if path.is_file() {
        return vec![path];
    }
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    let mut cases: Vec<_> =
        entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    cases.sort();
    cases
}

fn trial(kind: &Kind, origin: &str, path: PathBuf) -> Trial {
    let case = path.file_stem().map(|name| name.to_string_lossy().into_owned());
    let [kind_name, what] = [kind.name.replace('.', "_"), kind.what.to_owned()];
    let name = format!("oracle_{origin}_{kind_name}{what}_{}", case.expect("a name"));
    let is_supported = (kind.is_supported)(&path);
    let compare = kind.compare;
    let trial = Trial::test(name, move || {
        compare(&path);
        Ok(())
    });
    trial.with_ignored_flag(!is_supported)
}

/// The cases of the folder, or one test in their place that is ignored, or fails where they are
/// required.
fn folder_trials(kind: &Kind, folder: &Path, is_required: bool) -> Vec<Trial> {
    let found = cases(kind, folder);
    if !found.is_empty() {
        return found.into_iter().map(|path| trial(kind, "folder", path)).collect();
    }
    let missing = format!("no {} in {}", kind.name, folder.display());
    let name = format!("oracle_folder_{}{}", kind.name.replace('.', "_"), kind.what);
    vec![Trial::test(name, || Err(missing.into())).with_ignored_flag(!is_required)]
}

fn trials() -> Vec<Trial> {
    let vectors = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/oracles/vectors"));
    let default = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/oracles");
    let folder =
        std::env::var_os("ZBELASTIC_ORACLES").map_or_else(|| default.into(), PathBuf::from);
    let is_required = std::env::var_os("ZBELASTIC_ORACLES_REQUIRED").is_some_and(|v| v == "1");
    let of_kind = |kind: &Kind| {
        let small: Vec<_> = cases(kind, vectors);
        assert!(kind.is_large == small.is_empty(), "the package has vectors of {}", kind.name);
        let small = small.into_iter().map(|path| trial(kind, "vectors", path));
        small.chain(folder_trials(kind, &folder, is_required)).collect::<Vec<_>>()
    };
    let kinds = [MODELS, PACKED, CHAT, WRITTEN, MORE_WRITTEN, ADAMW];
    kinds.iter().flat_map(of_kind).collect()
}

fn main() {
    libtest_mimic::run(&Arguments::from_args(), trials()).exit();
}
