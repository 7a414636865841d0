//! Texts, weights and shards as files, `HASH.data`, with the hashes of their chunks beside them,
//! `HASH.chunks`: read for others, compared, and what is sound of them copied.

use std::fs::{self, File};
use std::io::{self, Read, Seek};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use zbelastic_policy::WorkCounter;
use zbelastic_policy::data::DataName;
use zbelastic_policy::data_chunks::{ChunkHasher, ChunkHashes, ChunkSize};
use zbelastic_transport::bulk::CHUNK_BYTES;
use zbelastic_transport::{BulkBody, ChunkCheck, ChunkSink};
use zbelastic_types::Digest;
use zbelastic_whole_file as whole_file;

/// A file as others fetch it.
pub struct FileBody {
    file: File,
    length: u64,
}

impl FileBody {
    /// The body of a file.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let length = file.metadata()?.len();
        Ok(Self { file, length })
    }
}

impl BulkBody for FileBody {
    fn len(&self) -> u64 {
        self.length
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(into, offset)
    }
}

/// A file that data is fetched into.
pub struct FileSink(pub File);

impl ChunkSink for FileSink {
    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }
}

/// The hashes of the chunks of a file. Bytes that were hashed are counted.
///
/// # Errors
/// If it cannot be read.
pub fn hash_chunks(mut file: &File, progress: &WorkCounter) -> io::Result<ChunkHashes> {
    let mut hasher = ChunkHasher::new(ChunkSize::BULK);
    file.rewind()?;
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hasher.finish()),
            count => {
                hasher.update(&buffer[..count]);
                progress.add(count as u64);
            }
        }
    }
}

/// Whether a file as long as that data is there. A run is about to begin with it, or has: it counts as
/// new for the collection that removes files that no run refers to.
#[must_use]
pub fn is_there(path: &Path, name: DataName) -> bool {
    let is_there = fs::metadata(path).is_ok_and(|found| found.len() == name.length);
    if is_there {
        // If that fails, the file is as old as it was.
        let file = File::options().append(true).open(path);
        let _ = file.and_then(|file| file.set_modified(SystemTime::now()));
    }
    is_there
}

/// Whether a file is that data. The hashes of its chunks are kept then.
#[must_use]
pub fn is_sound(path: &Path, name: DataName, progress: &WorkCounter) -> bool {
    let Ok(file) = File::open(path) else { return false };
    let is_as_long = file.metadata().is_ok_and(|found| found.len() == name.length);
    let hashes = is_as_long.then(|| hash_chunks(&file, progress).ok()).flatten();
    let hashes = hashes.filter(|hashes| hashes.name() == name);
    if let Some(hashes) = &hashes {
        keep_hashes(path, hashes);
    }
    hashes.is_some()
}

/// The bytes of a file, if they are that data. The hashes of its chunks are kept then.
#[must_use]
pub fn read_if_sound(path: &Path, name: DataName) -> Option<Vec<u8>> {
    if fs::metadata(path).ok()?.len() != name.length {
        return None;
    }
    let bytes = fs::read(path).ok()?;
    let hashes = ChunkHashes::of(&bytes, ChunkSize::BULK);
    (hashes.name() == name).then(|| {
        keep_hashes(path, &hashes);
        bytes
    })
}

/// Copies the chunks of a file that are sound, and yields the others. A sector that cannot be read
/// is a chunk that is not sound.
///
/// # Errors
/// If the sink fails.
pub fn copy_sound(
    path: &Path,
    hashes: &ChunkHashes,
    sink: &mut impl ChunkSink,
) -> io::Result<Vec<u64>> {
    let length = hashes.name().length;
    let file = File::open(path).ok();
    let mut bytes = Vec::new();
    let mut others = Vec::new();
    for chunk in 0..ChunkSize::BULK.count(length) {
        let offset = chunk * CHUNK_BYTES as u64;
        bytes.resize((length - offset).min(CHUNK_BYTES as u64) as usize, 0);
        let read = file.as_ref().map(|file| file.read_exact_at(&mut bytes, offset));
        if read.is_some_and(|read| read.is_ok()) && hashes.is_sound(chunk, &bytes) {
            sink.write(offset, &bytes)?;
        } else {
            others.push(chunk);
        }
    }
    Ok(others)
}

/// The file with the hashes of the chunks of data.
#[must_use]
pub fn list_path(data: &Path) -> PathBuf {
    data.with_extension("chunks")
}

/// The hashes of the chunks of data, if they are kept beside its file or follow from its name.
#[must_use]
pub fn kept_hashes(data: &Path, name: DataName) -> Option<ChunkHashes> {
    ChunkHashes::of_name(name, ChunkSize::BULK).or_else(|| {
        let bytes_max = ChunkSize::BULK.list_bytes(name.length);
        let list = whole_file::read(&list_path(data), bytes_max).ok()??;
        ChunkHashes::decode(name, &list, ChunkSize::BULK).ok()
    })
}

/// Keeps the hashes of the chunks of data beside its file. Where that fails, nodes that have them are
/// requested for them.
pub fn keep_hashes(data: &Path, hashes: &ChunkHashes) {
    let path = list_path(data);
    let list = hashes.encode();
    let is_kept = || fs::read(&path).is_ok_and(|found| found == list);
    if ChunkHashes::of_name(hashes.name(), ChunkSize::BULK).is_none() && !is_kept() {
        let _ = whole_file::write(&path, &list);
    }
}

/// The list of the hashes of data for other nodes, which compare it: as it is kept, or of the file if
/// this is sound.
#[must_use]
pub fn served_hashes(data: &Path, hash: Digest) -> Option<Vec<u8>> {
    if let Ok(list) = fs::read(list_path(data)) {
        return Some(list);
    }
    let hashes = hash_chunks(&File::open(data).ok()?, &WorkCounter::default()).ok()?;
    (hashes.name().hash == hash).then(|| {
        keep_hashes(data, &hashes);
        hashes.encode()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_sound_with_its_bytes_alone_and_reading_it_is_progress() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("one.data");
        let bytes = vec![7; CHUNK_BYTES + 5];
        let name = DataName::of(&bytes);
        let progress = WorkCounter::default();
        assert!(!is_sound(&path, name, &progress), "there is none");
        fs::write(&path, &bytes).expect("writable");
        assert_eq!(kept_hashes(&path, name), None);
        assert!(is_sound(&path, name, &progress));
        assert_eq!(progress.total(), name.length);
        assert!(kept_hashes(&path, name).is_some(), "they are kept");
        assert_eq!(read_if_sound(&path, name).as_ref(), Some(&bytes));
        for other in [&bytes[1..], &vec![8; bytes.len()]] {
            fs::write(&path, other).expect("writable");
            assert!(!is_sound(&path, name, &progress));
            assert_eq!(read_if_sound(&path, name), None);
        }
    }
}
