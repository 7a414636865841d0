//! In which format entries and snapshots are written.

use std::collections::BTreeMap;

use zbelastic_types::NodeId;

use crate::codec::Format;
use crate::mutant::{self, Mutant};
use crate::raft::Members;
use crate::state::State;

/// The newest format that each node reads.
#[derive(Debug)]
pub(super) struct ReadFormats {
    node: NodeId,
    /// The newest one that this program reads.
    newest: Format,
    /// The newest one of each node that is connected.
    connected: BTreeMap<NodeId, Format>,
}

impl ReadFormats {
    /// The formats that this node reads; no other is connected.
    pub(super) fn new(node: NodeId, newest: Format) -> Self {
        Self { node, newest, connected: BTreeMap::new() }
    }

    pub(super) fn note_connected(&mut self, node: NodeId, reads: Format) {
        self.connected.insert(node, reads);
    }

    pub(super) fn note_closed(&mut self, node: NodeId) {
        self.connected.remove(&node);
    }

    /// The newest format that a connected node reads.
    pub(super) fn of(&self, node: NodeId) -> Option<Format> {
        if node == self.node { Some(self.newest) } else { self.connected.get(&node).copied() }
    }

    /// Voters, learners and workers counted on that do not read a newer format than the one that is
    /// agreed on, or are not connected, so that the formats they read are not known: the format
    /// stays as it is until there is none. Empty if this program does not read a newer one itself.
    pub(super) fn holding_back(
        &self,
        state: &State,
        members: Members,
    ) -> impl Iterator<Item = NodeId> {
        let agreed = state.format();
        let is_newest = self.newest <= agreed;
        let Members { voters, outgoing, learners } = members;
        let workers = state.live_workers().map(|(holder, _)| holder.node);
        let counted = voters.into_iter().chain(outgoing).chain(learners).chain(workers);
        counted.filter(move |node| !is_newest && self.of(*node).is_none_or(|it| it <= agreed))
    }

    /// The format that is to be agreed on, once all nodes of the cluster read a newer one.
    pub(super) fn next(&self, state: &State, members: Members) -> Option<Format> {
        let next = Format::of(state.format().number() + 1).filter(|to| *to <= self.newest)?;
        let counts = |node: &NodeId| {
            !mutant::is(Mutant::M43RaisedForTheConnected) || self.of(*node).is_some()
        };
        let is_held = self.holding_back(state, members).any(|node| counts(&node));
        (!is_held).then_some(next)
    }
}
