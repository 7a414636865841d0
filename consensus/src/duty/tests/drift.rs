//! The plan in force does not fit what nodes were found to be.

use std::collections::BTreeMap;

use zbelastic_schedule::Window;
use zbelastic_types::{Generation, LayerRange, NodeId, StageIndex};

use super::harness::DutiesHarness;
use crate::duty::{InputRefusal, PlanMeasurement, PlanNeed, PlanSolution};
use crate::entry::Entry;
use crate::fixture::{SETTLE_TICKS, admit, lost, solution, spec};
use crate::job::JobSpec;
use crate::member::MemberChange;
use crate::plan::{DriftedPart, PlanReason};

fn long() -> JobSpec {
    JobSpec { step_count: 1000, ..spec() }
}

fn reason(found_us: u64) -> PlanReason {
    let part = DriftedPart::Stage { stage: StageIndex(1), node: NodeId(2) };
    PlanReason::Drifted { part, expected_us: 1000, found_us, gain_permille: 300 }
}

/// Node 2 has half the speed that it brought.
fn slow(generation: u64, drift: Option<PlanReason>) -> PlanMeasurement {
    let speeds = BTreeMap::from([(NodeId(2), 500)]);
    PlanMeasurement { generation: Generation(generation), speeds, drift }
}

fn measure(harness: &mut DutiesHarness, measured: PlanMeasurement) {
    harness.duties.handle_measured(&harness.log.state, measured).expect("of the plan in force");
}

/// Two stages, of which the second was found to be slow.
fn drifted() -> DutiesHarness {
    let mut harness = DutiesHarness::running(long(), &[1, 2]);
    let generation = harness.plan().generation.0;
    measure(&mut harness, slow(generation, Some(reason(2000))));
    harness
}

/// The slow one gets a layer instead of two.
fn lighter() -> PlanSolution {
    let chunks = vec![LayerRange::new(0, 3), LayerRange::new(3, 4)];
    PlanSolution { chunks, ..solution(2, Window::One) }
}

fn answer(harness: &mut DutiesHarness, solution: PlanSolution) {
    let request = harness.solve_request.take().expect("a plan is asked for");
    assert!(harness.duties.handle_solution(request.number, Ok(solution)), "it is wanted");
}

#[test]
fn a_plan_that_drifted_is_changed_ahead_and_says_why() {
    let mut harness = drifted();
    assert_eq!(harness.need(), Some(PlanNeed::Planned(reason(2000))));
    harness.act();
    let request = harness.solve_request.clone().expect("a plan is asked for");
    let speeds: Vec<u32> =
        request.nodes.iter().map(|(_, brought)| brought.speed_permille).collect();
    assert_eq!(speeds, [1000, 500], "what was found takes the place of what was said");
    answer(&mut harness, lighter());
    let proposed = harness.act();
    let [.., Entry::Adopt(plan)] = &proposed[..] else { panic!("{proposed:#?}") };
    assert_eq!((&plan.reason, &plan.chunks), (&reason(2000), &lighter().chunks));
    assert_eq!(plan.stages, harness.plan().stages, "who is there stays where it is");
    for _ in 0..plan.from_step.0 {
        harness.report_all();
        harness.act();
    }
    assert_eq!(harness.plan().chunks, lighter().chunks);
    harness.load();
    assert_eq!(harness.need(), None, "the new plan is for what was found");
}

#[test]
fn a_solution_that_changes_nothing_is_the_end_of_it_until_something_else_drifts() {
    let mut harness = drifted();
    harness.act();
    answer(&mut harness, solution(2, Window::One));
    assert_eq!(harness.act(), []);
    assert_eq!((harness.need(), harness.decide()), (None, None));
    let generation = harness.plan().generation.0;
    measure(&mut harness, slow(generation, Some(reason(3000))));
    harness.act();
    assert!(harness.solve_request.is_some(), "more drifted since");
}

#[test]
fn the_first_drift_of_a_plan_stands_and_no_other_plans_counts() {
    let mut harness = drifted();
    harness.act();
    let first = harness.solve_request.clone().expect("a plan is asked for");
    let generation = harness.plan().generation;
    measure(&mut harness, slow(generation.0, Some(reason(2100))));
    harness.act();
    assert_eq!(harness.solve_request, Some(first), "the plan that is being made is not begun anew");
    let found = Generation(generation.0 + 1);
    let result = harness.duties.handle_measured(&harness.log.state, slow(found.0, None));
    assert_eq!(result, Err(InputRefusal::OtherGeneration { expected: generation, found }));
}

#[test]
fn who_is_lost_or_goes_or_comes_matters_more() {
    let mut harness = drifted();
    harness.agree(Entry::Members(vec![admit(3, 1)]));
    harness.tick(SETTLE_TICKS, &[1, 2, 3]);
    assert_eq!(harness.need(), Some(PlanNeed::Planned(PlanReason::Joined { count: 1 })));
    let holder = harness.log.holder(1);
    harness.agree(Entry::Members(vec![MemberChange::Drain { holder }]));
    assert_eq!(harness.need(), Some(PlanNeed::Planned(PlanReason::Draining { count: 1 })));
    harness.agree(Entry::Members(vec![lost(holder)]));
    harness.act();
    let request = harness.solve_request.as_ref().expect("a plan is asked for");
    let speeds: Vec<(u64, u32)> =
        request.nodes.iter().map(|(node, brought)| (node.0, brought.speed_permille)).collect();
    assert_eq!(speeds, [(3, 1000), (2, 500)], "and is made for what was found");
}

/// As under a schedule that has no plan for so many stages: a node left over is no reason to look
/// away from the others.
#[test]
fn who_is_of_no_use_does_not_stand_before_a_drift() {
    let mut harness = DutiesHarness::running(long(), &[1, 2]);
    harness.agree(Entry::Members(vec![admit(3, 1)]));
    harness.tick(SETTLE_TICKS, &[1, 2, 3]);
    harness.act();
    answer(&mut harness, solution(2, Window::One));
    assert_eq!((harness.act(), harness.need()), (vec![], None), "the plan stays as it is");
    let generation = harness.plan().generation.0;
    measure(&mut harness, slow(generation, Some(reason(2000))));
    assert_eq!(harness.need(), Some(PlanNeed::Planned(reason(2000))));
    harness.act();
    answer(&mut harness, solution(2, Window::One));
    assert_eq!(
        (harness.act(), harness.need()),
        (vec![], None),
        "nor is the one who is over looked at anew"
    );
    harness.agree(Entry::Members(vec![admit(4, 1)]));
    harness.tick(SETTLE_TICKS, &[1, 2, 3, 4]);
    assert_eq!(harness.need(), Some(PlanNeed::Planned(PlanReason::Joined { count: 2 })));
}

/// Measured speeds are no part of what is agreed: a new leader is passed them anew, or plans
/// without.
#[test]
fn a_new_leader_knows_nothing_of_it() {
    let mut harness = drifted();
    harness.elect_anew();
    assert_eq!(harness.need(), None);
}

/// Three stages, the middle one slow. A node that comes gets the stage where least moves among its
/// like: the slow one keeps the stage that was cut for it.
#[test]
fn nodes_found_to_differ_are_not_exchanged() {
    let order = |speeds: BTreeMap<NodeId, u32>| {
        let mut harness = DutiesHarness::running(long(), &[1, 2]);
        let generation = harness.plan().generation;
        measure(&mut harness, PlanMeasurement { generation, speeds, drift: None });
        harness.agree(Entry::Members(vec![admit(3, 1)]));
        harness.tick(SETTLE_TICKS, &[1, 2, 3]);
        harness.act();
        answer(&mut harness, solution(3, Window::One));
        let proposed = harness.act();
        let [.., Entry::Adopt(plan)] = &proposed[..] else { panic!("{proposed:#?}") };
        DutiesHarness::nodes(plan)
    };
    let alike = order(BTreeMap::new());
    assert_ne!(alike, [1, 2, 3].map(NodeId), "who comes stands in the middle, where least moves");
    let differing = BTreeMap::from([(NodeId(1), 700), (NodeId(2), 500)]);
    assert_eq!(order(differing), [1, 2, 3].map(NodeId));
}
