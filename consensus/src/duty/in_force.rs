//! The plan in force as a candidate for the plan that is needed: it may go on without moving a layer.

use std::sync::Arc;

use zbelastic_types::StageIndex;

use super::PlanNeed;
use crate::member::Holder;
use crate::plan::{PlanReason, PlanRecord};
use crate::state::{PlanPhase, State};

/// The plan in force, and who is left of it.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanInForce {
    /// The plan as it was agreed on.
    pub record: Arc<PlanRecord>,
    /// For each of its stages, the node that stands there, as its index among the nodes of the
    /// request; `None` for a holder that is lost.
    pub stage_nodes: Vec<Option<usize>>,
}

impl PlanInForce {
    /// The stages whose holders are lost.
    #[must_use]
    pub fn lost(&self) -> Vec<StageIndex> {
        let stages = (0..).map(StageIndex).zip(&self.stage_nodes);
        stages.filter(|(_, node)| node.is_none()).map(|(stage, _)| stage).collect()
    }
}

/// The plan in force, where it may go on on `nodes`, in the order of stages, without moving a layer:
/// after a loss, if others stand at the same places, and where workers stand in several replicas.
pub(super) fn plan_in_force(
    state: &State,
    need: &PlanNeed,
    nodes: &[Holder],
) -> Option<PlanInForce> {
    let follows_loss = match need {
        PlanNeed::Now(PlanReason::Lost { .. }) => true,
        PlanNeed::Planned(PlanReason::Uneven) => false,
        PlanNeed::Now(_) | PlanNeed::Planned(_) => return None,
    };
    let plan = state.plan().filter(|plan| plan.phase != PlanPhase::Closed)?;
    let record = &plan.record;
    if record.program.placement.column_count() == 1 {
        return None;
    }
    let node = |holder: &Holder| nodes.iter().position(|found| found == holder);
    let stage_nodes: Vec<Option<usize>> = record.stages.iter().map(node).collect();
    let has_lost = stage_nodes.contains(&None);
    let may_go_on = has_lost == follows_loss;
    may_go_on.then(|| PlanInForce { record: Arc::clone(record), stage_nodes })
}
