//! Checkpoints in a folder or bucket outside of the cluster, from which a cluster is founded when
//! every disk of the one before is gone.
//!
//! ```text
//!   OWNER                            the id of the cluster that writes here
//!   chunks/ab/<name>                 bytes, each object under its BLAKE3 hash, as in a store
//!   checkpoints/<run>-<step>         which chunks make the layers and the data; written last
//! ```
//!
//! It promises:
//!
//! - **M1** A checkpoint that is listed was written after all of its chunks. One that was cut short is
//!   not listed, and its chunks are not written again.
//! - **M2** No bytes are returned that were not hashed and compared with their name, and no checkpoint
//!   that was not compared with the hash in its head.
//! - **M3** One cluster writes. Another one that finds an owner refuses, and an owner that was replaced
//!   stops at the next checkpoint: whoever founds a cluster from a mirror takes it over.
//! - **M4** Removal takes checkpoints first and then chunks that none names.
//!
//! It does not lock: two clusters that take a mirror over within one round trip of each other both write,
//! and since names are hashes neither damages a chunk of the other; the later removal may.

mod checkpoint_object;
mod mirror;

pub use checkpoint_object::{
    CHECKPOINT_OBJECT_BYTES_MAX, CheckpointObjectError, MirroredCheckpoint, MirroredData,
};
pub use mirror::{Mirror, MirrorError};
