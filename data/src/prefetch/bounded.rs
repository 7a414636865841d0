//! The order on a node whose disk takes fewer chunks than its run reads: those stay whose next read
//! comes first, and the others make room for them, that which is read last at first.
//!
//! Which step reads what is a pure function, so this is the choice that fetches least (Belady's), as
//! far as steps are looked at.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use zbelastic_types::{Bytes, Step};

use super::needed::{arriving_chunks, chunks_needed};
use super::{PrefetchAction, RunSteps, ShardChunks, by_shard, steps_ahead};
use crate::mixture::StoreMixture;
use crate::store::ShardChunk;

/// Fewer bytes of shards may be kept than a run needs to go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{found} of token stores may be kept here (--data-cache), and two steps with held-out text read up to {needed} of \
     them, {} bytes: say more", needed.0
)]
pub struct ShardCacheShortage {
    /// The bytes that may be kept.
    pub found: Bytes,
    /// Bytes that take the chunks of any two steps and of held-out text.
    pub needed: Bytes,
}

/// Chunks in the order in which they are read next.
struct NextReads<'a> {
    mixture: &'a StoreMixture,
    order: Vec<(usize, ShardChunk)>,
    /// The place of each in the order.
    places: BTreeMap<(usize, ShardChunk), usize>,
}

impl<'a> NextReads<'a> {
    const fn new(mixture: &'a StoreMixture) -> Self {
        Self { mixture, order: Vec::new(), places: BTreeMap::new() }
    }

    fn add(&mut self, windows: impl Iterator<Item = (usize, u64)>) {
        for chunk in arriving_chunks(self.mixture, windows) {
            if let Entry::Vacant(place) = self.places.entry(chunk) {
                place.insert(self.order.len());
                self.order.push(chunk);
            }
        }
    }

    fn add_step(&mut self, batch_step: Step) {
        self.add(self.mixture.cursor().step_windows(batch_step));
    }
}

/// Checks that a disk that takes `found` bytes of shards takes what any two steps of the run read, since
/// one is fetched while the device is in the other, with held-out text.
pub(super) fn check(
    run: RunSteps,
    found: Bytes,
    mixture: &StoreMixture,
) -> Result<(), ShardCacheShortage> {
    let needed = Bytes(chunks_needed(run, mixture) * mixture.chunk_bytes());
    if needed > found { Err(ShardCacheShortage { found, needed }) } else { Ok(()) }
}

/// Evicts what has to go, and yields what is fetched, of which there is room for all: `fetched_max`
/// chunks at most.
pub(super) fn next(
    run: RunSteps,
    chunks_max: usize,
    mixture: &StoreMixture,
    fetched_max: usize,
) -> PrefetchAction {
    let unopened = unopened(mixture);
    if !unopened.is_empty() {
        return PrefetchAction::Fetch { evicted: Vec::new(), wanted: unopened };
    }
    let demanded = run.own_step(mixture.demanded());
    let mut reads = read_now(run, demanded, mixture);
    debug_assert!(
        reads.order.len() <= chunks_max,
        "`check` accepts no limit below what any two steps read"
    );
    // If one were accepted, the run would go on beyond it.
    let chunks_max = chunks_max.max(reads.order.len());
    let mut steps = demanded + 1..run.count.min(demanded + steps_ahead(mixture));
    while reads.order.len() < chunks_max
        && let Some(step) = steps.next()
    {
        reads.add_step(run.batch_step(step));
    }
    let kept = reads.order.iter().take(chunks_max).copied();
    let mut missing: Vec<_> = kept.filter(|chunk| !mixture.has_chunk(*chunk)).collect();
    missing.truncate(fetched_max);
    let here = chunks_here(mixture);
    let excess = (here.len() + missing.len()).saturating_sub(chunks_max);
    let evicted = if excess == 0 {
        Vec::new()
    } else {
        steps.for_each(|step| reads.add_step(run.batch_step(step)));
        mixture.evict(read_last(&reads, &here, chunks_max, excess))
    };
    // A step that was claimed meanwhile kept its chunks.
    missing.truncate(chunks_max.saturating_sub(here.len() - evicted.len()));
    if evicted.is_empty() && missing.is_empty() {
        return PrefetchAction::Wait;
    }
    PrefetchAction::Fetch { evicted: by_shard(evicted), wanted: by_shard(missing) }
}

/// What is kept in any case: what the demanded step reads, the one that the device is in, and held-out
/// text.
fn read_now(run: RunSteps, demanded: u64, mixture: &StoreMixture) -> NextReads<'_> {
    let mut reads = NextReads::new(mixture);
    let step = (demanded < run.count).then(|| run.batch_step(demanded));
    step.into_iter().chain(mixture.claimed()).for_each(|step| reads.add_step(step));
    reads.add(mixture.held_out_places());
    reads
}

/// Shards that are not mapped, without chunks: their files may have some of a process before this one,
/// which take room.
fn unopened(mixture: &StoreMixture) -> Vec<ShardChunks> {
    let stores = mixture.stores().iter().enumerate();
    let shards = stores.flat_map(|(index, store)| {
        let shards = 0..store.manifest().shards.len();
        let unopened = shards.filter(|shard| !store.is_mapped(*shard));
        unopened.map(move |shard| ShardChunks { store: index, shard, chunks: Vec::new() })
    });
    shards.collect()
}

/// Chunks that take room here.
fn chunks_here(mixture: &StoreMixture) -> Vec<(usize, ShardChunk)> {
    let stores = mixture.stores().iter().enumerate();
    let chunks = stores.flat_map(|(index, store)| {
        let arriving = store.chunks().filter(|chunk| store.arrives(chunk.shard));
        arriving.filter(|chunk| store.has_chunk(*chunk)).map(move |chunk| (index, chunk))
    });
    chunks.collect()
}

/// `count` of the chunks that are here, if there are as many behind the first `kept` reads: those that
/// no step reads that was looked at, and then those that are read last.
fn read_last(
    reads: &NextReads<'_>,
    here: &[(usize, ShardChunk)],
    kept: usize,
    count: usize,
) -> Vec<(usize, ShardChunk)> {
    let place =
        |chunk: &(usize, ShardChunk)| reads.places.get(chunk).copied().unwrap_or(usize::MAX);
    let mut others: Vec<_> = here.iter().filter(|chunk| place(chunk) >= kept).copied().collect();
    others.sort_by_key(|chunk| Reverse(place(chunk)));
    others.truncate(count);
    others
}
