//! Which worker copies which layers ahead of a planned change.
//!
//! A pre-copy plan follows from two plans: the one in force and the one to come. It is not agreed
//! on and binds no node. A named follower may fetch its layers while training goes on; if it does
//! not, the layers are fetched when the plan begins.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use zbelastic_types::{Generation, LayerId, NodeId, StageIndex};

use crate::member::Holder;
use crate::plan::PlanRecord;
use crate::state::copied_layers;

/// A layer that a worker will need and does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FollowedLayer {
    /// Index of the layer in the model.
    pub layer: LayerId,
    /// The worker that will need it.
    pub follower: Holder,
    /// The worker that trains it now.
    pub owner: Holder,
}

/// The layers to copy ahead, and during which plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreCopyPlan {
    /// Generation of the plan in force, during which layers are copied.
    pub generation: Generation,
    /// Layers to copy, in the order of the coming plan's stages and then of the model.
    pub layers: Vec<FollowedLayer>,
}

impl PreCopyPlan {
    /// The layers that have to move from `plan` to `next`, if any.
    #[must_use]
    pub fn of(plan: &PlanRecord, next: &PlanRecord) -> Option<Self> {
        let owned = plan.stage_indices().flat_map(|stage| {
            let owner = plan.stages[stage.index()];
            plan.layers_of(stage).map(move |layer| (layer, owner))
        });
        let owners: BTreeMap<LayerId, Holder> = owned.collect();
        let mut layers = Vec::new();
        for stage in next.stage_indices() {
            let follower = next.stages[stage.index()];
            let held = held_layers(plan, follower);
            let missing = needed_layers(next, stage).into_iter().filter(|l| !held.contains(l));
            let named = missing.filter_map(|layer| {
                let owner = *owners.get(&layer)?;
                Some(FollowedLayer { layer, follower, owner })
            });
            layers.extend(named);
        }
        let generation = plan.generation;
        (!layers.is_empty()).then_some(Self { generation, layers })
    }

    /// Whether a holder follows, or is followed.
    #[must_use]
    pub fn names(&self, holder: Holder) -> bool {
        self.layers.iter().any(|f| f.follower == holder || f.owner == holder)
    }

    /// The layers that a holder follows.
    pub fn followed_by(&self, holder: Holder) -> impl Iterator<Item = &FollowedLayer> {
        self.layers.iter().filter(move |follow| follow.follower == holder)
    }
}

/// The layers that a stage needs: its own layers and those it keeps copies of, in model order.
#[must_use]
pub fn needed_layers(plan: &PlanRecord, stage: StageIndex) -> BTreeSet<LayerId> {
    plan.layers_of(stage).chain(copied_layers(plan, stage)).collect()
}

/// The layers that a node needs in a plan, as [`needed_layers`]; none if it has no stage.
#[must_use]
pub fn needed_at(plan: &PlanRecord, node: NodeId) -> BTreeSet<LayerId> {
    let stage = plan.stage_indices().zip(&plan.stages).find(|(_, at)| at.node == node);
    stage.map_or_else(BTreeSet::new, |(stage, _)| needed_layers(plan, stage))
}

/// The layers of a holder in a plan.
pub(crate) fn held_layers(plan: &PlanRecord, holder: Holder) -> BTreeSet<LayerId> {
    plan.stage_of(holder).map_or_else(BTreeSet::new, |stage| needed_layers(plan, stage))
}

#[cfg(test)]
mod tests {
    use zbelastic_types::LayerId;

    use super::{FollowedLayer, PreCopyPlan};
    use crate::fixture::{FixtureLog, spec};
    use crate::job::JobSpec;

    fn moves(pre_copy: Option<PreCopyPlan>) -> Vec<(u32, u64, u64)> {
        let layers = pre_copy.into_iter().flat_map(|pre_copy| pre_copy.layers);
        layers.map(|f| (f.layer.0, f.follower.node.0, f.owner.node.0)).collect()
    }

    /// Layers 0 and 1 are node 1's, and 2 and 3 node 2's.
    #[test]
    fn who_needs_a_layer_and_does_not_hold_it_follows_its_owner() {
        let mut log = FixtureLog::running(JobSpec { copies: 0, ..spec() }, &[1, 2]);
        log.join(3);
        let plan = log.state.plan().expect("it runs").record.clone();
        let of = |nodes: &[u64]| moves(PreCopyPlan::of(&plan, &log.plan(nodes)));
        assert_eq!(of(&[1, 2]), [], "nothing moves");
        assert_eq!(of(&[1, 3]), [(2, 3, 2), (3, 3, 2)]);
        assert_eq!(of(&[3]), [(0, 3, 1), (1, 3, 1), (2, 3, 2), (3, 3, 2)]);
        assert_eq!(of(&[1, 3, 2]), [(1, 3, 1)], "three stages have 1, 1 and 2 layers");
        assert_eq!(of(&[1, 2, 3]), [(1, 2, 1), (2, 3, 2), (3, 3, 2)]);
    }

    #[test]
    fn who_keeps_a_copy_needs_nothing() {
        let mut log = FixtureLog::running(spec(), &[1, 2]);
        log.join(3);
        let plan = log.state.plan().expect("it runs").record.clone();
        let pre_copy = PreCopyPlan::of(&plan, &log.plan(&[2, 1, 3])).expect("layers move");
        let follower = log.holder(3);
        assert!(pre_copy.layers.iter().all(|follow| follow.follower == follower));
        assert!(pre_copy.names(log.holder(1)) && pre_copy.names(follower));
        let first = FollowedLayer { layer: LayerId(1), follower, owner: log.holder(1) };
        assert_eq!(pre_copy.followed_by(follower).next(), Some(&first), "a copy");
        assert_eq!(pre_copy.followed_by(log.holder(2)).next(), None);
    }
}
