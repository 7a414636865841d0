//! Where what a pass keeps lies while it is away.

use std::collections::BTreeMap;
use std::io;

use zbelastic_schedule::Pass;
use zbelastic_types::Bytes;

/// A second store: what a stage's passes keep goes there between F and B, and comes back to the same
/// bits. It holds no more than the limit that it was made with.
pub trait SecondStore: Send {
    /// Stores what `pass` keeps.
    ///
    /// # Errors
    /// If there is no room, or the medium fails. What was there stays, and nothing of this pass.
    fn put(&mut self, pass: Pass, floats: &[f32]) -> Result<(), StoreError>;

    /// Returns what `pass` keeps, and forgets it.
    ///
    /// # Errors
    /// If there is nothing, or the medium fails.
    fn take(&mut self, pass: Pass) -> Result<Vec<f32>, StoreError>;

    /// Forgets everything: the turn was dropped.
    fn clear(&mut self);
}

/// Why something did not get into the second store, or not out of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// It may not grow so large.
    #[error("the second store may hold {limit}, {needed} are needed")]
    Full {
        /// What it would hold.
        needed: Bytes,
        /// What it may hold.
        limit: Bytes,
    },
    /// There is nothing of this pass.
    #[error("the second store has nothing of chunk {}, microbatch {}", pass.chunk, pass.microbatch)]
    Missing {
        /// The pass whose floats are missing.
        pass: Pass,
    },
    /// The medium does not take it.
    #[error("the second store cannot be written: {kind}")]
    Write {
        /// Kind of the error that the system returned.
        kind: io::ErrorKind,
    },
    /// The medium does not give it back.
    #[error("the second store cannot be read: {kind}")]
    Read {
        /// Kind of the error that the system returned.
        kind: io::ErrorKind,
    },
}

/// Room in bytes: what is put into it is counted before.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    limit: Bytes,
    taken: Bytes,
}

impl Room {
    /// A room for `limit` bytes, none of them taken.
    #[must_use]
    pub const fn new(limit: Bytes) -> Self {
        Self { limit, taken: Bytes(0) }
    }

    /// Takes a place in it.
    ///
    /// # Errors
    /// If it would be more than the limit; then nothing is taken.
    pub fn enter(&mut self, bytes: Bytes) -> Result<(), StoreError> {
        let needed = self.taken + bytes;
        if needed > self.limit {
            return Err(StoreError::Full { needed, limit: self.limit });
        }
        self.taken = needed;
        Ok(())
    }

    /// Gives a place back.
    pub fn leave(&mut self, bytes: Bytes) {
        self.taken = Bytes(self.taken.0 - bytes.0);
    }

    /// Gives all of it back.
    pub fn clear(&mut self) {
        self.taken = Bytes(0);
    }
}

/// A second store in the host's memory.
#[derive(Debug)]
pub struct MemoryStore {
    room: Room,
    held: BTreeMap<Pass, Vec<f32>>,
}

impl MemoryStore {
    /// An empty one for so many bytes at most.
    #[must_use]
    pub const fn new(limit: Bytes) -> Self {
        Self { room: Room::new(limit), held: BTreeMap::new() }
    }
}

impl SecondStore for MemoryStore {
    fn put(&mut self, pass: Pass, floats: &[f32]) -> Result<(), StoreError> {
        self.room.enter(Bytes::of_f32(floats.len()))?;
        let before = self.held.insert(pass, floats.to_vec());
        assert!(before.is_none(), "a pass leaves once");
        Ok(())
    }

    fn take(&mut self, pass: Pass) -> Result<Vec<f32>, StoreError> {
        let floats = self.held.remove(&pass).ok_or(StoreError::Missing { pass })?;
        self.room.leave(Bytes::of_f32(floats.len()));
        Ok(floats)
    }

    fn clear(&mut self) {
        self.held.clear();
        self.room.clear();
    }
}

#[cfg(test)]
mod tests {
    use zbelastic_schedule::Pass;
    use zbelastic_types::Bytes;

    use super::{MemoryStore, SecondStore, StoreError};

    #[test]
    fn what_leaves_comes_back_once_and_takes_room_until_then() {
        let mut store = MemoryStore::new(Bytes::of_f32(3));
        let (first, second) = (Pass::new(0, 0), Pass::new(0, 1));
        assert_eq!(store.put(first, &[1.0, -0.0]), Ok(()));
        let full = StoreError::Full { needed: Bytes(16), limit: Bytes(12) };
        assert_eq!(store.put(second, &[1.0, 2.0]), Err(full));
        assert_eq!(store.put(second, &[3.0]), Ok(()));
        let found = store.take(first).expect("it left");
        assert_eq!(found.iter().map(|x| x.to_bits()).collect::<Vec<_>>(), [0x3f80_0000, 1 << 31]);
        assert_eq!(store.take(first), Err(StoreError::Missing { pass: first }));
        store.clear();
        assert_eq!(store.take(second), Err(StoreError::Missing { pass: second }));
        assert_eq!(store.put(second, &[0.0; 3]), Ok(()));
    }
}
