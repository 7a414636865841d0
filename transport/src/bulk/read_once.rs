//! A body that is offered to a known number of readers, and let go once each has read all of it.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use super::body::BulkBody;
use super::wire::{CHUNK_BYTES, chunk_count};

/// A body that each of its readers reads once. Then it is dropped, whoever still holds this: what
/// lies in memory keeps others from writing there in place.
///
/// A chunk that is read again because a stream broke counts for another reader. The body may be
/// dropped too early then: who lacks a chunk is refused it, and has to request the body anew.
pub struct ReadOnceBody {
    len: u64,
    unread: Mutex<UnreadChunks>,
}

/// The chunks that readers have not read.
struct UnreadChunks {
    /// None once nothing is unread.
    body: Option<Arc<dyn BulkBody>>,
    /// How many readers have not read each chunk.
    readers: Vec<u32>,
    /// The sum of these.
    count: u64,
}

impl ReadOnceBody {
    /// A body with one reader.
    #[must_use]
    pub fn new(body: Arc<dyn BulkBody>) -> Self {
        let len = body.len();
        let readers = vec![1; chunk_count(len) as usize];
        let count = readers.len() as u64;
        Self { len, unread: Mutex::new(UnreadChunks { body: Some(body), readers, count }) }
    }

    /// Adds a reader, if the body is still here; yields whether it is.
    pub fn add_reader(&self) -> bool {
        self.with_unread(UnreadChunks::add_reader)
    }

    /// Whether some reader has not read all of it.
    #[must_use]
    pub fn is_here(&self) -> bool {
        self.with_unread(|unread| unread.body.is_some())
    }

    fn with_unread<T>(&self, then: impl FnOnce(&mut UnreadChunks) -> T) -> T {
        then(&mut self.unread.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl UnreadChunks {
    fn add_reader(&mut self) -> bool {
        let is_here = self.body.is_some();
        if is_here {
            self.readers.iter_mut().for_each(|readers| *readers += 1);
            self.count += self.readers.len() as u64;
        }
        is_here
    }

    /// Counts a read of `len` bytes; yields the body if nothing is left to be read, to be dropped
    /// behind the lock.
    fn count_read(&mut self, offset: u64, len: usize) -> Option<Arc<dyn BulkBody>> {
        let first = offset as usize / CHUNK_BYTES;
        let end = (offset as usize + len).div_ceil(CHUNK_BYTES);
        for readers in &mut self.readers[first..end] {
            // One that was read again may have none left.
            if *readers > 0 {
                *readers -= 1;
                self.count -= 1;
            }
        }
        self.body.take_if(|_| self.count == 0)
    }
}

impl BulkBody for ReadOnceBody {
    fn len(&self) -> u64 {
        self.len
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let body = self.with_unread(|unread| unread.body.clone());
        body.ok_or(io::ErrorKind::NotFound)?.read(offset, into)?;
        drop(self.with_unread(|unread| unread.count_read(offset, into.len())));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Weak;

    use super::*;

    /// A body of four chunks, the last one short, and what shows whether its memory is held.
    fn offered() -> (ReadOnceBody, Weak<dyn BulkBody>) {
        let body: Arc<dyn BulkBody> = Arc::new(vec![7_u8; 3 * CHUNK_BYTES + 5]);
        let held = Arc::downgrade(&body);
        (ReadOnceBody::new(body), held)
    }

    fn read(body: &ReadOnceBody, chunk: u64) -> io::Result<()> {
        let offset = chunk * CHUNK_BYTES as u64;
        let len = (body.len() - offset).min(CHUNK_BYTES as u64);
        body.read(offset, &mut vec![0; len as usize])
    }

    #[test]
    fn a_body_is_let_go_when_its_reader_has_read_all_of_it_in_any_order() {
        let (body, held) = offered();
        for chunk in [3, 0, 2] {
            read(&body, chunk).expect("it is here");
            assert!(body.is_here() && held.upgrade().is_some());
        }
        read(&body, 1).expect("it is here");
        assert!(!body.is_here() && held.upgrade().is_none());
        assert_eq!(read(&body, 1).expect_err("it is gone").kind(), io::ErrorKind::NotFound);
        assert!(!body.add_reader(), "who comes later needs another");
    }

    #[test]
    fn a_body_of_two_readers_is_held_for_the_slower_one() {
        let (body, held) = offered();
        read(&body, 0).expect("it is here");
        assert!(body.add_reader());
        (0..4).for_each(|chunk| read(&body, chunk).expect("it is here"));
        assert!(held.upgrade().is_some(), "one has three chunks to read");
        (1..4).for_each(|chunk| read(&body, chunk).expect("it is here"));
        assert!(held.upgrade().is_none());
    }

    #[test]
    fn a_chunk_that_is_read_again_stands_for_no_other() {
        let (body, _held) = offered();
        (0..3).for_each(|_| read(&body, 2).expect("it is here"));
        [0, 1].into_iter().for_each(|chunk| read(&body, chunk).expect("it is here"));
        assert!(body.is_here(), "one chunk was never read");
        read(&body, 3).expect("it is here");
        assert!(!body.is_here());
    }
}
