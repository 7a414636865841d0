//! What the processes of a cluster send each other beyond the protocol's own messages, as bytes:
//! messages, requests and the names of bulk, tensor frames with their rules, and a job as it travels.
//!
//! It opens no connection: `transport` carries the bytes, and `node` sends and receives them.

pub mod document;
pub mod frames;
pub mod job_store;
mod messages;

pub use messages::{
    BulkKey, CollectedSpace, CollectionRequest, FreedSpace, LayerMessage, NodeAnswer, NodeMessage,
    NodeRequest, PieceRef, SaveFailed, StoreReferences, collection_report, decode, encode,
    layer_bytes,
};
