//! Memory for passes of one length over a chunk: as many slots as the plan claims.
//!
//! A pass takes a slot for what it keeps, one for what is made again, and one for logits, which is as
//! large as all the rest. What is made again lies in memory of its own, which is exchanged with the
//! empty parts of the stash, so that passes read one stash whatever was made again.

use zbelastic_kernels::Backend;
use zbelastic_schedule::PassesLive;
use zbelastic_types::{LayerRange, MicrobatchIndex, SliceIndex};

use super::slots::Slots;
use crate::model::{Logits, PassStash, Recompute, RemadeParts, Sizes, Space};

/// A slice of a microbatch; all of it where sequences are not cut.
pub(super) type Part = (MicrobatchIndex, SliceIndex);

/// Slots for passes of one length.
pub(super) struct PassPool<B: Backend> {
    pub(super) stashes: Slots<PassStash<B::Buffer>, Part>,
    remade: Slots<PassStash<B::Buffer>, Part>,
    pub(super) logits: Slots<Logits<B::Buffer>, Part>,
    has_head: bool,
    recompute: Recompute,
    remade_parts: RemadeParts,
}

impl<B: Backend> PassPool<B> {
    /// The slots of a chunk of these layers, made by `make` from what they take.
    pub(super) fn new<E>(
        (sizes, layers, has_head): (&Sizes<'_>, LayerRange, bool),
        live: PassesLive,
        recompute: Recompute,
        make: &mut impl FnMut(Space) -> Result<B::Buffer, E>,
    ) -> Result<Self, E> {
        let PassesLive { slots, early_slots, remade_slots, remade_early_slots, .. } = live;
        let remade_slots = if recompute.is_any() { remade_slots } else { 0 };
        let early_slots = if recompute.remakes_logits() { remade_early_slots } else { early_slots };
        let logits = if has_head { early_slots } else { 0 };
        let stash = |_| PassStash::build_kept(sizes, layers, recompute, make);
        let stashes = (0..slots).map(stash).collect::<Result<_, _>>()?;
        let remade = |_| PassStash::build_remade(sizes, layers, recompute, make);
        let remade = (0..remade_slots).map(remade).collect::<Result<_, _>>()?;
        let logits = (0..logits).map(|_| sizes.logits(make)).collect::<Result<_, _>>()?;
        Ok(Self {
            stashes: Slots::new(stashes),
            remade: Slots::new(remade),
            logits: Slots::new(logits),
            has_head,
            recompute,
            remade_parts: recompute.parts(sizes.is_cut),
        })
    }

    /// Slots that passes hold.
    pub(super) fn taken(&self) -> usize {
        self.stashes.taken() + self.logits.taken()
    }

    /// F begins.
    pub(super) fn open(&mut self, part: Part) {
        self.stashes.acquire(part);
        self.take_remade(part);
        if self.has_head {
            self.logits.acquire(part);
        }
    }

    /// W is done.
    pub(super) fn close(&mut self, part: Part) {
        self.give_remade(part);
        self.stashes.release(part);
    }

    /// What R makes again is given up.
    pub(super) fn give_up(&mut self, part: Part) {
        self.give_remade(part);
        if self.has_head && self.recompute.remakes_logits() {
            self.logits.release(part);
        }
    }

    /// R begins.
    pub(super) fn reopen(&mut self, part: Part) {
        self.take_remade(part);
        if self.has_head && self.recompute.remakes_logits() {
            self.logits.acquire(part);
        }
    }

    /// The turn was dropped: all slots are free.
    pub(super) fn release_all(&mut self) {
        for part in self.remade.holders() {
            self.give_remade(part);
        }
        self.stashes.release_all();
        self.logits.release_all();
    }

    pub(super) fn take_remade(&mut self, part: Part) {
        if self.recompute.is_any() {
            let remade = self.remade.acquire(part);
            self.stashes.get(part).exchange_remade(remade, self.remade_parts);
        }
    }

    /// What can be made again is not read any more: its memory is free. Returns whether there was any.
    pub(super) fn give_remade(&mut self, part: Part) -> bool {
        let Some(remade) = self.remade.find(part) else { return false };
        self.stashes.get(part).exchange_remade(remade, self.remade_parts);
        self.remade.release(part);
        true
    }
}
