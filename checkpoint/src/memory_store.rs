//! A store in memory, which ends with the process.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Mutex, MutexGuard};

use crate::error::CheckpointStoreError;
use crate::manifest::Manifest;
use crate::names::{CheckpointId, ChunkDamage, ChunkHash, PieceName, PieceRecord};
use crate::retention::{Removal, RemovalTarget, StoreInventory};
use crate::store::{CheckpointStore, check_piece_length, chunk_lengths, source_fault};
use crate::verify::{ManifestHealth, PieceHealth, Verification};

/// A store in memory: for tests, and the model that others are compared with.
#[derive(Debug, Default)]
pub struct InMemoryStore {
    /// Locked for one call each; nothing else is locked under it.
    state: Mutex<InMemoryStoreState>,
}

#[derive(Debug, Default)]
struct InMemoryStoreState {
    manifests: BTreeMap<CheckpointId, Manifest>,
    pieces: BTreeMap<PieceName, PieceRecord>,
    chunks: BTreeMap<ChunkHash, Vec<u8>>,
    under_way: BTreeSet<ChunkHash>,
}

impl InMemoryStore {
    /// A store with nothing in it.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn lock_state(&self) -> MutexGuard<'_, InMemoryStoreState> {
        self.state.lock().expect("no call panics while it holds the lock")
    }
}

impl InMemoryStoreState {
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

impl CheckpointStore for InMemoryStore {
    /// Every chunk has its name at once.
    type UnnamedChunks = ();

    fn put_from(
        &self,
        name: PieceName,
        length: u64,
        source: &mut dyn io::Read,
    ) -> Result<PieceRecord, CheckpointStoreError> {
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
        let mut state = self.lock_state();
        state.chunks.extend(chunks);
        state.pieces.insert(name, record.clone());
        Ok(record)
    }

    fn get(&self, name: PieceName) -> Result<Vec<u8>, CheckpointStoreError> {
        let state = self.lock_state();
        let record = state.pieces.get(&name).ok_or(CheckpointStoreError::NoPiece { name })?;
        match state.health(&name) {
            PieceHealth::Whole => {
                Ok(record.chunks.iter().flat_map(|hash| &state.chunks[hash]).copied().collect())
            }
            PieceHealth::Absent => Err(CheckpointStoreError::NoPiece { name }),
            PieceHealth::Damaged(damage) => Err(CheckpointStoreError::Damaged { name, damage }),
        }
    }

    fn record(&self, name: PieceName) -> Result<Option<PieceRecord>, CheckpointStoreError> {
        Ok(self.lock_state().pieces.get(&name).cloned())
    }

    fn names(&self) -> Result<Vec<PieceName>, CheckpointStoreError> {
        Ok(self.lock_state().pieces.keys().copied().collect())
    }

    fn chunk_into(&self, hash: ChunkHash, into: &mut Vec<u8>) -> Result<(), CheckpointStoreError> {
        into.clear();
        let state = self.lock_state();
        let bytes = state.chunks.get(&hash).ok_or(CheckpointStoreError::NoChunk { hash })?;
        into.extend_from_slice(bytes);
        Ok(())
    }

    fn missing(&self, record: &PieceRecord) -> Result<Vec<ChunkHash>, CheckpointStoreError> {
        let state = self.lock_state();
        let needed: BTreeSet<ChunkHash> = record.chunks.iter().copied().collect();
        Ok(needed.into_iter().filter(|hash| !state.chunks.contains_key(hash)).collect())
    }

    fn put_chunk(&self, hash: ChunkHash, bytes: &[u8]) -> Result<(), CheckpointStoreError> {
        crate::store::check_chunk(hash, bytes)?;
        self.lock_state().keep(hash, bytes);
        Ok(())
    }

    fn put_new_chunk(&self, bytes: &[u8], (): &mut ()) -> Result<ChunkHash, CheckpointStoreError> {
        let hash = crate::store::hash_chunk(bytes)?;
        self.lock_state().keep(hash, bytes);
        Ok(hash)
    }

    fn name_chunks(&self, (): ()) -> Result<(), CheckpointStoreError> {
        Ok(())
    }

    fn put_record(
        &self,
        name: PieceName,
        record: &PieceRecord,
    ) -> Result<(), CheckpointStoreError> {
        record.check().map_err(|fault| CheckpointStoreError::BadRecord { name, fault })?;
        let mut state = self.lock_state();
        for (index, hash) in record.chunks.iter().enumerate() {
            let chunk =
                state.chunks.get(hash).ok_or(CheckpointStoreError::NoChunk { hash: *hash })?;
            crate::store::check_length(name, record, index, chunk.len() as u64)?;
        }
        state.pieces.insert(name, record.clone());
        state.under_way.retain(|hash| !record.chunks.contains(hash));
        Ok(())
    }

    fn abandon(&self, record: &PieceRecord) {
        self.lock_state().under_way.retain(|hash| !record.chunks.contains(hash));
    }

    fn put_manifest(&self, manifest: &Manifest) -> Result<(), CheckpointStoreError> {
        manifest.check()?;
        self.lock_state().manifests.insert(manifest.version, manifest.clone());
        Ok(())
    }

    fn manifests(&self) -> Result<Vec<Manifest>, CheckpointStoreError> {
        Ok(self.lock_state().manifests.values().cloned().collect())
    }

    fn manifest(&self, version: CheckpointId) -> Result<Option<Manifest>, CheckpointStoreError> {
        Ok(self.lock_state().manifests.get(&version).cloned())
    }

    fn inventory(&self) -> Result<StoreInventory, CheckpointStoreError> {
        let state = self.lock_state();
        Ok(StoreInventory {
            manifests: state.manifests.clone(),
            pieces: state.pieces.clone(),
            chunks: state.chunks.keys().copied().collect(),
            under_way: state.under_way.clone(),
        })
    }

    fn remove(&self, removals: &[Removal]) -> Result<Vec<Removal>, CheckpointStoreError> {
        let mut state = self.lock_state();
        let mut gone = Vec::new();
        for removal in crate::store::names_first(removals) {
            let is_gone = match removal.target {
                RemovalTarget::Manifest(version) => state.manifests.remove(&version).is_some(),
                RemovalTarget::Piece(name) => state.pieces.remove(&name).is_some(),
                RemovalTarget::Chunk(hash) => {
                    !state.is_in_use(&hash) && state.chunks.remove(&hash).is_some()
                }
            };
            gone.extend(is_gone.then_some(removal));
        }
        Ok(gone)
    }

    fn verify(&self) -> Result<Verification, CheckpointStoreError> {
        let state = self.lock_state();
        let health = |name: &PieceName| (*name, state.health(name));
        let of_manifest = |manifest: &Manifest| ManifestHealth {
            version: manifest.version,
            pieces: manifest.layers.iter().map(health).collect(),
        };
        let named: BTreeSet<&ChunkHash> =
            state.pieces.values().flat_map(|record| &record.chunks).collect();
        Ok(Verification {
            manifests: state.manifests.values().map(of_manifest).collect(),
            pieces: state.pieces.keys().map(health).collect(),
            unnamed: state.chunks.keys().filter(|hash| !named.contains(hash)).copied().collect(),
            stray_entries: Vec::new(),
            bytes_read: state.chunks.values().map(|chunk| chunk.len() as u64).sum(),
        })
    }
}
