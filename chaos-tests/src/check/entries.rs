//! S2, S6: the effect of an entry is the same everywhere, and nothing is agreed on without a
//! majority.

use std::collections::BTreeMap;

use super::FirstFailure;
use crate::digest_model::mix_bytes;
use crate::failure::Invariant;

/// The effect of each index of the log.
#[derive(Default)]
pub(super) struct EntryChecker {
    /// The entry that was applied at each index, and the state after it.
    seen: BTreeMap<u64, (u64, Option<u64>)>,
    /// The last entry that any leader had proposed when a majority of the voters went for good.
    last_possible: Option<u64>,
}

impl EntryChecker {
    /// S2: the effect of an index is the same everywhere. Yields whether it is the first time.
    pub(super) fn check_same(
        &mut self,
        failure: &mut FirstFailure,
        index: u64,
        what: &str,
        state: Option<u64>,
    ) -> bool {
        let found = mix_bytes(what.as_bytes());
        let before = self.seen.get(&index).copied();
        let known_state = before.and_then(|(_, known)| known).or(state);
        self.seen.insert(index, (found, known_state));
        let is_same_state = state.is_none() || state == known_state;
        match before {
            None => true,
            Some((known, _)) if known == found && is_same_state => false,
            Some(_) => {
                failure.set(Invariant::S2, || format!("#{index} is not the same: {what}"));
                false
            }
        }
    }

    /// S6: an entry that was applied could be agreed on.
    pub(super) fn check_possible(&self, failure: &mut FirstFailure, index: u64) {
        if self.last_possible.is_some_and(|last| index > last) {
            failure.set(Invariant::S6, || format!("#{index} agreed on without a majority"));
        }
    }

    /// A majority of the voters is gone: nothing after `last_index` may be agreed on.
    pub(super) fn quorum_is_lost(&mut self, last_index: u64) {
        self.last_possible = Some(last_index);
    }
}
