//! Chunks that are compared with what was meant, each by itself.

use std::fmt;
use std::sync::Arc;

use zbelastic_types::NodeId;

use super::error::BulkError;

/// Knows which bytes every chunk of a body has.
pub trait ChunkCheck: fmt::Debug + Send + Sync {
    /// Whether these are the bytes of a chunk.
    fn is_sound(&self, chunk: u64, bytes: &[u8]) -> bool;
}

/// The chunks of a body that are fetched, and what they are compared with.
#[derive(Clone, Debug)]
pub struct CheckedChunks {
    /// Indices of the chunks, each once and within the body.
    pub wanted: Vec<u64>,
    /// What each is compared with.
    pub check: Arc<dyn ChunkCheck>,
}

/// The result of a fetch whose chunks were compared.
#[derive(Debug)]
pub struct CheckedFetch<S> {
    /// The sink with all chunks that were wanted, or why it lacks some.
    pub outcome: Result<S, BulkError>,
    /// The holders that gave another chunk, once or more often.
    pub unsound: Vec<NodeId>,
}
