//! A chunk with the memory its passes work in: as many slots as the plan claims, taken and given back
//! where the program says.
//!
//! A pass takes a slot for what it keeps, one for what is made again, and one for logits, which is as
//! large as all the rest. What is made again lies in memory of its own, which is exchanged with the
//! empty parts of the stash, so that passes read one stash whatever was made again.

use std::collections::BTreeMap;

use zbelastic_kernels::Backend;
use zbelastic_schedule::PassesLive;
use zbelastic_types::{LayerRange, MicrobatchIndex, SliceIndex};

use super::slots::Slots;
use crate::model::{Chunk, Logits, PassStash, Recompute, RemadeParts, Sizes, put_left, take_left};

/// What of a pass is away.
#[derive(Clone, Copy, Debug)]
struct Away {
    has_remade: bool,
    has_logits: bool,
}

/// A slice of a microbatch; all of it where sequences are not cut.
pub(super) type Part = (MicrobatchIndex, SliceIndex);

/// The chunk, and what a pass works in.
pub(super) struct Working<'a, B: Backend> {
    pub(super) chunk: &'a mut Chunk<B>,
    pub(super) stash: &'a mut PassStash<B::Buffer>,
    /// Those of the slices before, in order.
    pub(super) earlier: Vec<&'a mut PassStash<B::Buffer>>,
    pub(super) logits: Option<&'a mut Logits<B::Buffer>>,
}

/// A chunk with the memory its passes work in.
pub(super) struct ChunkBench<B: Backend> {
    pub(super) chunk: Chunk<B>,
    stashes: Slots<PassStash<B::Buffer>, Part>,
    remade: Slots<PassStash<B::Buffer>, Part>,
    logits: Slots<Logits<B::Buffer>, Part>,
    recompute: Recompute,
    remade_parts: RemadeParts,
    away: BTreeMap<Part, Away>,
    /// Weight gradients added so far this step: the order rule.
    pub(super) accumulated: u32,
    pub(super) head_accumulated: u32,
}

impl<B: Backend> ChunkBench<B> {
    /// The slots of a chunk of these layers, made by `make` from their sizes in floats.
    pub(super) fn new<E>(
        chunk: Chunk<B>,
        (sizes, layers): (&Sizes<'_>, LayerRange),
        live: PassesLive,
        recompute: Recompute,
        make: &mut impl FnMut(usize) -> Result<B::Buffer, E>,
    ) -> Result<Self, E> {
        let PassesLive { slots, early_slots, remade_slots, remade_early_slots, .. } = live;
        let remade_slots = if recompute.is_any() { remade_slots } else { 0 };
        let early_slots = if recompute.remakes_logits() { remade_early_slots } else { early_slots };
        let logits = if chunk.has_head() { early_slots } else { 0 };
        let stash = |_| PassStash::build_kept(sizes, layers, recompute, make);
        let stashes = (0..slots).map(stash).collect::<Result<_, _>>()?;
        let remade = |_| PassStash::build_remade(sizes, layers, recompute, make);
        let remade = (0..remade_slots).map(remade).collect::<Result<_, _>>()?;
        let logits = (0..logits).map(|_| sizes.logits(make)).collect::<Result<_, _>>()?;
        Ok(Self {
            chunk,
            stashes: Slots::new(stashes),
            remade: Slots::new(remade),
            logits: Slots::new(logits),
            recompute,
            remade_parts: recompute.parts(sizes.is_cut),
            away: BTreeMap::new(),
            accumulated: 0,
            head_accumulated: 0,
        })
    }

    /// Slots that passes hold, here and elsewhere.
    pub(super) fn slots_taken(&self) -> usize {
        self.stashes.taken() + self.logits.taken() + self.away.len()
    }

    /// The chunk, and what a pass works in.
    pub(super) fn working(&mut self, part: Part) -> Working<'_, B> {
        let mut earlier = self.stashes.get_all((part.0, SliceIndex(0)), part);
        assert_eq!(earlier.len(), part.1.index() + 1, "earlier slices have their slots");
        let stash = earlier.pop().expect("a slot a slice");
        Working { chunk: &mut self.chunk, stash, earlier, logits: self.logits.find(part) }
    }

    /// F begins.
    pub(super) fn open(&mut self, part: Part) {
        self.stashes.acquire(part);
        self.take_remade(part);
        if self.chunk.has_head() {
            self.logits.acquire(part);
        }
    }

    /// W is done.
    pub(super) fn close(&mut self, part: Part) {
        self.give_remade(part);
        self.stashes.release(part);
    }

    /// Nobody reads the logits any more.
    pub(super) fn close_logits(&mut self, part: Part) {
        self.logits.release(part);
    }

    /// What R makes again is given up.
    pub(super) fn give_up(&mut self, part: Part) {
        self.give_remade(part);
        if self.chunk.has_head() && self.recompute.remakes_logits() {
            self.logits.release(part);
        }
    }

    /// R begins.
    pub(super) fn reopen(&mut self, part: Part) {
        self.take_remade(part);
        if self.chunk.has_head() && self.recompute.remakes_logits() {
            self.logits.acquire(part);
        }
    }

    /// What leaves with a pass.
    pub(super) fn read_left(&mut self, backend: &B, part: Part) -> Vec<f32> {
        let Working { stash, logits, .. } = self.working(part);
        take_left(backend, stash, logits)
    }

    /// A pass has left: its slots are free.
    pub(super) fn depart(&mut self, part: Part) {
        let has_remade = self.give_remade(part);
        let has_logits = self.logits.find(part).is_some();
        if has_logits {
            self.logits.release(part);
        }
        self.stashes.release(part);
        self.away.insert(part, Away { has_remade, has_logits });
    }

    /// A pass comes back, with what left.
    pub(super) fn come_back(&mut self, backend: &B, part: Part, floats: &[f32]) {
        let left = self.away.remove(&part);
        let Away { has_remade, has_logits } = left.expect("what comes back was away");
        self.stashes.acquire(part);
        if has_remade {
            self.take_remade(part);
        }
        if has_logits {
            self.logits.acquire(part);
        }
        let Working { stash, logits, .. } = self.working(part);
        put_left(backend, floats, stash, logits);
    }

    /// The turn was dropped: all slots are free.
    pub(super) fn release_all(&mut self) {
        for part in self.remade.holders() {
            self.give_remade(part);
        }
        self.stashes.release_all();
        self.logits.release_all();
        self.away.clear();
        (self.accumulated, self.head_accumulated) = (0, 0);
    }

    fn take_remade(&mut self, part: Part) {
        if self.recompute.is_any() {
            let remade = self.remade.acquire(part);
            self.stashes.get(part).exchange_remade(remade, self.remade_parts);
        }
    }

    /// Nobody reads what can be made again any more. Whether there was any.
    pub(super) fn give_remade(&mut self, part: Part) -> bool {
        let Some(remade) = self.remade.find(part) else { return false };
        self.stashes.get(part).exchange_remade(remade, self.remade_parts);
        self.remade.release(part);
        true
    }
}
