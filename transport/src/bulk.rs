//! Placeholder until the bulk part is merged.

use zbelastic_types::NodeId;

/// A body that can be read anywhere.
pub trait BulkBody: Send + Sync {
    /// Its length.
    fn len(&self) -> u64;
    /// Fills the buffer from an offset.
    ///
    /// # Errors
    ///
    /// It cannot be read.
    fn read(&self, offset: u64, into: &mut [u8]) -> std::io::Result<()>;
    /// Whether nothing is in it.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What to fetch.
#[derive(Clone, Debug)]
pub struct BulkFetch {
    /// Who has it.
    pub holders: Vec<NodeId>,
    /// Its name.
    pub key: Vec<u8>,
    /// Its exact length.
    pub length: u64,
}

/// Why it was not fetched.
#[derive(Debug, thiserror::Error)]
pub enum BulkError {
    /// No holder is there.
    #[error("no road to any holder")]
    NoRoad,
}
