//! A folder for a cluster. It is removed when it is not needed any more, unless it is kept to be
//! looked into.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// A folder that is removed when it is dropped, unless it is kept.
#[derive(Debug)]
pub struct TemporaryFolder {
    path: PathBuf,
    is_kept: bool,
}

impl TemporaryFolder {
    /// A new one among the system's temporary files.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn temporary(name: &str) -> io::Result<Self> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("zbelastic-{name}-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path)?;
        Ok(Self { path, is_kept: false })
    }

    /// One that is to stay.
    ///
    /// # Errors
    /// If it is there already or cannot be made.
    pub fn named(path: &Path) -> io::Result<Self> {
        fs::create_dir(path)?;
        Ok(Self { path: path.to_owned(), is_kept: true })
    }

    /// Path of the folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Keeps the folder when this is dropped.
    pub fn keep(&mut self) {
        self.is_kept = true;
    }
}

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        if !self.is_kept {
            // A file that cannot be removed is left to the cleanup of temporary files.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::TemporaryFolder;

    #[test]
    fn a_folder_goes_unless_it_is_kept() {
        let mut folder = TemporaryFolder::temporary("folder-test").expect("made");
        let path = folder.path().to_owned();
        std::fs::write(path.join("file"), "x").expect("written");
        drop(folder);
        assert!(!path.exists());
        folder = TemporaryFolder::named(&path).expect("made");
        drop(folder);
        assert!(path.exists());
        assert!(TemporaryFolder::named(&path).is_err());
        std::fs::remove_dir(&path).expect("removed");
    }
}
