//! What a run reads of its stores: batches, drawn by the cursor.
//!
//! Only stages that embed tokens or compare them with targets read any, unless documents do not see
//! each other: then every stage with attention does. On a node with another stage the shards need
//! not be: its mixture knows how many windows there are, and yields empty batches.

use std::num::NonZeroU32;
use std::sync::OnceLock;

use zbelastic_trainer::data::{BatchSource, StepTargets, TokenBatch};
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
        Ok(Self { cursor, packing, is_masked, stores: OnceLock::new(), fault: OnceLock::new() })
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
        let sequences = 0..self.cursor.shape().sequences;
        let place = |sequence| {
            let address = self.cursor.window(step, microbatch, sequence);
            (address.source, self.cursor.first_token(address))
        };
        self.read(sequences.map(place))
    }

    /// The windows of a held-out microbatch, or `None` beyond the last; none without stores. A last
    /// microbatch that is not full is left out, except if it is the only one: then its windows
    /// repeat.
    ///
    /// # Errors
    /// If a store is damaged.
    pub fn held_out_windows(&self, index: u32) -> Result<Option<Vec<PackedWindow>>, StoreError> {
        let sequences = self.cursor.shape().sequences as u64;
        let windows = self.cursor.held_out_windows();
        let full = windows / sequences;
        let count = if full == 0 { windows.min(1) } else { full };
        if u64::from(index) >= count {
            return Ok(None);
        }
        let numbers = (0..sequences).map(|at| (u64::from(index) * sequences + at) % windows);
        self.read(numbers.filter_map(|number| self.cursor.held_out(number))).map(Some)
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
}
