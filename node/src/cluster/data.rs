//! Text and weights: from this node's disk, from a path on the command line, or from the nodes that
//! have them.

use std::sync::Arc;

use zbelastic_data::cursor::CursorError;
use zbelastic_data::prefetch::ShardCacheShortage;
use zbelastic_data::store::StoreError;
use zbelastic_data::training_data::TrainingData;
use zbelastic_machine::KeptWeights;
use zbelastic_machine::data_fetch::{DataFetchError, DataKeys, WantedData};
use zbelastic_trainer::data::CorpusError;
use zbelastic_trainer::hf::{ImportError, StoredWeights, WeightBytes};
use zbelastic_trainer::stage::InitialWeights;
use zbelastic_transport::Transport;
use zbelastic_types::{Digest, NodeId};
use zbelastic_wire::document::{DataName, NamedJob};
use zbelastic_wire::{self as wire, BulkKey};

use super::kept_data::DataRoute;

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
    /// Too little of the stores may be kept here.
    #[error(transparent)]
    Cache(#[from] ShardCacheShortage),
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
            | Self::Cache(_)
            | Self::Weights(_) => None,
        }
    }

    /// The copies that were found damaged, if none was found that is sound.
    #[must_use]
    pub fn damaged(&self) -> Vec<DamagedCopy> {
        let Self::Data(DataFetchError::AllDamaged { name, nodes }) = self else {
            return Vec::new();
        };
        nodes.iter().map(|node| DamagedCopy { node: *node, name: *name }).collect()
    }
}

/// Gets all that a job is built from: text and weights. Bytes that arrive or are read count as progress.
///
/// # Errors
/// If no node has it, or it cannot be used.
pub async fn fetch_job(
    document: Arc<NamedJob>,
    route: &DataRoute,
    local: Vec<String>,
) -> Result<FetchedJob, FetchError> {
    let job = document.job.clone();
    let (corpus, mut damaged) = if job.stores.is_empty() {
        let FetchedData { bytes, damaged } = match read_local(job.text, local).await {
            Some(bytes) => FetchedData { bytes, damaged: Vec::new() },
            None => fetch_data(job.text, route).await?,
        };
        let corpus = beside(move || Ok(TrainingData::Text(job.corpus(bytes)?))).await?;
        (corpus, damaged)
    } else {
        (TrainingData::Stores(job.mixture()?), Vec::new())
    };
    let corpus = Arc::new(corpus);
    let weights = match document.job.weights {
        None => InitialWeights::Drawn { seed: document.job.config.seed },
        Some(name) => {
            let (file, found) = fetch_weights(name, route).await?;
            damaged.extend(found);
            let config = document.job.config.clone();
            let open = move || Ok(StoredWeights::open(&config.model, config.seed, file)?);
            InitialWeights::Stored(Arc::new(beside(open).await?))
        }
    };
    Ok(FetchedJob { document, corpus, weights, damaged })
}

/// Runs `work` on a thread that may block.
async fn beside<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, FetchError> + Send + 'static,
) -> Result<T, FetchError> {
    tokio::task::spawn_blocking(work).await.map_err(|_| FetchError::Interrupted)?
}

/// Gets the file of weights onto this node's disk, or into memory where the disk does not take it.
async fn fetch_weights(
    name: DataName,
    route: &DataRoute,
) -> Result<(Box<dyn WeightBytes + Send>, Vec<DamagedCopy>), FetchError> {
    let nodes = match wanted(name, route).keep().await {
        Ok(nodes) => nodes,
        Err(DataFetchError::Room(_) | DataFetchError::Disk(_)) => {
            let FetchedData { bytes, damaged } = fetch_data(name, route).await?;
            return Ok((Box::new(bytes), damaged));
        }
        Err(error) => return Err(error.into()),
    };
    let (path, progress) = (route.checkpoint_thread.data_path(name.hash), route.progress.clone());
    let open = move || Ok(KeptWeights::open(&path, name, progress).map_err(DataFetchError::from)?);
    Ok((Box::new(beside(open).await?), damaged_copies(name, nodes)))
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
async fn fetch_data(name: DataName, route: &DataRoute) -> Result<FetchedData, FetchError> {
    let (bytes, nodes) = wanted(name, route).read().await?;
    Ok(FetchedData { bytes, damaged: damaged_copies(name, nodes) })
}

/// Data that is to lie in this node's folder.
pub(super) fn wanted(name: DataName, route: &DataRoute) -> WantedData<'_, Transport> {
    let keys = DataKeys {
        bytes: wire::encode(&BulkKey::Data(name.hash)),
        hashes: wire::encode(&BulkKey::DataHashes(name.hash)),
    };
    WantedData {
        name,
        keys,
        path: route.checkpoint_thread.data_path(name.hash),
        connections: &route.transport,
        holders: route.holders.clone(),
        progress: route.progress.clone(),
    }
}

/// The damaged copies of these nodes.
pub(super) fn damaged_copies(name: DataName, nodes: Vec<NodeId>) -> Vec<DamagedCopy> {
    nodes.into_iter().map(|node| DamagedCopy { node, name }).collect()
}
