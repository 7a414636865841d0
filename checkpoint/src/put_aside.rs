//! Stores that could not be opened, beside the one that was begun in their place.
//!
//! ```text
//!   store/              the one in use
//!   store.damaged/      put aside first; the next are store.damaged-2, store.damaged-3
//! ```

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Where a store is put aside under a number from 1.
#[must_use]
pub fn aside_of(folder: &Path, number: u32) -> PathBuf {
    let mut aside = folder.as_os_str().to_owned();
    aside.push(if number == 1 { ".damaged".to_owned() } else { format!(".damaged-{number}") });
    PathBuf::from(aside)
}

/// The stores that were put aside beside the one in `folder`, under numbers up to `number_max`.
#[must_use]
pub fn aside_folders(folder: &Path, number_max: u32) -> Vec<PathBuf> {
    let folders = (1..=number_max).map(|number| aside_of(folder, number));
    folders.filter(|aside| aside.is_dir()).collect()
}

/// Renames a store that cannot be opened, and makes an empty folder in its place.
///
/// # Errors
/// If the system refuses.
pub fn move_aside(folder: &Path, aside: &Path) -> io::Result<()> {
    fs::rename(folder, aside)?;
    // A store that was noted must be there, or its disk counts as not mounted.
    fs::create_dir(folder).inspect_err(|_| {
        // Where that fails as well the store lies aside, and its disk counts as not mounted.
        let _ = fs::rename(aside, folder);
    })
}

/// Files of stores that were put aside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AsideFiles {
    /// How many there are, or were.
    pub files: u64,
    /// Bytes of them.
    pub bytes: u64,
}

impl AsideFiles {
    /// Both together.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self { files: self.files + other.files, bytes: self.bytes + other.bytes }
    }
}

/// Removes a store that was put aside, file by file. Links are removed and not followed, and what
/// another thread removes meanwhile is not counted.
///
/// # Errors
/// If the system refuses; what was removed before that is gone.
pub fn remove_aside(aside: &Path) -> io::Result<AsideFiles> {
    let mut removed = AsideFiles::default();
    let folders = visit_files(aside, |file, bytes| {
        if is_there(fs::remove_file(file))?.is_some() {
            removed = removed.and(AsideFiles { files: 1, bytes });
        }
        Ok(())
    })?;
    for folder in folders.iter().rev() {
        is_there(fs::remove_dir(folder))?;
    }
    Ok(removed)
}

/// What became of stores that were put aside.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CollectedAsides {
    /// Removed.
    pub removed: AsideFiles,
    /// Still there.
    pub kept: AsideFiles,
    /// Why one could not be removed or measured.
    pub fault: Option<String>,
}

/// Removes the stores in these folders if they may go, and measures them otherwise.
#[must_use]
pub fn collect_asides(folders: &[PathBuf], may_go: bool) -> CollectedAsides {
    let mut collected = CollectedAsides::default();
    for folder in folders {
        let done = if may_go { remove_aside(folder) } else { measure_aside(folder) };
        match done {
            Ok(files) if may_go => collected.removed = collected.removed.and(files),
            Ok(files) => collected.kept = collected.kept.and(files),
            Err(error) => collected.fault = Some(format!("{}: {error}", folder.display())),
        }
    }
    collected
}

/// The files of a store that was put aside; none if it is gone.
///
/// # Errors
/// If the system refuses.
fn measure_aside(aside: &Path) -> io::Result<AsideFiles> {
    let mut found = AsideFiles::default();
    visit_files(aside, |_, bytes| {
        found = found.and(AsideFiles { files: 1, bytes });
        Ok(())
    })?;
    Ok(found)
}

/// Calls `visit` with each file below `root` and its bytes, and yields the folders, outer ones first.
fn visit_files(
    root: &Path,
    mut visit: impl FnMut(&Path, u64) -> io::Result<()>,
) -> io::Result<Vec<PathBuf>> {
    let mut folders = vec![root.to_owned()];
    let mut at = 0;
    while let Some(folder) = folders.get(at).cloned() {
        at += 1;
        let Some(entries) = is_there(fs::read_dir(&folder))? else { continue };
        for entry in entries {
            let entry = entry?;
            let Some(kind) = is_there(entry.metadata())? else { continue };
            if kind.is_dir() {
                folders.push(entry.path());
            } else {
                visit(&entry.path(), kind.len())?;
            }
        }
    }
    Ok(folders)
}

/// The result, or none if the path is gone.
fn is_there<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
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
        let measured = measure_aside(&aside).expect("readable");
        let AsideFiles { files, bytes } = measured;
        assert_eq!(files, 3);
        assert!(bytes >= 8, "{bytes}");
        assert_eq!(remove_aside(&aside).expect("removable"), measured);
        assert!(!aside.exists() && elsewhere.join("file").exists());
        // Another thread was quicker.
        assert_eq!(remove_aside(&aside).expect("gone"), AsideFiles::default());
        assert_eq!(measure_aside(&aside).expect("gone"), AsideFiles::default());
    }
}
