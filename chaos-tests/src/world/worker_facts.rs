//! The facts that the entries of the log are compared with: the state and the work of the workers.

use std::collections::BTreeSet;

use zbelastic_consensus::message::HeldLayer;
use zbelastic_consensus::state::State;
use zbelastic_consensus::validation::Turn;
use zbelastic_schedule::Program;
use zbelastic_trainer::data::BatchSource;
use zbelastic_trainer::elastic::StageFactory;
use zbelastic_trainer::plan::StageTimes;
use zbelastic_types::{LayerId, NodeId, StageIndex, Step};

use super::workers::Workers;
use crate::queue::VirtualTime;

/// The facts that controllers' changes are compared with. None of them changes a worker.
pub(super) trait WorkerFacts {
    /// Whether a node is a worker's.
    fn has(&self, node: NodeId) -> bool;
    /// The number of a worker's start, if its process runs.
    fn running_boot(&self, node: NodeId) -> Option<u64>;
    /// Layers with a flipped bit in their state.
    fn flipped(&self) -> Vec<(NodeId, LayerId)>;
    /// Layers that any worker may hold with a flipped bit.
    fn flipped_layers(&self) -> BTreeSet<LayerId>;
    /// The first live member that holds a version of a layer, and has not answered since that it
    /// does not.
    fn holder_of(
        &self,
        state: &State,
        layer: (LayerId, Step),
        since: VirtualTime,
    ) -> Option<NodeId>;
    /// The durations of a turn's passes on a worker, if it has run all of the program.
    fn stage_times(
        &self,
        node: NodeId,
        turn: Turn,
        program: &Program,
        stage: StageIndex,
    ) -> Option<StageTimes>;
    /// A worker whose process runs, other than this one.
    fn running_beside(&self, node: NodeId) -> Option<NodeId>;
    /// Since when no process runs on a worker's machine that is not gone for good.
    fn down_since(&self, node: NodeId) -> Option<VirtualTime>;
}

impl<M: StageFactory, S: BatchSource + Clone> WorkerFacts for Workers<M, S> {
    fn has(&self, node: NodeId) -> bool {
        self.machines.contains_key(&node)
    }

    fn running_boot(&self, node: NodeId) -> Option<u64> {
        let machine = self.machines.get(&node).filter(|machine| machine.process.is_some());
        machine.map(|machine| machine.boot)
    }

    fn flipped(&self) -> Vec<(NodeId, LayerId)> {
        let flipped = self.machines.iter().map(|(node, m)| (*node, m.faults.borrow().flipped()));
        flipped.filter_map(|(node, layer)| Some((node, layer?))).collect()
    }

    fn flipped_layers(&self) -> BTreeSet<LayerId> {
        let sent = self.machines.values().filter_map(|machine| machine.process.as_ref());
        let sent = sent.flat_map(|process| process.flipped_layers.iter().copied());
        sent.chain(self.flipped().into_iter().map(|(_, layer)| layer)).collect()
    }

    fn holder_of(
        &self,
        state: &State,
        (layer, version): (LayerId, Step),
        since: VirtualTime,
    ) -> Option<NodeId> {
        let is_it = |held: &HeldLayer| held.layer == layer && held.version == version;
        let found = self.machines.iter().find(|(_, machine)| {
            let Some(process) = &machine.process else { return false };
            let is_live = process.session.holder().is_some_and(|holder| state.is_live(holder));
            let inventory = process.reported_inventory.as_ref().filter(|(at, _)| *at >= since);
            let has_denied = inventory.is_some_and(|(_, layers)| !layers.iter().any(is_it));
            is_live && !has_denied && process.runtime.inventory().iter().any(is_it)
        });
        found.map(|(node, _)| *node)
    }

    fn stage_times(
        &self,
        node: NodeId,
        turn: Turn,
        program: &Program,
        stage: StageIndex,
    ) -> Option<StageTimes> {
        let process = self.machines.get(&node)?.process.as_ref()?;
        process.pass_times.stage_times(turn, program, stage)
    }

    fn running_beside(&self, node: NodeId) -> Option<NodeId> {
        let mut others = self.machines.iter().filter(|(other, _)| **other != node);
        others.find_map(|(other, machine)| machine.process.as_ref().map(|_| *other))
    }

    fn down_since(&self, node: NodeId) -> Option<VirtualTime> {
        let machine = self.machines.get(&node)?;
        (machine.process.is_none() && !machine.is_gone).then_some(machine.down_since)
    }
}
