//! Stores that could not be opened, beside the one that was begun in their place.
//!
//! ```text
//!   store/              the one in use
//!   store.damaged/      put aside first; the next are store.damaged-2, store.damaged-3
//! ```

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Where a store is put aside under a number from 1.
#[must_use]
pub fn aside_of(folder: &Path, number: u32) -> PathBuf {
    let mut aside = folder.as_os_str().to_owned();
    aside.push(if number == 1 { ".damaged".to_owned() } else { format!(".damaged-{number}") });
    PathBuf::from(aside)
}

/// Renames a store that cannot be opened, and makes an empty folder in its place.
///
/// # Errors
/// If the system refuses.
pub fn move_aside(folder: &Path, aside: &Path) -> io::Result<()> {
    fs::rename(folder, aside)?;
    // A store that was noted must be there, or its disk counts as not mounted.
    fs::create_dir(folder)
}

/// The files that a removal freed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemovedFiles {
    /// How many there were.
    pub files: u64,
    /// Bytes of them.
    pub bytes: u64,
}

/// Removes a store that was put aside, file by file. Links are removed and not followed.
///
/// # Errors
/// If the system refuses; what was removed before that is gone.
pub fn remove_aside(aside: &Path) -> io::Result<RemovedFiles> {
    let mut removed = RemovedFiles::default();
    let mut folders = vec![aside.to_owned()];
    let mut at = 0;
    while let Some(folder) = folders.get(at).cloned() {
        at += 1;
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            let kind = entry.metadata()?;
            if kind.is_dir() {
                folders.push(entry.path());
            } else {
                fs::remove_file(entry.path())?;
                removed.files += 1;
                removed.bytes += kind.len();
            }
        }
    }
    for folder in folders.iter().rev() {
        fs::remove_dir(folder)?;
    }
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_put_aside_is_removed_and_what_it_leads_to_is_not() {
        let root = tempfile::tempdir().expect("a folder");
        let store = root.path().join("store");
        let elsewhere = root.path().join("elsewhere");
        fs::create_dir_all(store.join("chunks/00")).expect("made");
        fs::create_dir(&elsewhere).expect("made");
        fs::write(elsewhere.join("file"), "stays").expect("written");
        fs::write(store.join("chunks/00/a"), "12345").expect("written");
        fs::write(store.join("b"), "678").expect("written");
        std::os::unix::fs::symlink(&elsewhere, store.join("link")).expect("linked");
        let aside = aside_of(&store, 2);
        assert_eq!(aside, root.path().join("store.damaged-2"));
        move_aside(&store, &aside).expect("movable");
        assert!(store.is_dir() && aside.join("b").is_file());
        let RemovedFiles { files, bytes } = remove_aside(&aside).expect("removable");
        assert_eq!(files, 3);
        assert!(bytes >= 8, "{bytes}");
        assert!(!aside.exists() && elsewhere.join("file").exists());
    }
}
