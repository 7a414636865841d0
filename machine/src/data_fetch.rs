//! Texts, weights and shards from the nodes that have them, chunk by chunk: what is sound here stays,
//! and each other chunk comes from a node that has it sound, as [`zbelastic_policy::data`] decides.

mod arriving;

pub(crate) use arriving::ARRIVING;
pub use arriving::{ArrivingData, OpenedData};

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use zbelastic_policy::WorkCounter;
use zbelastic_policy::data::{DataFetch, DataFetchAction, DataFetchOutcome, DataName};
use zbelastic_policy::data_chunks::{ChunkHashes, ChunkSize};
use zbelastic_policy::disk_space::DiskSpaceShortage;
use zbelastic_transport::{
    BulkError, BulkFetch, CheckedChunks, CheckedFetch, ChunkSink, MemorySink, Transport,
};
use zbelastic_types::{Bytes, Digest, NodeId};
use zbelastic_whole_file as whole_file;

use crate::data_file::{
    FileSink, copy_sound, hash_chunks, is_sound, keep_hashes, kept_hashes, read_if_sound,
};
use crate::disk_usage;

/// Bytes of a text or of weights at most; as for a run in one process.
pub const DATA_BYTES_MAX: u64 = 64 << 30;
/// Numbers files that are being fetched: two fetches of the same data write to two files.
static FETCHES: AtomicU64 = AtomicU64::new(0);

/// Why data is not here.
#[derive(Debug, thiserror::Error)]
pub enum DataFetchError {
    /// It is larger than allowed.
    #[error("{found} bytes, at most {DATA_BYTES_MAX}")]
    Size {
        /// The named length, in bytes.
        found: u64,
    },
    /// No holder serves it.
    #[error("no node has {hash}: {error}")]
    Fetch {
        /// The hash that was requested.
        hash: Digest,
        /// Why the fetch from its holders failed.
        error: BulkError,
    },
    /// Each node that was asked answered that it does not have it.
    #[error("no node has {hash}; upload it again")]
    Nowhere {
        /// The hash that was requested.
        hash: Digest,
    },
    /// A chunk of it is sound on no node.
    #[error("part of {} is sound on no node, and damaged on {nodes:?}; upload it again", .name.hash)]
    AllDamaged {
        /// The hash that was requested, and its length.
        name: DataName,
        /// The nodes with damaged copies.
        nodes: Vec<NodeId>,
    },
    /// A thread that hashed or wrote it panicked.
    #[error("the thread that checked it ended")]
    Interrupted,
    /// It cannot be kept on the disk.
    #[error("it cannot be kept: {0}")]
    Disk(#[from] io::Error),
    /// The disk has no space for it.
    #[error("it cannot be kept: {0}")]
    Room(#[from] DiskSpaceShortage),
    /// Parts of it cannot be taken from the disk.
    #[error("{}: its file system cannot free parts of a file: all that is fetched stays", path.display())]
    NoHoles {
        /// Its file.
        path: PathBuf,
    },
}

impl DataFetchError {
    /// The hash of data that no node has whole, as all that were asked answered.
    #[must_use]
    pub const fn missing(&self) -> Option<Digest> {
        match self {
            Self::Nowhere { hash } => Some(*hash),
            Self::AllDamaged { name, .. } => Some(name.hash),
            Self::Size { .. }
            | Self::Fetch { .. }
            | Self::Interrupted
            | Self::Disk(_)
            | Self::Room(_)
            | Self::NoHoles { .. } => None,
        }
    }
}

/// What was typed about data on a worker's machine.
#[derive(Clone, Debug, Default)]
pub struct DataSettings {
    /// Paths of texts and stores (`--data-path`): what is not there is fetched from the nodes that have it.
    pub paths: Vec<String>,
    /// Bytes of a run's shards that are kept at most (`--data-cache`); all of them without.
    pub cache: Option<Bytes>,
}

/// The connections over which other nodes' data is fetched.
pub trait DataHolders: Sync {
    /// Fetches a body.
    fn fetch<S: ChunkSink>(
        &self,
        request: BulkFetch,
        sink: S,
    ) -> impl Future<Output = Result<S, BulkError>> + Send;

    /// Fetches chunks of a body, each compared with its hash.
    fn fetch_checked<S: ChunkSink>(
        &self,
        request: BulkFetch,
        chunks: CheckedChunks,
        sink: S,
    ) -> impl Future<Output = CheckedFetch<S>> + Send;
}

impl DataHolders for Transport {
    fn fetch<S: ChunkSink>(
        &self,
        request: BulkFetch,
        sink: S,
    ) -> impl Future<Output = Result<S, BulkError>> + Send {
        self.fetch_bulk_into(request, sink)
    }

    fn fetch_checked<S: ChunkSink>(
        &self,
        request: BulkFetch,
        chunks: CheckedChunks,
        sink: S,
    ) -> impl Future<Output = CheckedFetch<S>> + Send {
        self.fetch_bulk_checked(request, chunks, sink)
    }
}

/// Where data is put that arrives.
pub trait DataSink: ChunkSink {
    /// The hashes of the chunks that are there.
    ///
    /// # Errors
    /// If they cannot be read.
    fn hashes(&self, progress: &WorkCounter) -> io::Result<ChunkHashes>;
}

impl DataSink for MemorySink {
    fn hashes(&self, _: &WorkCounter) -> io::Result<ChunkHashes> {
        Ok(ChunkHashes::of(self.bytes(), ChunkSize::BULK))
    }
}

impl DataSink for FileSink {
    fn hashes(&self, progress: &WorkCounter) -> io::Result<ChunkHashes> {
        hash_chunks(&self.0, progress)
    }
}

/// The keys of the bulk lane under which nodes serve data.
#[derive(Clone, Debug)]
pub struct DataKeys {
    /// Of its bytes.
    pub bytes: Vec<u8>,
    /// Of the list of the hashes of its chunks.
    pub hashes: Vec<u8>,
}

/// Data that is to be here.
pub struct WantedData<'a, H> {
    /// Its hash and length.
    pub name: DataName,
    /// Its keys.
    pub keys: DataKeys,
    /// Its file, which may be there, damaged.
    pub path: PathBuf,
    /// The connections to other nodes.
    pub connections: &'a H,
    /// The nodes that may have it.
    pub holders: Vec<NodeId>,
    /// Counts bytes that arrived or were hashed.
    pub progress: WorkCounter,
}

/// Data that was fetched.
struct FetchedInto<S> {
    /// All of it.
    sink: S,
    /// The hashes of its chunks.
    hashes: Arc<ChunkHashes>,
    /// Nodes whose copies were found damaged.
    damaged: Vec<NodeId>,
}

/// What a fetch has received.
struct ReceivedData<S> {
    hashes: Option<Arc<ChunkHashes>>,
    sink: Option<S>,
    failure: BulkError,
    /// Whether each failed request was answered: its node does not have the data.
    is_nowhere: bool,
}

impl<S> ReceivedData<S> {
    const fn new(hashes: Option<Arc<ChunkHashes>>) -> Self {
        Self { hashes, sink: None, failure: BulkError::NoHolders, is_nowhere: true }
    }

    /// Why the data `name` cannot be had, which is damaged on these nodes.
    fn error(self, name: DataName, damaged: Vec<NodeId>) -> DataFetchError {
        if !damaged.is_empty() {
            return DataFetchError::AllDamaged { name, nodes: damaged };
        }
        let hash = name.hash;
        // Without a holder nobody was asked.
        if self.is_nowhere && matches!(self.failure, BulkError::NoHolderLeft { .. }) {
            return DataFetchError::Nowhere { hash };
        }
        DataFetchError::Fetch { hash, error: self.failure }
    }

    fn note_failure(&mut self, error: BulkError) {
        self.is_nowhere &= error.is_unknown_everywhere();
        self.failure = error;
    }
}

impl<H: DataHolders> WantedData<'_, H> {
    /// Keeps it on this node's disk: there is nothing to do if it is there and sound. Yields the
    /// nodes whose copies were found damaged.
    ///
    /// # Errors
    /// If a chunk of it is sound on no node, or the disk has no space for it.
    pub async fn keep(self) -> Result<Vec<NodeId>, DataFetchError> {
        let (path, name, progress) = (self.path.clone(), self.name, self.progress.clone());
        if beside(move || Ok(is_sound(&path, name, &progress))).await? {
            return Ok(Vec::new());
        }
        let number = FETCHES.fetch_add(1, Ordering::Relaxed);
        let partial = PartialFile(self.path.with_extension(format!("{number}.part")));
        let fetched = self.fetch(|| partial.create(name.length).map(FileSink)).await?;
        let FetchedInto { sink: FileSink(file), hashes, damaged } = fetched;
        let path = self.path;
        beside(move || {
            whole_file::publish(&file, &partial.0, &path)?;
            keep_hashes(&path, &hashes);
            Ok(damaged)
        })
        .await
    }

    /// Reads it into memory, from this node's disk or from others, and keeps it. A node with no
    /// space for it requests it again after the next start. Yields the nodes whose copies were found
    /// damaged, too.
    ///
    /// # Errors
    /// If a chunk of it is sound on no node.
    pub async fn read(self) -> Result<(Vec<u8>, Vec<NodeId>), DataFetchError> {
        let (path, name) = (self.path.clone(), self.name);
        if let Some(bytes) = beside(move || Ok(read_if_sound(&path, name))).await? {
            return Ok((bytes, Vec::new()));
        }
        let fetched = self.fetch(|| Ok(MemorySink::default())).await?;
        let FetchedInto { sink, hashes, damaged } = fetched;
        let path = self.path;
        beside(move || {
            let bytes = sink.into_bytes();
            let space = disk_usage(path.parent().unwrap_or(Path::new(".")));
            let has_room = space.is_ok_and(|space| space.check(Bytes(name.length)).is_ok());
            if has_room && whole_file::write(&path, &bytes).is_ok() {
                keep_hashes(&path, &hashes);
            }
            Ok((bytes, damaged))
        })
        .await
    }

    /// Fetches it into a sink.
    async fn fetch<S: DataSink>(
        &self,
        make_sink: impl Fn() -> Result<S, DataFetchError>,
    ) -> Result<FetchedInto<S>, DataFetchError> {
        let name = self.name;
        if name.length > DATA_BYTES_MAX {
            return Err(DataFetchError::Size { found: name.length });
        }
        let path = self.path.to_owned();
        let hashes = beside(move || Ok(kept_hashes(&path, name))).await?.map(Arc::new);
        let (mut decision, mut next) = DataFetch::new(self.holders.clone(), hashes.is_some());
        let mut received = ReceivedData::new(hashes);
        loop {
            let outcome = match next {
                DataFetchAction::RequestHashes(node) => {
                    self.request_hashes(node, &mut received).await
                }
                DataFetchAction::RequestChunks(nodes) => {
                    self.request_chunks(nodes, make_sink()?, &mut received).await
                }
                DataFetchAction::RequestWhole(node) => {
                    self.request_whole(node, make_sink()?, &mut received).await
                }
                DataFetchAction::Done { damaged } => return received.finish(damaged),
                DataFetchAction::Failed { damaged } => {
                    return Err(received.error(name, damaged));
                }
            };
            next = decision.note(outcome?);
        }
    }

    fn request(&self, holders: Vec<NodeId>) -> BulkFetch {
        let (key, length) = (self.keys.bytes.clone(), self.name.length);
        BulkFetch { holders, key, length, progress: Some(self.progress.shared()) }
    }

    async fn request_hashes<S>(
        &self,
        node: NodeId,
        received: &mut ReceivedData<S>,
    ) -> Result<DataFetchOutcome, DataFetchError> {
        let length = ChunkSize::BULK.list_bytes(self.name.length);
        let key = self.keys.hashes.clone();
        let request = BulkFetch { holders: vec![node], key, length, progress: None };
        match self.connections.fetch(request, MemorySink::default()).await {
            Err(error) => {
                received.note_failure(error);
                Ok(DataFetchOutcome::Missing)
            }
            Ok(list) => {
                let list = list.into_bytes();
                match ChunkHashes::decode(self.name, &list, ChunkSize::BULK) {
                    Err(_) => Ok(DataFetchOutcome::Damaged(vec![node])),
                    Ok(hashes) => {
                        received.hashes = Some(Arc::new(hashes));
                        Ok(DataFetchOutcome::Sound { damaged: Vec::new() })
                    }
                }
            }
        }
    }

    /// Chunks that are sound here are copied, the others requested.
    async fn request_chunks<S: DataSink>(
        &self,
        nodes: Vec<NodeId>,
        mut sink: S,
        received: &mut ReceivedData<S>,
    ) -> Result<DataFetchOutcome, DataFetchError> {
        let hashes = received.hashes.clone().expect("chunks are requested behind their hashes");
        let own = self.path.to_owned();
        let check = hashes.clone();
        let (wanted, sink) = beside(move || {
            let wanted = copy_sound(&own, &hashes, &mut sink)?;
            Ok((wanted, sink))
        })
        .await?;
        let chunks = CheckedChunks { wanted, check };
        let request = self.request(nodes);
        let CheckedFetch { outcome, unsound: damaged } =
            self.connections.fetch_checked(request, chunks, sink).await;
        match outcome {
            Ok(sink) => {
                received.sink = Some(sink);
                Ok(DataFetchOutcome::Sound { damaged })
            }
            Err(BulkError::Sink(error)) => Err(error.into()),
            Err(error) => {
                received.note_failure(error);
                Ok(DataFetchOutcome::Damaged(damaged))
            }
        }
    }

    async fn request_whole<S: DataSink>(
        &self,
        node: NodeId,
        sink: S,
        received: &mut ReceivedData<S>,
    ) -> Result<DataFetchOutcome, DataFetchError> {
        let sink = match self.connections.fetch(self.request(vec![node]), sink).await {
            Ok(sink) => sink,
            Err(BulkError::Sink(error)) => return Err(error.into()),
            Err(error) => {
                received.note_failure(error);
                return Ok(DataFetchOutcome::Missing);
            }
        };
        let progress = self.progress.clone();
        let (hashes, sink) = beside(move || Ok((sink.hashes(&progress)?, sink))).await?;
        if hashes.name() != self.name {
            return Ok(DataFetchOutcome::Damaged(vec![node]));
        }
        received.hashes = Some(Arc::new(hashes));
        received.sink = Some(sink);
        Ok(DataFetchOutcome::Sound { damaged: Vec::new() })
    }
}

impl<S> ReceivedData<S> {
    fn finish(self, damaged: Vec<NodeId>) -> Result<FetchedInto<S>, DataFetchError> {
        let Self { hashes: Some(hashes), sink: Some(sink), .. } = self else {
            return Err(DataFetchError::Interrupted);
        };
        Ok(FetchedInto { sink, hashes, damaged })
    }
}

/// Runs `work` on a thread that may block.
async fn beside<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, DataFetchError> {
    let done = tokio::task::spawn_blocking(work).await.map_err(|_| DataFetchError::Interrupted)?;
    Ok(done?)
}

/// A file that is not whole yet. It is removed unless it gets its name.
struct PartialFile(PathBuf);

impl PartialFile {
    fn create(&self, length: u64) -> Result<File, DataFetchError> {
        check_space(&self.0, length)?;
        Ok(whole_file::create(&self.0)?)
    }
}

/// Whether the disk of a file has room for so many bytes. Where free space is not known it is found
/// out by writing.
fn check_space(path: &Path, length: u64) -> Result<(), DataFetchError> {
    let folder = path.parent().unwrap_or(Path::new("."));
    Ok(disk_usage(folder).map_or(Ok(()), |space| space.check(Bytes(length)))?)
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        // It has its name, or is removed with files that no run refers to.
        let _ = fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests;
