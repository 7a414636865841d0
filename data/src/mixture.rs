//! What a run reads of its stores: batches, drawn by the cursor.
//!
//! Only stages that embed tokens or compare them with targets read any, unless documents do not see
//! each other: then every stage with attention does. On a node with another stage the shards need
//! not be: its mixture knows how many windows there are, and yields empty batches.
//!
//! Shards may arrive while a run goes on, in the order of [`crate::prefetch`]: a stage looks whether
//! all that its step reads is here before it reads any of it.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use zbelastic_trainer::data::{BatchSource, StepTargets, TokenBatch};
use zbelastic_trainer::stage::HELD_OUT_MAX;
use zbelastic_types::{MicrobatchIndex, Step};

use crate::cursor::{CursorConfig, CursorError, SourceShare, WindowCursor};
use crate::store::{ShardChunk, StoreError, StoreManifest, TokenStore};
use crate::window::{PackedWindow, Packing};

/// Stores that are read as a mixture.
#[derive(Debug)]
pub struct StoreMixture {
    cursor: WindowCursor,
    packing: Packing,
    /// Whether some targets may not count in the loss.
    is_masked: bool,
    stores: OnceLock<Vec<TokenStore>>,
    fault: OnceLock<StoreError>,
    /// The step that was read or waited for last.
    demanded: AtomicU64,
    /// The step that the device reads, or waits for.
    claim: Mutex<StepClaim>,
}

/// The step that [`BatchSource::has_step`] was called with last. While it is that step, none of its
/// chunks is evicted.
#[derive(Clone, Copy, Debug, Default)]
struct StepClaim {
    step: Option<Step>,
    /// Whether all was found to be here that it reads.
    is_here: bool,
}

impl StoreMixture {
    /// A mixture of stores with these contents and weights. It reads them once they are
    /// [provided](Self::provide).
    ///
    /// # Errors
    /// If there is none, one is too short for a window, or weights are too far from each other.
    pub fn new<'a>(
        stores: impl IntoIterator<Item = (&'a StoreManifest, NonZeroU32)>,
        packing: Packing,
        config: &CursorConfig,
    ) -> Result<Self, CursorError> {
        let share = |(manifest, weight): (&StoreManifest, NonZeroU32)| SourceShare {
            tokens: manifest.tokens(),
            weight,
        };
        let stores: Vec<_> = stores.into_iter().collect();
        let mut shards = stores.iter().flat_map(|(manifest, _)| &manifest.shards);
        let is_masked = packing == Packing::Documents || shards.any(|shard| shard.has_loss_mask);
        let shares: Vec<_> = stores.into_iter().map(share).collect();
        let cursor = WindowCursor::new(&shares, config)?;
        Ok(Self {
            cursor,
            packing,
            is_masked,
            stores: OnceLock::new(),
            fault: OnceLock::new(),
            demanded: AtomicU64::new(0),
            claim: Mutex::default(),
        })
    }

    /// Gives it the stores to read, in the order of their contents. Given again they are dropped.
    pub fn provide(&self, stores: Vec<TokenStore>) {
        let _ = self.stores.set(stores);
    }

    /// Whether it has the stores to read.
    #[must_use]
    pub fn is_provided(&self) -> bool {
        self.stores.get().is_some()
    }

    /// The stores, once they are provided; none before.
    #[must_use]
    pub fn stores(&self) -> &[TokenStore] {
        self.stores.get().map_or(&[], Vec::as_slice)
    }

    /// Whether a chunk of a store is here.
    pub(crate) fn has_chunk(&self, (store, chunk): (usize, ShardChunk)) -> bool {
        self.stores().get(store).is_some_and(|store| store.has_chunk(chunk))
    }

    /// Bytes of a chunk of shards that arrive, of all stores.
    pub(crate) fn chunk_bytes(&self) -> u64 {
        self.stores().first().map_or(u64::MAX, TokenStore::chunk_bytes)
    }

    /// The step that was read or waited for last: what it reads is fetched first.
    #[must_use]
    pub fn demanded(&self) -> Step {
        Step(self.demanded.load(Ordering::Relaxed))
    }

    /// This step is read next.
    pub fn demand(&self, step: Step) {
        self.demanded.store(step.0, Ordering::Relaxed);
    }

    /// The sources and first ids of all windows of held-out text that are read.
    pub fn held_out_places(&self) -> impl Iterator<Item = (usize, u64)> {
        let count = self.held_out_batches().min(u64::from(HELD_OUT_MAX)) as u32;
        (0..count).flat_map(|index| self.held_out_batch_places(index))
    }

    /// The ids of a window that begins with this one.
    #[must_use]
    pub fn window_tokens(&self, first: u64) -> Range<u64> {
        first..first + self.cursor.shape().sequence_len as u64 + 1
    }

    /// The chunks that a read of these windows touches, some more than once, each with its store's index.
    pub(crate) fn chunks_of(
        &self,
        places: impl Iterator<Item = (usize, u64)>,
    ) -> impl Iterator<Item = (usize, ShardChunk)> {
        let placed = places.filter_map(|(source, first)| {
            let store = self.stores().get(source)?;
            Some((source, store.chunks_of(self.window_tokens(first))))
        });
        placed.flat_map(|(source, chunks)| chunks.map(move |chunk| (source, chunk)))
    }

    fn claim(&self) -> MutexGuard<'_, StepClaim> {
        // A step is set or it is not, wherever a thread panicked.
        self.claim.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The step that the device reads, or waits for, if it did so before.
    pub(crate) fn claimed(&self) -> Option<Step> {
        self.claim().step
    }

    /// Chunks are no longer here, so that the space of their bytes may be freed once this returns.
    /// Yields those of which that is true: none of the claimed step, none of held-out text, and none
    /// that was not here.
    ///
    /// No read meets a chunk whose bytes go. The device's thread is the one that calls `has_step`: it
    /// reads a step only if that was the last one it called it with, and got true. That call sets the
    /// claim and looks at the bits behind one lock, and this compares with the claim and clears bits
    /// behind the same. So either the bits were cleared before, and the device waits for the chunks as
    /// for any that has not come; or it claimed the step before, and its chunks stay until it claims
    /// another one, when it has read. Which step that is does not matter: one that the run went
    /// back to is claimed as any other. Bytes that are fetched again are written behind this by the
    /// thread of the fetch that called it, and their bits set behind that.
    pub(crate) fn evict(&self, mut chunks: Vec<(usize, ShardChunk)>) -> Vec<(usize, ShardChunk)> {
        let mut kept: BTreeSet<_> = self.chunks_of(self.held_out_places()).collect();
        let claim = self.claim();
        if let Some(step) = claim.step {
            kept.extend(self.chunks_of(self.cursor.step_windows(step)));
        }
        chunks.retain(|chunk| {
            let (source, in_store) = *chunk;
            !kept.contains(chunk) && self.stores()[source].forget_chunk(in_store)
        });
        chunks
    }

    /// Whether all that a step reads is here now. For the device's thread `has_step` answers that, which
    /// also claims it: without a claim some of it may go.
    #[must_use]
    pub fn holds_step(&self, step: Step) -> bool {
        self.has_windows(self.cursor.step_windows(step))
    }

    fn has_windows(&self, mut places: impl Iterator<Item = (usize, u64)>) -> bool {
        let Some(stores) = self.stores.get() else { return true };
        places.all(|(source, first)| stores[source].has(self.window_tokens(first)))
    }

    /// Microbatches of held-out text. A last one that is not full is left out, except if it is the
    /// only one.
    fn held_out_batches(&self) -> u64 {
        let windows = self.cursor.held_out_windows();
        let full = windows / self.cursor.shape().sequences as u64;
        if full == 0 { windows.min(1) } else { full }
    }

    /// The windows of a held-out microbatch; those of the only one repeat if they are too few.
    fn held_out_batch_places(&self, index: u32) -> impl Iterator<Item = (usize, u64)> {
        let windows = self.cursor.held_out_windows();
        let sequences = self.cursor.shape().sequences as u64;
        let numbers =
            (0..sequences).map(move |at| (u64::from(index) * sequences + at) % windows.max(1));
        numbers.filter_map(|number| self.cursor.held_out(number))
    }

    /// The order in which windows are read.
    #[must_use]
    pub fn cursor(&self) -> &WindowCursor {
        &self.cursor
    }

    /// What made a batch unreadable, if anything did: that batch, and all that was computed since,
    /// must not be used.
    #[must_use]
    pub fn fault(&self) -> Option<&StoreError> {
        self.fault.get()
    }

    /// The windows of a microbatch, one a sequence; none without stores.
    ///
    /// # Errors
    /// If a store is damaged.
    pub fn training_windows(
        &self,
        step: Step,
        microbatch: MicrobatchIndex,
    ) -> Result<Vec<PackedWindow>, StoreError> {
        self.read(self.cursor.microbatch_windows(step, microbatch))
    }

    /// The windows of a held-out microbatch, or `None` beyond the last; none without stores.
    ///
    /// # Errors
    /// If a store is damaged.
    pub fn held_out_windows(&self, index: u32) -> Result<Option<Vec<PackedWindow>>, StoreError> {
        if u64::from(index) >= self.held_out_batches() {
            return Ok(None);
        }
        self.read(self.held_out_batch_places(index)).map(Some)
    }

    fn read(
        &self,
        places: impl Iterator<Item = (usize, u64)>,
    ) -> Result<Vec<PackedWindow>, StoreError> {
        let Some(stores) = self.stores.get() else { return Ok(Vec::new()) };
        let length = self.cursor.shape().sequence_len;
        let window =
            |(source, first): (usize, u64)| stores[source].window(first, length, self.packing);
        places.map(window).collect()
    }

    /// A batch of the right shape in place of one that cannot be read.
    fn unreadable(&self, fault: StoreError) -> TokenBatch {
        // The first fault is the one to report.
        let _ = self.fault.set(fault);
        let shape = self.cursor.shape();
        let tokens = vec![0; shape.sequences * shape.sequence_len];
        TokenBatch::new(tokens.clone(), tokens)
    }
}

impl BatchSource for StoreMixture {
    fn training(&self, step: Step, microbatch: MicrobatchIndex) -> TokenBatch {
        match self.training_windows(step, microbatch) {
            Ok(windows) => PackedWindow::batch(&windows, self.packing),
            Err(fault) => self.unreadable(fault),
        }
    }

    /// Counted in the masks of the windows, which are read only where some targets may not count.
    fn targets(&self, step: Step, microbatch_count: u32) -> StepTargets {
        let rows = self.cursor.shape().rows() as u64;
        let all = StepTargets::all_counted(rows * u64::from(microbatch_count));
        if !self.is_masked {
            return all;
        }
        let count = |microbatch| match self.training_windows(step, microbatch) {
            Ok(windows) => {
                let masks = windows.iter().flat_map(|window| &window.loss_mask);
                masks.filter(|is_in_loss| **is_in_loss).count() as u64
            }
            Err(fault) => self.unreadable(fault).target_count(),
        };
        StepTargets { counted: (0..microbatch_count).map(MicrobatchIndex).map(count).sum(), ..all }
    }

    fn held_out(&self, index: u32) -> Option<TokenBatch> {
        match self.held_out_windows(index) {
            Ok(windows) => windows.map(|windows| PackedWindow::batch(&windows, self.packing)),
            Err(fault) => Some(self.unreadable(fault)),
        }
    }

    fn held_out_count(&self, max: u32) -> u32 {
        self.held_out_batches().min(u64::from(max)) as u32
    }

    /// Of documents that do not see each other every stage reads where they begin.
    fn is_read_by_all_stages(&self) -> bool {
        self.packing == Packing::Documents
    }

    /// Looked up window by window until all of them are here: chunks of the claimed step stay.
    fn has_step(&self, step: Step) -> bool {
        self.demand(step);
        let mut claim = self.claim();
        if claim.step != Some(step) {
            *claim = StepClaim { step: Some(step), is_here: false };
        }
        claim.is_here = claim.is_here || self.holds_step(step);
        claim.is_here
    }

    fn has_held_out(&self) -> bool {
        self.has_windows(self.held_out_places())
    }
}
