//! The result of verifying a store.

use std::path::PathBuf;

use crate::names::{CheckpointId, ChunkDamage, ChunkHash, PieceName};

/// The answer to [`crate::CheckpointStore::verify`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verification {
    /// Each manifest, oldest version first.
    pub manifests: Vec<ManifestHealth>,
    /// Each piece that is here, in order.
    pub pieces: Vec<(PieceName, PieceHealth)>,
    /// Chunks that no record names, in order. They are left by a crash, or by a removal in
    /// progress.
    pub unnamed: Vec<ChunkHash>,
    /// Entries of the folder that are not the store's. They are never touched.
    pub stray_entries: Vec<StrayEntry>,
    /// Bytes that were read and hashed.
    pub bytes_read: u64,
}

impl Verification {
    /// Whether every piece that is here is whole.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.pieces.iter().all(|(_, health)| *health == PieceHealth::Whole)
    }
}

/// Which pieces of a manifest are whole, damaged or absent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestHealth {
    /// Version of the manifest.
    pub version: CheckpointId,
    /// Its pieces in the order of the layers.
    pub pieces: Vec<(PieceName, PieceHealth)>,
}

impl ManifestHealth {
    /// Whether the checkpoint can be restored from this store alone.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.pieces.iter().all(|(_, health)| *health == PieceHealth::Whole)
    }
}

/// Whether a piece is whole, damaged or absent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PieceHealth {
    /// Every byte is as it was written.
    Whole,
    /// It is not in this store. It may be in another.
    Absent,
    /// It is here, and these chunks of it are not whole.
    Damaged(Vec<ChunkDamage>),
}

/// Something that is not the store's.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StrayEntry {
    /// Where it lies, from the store's folder.
    pub path: PathBuf,
    /// Why it is not part of the store.
    pub kind: StrayKind,
}

/// Why an entry is stray.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StrayKind {
    /// A file or folder with a name that the store never gives.
    Foreign,
    /// Not a file where one should be: a link, a device, a folder.
    NotAFile,
    /// A damaged chunk that was replaced by a whole one and put aside.
    PutAside,
}
