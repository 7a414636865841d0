//! Which objects an entry means, and their order. Nothing here asks a server.

use std::cmp::Ordering;

use glob::{MatchOptions, Pattern};
use zbelastic_data::source::SourceFormat;

use crate::address::AddressProblem;

/// Files of an entry at most. With some 350 bytes each they take 23 MiB, which with an object's
/// ranges stays within [`PREPARE_BYTES_MAX`](zbelastic_data::prepare::PREPARE_BYTES_MAX).
pub(crate) const FILES_MAX: usize = 1 << 16;

/// What a key stands for.
#[derive(Debug)]
pub(crate) enum Selection {
    /// An object, or else a folder.
    Named,
    /// All objects whose keys begin with this, which is empty or ends with a slash.
    Folder(String),
    /// Those of a folder whose keys match.
    Glob {
        /// The folder, as above.
        folder: String,
        /// The pattern of whole keys.
        pattern: Pattern,
    },
}

impl Selection {
    pub(crate) fn of(key: &str) -> Result<Self, AddressProblem> {
        if let Some(special) = key.find(['*', '?', '[']) {
            let pattern = Pattern::new(key);
            let pattern = pattern.map_err(|error| AddressProblem::Glob { reason: error.msg })?;
            let folder = key[..special].rfind('/').map_or("", |slash| &key[..=slash]);
            return Ok(Self::Glob { folder: folder.to_owned(), pattern });
        }
        let is_folder = key.is_empty() || key.ends_with('/');
        Ok(if is_folder { Self::Folder(key.to_owned()) } else { Self::Named })
    }

    /// The folder to list, which is empty or ends with a slash.
    pub(crate) fn folder(&self) -> &str {
        match self {
            Self::Named => "",
            Self::Folder(folder) | Self::Glob { folder, .. } => folder,
        }
    }

    /// Whether an object is meant, by the rules of local files: of a folder or glob those that are
    /// not hidden and have a known format.
    pub(crate) fn is_meant(&self, key: &str) -> bool {
        let options = MatchOptions {
            case_sensitive: true,
            require_literal_separator: true,
            require_literal_leading_dot: true,
        };
        let is_meant = match self {
            Self::Named => false,
            Self::Folder(folder) => key.strip_prefix(&**folder).is_some_and(is_seen),
            Self::Glob { pattern, .. } => pattern.matches_with(key, options),
        };
        is_meant && SourceFormat::of_name(key).is_some()
    }
}

fn is_seen(path: &str) -> bool {
    path.split('/').all(|name| !name.starts_with('.'))
}

/// The order of paths: name by name, not byte by byte, so that `a/b` comes before `a.txt`, as it
/// does for files of the local disk.
pub(crate) fn order(key: &str, other: &str) -> Ordering {
    key.split('/').cmp(other.split('/'))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{Selection, order};
    use crate::address::AddressProblem;

    #[test]
    fn folders_and_globs_mean_what_they_mean_on_the_local_disk() {
        let check = |key, expected: &[&str]| {
            let all = [
                "c/a.txt",
                "c/b/a.txt",
                "c/.a.txt",
                "c/.b/a.txt",
                "c/a.py",
                "c/c.jsonl",
                "d/a.txt",
                "ca.txt",
            ];
            let selection = Selection::of(key).expect("a selection");
            let found = all.into_iter().filter(|key| selection.is_meant(key));
            assert_eq!(found.collect::<Vec<_>>(), expected, "{key}");
        };
        check("c/", &["c/a.txt", "c/b/a.txt", "c/c.jsonl"]);
        check("", &["c/a.txt", "c/b/a.txt", "c/c.jsonl", "d/a.txt", "ca.txt"]);
        check("c/*", &["c/a.txt", "c/c.jsonl"]);
        check("c/**/*.txt", &["c/a.txt", "c/b/a.txt"]);
        check("[cd]/a.*", &["c/a.txt", "d/a.txt"]);
    }

    #[test]
    fn a_glob_lists_the_folder_before_its_first_sign() {
        let folder = |key| match Selection::of(key) {
            Ok(Selection::Glob { folder, .. }) => folder,
            other => panic!("{key}: {other:?}"),
        };
        assert_eq!(folder("a/b/*.txt"), "a/b/");
        assert_eq!(folder("a/b*/c.txt"), "a/");
        assert_eq!(folder("*"), "");
        assert!(matches!(Selection::of("a["), Err(AddressProblem::Glob { .. })));
        assert!(matches!(Selection::of("a.txt"), Ok(Selection::Named)));
    }

    #[test]
    fn keys_have_the_order_of_paths() {
        let keys = ["a", "a.txt", "a/b", "a/b.txt", "a/b/c", "a-b", "A", "b", "é"];
        for key in keys {
            for other in keys {
                let expected = Path::new(key).cmp(Path::new(other));
                assert_eq!(order(key, other), expected, "{key} {other}");
            }
        }
    }
}
