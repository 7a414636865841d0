//! The fetching side: one owner of memory and decisions, one task for each holder that has ranges
//! to request.

use std::collections::BTreeSet;
use std::future::pending;
use std::io;
use std::panic;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use zbelastic_types::NodeId;

use super::check::{CheckedChunks, CheckedFetch, ChunkCheck};
use super::error::{BulkError, HolderError, HolderFailure};
use super::holder_task::{ChunkRange, HolderTaskReport, HolderTaskSetup, run};
use super::partial::{PartialBody, UnfinishedFetch, all_chunks};
use super::scheduler::{FetchScheduler, HOLDER_FAILURES_MAX, RANGES_AHEAD};
use super::sink::{ChunkSink, MemorySink, SinkThread, VerifiedChunk};
use super::spare::SpareChunks;
use super::wire::{BULK_BYTES_MAX, KEY_BYTES_MAX};

/// The most holders of one fetch. Those after them in the list are not used.
pub const HOLDERS_MAX: usize = 16;
/// The most reports that wait for the coordinator, each with a chunk at most: one of each holder.
const REPORTS_MAX: usize = HOLDERS_MAX;
/// The most bytes that [`fetch`] gives as one vector. Bodies that may be longer go through
/// [`fetch_into`], which does not need more memory for a longer body.
pub const FETCH_WHOLE_BYTES_MAX: u64 = 16 << 30;

/// The body to fetch, and its holders.
#[derive(Clone, Debug, Default)]
pub struct BulkFetch {
    /// The nodes that hold the body. One that is named twice counts once.
    pub holders: Vec<NodeId>,
    /// Key that names the body at its holders, at most [`KEY_BYTES_MAX`] bytes.
    pub key: Vec<u8>,
    /// Length of the body in bytes.
    pub length: u64,
    /// Where the caller sees how many bytes were verified so far: it only grows, up to the length.
    pub progress: Option<Arc<AtomicU64>>,
}

/// Fetches into one vector, which grows as bytes arrive. As [`fetch_into`] otherwise.
///
/// # Errors
/// If the request is not possible, every holder failed, or there is no memory for the bytes that
/// arrive.
///
/// # Panics
/// Outside a tokio runtime.
pub async fn fetch<O, F, R, W>(request: BulkFetch, open: O) -> Result<Vec<u8>, BulkError>
where
    O: Fn(NodeId) -> F,
    F: Future<Output = io::Result<(R, W)>> + Send + 'static,
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    if request.length > FETCH_WHOLE_BYTES_MAX {
        let found = request.length;
        let most = FETCH_WHOLE_BYTES_MAX;
        return Err(BulkError::TooLong { found, most });
    }
    Ok(fetch_into(request, MemorySink::default(), open).await?.into_bytes())
}

/// Fetches from all holders at once, over the streams that `open` gives: one a holder, and another
/// after a failure. Chunks go to the sink as they are verified; a few of each holder are in memory.
/// May be dropped at any time, which ends all streams and drops the sink.
///
/// # Errors
/// If the request is not possible, every holder failed, or the sink did.
///
/// # Panics
/// Outside a tokio runtime.
pub async fn fetch_into<S, O, F, R, W>(request: BulkFetch, sink: S, open: O) -> Result<S, BulkError>
where
    S: ChunkSink,
    O: Fn(NodeId) -> F,
    F: Future<Output = io::Result<(R, W)>> + Send + 'static,
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    let wanted = all_chunks(request.length);
    let mut coordinator = FetchCoordinator::new(request, None, wanted)?;
    coordinator.fetch(sink, open).await.map_err(|unfinished| unfinished.error)
}

/// Fetches the chunks that a body lacks as [`fetch_into`] does, also from the holders that join
/// meanwhile: `holders` has all of them so far. If every holder failed, the fetch ends, and none is
/// waited for. Of the bytes that `progress` counts are none that were here before.
///
/// # Errors
/// As [`fetch_into`], with what came: the next fetch goes on with it.
///
/// # Panics
/// Outside a tokio runtime.
pub async fn fetch_joined_into<S, O, F, R, W>(
    body: PartialBody<S>,
    holders: watch::Receiver<Vec<NodeId>>,
    progress: Option<Arc<AtomicU64>>,
    open: O,
) -> Result<S, UnfinishedFetch<S>>
where
    S: ChunkSink,
    O: Fn(NodeId) -> F,
    F: Future<Output = io::Result<(R, W)>> + Send + 'static,
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    let PartialBody { key, length, missing, sink } = body;
    let first = holders.borrow().clone();
    let request = BulkFetch { holders: first, key, length, progress };
    let mut coordinator = FetchCoordinator::new(request, None, missing)?;
    coordinator.joining = Some(holders);
    coordinator.fetch(sink, open).await
}

/// Fetches some chunks of a body as [`fetch_into`] does, and compares each with what was meant: one
/// that is another is not given to the sink, and comes from another holder.
///
/// # Panics
/// Outside a tokio runtime.
pub async fn fetch_checked_into<S, O, F, R, W>(
    request: BulkFetch,
    chunks: CheckedChunks,
    sink: S,
    open: O,
) -> CheckedFetch<S>
where
    S: ChunkSink,
    O: Fn(NodeId) -> F,
    F: Future<Output = io::Result<(R, W)>> + Send + 'static,
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    let CheckedChunks { wanted, check } = chunks;
    let mut coordinator = match FetchCoordinator::new(request, Some(check), ranges_of(&wanted)) {
        Ok(coordinator) => coordinator,
        Err(error) => return CheckedFetch { outcome: Err(error), unsound: Vec::new() },
    };
    let fetched = coordinator.fetch(sink, open).await;
    let outcome = fetched.map_err(|unfinished| unfinished.error);
    CheckedFetch { outcome, unsound: coordinator.unsound.into_iter().collect() }
}

/// Ranges of chunks that follow each other.
fn ranges_of(chunks: &[u64]) -> Vec<ChunkRange> {
    let ranges = chunks.chunk_by(|one, next| one + 1 == *next);
    ranges.map(|range| range[0]..range[range.len() - 1] + 1).collect()
}

async fn until(timeout: Option<Instant>) {
    match timeout {
        Some(at) => sleep_until(at).await,
        None => pending().await,
    }
}

/// Resolves when holders joined.
async fn joined(joining: Option<&mut watch::Receiver<Vec<NodeId>>>) {
    if let Some(holders) = joining
        && holders.changed().await.is_ok()
    {
        return;
    }
    pending().await
}

struct FetchCoordinator {
    key: Vec<u8>,
    length: u64,
    began: Instant,
    scheduler: FetchScheduler,
    progress: Option<Arc<AtomicU64>>,
    holders: Vec<FetchHolder>,
    /// Holders that join while the fetch is under way.
    joining: Option<watch::Receiver<Vec<NodeId>>>,
    /// Of all holders, in order.
    failures: Vec<HolderFailure>,
    reports: mpsc::Receiver<HolderTaskReport>,
    /// Sender of reports; each new task gets a clone.
    reporter: mpsc::Sender<HolderTaskReport>,
    spare: SpareChunks,
    /// What every chunk is compared with.
    check: Option<Arc<dyn ChunkCheck>>,
    /// Holders of which a chunk was refused.
    unsound: BTreeSet<NodeId>,
}

struct FetchHolder {
    node: NodeId,
    task: Option<HolderTask>,
}

struct HolderTask {
    ranges: mpsc::Sender<ChunkRange>,
    overtake: Option<oneshot::Sender<()>>,
}

impl FetchCoordinator {
    fn new(
        request: BulkFetch,
        check: Option<Arc<dyn ChunkCheck>>,
        wanted: Vec<ChunkRange>,
    ) -> Result<Self, BulkError> {
        let BulkFetch { holders, key, length, progress } = request;
        if key.len() > KEY_BYTES_MAX {
            return Err(BulkError::KeyTooLong { found: key.len() });
        }
        if length > BULK_BYTES_MAX {
            return Err(BulkError::TooLong { found: length, most: BULK_BYTES_MAX });
        }
        if holders.is_empty() {
            return Err(BulkError::NoHolders);
        }
        let scheduler = FetchScheduler::new(wanted);
        let (reporter, reports) = mpsc::channel(REPORTS_MAX);
        let began = Instant::now();
        let failures = Vec::new();
        let spare = SpareChunks::default();
        let mut coordinator = Self {
            key,
            length,
            began,
            scheduler,
            progress,
            holders: Vec::new(),
            joining: None,
            failures,
            reports,
            reporter,
            spare,
            check,
            unsound: BTreeSet::new(),
        };
        coordinator.add_holders(&holders);
        Ok(coordinator)
    }

    /// Requests chunks of these as well, up to the most that a fetch has.
    fn add_holders(&mut self, nodes: &[NodeId]) {
        for node in nodes {
            let is_new = self.holders.iter().all(|known| known.node != *node);
            if is_new && self.holders.len() < HOLDERS_MAX {
                self.holders.push(FetchHolder { node: *node, task: None });
                self.scheduler.add_holder();
            }
        }
    }

    /// Requests chunks of the holders that have joined. Yields whether there are new ones.
    fn add_joined(&mut self) -> bool {
        let known = self.holders.len();
        if let Some(joining) = &mut self.joining {
            let nodes = joining.borrow_and_update().clone();
            self.add_holders(&nodes);
        }
        self.holders.len() > known
    }

    async fn fetch<S, O, F, R, W>(&mut self, sink: S, open: O) -> Result<S, UnfinishedFetch<S>>
    where
        S: ChunkSink,
        O: Fn(NodeId) -> F,
        F: Future<Output = io::Result<(R, W)>> + Send + 'static,
        R: AsyncRead + Send + Unpin + 'static,
        W: AsyncWrite + Send + Unpin + 'static,
    {
        let sink = SinkThread::start(sink, self.spare.clone());
        let mut tasks = JoinSet::new();
        loop {
            let now = self.began.elapsed();
            self.overtake(now);
            for holder in 0..self.holders.len() {
                while let Some(setup) = self.assign_chunks(holder, now) {
                    tasks.spawn(run(setup, open(self.holders[holder].node)));
                }
            }
            if self.scheduler.is_done() {
                return Ok(sink.finish().await.map_err(BulkError::Sink)?);
            }
            if self.scheduler.is_hopeless() {
                if self.add_joined() {
                    continue;
                }
                return Err(self.unfinished(sink.finish().await.ok()));
            }
            let timeout = self.scheduler.poll_timeout(now).map(|at| self.began + at);
            tokio::select! {
                report = self.reports.recv() => {
                    let verified = self.handle_report(report.expect("there is a sender here"));
                    if let Some(verified) = verified
                        && !sink.send(verified).await
                    {
                        let error = sink.finish().await.err();
                        let error = error.expect("a sink ends early by an error");
                        return Err(BulkError::Sink(error).into());
                    }
                }
                Some(ended) = tasks.join_next() => {
                    // A task that ended has reported; one that panicked has not, and never will.
                    if let Err(error) = ended {
                        panic::resume_unwind(error.into_panic());
                    }
                }
                () = joined(self.joining.as_mut()) => {
                    self.add_joined();
                }
                () = until(timeout) => {}
            }
        }
    }

    /// Signals the task of a holder to give up its owed chunks, if another should have them.
    fn overtake(&mut self, now: Duration) {
        let Some(victim) = self.scheduler.poll_yield(now) else { return };
        let task =
            self.holders[victim].task.as_mut().expect("a holder that owes chunks has a task");
        let overtake = task.overtake.take().expect("a task is overtaken once");
        // A task that has ended already has reported so.
        let _ = overtake.send(());
    }

    /// Gives `holder` all ranges it should have. Stops at the first if it has no task, and returns
    /// the setup of a new one.
    fn assign_chunks(&mut self, holder: usize, now: Duration) -> Option<HolderTaskSetup> {
        while let Some(range) = self.scheduler.poll_range(holder, now) {
            let fetch_holder = &mut self.holders[holder];
            if let Some(task) = &fetch_holder.task {
                // A task that has ended has reported so; its owed chunks are then given out again.
                let _ = task.ranges.try_send(range);
                continue;
            }
            let (sender, ranges) = mpsc::channel(RANGES_AHEAD);
            let (overtake, overtaken) = oneshot::channel();
            sender.try_send(range).expect("a new queue has space");
            fetch_holder.task = Some(HolderTask { ranges: sender, overtake: Some(overtake) });
            let key = self.key.clone();
            let reports = self.reporter.clone();
            let length = self.length;
            let spare = self.spare.clone();
            let check = self.check.clone();
            return Some(HolderTaskSetup {
                holder,
                key,
                length,
                ranges,
                reports,
                spare,
                check,
                overtaken,
            });
        }
        None
    }

    /// Applies a report, and returns the chunk that it brought.
    fn handle_report(&mut self, report: HolderTaskReport) -> Option<VerifiedChunk> {
        let now = self.began.elapsed();
        match report {
            HolderTaskReport::Chunk { holder, verified } => {
                self.scheduler.on_chunk(holder, verified.chunk, now);
                if let Some(progress) = &self.progress {
                    progress.fetch_add(verified.bytes.len() as u64, Ordering::Relaxed);
                }
                Some(verified)
            }
            HolderTaskReport::Unsound { holder, chunk } => {
                self.scheduler.on_refused(holder, chunk, now);
                let node = self.holders[holder].node;
                self.unsound.insert(node);
                let error = HolderError::Unsound { chunk };
                self.record_failure(HolderFailure { holder: node, error });
                None
            }
            HolderTaskReport::Ended { holder, error } => {
                self.holders[holder].task = None;
                self.scheduler.on_setback(holder, error.setback(), now);
                self.record_failure(HolderFailure { holder: self.holders[holder].node, error });
                None
            }
        }
    }

    /// Keeps the last failures of each holder.
    fn record_failure(&mut self, failure: HolderFailure) {
        let holder = failure.holder;
        self.failures.push(failure);
        let mut own_failures =
            self.failures.iter().enumerate().filter(|(_, old)| old.holder == holder);
        if own_failures.clone().count() > HOLDER_FAILURES_MAX as usize {
            let oldest = own_failures.next().expect("it has some").0;
            self.failures.remove(oldest);
        }
    }

    /// No holder is left. All chunks that arrived were given to the sink; none is here if it failed.
    fn unfinished<S>(&mut self, sink: Option<S>) -> UnfinishedFetch<S> {
        let arrived = self.scheduler.arrived();
        let expected = self.scheduler.expected();
        let failures = std::mem::take(&mut self.failures);
        let error = BulkError::NoHolderLeft { failures, arrived, expected };
        let missing = self.scheduler.missing();
        let key = std::mem::take(&mut self.key);
        let body = sink.map(|sink| PartialBody { key, length: self.length, missing, sink });
        UnfinishedFetch { error, body }
    }
}
