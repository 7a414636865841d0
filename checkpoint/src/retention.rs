//! The removals that a store permits, and their reasons. A pure decision.

use std::collections::{BTreeMap, BTreeSet};

use zbelastic_types::{LayerId, RunId};

use crate::manifest::Manifest;
use crate::names::{CheckpointId, ChunkHash, PieceName, PieceRecord};

/// The manifests, pieces and chunks that a store holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreInventory {
    /// The manifests, by their version.
    pub manifests: BTreeMap<CheckpointId, Manifest>,
    /// The pieces, with the record of each.
    pub pieces: BTreeMap<PieceName, PieceRecord>,
    /// Chunks that have a file.
    pub chunks: BTreeSet<ChunkHash>,
    /// Chunks that were written for a record that is not there yet.
    pub under_way: BTreeSet<ChunkHash>,
}

/// The versions that others need of a store. All that they lead to stays.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RetentionRoots {
    /// Versions that the cluster refers to, as checkpoints or as something to restore from.
    pub versions: BTreeSet<CheckpointId>,
    /// Versions that are being written: their manifest is not there yet.
    pub pending: BTreeSet<CheckpointId>,
    /// The newest manifests that are kept in any case, at least one.
    pub keep_last: usize,
}

/// A manifest, piece or chunk that may be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Removal {
    /// The manifest, piece or chunk.
    pub target: RemovalTarget,
    /// Why it may be removed.
    pub reason: RemovalReason,
}

/// The manifest, piece or chunk that a removal deletes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RemovalTarget {
    /// The manifest of a version.
    Manifest(CheckpointId),
    /// The record of a piece.
    Piece(PieceName),
    /// The file of a chunk.
    Chunk(ChunkHash),
}

/// Why something may be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RemovalReason {
    /// Newer manifests are kept, and the cluster does not refer to this one.
    Superseded {
        /// The oldest version kept for being among the newest.
        oldest_kept: CheckpointId,
    },
    /// No manifest of its run is kept: the run was removed.
    NoRun {
        /// The run that was removed.
        run: RunId,
    },
    /// No manifest that is kept names the piece, and its version is not being written.
    NoManifest {
        /// The layer it is of.
        layer: LayerId,
        /// The version it is of.
        version: CheckpointId,
    },
    /// No piece that is kept names the chunk.
    NoPiece,
}

/// The removals that `inventory` permits, names before bytes: manifests, then pieces, then chunks.
///
/// Never among them: the `keep_last` newest manifests of the newest run and those of `needed`
/// versions, a piece that one of these names, a piece of a needed or pending version, a chunk of a
/// piece that stays, and a chunk that is under way. Pieces newer than the newest manifest and than
/// the newest version that is needed stay as well: they belong to a checkpoint that this store has
/// no manifest of yet. In a store without manifests, as a worker's is, only the needed versions
/// decide.
#[must_use]
pub fn plan_removals(inventory: &StoreInventory, needed: &RetentionRoots) -> Vec<Removal> {
    let kept = kept_manifests(inventory, needed);
    let mut removals = superseded(inventory, &kept);
    let named: BTreeSet<PieceName> =
        kept.values().flat_map(|manifest| manifest.layers.iter().copied()).collect();
    let newest_manifest = inventory.manifests.last_key_value().map(|(version, _)| *version);
    let newest = newest_manifest.max(needed.versions.last().copied());
    let stays = |name: &PieceName| {
        named.contains(name)
            || needed.versions.contains(&name.version)
            || needed.pending.contains(&name.version)
            || newest.is_none_or(|newest| name.version > newest)
    };
    let mut in_use = inventory.under_way.clone();
    for (name, record) in &inventory.pieces {
        if stays(name) {
            in_use.extend(&record.chunks);
        } else {
            let reason = RemovalReason::NoManifest { layer: name.layer, version: name.version };
            removals.push(Removal { target: RemovalTarget::Piece(*name), reason });
        }
    }
    let unused = inventory.chunks.difference(&in_use);
    let removal =
        |hash| Removal { target: RemovalTarget::Chunk(hash), reason: RemovalReason::NoPiece };
    removals.extend(unused.copied().map(removal));
    removals
}

fn kept_manifests<'a>(
    inventory: &'a StoreInventory,
    needed: &RetentionRoots,
) -> BTreeMap<CheckpointId, &'a Manifest> {
    // Of runs before the newest that is needed, only needed manifests stay: any other was removed.
    let run = needed.versions.last().map(|version| version.run);
    let manifests = inventory.manifests.iter().rev();
    let of_run = manifests.filter(|(version, _)| run.is_none_or(|run| version.run >= run));
    let newest = of_run.take(needed.keep_last.max(1));
    let is_needed = |version: &CheckpointId| {
        needed.versions.contains(version) || needed.pending.contains(version)
    };
    let referred = inventory.manifests.iter().filter(|(version, _)| is_needed(version));
    newest.chain(referred).map(|(version, manifest)| (*version, manifest)).collect()
}

fn superseded(
    inventory: &StoreInventory,
    kept: &BTreeMap<CheckpointId, &Manifest>,
) -> Vec<Removal> {
    let removed = inventory.manifests.keys().filter(|version| !kept.contains_key(version));
    let removal = |version: &CheckpointId| {
        let newer = kept.range(*version..).next().map(|(newer, _)| *newer);
        let reason = match newer.filter(|newer| newer.run == version.run) {
            Some(oldest_kept) => RemovalReason::Superseded { oldest_kept },
            None => RemovalReason::NoRun { run: version.run },
        };
        Removal { target: RemovalTarget::Manifest(*version), reason }
    };
    removed.map(removal).collect()
}
