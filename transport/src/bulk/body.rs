//! The bodies that a holder serves.

use std::io;

/// Bytes that are served. They do not change while a reference to them is held.
pub trait BulkBody: Send + Sync {
    /// Length of the body in bytes.
    fn len(&self) -> u64;

    /// Whether the length is zero.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills `into` with the bytes from `offset` on. Called on a thread that may block, and only
    /// for bytes within the length.
    ///
    /// # Errors
    /// If they cannot be read.
    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()>;

    /// The same bytes where they lie, if they lie in memory: then they are not copied.
    fn lend(&self, offset: u64, length: usize) -> Option<&[u8]> {
        let _ = (offset, length);
        None
    }
}

impl BulkBody for Vec<u8> {
    fn len(&self) -> u64 {
        Vec::len(self) as u64
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        into.copy_from_slice(part(self, offset, into.len()));
        Ok(())
    }

    fn lend(&self, offset: u64, length: usize) -> Option<&[u8]> {
        Some(part(self, offset, length))
    }
}

fn part(bytes: &[u8], offset: u64, length: usize) -> &[u8] {
    let start = usize::try_from(offset).expect("an offset within the length");
    &bytes[start..start + length]
}
