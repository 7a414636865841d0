//! The bulk lane: known lengths of bytes from the nodes that hold them, chunk by chunk.
//!
//! ```text
//!   request   key length u16 | key | first chunk u64 | chunk count u64
//!   answer    status u8 | length of the whole u64 | for each chunk: CRC-32 of it, its bytes
//!                       everything little endian; only the last chunk of all is shorter
//! ```
//!
//! The fetching side knows the length beforehand. Memory for a chunk is allocated when its bytes
//! begin to arrive, given to the caller's sink when they are verified, and used again. Each chunk
//! is compared with its checksum; a damaged chunk, or one that a broken stream did not bring, is
//! requested of another holder. Holders may join a fetch that is under way. One of which all holders
//! failed leaves what came ([`PartialBody`]), and the next fetch requests the other chunks. The checksum
//! is the holder's own: that the bytes are those which were meant is for the caller to check, chunk by
//! chunk ([`ChunkCheck`]) or at the end. Streams carry any number of requests, one after another, so
//! that there is no pause between two.

mod body;
mod check;
mod error;
mod fetch;
mod holder_task;
mod offered;
mod partial;
mod read_once;
mod scheduler;
mod serve;
mod sink;
mod spare;
mod streams;
mod wire;

pub use body::{BodyReader, BulkBody};
pub use check::{CheckedChunks, CheckedFetch, ChunkCheck};
pub use error::{BulkError, HolderError, HolderFailure};
pub use fetch::{
    BulkFetch, FETCH_WHOLE_BYTES_MAX, HOLDERS_MAX, fetch, fetch_checked_into, fetch_into,
    fetch_joined_into,
};
pub use offered::OfferedBodies;
pub use partial::{PartialBody, UnfinishedFetch};
pub use serve::{ServeBulkError, ServeSummary, serve};
pub use sink::{ChunkSink, MemorySink};
pub use wire::{BULK_BYTES_MAX, CHUNK_BYTES, ChunkRequestFault, KEY_BYTES_MAX};
