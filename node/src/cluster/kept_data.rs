//! Shards of token stores, and what a controller keeps for others: fetched chunk by chunk into a file
//! beside its name, hashed and renamed, and never whole in memory.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use zbelastic_data::store::{TokenStore, find_store, hash_file};
use zbelastic_machine::disk_usage;
use zbelastic_transport::{BulkFetch, ChunkSink, Transport};
use zbelastic_types::{Bytes, Digest, NodeId};
use zbelastic_whole_file as whole_file;
use zbelastic_wire::document::DataName;
use zbelastic_wire::job_store::JobStore;
use zbelastic_wire::{self as wire, BulkKey};

use super::activity::WorkCounter;
use super::checkpoint_thread::CheckpointThread;
use super::data::{DATA_BYTES_MAX, DamagedCopy, FetchError, fetch_from_some};

/// Numbers files that are being fetched: two fetches of the same data write to two files.
static FETCHES: AtomicU64 = AtomicU64::new(0);

/// Stores with their shards on this node's disk.
pub struct FetchedStores {
    /// The stores, in the order of the job.
    pub stores: Vec<TokenStore>,
    /// Copies that were found damaged on the way.
    pub damaged: Vec<DamagedCopy>,
}

/// Where data is fetched from and to, and how its progress is counted.
pub struct DataRoute {
    /// The connections to other nodes.
    pub transport: Transport,
    /// The folder that it is kept in.
    pub checkpoint_thread: CheckpointThread,
    /// The nodes that may have it.
    pub holders: Vec<NodeId>,
    /// Counts bytes that arrived or were hashed.
    pub progress: WorkCounter,
}

/// Keeps data on this node's disk: there is nothing to do if it is there and sound. Yields the
/// copies that were found damaged.
///
/// # Errors
/// If no node has it, or the disk has no space for it.
pub async fn keep_data(name: DataName, route: &DataRoute) -> Result<Vec<DamagedCopy>, FetchError> {
    if name.length > DATA_BYTES_MAX {
        return Err(FetchError::Size { found: name.length });
    }
    let path = route.checkpoint_thread.data_path(name.hash);
    let progress = route.progress.clone();
    let own = path.clone();
    let is_here = tokio::task::spawn_blocking(move || is_sound(&own, name, &progress)).await;
    if is_here.map_err(|_| FetchError::Interrupted)? {
        return Ok(Vec::new());
    }
    let fetch = |holders| fetch_file(name, &path, route, holders);
    let ((), damaged) = fetch_from_some(name, route.holders.clone(), fetch).await?;
    Ok(damaged)
}

async fn fetch_file(
    name: DataName,
    path: &Path,
    route: &DataRoute,
    holders: Vec<NodeId>,
) -> Result<(), FetchError> {
    let DataName { hash, length } = name;
    let number = FETCHES.fetch_add(1, Ordering::Relaxed);
    let partial = PartialFile(path.with_extension(format!("{number}.part")));
    let file = partial.create(length)?;
    let key = wire::encode(&BulkKey::Data(hash));
    let progress = Some(route.progress.shared());
    let fetch = BulkFetch { holders, key, length, progress };
    let fetched = route.transport.fetch_bulk_into(fetch, FileSink(file)).await;
    let FileSink(file) = fetched.map_err(|error| FetchError::Fetch { hash, error })?;
    let progress = route.progress.clone();
    let path = path.to_owned();
    let finished = tokio::task::spawn_blocking(move || {
        let found = hash_of(&partial.0, &progress)?;
        if found != hash {
            return Err(FetchError::Other { expected: hash, found });
        }
        Ok(whole_file::publish(&file, &partial.0, &path)?)
    });
    finished.await.map_err(|_| FetchError::Interrupted)?
}

/// A file that is not whole yet. It is removed unless it gets its name.
struct PartialFile(PathBuf);

impl PartialFile {
    fn create(&self, length: u64) -> Result<File, FetchError> {
        let folder = self.0.parent().unwrap_or(Path::new("."));
        // Where free space is not known it is found out by writing.
        disk_usage(folder).map_or(Ok(()), |space| space.check(Bytes(length)))?;
        Ok(whole_file::create(&self.0)?)
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        // It has its name, or is removed with files that no run refers to.
        let _ = fs::remove_file(&self.0);
    }
}

struct FileSink(File);

impl ChunkSink for FileSink {
    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }
}

fn hash_of(path: &Path, progress: &WorkCounter) -> io::Result<Digest> {
    hash_file(path, &|bytes| progress.add(bytes)).map(|hash| Digest(*hash.as_bytes()))
}

fn is_sound(path: &Path, name: DataName, progress: &WorkCounter) -> bool {
    let length = fs::metadata(path).map(|found| found.len());
    length.is_ok_and(|length| length == name.length)
        && hash_of(path, progress).is_ok_and(|found| found == name.hash)
}

/// Gets the shards of all stores onto this node's disk, or finds them in a store at one of the
/// configured paths, and maps them.
///
/// # Errors
/// If no node has one, or it cannot be used.
pub async fn fetch_stores(
    stores: &[JobStore],
    route: &DataRoute,
    local: &[String],
) -> Result<FetchedStores, FetchError> {
    let mut fetched = FetchedStores { stores: Vec::new(), damaged: Vec::new() };
    for store in stores {
        let wanted = store.manifest.clone();
        let paths = local.to_vec();
        let progress = route.progress.clone();
        let found = tokio::task::spawn_blocking(move || {
            find_store(&wanted, &paths, &|bytes| progress.add(bytes))
        });
        let found = found.await;
        if let Some(found) = found.map_err(|_| FetchError::Interrupted)? {
            fetched.stores.push(found);
            continue;
        }
        let mut paths = Vec::new();
        for shard in store.shards() {
            fetched.damaged.extend(keep_data(shard, route).await?);
            paths.push(route.checkpoint_thread.data_path(shard.hash));
        }
        let manifest = store.manifest.clone();
        let opened =
            tokio::task::spawn_blocking(move || TokenStore::of_shards(manifest, paths)).await;
        fetched.stores.push(opened.map_err(|_| FetchError::Interrupted)??);
    }
    Ok(fetched)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_sound_with_its_bytes_alone_and_reading_it_is_progress() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("one.data");
        let bytes = vec![7; (1 << 20) + 5];
        let name = DataName::of(&bytes);
        let progress = WorkCounter::default();
        assert!(!is_sound(&path, name, &progress), "there is none");
        fs::write(&path, &bytes).expect("writable");
        assert!(is_sound(&path, name, &progress));
        assert_eq!(progress.total(), name.length);
        fs::write(&path, &bytes[1..]).expect("writable");
        assert!(!is_sound(&path, name, &progress), "it was cut short");
        fs::write(&path, vec![8; bytes.len()]).expect("writable");
        assert!(!is_sound(&path, name, &progress), "it was altered");
    }

    #[test]
    fn what_is_not_whole_leaves_nothing_and_what_has_no_space_is_not_begun() {
        let folder = tempfile::tempdir().expect("a folder");
        let partial = PartialFile(folder.path().join("one.0.part"));
        let error = partial.create(1 << 60).expect_err("no disk is so large");
        assert!(matches!(error, FetchError::Room(_)), "{error}");
        let mut sink = FileSink(partial.create(8).expect("space"));
        sink.write(4, b"half").expect("writable");
        assert_eq!(fs::read(&partial.0).expect("there"), b"\0\0\0\0half");
        drop(partial);
        assert_eq!(fs::read_dir(folder.path()).expect("readable").count(), 0);
    }
}
