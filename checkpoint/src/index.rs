//! The table beside the chunks: short keys, values of any length, changes that are durable
//! together.

use std::fmt::Debug;
use std::path::Path;
use std::sync::Arc;

use crate::error::DatabaseFault;
use crate::files::FileSystem;

/// One change of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IndexChange {
    /// The value of a key from now on.
    Put {
        /// Key of the row.
        key: Vec<u8>,
        /// Value of the key from now on.
        value: Vec<u8>,
    },
    /// The key has no value from now on.
    Remove {
        /// Key of the row.
        key: Vec<u8>,
    },
}

/// A row: a key with its value.
pub type IndexRow = (Vec<u8>, Vec<u8>);

/// A table with changes that are durable when the call returns. No key may begin with another one.
pub trait Index: Debug + Send + Sync + Sized {
    /// Whether a table was ever made in `folder`.
    ///
    /// # Errors
    /// If the files fail.
    fn is_there(files: &dyn FileSystem, folder: &Path) -> Result<bool, DatabaseFault>;

    /// Opens the table in `folder`, which is made if it is not there. Its parent must be there.
    ///
    /// # Errors
    /// If it is damaged, has lost something, is another's or of another version. Nothing is made
    /// anew in a folder that was in use before.
    fn open(files: Arc<dyn FileSystem>, folder: &Path) -> Result<Self, DatabaseFault>;

    /// Makes all of `changes` or none, durably.
    ///
    /// # Errors
    /// If they may not be durable. Nothing is written after that.
    fn commit(&self, changes: &[IndexChange]) -> Result<(), DatabaseFault>;

    /// Whether a commit failed, so that nothing is written any more until the table is opened again.
    fn has_stopped(&self) -> bool;

    /// The value of a key, if it has one.
    ///
    /// # Errors
    /// If the medium fails or the value is damaged.
    fn value(&self, key: &[u8]) -> Result<Option<Vec<u8>>, DatabaseFault>;

    /// The rows with keys that begin with `prefix`, in the order of the keys.
    ///
    /// # Errors
    /// If the medium fails or a value is damaged.
    fn rows(&self, prefix: &[u8]) -> Result<Vec<IndexRow>, DatabaseFault>;
}
