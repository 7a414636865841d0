//! L3: a run goes back only for a reason that had an effect.

use std::sync::Arc;

use zbelastic_consensus::Holder;
use zbelastic_consensus::entry::RewindReason;
use zbelastic_consensus::plan::PlanRecord;
use zbelastic_types::{LayerId, NodeId, StageIndex, Step};

use super::FirstFailure;
use super::damage::DamageRecord;
use crate::failure::Invariant;
use crate::queue::VirtualTime;

/// Where the layers of a run stand.
#[derive(Default)]
pub(super) struct RewindChecker {
    /// The last plan that ran, and when it was adopted.
    ran: Option<(Arc<PlanRecord>, VirtualTime)>,
    /// The version that the run went back to since, or that a new cluster began with.
    rewound_to: Option<Step>,
}

impl RewindChecker {
    /// A new cluster begins with a version.
    pub(super) fn recovered(version: Step) -> Self {
        Self { ran: None, rewound_to: Some(version) }
    }

    /// A plan runs. A holder that is ready may die before that, so it counts from its adoption.
    pub(super) fn resumed(&mut self, adopted: Option<(Arc<PlanRecord>, VirtualTime)>) {
        self.ran = adopted;
        self.rewound_to = None;
    }

    /// L3: a run goes back only for a layer that all its holders have lost, or for a state that is
    /// wrong; and past no checkpoint but one that could not be read.
    pub(super) fn check(
        &mut self,
        failure: &mut FirstFailure,
        damage: &DamageRecord,
        (to, reason): (Step, RewindReason),
        dropped: &[Step],
    ) {
        let is_excused = match reason {
            RewindReason::LayerLost { layer } => self.is_lost(damage, layer),
            RewindReason::StateDiffers { layer } => damage.is_flipped(layer),
            // No operator orders it in a life.
            RewindReason::Ordered => false,
        };
        if !is_excused {
            failure.set(Invariant::L3, || format!("the run goes back without need: {reason:?}"));
        }
        if let Some(passed) = dropped.iter().find(|version| !damage.reads.is_given_up(**version)) {
            failure.set(Invariant::L3, || {
                format!("the run goes back to {to}, past checkpoint {passed}, which can be read")
            });
        }
        self.rewound_to = Some(to);
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

    /// Whether every holder of a layer is gone since the last plan that ran was adopted. A run that
    /// went back since has its layers from a checkpoint, and loses them if that is given up.
    fn is_lost(&self, damage: &DamageRecord, layer: LayerId) -> bool {
        match (self.rewound_to, &self.ran) {
            (Some(version), _) => damage.reads.is_given_up(version),
            (None, Some((plan, since))) => {
                let mut holders = plan.holders_of(stage_of(plan, layer));
                holders.all(|holder| damage.is_gone_since(holder.node, *since))
            }
            (None, None) => false,
        }
    }
}

fn stage_of(plan: &PlanRecord, layer: LayerId) -> StageIndex {
    let mut stages = plan.stage_indices();
    let stage = stages.find(|stage| plan.layers_of(*stage).any(|of| of == layer));
    stage.expect("every layer stands somewhere")
}
