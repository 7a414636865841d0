//! In which format entries and snapshots are written.

use zbelastic_types::NodeId;

use super::Core;
use crate::codec::Format;
use crate::entry::Entry;
use crate::mutant::{self, Mutant};
use crate::raft::Members;

impl Core {
    /// The newest format that a connected node reads.
    #[must_use]
    pub fn reads(&self, node: NodeId) -> Option<Format> {
        let is_own = node == self.setup.raft.node;
        if is_own { Some(self.setup.newest_format) } else { self.formats.get(&node).copied() }
    }

    /// Voters, learners and workers counted on that do not read a newer format than the one that is
    /// agreed on, or are not connected, so that it is not known what they read: the format stays as
    /// it is until there is none. Empty if this program does not read a newer one itself.
    pub fn holding_format_back(&self) -> impl Iterator<Item = NodeId> {
        let agreed = self.state.format();
        let is_newest = self.setup.newest_format <= agreed;
        let Members { voters, outgoing, learners } = self.raft.status().members;
        let workers = self.state.live_workers().map(|(holder, _)| holder.node);
        let counted = voters.into_iter().chain(outgoing).chain(learners).chain(workers);
        counted.filter(move |node| !is_newest && self.reads(*node).is_none_or(|it| it <= agreed))
    }

    /// Raises the format once all nodes of the cluster read a newer one. Yields whether it was
    /// proposed now.
    pub(super) fn raise_format(&mut self) -> bool {
        let next = Format::of(self.state.format().number() + 1);
        let Some(to) = next.filter(|to| *to <= self.setup.newest_format) else { return false };
        let is_due = self.duties.as_ref().is_some_and(|duties| !duties.is_raising_format());
        if !is_due {
            return false;
        }
        let counts = |node: &NodeId| {
            !mutant::is(Mutant::M43RaisedForTheConnected) || self.reads(*node).is_some()
        };
        let is_held = self.holding_format_back().any(|node| counts(&node));
        !is_held && self.propose(&Entry::Format(to)).is_ok()
    }
}
