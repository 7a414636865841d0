//! Pieces of checkpoints as members name them to each other.

use serde::{Deserialize, Serialize};
use zbelastic_checkpoint::{CheckpointId, CollectedAsides, PieceName};
use zbelastic_types::{Digest, LayerId, RunId, Step};

/// A piece of a checkpoint: a layer at a version, by its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PieceRef {
    /// The run that the checkpoint belongs to.
    pub run: RunId,
    /// Version of the checkpoint within its run.
    pub version: Step,
    /// Index of the layer in the model.
    pub layer: LayerId,
    /// The digest of its state.
    pub digest: Digest,
    /// Bytes of the layer as it travels.
    pub length: u64,
}

impl PieceRef {
    /// A piece that a store has, with its length.
    #[must_use]
    pub const fn of(name: PieceName, length: u64) -> Self {
        let PieceName { version: CheckpointId { run, version }, layer, digest } = name;
        Self { run, version, layer, digest, length }
    }

    /// Its name in a store.
    #[must_use]
    pub const fn name(self) -> PieceName {
        let version = CheckpointId { run: self.run, version: self.version };
        PieceName { version, layer: self.layer, digest: self.digest }
    }
}

/// A layer of a checkpoint of which too few copies could be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SaveFailed {
    /// Version of the checkpoint.
    pub version: Step,
    /// Index of the layer in the model.
    pub layer: LayerId,
    /// Copies of it that were written.
    pub copies: u32,
    /// Number of copies desired.
    pub wanted: u32,
}

/// The checkpoints and data that the cluster refers to, or may soon.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreReferences {
    /// Checkpoints, and versions that are to become some. The newest names the run under way, or
    /// the next one: older versions that are not here may go.
    pub versions: Vec<CheckpointId>,
    /// Texts and weights of the runs that there are; none if that is not known, and then all of it
    /// stays.
    pub data: Option<Vec<Digest>>,
}

/// The chunks and bytes that a node removed from its store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FreedSpace {
    /// Number of chunk files removed.
    pub chunks: u64,
    /// Bytes of these chunks.
    pub bytes: u64,
}

/// What a node removed because an operator requested it, and what it keeps for now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CollectedSpace {
    /// Removed from its store.
    pub freed: FreedSpace,
    /// Damaged stores that were put aside, which stay until all checkpoints are newer than the store in
    /// their place.
    pub asides: CollectedAsides,
}
