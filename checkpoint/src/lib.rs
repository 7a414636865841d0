//! Checkpoints and logs that survive a loss of power.
//!
//! Two things are kept: the records of a controller ([`RecordLog`]) and the pieces of checkpoints
//! ([`CheckpointStore`]). All data that a call acknowledged are on the medium when the call
//! returns, and all bytes that are read back were checked against the hash they were written under.
//! `docs/checkpoint-format.md` has the bytes, the invariants and the argument why a crash at any
//! point breaks none of them.
//!
//! This package does not know the meaning of the bytes: a piece is a layer to others, and a name
//! here. It reads no clock, starts no thread and sends no message. The possible removals are
//! decided by [`plan_removals`], a pure function.
#![forbid(unsafe_code)]

mod buffers;
mod chunk_folder;
pub mod conformance;
mod direct;
mod error;
pub mod faults;
pub mod files;
mod folder_store;
mod index;
mod index_rows;
mod locked_folder;
mod log;
mod manifest;
mod memory_log;
mod memory_store;
mod names;
mod panics;
mod put_aside;
mod retention;
mod sled_database;
mod sled_log;
mod sled_rows;
mod sled_store;
mod stamp;
mod store;
mod verify;

pub use error::{CheckpointStoreError, DatabaseFault, FileFault, FileOperation};
pub use folder_store::FolderStore;
pub use index::{Index, IndexChange, IndexRow};
pub use locked_folder::{FORMAT_VERSION, FolderError, LockedFolder};
pub use log::{LogError, RECORD_BYTES_MAX, RecordLog};
pub use manifest::{DOCUMENT_BYTES_MAX, LAYERS_MAX, Manifest, ManifestFault};
pub use memory_log::MemoryLog;
pub use memory_store::InMemoryStore;
pub use names::{
    CHUNK_BYTES, CheckpointId, ChunkDamage, ChunkHash, ChunkNameFault, PIECE_BYTES_MAX, PieceName,
    PieceRecord, PieceRecordFault,
};
pub use panics::is_expected_panic;
pub use put_aside::{
    AsideFiles, CollectedAsides, aside_folders, aside_of, collect_asides, move_aside, remove_aside,
};
pub use retention::{
    Removal, RemovalReason, RemovalTarget, RetentionRoots, StoreInventory, plan_removals,
};
pub use sled_database::SledDatabase;
pub use sled_log::SledLog;
pub use sled_store::SledStore;
pub use store::CheckpointStore;
pub use verify::{ManifestHealth, PieceHealth, StrayEntry, StrayKind, Verification};
