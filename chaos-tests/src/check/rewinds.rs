//! L3: a run goes back only for a reason that had an effect.

use std::sync::Arc;

use zbelastic_consensus::Holder;
use zbelastic_consensus::entry::RewindReason;
use zbelastic_consensus::plan::PlanRecord;
use zbelastic_types::{LayerId, NodeId, StageIndex};

use super::FirstFailure;
use super::damage::DamageRecord;
use crate::failure::Invariant;
use crate::queue::VirtualTime;

/// Where the layers of a run stand.
#[derive(Default)]
pub(super) struct RewindChecker {
    /// The last plan that ran, and when it was adopted.
    ran: Option<(Arc<PlanRecord>, VirtualTime)>,
    /// Whether the run went back since.
    is_rewound: bool,
}

impl RewindChecker {
    /// A plan runs. A holder that is ready may die before that, so it counts from its adoption.
    pub(super) fn resumed(&mut self, adopted: Option<(Arc<PlanRecord>, VirtualTime)>) {
        self.ran = adopted;
        self.is_rewound = false;
    }

    /// L3: a run goes back only for a layer that all its holders have lost, or for a state that is
    /// wrong.
    pub(super) fn check(
        &mut self,
        failure: &mut FirstFailure,
        damage: &mut DamageRecord,
        reason: RewindReason,
    ) {
        let is_excused = match reason {
            RewindReason::LayerLost { layer } => self.is_lost(damage, layer),
            RewindReason::StateDiffers { .. } => damage.take_flip(),
            // No operator orders it in a life.
            RewindReason::Ordered => false,
        };
        if !is_excused {
            failure.set(Invariant::L3, || format!("the run goes back without need: {reason:?}"));
        }
        self.is_rewound = true;
    }

    /// The holders of copies of a layer that this node owns in the last plan that ran.
    pub(super) fn witnesses(
        &self,
        node: NodeId,
        layer: LayerId,
    ) -> impl Iterator<Item = Holder> + '_ {
        let plan = self.ran.iter().map(|(plan, _)| plan);
        plan.flat_map(move |plan| {
            let stage = stage_of(plan, layer);
            let is_owner = plan.stages[stage.index()].node == node;
            plan.copy_holders(stage).filter(move |_| is_owner)
        })
    }

    /// Whether something happened to every holder of a layer when the last plan ran. A run that
    /// went back since has its layers from the store.
    fn is_lost(&self, damage: &DamageRecord, layer: LayerId) -> bool {
        let Some((plan, since)) = self.ran.as_ref().filter(|_| !self.is_rewound) else {
            return damage.is_store_damaged();
        };
        let stage = stage_of(plan, layer);
        plan.holders_of(stage).all(|holder| damage.is_disturbed_since(holder.node, *since))
    }
}

fn stage_of(plan: &PlanRecord, layer: LayerId) -> StageIndex {
    let mut stages = plan.stage_indices();
    let stage = stages.find(|stage| plan.layers_of(*stage).any(|of| of == layer));
    stage.expect("every layer stands somewhere")
}
