//! The shards of a job's token stores: fetched chunk by chunk in the order in which its steps read them,
//! into files that are read meanwhile. [`zbelastic_data::prefetch`] decides which come next.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use tokio::task::JoinSet;
use zbelastic_data::prefetch::{PrefetchAction, PrefetchOrder, ShardChunks};
use zbelastic_data::store::{ShardChunk, TokenStore, find_shard};
use zbelastic_data::training_data::TrainingData;
use zbelastic_machine::data_fetch::{ArrivingData, DataFetchError, DataSettings, OpenedData};
use zbelastic_policy::data_chunks::ChunkSize;
use zbelastic_wire::document::{DataName, NamedJob};
use zbelastic_wire::job_store::JobStore;

use super::data::{DamagedCopy, FetchError, damaged_copies, wanted};
use super::kept_data::DataRoute;

/// Chunks that one round of a fetch of shards requests at most: 256 MiB. Behind a round the fetch looks
/// which step is read now, and which nodes are there.
const ROUND_CHUNKS_MAX: usize = 256;

/// Shards that are fetched at once. Of each a few chunks of each holder are in memory.
const SHARDS_AT_ONCE: usize = 4;

/// The shards of a job on their way to this node's disk, in the order in which its steps read them.
pub struct ShardFetch {
    job: Arc<NamedJob>,
    corpus: Arc<TrainingData>,
    order: PrefetchOrder,
    /// Files of shards of which some chunks are here, by the indices of store and shard.
    arriving: BTreeMap<(usize, usize), ArrivingData>,
    /// Folders that may be stores of the job, and how much of others is kept.
    local: DataSettings,
    /// Why the last round failed, if it did.
    failure: Option<String>,
}

/// What a round of a fetch of shards led to.
pub struct ShardRound {
    /// The fetch, for the next round.
    pub fetch: ShardFetch,
    /// Copies that were found damaged on the way.
    pub damaged: Vec<DamagedCopy>,
    /// What is here now, or why some of what was requested is not.
    pub outcome: Result<RoundOutcome, FetchError>,
}

/// What is here of shards behind a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoundOutcome {
    /// All that was requested.
    Fetched,
    /// All that coming steps read.
    Ahead,
    /// All that is ever read.
    Whole,
}

impl ShardFetch {
    /// A fetch of the shards of a job. Its mixture has its stores then, of which nothing is here yet.
    ///
    /// # Errors
    /// If a manifest contradicts itself, or less may be kept than a step reads.
    pub fn begin(
        job: Arc<NamedJob>,
        corpus: Arc<TrainingData>,
        local: DataSettings,
    ) -> Result<Self, FetchError> {
        let mut order = PrefetchOrder::new(job.job.config.run_steps());
        if let TrainingData::Stores(mixture) = &*corpus {
            let store = |store: &JobStore| {
                TokenStore::arriving(store.manifest.clone(), ChunkSize::BULK.bytes())
            };
            mixture.provide(job.job.stores.iter().map(store).collect::<Result<_, _>>()?);
            local.cache.map_or(Ok(()), |max| order.limit(max, mixture))?;
        }
        Ok(Self { job, corpus, order, arriving: BTreeMap::new(), local, failure: None })
    }

    /// Whether it is for what this job reads: the same stores may be those of a job that is over.
    #[must_use]
    pub fn is_of(&self, corpus: &Arc<TrainingData>) -> bool {
        Arc::ptr_eq(&self.corpus, corpus)
    }

    /// A round ended so. Yields whether that is a failure, and another one than that of the round
    /// before.
    pub fn note_failure(&mut self, failure: Option<String>) -> bool {
        let is_new = failure.is_some() && self.failure != failure;
        self.failure = failure;
        is_new
    }

    /// Fetches the chunks that are read next.
    pub async fn run_round(mut self, route: &DataRoute) -> ShardRound {
        let mut damaged = Vec::new();
        let outcome = self.fetch_next(route, &mut damaged).await;
        ShardRound { fetch: self, damaged, outcome }
    }

    /// Some shards at once, so that a line with a long round trip is in use.
    async fn fetch_next(
        &mut self,
        route: &DataRoute,
        damaged: &mut Vec<DamagedCopy>,
    ) -> Result<RoundOutcome, FetchError> {
        let TrainingData::Stores(mixture) = &*self.corpus else { return Ok(RoundOutcome::Whole) };
        let mut requests = match self.order.next(mixture, ROUND_CHUNKS_MAX) {
            PrefetchAction::Fetch { evicted, wanted } => {
                self.free(evicted).await?;
                VecDeque::from(wanted)
            }
            PrefetchAction::Wait => return Ok(RoundOutcome::Ahead),
            PrefetchAction::End => return Ok(RoundOutcome::Whole),
        };
        let mut tasks = JoinSet::new();
        let mut outcome = Ok(RoundOutcome::Fetched);
        loop {
            while tasks.len() < SHARDS_AT_ONCE
                && let Some(request) = requests.pop_front()
            {
                tasks.spawn(self.shard_task(request, route).run());
            }
            let Some(ended) = tasks.join_next().await else { return outcome };
            let (task, result) = ended.map_err(|_| FetchError::Interrupted)?;
            let ShardChunks { store, shard, .. } = task.request;
            self.arriving.extend(task.arriving.map(|arriving| ((store, shard), arriving)));
            damaged.extend(task.damaged);
            if let Err(error) = result {
                requests.clear();
                outcome = Err(error);
            }
        }
    }

    /// Frees the space of chunks that no coming step reads soon, before others take it.
    async fn free(&mut self, evicted: Vec<ShardChunks>) -> Result<(), FetchError> {
        for ShardChunks { store, shard, chunks } in evicted {
            let Some(arriving) = self.arriving.get(&(store, shard)) else { continue };
            let freed = arriving.free(chunks).await;
            if matches!(freed, Err(DataFetchError::NoHoles { .. })) {
                self.order.lift_limit();
            }
            freed?;
        }
        Ok(())
    }

    fn shard_task(&mut self, request: ShardChunks, route: &DataRoute) -> ShardTask {
        let ShardChunks { store, shard, .. } = request;
        let mut shards = self.job.job.stores[store].shards();
        ShardTask {
            name: shards.nth(shard).expect("a shard of the job"),
            arriving: self.arriving.remove(&(store, shard)),
            corpus: self.corpus.clone(),
            local: self.local.clone(),
            is_limited: self.order.is_limited(),
            route: route.clone(),
            damaged: Vec::new(),
            request,
        }
    }
}

/// Chunks of a shard that are fetched.
struct ShardTask {
    request: ShardChunks,
    name: DataName,
    corpus: Arc<TrainingData>,
    /// The shard's file, if it is open and not whole.
    arriving: Option<ArrivingData>,
    local: DataSettings,
    /// Whether chunks of it are evicted: it is whole for a time at most, and gets no name.
    is_limited: bool,
    route: DataRoute,
    damaged: Vec<DamagedCopy>,
}

impl ShardTask {
    async fn run(mut self) -> (Self, Result<(), FetchError>) {
        let result = self.fetch().await;
        (self, result)
    }

    async fn fetch(&mut self) -> Result<(), FetchError> {
        let corpus = self.corpus.clone();
        let TrainingData::Stores(mixture) = &*corpus else { return Ok(()) };
        let ShardChunks { store: source, shard, .. } = self.request;
        let store = &mixture.stores()[source];
        if self.arriving.is_none() && !store.has_shard(shard) {
            self.open(store).await?;
        }
        let Some(arriving) = &self.arriving else { return Ok(()) };
        let is_missing = |chunk: &u64| !store.has_chunk(ShardChunk { shard, chunk: *chunk });
        let missing: Vec<u64> = self.request.chunks.iter().copied().filter(is_missing).collect();
        if !missing.is_empty() {
            let corpus = self.corpus.clone();
            let on_chunk = move |chunk| {
                if let TrainingData::Stores(mixture) = &*corpus {
                    mixture.stores()[source].note_chunk(ShardChunk { shard, chunk });
                }
            };
            let wanted = wanted(self.name, &self.route);
            let nodes = wanted.fetch_chunks(arriving, missing, on_chunk).await?;
            self.damaged.extend(damaged_copies(self.name, nodes));
        }
        if !self.is_limited
            && store.has_shard(shard)
            && let Some(arriving) = self.arriving.take()
        {
            arriving.publish().await?;
        }
        Ok(())
    }

    /// Maps the shard: of a store in one of the configured folders, from this node's disk, or a file
    /// into which its chunks are fetched.
    async fn open(&mut self, store: &TokenStore) -> Result<(), FetchError> {
        let shard = self.request.shard;
        let manifest = store.manifest().clone();
        let folders = self.local.paths.clone();
        let progress = self.route.progress.clone();
        let found = tokio::task::spawn_blocking(move || {
            find_shard(&manifest, shard, &folders, &|bytes| progress.add(bytes))
        });
        if let Some(path) = found.await.map_err(|_| FetchError::Interrupted)? {
            return Ok(store.map_whole(shard, path)?);
        }
        let bytes_max = self.local.cache.map_or(u64::MAX, |cache| cache.0);
        let (opened, nodes) = wanted(self.name, &self.route).open(bytes_max).await?;
        self.damaged.extend(damaged_copies(self.name, nodes));
        match opened {
            OpenedData::Whole => {
                store.map_whole(shard, self.route.checkpoint_thread.data_path(self.name.hash))?;
            }
            OpenedData::Arriving(arriving) => {
                let (file, path) = arriving.file();
                store.map_arriving(shard, file, path.to_owned())?;
                let found = arriving.found().iter();
                found.for_each(|chunk| store.note_chunk(ShardChunk { shard, chunk: *chunk }));
                self.arriving = Some(arriving);
            }
        }
        Ok(())
    }
}
