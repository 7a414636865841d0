//! What a run reads of its stores: batches, drawn by the cursor.
//!
//! Only stages that embed tokens or compare them with targets read any, unless documents do not see
//! each other: then every stage with attention does. On a node with another stage the shards need
//! not be: its mixture knows how many windows there are, and yields empty batches.
//!
//! Shards may arrive while a run goes on, in the order of [`crate::prefetch`]: a stage looks whether
//! all that its step reads is here before it reads any of it.

use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use zbelastic_trainer::data::{BatchSource, StepTargets, TokenBatch};
use zbelastic_trainer::stage::HELD_OUT_MAX;
use zbelastic_types::{MicrobatchIndex, Step};

use crate::cursor::{CursorConfig, CursorError, SourceShare, WindowCursor};
use crate::store::{StoreError, StoreManifest, TokenStore};
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
    /// One more than the step that was found to be here last.
    here: AtomicU64,
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
            here: AtomicU64::new(0),
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

    /// Looked up window by window until all of them are here: a chunk that is here stays.
    fn has_step(&self, step: Step) -> bool {
        self.demand(step);
        if self.here.load(Ordering::Relaxed) == step.0 + 1 {
            return true;
        }
        let is_here = self.has_windows(self.cursor.step_windows(step));
        if is_here {
            self.here.store(step.0 + 1, Ordering::Relaxed);
        }
        is_here
    }

    fn has_held_out(&self) -> bool {
        self.has_windows(self.held_out_places())
    }
}
