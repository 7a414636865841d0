//! Layers are copied ahead of a planned change.

use zbelastic_types::{Incarnation, LayerId, NodeId};

use crate::duty::{InputRefusal, least_moved};
use crate::entry::Entry;
use crate::fixture::{SETTLE_TICKS, lost, spec};
use crate::job::JobSpec;
use crate::member::{Holder, MemberChange};
use crate::plan::{LayerSource, PlanRecord};
use crate::pre_copy::PreCopyPlan;

use super::harness::{DutiesHarness, TIMING};

fn long() -> JobSpec {
    JobSpec { step_count: 1000, ..spec() }
}

fn adopted(proposed: &[Entry]) -> PlanRecord {
    let [.., Entry::Adopt(plan)] = proposed else { panic!("{proposed:#?}") };
    (**plan).clone()
}

/// Two stages have each other's copies; the node that came has nothing, and stands where it needs
/// least.
fn joining() -> DutiesHarness {
    joining_in(long())
}

fn joining_in(spec: JobSpec) -> DutiesHarness {
    let mut harness = DutiesHarness::running(spec, &[1, 2]);
    harness.follows = false;
    harness.agree(Entry::Members(vec![crate::fixture::admit(3, 1)]));
    harness.tick(SETTLE_TICKS, &[1, 2, 3]);
    harness.act();
    harness.solve();
    assert_eq!(harness.act(), [], "layers are copied ahead");
    harness
}

#[test]
fn a_planned_change_waits_until_its_layers_are_followed() {
    let mut harness = joining();
    let plan_ahead = harness.duties.pre_copy().cloned().expect("layers move");
    let follower = harness.log.holder(3);
    assert!(plan_ahead.layers.iter().all(|followed| followed.follower == follower));
    for _ in 0..3 {
        harness.tick(1, &[1, 2, 3]);
        harness.report_all();
        assert!(matches!(harness.act()[..], [Entry::Seal(_)]), "training goes on");
    }
    harness.follow_all();
    let plan = adopted(&harness.act());
    for followed in &plan_ahead.layers {
        let LayerSource::Nodes(nodes) = &plan.sources[followed.layer.index()] else { panic!() };
        assert!(nodes.contains(&NodeId(3)));
    }
    assert_eq!(harness.duties.pre_copy(), None, "from now on the plan says what is followed");
    let next = harness.log.state.next_plan().expect("it waits for its step");
    assert_eq!(PreCopyPlan::of(harness.plan(), next).as_ref(), Some(&*plan_ahead));
}

/// R10: a worker that is to follow layers is waited for as long as it gets on, and no longer.
#[test]
fn r10_a_planned_change_waits_for_who_gets_on_and_for_nobody_else() {
    let mut harness = joining();
    for _ in 0..5 * TIMING.progress_ticks {
        harness.work(1, &[1, 2, 3]);
        harness.report_all();
        assert!(matches!(harness.act()[..], [Entry::Seal(_)]), "training goes on");
    }
    for _ in 1..TIMING.progress_ticks {
        harness.tick(1, &[1, 2, 3]);
        harness.report_all();
        assert!(matches!(harness.act()[..], [Entry::Seal(_)]));
    }
    harness.tick(1, &[1, 2, 3]);
    let plan = adopted(&harness.act());
    let holds = |source: &LayerSource| match source {
        LayerSource::Nodes(nodes) => nodes.contains(&NodeId(3)),
        LayerSource::Checkpoint { .. } | LayerSource::Initial => false,
    };
    assert!(!plan.sources.iter().any(holds), "it follows nothing");
}

/// A follower whose memory does not hold a layer reports that by leaving it out.
#[test]
fn a_layer_that_a_follower_leaves_out_is_not_waited_for() {
    let mut harness = joining();
    let first = harness.duties.pre_copy().expect("layers move").layers[0];
    harness.follow(first.follower, vec![first.layer]);
    let plan = adopted(&harness.act());
    let names = |source: &LayerSource| match source {
        LayerSource::Nodes(nodes) => nodes.contains(&NodeId(3)),
        LayerSource::Checkpoint { .. } | LayerSource::Initial => false,
    };
    let named = plan.sources.iter().filter(|source| names(source)).count();
    assert_eq!(named, 1, "who said that it follows a layer has it");
}

#[test]
fn what_is_said_to_be_followed_and_was_not_asked_for_does_not_count() {
    let mut harness = joining();
    let (generation, other) = (harness.plan().generation, harness.log.holder(1));
    let state = &harness.log.state;
    let mut handle = |holder, generation, layers: Vec<u32>| {
        let layers = layers.into_iter().map(LayerId).collect();
        harness.duties.handle_following(state, holder, generation, layers)
    };
    assert_eq!(handle(other, generation, vec![0]), Err(InputRefusal::NotRequested));
    let unknown = InputRefusal::UnknownLayer { layer: LayerId(4), layer_count: 4 };
    assert_eq!(handle(other, generation, vec![4]), Err(unknown));
    let many = InputRefusal::TooManyLayers { found: 5, layer_count: 4 };
    assert_eq!(handle(other, generation, vec![0; 5]), Err(many));
    let (expected, found) = (generation, generation.next());
    let late = InputRefusal::OtherGeneration { expected, found };
    assert_eq!(handle(other, found, vec![0]), Err(late));
    let holder = Holder { incarnation: Incarnation(999), ..other };
    assert_eq!(handle(holder, generation, vec![0]), Err(InputRefusal::Fenced { holder }));
}

/// A plan for nodes that come must not keep a node waiting that is about to go.
#[test]
fn who_is_about_to_go_is_planned_out_before_layers_are_followed_for_it() {
    let mut harness = joining();
    let holder = harness.log.holder(2);
    harness.agree(Entry::Members(vec![MemberChange::Drain { holder }]));
    harness.act();
    let request = harness.solve_request.as_ref().expect("another plan");
    assert_eq!(request.nodes.iter().map(|(node, _)| node.0).collect::<Vec<_>>(), [1, 3]);
    harness.solve();
    harness.act();
    let plan_ahead = harness.duties.pre_copy().expect("layers move");
    assert!(plan_ahead.names(holder) && plan_ahead.followed_by(holder).next().is_none());
}

#[test]
fn nothing_is_copied_ahead_any_more_when_nobody_comes() {
    let mut harness = joining();
    harness.agree(Entry::Members(vec![lost(harness.log.holder(3))]));
    harness.act();
    assert_eq!(harness.duties.pre_copy(), None);
}

#[test]
fn who_comes_stands_where_fewest_layers_move() {
    let mut harness = joining();
    harness.follow_all();
    let plan = adopted(&harness.act());
    assert_eq!(DutiesHarness::nodes(&plan), [1, 3, 2].map(NodeId), "a layer and a copy of one");
}

#[test]
fn a_heavy_layer_moves_less_than_several_light_ones() {
    let spec = JobSpec { layer_bytes: vec![1, 100, 1, 1], ..long() };
    let mut harness = joining_in(spec.clone());
    let before = harness.plan().clone();
    harness.follow_all();
    let plan = adopted(&harness.act());
    assert_eq!(DutiesHarness::nodes(&plan), [3, 2, 1].map(NodeId), "a layer and copies of two");
    assert_eq!(least_moved(&before, &plan, &spec), 3);
    let alike = JobSpec { layer_bytes: Vec::new(), ..spec };
    assert_eq!(least_moved(&before, &plan, &alike), 2, "the middle stage would need two");
}
