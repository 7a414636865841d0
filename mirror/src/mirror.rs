//! Reading and writing a mirror.

use std::collections::BTreeSet;

use zbelastic_checkpoint::{CHUNK_BYTES, CheckpointId, ChunkHash};
use zbelastic_remote::{ObjectFolder, RemoteError};
use zbelastic_types::{RunId, Step};

use crate::checkpoint_object::{
    CHECKPOINT_OBJECT_BYTES_MAX, CheckpointObjectError, MirroredCheckpoint,
};

const OWNER: &str = "OWNER";
/// Bytes of it: sixteen letters and the end of the line.
const OWNER_BYTES_MAX: usize = 64;
const CHUNKS: &str = "chunks";
const CHECKPOINTS: &str = "checkpoints";

/// Why a mirror cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum MirrorError {
    /// The folder or the server.
    #[error(transparent)]
    Folder(#[from] RemoteError),
    /// Another cluster writes here.
    #[error("cluster {found:016x} writes this mirror, not {expected:016x}")]
    Owned {
        /// The cluster that was to write.
        expected: u64,
        /// The one that the mirror names.
        found: u64,
    },
    /// An object that is no owner's.
    #[error("its object OWNER names no cluster")]
    Owner,
    /// There is no such checkpoint.
    #[error("there is no checkpoint {0} here")]
    NoCheckpoint(CheckpointId),
    /// A checkpoint's object is damaged.
    #[error("{id}: {fault}")]
    Checkpoint {
        /// Its name.
        id: CheckpointId,
        /// What is wrong with it.
        fault: CheckpointObjectError,
    },
    /// A chunk that a checkpoint names is gone.
    #[error("chunk {0} is not here")]
    NoChunk(ChunkHash),
    /// Its bytes are others.
    #[error("chunk {expected} is damaged: its bytes have the hash {found}")]
    Damaged {
        /// Its name.
        expected: ChunkHash,
        /// The hash of its bytes.
        found: ChunkHash,
    },
}

/// A mirror.
pub struct Mirror {
    folder: ObjectFolder,
    /// Chunks that are known to be there; none before the first is written, which lists them.
    present: Option<BTreeSet<ChunkHash>>,
}

impl Mirror {
    /// The mirror in a folder, of which nothing is read yet.
    #[must_use]
    pub const fn new(folder: ObjectFolder) -> Self {
        Self { folder, present: None }
    }

    /// The cluster that writes here, if one does.
    ///
    /// # Errors
    /// If the mirror cannot be read.
    pub fn owner(&self) -> Result<Option<u64>, MirrorError> {
        let Some(bytes) = self.folder.get(OWNER, OWNER_BYTES_MAX)? else { return Ok(None) };
        let text = std::str::from_utf8(&bytes).map_err(|_| MirrorError::Owner)?;
        u64::from_str_radix(text.trim(), 16).map(Some).map_err(|_| MirrorError::Owner)
    }

    /// Checks that this cluster may write: it does already, or none does yet.
    ///
    /// # Errors
    /// If another one does.
    pub fn check_owner(&self, cluster: u64) -> Result<(), MirrorError> {
        match self.owner()? {
            Some(found) if found == cluster => Ok(()),
            Some(found) => Err(MirrorError::Owned { expected: cluster, found }),
            None => self.take_over(cluster),
        }
    }

    /// Makes this the cluster that writes here.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn take_over(&self, cluster: u64) -> Result<(), MirrorError> {
        Ok(self.folder.put(OWNER, format!("{cluster:016x}\n").as_bytes())?)
    }

    /// The checkpoints that are here, oldest first.
    ///
    /// # Errors
    /// If they cannot be listed.
    pub fn checkpoints(&self) -> Result<Vec<CheckpointId>, MirrorError> {
        let keys = self.folder.list(CHECKPOINTS)?;
        let mut found: Vec<_> = keys.iter().filter_map(|key| id_of(key)).collect();
        found.sort_unstable();
        Ok(found)
    }

    /// A checkpoint.
    ///
    /// # Errors
    /// If it is not here, or not whole.
    pub fn checkpoint(&self, id: CheckpointId) -> Result<MirroredCheckpoint, MirrorError> {
        let bytes = self.folder.get(&key_of(id), CHECKPOINT_OBJECT_BYTES_MAX)?;
        let bytes = bytes.ok_or(MirrorError::NoCheckpoint(id))?;
        MirroredCheckpoint::decode(&bytes).map_err(|fault| MirrorError::Checkpoint { id, fault })
    }

    /// The bytes of a chunk.
    ///
    /// # Errors
    /// If it is not here, or its bytes are others.
    pub fn chunk(&self, hash: ChunkHash) -> Result<Vec<u8>, MirrorError> {
        let bytes = self.folder.get(&chunk_key(hash), CHUNK_BYTES)?;
        let bytes = bytes.ok_or(MirrorError::NoChunk(hash))?;
        let found = ChunkHash::of(&bytes);
        if found != hash {
            return Err(MirrorError::Damaged { expected: hash, found });
        }
        Ok(bytes)
    }

    /// Writes a chunk, unless it is there, and returns its name.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn put_chunk(&mut self, bytes: Vec<u8>) -> Result<ChunkHash, MirrorError> {
        let hash = ChunkHash::of(&bytes);
        if !self.present()?.contains(&hash) {
            self.folder.put(&chunk_key(hash), &bytes)?;
            self.present()?.insert(hash);
        }
        Ok(hash)
    }

    /// The chunks that are here now, listed anew.
    ///
    /// # Errors
    /// If they cannot be listed.
    pub fn chunks(&self) -> Result<BTreeSet<ChunkHash>, MirrorError> {
        let keys = self.folder.list(CHUNKS)?;
        Ok(keys.iter().filter_map(|key| chunk_of(key)).collect())
    }

    fn present(&mut self) -> Result<&mut BTreeSet<ChunkHash>, MirrorError> {
        if self.present.is_none() {
            self.present = Some(self.chunks()?);
        }
        Ok(self.present.as_mut().expect("it was just listed"))
    }

    /// Lists a checkpoint whose chunks were written.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn put_checkpoint(&self, checkpoint: &MirroredCheckpoint) -> Result<(), MirrorError> {
        let id = checkpoint.id();
        let bytes = checkpoint.encode();
        let bytes = bytes.map_err(|fault| MirrorError::Checkpoint { id, fault })?;
        Ok(self.folder.put(&key_of(id), &bytes)?)
    }

    /// Removes all but the newest `keep` checkpoints of a run, and the chunks that no other
    /// checkpoint names. Returns how many checkpoints went.
    ///
    /// Of each other run the last one stays, as in the cluster, until a person removes it.
    ///
    /// # Errors
    /// If the mirror cannot be read or written, or a checkpoint that stays is damaged: then no chunk is
    /// removed, for it may be one of that.
    pub fn keep_newest(&mut self, run: RunId, keep: usize) -> Result<usize, MirrorError> {
        let found = self.checkpoints()?;
        let mut old = Vec::new();
        let mut kept = Vec::new();
        for of_run in found.chunk_by(|a, b| a.run == b.run) {
            let keep = if of_run[0].run == run { keep } else { 1 };
            let (before, newest) = of_run.split_at(of_run.len().saturating_sub(keep));
            old.extend(before);
            kept.extend(newest);
        }
        if old.is_empty() {
            return Ok(0);
        }
        let mut named = BTreeSet::new();
        for id in kept {
            named.extend(self.checkpoint(id)?.chunks());
        }
        for id in &old {
            self.folder.remove(&key_of(*id))?;
        }
        let unnamed: Vec<_> = self.present()?.difference(&named).copied().collect();
        for hash in unnamed {
            self.folder.remove(&chunk_key(hash))?;
            self.present()?.remove(&hash);
        }
        Ok(old.len())
    }
}

/// Numbers have as many digits as any, so that names have the order of numbers.
fn key_of(id: CheckpointId) -> String {
    format!("{CHECKPOINTS}/{:020}-{:020}", id.run.0, id.version.0)
}

fn id_of(key: &str) -> Option<CheckpointId> {
    let (run, version) = key.strip_prefix(CHECKPOINTS)?.strip_prefix('/')?.split_once('-')?;
    let id = CheckpointId { run: RunId(run.parse().ok()?), version: Step(version.parse().ok()?) };
    (key_of(id) == key).then_some(id)
}

fn chunk_key(hash: ChunkHash) -> String {
    let name = hash.to_string();
    format!("{CHUNKS}/{}/{name}", &name[..2])
}

fn chunk_of(key: &str) -> Option<ChunkHash> {
    let hash = ChunkHash::parse(key.rsplit('/').next()?).ok()?;
    (chunk_key(hash) == key).then_some(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written_and_in_no_other_way() {
        let id = CheckpointId { run: RunId(3), version: Step(120) };
        assert_eq!(id_of(&key_of(id)), Some(id));
        let earlier = CheckpointId { run: RunId(2), version: Step(u64::MAX) };
        assert!(key_of(earlier) < key_of(id));
        for other in ["checkpoints/3-120", "checkpoints/x-1", "3-120", "checkpoints/"] {
            assert_eq!(id_of(other), None, "{other}");
        }
        let hash = ChunkHash::of(b"a");
        assert_eq!(chunk_of(&chunk_key(hash)), Some(hash));
        assert_eq!(chunk_of(&format!("chunks/00/{hash}")), None);
    }
}
