//! How many chunks a disk has to take at least: those of any two steps of a run, and of held-out text.
//!
//! One step is fetched while the device is in another, and after a rewind that is any other one. So no step
//! that comes later may read more than was found when the run began.

use std::collections::BTreeSet;

use super::RunSteps;
use crate::mixture::StoreMixture;
use crate::store::{ShardChunk, StoreManifest, TokenStore};

/// Windows of a run's steps whose chunks are counted, which takes some 0.2 s of one core. Of a longer run
/// the most that so many windows could read is taken.
const WINDOWS_COUNTED_MAX: u64 = 1 << 18;

type Chunks = BTreeSet<(usize, ShardChunk)>;

/// Chunks that any two steps and held-out text read together at most, of shards that arrive.
pub(super) fn chunks_needed(run: RunSteps, mixture: &StoreMixture) -> u64 {
    let windows = run.count.saturating_mul(mixture.cursor().windows_per_step());
    let needed =
        if windows <= WINDOWS_COUNTED_MAX { counted(run, mixture) } else { bound(run, mixture) };
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
    let of_window = mixture.stores().iter().map(|store| chunks_of_ids_max(store, ids)).max();
    let windows = mixture.cursor().windows_per_step().saturating_mul(run.count.min(2));
    let shared = with_ends(&held_out(mixture), mixture).len() as u64;
    windows.saturating_mul(of_window.unwrap_or(0)).saturating_add(shared)
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

/// Chunks of a store that so many ids that follow each other lie in at most, with their bits of the loss mask.
fn chunks_of_ids_max(store: &TokenStore, ids: u64) -> u64 {
    let manifest = store.manifest();
    let parts = shards_of_ids_max(manifest, ids);
    // In each shard the bytes begin within a chunk and end within another one.
    let chunks = |bytes: u64| bytes / store.chunk_bytes() + 2 * parts;
    let is_masked = manifest.shards.iter().any(|shard| shard.has_loss_mask);
    // In each shard the bits begin within a byte and end within another one.
    let mask = if is_masked { chunks(ids / 8 + 2 * parts) } else { 0 };
    chunks(ids * manifest.id_bytes()) + mask
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
