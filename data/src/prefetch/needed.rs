//! How many chunks a disk has to take at least: those of any two steps of a run, and of held-out text.
//!
//! One step is fetched while the device is in another, and after a rewind that is any other one. So no step
//! that comes later may read more than was found when the run began.

use std::collections::{BTreeMap, BTreeSet};

use super::RunSteps;
use crate::mixture::StoreMixture;
use crate::store::{ShardChunk, StoreManifest, TokenStore};

/// Chunks of a run's windows that are counted, each as often as a window reads it, which takes some 0.2 s of one
/// core. Of a longer run the most that so many windows could read is taken.
const READS_COUNTED_MAX: u64 = 1 << 20;

type Chunks = BTreeSet<(usize, ShardChunk)>;

/// Chunks that any two steps and held-out text read together at most, of shards that arrive.
pub(super) fn chunks_needed(run: RunSteps, mixture: &StoreMixture) -> u64 {
    let windows = run.count.saturating_mul(mixture.cursor().windows_per_step());
    let reads = windows.saturating_mul(2 + ends_of_shard_max(mixture));
    let needed =
        if reads <= READS_COUNTED_MAX { counted(run, mixture) } else { bound(run, mixture) };
    let stores = mixture.stores().iter();
    let all = stores.map(|store| store.chunks().filter(|chunk| store.arrives(chunk.shard)).count());
    needed.min(all.sum::<usize>() as u64)
}

/// By the chunks of each step. Two steps have the ends of documents in common where they read of the same
/// shards: all ends are counted once, or those of each step, whichever is less.
pub(super) fn counted(run: RunSteps, mixture: &StoreMixture) -> u64 {
    let held_out = held_out(mixture);
    let shared = with_ends(&held_out, mixture);
    let mut beside_held_out = [0; 2];
    let mut beside_shared = [0; 2];
    for step in 0..run.count {
        let windows = mixture.cursor().step_windows(run.batch_step(step));
        let read: Chunks = arriving_chunks(mixture, windows).collect();
        note_largest(&mut beside_held_out, read.difference(&held_out).count() as u64);
        note_largest(&mut beside_shared, read.difference(&shared).count() as u64);
    }
    let by_step = held_out.len() as u64 + beside_held_out.iter().sum::<u64>();
    by_step.min(shared.len() as u64 + beside_shared.iter().sum::<u64>())
}

/// By the most chunks that a window can lie in, wherever it begins.
pub(super) fn bound(run: RunSteps, mixture: &StoreMixture) -> u64 {
    let ids = mixture.cursor().shape().sequence_len as u64 + 1;
    let windows = mixture.cursor().windows_per_step().saturating_mul(run.count.min(2));
    let of_window = |chunks: fn(&TokenStore, u64) -> u64| {
        let stores = mixture.stores().iter().map(|store| chunks(store, ids));
        windows.saturating_mul(stores.max().unwrap_or(0))
    };
    let beside_ends = mixture.stores().iter().map(chunks_beside_ends).sum();
    let held_out = held_out(mixture);
    let all_ends = (with_ends(&held_out, mixture).len() - held_out.len()) as u64;
    let ends = windows
        .saturating_mul(ends_of_shard_max(mixture))
        .saturating_mul(of_window_max(mixture, ids));
    of_window(chunks_within_max)
        .saturating_add(of_window(chunks_across_max).min(beside_ends))
        .saturating_add(ends.min(all_ends))
        .saturating_add(held_out.len() as u64)
}

/// Shards that a window can lie in at most.
fn of_window_max(mixture: &StoreMixture, ids: u64) -> u64 {
    let shards = mixture.stores().iter().map(|store| shards_of_ids_max(store.manifest(), ids));
    shards.max().unwrap_or(0)
}

/// The most chunks that the ends of one shard's documents lie in.
fn ends_of_shard_max(mixture: &StoreMixture) -> u64 {
    let of_store = |store: &TokenStore| {
        let mut of_shard = BTreeMap::new();
        for chunk in store.chunks_of_ends() {
            *of_shard.entry(chunk.shard).or_insert(0) += 1;
        }
        of_shard.into_values().max().unwrap_or(0)
    };
    mixture.stores().iter().map(of_store).max().unwrap_or(0)
}

/// The chunks that these windows read, some more than once, of shards that arrive: chunks of files that
/// were whole when they were mapped take no room.
pub(super) fn arriving_chunks(
    mixture: &StoreMixture,
    windows: impl Iterator<Item = (usize, u64)>,
) -> impl Iterator<Item = (usize, ShardChunk)> {
    let chunks = mixture.chunks_of(windows);
    chunks.filter(|(store, chunk)| mixture.stores()[*store].arrives(chunk.shard))
}

fn held_out(mixture: &StoreMixture) -> Chunks {
    arriving_chunks(mixture, mixture.held_out_places()).collect()
}

/// These chunks, and those that ends of documents lie in, of all shards.
fn with_ends(chunks: &Chunks, mixture: &StoreMixture) -> Chunks {
    let stores = mixture.stores().iter().enumerate();
    let ends = stores.flat_map(|(index, store)| {
        let ends = store.chunks_of_ends().filter(|chunk| store.arrives(chunk.shard));
        ends.map(move |chunk| (index, chunk))
    });
    ends.chain(chunks.iter().copied()).collect()
}

/// Keeps the two largest counts, the larger one first.
fn note_largest(largest: &mut [u64; 2], count: u64) {
    let [first, second] = *largest;
    *largest = [first.max(count), second.max(first.min(count))];
}

/// Chunks of a store that so many ids of one shard that follow each other lie in at most, with their bits of the
/// loss mask.
fn chunks_within_max(store: &TokenStore, ids: u64) -> u64 {
    // The bytes begin within a chunk and end within another one, as the bits do within bytes.
    let chunks = |bytes: u64| bytes / store.chunk_bytes() + 2;
    let mask = if is_masked(store) { chunks(ids / 8 + 2) } else { 0 };
    chunks(ids * store.manifest().id_bytes()) + mask
}

/// How many more it may be where they lie in several shards: in each the last chunk is shorter than others, and
/// so is the last byte of the mask.
fn chunks_across_max(store: &TokenStore, ids: u64) -> u64 {
    2 * runs_of(store) * (shards_of_ids_max(store.manifest(), ids).saturating_sub(1))
}

/// The first and last chunks of all shards, which these are.
fn chunks_beside_ends(store: &TokenStore) -> u64 {
    2 * runs_of(store) * store.manifest().shards.len() as u64
}

/// Runs of bytes that a window reads of a shard: its ids, and its bits of the loss mask.
fn runs_of(store: &TokenStore) -> u64 {
    1 + u64::from(is_masked(store))
}

fn is_masked(store: &TokenStore) -> bool {
    store.manifest().shards.iter().any(|shard| shard.has_loss_mask)
}

/// Shards that so many ids that follow each other lie in at most: all ids of those between the first and
/// the last.
fn shards_of_ids_max(manifest: &StoreManifest, ids: u64) -> u64 {
    let shards = &manifest.shards;
    let mut first = 0;
    let mut tokens = 0;
    let mut most = 0;
    for (last, shard) in shards.iter().enumerate() {
        tokens += shard.tokens;
        // `tokens` are those of `first` to `last`.
        while first < last && tokens - shards[first].tokens - shard.tokens + 2 > ids {
            tokens -= shards[first].tokens;
            first += 1;
        }
        most = most.max(last - first + 1);
    }
    most as u64
}
