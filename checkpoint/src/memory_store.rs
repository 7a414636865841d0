//! A store that goes with the process.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Mutex, MutexGuard};

use crate::error::StoreError;
use crate::manifest::Manifest;
use crate::names::{CheckpointId, ChunkDamage, ChunkHash, PieceName, PieceRecord};
use crate::retention::{Inventory, Removal, Removed};
use crate::store::{Store, check_piece_length, chunk_lengths, source_fault};
use crate::verify::{ManifestHealth, PieceHealth, Verification};

/// A store in memory: for tests, and the model that others are compared with.
#[derive(Debug, Default)]
pub struct MemoryStore {
    /// Held for one call each; nothing else is locked under it.
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    manifests: BTreeMap<CheckpointId, Manifest>,
    pieces: BTreeMap<PieceName, PieceRecord>,
    chunks: BTreeMap<ChunkHash, Vec<u8>>,
    under_way: BTreeSet<ChunkHash>,
}

impl MemoryStore {
    /// A store with nothing in it.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().expect("no call panics while it holds the lock")
    }
}

impl Held {
    fn health(&self, name: &PieceName) -> PieceHealth {
        let Some(record) = self.pieces.get(name) else { return PieceHealth::Absent };
        let damage: Vec<ChunkDamage> = (0..)
            .zip(&record.chunks)
            .filter(|(_, hash)| !self.chunks.contains_key(hash))
            .map(|(index, &expected)| ChunkDamage::Missing { index, expected })
            .collect();
        if damage.is_empty() { PieceHealth::Whole } else { PieceHealth::Damaged(damage) }
    }

    fn keep(&mut self, hash: ChunkHash, bytes: &[u8]) {
        self.chunks.insert(hash, bytes.to_vec());
        self.under_way.insert(hash);
    }

    fn is_in_use(&self, hash: &ChunkHash) -> bool {
        self.under_way.contains(hash)
            || self.pieces.values().any(|record| record.chunks.contains(hash))
    }
}

impl Store for MemoryStore {
    fn put_from(
        &self,
        name: PieceName,
        length: u64,
        source: &mut dyn io::Read,
    ) -> Result<PieceRecord, StoreError> {
        check_piece_length(name, length)?;
        let mut record = PieceRecord { length, chunks: Vec::new() };
        let mut chunks = BTreeMap::new();
        for count in chunk_lengths(length) {
            let mut bytes = vec![0; count];
            source.read_exact(&mut bytes).map_err(source_fault(name))?;
            let hash = ChunkHash::of(&bytes);
            record.chunks.push(hash);
            chunks.insert(hash, bytes);
        }
        let mut held = self.held();
        held.chunks.extend(chunks);
        held.pieces.insert(name, record.clone());
        Ok(record)
    }

    fn get(&self, name: PieceName) -> Result<Vec<u8>, StoreError> {
        let held = self.held();
        let record = held.pieces.get(&name).ok_or(StoreError::NoPiece { name })?;
        match held.health(&name) {
            PieceHealth::Whole => {
                Ok(record.chunks.iter().flat_map(|hash| &held.chunks[hash]).copied().collect())
            }
            PieceHealth::Absent => Err(StoreError::NoPiece { name }),
            PieceHealth::Damaged(damage) => Err(StoreError::Damaged { name, damage }),
        }
    }

    fn record(&self, name: PieceName) -> Result<Option<PieceRecord>, StoreError> {
        Ok(self.held().pieces.get(&name).cloned())
    }

    fn names(&self) -> Result<Vec<PieceName>, StoreError> {
        Ok(self.held().pieces.keys().copied().collect())
    }

    fn chunk(&self, hash: ChunkHash) -> Result<Vec<u8>, StoreError> {
        self.held().chunks.get(&hash).cloned().ok_or(StoreError::NoChunk { hash })
    }

    fn missing(&self, record: &PieceRecord) -> Result<Vec<ChunkHash>, StoreError> {
        let held = self.held();
        let wanted: BTreeSet<ChunkHash> = record.chunks.iter().copied().collect();
        Ok(wanted.into_iter().filter(|hash| !held.chunks.contains_key(hash)).collect())
    }

    fn put_chunk(&self, hash: ChunkHash, bytes: &[u8]) -> Result<(), StoreError> {
        crate::store::check_chunk(hash, bytes)?;
        self.held().keep(hash, bytes);
        Ok(())
    }

    fn put_new_chunk(&self, bytes: &[u8]) -> Result<ChunkHash, StoreError> {
        let hash = crate::store::hash_chunk(bytes)?;
        self.held().keep(hash, bytes);
        Ok(hash)
    }

    fn put_record(&self, name: PieceName, record: &PieceRecord) -> Result<(), StoreError> {
        record.check().map_err(|fault| StoreError::BadRecord { name, fault })?;
        let mut held = self.held();
        for (index, hash) in record.chunks.iter().enumerate() {
            let chunk = held.chunks.get(hash).ok_or(StoreError::NoChunk { hash: *hash })?;
            crate::store::check_length(name, record, index, chunk.len() as u64)?;
        }
        held.pieces.insert(name, record.clone());
        held.under_way.retain(|hash| !record.chunks.contains(hash));
        Ok(())
    }

    fn give_up(&self, record: &PieceRecord) {
        self.held().under_way.retain(|hash| !record.chunks.contains(hash));
    }

    fn put_manifest(&self, manifest: &Manifest) -> Result<(), StoreError> {
        manifest.check()?;
        self.held().manifests.insert(manifest.version, manifest.clone());
        Ok(())
    }

    fn manifests(&self) -> Result<Vec<Manifest>, StoreError> {
        Ok(self.held().manifests.values().cloned().collect())
    }

    fn manifest(&self, version: CheckpointId) -> Result<Option<Manifest>, StoreError> {
        Ok(self.held().manifests.get(&version).cloned())
    }

    fn inventory(&self) -> Result<Inventory, StoreError> {
        let held = self.held();
        Ok(Inventory {
            manifests: held.manifests.clone(),
            pieces: held.pieces.clone(),
            chunks: held.chunks.keys().copied().collect(),
            under_way: held.under_way.clone(),
        })
    }

    fn remove(&self, removals: &[Removal]) -> Result<Vec<Removal>, StoreError> {
        let mut held = self.held();
        let mut gone = Vec::new();
        for removal in crate::store::names_first(removals) {
            let is_gone = match removal.what {
                Removed::Manifest(version) => held.manifests.remove(&version).is_some(),
                Removed::Piece(name) => held.pieces.remove(&name).is_some(),
                Removed::Chunk(hash) => {
                    !held.is_in_use(&hash) && held.chunks.remove(&hash).is_some()
                }
            };
            gone.extend(is_gone.then_some(removal));
        }
        Ok(gone)
    }

    fn verify(&self) -> Result<Verification, StoreError> {
        let held = self.held();
        let health = |name: &PieceName| (*name, held.health(name));
        let of_manifest = |manifest: &Manifest| ManifestHealth {
            version: manifest.version,
            pieces: manifest.layers.iter().map(health).collect(),
        };
        let named: BTreeSet<&ChunkHash> =
            held.pieces.values().flat_map(|record| &record.chunks).collect();
        Ok(Verification {
            manifests: held.manifests.values().map(of_manifest).collect(),
            pieces: held.pieces.keys().map(health).collect(),
            unnamed: held.chunks.keys().filter(|hash| !named.contains(hash)).copied().collect(),
            oddities: Vec::new(),
            bytes_read: held.chunks.values().map(|chunk| chunk.len() as u64).sum(),
        })
    }
}
