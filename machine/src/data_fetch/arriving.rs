//! Data whose chunks are fetched in the order in which they are needed, into a file that is read
//! meanwhile.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[cfg(target_os = "linux")]
use rustix::fs::{FallocateFlags, fallocate};
use zbelastic_policy::data_chunks::{ChunkHashes, ChunkSize};
use zbelastic_transport::bulk::CHUNK_BYTES;
use zbelastic_transport::{BulkError, CheckedChunks, CheckedFetch, ChunkSink};
use zbelastic_types::NodeId;
use zbelastic_whole_file as whole_file;

use super::{
    DataFetchError, DataFetchOutcome, DataHolders, ReceivedData, WantedData, beside, check_space,
};
use crate::data_file::{FileSink, copy_sound, is_sound, keep_hashes, kept_hashes};

/// The ending of a file of which some chunks are here. A process that is started again goes on with it.
pub(crate) const ARRIVING: &str = "arriving.part";

/// Data that was opened to be read chunk by chunk.
#[derive(Debug)]
pub enum OpenedData {
    /// All of it is in its file.
    Whole,
    /// Chunks of it are still to be fetched.
    Arriving(ArrivingData),
}

/// Data of which some chunks are here: a file of its length, with holes.
#[derive(Debug)]
pub struct ArrivingData {
    file: Arc<File>,
    part: PathBuf,
    path: PathBuf,
    hashes: Arc<ChunkHashes>,
    /// Chunks that were here when it was opened.
    found: Vec<u64>,
}

/// Writes chunks to a file, and reports each that was written.
struct ArrivingSink<F> {
    file: Arc<File>,
    on_chunk: F,
}

impl<F: FnMut(u64) + Send + 'static> ChunkSink for ArrivingSink<F> {
    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        std::os::unix::fs::FileExt::write_all_at(&*self.file, bytes, offset)?;
        (self.on_chunk)(offset / CHUNK_BYTES as u64);
        Ok(())
    }
}

/// Drops chunks: to look which of a file are sound.
struct NoSink;

impl ChunkSink for NoSink {
    fn write(&mut self, _: u64, _: &[u8]) -> io::Result<()> {
        Ok(())
    }
}

impl ArrivingData {
    /// The file, which has its length from the beginning, and its path until it is whole.
    #[must_use]
    pub fn file(&self) -> (Arc<File>, &Path) {
        (self.file.clone(), &self.part)
    }

    /// Chunks that were here, sound, when it was opened.
    #[must_use]
    pub fn found(&self) -> &[u64] {
        &self.found
    }

    /// Frees the space of chunks that nobody reads any more: the file has holes there until they are
    /// fetched again.
    ///
    /// # Errors
    /// If the file system cannot do that, or the medium fails.
    pub async fn free(&self, chunks: Vec<u64>) -> Result<(), DataFetchError> {
        let file = self.file.clone();
        let freed =
            beside(move || chunks.into_iter().try_for_each(|chunk| make_hole(&file, chunk)));
        match freed.await {
            Err(DataFetchError::Disk(error)) if error.kind() == io::ErrorKind::Unsupported => {
                Err(DataFetchError::NoHoles { path: self.part.clone() })
            }
            freed => freed,
        }
    }

    /// All chunks are here: the file gets the name of the data.
    ///
    /// # Errors
    /// If the medium fails.
    pub async fn publish(self) -> Result<(), DataFetchError> {
        beside(move || {
            let Self { file, part, path, hashes, .. } = self;
            match whole_file::publish(&file, &part, &path) {
                // The same data of another store has just got its name.
                Err(error) if error.kind() == io::ErrorKind::NotFound && path.exists() => {}
                published => published?,
            }
            keep_hashes(&path, &hashes);
            Ok(())
        })
        .await
    }

    fn open(path: &Path, hashes: Arc<ChunkHashes>, bytes_max: u64) -> Result<Self, DataFetchError> {
        let length = hashes.name().length;
        let part = path.with_extension(ARRIVING);
        let is_left =
            fs::symlink_metadata(&part).is_ok_and(|found| found.is_file() && found.len() == length);
        let (file, missing) = if is_left {
            let file = File::options().read(true).write(true).open(&part)?;
            (file, copy_sound(&part, &hashes, &mut NoSink)?)
        } else {
            check_space(&part, length.min(bytes_max))?;
            let file = whole_file::create(&part)?;
            file.set_len(length)?;
            let missing = copy_sound(path, &hashes, &mut FileSink(file.try_clone()?))?;
            (file, missing)
        };
        let is_here = |chunk: &u64| missing.binary_search(chunk).is_err();
        let found = (0..ChunkSize::BULK.count(length)).filter(is_here).collect();
        Ok(Self { file: Arc::new(file), part, path: path.to_owned(), hashes, found })
    }
}

/// Frees the bytes of a chunk in a file, whose length stays. Its pages are read as zeros then, wherever
/// they are mapped.
#[cfg(target_os = "linux")]
fn make_hole(file: &File, chunk: u64) -> io::Result<()> {
    let bytes = CHUNK_BYTES as u64;
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    Ok(fallocate(file, flags, chunk * bytes, bytes)?)
}

#[cfg(not(target_os = "linux"))]
fn make_hole(_: &File, _: u64) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

impl<H: DataHolders> WantedData<'_, H> {
    /// Opens it to be fetched chunk by chunk, of which `bytes_max` are here at once at most. Where no
    /// node has the hashes of its chunks, it is fetched whole. Yields the nodes whose copies were found damaged, too.
    ///
    /// # Errors
    /// If no node has it, or the disk has no space for it.
    pub async fn open(self, bytes_max: u64) -> Result<(OpenedData, Vec<NodeId>), DataFetchError> {
        let (path, name, progress) = (self.path.clone(), self.name, self.progress.clone());
        let known = beside(move || {
            let is_whole = is_sound(&path, name, &progress);
            Ok((is_whole, kept_hashes(&path, name).map(Arc::new)))
        });
        let (is_whole, hashes) = known.await?;
        if is_whole {
            return Ok((OpenedData::Whole, Vec::new()));
        }
        let mut received = ReceivedData::<FileSink>::new(hashes);
        let mut damaged = Vec::new();
        for node in &self.holders {
            if received.hashes.is_some() {
                break;
            }
            match self.request_hashes(*node, &mut received).await? {
                DataFetchOutcome::Damaged(nodes) => damaged.extend(nodes),
                DataFetchOutcome::Sound { .. } | DataFetchOutcome::Missing => {}
            }
        }
        let Some(hashes) = received.hashes else {
            return Ok((OpenedData::Whole, self.keep().await?));
        };
        let path = self.path;
        let open = move || ArrivingData::open(&path, hashes, bytes_max);
        let opened = tokio::task::spawn_blocking(open);
        let opened = opened.await.map_err(|_| DataFetchError::Interrupted)??;
        Ok((OpenedData::Arriving(opened), damaged))
    }

    /// Fetches chunks of it, each from a node that has it sound; `on_chunk` gets the index of each
    /// that is in the file. The indices grow. Yields the nodes whose copies were found damaged.
    ///
    /// # Errors
    /// If a chunk is sound on no node, or the disk does not take it. What came before stays.
    pub async fn fetch_chunks(
        &self,
        arriving: &ArrivingData,
        chunks: Vec<u64>,
        on_chunk: impl FnMut(u64) + Send + 'static,
    ) -> Result<Vec<NodeId>, DataFetchError> {
        let sink = ArrivingSink { file: arriving.file.clone(), on_chunk };
        let checked = CheckedChunks { wanted: chunks, check: arriving.hashes.clone() };
        let request = self.request(self.holders.clone());
        let CheckedFetch { outcome, unsound } =
            self.connections.fetch_checked(request, checked, sink).await;
        match outcome {
            Ok(_) => Ok(unsound),
            Err(BulkError::Sink(error)) => Err(error.into()),
            Err(error) => {
                let mut received = ReceivedData::<FileSink>::new(None);
                received.note_failure(error);
                Err(received.error(self.name, unsound))
            }
        }
    }
}
