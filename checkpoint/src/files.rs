//! The few operations on files that a store needs, each of which can fail on its own.
//!
//! All file operations of this package go through [`FileSystem`], but those that the database does
//! inside. [`RealFileSystem`] is the system's; `faults` has one that fails on demand and one that
//! is a whole disk in memory, with losses of power.
//!
//! No operation follows a link in the last part of a path, and only plain files are opened.

mod real;

use std::fmt::Debug;
use std::io;
use std::path::Path;

pub use real::RealFileSystem;
pub use zbelastic_whole_file::DIRECT_BYTES;

/// The kind of the entry at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// A plain file with so many bytes.
    File {
        /// Length of the file in bytes.
        bytes: u64,
    },
    /// A folder, which may have entries.
    Folder,
    /// A link to somewhere else. It is never followed.
    Link,
    /// A device, a socket or a pipe. It is never opened.
    Special,
}

/// An entry of a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FolderEntry {
    /// Its name; bytes that are no text are replaced.
    pub name: String,
    /// Whether it is a file, a folder, a link or something else.
    pub kind: EntryKind,
}

/// The operations on files that stores and logs use.
pub trait FileSystem: Debug + Send + Sync {
    /// The kind of the entry at `path`, if there is one.
    ///
    /// # Errors
    /// If the system refuses.
    fn entry_kind(&self, path: &Path) -> io::Result<Option<EntryKind>>;

    /// The entries of a folder, by name.
    ///
    /// # Errors
    /// If it is no folder or cannot be read.
    fn list(&self, folder: &Path) -> io::Result<Vec<FolderEntry>>;

    /// Makes a folder that only its owner may enter. One that is there is left as it is.
    ///
    /// # Errors
    /// If it cannot be made, or something other than a folder is there.
    fn create_folder(&self, path: &Path) -> io::Result<()>;

    /// Makes an empty file that only its owner may read.
    ///
    /// # Errors
    /// If it cannot be made, or anything is there.
    fn create(&self, path: &Path) -> io::Result<Box<dyn OpenFile>>;

    /// Opens a plain file for reading and writing.
    ///
    /// # Errors
    /// If it is not there, no plain file, or the system refuses.
    fn open(&self, path: &Path) -> io::Result<Box<dyn OpenFile>>;

    /// Opens a plain file for writing past the page cache (O_DIRECT), in blocks of
    /// [`DIRECT_BYTES`]. A later read finds the bytes that were written, in whichever way the file
    /// was opened.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] or [`io::ErrorKind::Unsupported`] if the file system does
    /// not support it, which some report only when something is written. If it is not there, no
    /// plain file, or the system refuses.
    fn open_direct(&self, path: &Path) -> io::Result<Box<dyn OpenFile>>;

    /// The bytes of a plain file. [`io::ErrorKind::FileTooLarge`] if it has more than `bytes_max`,
    /// before any is read.
    ///
    /// # Errors
    /// If it is not there, no plain file, too large, or the medium fails.
    fn read(&self, path: &Path, bytes_max: u64) -> io::Result<Vec<u8>>;

    /// Reads a plain file into memory that begins at a multiple of [`DIRECT_BYTES`] and has a
    /// multiple of them, past the page cache where the file system supports that, and returns how
    /// many bytes it has. [`io::ErrorKind::FileTooLarge`] if it has more than the memory, before
    /// any is read.
    ///
    /// # Errors
    /// As [`Self::read`].
    fn read_direct(&self, path: &Path, into: &mut [u8]) -> io::Result<usize> {
        let bytes = self.read(path, into.len() as u64)?;
        into[..bytes.len()].copy_from_slice(&bytes);
        Ok(bytes.len())
    }

    /// Gives a file another name, in place of the file that has it.
    ///
    /// # Errors
    /// If the system refuses.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file by its name.
    ///
    /// # Errors
    /// If it is not there or the system refuses.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Waits until the entries of a folder are on the medium.
    ///
    /// # Errors
    /// If they may not be.
    fn sync_folder(&self, path: &Path) -> io::Result<()>;
}

/// A file that is open.
pub trait OpenFile: Debug + Send {
    /// Writes some of `bytes` at `offset`, at least one if there is one, and returns how many.
    ///
    /// # Errors
    /// If none was written.
    fn write_some(&mut self, offset: u64, bytes: &[u8]) -> io::Result<usize>;

    /// Waits until its bytes, and the metadata that are needed to find them, are on the medium, by
    /// whichever handle they were written.
    ///
    /// # Errors
    /// If they may not be. To try again is no use: the system may have forgotten them.
    fn sync(&mut self) -> io::Result<()>;

    /// Has the system drop the pages that its cache holds of the file and need not write any more,
    /// so that the next read returns the bytes of the medium. After a sync that failed the cache
    /// may hold bytes that were never written.
    ///
    /// # Errors
    /// If the system refuses.
    fn forget_cached(&mut self) -> io::Result<()>;
}

/// Writes all of `bytes` at `offset`.
///
/// # Errors
/// If not all were written.
pub fn write_all(file: &mut dyn OpenFile, mut offset: u64, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match file.write_some(offset, bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                bytes = &bytes[written..];
                offset += written as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
