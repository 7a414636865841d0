//! A file that one process holds.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process;

use rustix::fs::OFlags;

use crate::OWNER_ONLY;

/// Bytes of a lock file that are read: the number of a process has ten digits at most.
const TEXT_BYTES_MAX: u64 = 1024;

/// Why a file cannot be locked.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// It cannot be opened or made.
    #[error("cannot be opened: {0}")]
    Open(io::Error),
    /// Another process holds it.
    #[error("is held by {}", holder_text(*holder))]
    Held {
        /// The number of the process, if it has written it.
        holder: Option<u32>,
    },
    /// The system cannot lock files there.
    #[error("cannot be locked: {0}")]
    Lock(io::Error),
    /// The number of this process cannot be written.
    #[error("cannot be written: {0}")]
    Write(io::Error),
}

/// A process that holds a lock, for messages.
#[must_use]
pub fn holder_text(holder: Option<u32>) -> String {
    holder.map_or("another process".to_owned(), |holder| format!("process {holder}"))
}

/// Locks the file at `path` for this process, and writes the number of the process into it. The file
/// is made if it is not there; a link under its name is not followed.
///
/// The system releases the lock when the file that is returned is closed, however the process ends.
///
/// # Errors
/// If another process holds it, or it cannot be made.
pub fn lock(path: &Path) -> Result<File, LockError> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(OWNER_ONLY);
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let mut file = options.custom_flags(flags.bits() as i32).open(path).map_err(LockError::Open)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut text = String::new();
            let read = file.take(TEXT_BYTES_MAX).read_to_string(&mut text);
            let holder = read.ok().and_then(|_| text.trim().parse().ok());
            return Err(LockError::Held { holder });
        }
        Err(TryLockError::Error(error)) => return Err(LockError::Lock(error)),
    }
    let mut write = || {
        file.set_len(0)?;
        file.rewind()?;
        writeln!(file, "{}", process::id())
    };
    write().map_err(LockError::Write)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::process;

    use super::{LockError, lock};

    #[test]
    fn a_file_is_held_once_and_names_its_holder() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("LOCK");
        let held = lock(&path).expect("nobody holds it");
        let error = lock(&path).expect_err("this process holds it");
        assert_eq!(error.to_string(), format!("is held by process {}", process::id()));
        drop(held);
        lock(&path).expect("nobody holds it");
        let link = folder.path().join("link");
        symlink(folder.path().join("elsewhere"), &link).expect("writable");
        assert!(matches!(lock(&link), Err(LockError::Open(_))));
    }
}
