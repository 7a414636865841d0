//! Layers of checkpoints that workers reported to be durable.

use std::collections::BTreeMap;

use zbelastic_types::{LayerId, NodeId, Step};

use super::watch::{DutyWatch, ProposalLane};
use crate::checkpoint::LayerDigest;
use crate::entry::Entry;
use crate::member::Holder;
use crate::state::State;

/// The last report of each worker, for each version that is under way.
#[derive(Debug, Default)]
pub(super) struct SavedLayers {
    reports: BTreeMap<(Step, NodeId), (Holder, Vec<LayerDigest>)>,
}

impl SavedLayers {
    pub(super) fn note(&mut self, version: Step, holder: Holder, layers: Vec<LayerDigest>) {
        self.reports.insert((version, holder.node), (holder, layers));
    }

    /// Forgets a report that was refused: it would be refused again. The worker may resend it.
    pub(super) fn forget(&mut self, version: Step, node: NodeId) {
        self.reports.remove(&(version, node));
    }

    /// Forgets reports of versions that are not under way.
    pub(super) fn retain(&mut self, is_pending: impl Fn(Step) -> bool) {
        self.reports.retain(|(version, _), _| is_pending(*version));
    }

    /// That layers are durable, or that a checkpoint is there because all of its layers are.
    pub(super) fn decide(&self, state: &State, watch: &DutyWatch) -> Option<Entry> {
        let layer_count = state.job()?.spec.layer_count();
        for pending in state.pending() {
            let version = pending.version;
            let is_complete = pending.layers.len() == layer_count as usize;
            if is_complete && !watch.is_in_flight(ProposalLane::Checkpoint(version)) {
                return Some(Entry::Checkpoint { version });
            }
        }
        let is_new = |((version, node), (_, layers)): &(&(Step, NodeId), &(Holder, Vec<_>))| {
            let pending = state.pending().iter().find(|pending| pending.version == *version);
            let is_missing = |(layer, _): &(LayerId, _)| {
                pending.is_some_and(|pending| !pending.layers.contains_key(layer))
            };
            layers.iter().any(is_missing)
                && !watch.is_in_flight(ProposalLane::Durable(*version, *node))
        };
        let ((version, _), (holder, layers)) = self.reports.iter().find(is_new)?;
        let (version, holder, layers) = (*version, *holder, layers.clone());
        let pending = state.pending().iter().find(|pending| pending.version == version)?;
        let generation = pending.generation();
        Some(Entry::Durable { version, generation, holder, layers })
    }
}
