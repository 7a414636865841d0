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

/// Reads a body from its beginning to its end.
pub struct BodyReader<'a> {
    body: &'a dyn BulkBody,
    at: u64,
}

impl<'a> BodyReader<'a> {
    /// A reader at the beginning of the body.
    #[must_use]
    pub const fn new(body: &'a dyn BulkBody) -> Self {
        Self { body, at: 0 }
    }
}

impl io::Read for BodyReader<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let left = self.body.len() - self.at;
        let count = usize::try_from(left).map_or(into.len(), |left| left.min(into.len()));
        self.body.read(self.at, &mut into[..count])?;
        self.at += count as u64;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::BodyReader;

    #[test]
    fn a_body_is_read_to_its_end_whatever_is_read_at_once() {
        let body: Vec<u8> = (0..23).collect();
        for piece in 1..=body.len() + 1 {
            let mut reader = BodyReader::new(&body);
            let mut found = Vec::new();
            let mut into = vec![0; piece];
            loop {
                let count = reader.read(&mut into).expect("within the body");
                if count == 0 {
                    break;
                }
                found.extend_from_slice(&into[..count]);
            }
            assert_eq!(found, body, "read by {piece} bytes");
        }
    }
}
