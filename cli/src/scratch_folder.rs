//! A folder that is gone with the command that made it.

use std::path::{Path, PathBuf};
use std::{env, fs, io, process};

/// Folders of one process number at most. In a container every process may have the same, and one
/// that was killed left its folder.
const FOLDERS_MAX: u32 = 1000;

/// A folder of this process in the system's folder for temporary files.
#[derive(Debug)]
pub struct ScratchFolder(PathBuf);

impl ScratchFolder {
    /// A new one.
    ///
    /// # Errors
    /// If it cannot be made, with its path.
    pub fn new() -> Result<Self, (PathBuf, io::Error)> {
        Self::new_in(&env::temp_dir(), FOLDERS_MAX)
    }

    /// The first of so many names that nobody took: in a folder of others nothing is written.
    fn new_in(parent: &Path, folders_max: u32) -> Result<Self, (PathBuf, io::Error)> {
        let mut number = 1;
        loop {
            let path = parent.join(format!("zbelastic-{}-{number}", process::id()));
            match fs::create_dir(&path) {
                Ok(()) => return Ok(Self(path)),
                Err(error)
                    if error.kind() == io::ErrorKind::AlreadyExists && number < folders_max =>
                {
                    number += 1;
                }
                Err(error) => return Err((path, error)),
            }
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for ScratchFolder {
    fn drop(&mut self) {
        // What cannot be removed is left to the system, as all temporary files are.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_gone_with_its_value() {
        let scratch = ScratchFolder::new().expect("room");
        let path = scratch.path().to_owned();
        fs::write(path.join("file"), "text").expect("room");
        drop(scratch);
        assert!(!path.exists());
    }

    #[test]
    fn a_folder_that_was_left_stays_and_another_is_made() {
        let parent = tempfile::tempdir().expect("a folder");
        let make = || ScratchFolder::new_in(parent.path(), 2);
        let left = make().expect("room");
        let second = make().expect("another name");
        assert_ne!(left.path(), second.path());
        let (_, error) = make().expect_err("both are taken");
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
    }
}
