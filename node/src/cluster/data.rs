//! Text and weights: from this node's disk, from a path on the command line, or from the nodes that
//! have them.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use zbelastic_data::cursor::CursorError;
use zbelastic_data::store::StoreError;
use zbelastic_data::training_data::TrainingData;
use zbelastic_machine::disk_usage;
use zbelastic_policy::data::{DataFetch, DataFetchAction, DataFetchOutcome};
use zbelastic_policy::disk_space::DiskSpaceShortage;
use zbelastic_trainer::data::CorpusError;
use zbelastic_trainer::hf::{ImportError, import_initial};
use zbelastic_trainer::stage::InitialWeights;
use zbelastic_transport::{BulkBody, BulkError, BulkFetch, Transport};
use zbelastic_types::{Bytes, Digest, NodeId};
use zbelastic_whole_file as whole_file;
use zbelastic_wire::document::{DataName, NamedJob};
use zbelastic_wire::{self as wire, BulkKey};

use super::checkpoint_thread::CheckpointThread;

/// Bytes of a text or of weights at most; as for a run in one process.
pub const DATA_BYTES_MAX: u64 = 64 << 30;

/// The text and the weights that a job is built from.
pub struct FetchedJob {
    /// The document of the job, with its name.
    pub document: Arc<NamedJob>,
    /// What is trained on: a text, or stores, which are provided when a stage here reads tokens.
    pub corpus: Arc<TrainingData>,
    /// The weights that training begins with.
    pub weights: InitialWeights,
    /// Copies that were found damaged on the way.
    pub damaged: Vec<DamagedCopy>,
}

/// A node's copy of a text or of weights with bytes that do not have the named hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DamagedCopy {
    /// The node that has the copy.
    pub node: NodeId,
    /// The hash and length that it should have.
    pub name: DataName,
}

/// The warning about a damaged copy.
#[must_use]
pub fn damaged_text(node: NodeId, name: DataName) -> String {
    let hash = zbelastic_api::HexDigest(name.hash).short();
    format!("data {hash} is damaged on node {node}, which is to fetch it again: check its disk")
}

/// Bytes that were requested by their hash.
struct FetchedData {
    /// The bytes, which have that hash.
    bytes: Vec<u8>,
    /// Copies that were found damaged on the way.
    damaged: Vec<DamagedCopy>,
}

/// Why a job cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The text or the weights are larger than allowed.
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
    /// The bytes that arrived have another hash.
    #[error("requested {expected}, received {found}")]
    Other {
        /// The hash that was requested.
        expected: Digest,
        /// The hash of the bytes that arrived.
        found: Digest,
    },
    /// The copies of all its holders are damaged.
    #[error("{hash} is damaged on all nodes that have it: {nodes:?}; upload it again")]
    AllDamaged {
        /// The hash that was requested.
        hash: Digest,
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
    /// The text cannot be trained on.
    #[error("the text: {0}")]
    Corpus(#[from] CorpusError),
    /// The stores cannot be trained on.
    #[error("the token stores: {0}")]
    Mixture(#[from] CursorError),
    /// A store is damaged.
    #[error("the token store: {0}")]
    Store(#[from] StoreError),
    /// The weights are not the model's.
    #[error("the weights: {0}")]
    Weights(#[from] ImportError),
}

/// Gets all that a job is built from: text and weights.
///
/// # Errors
/// If no node has it, or it cannot be used.
pub async fn fetch_job(
    document: Arc<NamedJob>,
    (transport, checkpoint_thread): (&Transport, &CheckpointThread),
    holders: Vec<NodeId>,
    local: Vec<String>,
) -> Result<FetchedJob, FetchError> {
    let (corpus, mut damaged) = if document.job.stores.is_empty() {
        let name = document.job.text;
        let FetchedData { bytes, damaged } = match read_local(name, local).await {
            Some(bytes) => FetchedData { bytes, damaged: Vec::new() },
            None => fetch_data(name, transport, checkpoint_thread, holders.clone()).await?,
        };
        (TrainingData::Text(document.job.corpus(bytes)?), damaged)
    } else {
        (TrainingData::Stores(document.job.mixture()?), Vec::new())
    };
    let corpus = Arc::new(corpus);
    let weights = match document.job.weights {
        None => InitialWeights::Drawn { seed: document.job.config.seed },
        Some(name) => {
            let found = fetch_data(name, transport, checkpoint_thread, holders).await?;
            damaged.extend(found.damaged);
            let config = &document.job.config;
            let layers = import_initial(&config.model, config.seed, &found.bytes)?;
            InitialWeights::Given(Arc::new(layers))
        }
    };
    Ok(FetchedJob { document, corpus, weights, damaged })
}

/// The text at the configured paths, if it is this one.
async fn read_local(name: DataName, paths: Vec<String>) -> Option<Vec<u8>> {
    if paths.is_empty() {
        return None;
    }
    let gathered =
        tokio::task::spawn_blocking(move || zbelastic_config::text::gather(&paths).ok()).await;
    let text = gathered.ok().flatten()?;
    (DataName::of(&text.bytes) == name).then_some(text.bytes)
}

/// Gets bytes by their hash: from this node's disk, or from others. If the bytes that arrived from
/// all of them together have another hash, one copy is damaged: it is fetched from each holder
/// alone then, until one is sound.
///
/// # Errors
/// If no node has them.
async fn fetch_data(
    name: DataName,
    transport: &Transport,
    checkpoint_thread: &CheckpointThread,
    holders: Vec<NodeId>,
) -> Result<FetchedData, FetchError> {
    if name.length > DATA_BYTES_MAX {
        return Err(FetchError::Size { found: name.length });
    }
    let path = checkpoint_thread.data_path(name.hash);
    let own = path.clone();
    let own = tokio::task::spawn_blocking(move || read_if_same(&own, name)).await;
    if let Ok(Some(bytes)) = own {
        return Ok(FetchedData { bytes, damaged: Vec::new() });
    }
    let fetch = |nodes| fetch_from(name, transport, nodes);
    let (bytes, damaged) = fetch_from_some(name, holders, fetch).await?;
    let written = tokio::task::spawn_blocking(move || {
        // A node with no space for it keeps it in memory, and requests it again after the next
        // start.
        let space = disk_usage(path.parent().unwrap_or(Path::new(".")));
        if space.is_ok_and(|space| space.check(Bytes(name.length)).is_ok()) {
            let _ = whole_file::write(&path, &bytes);
        }
        FetchedData { bytes, damaged }
    });
    written.await.map_err(|_| FetchError::Interrupted)
}

async fn fetch_from(
    name: DataName,
    transport: &Transport,
    holders: Vec<NodeId>,
) -> Result<Vec<u8>, FetchError> {
    let DataName { hash, length } = name;
    let key = wire::encode(&BulkKey::Data(hash));
    let fetch = BulkFetch { holders, key, length, progress: None };
    let bytes = transport.fetch_bulk(fetch).await;
    let bytes = bytes.map_err(|error| FetchError::Fetch { hash, error })?;
    let hashed = tokio::task::spawn_blocking(move || (DataName::of(&bytes).hash, bytes)).await;
    let (found, bytes) = hashed.map_err(|_| FetchError::Interrupted)?;
    if found == hash { Ok(bytes) } else { Err(FetchError::Other { expected: hash, found }) }
}

/// Fetches data with `fetch`, from all holders, or if one of them has a damaged copy from each alone
/// until one is sound. Yields the copies that were found damaged.
///
/// # Errors
/// If no node has it.
pub(super) async fn fetch_from_some<T, F: Future<Output = Result<T, FetchError>>>(
    name: DataName,
    holders: Vec<NodeId>,
    fetch: impl Fn(Vec<NodeId>) -> F,
) -> Result<(T, Vec<DamagedCopy>), FetchError> {
    let copies = |nodes: Vec<NodeId>| nodes.into_iter().map(|node| DamagedCopy { node, name });
    let (mut decision, mut next) = DataFetch::new(holders);
    let mut last = Err(FetchError::Interrupted);
    let mut attempts = 0;
    loop {
        match next {
            DataFetchAction::Request(nodes) => {
                last = fetch(nodes).await;
                attempts += 1;
                next = decision.note(match &last {
                    Ok(_) => DataFetchOutcome::Sound,
                    Err(FetchError::Other { .. }) => DataFetchOutcome::Damaged,
                    Err(_) => DataFetchOutcome::Missing,
                });
            }
            DataFetchAction::Done { damaged } => {
                let damaged = copies(damaged).collect();
                return last.map(|fetched| (fetched, damaged));
            }
            DataFetchAction::Failed { damaged: nodes } if attempts > 1 => {
                return Err(FetchError::AllDamaged { hash: name.hash, nodes });
            }
            DataFetchAction::Failed { .. } => return last.map(|fetched| (fetched, Vec::new())),
        }
    }
}

/// The bytes of a file, if they are these.
fn read_if_same(path: &Path, name: DataName) -> Option<Vec<u8>> {
    if fs::metadata(path).ok()?.len() != name.length {
        return None;
    }
    let bytes = fs::read(path).ok()?;
    (DataName::of(&bytes) == name).then_some(bytes)
}

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
