//! Memory for microbatches in flight: as many slots as the plan claims, allocated once.

use std::fmt::Debug;
use std::ops::RangeInclusive;

use zbelastic_types::MicrobatchIndex;

/// Slots for one kind of stash. A microbatch, or whatever else `K` names, takes one at its F and
/// gives it back when its last reader has run.
pub(crate) struct SlotPool<T, K = MicrobatchIndex> {
    slots: Vec<(Option<K>, T)>,
}

impl<T, K: Copy + Ord + Debug> SlotPool<T, K> {
    pub(crate) fn new(stashes: Vec<T>) -> Self {
        Self { slots: stashes.into_iter().map(|stash| (None, stash)).collect() }
    }

    /// Takes a free slot for `microbatch`.
    ///
    /// # Panics
    /// If there is none: the plan claimed too few.
    pub(crate) fn acquire(&mut self, microbatch: K) -> &mut T {
        let count = self.slots.len();
        let free = self.slots.iter_mut().find(|(holder, _)| holder.is_none());
        let (holder, stash) =
            free.unwrap_or_else(|| panic!("the plan claims {count} slots, all are in use"));
        *holder = Some(microbatch);
        stash
    }

    /// The slot of `microbatch`.
    ///
    /// # Panics
    /// If it has none.
    pub(crate) fn get(&mut self, microbatch: K) -> &mut T {
        self.find(microbatch).unwrap_or_else(|| panic!("{microbatch:?} has a slot"))
    }

    /// The slot of `microbatch`, if it has one.
    pub(crate) fn find(&mut self, microbatch: K) -> Option<&mut T> {
        let slot = self.slots.iter_mut().find(|(holder, _)| *holder == Some(microbatch));
        slot.map(|(_, stash)| stash)
    }

    /// Those that have a slot.
    pub(crate) fn holders(&self) -> Vec<K> {
        self.slots.iter().filter_map(|(holder, _)| *holder).collect()
    }

    /// The slots of all these, in no order.
    pub(crate) fn held(&mut self, these: RangeInclusive<K>) -> impl Iterator<Item = (K, &mut T)> {
        let held = self.slots.iter_mut().filter_map(|(holder, stash)| Some(((*holder)?, stash)));
        held.filter(move |(holder, _)| these.contains(holder))
    }

    /// Gives the slot of `microbatch` back.
    ///
    /// # Panics
    /// If it has none.
    pub(crate) fn release(&mut self, microbatch: K) {
        let slot = self.slots.iter_mut().find(|(holder, _)| *holder == Some(microbatch));
        slot.unwrap_or_else(|| panic!("{microbatch:?} has a slot")).0 = None;
    }

    /// Gives all slots back.
    pub(crate) fn release_all(&mut self) {
        self.slots.iter_mut().for_each(|(holder, _)| *holder = None);
    }

    pub(crate) fn in_use_count(&self) -> usize {
        self.slots.iter().filter(|(holder, _)| holder.is_some()).count()
    }
}

#[cfg(test)]
mod tests {
    use super::SlotPool;
    use zbelastic_types::MicrobatchIndex;

    #[test]
    fn slots_are_found_again_by_microbatch_and_can_be_taken_anew() {
        let mut slots = SlotPool::new(vec![0, 0]);
        *slots.acquire(MicrobatchIndex(3)) = 30;
        *slots.acquire(MicrobatchIndex(5)) = 50;
        assert_eq!((*slots.get(MicrobatchIndex(3)), *slots.get(MicrobatchIndex(5))), (30, 50));
        slots.release(MicrobatchIndex(3));
        assert_eq!(slots.in_use_count(), 1);
        *slots.acquire(MicrobatchIndex(6)) = 60;
        assert_eq!((*slots.get(MicrobatchIndex(5)), *slots.get(MicrobatchIndex(6))), (50, 60));
        let held = |slots: &mut SlotPool<u32>, first, last| {
            let these = MicrobatchIndex(first)..=MicrobatchIndex(last);
            let mut held: Vec<(u32, u32)> =
                slots.held(these).map(|(k, stash)| (k.0, *stash)).collect();
            held.sort_unstable();
            held
        };
        assert_eq!(held(&mut slots, 5, 6), [(5, 50), (6, 60)]);
        assert_eq!(held(&mut slots, 6, 9), [(6, 60)]);
        slots.release_all();
        assert_eq!(slots.in_use_count(), 0);
    }

    #[test]
    #[should_panic(expected = "the plan claims 1 slots")]
    fn one_slot_too_many_is_our_own_mistake() {
        let mut slots = SlotPool::new(vec![()]);
        slots.acquire(MicrobatchIndex(0));
        slots.acquire(MicrobatchIndex(1));
    }
}
