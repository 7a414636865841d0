//! States and entries by number. The small world meets few of them, again and again.

use std::collections::BTreeMap;
use std::sync::Arc;

use zbelastic_consensus::state::{State, StateChange};
use zbelastic_consensus::{Entry, codec};

/// A replicated state, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct StateId(pub u32);

/// An entry, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct EntryId(pub u32);

/// The effect of an entry in a state, if it fits.
pub(super) type EntryEffect = Option<(StateId, Arc<StateChange>)>;

/// Every replicated state and every entry there was. Applying one to the other is a function, so it
/// is done once.
#[derive(Default)]
pub(super) struct TransitionCache {
    states: Vec<Arc<State>>,
    state_ids: BTreeMap<Vec<u8>, StateId>,
    entries: Vec<Entry>,
    entry_ids: BTreeMap<Vec<u8>, EntryId>,
    effects: BTreeMap<(StateId, EntryId), EntryEffect>,
}

impl TransitionCache {
    pub(super) fn state(&self, id: StateId) -> &Arc<State> {
        &self.states[id.0 as usize]
    }

    pub(super) fn entry(&self, id: EntryId) -> &Entry {
        &self.entries[id.0 as usize]
    }

    pub(super) fn add_state(&mut self, state: State) -> StateId {
        let next = StateId(self.states.len() as u32);
        let id = *self.state_ids.entry(codec::encode(&state)).or_insert(next);
        if id == next {
            self.states.push(Arc::new(state));
        }
        id
    }

    pub(super) fn add_entry(&mut self, entry: Entry) -> EntryId {
        let next = EntryId(self.entries.len() as u32);
        let id = *self.entry_ids.entry(codec::encode(&entry)).or_insert(next);
        if id == next {
            self.entries.push(entry);
        }
        id
    }

    /// Applies an entry. One that does not fit receives no index here, so that states which differ
    /// in nothing else are one.
    ///
    /// # Panics
    /// If an entry that is refused changes more than the index.
    pub(super) fn apply(&mut self, state: StateId, entry: EntryId) -> EntryEffect {
        if let Some(effect) = self.effects.get(&(state, entry)) {
            return effect.clone();
        }
        let mut after = State::clone(self.state(state));
        let index = after.applied() + 1;
        let effect = match after.apply(index, self.entry(entry).clone()) {
            Ok(change) => Some((self.add_state(after), Arc::new(change))),
            Err(refusal) => {
                let mut before = State::clone(self.state(state));
                before.pass(index);
                assert_eq!(after, before, "an entry was refused and changed something: {refusal}");
                None
            }
        };
        self.effects.insert((state, entry), effect.clone());
        effect
    }
}
