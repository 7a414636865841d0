//! Two nodes contradict each other: others are paired, until it is clear which node is at fault.

use zbelastic_types::{LayerId, NodeId, StageIndex};

use crate::duty::{DOUBT_SEALS_MAX, PAIR_CONTRADICTIONS_MAX, PlanNeed};
use crate::entry::Entry;
use crate::fixture::spec;
use crate::job::{HaltReason, JobChange, JobSpec};
use crate::member::{LossReason, MemberChange};
use crate::plan::PlanReason;
use crate::validation::Verdict;

use super::harness::DutiesHarness;

/// Whatever node `liar` computes of other stages is wrong.
fn report_all(harness: &mut DutiesHarness, liar: u64) {
    for stage in 0..harness.plan().stages.len() {
        harness.report(stage);
    }
    for stage in 0..harness.plan().stages.len() {
        let copies: Vec<_> = harness.plan().copy_holders(StageIndex(stage as u32)).collect();
        for copy in copies {
            let scale = if copy.node == NodeId(liar) { 0.5 } else { 1.0 };
            harness.hold_at(copy, stage, scale, harness.log.state.open_turn().step.0);
        }
    }
}

fn partner_of(harness: &DutiesHarness, liar: u64) -> NodeId {
    let stages = harness.plan().stage_indices();
    let copies = |stage: &StageIndex| {
        harness.plan().copy_holders(*stage).any(|holder| holder.node == NodeId(liar))
    };
    let of = stages.into_iter().find(copies).expect("it keeps a copy");
    harness.plan().stages[of.index()].node
}

fn running(nodes: &[u64]) -> DutiesHarness {
    DutiesHarness::running(JobSpec { attest_every: 0, ..spec() }, nodes)
}

#[test]
fn a_contradiction_of_sums_leads_to_other_pairs() {
    let mut harness = running(&[1, 2, 3]);
    let first = partner_of(&harness, 2);
    report_all(&mut harness, 2);
    let plan = harness.replan_now();
    assert!(matches!(plan.reason, PlanReason::Contradiction { .. }), "{}", plan.reason);
    assert_eq!(plan.from_step, harness.log.state.open_turn().step, "nothing is lost");
    harness.load();
    assert_ne!(partner_of(&harness, 2), first);
    assert_eq!(DutiesHarness::nodes(harness.plan()).len(), 3, "nobody is at fault yet");
}

/// Workers report again what is not sealed. That is the same contradiction, not another: counted
/// again it would turn the pairs back, or hold the run.
#[test]
fn a_contradiction_that_is_told_again_is_the_same_one() {
    let mut harness = running(&[1, 2, 3]);
    let first = partner_of(&harness, 2);
    for _ in 0..2 {
        report_all(&mut harness, 2);
        harness.act();
    }
    harness.replan_now();
    harness.load();
    assert_ne!(partner_of(&harness, 2), first);
    let mut harness = running(&[1, 2]);
    for _ in 0..=PAIR_CONTRADICTIONS_MAX {
        report_all(&mut harness, 2);
        assert_eq!(harness.act(), [], "a plan is asked for, and the run is not held");
    }
}

#[test]
fn after_two_partners_the_node_at_fault_is_sent_away_for_good() {
    let mut harness = running(&[1, 2, 3]);
    let liar = harness.log.holder(2);
    report_all(&mut harness, 2);
    harness.replan_now();
    harness.load();
    report_all(&mut harness, 2);
    let proposed = harness.act();
    let reason = LossReason::Untrusted { partners: 2 };
    assert_eq!(proposed[0], Entry::Members(vec![MemberChange::Lost { holder: liar, reason }]));
    assert!(harness.log.state.membership().quarantined().contains(&NodeId(2)));
    let need = harness.need();
    assert!(matches!(need, Some(PlanNeed::Now(PlanReason::Lost { holder, .. })) if holder == liar));
    harness.replan_now();
    harness.load();
    harness.report_all();
    assert!(matches!(harness.act()[..], [Entry::Seal(_)]), "the others go on");
}

/// With two copies each node holds everything of three stages, and no other pairs can be made: the
/// third holder of a stage's update shows which is wrong, the second time that it happens.
#[test]
fn with_two_copies_the_third_holder_tells_who_is_at_fault() {
    let job = JobSpec { attest_every: 0, copies: 2, ..spec() };
    let mut harness = DutiesHarness::running(job, &[1, 2, 3]);
    let liar = harness.log.holder(2);
    report_all(&mut harness, 2);
    harness.replan_now();
    assert!(harness.log.state.membership().quarantined().is_empty(), "once is nobody's fault");
    harness.load();
    report_all(&mut harness, 2);
    let proposed = harness.act();
    let reason = LossReason::Untrusted { partners: 2 };
    assert_eq!(proposed[0], Entry::Members(vec![MemberChange::Lost { holder: liar, reason }]));
}

/// Two bits that flip long after one another are no node's fault.
#[test]
fn a_contradiction_of_long_ago_speaks_against_nobody() {
    let job = JobSpec { attest_every: 0, checkpoint_every: 0, step_count: 9_999, ..spec() };
    let check = |seals: u64, is_at_fault: bool| {
        let mut harness = DutiesHarness::running(job.clone(), &[1, 2, 3]);
        report_all(&mut harness, 2);
        harness.replan_now();
        harness.load();
        for _ in 0..seals {
            harness.agree(Entry::Seal(harness.log.seal(Verdict::Keep)));
        }
        report_all(&mut harness, 2);
        harness.act();
        assert_eq!(
            harness.log.state.membership().quarantined().contains(&NodeId(2)),
            is_at_fault,
            "{seals}"
        );
    };
    check(DOUBT_SEALS_MAX - 1, true);
    check(DOUBT_SEALS_MAX, false);
}

/// With two nodes it cannot be known which is right: after so many contradictions the run is held.
#[test]
fn a_pair_that_contradicts_itself_again_and_again_is_held() {
    let mut harness = running(&[1, 2]);
    for _ in 0..PAIR_CONTRADICTIONS_MAX {
        report_all(&mut harness, 2);
        harness.replan_now();
        harness.load();
    }
    report_all(&mut harness, 2);
    let proposed = harness.act();
    assert_eq!(proposed, [Entry::Job(JobChange::Halt(HaltReason::Untrusted))]);
}

#[test]
fn the_first_layer_that_differs_is_named() {
    let mut harness = running(&[1, 2]);
    harness.report(0);
    harness.report(1);
    harness.hold(0);
    harness.hold_with(1, 0.5, 0);
    harness.act();
    let layer = LayerId(2);
    assert_eq!(harness.need(), Some(PlanNeed::Now(PlanReason::Contradiction { layer })));
}
