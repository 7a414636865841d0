//! Figures made by others: windows that were packed for transformers, and one corpus in every format.
//! A few travel with the package; all of those in the folder that `ZBELASTIC_ORACLES` names are run
//! beside them. Without the folder a test is counted as ignored; with `ZBELASTIC_ORACLES_REQUIRED=1` a
//! missing folder fails.

mod datasets;
mod encoders;
mod packing;

use std::path::{Path, PathBuf};

use libtest_mimic::{Arguments, Trial};

/// Figures of one kind, and how a case of them is compared.
struct Kind {
    name: &'static str,
    /// Whether a file or folder is a case; others belong to the cases.
    is_case: fn(&Path) -> bool,
    compare: fn(&Path),
}

const PACKING: Kind = Kind {
    name: "packing",
    is_case: packing::is_case,
    compare: packing::windows_are_those_of_the_oracle,
};
const DATASETS: Kind = Kind {
    name: "datasets",
    is_case: datasets::is_case,
    compare: datasets::documents_are_those_of_the_oracle,
};

/// The cases of a kind below `folder`. None where it is not there.
fn cases(kind: &Kind, folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder.join(kind.name)).into_iter().flatten().flatten();
    let mut cases: Vec<_> =
        entries.map(|entry| entry.path()).filter(|p| (kind.is_case)(p)).collect();
    cases.sort();
    cases
}

fn trial(kind: &Kind, origin: &str, path: PathBuf) -> Trial {
    let case = path.file_name().expect("a case has a name").to_string_lossy().replace('.', "_");
    let compare = kind.compare;
    Trial::test(format!("oracle_{origin}_{}_{case}", kind.name), move || {
        compare(&path);
        Ok(())
    })
}

/// The cases of the folder, or one test in their place that is ignored, or fails where they are
/// required.
fn folder_trials(kind: &Kind, folder: &Path, is_required: bool) -> Vec<Trial> {
    let found = cases(kind, folder);
    if !found.is_empty() {
        return found.into_iter().map(|path| trial(kind, "folder", path)).collect();
    }
    let missing = format!("no {} in {}", kind.name, folder.display());
    let name = format!("oracle_folder_{}", kind.name);
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
        assert!(!small.is_empty(), "the package has vectors of {}", kind.name);
        let small = small.into_iter().map(|path| trial(kind, "vectors", path));
        small.chain(folder_trials(kind, &folder, is_required)).collect::<Vec<_>>()
    };
    [PACKING, DATASETS].iter().flat_map(of_kind).collect()
}

fn main() {
    libtest_mimic::run(&Arguments::from_args(), trials()).exit();
}
