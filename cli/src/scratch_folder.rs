//! A folder that is gone with the command that made it.

use std::path::{Path, PathBuf};
use std::{env, fs, io, process};

/// A folder of this process in the system's folder for temporary files.
#[derive(Debug)]
pub struct ScratchFolder(PathBuf);

impl ScratchFolder {
    /// A new one.
    ///
    /// # Errors
    /// If it cannot be made, with its path.
    pub fn new() -> Result<Self, (PathBuf, io::Error)> {
        // A name that somebody took is no reason to write into their folder.
        let path = env::temp_dir().join(format!("zbelastic-{}", process::id()));
        match fs::create_dir(&path) {
            Ok(()) => Ok(Self(path)),
            Err(error) => Err((path, error)),
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
        assert!(ScratchFolder::new().is_err(), "it is taken");
        drop(scratch);
        assert!(!path.exists());
    }
}
