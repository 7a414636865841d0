//! The plan in force as a candidate: it goes on with the workers that are left of it, where others stand at the
//! same places, and no moments move; or with free workers at places that were left or that others share.
//!
//! What is chosen, and why, is in `successor.rs`: after a loss what goes on at once, because a plan that is
//! cut anew waits for layers. As soon as the workers are settled the plans are compared again: then
//! layers are copied ahead, beside training, and the shorter step decides.

use zbelastic_consensus::duty::PlanInForce;
use zbelastic_consensus::plan::{PlanRecord, copies_beside};
use zbelastic_schedule::{SharedOrder, Window};
use zbelastic_trainer::plan::{
    HeldBeside, Pace, Plan, Refill, Reroute, StageMemory, plan_memory, plan_period,
};
use zbelastic_types::{Bytes, StageIndex};

use crate::estimate::PaceEstimate;
use crate::fallback::PlannerJob;
use crate::node_choices::{NodeResources, memory_limits};
use crate::successor::{Departure, is_shorter};

/// A plan in force on some nodes, with the time of its steps.
#[derive(Clone, Debug)]
pub(crate) struct RetainedPlan {
    pub(crate) plan: Plan,
    /// The node at each stage, as its index among those of the request.
    pub(crate) stage_nodes: Vec<usize>,
    pub(crate) period: f64,
}

/// The plans that have the layers of the one in force at the same places.
#[derive(Clone, Debug, Default)]
pub(crate) struct RetainedPlans {
    /// On the nodes that stay of it, if that is possible with this window and in their memory.
    pub(crate) kept: Option<RetainedPlan>,
    /// With free nodes at some of the places, if there are such nodes and places, and it fits.
    pub(crate) refilled: Option<RetainedPlan>,
}

/// Who leaves the plan in force.
pub(crate) fn departure(in_force: &PlanInForce) -> Departure {
    match (in_force.departed().is_empty(), in_force.is_planned) {
        (true, _) => Departure::Nobody,
        (false, false) => Departure::Lost,
        (false, true) => Departure::Draining,
    }
}

/// The plans of the job with this window that go on from the one in force, on the nodes of the request.
pub(crate) fn retained_plans(
    (job, window): (&PlannerJob, Window),
    in_force: &PlanInForce,
    nodes: &[NodeResources],
    estimate: &PaceEstimate,
) -> RetainedPlans {
    let record = &in_force.record;
    if record.window() != Some(window) {
        return RetainedPlans::default();
    }
    let before = Plan::of_record(record, job.batch, job.memory.recompute);
    let offered = OfferedNodes { job, nodes, estimate };
    let stays = |stages: &[StageIndex]| -> Vec<usize> {
        stages.iter().filter_map(|stage| in_force.stage_nodes[stage.index()]).collect()
    };
    let pace = |stages: &[StageIndex]| offered.pace(&stays(stages));
    let rerouted = before.rerouted(&in_force.departed(), pace, SharedOrder::ByTime);
    let Ok(Reroute { plan, stages }) = rerouted else { return RetainedPlans::default() };
    let stay = stays(&stages);
    let refilled = offered.refilled(&plan, &stay);
    let kept = offered.fitting(plan, stay);
    let departed = in_force.departed();
    if departed.is_empty() {
        return RetainedPlans { kept, refilled };
    }
    let halved = |plan: &Plan| {
        let halved = plan.halved()?;
        let Reroute { plan, stages } =
            halved.rerouted(&departed, pace, SharedOrder::ByTime).ok()?;
        Some((halved, offered.fitting(plan, stays(&stages))?))
    };
    RetainedPlans { kept: kept.map(|kept| shortest_of_halves(kept, &before, halved)), refilled }
}

/// The plan on those that stay, or one with columns cut in two, and in two again, as long as that makes its
/// step shorter by a share: it needs more memory.
fn shortest_of_halves(
    kept: RetainedPlan,
    before: &Plan,
    halved: impl Fn(&Plan) -> Option<(Plan, RetainedPlan)>,
) -> RetainedPlan {
    let mut shortest = kept;
    let mut next = halved(before);
    while let Some((before, found)) = next
        && is_shorter(found.period, shortest.period)
    {
        shortest = found;
        next = halved(&before);
    }
    shortest
}

/// The nodes of a request, and what is known of their pace.
#[derive(Clone, Copy)]
struct OfferedNodes<'a> {
    job: &'a PlannerJob,
    nodes: &'a [NodeResources],
    estimate: &'a PaceEstimate,
}

impl OfferedNodes<'_> {
    fn on(self, at: &[usize]) -> Vec<NodeResources> {
        at.iter().map(|at| self.nodes[*at]).collect()
    }

    /// The pace of stages on these nodes.
    fn pace(self, at: &[usize]) -> Pace {
        self.estimate.pace(self.job, &self.on(at))
    }

    /// The plan, on the nodes in `stay`, with free ones at places that some of those share.
    fn refilled(self, plan: &Plan, stay: &[usize]) -> Option<RetainedPlan> {
        let free = || (0..self.nodes.len()).filter(|at| !stay.contains(at));
        let stage_nodes = |stages: &[Option<StageIndex>]| -> Vec<usize> {
            let mut free = free();
            let node = |stage: &Option<StageIndex>| match stage {
                Some(stage) => stay.get(stage.index()).copied(),
                None => free.next(),
            };
            stages.iter().filter_map(node).collect()
        };
        let pace = |stages: &[Option<StageIndex>]| self.pace(&stage_nodes(stages));
        let refill = plan.refilled(free().count() as u32, pace, SharedOrder::ByTime);
        let Refill { plan, stages } = refill?;
        self.fitting(plan, stage_nodes(&stages))
    }

    /// The plan on these nodes, if each stage of it fits into the memory of its node.
    fn fitting(self, plan: Plan, stage_nodes: Vec<usize>) -> Option<RetainedPlan> {
        let Self { job, .. } = self;
        let limits = memory_limits(job.stage_bytes_max, &self.on(&stage_nodes));
        let memory = stage_memory(job, &plan);
        let mut needed = memory.iter().map(StageMemory::total).zip(limits);
        if !needed.all(|(needed, limit)| needed <= limit) {
            return None;
        }
        let period = plan_period(&plan, &self.pace(&stage_nodes));
        Some(RetainedPlan { plan, stage_nodes, period })
    }
}

/// The memory that each stage of a plan that was agreed on is planned to take on its node, in bytes.
#[must_use]
pub fn planned_memory(job: &PlannerJob, record: &PlanRecord) -> Vec<Bytes> {
    let plan = Plan::of_record(record, job.batch, job.memory.recompute);
    stage_memory(job, &plan).iter().map(StageMemory::total).collect()
}

fn stage_memory(job: &PlannerJob, plan: &Plan) -> Vec<StageMemory> {
    plan_memory(&job.sizes, &job.model, job.optimizer, plan, beside_of(job, plan))
}

/// The most that a stage holds beside its layers.
fn beside_of(job: &PlannerJob, plan: &Plan) -> HeldBeside {
    let stages = (0..plan.placement().stage_count()).map(StageIndex);
    let copies = stages.map(|stage| copies_beside(job.copies, plan.placement(), stage)).max();
    HeldBeside { copies: copies.unwrap_or(0), is_island: job.is_island }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use zbelastic_consensus::plan::{PlanReason, Promise};
    use zbelastic_trainer::plan::{BatchShape, LaneCount, MemoryPolicy, ReplicaCount};
    use zbelastic_types::{Generation, Step};

    use super::*;
    use crate::search::PlanSearch;
    use crate::search::tests::{job as one_pipeline, nodes};
    use crate::successor::PlanSuccessor;

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
        in_force_on(job, &[1, 2, 3, 4], stage_nodes)
    }

    fn in_force_on(job: &PlannerJob, on: &[u64], stage_nodes: Vec<Option<usize>>) -> PlanInForce {
        let found = search().solve(job, Window::One, &nodes(on)).expect("it fits");
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
        PlanInForce { record: Arc::new(record), stage_nodes, is_planned: false }
    }

    fn kept(job: &PlannerJob, left: &PlanInForce, nodes: &[NodeResources]) -> RetainedPlan {
        let plans = retained_plans((job, Window::One), left, nodes, &PaceEstimate::default());
        plans.kept.expect("it fits")
    }

    /// The plan of three nodes that is left, as the one in force, where so many are free beside them.
    fn shared(job: &PlannerJob, free: u64) -> (PlanInForce, Vec<NodeResources>) {
        let left = in_force(job, vec![Some(0), Some(1), None, Some(2)]);
        let table = kept(job, &left, &three()).plan.program;
        let record = PlanRecord { program: table, ..(*left.record).clone() };
        let stage_nodes = vec![Some(0), Some(1), Some(2)];
        let uneven = PlanInForce { record: Arc::new(record), stage_nodes, is_planned: true };
        let more = (5..5 + free).collect::<Vec<u64>>();
        (uneven, nodes(&[&[1, 2, 4], &more[..]].concat()))
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
        let kept = choice.kept.expect("it fits");
        let anew = choice.cut_anew.expect("there is another");
        assert!(anew < kept, "three stages share the work more evenly: {anew} of {kept}");
        assert_eq!((choice.chosen, choice.refilled), (PlanSuccessor::Kept, None));
    }

    fn sharded(holders_min: u32) -> PlannerJob {
        let memory = MemoryPolicy { sharded: Some(holders_min), ..job().memory };
        PlannerJob { memory, ..job() }
    }

    /// Of replicas that share the optimizer nobody else has the moments of a lost worker's shard: nobody takes
    /// over without a move.
    #[test]
    fn after_a_loss_of_the_only_holder_of_a_shard_a_plan_is_cut_anew() {
        let job = sharded(1);
        let whole = in_force(&job, (0..4).map(Some).collect());
        assert_eq!(whole.record.program.placement.shards().count(), 2);
        let plans = |left: &PlanInForce, nodes: &[NodeResources]| {
            retained_plans((&job, Window::One), left, nodes, &PaceEstimate::default())
        };
        assert!(plans(&whole, &nodes(&[1, 2, 3, 4])).kept.is_some(), "nobody is lost");
        let left = in_force(&job, vec![Some(0), Some(1), None, Some(2)]);
        let plans = plans(&left, &three());
        assert!(plans.kept.is_none() && plans.refilled.is_none());
        let found = search().solve_from((&job, Window::One), &three(), Some(&left));
        assert!(found.is_ok(), "three train on");
    }

    /// Of four replicas two update each shard: the other one of them takes over, and the shards are those of
    /// before; who joins gets the place, and the plan is that of before. No column is cut in two.
    #[test]
    fn after_a_loss_the_other_holder_of_a_shard_takes_over() {
        let replicas = Some(ReplicaCount::new(4).expect("a power of two"));
        let lanes = LaneCount::new(8).expect("a power of two");
        let batch = BatchShape { lanes, microbatch_count: 16, ..job().batch };
        let job = PlannerJob { batch, replicas, ..sharded(2) };
        let eight = [1, 2, 3, 4, 5, 6, 7, 8];
        for lost in 0..8 {
            let mut stage_nodes: Vec<Option<usize>> = (0..7).map(Some).collect();
            stage_nodes.insert(lost, None);
            let left = in_force_on(&job, &eight, stage_nodes);
            let before = &left.record.program.placement;
            assert_eq!(before.shards().count(), 2);
            let seven = nodes(&eight[..7]);
            let of_job = (&job, Window::One);
            let found = search().solve_from(of_job, &seven, Some(&left)).expect("it goes on");
            let (solution, choice) = found;
            let placement = &solution.program.placement;
            assert_eq!(choice.expect("somebody was lost").chosen, PlanSuccessor::Kept);
            assert_eq!((placement.column_count(), placement.is_table()), (4, true));
            assert_eq!(placement.shards().layers(), before.shards().layers());
            let column = lost as u32 / 2;
            let at = |column| placement.table().stage_at(column, lost as u32 % 2);
            assert_eq!(at(column), at(column ^ 2), "the other one of its shard");
            let record = PlanRecord { program: solution.program, ..(*left.record).clone() };
            let stage_nodes = solution.stage_nodes.iter().map(|node| Some(*node)).collect();
            let shared = PlanInForce { record: Arc::new(record), stage_nodes, is_planned: true };
            let found = search().solve_from(of_job, &nodes(&eight), Some(&shared));
            let (solution, choice) = found.expect("it goes on");
            assert_eq!(choice.expect("a place was given").chosen, PlanSuccessor::Refilled);
            assert_eq!(solution.program, left.record.program);
        }
    }

    /// Of four pipelines two others run a half each of what a lost worker did, if there are lanes for it and
    /// memory; who joins has both then, and the plan is that of before.
    #[test]
    fn a_lost_place_is_dealt_to_several_others() {
        let replicas = Some(ReplicaCount::new(4).expect("a power of two"));
        let lanes = |count| {
            let lanes = LaneCount::new(count).expect("a power of two");
            let batch = BatchShape { lanes, microbatch_count: 16, ..job().batch };
            PlannerJob { batch, replicas, ..job() }
        };
        let eight = [1, 2, 3, 4, 5, 6, 7, 8];
        let seven = nodes(&eight[..7]);
        let lost = |job: &PlannerJob| {
            let mut stage_nodes: Vec<Option<usize>> = (0..7).map(Some).collect();
            stage_nodes.insert(2, None);
            in_force_on(job, &eight, stage_nodes)
        };
        let columns = |plan: &RetainedPlan| plan.plan.placement().column_count();
        let [few, many] = [4, 8].map(lanes);
        let whole = kept(&few, &lost(&few), &seven);
        let halves = kept(&many, &lost(&many), &seven);
        assert_eq!((columns(&whole), columns(&halves)), (4, 8));
        assert!(is_shorter(halves.period, whole.period), "{} {}", halves.period, whole.period);
        let memory = plan_memory(
            &many.sizes,
            &many.model,
            many.optimizer,
            &halves.plan,
            HeldBeside::default(),
        );
        let most = memory.iter().map(StageMemory::total).max().expect("stages");
        let limited = PlannerJob { stage_bytes_max: Some(Bytes(most.0 - 1)), ..many.clone() };
        assert_eq!(columns(&kept(&limited, &lost(&many), &seven)), 4, "it needs less");
        let before = lost(&many).record;
        let RetainedPlan { plan, .. } = halves;
        let record = PlanRecord { program: plan.program, chunks: plan.chunks, ..(*before).clone() };
        let stage_nodes = (0..7).map(Some).collect();
        let halves = PlanInForce { record: Arc::new(record), stage_nodes, is_planned: true };
        let of_job = (&many, Window::One);
        let (solution, choice) =
            search().solve_from(of_job, &nodes(&eight), Some(&halves)).expect("it goes on");
        assert_eq!(choice.expect("places were given").chosen, PlanSuccessor::Refilled);
        assert_eq!((&solution.program, &solution.chunks), (&before.program, &before.chunks));
    }

    /// Also of who is about to go, unless a free node takes its place.
    #[test]
    fn who_drains_leaves_its_place_to_others() {
        let job = job();
        let left = in_force(&job, vec![Some(0), Some(1), None, Some(2)]);
        let left = PlanInForce { is_planned: true, ..left };
        let solve = |nodes: &[NodeResources]| {
            let found = search().solve_from((&job, Window::One), nodes, Some(&left));
            let (solution, choice) = found.expect("it goes on");
            (solution, choice.expect("somebody leaves").chosen)
        };
        let (solution, chosen) = solve(&three());
        assert!(solution.program.placement.is_table());
        assert_eq!((chosen, solution.stage_nodes), (PlanSuccessor::Kept, vec![0, 1, 2]));
        let (solution, chosen) = solve(&nodes(&[1, 2, 4, 5]));
        assert_eq!((chosen, solution.stage_nodes), (PlanSuccessor::Refilled, vec![0, 1, 3, 2]));
        assert_eq!(solution.chunks, left.record.chunks);
    }

    /// Who joins gets a place that another shares, and the plan is what it was before the loss; it is not
    /// if the node has no room, or another plan is faster by a share.
    #[test]
    fn who_joins_gets_a_place_that_another_shares() {
        let job = job();
        let solve = |job: &PlannerJob, of: &(PlanInForce, Vec<NodeResources>)| {
            let (left, nodes) = of;
            search().solve_from((job, Window::One), nodes, Some(left)).expect("it goes on")
        };
        let one = shared(&job, 1);
        let (solution, choice) = solve(&job, &one);
        let whole = in_force(&job, Vec::new());
        assert_eq!(solution.program, whole.record.program);
        assert_eq!(
            (solution.chunks, solution.stage_nodes),
            (whole.record.chunks.clone(), vec![0, 1, 3, 2])
        );
        let choice = choice.expect("a place was given");
        assert_eq!((choice.chosen, choice.refilled), (PlanSuccessor::Refilled, choice.cut_anew));
        let mut small = one.clone();
        small.1[3].1.memory = Bytes(1 << 10);
        let (solution, choice) = solve(&job, &small);
        assert_eq!(choice, None, "it has no room at a place");
        assert!(!solution.stage_nodes.contains(&3));
        // With five more there are four stages in each pipeline.
        let (solution, choice) = solve(&job, &shared(&job, 5));
        let choice = choice.expect("a place could be given");
        assert_eq!((choice.chosen, solution.stage_nodes.len()), (PlanSuccessor::CutAnew, 8));
    }

    #[test]
    fn where_nobody_is_left_or_memory_does_not_suffice_it_is_cut_anew() {
        let job = job();
        let check = |job: &PlannerJob, left: &PlanInForce, nodes: &[NodeResources]| {
            let found = search().solve_from((job, Window::One), nodes, Some(left));
            let (solution, choice) = found.expect("there is another plan");
            assert!(!solution.program.placement.is_table());
            let choice = choice.expect("somebody was lost");
            assert_eq!((choice.chosen, choice.kept), (PlanSuccessor::CutAnew, None));
        };
        let place_lost = in_force(&job, vec![None, Some(0), None, Some(1)]);
        check(&job, &place_lost, &nodes(&[2, 4]));
        let left = in_force(&job, vec![Some(0), Some(1), None, Some(2)]);
        let kept = kept(&job, &left, &three());
        let memory =
            plan_memory(&job.sizes, &job.model, job.optimizer, &kept.plan, HeldBeside::default());
        let most = memory.iter().map(StageMemory::total).max().expect("stages");
        let Plan { program, chunks, .. } = kept.plan;
        let record = PlanRecord { program, chunks, ..(*left.record).clone() };
        assert_eq!(planned_memory(&job, &record).into_iter().max(), Some(most));
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
        let job = job();
        let (uneven, _) = shared(&job, 0);
        let mut slower = three();
        slower[2].1.speed_permille = 300;
        for nodes in [three(), slower] {
            let kept = kept(&job, &uneven, &nodes).plan.program;
            assert_eq!(kept, uneven.record.program, "at any pace it is the plan in force");
        }
        let of_job = (&job, Window::One);
        let (found, choice) = search().solve_from(of_job, &three(), Some(&uneven)).expect("one is");
        assert_eq!((found.program.placement.is_table(), choice), (false, None));
    }
}
