//! The plan in force as a candidate: after a loss it goes on with the workers that are left of it, where
//! others stand at the same places, and no layer moves.
//!
//! After a loss it is chosen whenever it fits, because a plan that is cut anew waits for layers; what
//! that one would cost is said beside it. As soon as the workers are settled the two are compared
//! again: then layers are copied ahead, beside training, and the shorter step decides.

use std::fmt;

use zbelastic_consensus::duty::PlanInForce;
use zbelastic_consensus::plan::copies_beside;
use zbelastic_schedule::{SharedOrder, Window};
use zbelastic_trainer::plan::{GAIN_MIN, Plan, Reroute, StageMemory, plan_memory, plan_period};
use zbelastic_types::StageIndex;

use crate::estimate::PaceEstimate;
use crate::fallback::PlannerJob;
use crate::node_choices::{NodeResources, memory_limits};

/// A plan in force on the nodes that are left of it, with the time of its steps.
#[derive(Clone, Debug)]
pub(crate) struct RetainedPlan {
    pub(crate) plan: Plan,
    /// The node at each stage, as its index among those of the request.
    pub(crate) stage_nodes: Vec<usize>,
    pub(crate) period: f64,
}

/// The plan that was chosen of the two that a loss leaves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossChoice {
    /// The step of the plan in which others take over what the lost workers did, if it fits: that is the
    /// one that was chosen. In the unit of the pace.
    pub rerouted: Option<f64>,
    /// The step of the plan that is cut anew, if there is one.
    pub cut_anew: Option<f64>,
}

impl fmt::Display for LossChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.rerouted, self.cut_anew) {
            (Some(kept), Some(anew)) => write!(
                f,
                "rerouted: no layer moves between stages; a plan cut anew has {:.2} times the step, \
                 after its layers have moved",
                anew / kept
            ),
            (Some(_), None) => write!(f, "rerouted: there is no other plan"),
            (None, _) => write!(f, "cut anew: others at the places of the lost cannot take over"),
        }
    }
}

/// Of a plan in force that lost nobody, and another one: whether the other one is worth its moves.
pub(crate) fn is_worth_moving(other: f64, kept: f64) -> bool {
    other < kept * (1.0 - GAIN_MIN)
}

/// The plan in force on the nodes that are left of it, if that is possible with this window and in their
/// memory.
pub(crate) fn retained_plan(
    (job, window): (&PlannerJob, Window),
    in_force: &PlanInForce,
    nodes: &[NodeResources],
    estimate: &PaceEstimate,
) -> Option<RetainedPlan> {
    let record = &in_force.record;
    if record.window() != Some(window) {
        return None;
    }
    let plan = Plan::of_record(record, job.batch, job.memory.recompute);
    let lost = in_force.lost();
    let nodes_of = |stages: &[StageIndex]| -> Vec<usize> {
        stages.iter().filter_map(|stage| in_force.stage_nodes[stage.index()]).collect()
    };
    let on = |at: &[usize]| -> Vec<NodeResources> { at.iter().map(|at| nodes[*at]).collect() };
    let pace_of = |stages: &[StageIndex]| estimate.pace(job, &on(&nodes_of(stages)));
    let Reroute { plan, stages } = plan.rerouted(&lost, pace_of, SharedOrder::ByTime).ok()?;
    let limits = memory_limits(job.stage_bytes_max, &on(&nodes_of(&stages)));
    let memory = plan_memory(&job.sizes, &job.model, &plan, copies_of(job, &plan));
    let mut needed = memory.iter().map(StageMemory::total).zip(limits);
    if !needed.all(|(needed, limit)| needed <= limit) {
        return None;
    }
    let period = plan_period(&plan, &pace_of(&stages));
    Some(RetainedPlan { plan, stage_nodes: nodes_of(&stages), period })
}

/// The most copies of other stages that a stage keeps.
fn copies_of(job: &PlannerJob, plan: &Plan) -> u32 {
    let stages = (0..plan.placement().stage_count()).map(StageIndex);
    stages.map(|stage| copies_beside(job.copies, plan.placement(), stage)).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use zbelastic_consensus::plan::{PlanReason, PlanRecord, Promise};
    use zbelastic_trainer::plan::{BatchShape, LaneCount, ReplicaCount};
    use zbelastic_types::{Bytes, Generation, Step};

    use super::*;
    use crate::search::PlanSearch;
    use crate::search::tests::{job as one_pipeline, nodes};

    fn job() -> PlannerJob {
        let job = one_pipeline();
        let lanes = LaneCount::new(4).expect("a power of two");
        let replicas = ReplicaCount::new(2).expect("a power of two");
        let batch = BatchShape { lanes, ..job.batch };
        PlannerJob { batch, replicas: Some(replicas), copies: 0, ..job }
    }

    fn search() -> PlanSearch {
        PlanSearch::new(Duration::from_millis(10))
    }

    /// The plan of two pipelines of two stages each, of which these stages' holders are left.
    fn in_force(job: &PlannerJob, stage_nodes: Vec<Option<usize>>) -> PlanInForce {
        let found = search().solve(job, Window::One, &nodes(&[1, 2, 3, 4])).expect("it fits");
        let record = PlanRecord {
            generation: Generation(1),
            stages: Vec::new(),
            copies: Vec::new(),
            promise: Promise::of(0, 4),
            chunks: found.chunks,
            program: found.program,
            from_step: Step(0),
            sources: Vec::new(),
            expected: Vec::new(),
            op_ticks_max: 1,
            reason: PlanReason::First,
        };
        PlanInForce { record: Arc::new(record), stage_nodes }
    }

    fn three() -> Vec<NodeResources> {
        nodes(&[1, 2, 4])
    }

    #[test]
    fn after_a_loss_others_at_the_same_place_take_over() {
        let job = job();
        let left = in_force(&job, vec![Some(0), Some(1), None, Some(2)]);
        let of_job = (&job, Window::One);
        let found = search().solve_from(of_job, &three(), Some(&left)).expect("it goes on");
        let (solution, choice) = found;
        let placement = &solution.program.placement;
        assert_eq!(placement.table().cells(), [0, 1, 0, 2].map(StageIndex));
        assert_eq!(
            (solution.chunks, solution.stage_nodes),
            (left.record.chunks.clone(), vec![0, 1, 2])
        );
        let choice = choice.expect("somebody was lost");
        let (kept, anew) = (choice.rerouted.expect("it fits"), choice.cut_anew.expect("there is"));
        assert!(anew < kept, "three stages share the work more evenly: {anew} of {kept}");
        assert!(choice.to_string().starts_with("rerouted: "), "{choice}");
    }

    #[test]
    fn where_nobody_is_left_or_memory_does_not_suffice_it_is_cut_anew() {
        let job = job();
        let check = |job: &PlannerJob, left: &PlanInForce, nodes: &[NodeResources]| {
            let found = search().solve_from((job, Window::One), nodes, Some(left));
            let (solution, choice) = found.expect("there is another plan");
            assert!(!solution.program.placement.is_table());
            let choice = choice.expect("somebody was lost");
            assert_eq!(choice.rerouted, None);
            assert!(choice.to_string().starts_with("cut anew: "), "{choice}");
        };
        let place_lost = in_force(&job, vec![None, Some(0), None, Some(1)]);
        check(&job, &place_lost, &nodes(&[2, 4]));
        let left = in_force(&job, vec![Some(0), Some(1), None, Some(2)]);
        let kept = retained_plan((&job, Window::One), &left, &three(), &PaceEstimate::default());
        let kept = kept.expect("it fits without a limit");
        let memory = plan_memory(&job.sizes, &job.model, &kept.plan, 0);
        let most = memory.iter().map(StageMemory::total).max().expect("stages");
        let limited = |limit| PlannerJob { stage_bytes_max: Some(limit), ..job.clone() };
        let found = |limit| {
            let job = limited(limit);
            let found = search().solve_from((&job, Window::One), &three(), Some(&left));
            found.expect("there is a plan").0.program.placement.is_table()
        };
        assert!(found(most), "it needs no more");
        check(&limited(Bytes(most.0 - 1)), &left, &three());
    }

    /// Without a loss a plan is kept until another one is faster by a share.
    #[test]
    fn who_lost_nobody_moves_for_a_shorter_step() {
        assert!(is_worth_moving(0.94, 1.0) && !is_worth_moving(0.96, 1.0));
        let job = job();
        let left = in_force(&job, vec![Some(0), Some(1), None, Some(2)]);
        let of_job = (&job, Window::One);
        let (table, _) = search().solve_from(of_job, &three(), Some(&left)).expect("it goes on");
        let record = PlanRecord { program: table.program, ..(*left.record).clone() };
        let stage_nodes = vec![Some(0), Some(1), Some(2)];
        let uneven = PlanInForce { record: Arc::new(record), stage_nodes };
        let mut slower = three();
        slower[2].1.speed_permille = 300;
        for nodes in [three(), slower] {
            let kept = retained_plan(of_job, &uneven, &nodes, &PaceEstimate::default());
            let kept = kept.expect("it fits").plan.program;
            assert_eq!(kept, uneven.record.program, "at any pace it is the plan in force");
        }
        let (found, choice) = search().solve_from(of_job, &three(), Some(&uneven)).expect("one is");
        assert_eq!((found.program.placement.is_table(), choice), (false, None));
    }
}
