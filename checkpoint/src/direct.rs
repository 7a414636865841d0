//! Writing a file's bytes past the page cache (O_DIRECT), where the file system supports that.
//!
//! A chunk is not read soon after it was written, so copying it to the page cache is lost work:
//! every byte is copied into a page that has to be found first, beside a training that needs the
//! processor and the memory. With O_DIRECT the medium fetches the bytes from where they are.
//!
//! Whole blocks of [`DIRECT_BYTES`] go directly; the rest behind the last of them goes through the
//! cache, by another handle of the same file. The two never touch the same block.
//! Not every file system supports O_DIRECT, and one that does not returns an error when a file is
//! opened or written. Then that file is written through the cache from there on, and all that come
//! after it.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::buffers::ChunkBuffer;
use crate::error::{FileFault, FileOperation};
use crate::files::{DIRECT_BYTES, FileSystem, OpenFile, write_all};
use zbelastic_whole_file::{BlocksWritten, is_direct_refusal, write_blocks};

/// Whether the file system of a store supports direct writes, as far as is known.
#[derive(Debug, Default)]
pub(crate) struct DirectWrites {
    /// Set by the first refusal, until the store is opened again.
    are_refused: AtomicBool,
}

impl DirectWrites {
    /// Writes a chunk into the empty file that lies at `path` and is open as `file`. Nothing of it
    /// is durable before `file` was synced.
    pub(crate) fn write(
        &self,
        files: &dyn FileSystem,
        path: &Path,
        file: &mut dyn OpenFile,
        chunk: &ChunkBuffer<'_>,
    ) -> Result<(), FileFault> {
        let bytes = chunk.bytes();
        let direct = self.write_blocks(files, path, bytes)?;
        let rest = write_all(file, direct as u64, &bytes[direct..]);
        rest.map_err(FileFault::of(FileOperation::Write, path))
    }

    /// Writes the blocks that can go directly, and returns how many bytes that were.
    fn write_blocks(
        &self,
        files: &dyn FileSystem,
        path: &Path,
        bytes: &[u8],
    ) -> Result<usize, FileFault> {
        if bytes.len() < DIRECT_BYTES || !self.are_supported() {
            return Ok(0);
        }
        let mut file = match files.open_direct(path) {
            Ok(file) => file,
            Err(error) if is_direct_refusal(&error) => {
                self.are_refused.store(true, Ordering::Relaxed);
                return Ok(0);
            }
            Err(error) => return Err(FileFault::of(FileOperation::OpenDirect, path)(error)),
        };
        let written = write_blocks(bytes, |at, blocks| file.write_some(at as u64, blocks));
        let BlocksWritten { bytes, is_refused } =
            written.map_err(FileFault::of(FileOperation::Write, path))?;
        self.are_refused.fetch_or(is_refused, Ordering::Relaxed);
        Ok(bytes)
    }

    /// Whether none was refused so far.
    pub(crate) fn are_supported(&self) -> bool {
        !self.are_refused.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use rustix::io::Errno;

    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn errors_of_the_system_are_distinguished() {
        let check = |code: Errno, expected| {
            let error = io::Error::from(code);
            assert_eq!(is_direct_refusal(&error), expected, "{error}");
        };
        check(Errno::INVAL, true);
        check(Errno::OPNOTSUPP, true);
        check(Errno::IO, false);
        check(Errno::NOSPC, false);
        check(Errno::DQUOT, false);
        check(Errno::MFILE, false);
    }
}
