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
fn report_all(bench: &mut DutiesHarness, liar: u64) {
    for stage in 0..bench.plan().stages.len() {
        bench.report(stage);
    }
    for stage in 0..bench.plan().stages.len() {
        let copies: Vec<_> = bench.plan().copy_holders(StageIndex(stage as u32)).collect();
        for copy in copies {
            let scale = if copy.node == NodeId(liar) { 0.5 } else { 1.0 };
            bench.hold_at(copy, stage, scale, bench.log.state.open_turn().step.0);
        }
    }
}

fn partner_of(bench: &DutiesHarness, liar: u64) -> NodeId {
    let stages = bench.plan().stage_indices();
    let copies = |stage: &StageIndex| {
        bench.plan().copy_holders(*stage).any(|holder| holder.node == NodeId(liar))
    };
    let of = stages.into_iter().find(copies).expect("it keeps a copy");
    bench.plan().stages[of.index()].node
}

fn running(nodes: &[u64]) -> DutiesHarness {
    DutiesHarness::running(JobSpec { attest_every: 0, ..spec() }, nodes)
}

#[test]
fn a_contradiction_of_sums_leads_to_other_pairs() {
    let mut bench = running(&[1, 2, 3]);
    let first = partner_of(&bench, 2);
    report_all(&mut bench, 2);
    let plan = bench.replan_now();
    assert!(matches!(plan.reason, PlanReason::Contradiction { .. }), "{}", plan.reason);
    assert_eq!(plan.from_step, bench.log.state.open_turn().step, "nothing is lost");
    bench.load();
    assert_ne!(partner_of(&bench, 2), first);
    assert_eq!(DutiesHarness::nodes(bench.plan()).len(), 3, "nobody is at fault yet");
}

/// Workers report again what is not sealed. That is the same contradiction, not another: counted
/// again it would turn the pairs back, or hold the run.
#[test]
fn a_contradiction_that_is_told_again_is_the_same_one() {
    let mut bench = running(&[1, 2, 3]);
    let first = partner_of(&bench, 2);
    for _ in 0..2 {
        report_all(&mut bench, 2);
        bench.act();
    }
    bench.replan_now();
    bench.load();
    assert_ne!(partner_of(&bench, 2), first);
    let mut bench = running(&[1, 2]);
    for _ in 0..=PAIR_CONTRADICTIONS_MAX {
        report_all(&mut bench, 2);
        assert_eq!(bench.act(), [], "a plan is asked for, and the run is not held");
    }
}

#[test]
fn after_two_partners_the_node_at_fault_is_sent_away_for_good() {
    let mut bench = running(&[1, 2, 3]);
    let liar = bench.log.holder(2);
    report_all(&mut bench, 2);
    bench.replan_now();
    bench.load();
    report_all(&mut bench, 2);
    let proposed = bench.act();
    let reason = LossReason::Untrusted { partners: 2 };
    assert_eq!(proposed[0], Entry::Members(vec![MemberChange::Lost { holder: liar, reason }]));
    assert!(bench.log.state.quarantined().contains(&NodeId(2)));
    assert!(
        matches!(bench.need(), Some(PlanNeed::Now(PlanReason::Lost { holder, .. })) if holder == liar)
    );
    bench.replan_now();
    bench.load();
    bench.report_all();
    assert!(matches!(bench.act()[..], [Entry::Seal(_)]), "the others go on");
}

/// With two copies each node holds everything of three stages, and no other pairs can be made: the
/// third holder of a stage's update shows which is wrong, the second time that it happens.
#[test]
fn with_two_copies_the_third_holder_tells_who_is_at_fault() {
    let job = JobSpec { attest_every: 0, copies: 2, ..spec() };
    let mut bench = DutiesHarness::running(job, &[1, 2, 3]);
    let liar = bench.log.holder(2);
    report_all(&mut bench, 2);
    bench.replan_now();
    assert!(bench.log.state.quarantined().is_empty(), "once is nobody's fault");
    bench.load();
    report_all(&mut bench, 2);
    let proposed = bench.act();
    let reason = LossReason::Untrusted { partners: 2 };
    assert_eq!(proposed[0], Entry::Members(vec![MemberChange::Lost { holder: liar, reason }]));
}

/// Two bits that flip long after one another are nobody's fault.
#[test]
fn a_contradiction_of_long_ago_speaks_against_nobody() {
    let job = JobSpec { attest_every: 0, checkpoint_every: 0, step_count: 9_999, ..spec() };
    let check = |seals: u64, is_at_fault: bool| {
        let mut bench = DutiesHarness::running(job.clone(), &[1, 2, 3]);
        report_all(&mut bench, 2);
        bench.replan_now();
        bench.load();
        for _ in 0..seals {
            bench.agree(Entry::Seal(bench.log.seal(Verdict::Keep)));
        }
        report_all(&mut bench, 2);
        bench.act();
        assert_eq!(bench.log.state.quarantined().contains(&NodeId(2)), is_at_fault, "{seals}");
    };
    check(DOUBT_SEALS_MAX - 1, true);
    check(DOUBT_SEALS_MAX, false);
}

/// With two nodes it cannot be known which is right: after so many contradictions the run is held.
#[test]
fn a_pair_that_contradicts_itself_again_and_again_is_held() {
    let mut bench = running(&[1, 2]);
    for _ in 0..PAIR_CONTRADICTIONS_MAX {
        report_all(&mut bench, 2);
        bench.replan_now();
        bench.load();
    }
    report_all(&mut bench, 2);
    let proposed = bench.act();
    assert_eq!(proposed, [Entry::Job(JobChange::Halt(HaltReason::Untrusted))]);
}

#[test]
fn the_first_layer_that_differs_is_named() {
    let mut bench = running(&[1, 2]);
    bench.report(0);
    bench.report(1);
    bench.hold(0);
    bench.hold_with(1, 0.5, 0);
    bench.act();
    let layer = LayerId(2);
    assert_eq!(bench.need(), Some(PlanNeed::Now(PlanReason::Contradiction { layer })));
}
