//! The stores of a pass's activations while they are offloaded.

use std::collections::BTreeMap;
use std::io;

use zbelastic_schedule::Pass;
use zbelastic_types::Bytes;

/// A second store: activations of a stage's passes go there between F and B, and come back to the
/// same bits. It holds no more than the limit that it was made with.
pub trait StashStore: Send {
    /// Stores the activations of `pass`.
    ///
    /// # Errors
    /// If the store is full, or the medium fails. The stored passes stay, and nothing of this pass.
    fn put(&mut self, pass: Pass, floats: &[f32]) -> Result<(), StashStoreError>;

    /// Returns the activations of `pass`, and forgets them.
    ///
    /// # Errors
    /// If there is nothing, or the medium fails.
    fn take(&mut self, pass: Pass) -> Result<Vec<f32>, StashStoreError>;

    /// Forgets everything: the turn was dropped.
    fn clear(&mut self);
}

/// Why something did not get into the second store, or not out of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StashStoreError {
    /// It may not grow so large.
    #[error("the second store may hold {limit}, {needed} are needed")]
    Full {
        /// Bytes that it would hold.
        needed: Bytes,
        /// Bytes that it may hold.
        limit: Bytes,
    },
    /// There is nothing of this pass.
    #[error("the second store has nothing of chunk {}, microbatch {}", pass.chunk, pass.microbatch)]
    Missing {
        /// The pass whose floats are missing.
        pass: Pass,
    },
    /// The medium refuses the write.
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

/// A limit in bytes: the bytes of a pass are reserved in it before they are stored.
#[derive(Clone, Copy, Debug)]
pub struct ByteBudget {
    limit: Bytes,
    reserved: Bytes,
}

impl ByteBudget {
    /// A budget of `limit` bytes, none of them reserved.
    #[must_use]
    pub const fn new(limit: Bytes) -> Self {
        Self { limit, reserved: Bytes(0) }
    }

    /// Reserves so many bytes.
    ///
    /// # Errors
    /// If it would be more than the limit; then nothing is reserved.
    pub fn reserve(&mut self, bytes: Bytes) -> Result<(), StashStoreError> {
        let needed = self.reserved + bytes;
        if needed > self.limit {
            return Err(StashStoreError::Full { needed, limit: self.limit });
        }
        self.reserved = needed;
        Ok(())
    }

    /// Gives so many bytes back.
    pub fn release(&mut self, bytes: Bytes) {
        self.reserved = Bytes(self.reserved.0 - bytes.0);
    }

    /// Gives all bytes back.
    pub fn clear(&mut self) {
        self.reserved = Bytes(0);
    }
}

/// A second store in the host's memory.
#[derive(Debug)]
pub struct MemoryStashStore {
    budget: ByteBudget,
    held: BTreeMap<Pass, Vec<f32>>,
}

impl MemoryStashStore {
    /// An empty one for so many bytes at most.
    #[must_use]
    pub const fn new(limit: Bytes) -> Self {
        Self { budget: ByteBudget::new(limit), held: BTreeMap::new() }
    }
}

impl StashStore for MemoryStashStore {
    fn put(&mut self, pass: Pass, floats: &[f32]) -> Result<(), StashStoreError> {
        self.budget.reserve(Bytes::of_f32(floats.len()))?;
        let before = self.held.insert(pass, floats.to_vec());
        assert!(before.is_none(), "a pass is offloaded once");
        Ok(())
    }

    fn take(&mut self, pass: Pass) -> Result<Vec<f32>, StashStoreError> {
        let floats = self.held.remove(&pass).ok_or(StashStoreError::Missing { pass })?;
        self.budget.release(Bytes::of_f32(floats.len()));
        Ok(floats)
    }

    fn clear(&mut self) {
        self.held.clear();
        self.budget.clear();
    }
}

#[cfg(test)]
mod tests {
    use zbelastic_schedule::Pass;
    use zbelastic_types::Bytes;

    use super::{MemoryStashStore, StashStore, StashStoreError};

    #[test]
    fn what_is_put_is_taken_once_and_reserves_bytes_until_then() {
        let mut store = MemoryStashStore::new(Bytes::of_f32(3));
        let first = Pass::new(0, 0);
        let second = Pass::new(0, 1);
        assert_eq!(store.put(first, &[1.0, -0.0]), Ok(()));
        let full = StashStoreError::Full { needed: Bytes(16), limit: Bytes(12) };
        assert_eq!(store.put(second, &[1.0, 2.0]), Err(full));
        assert_eq!(store.put(second, &[3.0]), Ok(()));
        let found = store.take(first).expect("it was put");
        assert_eq!(found.iter().map(|x| x.to_bits()).collect::<Vec<_>>(), [0x3f80_0000, 1 << 31]);
        assert_eq!(store.take(first), Err(StashStoreError::Missing { pass: first }));
        store.clear();
        assert_eq!(store.take(second), Err(StashStoreError::Missing { pass: second }));
        assert_eq!(store.put(second, &[0.0; 3]), Ok(()));
    }
}
