//! Nodes that were admitted for as long as they are present: one that is absent for long is
//! forgotten.

use std::collections::BTreeMap;

use zbelastic_types::NodeId;

use crate::access::AccessChange;
use crate::entry::Entry;
use crate::state::State;

/// Ticks for which an ephemeral node may be absent before it is forgotten: a minute of ticks of 10
/// ms, so that a process that was ended and starts again is admitted as the same node.
pub const EPHEMERAL_TICKS_MAX: u64 = 6_000;

/// Since when ephemeral nodes are absent, as far as this leader knows.
#[derive(Debug, Default)]
pub(super) struct EphemeralAbsences {
    since: BTreeMap<NodeId, u64>,
}

impl EphemeralAbsences {
    /// A tick. There are no more such nodes than members.
    pub fn handle_tick(&mut self, state: &State, now: u64) {
        let is_ephemeral = |node: &NodeId| {
            state.access().credential(*node).is_some_and(|credential| credential.is_ephemeral)
        };
        let lost = state.members().iter().filter(|(_, member)| !member.is_live());
        let gone = lost.map(|(node, _)| *node).filter(is_ephemeral);
        let since = |node: NodeId| (node, self.since.get(&node).copied().unwrap_or(now));
        self.since = gone.map(since).collect();
    }

    /// The entry that forgets a node which is absent for long, if there is one.
    pub fn decide(&self, now: u64) -> Option<Entry> {
        let is_late = |since: u64| now - since >= EPHEMERAL_TICKS_MAX;
        let (node, _) = self.since.iter().find(|(_, since)| is_late(**since))?;
        Some(Entry::Access(AccessChange::Forgotten { node: *node }))
    }

    /// An entry that forgets a node was applied or refused: its time is counted anew.
    pub fn restart_count(&mut self, node: NodeId) {
        self.since.remove(&node);
    }
}
