//! The seam to where files lie: listing, and reading of ranges.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::files::{SourceFile, SourceListError};

/// A place with files: the local disk, or an object store.
pub trait SourceStorage: Sync {
    /// The files of an entry, which is a file, a folder or a glob, sorted by their paths. Files of
    /// an unknown format in folders and globs are left out.
    ///
    /// # Errors
    /// If there is no such entry, it is no glob, or the place cannot be read.
    fn list(&self, entry: &str) -> Result<Vec<SourceFile>, SourceListError>;

    /// Opens a file that was listed.
    ///
    /// # Errors
    /// If the place refuses.
    fn open(&self, file: &SourceFile) -> io::Result<Box<dyn RangedFile>>;
}

/// A file of which ranges are read.
pub trait RangedFile: Send + Sync {
    /// Reads bytes from `offset` on into the beginning of `into`, and returns how many; 0 at the end
    /// of the file only.
    ///
    /// # Errors
    /// If the place refuses or is gone.
    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize>;
}

/// An open file of known length, and how many bytes were read of it.
pub(super) struct CountedFile {
    file: Box<dyn RangedFile>,
    len: u64,
    read: AtomicU64,
}

impl CountedFile {
    pub(super) fn new(file: Box<dyn RangedFile>, len: u64) -> Self {
        Self { file, len, read: AtomicU64::new(0) }
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Bytes that were read, at most the file's length. Ranges read twice count once as a rule, since
    /// readers go through a file in order.
    pub(super) fn bytes_read(&self) -> u64 {
        self.read.load(Ordering::Relaxed).min(self.len)
    }

    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        let count = self.file.read_at(into, offset)?;
        self.read.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

/// Reads a file from an offset to its end.
pub(super) struct RangedReader {
    file: Arc<CountedFile>,
    offset: u64,
}

impl RangedReader {
    pub(super) fn new(file: Arc<CountedFile>, offset: u64) -> Self {
        Self { file, offset }
    }
}

impl Read for RangedReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read_at(into, self.offset)?;
        self.offset += count as u64;
        Ok(count)
    }
}
