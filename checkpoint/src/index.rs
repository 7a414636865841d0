//! The table beside the chunks: short keys, values of any length, changes that are durable
//! together.

use std::fmt::Debug;

use crate::error::DatabaseFault;

/// One change of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The value of a key from now on.
    Put {
        /// The key.
        key: Vec<u8>,
        /// Its value.
        value: Vec<u8>,
    },
    /// The key has no value from now on.
    Remove {
        /// The key.
        key: Vec<u8>,
    },
}

/// A row: a key with its value.
pub type Row = (Vec<u8>, Vec<u8>);

/// A table whose changes are durable when the call returns. No key may begin with another one.
pub trait Index: Debug + Send + Sync {
    /// Makes all of `changes` or none, durably.
    ///
    /// # Errors
    /// If they may not be durable. Nothing is written after that.
    fn commit(&self, changes: &[Change]) -> Result<(), DatabaseFault>;

    /// The value of a key, if it has one.
    ///
    /// # Errors
    /// If the medium fails or the value is damaged.
    fn value(&self, key: &[u8]) -> Result<Option<Vec<u8>>, DatabaseFault>;

    /// The rows whose keys begin with `prefix`, in the order of the keys.
    ///
    /// # Errors
    /// If the medium fails or a value is damaged.
    fn rows(&self, prefix: &[u8]) -> Result<Vec<Row>, DatabaseFault>;
}
