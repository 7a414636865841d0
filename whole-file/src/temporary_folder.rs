//! A folder for what a command needs while it runs.
//!
//! ```text
//!   zbelastic-NAME-PROCESS-NUMBER         the folder
//!   zbelastic-NAME-PROCESS-NUMBER.lock    held as long as its process runs
//! ```
//!
//! A process that is killed, or interrupted, cannot remove its folder. The next one that makes a
//! folder of that name removes those whose locks nobody holds.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use crate::lock;

/// Folders of one process number at most. In a container every process may have the same.
const FOLDERS_MAX: u32 = 1000;
const LOCK_EXTENSION: &str = "lock";

/// A folder that is removed when it is dropped, unless it is kept.
#[derive(Debug)]
pub struct TemporaryFolder {
    path: PathBuf,
    /// None if the folder is to stay.
    lock: Option<File>,
}

impl TemporaryFolder {
    /// A new one among the system's temporary files. Removes those of this name that were left by
    /// processes that are gone.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn temporary(name: &str) -> io::Result<Self> {
        Self::temporary_in(&std::env::temp_dir(), name)
    }

    fn temporary_in(parent: &Path, name: &str) -> io::Result<Self> {
        remove_left(parent, name)?;
        let process = std::process::id();
        let mut refusal = None;
        for number in 0..FOLDERS_MAX {
            let path = parent.join(format!("zbelastic-{name}-{process}-{number}"));
            let lock = match lock(&lock_path(&path)) {
                Ok(lock) => lock,
                Err(error) => {
                    refusal = Some(error);
                    continue;
                }
            };
            match fs::create_dir(&path) {
                Ok(()) => return Ok(Self { path, lock: Some(lock) }),
                Err(error) => {
                    fs::remove_file(lock_path(&path))?;
                    if error.kind() != io::ErrorKind::AlreadyExists {
                        return Err(error);
                    }
                }
            }
        }
        Err(refusal.map_or_else(
            || {
                let text = format!("{FOLDERS_MAX} folders zbelastic-{name}-{process}-… are there");
                io::Error::new(io::ErrorKind::AlreadyExists, text)
            },
            io::Error::other,
        ))
    }

    /// One that is to stay.
    ///
    /// # Errors
    /// If it is there already or cannot be made.
    pub fn named(path: &Path) -> io::Result<Self> {
        fs::create_dir(path)?;
        Ok(Self { path: path.to_owned(), lock: None })
    }

    /// Path of the folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Keeps the folder when this is dropped.
    pub fn keep(&mut self) {
        if self.lock.take().is_some() {
            // Without its lock nobody removes the folder; a lock that stays would let others do it.
            let _ = fs::remove_file(lock_path(&self.path));
        }
    }
}

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        if self.lock.is_some() {
            // A file that cannot be removed is left to the next folder, and its lock with it.
            let _ = remove(&self.path);
        }
    }
}

fn lock_path(folder: &Path) -> PathBuf {
    folder.with_extension(LOCK_EXTENSION)
}

/// Removes a folder, and then its lock.
fn remove(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => fs::remove_file(lock_path(folder)),
    }
}

/// Removes the folders of a name with a lock that nobody holds.
fn remove_left(parent: &Path, name: &str) -> io::Result<()> {
    let prefix = format!("zbelastic-{name}-");
    for entry in fs::read_dir(parent)? {
        let path = entry?.path();
        let file_name = path.file_name().and_then(|name| name.to_str());
        let is_of_name = file_name.is_some_and(|name| name.starts_with(&prefix));
        let is_lock = path.extension().is_some_and(|extension| extension == LOCK_EXTENSION);
        if is_of_name
            && is_lock
            && let Ok(_held) = lock(&path)
        {
            // Another process may remove it as well, or it is somebody else's.
            let _ = remove(&path.with_extension(""));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_goes_unless_it_is_kept() {
        let parent = tempfile::tempdir().expect("a folder");
        let entries = || fs::read_dir(parent.path()).expect("readable").count();
        let make = || TemporaryFolder::temporary_in(parent.path(), "test").expect("made");
        let folder = make();
        let path = folder.path().to_owned();
        fs::write(path.join("file"), "x").expect("written");
        let mut kept = make();
        assert_ne!(path, kept.path());
        drop(folder);
        kept.keep();
        drop(kept);
        assert_eq!(entries(), 1, "the one that is kept, and no lock");
        let named = TemporaryFolder::named(&path).expect("made");
        drop(named);
        assert!(path.exists() && TemporaryFolder::named(&path).is_err());
    }

    /// A folder in which nothing can be made says why, and not that there are too many.
    #[test]
    fn where_nothing_can_be_written_the_reason_is_given() {
        let parent = tempfile::tempdir().expect("a folder");
        let name = "n".repeat(300);
        let error = TemporaryFolder::temporary_in(parent.path(), &name).expect_err("too long");
        assert!(error.to_string().starts_with("cannot be opened"), "{error}");
    }

    /// The locks of a process that is killed are released, its files stay.
    #[test]
    fn what_a_killed_process_left_is_removed_by_the_next() {
        let parent = tempfile::tempdir().expect("a folder");
        let make = |name| TemporaryFolder::temporary_in(parent.path(), name).expect("made");
        let left = |name: &str| {
            let path = parent.path().join(name);
            fs::create_dir(&path).expect("made");
            fs::write(path.join("file"), "x").expect("written");
            fs::write(lock_path(&path), "7").expect("written");
            path
        };
        let (killed, other) = (left("zbelastic-test-7-0"), left("zbelastic-other-7-0"));
        let running = make("test");
        assert!(!killed.exists() && !lock_path(&killed).exists());
        let second = make("test");
        assert!(other.exists() && running.path().exists() && second.path().exists());
    }
}
