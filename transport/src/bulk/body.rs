//! What can be fetched.

use std::io;

/// Bytes that are served. They do not change while somebody holds them.
pub trait BulkBody: Send + Sync {
    /// How many there are.
    fn len(&self) -> u64;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills `into` with the bytes from `offset` on. Called on a thread that may block, and only
    /// for bytes within the length.
    ///
    /// # Errors
    /// If they cannot be read.
    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()>;
}

impl BulkBody for Vec<u8> {
    fn len(&self) -> u64 {
        Vec::len(self) as u64
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let start = usize::try_from(offset).expect("an offset within the length");
        into.copy_from_slice(&self[start..start + into.len()]);
        Ok(())
    }
}
