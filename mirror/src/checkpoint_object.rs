//! The object of a checkpoint: what it is of, and which chunks make its layers and its data.
//!
//! ```text
//!   zbelastic-mirror 1 <BLAKE3 of what follows, 64 letters>\n
//!   MirroredCheckpoint in postcard's form
//! ```

use serde::{Deserialize, Serialize};
use zbelastic_checkpoint::{CheckpointId, ChunkHash, Manifest, ManifestFault, PieceRecord};
use zbelastic_types::Digest;

/// Bytes of the object at most: half a million chunks, two terabytes.
pub const CHECKPOINT_OBJECT_BYTES_MAX: usize = 16 << 20;
/// What the object begins with. Another version of the form has another number.
const TITLE: &str = "zbelastic-mirror 1 ";

/// A checkpoint of a mirror.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MirroredCheckpoint {
    /// The id of the cluster that wrote it.
    pub cluster: u64,
    /// The name of that cluster.
    pub cluster_name: String,
    /// The name of the run.
    pub run_name: String,
    /// The checkpoint as a store has it, with the document that a new cluster begins with.
    pub manifest: Manifest,
    /// The chunks of each layer's piece, in the order of the manifest.
    pub pieces: Vec<PieceRecord>,
    /// Texts, shards and weights that the run reads, as far as the controller had them.
    pub data: Vec<MirroredData>,
}

/// A file that a run reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MirroredData {
    /// The BLAKE3 hash of all of it, which is its name in the job.
    pub hash: Digest,
    /// Its chunks.
    pub record: PieceRecord,
}

/// Why bytes are no checkpoint of a mirror.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointObjectError {
    /// Another title, or another version of the form.
    #[error("it is no checkpoint of a mirror that this program reads")]
    Title,
    /// They are not the bytes that were written.
    #[error("its bytes have the hash {found}, its head says {expected}")]
    Check {
        /// The hash in the head.
        expected: ChunkHash,
        /// That of the bytes.
        found: ChunkHash,
    },
    /// They have the hash and are not of the form.
    #[error("it cannot be read: {0}")]
    Form(#[from] postcard::Error),
    /// The manifest breaks a rule.
    #[error("its manifest: {0}")]
    Manifest(#[from] ManifestFault),
    /// There are more or fewer records than layers.
    #[error("{found} pieces of {expected} layers")]
    Pieces {
        /// Layers of the manifest.
        expected: usize,
        /// Records.
        found: usize,
    },
    /// More chunks than an object lists.
    #[error("{found} bytes list its chunks, at most {CHECKPOINT_OBJECT_BYTES_MAX}")]
    TooLarge {
        /// Bytes of the object.
        found: usize,
    },
}

impl MirroredCheckpoint {
    /// What it is a checkpoint of.
    #[must_use]
    pub const fn id(&self) -> CheckpointId {
        self.manifest.version
    }

    /// Its chunks, those of layers first. One may be there several times.
    pub fn chunks(&self) -> impl Iterator<Item = ChunkHash> {
        let data = self.data.iter().map(|data| &data.record);
        self.pieces.iter().chain(data).flat_map(|record| record.chunks.iter().copied())
    }

    /// Bytes of its layers and data.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let data = self.data.iter().map(|data| &data.record);
        self.pieces.iter().chain(data).map(|record| record.length).sum()
    }

    /// The object.
    ///
    /// # Errors
    /// If it is too large.
    pub fn encode(&self) -> Result<Vec<u8>, CheckpointObjectError> {
        let body = postcard::to_allocvec(self)?;
        let mut bytes = format!("{TITLE}{}\n", ChunkHash::of(&body)).into_bytes();
        bytes.extend(body);
        let found = bytes.len();
        if found > CHECKPOINT_OBJECT_BYTES_MAX {
            return Err(CheckpointObjectError::TooLarge { found });
        }
        Ok(bytes)
    }

    /// The checkpoint in an object.
    ///
    /// # Errors
    /// If there is none that was written whole.
    pub fn decode(bytes: &[u8]) -> Result<Self, CheckpointObjectError> {
        let rest = bytes.strip_prefix(TITLE.as_bytes()).ok_or(CheckpointObjectError::Title)?;
        let end = rest.iter().position(|byte| *byte == b'\n');
        let (head, body) = rest.split_at(end.ok_or(CheckpointObjectError::Title)?);
        let head = std::str::from_utf8(head).ok().and_then(|head| ChunkHash::parse(head).ok());
        let expected = head.ok_or(CheckpointObjectError::Title)?;
        let body = &body[1..];
        let found = ChunkHash::of(body);
        if found != expected {
            return Err(CheckpointObjectError::Check { expected, found });
        }
        let checkpoint: Self = postcard::from_bytes(body)?;
        checkpoint.manifest.check()?;
        let expected = checkpoint.manifest.layers.len();
        let found = checkpoint.pieces.len();
        if expected != found {
            return Err(CheckpointObjectError::Pieces { expected, found });
        }
        Ok(checkpoint)
    }
}
