//! Which chunks of shards a node fetches next: those that its coming steps read, step by step, and
//! then all others that a run reads which has an epoch left.
//!
//! Windows are shuffled over a whole store, so that even one step reads of many shards, and of each
//! little. What is fetched by itself is therefore a chunk of a shard.

mod bounded;
mod needed;

pub use bounded::ShardCacheShortage;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use zbelastic_trainer::data::BatchSource;
use zbelastic_trainer::outer::island_batches;
use zbelastic_trainer::stage::evaluates_at;
use zbelastic_types::{Bytes, Step};

use crate::mixture::StoreMixture;
use crate::store::{ShardChunk, TokenStore};

/// Windows that are looked at behind the steps that are here. To find where so many lie takes some
/// 20 ms of one core.
const WINDOWS_AHEAD: u64 = 1 << 15;
/// Steps that are looked at in any case: enough for a fetch to be ahead of those that run.
const STEPS_AHEAD_MIN: u64 = 16;

/// The steps of a run, as far as they say what is read when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunSteps {
    /// Steps of the run.
    pub count: u64,
    /// Held-out text is read after every so many steps; 0 only after the last.
    pub evaluate_every: u64,
    /// Islands that deal out batches in turn, and the number of this one; 1 and 0 without others.
    pub islands: (u64, u64),
}

/// Chunks of one shard that are fetched together, each once and in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardChunks {
    /// Index of the store in the mixture.
    pub store: usize,
    /// Index of the shard in the store.
    pub shard: usize,
    /// Indices of the chunks in the shard.
    pub chunks: Vec<u64>,
}

/// What a fetch does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PrefetchAction {
    /// The space of some chunks is freed, and then others are fetched.
    Fetch {
        /// Chunks that are no longer here, whose bytes make room. None without a limit.
        evicted: Vec<ShardChunks>,
        /// Chunks to fetch. A shard without any is opened: its file may have some already.
        wanted: Vec<ShardChunks>,
    },
    /// All is here that coming steps read, and the run ends before it has read all. More may be
    /// missing once it is further, or went back.
    Wait,
    /// All that is ever read is here.
    End,
}

/// The order in which the chunks of a mixture's shards are fetched.
#[derive(Clone, Debug)]
pub struct PrefetchOrder {
    run: RunSteps,
    /// Steps of which all is known to be here, without a limit.
    here: Range<u64>,
    /// Chunks that may be here at once, if that is limited.
    chunks_max: Option<usize>,
}

/// Chunks that are not here, in the order in which they are read first.
struct MissingChunks<'a> {
    mixture: &'a StoreMixture,
    max: usize,
    found: Vec<(usize, ShardChunk)>,
    seen: BTreeSet<(usize, ShardChunk)>,
}

impl RunSteps {
    /// Whether held-out text is read at a version.
    const fn evaluates_at(&self, version: u64) -> bool {
        evaluates_at(version, (self.count, self.evaluate_every))
    }

    /// The step of an undivided run whose batches are read in this step.
    #[must_use]
    pub const fn batch_step(&self, step: u64) -> Step {
        Step(island_batches(step, self.islands))
    }

    /// The step of this run that reads the batches of one of an undivided run.
    const fn own_step(&self, batch_step: Step) -> u64 {
        batch_step.0 / self.islands.0
    }
}

impl PrefetchOrder {
    /// The order in which these steps read chunks.
    #[must_use]
    pub const fn new(run: RunSteps) -> Self {
        Self { run, here: 0..0, chunks_max: None }
    }

    /// The same on a disk that takes so many bytes of the mixture's shards. Shards that were whole when they were mapped
    /// do not count. Where all of them fit there is no limit.
    ///
    /// # Errors
    /// If any two steps read more, with held-out text: nothing could be fetched while a step is read. The
    /// steps of a long run are not counted, and refused where they could read more.
    pub fn limit(&mut self, max: Bytes, mixture: &StoreMixture) -> Result<(), ShardCacheShortage> {
        let all: u64 = mixture.stores().iter().map(TokenStore::shard_bytes).sum();
        if all > max.0 {
            bounded::check(self.run, max, mixture)?;
            self.chunks_max = usize::try_from(max.0 / mixture.chunk_bytes()).ok();
        }
        Ok(())
    }

    /// Whether chunks are evicted, so that no shard has to become whole.
    #[must_use]
    pub const fn is_limited(&self) -> bool {
        self.chunks_max.is_some()
    }

    /// All chunks stay from now on.
    pub const fn lift_limit(&mut self) {
        self.chunks_max = None;
    }

    /// The chunks to fetch next, `max` at most. What is read from the demanded step on comes first: a
    /// run that went back to an earlier one demands that. Chunks that were requested and did not come
    /// are yielded again. With a limit, what has to make room is no longer here once this returns.
    pub fn next(&mut self, mixture: &StoreMixture, max: usize) -> PrefetchAction {
        if let Some(chunks_max) = self.chunks_max {
            return bounded::next(self.run, chunks_max, mixture, max);
        }
        let demanded = self.run.own_step(mixture.demanded());
        if demanded < self.here.start || demanded > self.here.end {
            self.here = demanded..demanded;
        }
        let mut missing = MissingChunks::new(mixture, max);
        for step in self.here.end..=self.run.count.min(self.here.end + steps_ahead(mixture)) {
            self.add_step(step, &mut missing);
            if missing.found.is_empty() {
                self.here.end = step + 1;
            }
            if missing.is_full() {
                break;
            }
        }
        let left = self.run.count.saturating_sub(demanded) * mixture.cursor().windows_per_step();
        if left >= mixture.cursor().windows_per_epoch() {
            // In the order of the shards, which is that of the holders' disks.
            missing.add_all_read();
        }
        match by_shard(missing.found) {
            wanted if !wanted.is_empty() => PrefetchAction::Fetch { evicted: Vec::new(), wanted },
            _ if has_all(mixture) => PrefetchAction::End,
            _ => PrefetchAction::Wait,
        }
    }

    fn add_step(&self, step: u64, missing: &mut MissingChunks<'_>) {
        let mixture = missing.mixture;
        if self.run.evaluates_at(step) && !mixture.has_held_out() {
            missing.add_windows(mixture.held_out_places());
        }
        if step < self.run.count {
            missing.add_windows(mixture.cursor().step_windows(self.run.batch_step(step)));
        }
    }
}

/// Whether all is here that any step or evaluation reads.
fn has_all(mixture: &StoreMixture) -> bool {
    let mut missing = MissingChunks::new(mixture, 1);
    missing.add_all_read();
    missing.found.is_empty()
}

impl<'a> MissingChunks<'a> {
    const fn new(mixture: &'a StoreMixture, max: usize) -> Self {
        Self { mixture, max, found: Vec::new(), seen: BTreeSet::new() }
    }

    const fn is_full(&self) -> bool {
        self.found.len() >= self.max
    }

    fn add(&mut self, chunk: (usize, ShardChunk)) {
        if !self.is_full() && !self.mixture.has_chunk(chunk) && self.seen.insert(chunk) {
            self.found.push(chunk);
        }
    }

    /// Adds those of these chunks that are not here, and looks at no more of them once the list is full.
    fn extend(&mut self, chunks: impl Iterator<Item = (usize, ShardChunk)>) {
        for chunk in chunks {
            self.add(chunk);
            if self.is_full() {
                return;
            }
        }
    }

    fn add_windows(&mut self, places: impl Iterator<Item = (usize, u64)>) {
        let mixture = self.mixture;
        self.extend(mixture.chunks_of(places));
    }

    /// All that some step or evaluation reads.
    fn add_all_read(&mut self) {
        let mixture = self.mixture;
        let stores = mixture.stores().iter().enumerate();
        let trained = stores.flat_map(|(source, store)| {
            let chunks = store.chunks_of(mixture.cursor().training_tokens(source));
            chunks.map(move |chunk| (source, chunk))
        });
        self.extend(trained.chain(mixture.chunks_of(mixture.held_out_places())));
    }
}

/// Steps that are looked at behind those that are here.
fn steps_ahead(mixture: &StoreMixture) -> u64 {
    WINDOWS_AHEAD.div_ceil(mixture.cursor().windows_per_step()).max(STEPS_AHEAD_MIN)
}

/// Chunks by shards, in the order in which these come first.
fn by_shard(chunks: Vec<(usize, ShardChunk)>) -> Vec<ShardChunks> {
    let mut of_shard: BTreeMap<(usize, usize), usize> = BTreeMap::new();
    let mut groups: Vec<ShardChunks> = Vec::new();
    for (store, ShardChunk { shard, chunk }) in chunks {
        let at = *of_shard.entry((store, shard)).or_insert(groups.len());
        if at == groups.len() {
            groups.push(ShardChunks { store, shard, chunks: Vec::new() });
        }
        groups[at].chunks.push(chunk);
    }
    groups.iter_mut().for_each(|group| group.chunks.sort_unstable());
    groups
}

#[cfg(test)]
mod tests;
