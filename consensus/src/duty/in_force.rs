//! The plan in force as a candidate for the plan that is needed: it may go on without moving a layer.

use std::sync::Arc;

use zbelastic_types::StageIndex;

use super::PlanNeed;
use crate::member::Holder;
use crate::plan::{PlanReason, PlanRecord};
use crate::state::{PlanPhase, State};

/// The plan in force, and who stays of it.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanInForce {
    /// The plan as it was agreed on.
    pub record: Arc<PlanRecord>,
    /// For each of its stages, the node that stands there, as its index among the nodes of the
    /// request; `None` for a holder that is lost, or about to go.
    pub stage_nodes: Vec<Option<usize>>,
    /// Whether training goes on until the next plan begins: layers are copied ahead, and holders that are
    /// about to go are there.
    pub is_planned: bool,
}

impl PlanInForce {
    /// The stages whose holders are lost, or about to go.
    #[must_use]
    pub fn departed(&self) -> Vec<StageIndex> {
        let stages = (0..).map(StageIndex).zip(&self.stage_nodes);
        stages.filter(|(_, node)| node.is_none()).map(|(stage, _)| stage).collect()
    }
}

/// The plan in force, where it may go on on `nodes`, in the order of stages: where a holder is lost or
/// about to go, if others stand at the same places, and where workers stand in several replicas, of
/// which those that joined may get one.
pub(super) fn plan_in_force(
    state: &State,
    need: &PlanNeed,
    nodes: &[Holder],
) -> Option<PlanInForce> {
    let (someone_leaves, is_planned) = match need {
        PlanNeed::Now(PlanReason::Lost { .. }) => (true, false),
        PlanNeed::Planned(PlanReason::Draining { .. }) => (true, true),
        PlanNeed::Planned(PlanReason::Uneven | PlanReason::Joined { .. }) => (false, true),
        PlanNeed::Now(_) | PlanNeed::Planned(_) => return None,
    };
    let plan = state.plan().filter(|plan| plan.phase != PlanPhase::Closed)?;
    let record = &plan.record;
    let placement = &record.program.placement;
    if placement.column_count() == 1 || !(someone_leaves || placement.is_table()) {
        return None;
    }
    let node = |holder: &Holder| nodes.iter().position(|found| found == holder);
    let stage_nodes: Vec<Option<usize>> = record.stages.iter().map(node).collect();
    let may_go_on = stage_nodes.contains(&None) == someone_leaves;
    may_go_on.then(|| PlanInForce { record: Arc::clone(record), stage_nodes, is_planned })
}
