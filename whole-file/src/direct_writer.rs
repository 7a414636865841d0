//! Writing a large file past the page cache (O_DIRECT), where the file system supports that.
//!
//! A model is not read soon after it was written, and every byte that goes through the cache is
//! copied into a page that the system has to find first: most of the time of a write to a disk that
//! is fast. With O_DIRECT the medium fetches the bytes from a buffer that is used again.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;

#[cfg(target_os = "linux")]
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

/// The bytes of which a direct write's offset in the file, its length and its address in memory are
/// multiples. Media and file systems in use require 512 or 4,096.
pub const DIRECT_BYTES: usize = 4096;

/// Bytes that are written at once: enough that one more request costs a disk little.
const BUFFER_BYTES: usize = 4 << 20;

/// Whether this is the error of a file system that does not support O_DIRECT, or not of such
/// blocks: EINVAL or EOPNOTSUPP. If it has another cause, the same through the cache will show it.
#[must_use]
pub fn is_direct_refusal(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported)
}

/// Where in `memory` the first address is that is a multiple of [`DIRECT_BYTES`].
#[must_use]
pub fn direct_start(memory: &[u8]) -> usize {
    let address = memory.as_ptr().addr();
    address.next_multiple_of(DIRECT_BYTES) - address
}

/// The outcome of [`write_blocks`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlocksWritten {
    /// Bytes that were written. The others are to be written through the cache.
    pub bytes: usize,
    /// Whether the file system refused the rest.
    pub is_refused: bool,
}

/// Writes the whole blocks of `bytes` by `write`, which is given where in them its blocks begin, and
/// returns how many bytes of those it wrote. The bytes behind the last block are left.
///
/// # Errors
/// Those of `write`, but for a refusal.
pub fn write_blocks(
    bytes: &[u8],
    mut write: impl FnMut(usize, &[u8]) -> io::Result<usize>,
) -> io::Result<BlocksWritten> {
    let end = bytes.len() - bytes.len() % DIRECT_BYTES;
    let mut at = 0;
    // A system that stopped within a block goes on through the cache.
    while at < end && at.is_multiple_of(DIRECT_BYTES) {
        match write(at, &bytes[at..end]) {
            Ok(0) => break,
            Ok(written) => at += written,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if is_direct_refusal(&error) => {
                return Ok(BlocksWritten { bytes: at, is_refused: true });
            }
            Err(error) => return Err(error),
        }
    }
    Ok(BlocksWritten { bytes: at, is_refused: false })
}

/// How bytes go to the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WriteMode {
    /// The buffer was not full yet.
    Untried,
    /// Past the page cache.
    Direct,
    /// Through it: the file system supports nothing else.
    Cached,
}

/// Writes the bytes of a file from its beginning. What is written is in the file after
/// [`Self::finish`], and durable after a sync of the file. One that is shorter than the buffer goes
/// through the cache.
#[derive(Debug)]
pub struct DirectWriter<'a> {
    file: &'a File,
    mode: WriteMode,
    /// The buffer, from the first address in it that is a multiple of [`DIRECT_BYTES`]. It never
    /// grows, as it would move.
    memory: Vec<u8>,
    start: usize,
    filled: usize,
    /// Where the bytes of the buffer belong in the file.
    offset: u64,
}

impl<'a> DirectWriter<'a> {
    /// A writer of an empty file, whose status flags are changed meanwhile.
    #[must_use]
    pub fn new(file: &'a File) -> Self {
        let memory = vec![0; BUFFER_BYTES + DIRECT_BYTES];
        let start = direct_start(&memory);
        Self { file, mode: WriteMode::Untried, memory, start, filled: 0, offset: 0 }
    }

    /// Writes what is left in the buffer.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn finish(mut self) -> io::Result<()> {
        self.write_buffer()?;
        self.write_cached()
    }

    /// Writes the buffer, which is empty afterwards.
    fn write_buffer(&mut self) -> io::Result<()> {
        if self.mode == WriteMode::Untried && self.filled == BUFFER_BYTES {
            self.mode = match set_direct(self.file, true) {
                Ok(()) => WriteMode::Direct,
                Err(error) if is_direct_refusal(&error) => WriteMode::Cached,
                Err(error) => return Err(error),
            };
        }
        let bytes = &self.memory[self.start..self.start + self.filled];
        let write = |at, blocks: &[u8]| self.file.write_at(blocks, self.offset + at as u64);
        let written = match self.mode {
            WriteMode::Direct => write_blocks(bytes, write)?.bytes,
            WriteMode::Untried | WriteMode::Cached => 0,
        };
        if written < self.filled {
            self.write_cached()?;
            let rest = &self.memory[self.start + written..self.start + self.filled];
            self.file.write_all_at(rest, self.offset + written as u64)?;
        }
        self.offset += self.filled as u64;
        self.filled = 0;
        Ok(())
    }

    /// From here on bytes go through the cache.
    fn write_cached(&mut self) -> io::Result<()> {
        if self.mode == WriteMode::Direct {
            set_direct(self.file, false)?;
            self.mode = WriteMode::Cached;
        }
        Ok(())
    }
}

impl Write for DirectWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.filled == BUFFER_BYTES {
            self.write_buffer()?;
        }
        let taken = bytes.len().min(BUFFER_BYTES - self.filled);
        let at = self.start + self.filled;
        self.memory[at..at + taken].copy_from_slice(&bytes[..taken]);
        self.filled += taken;
        Ok(taken)
    }

    /// Does nothing: [`Self::finish`] writes what is left.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Whether writes by this handle go past the page cache.
#[cfg(target_os = "linux")]
fn set_direct(file: &File, is_direct: bool) -> io::Result<()> {
    let mut flags = fcntl_getfl(file)?;
    flags.set(OFlags::DIRECT, is_direct);
    Ok(fcntl_setfl(file, flags)?)
}

#[cfg(not(target_os = "linux"))]
fn set_direct(_: &File, is_direct: bool) -> io::Result<()> {
    if is_direct { Err(io::ErrorKind::Unsupported.into()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_every_length_hold_their_bytes_whatever_the_pieces() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("weights");
        let more = [1, DIRECT_BYTES, DIRECT_BYTES + 100, BUFFER_BYTES, BUFFER_BYTES + 7];
        let lengths = more.iter().flat_map(|more| [0, *more, BUFFER_BYTES, BUFFER_BYTES + more]);
        for (length, piece) in lengths.zip([13_001, 1 << 20, 5 << 20].into_iter().cycle()) {
            let bytes: Vec<u8> = (0..length).map(|at| (at / 3) as u8 ^ (at >> 12) as u8).collect();
            let file = File::create(&path).expect("writable");
            let mut writer = DirectWriter::new(&file);
            bytes.chunks(piece).try_for_each(|piece| writer.write_all(piece)).expect("room");
            writer.finish().expect("room");
            let found = std::fs::read(&path).expect("readable");
            assert!(found == bytes, "{length} bytes in pieces of {piece}");
        }
    }

    #[test]
    fn whole_blocks_are_written_until_one_is_refused_or_cut() {
        let bytes = vec![0; 3 * DIRECT_BYTES + 100];
        let run = |outcomes: Vec<io::Result<usize>>| {
            let mut outcomes = outcomes.into_iter();
            let mut seen = Vec::new();
            let written = write_blocks(&bytes, |at, blocks| {
                seen.push((at, blocks.len()));
                outcomes.next().expect("no more writes")
            });
            assert_eq!(outcomes.next().map(|_| ()), None, "as many writes");
            (written.ok(), seen)
        };
        let written = |bytes, is_refused| Some(BlocksWritten { bytes, is_refused });
        let whole = 3 * DIRECT_BYTES;
        assert_eq!(run(vec![Ok(whole)]), (written(whole, false), vec![(0, whole)]));
        let interrupted = || Err(io::ErrorKind::Interrupted.into());
        let (found, seen) = run(vec![interrupted(), Ok(DIRECT_BYTES), Ok(2 * DIRECT_BYTES)]);
        assert_eq!(found, written(whole, false));
        assert_eq!(seen, [(0, whole), (0, whole), (DIRECT_BYTES, 2 * DIRECT_BYTES)]);
        for refusal in [io::ErrorKind::InvalidInput, io::ErrorKind::Unsupported] {
            let (found, _) = run(vec![Ok(DIRECT_BYTES), Err(refusal.into())]);
            assert_eq!(found, written(DIRECT_BYTES, true));
        }
        assert_eq!(run(vec![Ok(DIRECT_BYTES + 512)]).0, written(DIRECT_BYTES + 512, false));
        assert_eq!(run(vec![Ok(0)]).0, written(0, false));
        assert_eq!(run(vec![Err(io::ErrorKind::StorageFull.into())]).0, None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_large_file_is_written_directly_where_that_is_supported_and_is_an_ordinary_one_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let create = |name| File::create(folder.path().join(name)).expect("writable");
        let tried = create("tried");
        let memory = vec![0; 2 * DIRECT_BYTES];
        let start = direct_start(&memory);
        let block = &memory[start..start + DIRECT_BYTES];
        let is_supported = set_direct(&tried, true).and_then(|()| tried.write_at(block, 0)).is_ok();
        let file = create("weights");
        let before = fcntl_getfl(&file).expect("flags");
        let mut writer = DirectWriter::new(&file);
        writer.write_all(&vec![3; BUFFER_BYTES - 1]).expect("room");
        assert_eq!(writer.mode, WriteMode::Untried, "it may be a small one");
        writer.write_all(&vec![3; BUFFER_BYTES + 8]).expect("room");
        let mode = if is_supported { WriteMode::Direct } else { WriteMode::Cached };
        assert_eq!(writer.mode, mode);
        writer.finish().expect("room");
        assert_eq!(fcntl_getfl(&file).expect("flags"), before);
    }

    #[test]
    fn a_file_that_cannot_be_written_is_an_error() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("weights");
        drop(File::create(&path).expect("writable"));
        let file = File::open(&path).expect("readable");
        for length in [5, BUFFER_BYTES + 5] {
            let mut writer = DirectWriter::new(&file);
            let written = writer.write_all(&vec![3; length]).and_then(|()| writer.finish());
            assert!(written.is_err(), "{length} bytes to a file that is open to be read");
        }
    }
}
