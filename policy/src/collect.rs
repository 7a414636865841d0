//! The items that a node removes from its store of checkpoints: all that the cluster does not refer
//! to, on every node alike, whether it keeps manifests or not.

use std::collections::{BTreeMap, BTreeSet};

use zbelastic_checkpoint::{
    CheckpointStore, CheckpointStoreError, RemovalTarget, RetentionRoots, plan_removals,
};
use zbelastic_consensus::mutant::{self, Mutant};

use crate::piece::{FreedSpace, StoreReferences};

/// Manifests kept even if the cluster does not refer to them.
const KEEP_LAST: usize = 1;

/// Removes the items that the cluster does not refer to, and returns how much that was.
///
/// # Errors
/// If the medium fails.
pub fn collect_garbage(
    store: &impl CheckpointStore,
    references: &StoreReferences,
) -> Result<FreedSpace, CheckpointStoreError> {
    let versions = references.versions.iter().copied().collect();
    let needed = RetentionRoots { versions, pending: BTreeSet::new(), keep_last: KEEP_LAST };
    let inventory = store.inventory()?;
    if mutant::is(Mutant::M30CollectsByManifest) && inventory.manifests.is_empty() {
        return Ok(FreedSpace::default());
    }
    let removed = store.remove(&plan_removals(&inventory, &needed))?;
    let records = inventory.pieces.values();
    let lengths = records.flat_map(|record| {
        record.chunks.iter().enumerate().map(|(index, hash)| (*hash, record.chunk_bytes(index)))
    });
    let lengths: BTreeMap<_, _> = lengths.collect();
    let mut freed = FreedSpace::default();
    for removal in removed {
        match removal.target {
            RemovalTarget::Chunk(hash) => {
                freed.chunks += 1;
                // A chunk without a record was part of something that was never finished.
                freed.bytes += lengths.get(&hash).copied().unwrap_or_default();
            }
            RemovalTarget::Manifest(_) | RemovalTarget::Piece(_) => {}
        }
    }
    Ok(freed)
}
