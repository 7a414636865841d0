//! Texts and weights that no run refers to, removed from a node's disk.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use zbelastic_types::Digest;

use crate::data_fetch::ARRIVING;

/// So long a file stays that no run refers to: an upload, or a fetched copy, for a run that is
/// about to begin.
const UNUSED_KEPT: Duration = Duration::from_secs(3600);

/// Removes files that lie in the folder of texts and weights under the name of none of these, and
/// have lain there for an hour. Yields their bytes. A file that cannot be removed now is tried
/// again after the next checkpoint.
pub fn collect_data(folder: &Path, referred: &[Digest], now: SystemTime) -> u64 {
    let files =
        |hash: &Digest| ["data", "chunks", ARRIVING].map(|ending| format!("{hash}.{ending}"));
    let kept: BTreeSet<String> = referred.iter().flat_map(files).collect();
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    let mut freed = 0;
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        // A file that was not written to its end is not used either, unless its chunks arrive in the
        // order in which a run reads them.
        let is_ours = [".data", ".chunks", ".part"].iter().any(|ending| name.ends_with(ending));
        let Ok(found) = entry.metadata() else { continue };
        let age = found.modified().ok().and_then(|at| now.duration_since(at).ok());
        let is_old = age.is_some_and(|age| age > UNUSED_KEPT);
        if is_ours
            && is_old
            && found.is_file()
            && !kept.contains(name)
            && fs::remove_file(entry.path()).is_ok()
        {
            freed += found.len();
        }
    }
    freed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_run_refers_to_goes_once_it_is_old() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        let named = |byte: u8| format!("{}.data", Digest([byte; 32]));
        let list = |byte: u8| format!("{}.chunks", Digest([byte; 32]));
        let other = ["notes.txt".to_owned(), named(3) + ".part"];
        let arriving = |byte: u8| format!("{}.{ARRIVING}", Digest([byte; 32]));
        let of_run = [named(1), list(1), arriving(1)];
        for name in [named(2), list(2)].iter().chain(&of_run).chain(&other) {
            fs::write(path(name), [0; 10]).expect("writable");
        }
        let now = SystemTime::now();
        assert_eq!(
            collect_data(folder.path(), &[Digest([1; 32])], now),
            0,
            "it may be for the next"
        );
        let later = now + UNUSED_KEPT + Duration::from_secs(60);
        assert_eq!(collect_data(folder.path(), &[Digest([1; 32])], later), 30);
        let there = |name: &str| path(name).exists();
        assert!(of_run.iter().all(|name| there(name)) && there("notes.txt"));
        assert!(!there(&named(2)) && !there(&list(2)) && !there(&(named(3) + ".part")));
        assert_eq!(collect_data(&path("nowhere"), &[], later), 0);
    }
}
