//! Reads and checks a whole store. It holds no lock, so that no other thread waits for it.

use std::collections::{BTreeMap, BTreeSet};

use super::{FolderStore, damage};
use crate::chunk_folder::ChunkContent;
use crate::error::CheckpointStoreError;
use crate::index::Index;
use crate::index_rows;
use crate::names::{ChunkDamage, ChunkHash, PieceName, PieceRecord};
use crate::verify::{ManifestHealth, PieceHealth, Verification};

/// The state in which a chunk's file was found.
#[derive(Clone, Copy, Debug)]
enum ChunkHealth {
    Whole { bytes: u64 },
    Damaged { found: ChunkHash, bytes: u64 },
    Unreadable(std::io::ErrorKind),
    Missing,
}

/// Reads everything and returns the parts that are whole. Parts that are removed meanwhile are left
/// out.
pub(super) fn verify<I: Index>(
    store: &FolderStore<I>,
) -> Result<Verification, CheckpointStoreError> {
    let failed = |fault| store.failed(fault);
    let before = index_rows::pieces(&store.index).map_err(failed)?;
    let listing = store.chunks.list()?;
    let mut to_read = listing.chunks.clone();
    to_read.extend(before.values().flat_map(|record| &record.chunks));
    let mut found = BTreeMap::new();
    let mut bytes_read = 0;
    for hash in to_read {
        let health = chunk_health(store, hash);
        bytes_read += match health {
            ChunkHealth::Whole { bytes } | ChunkHealth::Damaged { bytes, .. } => bytes,
            ChunkHealth::Unreadable(_) | ChunkHealth::Missing => 0,
        };
        found.insert(hash, health);
    }
    let after = index_rows::pieces(&store.index).map_err(failed)?;
    let pieces: BTreeMap<&PieceName, PieceHealth> = before
        .iter()
        .filter(|(name, record)| after.get(*name) == Some(*record))
        .map(|(name, record)| (name, health(record, &found)))
        .collect();
    let manifests = index_rows::manifests(&store.index).map_err(failed)?;
    let of_piece = |name: &PieceName| {
        let health = pieces.get(name).cloned().unwrap_or(PieceHealth::Absent);
        (*name, health)
    };
    let of_manifest = |(version, manifest): (&_, &crate::Manifest)| ManifestHealth {
        version: *version,
        pieces: manifest.layers.iter().map(of_piece).collect(),
    };
    let manifests = manifests.iter().map(of_manifest).collect();
    let named: BTreeSet<&ChunkHash> = after.values().flat_map(|record| &record.chunks).collect();
    let unnamed = listing.chunks.iter().filter(|hash| !named.contains(hash)).copied().collect();
    let pieces = pieces.into_iter().map(|(name, health)| (*name, health)).collect();
    Ok(Verification {
        manifests,
        pieces,
        unnamed,
        stray_entries: listing.stray_entries,
        bytes_read,
    })
}

fn chunk_health<I: Index>(store: &FolderStore<I>, hash: ChunkHash) -> ChunkHealth {
    let mut chunk = store.buffers.take();
    match store.chunks.read(hash, &mut chunk) {
        ChunkContent::Whole => ChunkHealth::Whole { bytes: chunk.bytes().len() as u64 },
        ChunkContent::Damaged { found, found_bytes } => {
            ChunkHealth::Damaged { found, bytes: found_bytes }
        }
        ChunkContent::Unreadable(fault) => ChunkHealth::Unreadable(fault.source.kind()),
        ChunkContent::Nothing => ChunkHealth::Missing,
    }
}

fn health(record: &PieceRecord, found: &BTreeMap<ChunkHash, ChunkHealth>) -> PieceHealth {
    let chunks = record.chunks.iter().enumerate();
    let damage: Vec<ChunkDamage> = chunks
        .filter_map(|(index, &expected)| {
            let expected_bytes = record.chunk_bytes(index);
            match found[&expected] {
                ChunkHealth::Whole { bytes } if bytes == expected_bytes => None,
                ChunkHealth::Whole { bytes: found_bytes } => {
                    Some(ChunkDamage::Length { index, expected, expected_bytes, found_bytes })
                }
                ChunkHealth::Damaged { found, bytes } => {
                    Some(damage(index, expected, expected_bytes, found, bytes))
                }
                ChunkHealth::Unreadable(kind) => {
                    Some(ChunkDamage::Unreadable { index, expected, kind })
                }
                ChunkHealth::Missing => Some(ChunkDamage::Missing { index, expected }),
            }
        })
        .collect();
    if damage.is_empty() { PieceHealth::Whole } else { PieceHealth::Damaged(damage) }
}
