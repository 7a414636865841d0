//! Ids, texts and masks made by transformers and the Python package tokenizers. A few travel with
//! the package; all of those in the folder that `ZBELASTIC_ORACLES` names are run beside them.
//! Without the folder a test is counted as ignored; with `ZBELASTIC_ORACLES_REQUIRED=1` it fails.

mod chat;
mod tokenizers;

use std::path::{Path, PathBuf};

use libtest_mimic::{Arguments, Trial};
use serde::de::DeserializeOwned;

/// Figures of one kind.
struct Kind {
    folder: &'static str,
    is_case: fn(&Path) -> bool,
    compare: fn(&Path),
}

const TOKENIZERS: Kind = Kind {
    folder: "tokenizers",
    is_case: |path| path.join("tokenizer.json").is_file(),
    compare: tokenizers::ids_and_texts_are_those_of_tokenizers,
};
const CHAT: Kind = Kind {
    folder: "chat",
    is_case: chat::is_case,
    compare: chat::texts_ids_and_masks_are_those_of_transformers,
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

fn cases(kind: &Kind, folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder.join(kind.folder)).into_iter().flatten().flatten();
    let mut cases: Vec<_> =
        entries.map(|entry| entry.path()).filter(|path| (kind.is_case)(path)).collect();
    cases.sort();
    cases
}

fn trial(kind: &Kind, origin: &str, path: PathBuf) -> Trial {
    let case = path.file_stem().expect("a case has a name").to_string_lossy().into_owned();
    let compare = kind.compare;
    Trial::test(format!("oracle_{origin}_{}_{case}", kind.folder), move || {
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
    let missing = format!("no {} in {}", kind.folder, folder.display());
    let name = format!("oracle_folder_{}", kind.folder);
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
        assert!(!small.is_empty(), "the package has vectors of {}", kind.folder);
        let small = small.into_iter().map(|path| trial(kind, "vectors", path));
        small.chain(folder_trials(kind, &folder, is_required)).collect::<Vec<_>>()
    };
    [TOKENIZERS, CHAT].iter().flat_map(of_kind).collect()
}

fn main() {
    libtest_mimic::run(&Arguments::from_args(), trials()).exit();
}
