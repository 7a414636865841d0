//! What a node removes from its store of checkpoints: all that the cluster does not refer to, on every node
//! alike, whether it keeps manifests or not.

use std::collections::{BTreeMap, BTreeSet};

use zbelastic_checkpoint::{Needed, Removed, Store, StoreError, what_to_remove};
use zbelastic_consensus::mutant::{self, Mutant};

use crate::piece::{Freed, Referred};

/// Manifests kept whatever the cluster refers to.
const KEEP_LAST: usize = 1;

/// Removes what nobody refers to, and returns how much that was.
///
/// # Errors
/// If the medium fails.
pub fn collect(store: &impl Store, referred: &Referred) -> Result<Freed, StoreError> {
    let versions = referred.versions.iter().copied().collect();
    let needed = Needed { versions, pending: BTreeSet::new(), keep_last: KEEP_LAST };
    let inventory = store.inventory()?;
    if mutant::is(Mutant::M30CollectsByManifest) && inventory.manifests.is_empty() {
        return Ok(Freed::default());
    }
    let removed = store.remove(&what_to_remove(&inventory, &needed))?;
    let records = inventory.pieces.values();
    let lengths = records.flat_map(|record| {
        record.chunks.iter().enumerate().map(|(index, hash)| (*hash, record.chunk_bytes(index)))
    });
    let lengths: BTreeMap<_, _> = lengths.collect();
    let mut freed = Freed::default();
    for removal in removed {
        match removal.what {
            Removed::Chunk(hash) => {
                freed.chunks += 1;
                // A chunk without a record was part of something that was never finished.
                freed.bytes += lengths.get(&hash).copied().unwrap_or_default();
            }
            Removed::Manifest(_) | Removed::Piece(_) => {}
        }
    }
    Ok(freed)
}
