//! A worker leaves where others stand at the same place, or joins where one stands in several replicas: what the
//! solver is asked, and the plan that follows.

use zbelastic_schedule::Window;
use zbelastic_types::{NodeId, StageIndex};

use super::harness::DutiesHarness;
use super::planning::{adopted, long};
use crate::duty::{PlanInForce, PlanNeed, PlanSolution, SolveRequest, least_moved};
use crate::entry::Entry;
use crate::fixture::{
    FixtureLog, SETTLE_TICKS, admit, lost, side_by_side_twice, without_the_third,
};
use crate::job::JobSpec;
use crate::member::{LossReason, MemberChange};
use crate::plan::{LayerSource, PlanReason, PlanRecord};

/// Four workers run two pipelines of two stages, and no copies are required.
fn two_pipelines() -> DutiesHarness {
    pipelines(JobSpec { copies: 0, ..long() })
}

fn pipelines(spec: JobSpec) -> DutiesHarness {
    let mut log = FixtureLog::with_job(spec, &[1, 2, 3, 4]);
    let mut plan = log.plan(&[1, 2, 3, 4]);
    side_by_side_twice(&mut plan);
    log.adopt(plan);
    log.load();
    log.keep(5);
    DutiesHarness::new(log)
}

/// The plan in force without the third stage, on these nodes of the request.
fn shared(plan: &PlanRecord, stage_nodes: Vec<usize>) -> PlanSolution {
    let mut plan = plan.clone();
    without_the_third(&mut plan);
    let PlanRecord { program, chunks, .. } = plan;
    PlanSolution { program, chunks, stage_nodes, op_ticks_max: 50 }
}

fn asked(harness: &mut DutiesHarness) -> SolveRequest {
    harness.act();
    harness.solve_request.take().expect("a plan is needed")
}

/// The solver answers a request without the third holder with the plan in which the first one goes on
/// with both.
fn share_third(harness: &mut DutiesHarness, request: &SolveRequest) {
    let before = harness.plan().clone();
    let in_force = request.in_force.as_ref().expect("others are left");
    let PlanInForce { record, stage_nodes, .. } = in_force;
    assert_eq!((record.generation, stage_nodes.len()), (before.generation, 4));
    assert_eq!(in_force.departed(), [StageIndex(2)]);
    let at = |stage: usize| stage_nodes[stage].expect("it is left");
    let solution = shared(&before, vec![at(0), at(1), at(3)]);
    assert!(harness.duties.handle_solution(request.number, Ok(solution)));
}

/// The holder of the third stage is lost, and the first one goes on with both.
fn rerouted() -> (DutiesHarness, PlanRecord) {
    let mut harness = two_pipelines();
    harness.agree(Entry::Members(vec![lost(harness.log.holder(3))]));
    let request = asked(&mut harness);
    assert!(!request.in_force.as_ref().expect("others are left").is_planned);
    share_third(&mut harness, &request);
    [1, 2, 4].into_iter().for_each(|node| harness.report_held(node, &[0, 1, 2, 3], 5));
    let plan = adopted(&harness.act());
    (harness, plan)
}

#[test]
fn whoever_is_left_stays_and_no_layer_moves() {
    let (harness, plan) = rerouted();
    assert_eq!(DutiesHarness::nodes(&plan), [1, 2, 4].map(NodeId));
    assert!(matches!(plan.reason, PlanReason::Lost { .. }));
    let before = two_pipelines().plan().clone();
    assert!(plan.reroutes(&before));
    let spec = harness.log.state.job().expect("it runs").spec.clone();
    assert_eq!(least_moved(&before, &plan, &spec), 0);
    assert!(plan.sources.iter().all(|source| matches!(source, LayerSource::Nodes(_))));
}

/// As soon as the workers are settled the solver compares it with others; one that is the same is no
/// other plan, and is not asked for again.
#[test]
fn workers_in_several_pipelines_are_looked_at_again() {
    let (mut harness, _) = rerouted();
    harness.load();
    harness.tick(SETTLE_TICKS, &[1, 2, 4]);
    assert_eq!(harness.need(), Some(PlanNeed::Planned(PlanReason::Uneven)));
    let request = asked(&mut harness);
    let in_force = request.in_force.clone().expect("it may stay");
    assert_eq!((in_force.departed(), in_force.is_planned), (Vec::new(), true));
    let same = PlanSolution {
        program: in_force.record.program.clone(),
        chunks: in_force.record.chunks.clone(),
        stage_nodes: vec![0, 1, 2],
        op_ticks_max: 50,
    };
    assert!(harness.duties.handle_solution(request.number, Ok(same)));
    assert_eq!(harness.act(), []);
    assert!(harness.solve_request.is_none(), "not asked for again");
}

#[test]
fn a_faster_plan_follows_while_training_goes_on() {
    let (mut harness, _) = rerouted();
    harness.load();
    harness.tick(SETTLE_TICKS, &[1, 2, 4]);
    let request = asked(&mut harness);
    let line = crate::fixture::solution(3, Window::One);
    assert!(harness.duties.handle_solution(request.number, Ok(line)));
    let plan = adopted(&harness.act());
    assert_eq!(plan.reason, PlanReason::Uneven);
    assert!(harness.log.state.is_running() && harness.log.state.next_plan().is_some());
}

/// Who drains is let go as soon as the other one at its place runs both: nothing is copied ahead, and no
/// layer moves.
#[test]
fn the_place_of_who_drains_is_shared() {
    let mut harness = two_pipelines();
    let before = harness.plan().clone();
    let holder = harness.log.holder(3);
    harness.agree(Entry::Members(vec![MemberChange::Drain { holder }]));
    let request = asked(&mut harness);
    assert!(request.in_force.as_ref().expect("others are left").is_planned);
    share_third(&mut harness, &request);
    let plan = adopted(&harness.act());
    assert_eq!(plan.reason, PlanReason::Draining { count: 1 });
    assert!(plan.reroutes(&before));
    let spec = harness.log.state.job().expect("it runs").spec.clone();
    assert_eq!(least_moved(&before, &plan, &spec), 0);
    harness.log.keep(2);
    assert!(harness.log.state.is_live(holder), "the next plan does not run yet");
    for stage in 0..plan.stages.len() {
        let ready = harness.log.ready(stage);
        harness.duties.handle_ready(&harness.log.state, ready).expect("it loads");
    }
    let gone = MemberChange::Lost { holder, reason: LossReason::Drained };
    assert_eq!(harness.act().last(), Some(&Entry::Members(vec![gone])));
}

/// Who joins may get one of the places that a worker stands at in several pipelines.
#[test]
fn who_joins_is_offered_a_shared_place() {
    let (mut harness, _) = rerouted();
    harness.load();
    harness.agree(Entry::Members(vec![admit(5, 1)]));
    harness.tick(SETTLE_TICKS, &[1, 2, 4, 5]);
    assert_eq!(harness.need(), Some(PlanNeed::Planned(PlanReason::Joined { count: 1 })));
    let request = asked(&mut harness);
    let in_force = request.in_force.expect("a place is shared");
    assert_eq!((in_force.departed(), in_force.is_planned), (Vec::new(), true));
    assert_eq!((in_force.stage_nodes.len(), request.nodes.len()), (3, 4));
}

/// Where nobody shares a place there is none to give.
#[test]
fn who_joins_a_grid_is_planned_in_anew() {
    let mut harness = pipelines(JobSpec { copies: 0, stages_max: 5, ..long() });
    harness.agree(Entry::Members(vec![admit(5, 1)]));
    harness.tick(SETTLE_TICKS, &[1, 2, 3, 4, 5]);
    assert_eq!(harness.need(), Some(PlanNeed::Planned(PlanReason::Joined { count: 1 })));
    assert_eq!(asked(&mut harness).in_force, None);
}

/// Without others at the same place, and with one pipeline, there is nothing to go on with.
#[test]
fn one_pipeline_is_cut_anew() {
    let mut harness = DutiesHarness::running(long(), &[1, 2, 3]);
    harness.agree(Entry::Members(vec![lost(harness.log.holder(2))]));
    assert_eq!(asked(&mut harness).in_force, None);
}
