//! Text and weights: from this node's disk, from a path on the command line, or from the nodes that
//! have them.

use std::sync::Arc;

use zbelastic_data::cursor::CursorError;
use zbelastic_data::store::StoreError;
use zbelastic_data::training_data::TrainingData;
use zbelastic_machine::data_fetch::{DataFetchError, DataKeys, WantedData};
use zbelastic_trainer::data::CorpusError;
use zbelastic_trainer::hf::{ImportError, import_initial};
use zbelastic_trainer::stage::InitialWeights;
use zbelastic_transport::Transport;
use zbelastic_types::{Digest, NodeId};
use zbelastic_wire::document::{DataName, NamedJob};
use zbelastic_wire::{self as wire, BulkKey};

use super::checkpoint_thread::CheckpointThread;
use zbelastic_policy::WorkCounter;

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
    /// The text, the weights or a shard cannot be had.
    #[error(transparent)]
    Data(#[from] DataFetchError),
    /// A thread that read stores panicked.
    #[error("the thread that checked it ended")]
    Interrupted,
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

impl FetchError {
    /// The hash of data that no node has: it may be uploaded again.
    #[must_use]
    pub const fn missing(&self) -> Option<Digest> {
        match self {
            Self::Data(error) => error.missing(),
            Self::Interrupted
            | Self::Corpus(_)
            | Self::Mixture(_)
            | Self::Store(_)
            | Self::Weights(_) => None,
        }
    }
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

/// Gets bytes by their hash: from this node's disk, and what is missing or damaged there from
/// others.
async fn fetch_data(
    name: DataName,
    transport: &Transport,
    checkpoint_thread: &CheckpointThread,
    holders: Vec<NodeId>,
) -> Result<FetchedData, FetchError> {
    let (bytes, nodes) = wanted(name, (transport, checkpoint_thread), holders).read().await?;
    Ok(FetchedData { bytes, damaged: damaged_copies(name, nodes) })
}

/// Data that is to lie in this node's folder, and may be fetched from these.
pub(super) fn wanted<'a>(
    name: DataName,
    (connections, checkpoint_thread): (&'a Transport, &CheckpointThread),
    holders: Vec<NodeId>,
) -> WantedData<'a, Transport> {
    let keys = DataKeys {
        bytes: wire::encode(&BulkKey::Data(name.hash)),
        hashes: wire::encode(&BulkKey::DataHashes(name.hash)),
    };
    let path = checkpoint_thread.data_path(name.hash);
    WantedData { name, keys, path, connections, holders, progress: WorkCounter::default() }
}

/// The damaged copies of these nodes.
pub(super) fn damaged_copies(name: DataName, nodes: Vec<NodeId>) -> Vec<DamagedCopy> {
    nodes.into_iter().map(|node| DamagedCopy { node, name }).collect()
}
