//! Memory for passes of one length over a chunk: as many slots as the plan claims.
//!
//! A pass acquires a slot for the parts it keeps, one for the recomputed parts, and one for logits,
//! which is as large as all the rest. Recomputed parts lie in memory of their own, which is
//! exchanged with the empty parts of the stash, so that passes read one stash with or without
//! recomputation.

use zbelastic_kernels::Backend;
use zbelastic_schedule::LivePasses;
use zbelastic_types::{LayerRange, MicrobatchIndex, SliceIndex};

use super::slots::SlotPool;
use crate::model::{BufferSize, Logits, PassSizes, PassStash, Recompute, RecomputedParts};

/// A slice of a microbatch; all of it where sequences are not cut.
pub(super) type MicrobatchSlice = (MicrobatchIndex, SliceIndex);

/// Slots for passes of one length.
pub(super) struct PassPool<B: Backend> {
    pub(super) stashes: SlotPool<PassStash<B::Buffer>, MicrobatchSlice>,
    recomputed: SlotPool<PassStash<B::Buffer>, MicrobatchSlice>,
    pub(super) logits: SlotPool<Logits<B::Buffer>, MicrobatchSlice>,
    has_head: bool,
    recompute: Recompute,
    recomputed_parts: RecomputedParts,
}

impl<B: Backend> PassPool<B> {
    /// The slots of a chunk of these layers, made by `make` from their sizes.
    pub(super) fn new<E>(
        (sizes, layers, has_head): (&PassSizes<'_>, LayerRange, bool),
        live: LivePasses,
        recompute: Recompute,
        make: &mut impl FnMut(BufferSize) -> Result<B::Buffer, E>,
    ) -> Result<Self, E> {
        let LivePasses { slots, early_slots, recomputed_slots, recomputed_early_slots, .. } = live;
        let recomputed_slots = if recompute.is_any() { recomputed_slots } else { 0 };
        let early_slots =
            if recompute.recomputes_logits() { recomputed_early_slots } else { early_slots };
        let logits = if has_head { early_slots } else { 0 };
        let stash = |_| PassStash::build_kept(sizes, layers, recompute, make);
        let stashes = (0..slots).map(stash).collect::<Result<_, _>>()?;
        let stash = |_| PassStash::build_recomputed(sizes, layers, recompute, make);
        let recomputed = (0..recomputed_slots).map(stash).collect::<Result<_, _>>()?;
        let logits = (0..logits).map(|_| sizes.logits(make)).collect::<Result<_, _>>()?;
        Ok(Self {
            stashes: SlotPool::new(stashes),
            recomputed: SlotPool::new(recomputed),
            logits: SlotPool::new(logits),
            has_head,
            recompute,
            recomputed_parts: recompute.parts(sizes.is_cut),
        })
    }

    /// Slots that passes hold.
    pub(super) fn slots_in_use(&self) -> usize {
        self.stashes.in_use_count() + self.logits.in_use_count()
    }

    /// Acquires the slots of a pass, as F begins.
    pub(super) fn open(&mut self, part: MicrobatchSlice) {
        self.stashes.acquire(part);
        self.acquire_recomputed(part);
        if self.has_head {
            self.logits.acquire(part);
        }
    }

    /// Releases the slots of a pass, once W is done.
    pub(super) fn close(&mut self, part: MicrobatchSlice) {
        self.release_recomputed(part);
        self.stashes.release(part);
    }

    /// Releases the slots of the parts that R recomputes, as DROP runs.
    pub(super) fn drop_recomputed(&mut self, part: MicrobatchSlice) {
        self.release_recomputed(part);
        if self.has_head && self.recompute.recomputes_logits() {
            self.logits.release(part);
        }
    }

    /// Acquires again the slots that DROP released, as R begins.
    pub(super) fn reopen(&mut self, part: MicrobatchSlice) {
        self.acquire_recomputed(part);
        if self.has_head && self.recompute.recomputes_logits() {
            self.logits.acquire(part);
        }
    }

    /// The turn was dropped: all slots are free.
    pub(super) fn release_all(&mut self) {
        for part in self.recomputed.holders() {
            self.release_recomputed(part);
        }
        self.stashes.release_all();
        self.logits.release_all();
    }

    pub(super) fn acquire_recomputed(&mut self, part: MicrobatchSlice) {
        if self.recompute.is_any() {
            let recomputed = self.recomputed.acquire(part);
            self.stashes.get(part).swap_recomputed(recomputed, self.recomputed_parts);
        }
    }

    /// Releases the slot of the parts that can be recomputed: they are not read any more. Returns
    /// whether there was one.
    pub(super) fn release_recomputed(&mut self, part: MicrobatchSlice) -> bool {
        let Some(recomputed) = self.recomputed.find(part) else { return false };
        self.stashes.get(part).swap_recomputed(recomputed, self.recomputed_parts);
        self.recomputed.release(part);
        true
    }
}
