//! A file of weights that this node keeps under the hash of its bytes, of which a run reads a layer when
//! it needs it, hours after all of the file was compared with its name. Bytes of a file may change in
//! place, so each chunk is compared with its hash when it is read.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use zbelastic_policy::WorkCounter;
use zbelastic_policy::data::DataName;
use zbelastic_policy::data_chunks::ChunkHashes;
use zbelastic_trainer::hf::WeightBytes;
use zbelastic_transport::ChunkCheck;
use zbelastic_transport::bulk::CHUNK_BYTES;

use crate::data_file::{hash_chunks, kept_hashes};

/// Chunks that stay in memory behind a read, 16 MiB: one for each tensor that is read at a time, as the
/// next piece of a tensor mostly begins in the chunk in which the last one ended.
const CHUNKS_MAX: usize = 16;

/// A chunk's index, and its bytes, which have its hash.
type SoundChunk = (u64, Vec<u8>);

/// An open file of weights with the hashes of its chunks. It stays readable if its name is removed.
pub struct KeptWeights {
    path: PathBuf,
    file: File,
    hashes: ChunkHashes,
    /// Chunks that were read, the latest last.
    recent: Mutex<Vec<SoundChunk>>,
    /// Counts bytes that were read.
    progress: WorkCounter,
}

impl KeptWeights {
    /// Opens the file at `path`, which was just compared with `name`. Reads of it count as progress.
    ///
    /// # Errors
    /// If it cannot be opened, or the hashes of its chunks are not kept and it is other data.
    pub fn open(path: &Path, name: DataName, progress: WorkCounter) -> io::Result<Self> {
        let file = File::open(path)?;
        let hashes = match kept_hashes(path, name) {
            Some(hashes) => hashes,
            None => hash_chunks(&file, &progress)?,
        };
        if hashes.name() != name {
            let path = path.display();
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("{path} is other data"),
            ));
        }
        let recent = Mutex::new(Vec::with_capacity(CHUNKS_MAX));
        Ok(Self { path: path.to_owned(), file, hashes, recent, progress })
    }

    fn recent(&self) -> MutexGuard<'_, Vec<SoundChunk>> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The bytes of a chunk, which is not among the recent ones behind it.
    fn take_chunk(&self, chunk: u64) -> io::Result<Vec<u8>> {
        let mut recent = self.recent();
        if let Some(at) = recent.iter().position(|(found, _)| *found == chunk) {
            return Ok(recent.remove(at).1);
        }
        drop(recent);
        let offset = chunk * CHUNK_BYTES as u64;
        let left = self.len().saturating_sub(offset);
        let mut bytes = vec![0; left.min(CHUNK_BYTES as u64) as usize];
        let mut is_sound = |file: &File| {
            file.read_exact_at(&mut bytes, offset).is_ok() && self.hashes.is_sound(chunk, &bytes)
        };
        // A copy that was mended meanwhile is another file, under the same name.
        if is_sound(&self.file) || File::open(&self.path).is_ok_and(|mended| is_sound(&mended)) {
            return Ok(bytes);
        }
        let path = self.path.display();
        let what = format!(
            "{path} is damaged in its MiB {chunk}, and is fetched again when this node is started \
             again: check the disk"
        );
        Err(io::Error::new(io::ErrorKind::InvalidData, what))
    }

    fn put_back(&self, chunk: SoundChunk) {
        let mut recent = self.recent();
        if recent.len() >= CHUNKS_MAX {
            recent.remove(0);
        }
        recent.push(chunk);
    }
}

impl WeightBytes for KeptWeights {
    fn len(&self) -> u64 {
        self.hashes.name().length
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let count = into.len() as u64;
        if offset.checked_add(count).is_none_or(|end| end > self.len()) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut at = offset;
        let mut rest = into;
        while !rest.is_empty() {
            let chunk = at / CHUNK_BYTES as u64;
            let bytes = self.take_chunk(chunk)?;
            let part = &bytes[(at % CHUNK_BYTES as u64) as usize..];
            let (now, later) = rest.split_at_mut(part.len().min(rest.len()));
            now.copy_from_slice(&part[..now.len()]);
            at += now.len() as u64;
            rest = later;
            self.put_back((chunk, bytes));
        }
        self.progress.add(count);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use zbelastic_policy::data_chunks::ChunkSize;

    use super::*;
    use crate::data_file::{is_sound, list_path};

    fn bytes() -> Vec<u8> {
        (0..3 * CHUNK_BYTES + 7).map(|at| (at % 251) as u8).collect()
    }

    /// Writes other bytes into a file: neither its name nor its length changes.
    fn flip(path: &Path, at: usize) {
        let file = File::options().read(true).write(true).open(path).expect("it is there");
        let mut byte = [0];
        file.read_exact_at(&mut byte, at as u64).expect("readable");
        file.write_all_at(&[byte[0] ^ 1], at as u64).expect("writable");
    }

    fn read(weights: &KeptWeights, offset: usize, count: usize) -> io::Result<Vec<u8>> {
        let mut into = vec![0; count];
        weights.read(offset as u64, &mut into).map(|()| into)
    }

    #[test]
    fn bytes_that_change_in_place_are_refused_until_the_copy_is_mended() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("one.data");
        let sound = bytes();
        fs::write(&path, &sound).expect("writable");
        let name = DataName::of(&sound);
        let progress = WorkCounter::default();
        assert!(is_sound(&path, name, &WorkCounter::default()), "as before a run");
        let weights = KeptWeights::open(&path, name, progress.clone()).expect("sound");
        let wanted = [(0, 8), (5, CHUNK_BYTES), (CHUNK_BYTES - 3, 2 * CHUNK_BYTES)];
        for (offset, count) in wanted {
            let found = read(&weights, offset, count).expect("sound");
            assert!(found == sound[offset..][..count], "{offset}");
        }
        assert_eq!(progress.total(), wanted.iter().map(|(_, count)| *count as u64).sum::<u64>());

        // A run that has just begun has read nothing of it.
        let weights = KeptWeights::open(&path, name, progress).expect("the list is kept");
        flip(&path, CHUNK_BYTES + 100);
        let error = read(&weights, 2 * CHUNK_BYTES - 9, 12).expect_err("its chunk is damaged");
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert!(error.to_string().contains("MiB 1"), "{error}");
        assert!(read(&weights, 2 * CHUNK_BYTES, CHUNK_BYTES + 7).is_ok(), "others are sound");
        let mended = folder.path().join("one.part");
        fs::write(&mended, &sound).expect("writable");
        fs::rename(&mended, &path).expect("as a fetch publishes it");
        assert!(read(&weights, CHUNK_BYTES, CHUNK_BYTES).is_ok(), "the copy is another file now");
    }

    #[test]
    fn few_chunks_stay_in_memory_and_nothing_lies_behind_the_end() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("one.data");
        let sound = vec![7; (CHUNKS_MAX + 4) * CHUNK_BYTES];
        fs::write(&path, &sound).expect("writable");
        let name = ChunkHashes::of(&sound, ChunkSize::BULK).name();
        assert!(!list_path(&path).exists(), "the hashes are of the file itself");
        let weights = KeptWeights::open(&path, name, WorkCounter::default()).expect("sound");
        assert!(read(&weights, 0, sound.len()).is_ok_and(|found| found == sound));
        assert_eq!(weights.recent().len(), CHUNKS_MAX);
        assert!(read(&weights, sound.len() - 1, 2).is_err() && weights.len() == name.length);
        let other = ChunkHashes::of(&sound[1..], ChunkSize::BULK).name();
        assert!(KeptWeights::open(&path, other, WorkCounter::default()).is_err());
    }
}
