//! R9 and R10: nothing sealed is given up without evidence, and waiting ends with lack of progress.

use zbelastic_types::{LayerId, NodeId, Step};

use crate::duty::{AwaitedAnswer, AwaitedMember, AwaitedReturn, LeaderAction, PlanNeed};
use crate::entry::{Entry, RewindReason};
use crate::fixture::{FixtureLog, LOST_AFTER_TICKS, admit, lost};
use crate::job::JobSpec;
use crate::member::{BOOTS_PER_START, LossReason, MemberChange};
use crate::message::LoadFault;
use crate::plan::{LayerSource, PlanReason};

use super::harness::{DutiesHarness, TIMING};
use super::planning::{adopted, loading, long};

/// R10: as long as any worker in the plan does something, it moves; and so it does while an
/// operation is under way that the plan allows.
#[test]
fn r10_a_plan_whose_members_get_on_is_not_given_up_however_long_they_take() {
    let long_time = 20 * TIMING.progress_ticks;
    for mut harness in [DutiesHarness::running(long(), &[1, 2]), loading()] {
        for _ in 0..long_time {
            harness.progress += 1;
            harness.beat(1, 0, 0);
            harness.progress -= 1;
            harness.tick(1, &[2]);
            assert_eq!(harness.need(), None, "the first gets on");
            harness.progress += 1;
        }
    }
    let mut harness = DutiesHarness::running(long(), &[1, 2]);
    for _ in 0..long_time {
        harness.tick(1, &[2]);
        harness.beat(1, harness.plan().op_ticks_max, 0);
        assert_eq!(harness.need(), None, "an operation is under way");
    }
    harness.tick(TIMING.progress_ticks + 1, &[1, 2]);
    assert!(matches!(harness.need(), Some(PlanNeed::Now(PlanReason::Stalled { .. }))));
}

/// A worker that works beside the plan does not show that the plan moves.
#[test]
fn progress_of_others_is_none_of_the_plan() {
    let mut harness = DutiesHarness::running(JobSpec { stages_max: 1, ..long() }, &[1]);
    harness.agree(Entry::Members(vec![admit(2, 1)]));
    for _ in 0..=TIMING.progress_ticks {
        harness.tick(1, &[1]);
        harness.progress += 1;
        harness.beat(2, 0, 0);
        harness.progress -= 1;
    }
    let members = harness.act();
    assert!(
        matches!(harness.need(), Some(PlanNeed::Now(PlanReason::Stalled { .. }))),
        "{members:?}"
    );
}

/// Two are left of three, and only the third's copy of a layer may be where the second has it.
fn with_a_late_holder() -> DutiesHarness {
    let mut log = FixtureLog::running(long(), &[1, 2, 3]);
    log.keep(4);
    log.checkpoint(4, 1);
    log.keep(2);
    let mut harness = DutiesHarness::new(log);
    harness.agree(Entry::Members(vec![lost(harness.log.holder(2))]));
    harness.act();
    harness.solve();
    harness.report_held(1, &[0, 1], 6);
    harness
}

#[test]
fn r9_a_holder_that_is_late_is_waited_for_before_anything_sealed_is_given_up() {
    let mut harness = with_a_late_holder();
    harness.work(100 * TIMING.inventory_ticks, &[1, 3]);
    assert_eq!(harness.act(), [], "it may hold what nobody else does");
    let (node, answer, still_ticks) = (NodeId(3), AwaitedAnswer::Inventory, 1);
    let awaited = harness.duties.awaited_members(&harness.log.state);
    assert_eq!(awaited, [AwaitedMember { node, answer, still_ticks }]);
    harness.report_held(3, &[2, 3], 6);
    let plan = adopted(&harness.act());
    assert_eq!(plan.from_step, Step(6), "and it did");
}

#[test]
fn r9_the_run_goes_back_once_every_holder_has_answered_or_is_gone() {
    let rewind = |harness: &mut DutiesHarness| {
        let proposed = harness.act();
        let [.., Entry::Rewind { to, reason, .. }] = &proposed[..] else { panic!("{proposed:?}") };
        assert_eq!((*to, *reason), (Step(4), RewindReason::LayerLost { layer: LayerId(2) }));
    };
    let mut harness = with_a_late_holder();
    harness.report_held(3, &[0], 6);
    rewind(&mut harness);
    let mut harness = with_a_late_holder();
    harness.agree(Entry::Members(vec![lost(harness.log.holder(3))]));
    harness.act();
    harness.solve();
    harness.report_held(1, &[0, 1], 6);
    rewind(&mut harness);
}

/// One that was declared lost comes back while another is waited for. It has what nobody else
/// reports, and neither the other nor a rewind is waited for.
#[test]
fn r9_one_that_comes_back_is_asked_while_a_late_holder_is_waited_for() {
    let mut harness = with_a_late_holder();
    harness.work(10 * TIMING.inventory_ticks, &[1, 3]);
    assert_eq!(harness.act(), []);
    let before = harness.log.holder(1);
    let come_back = |boot| Entry::Members(vec![admit(2, boot)]);
    harness.agree(come_back(2));
    assert_eq!(harness.act(), [], "what it holds is not known yet");
    assert!(harness.duties.requests_inventory_of(NodeId(2)));
    harness.report_held(3, &[0], 6);
    assert_eq!(harness.act(), [], "no other has layer 2, and it may");
    harness.report_held(2, &[0], 6);
    harness.agree(Entry::Members(vec![lost(harness.log.holder(2))]));
    harness.agree(come_back(3));
    assert_eq!(harness.act(), [], "nor is the answer of one life that of the next");
    harness.report_held(2, &[2, 3], 6);
    let plan = adopted(&harness.act());
    assert_eq!((plan.from_step, plan.stages[0]), (Step(6), before));
    assert_eq!(plan.sources[2], LayerSource::Nodes(vec![NodeId(2)]));
}

/// Nodes 2 and 3, which alone hold layer 1, are silent together, and node 1 has reported the others.
fn with_two_silent() -> DutiesHarness {
    let mut log = FixtureLog::running(long(), &[1, 2, 3]);
    log.keep(4);
    log.checkpoint(4, 1);
    log.keep(2);
    let mut harness = DutiesHarness::new(log);
    harness.tick(LOST_AFTER_TICKS + 1, &[1]);
    let proposed = harness.act();
    assert!(matches!(&proposed[..], [Entry::Members(lost)] if lost.len() == 2), "{proposed:?}");
    report_first(&mut harness);
    assert_eq!(harness.act(), [], "they may come back with it");
    harness
}

fn report_first(harness: &mut DutiesHarness) {
    harness.act();
    if harness.solve_request.is_some() {
        harness.solve();
    }
    harness.report_held(1, &[0, 2, 3], 6);
}

/// Status names both, and for how long they are waited for.
fn check_returns(harness: &DutiesHarness, left_ticks: u32) {
    let awaited = |node| AwaitedReturn { node: NodeId(node), layer: LayerId(1), left_ticks };
    let returns = harness.duties.awaited_returns(&harness.log.state);
    assert_eq!(returns, [awaited(2), awaited(3)]);
}

fn check_rewind(harness: &mut DutiesHarness) {
    let proposed = harness.act();
    let [.., Entry::Rewind { to, reason, .. }] = &proposed[..] else { panic!("{proposed:?}") };
    assert_eq!((*to, *reason), (Step(4), RewindReason::LayerLost { layer: LayerId(1) }));
}

/// A network that was cut gives both back; one of them is enough.
#[test]
fn r9_members_that_were_lost_for_their_silence_alone_may_come_back_with_what_they_hold() {
    let mut harness = with_two_silent();
    harness.agree(Entry::Members(vec![admit(3, 2)]));
    report_first(&mut harness);
    assert_eq!(harness.act(), [], "its inventory is not there yet");
    harness.report_held(3, &[1], 6);
    let plan = adopted(&harness.act());
    assert_eq!(plan.from_step, Step(6));
    assert_eq!(plan.sources[1], LayerSource::Nodes(vec![NodeId(3)]));
}

/// As long as a member without progress is waited for, from when they were last heard.
#[test]
fn r9_members_that_are_lost_for_their_silence_are_not_waited_for_for_ever() {
    let so_far = LOST_AFTER_TICKS + 1;
    let mut harness = with_two_silent();
    check_returns(&harness, TIMING.progress_ticks - so_far);
    harness.tick(TIMING.progress_ticks - so_far - 1, &[1]);
    assert_eq!(harness.act(), []);
    check_returns(&harness, 1);
    harness.tick(1, &[1]);
    assert_eq!(harness.duties.awaited_returns(&harness.log.state), []);
    check_rewind(&mut harness);
    let mut harness = with_two_silent();
    harness.elect_anew();
    report_first(&mut harness);
    harness.tick(TIMING.progress_ticks - 1, &[1]);
    assert_eq!(harness.act(), [], "a new leader has not heard them for so long");
    harness.tick(1, &[1]);
    check_rewind(&mut harness);
    let mut harness = with_two_silent();
    harness.duties.handle_closed(&harness.log.state, NodeId(2));
    assert_eq!(harness.act(), [], "the other one may");
    harness.duties.handle_closed(&harness.log.state, NodeId(3));
    check_rewind(&mut harness);
}

/// After however long a silence, the others are given the time in which members come together. A
/// process that was started again shows nothing about them.
#[test]
fn r9_members_that_come_back_together_need_not_come_at_once() {
    let settle_ticks = long().settle_ticks;
    for (boot, waits) in [(2, true), (BOOTS_PER_START, false)] {
        let mut log = FixtureLog::running(long(), &[1, 2, 3]);
        log.keep(4);
        log.checkpoint(4, 1);
        log.keep(2);
        let mut harness = DutiesHarness::new(log);
        harness.tick(3 * TIMING.progress_ticks, &[]);
        harness.act();
        assert_eq!(harness.log.state.live_workers().count(), 0);
        harness.agree(Entry::Members(vec![admit(1, boot)]));
        report_first(&mut harness);
        if waits {
            harness.tick(settle_ticks - 1, &[1]);
            assert_eq!(harness.act(), []);
            harness.tick(1, &[1]);
        }
        check_rewind(&mut harness);
    }
}

/// Otherwise a node that owes its inventory in every life would be waited for for ever.
#[test]
fn r10_one_that_gets_no_further_in_two_lives_is_not_waited_for_in_a_third() {
    let mut harness = with_a_late_holder();
    harness.tick(TIMING.progress_ticks + 1, &[1, 3]);
    let proposed = harness.act();
    assert!(matches!(&proposed[..], [Entry::Members(_)]), "{proposed:?}");
    harness.agree(Entry::Members(vec![admit(3, 2)]));
    report_first(&mut harness);
    assert_eq!(harness.act(), [], "the request may have been lost");
    harness.tick(TIMING.progress_ticks + 1, &[1, 3]);
    let proposed = harness.act();
    assert!(matches!(&proposed[..], [Entry::Members(_), Entry::Rewind { .. }]), "{proposed:?}");
}

/// Members and a rewind are agreed on in the sequence in which they are proposed: one that is
/// admitted before has its say, one that is admitted behind gives up what it held.
#[test]
fn r9_the_run_does_not_go_back_while_members_are_about_to_change() {
    let mut harness = with_a_late_holder();
    let coming = admit(2, 2);
    harness.duties.handle_change(&harness.log.state, coming.clone()).expect("it is noted");
    let Some(LeaderAction::Propose(entry)) = harness.decide() else { panic!("it is admitted") };
    assert_eq!(entry, Entry::Members(vec![coming]));
    harness.duties.on_proposed(harness.log.state.applied() + 1, &entry);
    harness.report_held(3, &[0], 6);
    assert_eq!(harness.act(), [], "nobody who is a member has layer 2");
    harness.agree(entry);
    harness.act();
    assert!(harness.duties.requests_inventory_of(NodeId(2)));
}

/// R10: otherwise it would be waited for for ever.
#[test]
fn r10_who_owes_an_answer_and_gets_no_further_is_lost() {
    let mut harness = with_a_late_holder();
    harness.work(3 * TIMING.progress_ticks, &[1, 3]);
    harness.tick(TIMING.progress_ticks - 1, &[1, 3]);
    assert_eq!(harness.act(), []);
    harness.tick(1, &[1, 3]);
    let ticks = TIMING.progress_ticks + 1;
    let (holder, reason) = (harness.log.holder(3), LossReason::NoProgress { ticks });
    let lost = Entry::Members(vec![MemberChange::Lost { holder, reason }]);
    assert_eq!(harness.act()[0], lost);
    let mut harness = loading();
    harness.duties.handle_ready(&harness.log.state, harness.log.ready(0)).expect("it loads");
    harness.act();
    harness.work(3 * TIMING.progress_ticks, &[1, 2]);
    harness.tick(TIMING.progress_ticks, &[1, 2]);
    let (holder, reason) = (harness.log.holder(2), LossReason::NoProgress { ticks });
    let lost = Entry::Members(vec![MemberChange::Lost { holder, reason }]);
    assert_eq!(harness.act()[0], lost);
}

fn complain(harness: &mut DutiesHarness, node: u64) {
    let (state, holder) = (&harness.log.state, harness.log.holder(node));
    let fault = (LayerId(1), LoadFault::Source);
    let result = harness.duties.handle_load_failed(state, holder, state.generation(), fault);
    result.expect("it loads");
}

/// R10: a layer that others hold is on its way as long as they get on.
#[test]
fn r10_a_layer_that_does_not_come_is_given_up_when_neither_side_gets_on() {
    let mut log = FixtureLog::running(long(), &[1, 2]);
    log.keep(2);
    log.adopt(log.plan(&[2, 1]));
    let mut harness = DutiesHarness::new(log);
    let is_of_nodes = |source: &LayerSource| matches!(source, LayerSource::Nodes(_));
    assert!(harness.plan().sources.iter().all(is_of_nodes));
    harness.duties.handle_ready(&harness.log.state, harness.log.ready(0)).expect("it loads");
    harness.act();
    for _ in 0..5 * TIMING.progress_ticks {
        harness.work(1, &[1, 2]);
        complain(&mut harness, 1);
        assert_eq!((harness.need(), harness.act()), (None, Vec::new()));
    }
    harness.tick(TIMING.progress_ticks - 1, &[1, 2]);
    complain(&mut harness, 1);
    assert_eq!(harness.need(), None);
    harness.tick(1, &[2, 1]);
    complain(&mut harness, 1);
    let layer = LayerId(1);
    assert_eq!(harness.need(), Some(PlanNeed::Now(PlanReason::LoadFailed { layer })));
    assert_eq!(
        (harness.act(), harness.solve_request.is_some()),
        (Vec::new(), true),
        "nobody is lost for it"
    );
}
