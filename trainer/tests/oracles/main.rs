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
    /// Folder or file below that of all figures.
    place: &'static str,
    /// What is compared, where one place has figures of two kinds.
    what: &'static str,
    compare: Compare,
    /// What the case requires and is not supported, if anything: its test is ignored.
    missing: fn(&Path) -> Option<&'static str>,
    has_vectors: bool,
}

const ADAMW: Kind = Kind {
    place: "adamw_vectors.json",
    what: "",
    compare: adamw::vectors_are_met_bit_for_bit,
    missing: |_| None,
    has_vectors: true,
};

/// Models below `place`.
const fn models(place: &'static str, has_vectors: bool) -> Kind {
    let compare = models::model_trains_as_in_transformers;
    Kind { place, what: "", compare, missing: |_| None, has_vectors }
}

/// Their configurations alone.
const fn configurations(place: &'static str, has_vectors: bool) -> Kind {
    let compare = models::configuration_is_read_in_all_spellings;
    Kind { place, what: "_config", compare, missing: |_| None, has_vectors }
}

/// Weights as transformers has written them.
const fn written(place: &'static str, has_vectors: bool) -> Kind {
    let compare = written::weights_are_written_as_transformers_writes_them;
    Kind { place, what: "_written", compare, missing: written::missing_file, has_vectors }
}

const KINDS: [Kind; 9] = [
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

/// The cases of a kind below `folder`: each folder in its folder, or its one file. None where
/// neither is there.
fn cases(kind: &Kind, folder: &Path) -> Vec<PathBuf> {
    let path = folder.join(kind.place);
    if path.is_file() {
        return vec![path];
    }
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    let mut cases: Vec<_> =
        entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    cases.sort();
    cases
}

fn name_of(kind: &Kind, origin: &str, case: &str) -> String {
    format!("oracle_{origin}_{}{}{case}", kind.place.replace('.', "_"), kind.what)
}

fn trial(kind: &Kind, origin: &str, path: PathBuf) -> Trial {
    let case = path.file_stem().expect("a name").to_string_lossy();
    let name = name_of(kind, origin, &format!("_{case}"));
    let missing = (kind.missing)(&path);
    let compare = kind.compare;
    let trial = Trial::test(name, move || {
        compare(&path);
        Ok(())
    });
    match missing {
        Some(feature) => {
            trial.with_kind(format!("not supported yet: {feature}")).with_ignored_flag(true)
        }
        None => trial,
    }
}

/// The cases of the folder, or one test in their place that is ignored, or fails where they are
/// required.
fn folder_trials(kind: &Kind, folder: &Path, is_required: bool) -> Vec<Trial> {
    let found = cases(kind, folder);
    if !found.is_empty() {
        return found.into_iter().map(|path| trial(kind, "folder", path)).collect();
    }
    let missing = format!("no {} in {}", kind.place, folder.display());
    let name = name_of(kind, "folder", "");
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
        assert_eq!(!small.is_empty(), kind.has_vectors, "the package's vectors of {}", kind.place);
        let small = small.into_iter().map(|path| trial(kind, "vectors", path));
        small.chain(folder_trials(kind, &folder, is_required)).collect::<Vec<_>>()
    };
    KINDS.iter().flat_map(of_kind).collect()
}

fn main() {
    libtest_mimic::run(&Arguments::from_args(), trials()).exit();
}
