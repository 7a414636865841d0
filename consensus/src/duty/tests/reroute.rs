//! A loss where others stand at the same place: what the solver is asked, and the plan that follows.

use zbelastic_schedule::Window;
use zbelastic_types::{NodeId, StageIndex};

use super::harness::DutiesHarness;
use super::planning::{adopted, long};
use crate::duty::{PlanInForce, PlanNeed, PlanSolution, SolveRequest, least_moved};
use crate::entry::Entry;
use crate::fixture::{FixtureLog, SETTLE_TICKS, lost, side_by_side_twice, without_the_third};
use crate::job::JobSpec;
use crate::plan::{LayerSource, PlanReason, PlanRecord};

/// Four workers run two pipelines of two stages, and no copies are required.
fn two_pipelines() -> DutiesHarness {
    let spec = JobSpec { copies: 0, ..long() };
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

/// The holder of the third stage is lost, and the first one goes on with both.
fn rerouted() -> (DutiesHarness, PlanRecord) {
    let mut harness = two_pipelines();
    let before = harness.plan().clone();
    harness.agree(Entry::Members(vec![lost(harness.log.holder(3))]));
    let request = asked(&mut harness);
    let PlanInForce { record, stage_nodes } = request.in_force.clone().expect("others are left");
    assert_eq!((record.generation, stage_nodes.len()), (before.generation, 4));
    let lost = PlanInForce { record, stage_nodes: stage_nodes.clone() }.lost();
    assert_eq!(lost, [StageIndex(2)]);
    let at = |stage: usize| stage_nodes[stage].expect("it is left");
    let solution = shared(&before, vec![at(0), at(1), at(3)]);
    assert!(harness.duties.handle_solution(request.number, Ok(solution)));
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
    assert_eq!(in_force.lost(), []);
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

/// Without others at the same place, and with one pipeline, there is nothing to go on with.
#[test]
fn one_pipeline_is_cut_anew() {
    let mut harness = DutiesHarness::running(long(), &[1, 2, 3]);
    harness.agree(Entry::Members(vec![lost(harness.log.holder(2))]));
    assert_eq!(asked(&mut harness).in_force, None);
}
