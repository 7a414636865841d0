//! Copies of files of other places: one that was interrupted goes on, and one that is whole is not
//! read again.
//!
//! ```text
//!   NAME          the file, once it is whole
//!   NAME.part     what is there of it
//!   NAME.source   length and version of the file that these are of
//! ```
//!
//! The version is compared before a byte is appended, and the place compares it with every range that
//! is read: a copy never has parts of two files.

use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use zbelastic_whole_file as whole_file;

use super::SourceFile;
use super::ranged::SourceStorage;

/// Bytes that are read at once.
const READ_BYTES: usize = 1 << 20;
/// Bytes of a `.source` at most: a number and a version.
const SOURCE_BYTES_MAX: u64 = 4096;

/// Why a file was not copied.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// The place does not give it.
    #[error("{path}: {source}")]
    Source {
        /// Path or URL of the file.
        path: String,
        /// What the place says.
        source: io::Error,
    },
    /// The file ended too soon.
    #[error("{path} has {found} bytes, expected {expected}")]
    Short {
        /// Path or URL of the file.
        path: String,
        /// Its length when it was listed.
        expected: u64,
        /// Bytes that it gave.
        found: u64,
    },
    /// The copy cannot be written.
    #[error("{}: {source}", path.display())]
    Write {
        /// Path of the copy.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The caller ended it. What was copied is kept.
    #[error("stopped")]
    Stopped,
}

/// Copies a file that was listed to `to`, behind what an earlier call copied of it. `on_bytes` is
/// called with the bytes that are there, between two reads, and may end it.
///
/// # Errors
/// If it cannot be read or written, or was stopped.
pub fn copy_file(
    storage: &dyn SourceStorage,
    file: &SourceFile,
    to: &Path,
    mut on_bytes: impl FnMut(u64) -> ControlFlow<()>,
) -> Result<(), CopyError> {
    let failed = |source| CopyError::Write { path: to.to_owned(), source };
    let part = whole_file::part_path(to);
    let named = source_path(to);
    let source = format!("{} {}\n", file.bytes.0, file.version);
    let known = whole_file::read(&named, SOURCE_BYTES_MAX).map_err(failed)?;
    if known.as_deref() != Some(source.as_bytes()) {
        [to, &part].into_iter().try_for_each(whole_file::remove).map_err(failed)?;
        whole_file::write(&named, source.as_bytes()).map_err(failed)?;
    } else if to.exists() {
        return Ok(());
    }
    let mut out = whole_file::open_to_append(&part).map_err(failed)?;
    let mut len = out.metadata().map_err(failed)?.len();
    if len > file.bytes.0 {
        out.set_len(0).map_err(failed)?;
        len = 0;
    }
    let from = |source| CopyError::Source { path: file.path.clone(), source };
    let opened = storage.open(file).map_err(from)?;
    let mut buffer = vec![0; READ_BYTES];
    while len < file.bytes.0 {
        if on_bytes(len).is_break() {
            return Err(CopyError::Stopped);
        }
        let wanted = buffer.len().min((file.bytes.0 - len) as usize);
        let count = opened.read_at(&mut buffer[..wanted], len).map_err(from)?;
        if count == 0 {
            let path = file.path.clone();
            return Err(CopyError::Short { path, expected: file.bytes.0, found: len });
        }
        out.write_all(&buffer[..count]).map_err(failed)?;
        len += count as u64;
    }
    whole_file::publish(&out, &part, to).map_err(failed)
}

fn source_path(to: &Path) -> PathBuf {
    let mut path = to.as_os_str().to_owned();
    path.push(".source");
    PathBuf::from(path)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use zbelastic_types::Bytes;

    use super::*;
    use crate::source::LocalStorage;

    fn listed(path: &Path) -> SourceFile {
        let listed = LocalStorage.list(&path.display().to_string()).expect("it is there");
        listed.into_iter().next().expect("a file")
    }

    #[test]
    fn a_copy_goes_on_where_it_was_stopped_unless_the_file_is_another() {
        let folder = tempfile::tempdir().expect("a folder");
        let from = folder.path().join("model.txt");
        let to = folder.path().join("copy/model.txt");
        fs::create_dir(folder.path().join("copy")).expect("room");
        let bytes: Vec<u8> = (0..3 * READ_BYTES + 7).map(|i| (i % 251) as u8).collect();
        fs::write(&from, &bytes).expect("room");
        let file = listed(&from);
        let copy = |file: &SourceFile, reads: usize| {
            let mut seen = Vec::new();
            let copied = copy_file(&LocalStorage, file, &to, |at| {
                seen.push(at);
                if seen.len() > reads { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            (copied, seen)
        };
        let step = READ_BYTES as u64;
        let (stopped, seen) = copy(&file, 2);
        assert!(matches!(stopped, Err(CopyError::Stopped)) && !to.exists());
        assert_eq!(seen, [0, step, 2 * step]);
        let (copied, seen) = copy(&file, 9);
        copied.expect("the rest");
        assert_eq!(
            (seen, fs::read(&to).expect("whole")),
            (vec![2 * step, 3 * step], bytes.clone())
        );
        assert_eq!(copy(&file, 0).1, [0; 0], "it is there");

        // What is there of another file is no part of this one.
        fs::remove_file(&to).expect("it is there");
        assert!(matches!(copy(&file, 1).0, Err(CopyError::Stopped)));
        let later = SourceFile { version: "another".to_owned(), ..file.clone() };
        let (copied, seen) = copy(&later, 9);
        copied.expect("all of it");
        assert_eq!(seen, [0, step, 2 * step, 3 * step]);

        let longer = SourceFile { bytes: Bytes(bytes.len() as u64 + 1), ..file };
        let (short, _) = copy(&longer, 9);
        assert!(matches!(short, Err(CopyError::Short { .. })), "{short:?}");
    }
}
