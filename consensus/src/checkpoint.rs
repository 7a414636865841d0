//! Checkpoints as the cluster knows them: the layers that must be read, not where they lie.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use zbelastic_types::{Digest, Generation, LayerId, Step};

use crate::validation::Ledger;

/// Checkpoints kept at most.
pub const CHECKPOINTS_MAX: usize = 16;
/// Checkpoints under way at most; the oldest is given up for a new one.
pub const PENDING_MAX: usize = 4;

/// A layer with the digest of its state.
pub type LayerDigest = (LayerId, Digest);

/// A version with durable copies of all its layers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckpointRecord {
    /// The version: steps sealed before it.
    pub version: Step,
    /// The digest of each layer, in model order.
    pub layers: Vec<Digest>,
    /// The ledger as it stood.
    pub ledger: Ledger,
}

/// A version that is to become one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PendingCheckpoint {
    /// The version: steps sealed before it.
    pub version: Step,
    /// Layers that are durable so far.
    pub layers: BTreeMap<LayerId, Digest>,
    /// The ledger at this version.
    pub ledger: Ledger,
}

impl PendingCheckpoint {
    /// The plan under which it was sealed. Layers that were written of the same version under
    /// another one were given up by a rewind.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.ledger.open_turn().generation
    }

    /// The record, if no layer is missing.
    #[must_use]
    pub fn complete(&self, layer_count: u32) -> Option<CheckpointRecord> {
        if self.layers.len() != layer_count as usize {
            return None;
        }
        let version = self.version;
        let ledger = self.ledger.clone();
        Some(CheckpointRecord { version, layers: self.layers.values().copied().collect(), ledger })
    }
}
