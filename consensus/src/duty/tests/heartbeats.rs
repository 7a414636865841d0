//! Which members are lost: closed, silent, or hanging. The last tick allowed, and the first that is
//! not.

use crate::duty::heartbeats::GAP_FACTOR;
use crate::duty::{Duties, InputRefusal, LeaderAction, PlanNeed};
use crate::entry::{CHANGES_MAX, Entry};
use crate::fixture::{FixtureLog, LOST_AFTER_TICKS, admit, spec};
use crate::job::JobSpec;
use crate::member::{Holder, LossReason, MemberChange};
use crate::message::WorkerActivity;
use crate::plan::{LayerSource, PlanReason};
use zbelastic_types::NodeId;

use super::harness::{DutiesHarness, TIMING};

fn lost(holder: Holder, reason: LossReason) -> MemberChange {
    MemberChange::Lost { holder, reason }
}

fn running() -> DutiesHarness {
    DutiesHarness::running(spec(), &[1, 2, 3])
}

#[test]
fn a_member_is_lost_after_so_many_ticks_of_silence_and_not_one_earlier() {
    let mut harness = running();
    harness.tick(LOST_AFTER_TICKS, &[1, 3]);
    assert_eq!(harness.decide(), None);
    harness.tick(1, &[1, 3]);
    let reason = LossReason::Silent { ticks: LOST_AFTER_TICKS + 1 };
    let expected = Entry::Members(vec![lost(harness.log.holder(2), reason)]);
    assert_eq!(harness.act(), [expected]);
    assert!(harness.log.state.holder_of(NodeId(2)).is_none());
}

/// Two jobs on one cluster: each sets how long silence may last and more are waited for.
#[test]
fn silence_and_company_are_waited_for_as_long_as_the_job_says() {
    let (lost_after_ticks, settle_ticks) = (3 * LOST_AFTER_TICKS, 2);
    let patient = JobSpec { lost_after_ticks, settle_ticks, step_count: 1000, ..spec() };
    let mut harness = DutiesHarness::running(patient, &[1, 2]);
    harness.tick(lost_after_ticks, &[1]);
    assert_eq!(harness.decide(), None);
    harness.beat(2, 0, 0);
    harness.agree(Entry::Members(vec![admit(3, 1)]));
    harness.tick(settle_ticks - 1, &[1, 2, 3]);
    assert_eq!(harness.need(), None);
    harness.tick(1, &[1, 2, 3]);
    assert_eq!(harness.need(), Some(PlanNeed::Planned(PlanReason::Joined { count: 1 })));
    let mut harness = running();
    harness.tick(LOST_AFTER_TICKS + 1, &[1, 3]);
    assert_eq!(harness.act().len(), 1, "another job, another limit");
}

#[test]
fn a_pause_below_the_limit_changes_nothing() {
    let mut harness = running();
    for _ in 0..4 {
        harness.tick(LOST_AFTER_TICKS, &[1, 3]);
        harness.beat(2, 0, 0);
        assert_eq!(harness.decide(), None);
    }
}

/// A busy machine beats late by what it beat late by before; a dead one is found for all that.
#[test]
fn who_was_silent_for_long_and_came_back_may_be_silent_for_longer_for_a_while() {
    let lost_after = |harness: &mut DutiesHarness, ticks: u32| {
        harness.tick(ticks, &[1, 3]);
        assert_eq!(harness.decide(), None, "not before {ticks} ticks are over");
        harness.tick(1, &[1, 3]);
        let expected = lost(harness.log.holder(2), LossReason::Silent { ticks: ticks + 1 });
        assert_eq!(harness.act(), [Entry::Members(vec![expected])]);
    };
    let mut harness = running();
    harness.tick(LOST_AFTER_TICKS / 2, &[1, 3]);
    harness.beat(2, 0, 0);
    lost_after(&mut harness, LOST_AFTER_TICKS / 2 * GAP_FACTOR);
    let mut harness = running();
    harness.tick(LOST_AFTER_TICKS, &[1, 3]);
    harness.beat(2, 0, 0);
    lost_after(&mut harness, LOST_AFTER_TICKS * GAP_FACTOR);
}

/// A process that was started again is on the machine that was late before; one that is new to the
/// leader may be as late as the latest.
#[test]
fn silences_are_those_of_a_node_and_outlast_its_process() {
    let lost_after = LOST_AFTER_TICKS / 2 * GAP_FACTOR;
    let mut harness = running();
    harness.tick(LOST_AFTER_TICKS / 2, &[1, 3]);
    harness.beat(2, 0, 0);
    let before = lost(harness.log.holder(2), LossReason::Closed);
    harness.agree(Entry::Members(vec![before]));
    harness.agree(Entry::Members(vec![admit(2, 2), admit(4, 1)]));
    harness.tick(lost_after, &[1, 3]);
    assert!(harness.log.state.holder_of(NodeId(2)).is_some(), "started again");
    assert!(harness.log.state.holder_of(NodeId(4)).is_some(), "new");
    assert!(!harness.act().iter().any(|entry| matches!(entry, Entry::Members(_))));
    harness.tick(1, &[1, 3]);
    let reason = LossReason::Silent { ticks: lost_after + 1 };
    let silent = [2, 4].map(|node| lost(harness.log.holder(node), reason));
    assert!(harness.act().contains(&Entry::Members(silent.to_vec())));
}

/// One that was silent for too long and was not dead is not declared lost for the same silence again.
#[test]
fn the_silence_that_a_member_was_lost_for_is_one_of_its_node() {
    let mut harness = running();
    let lost_after = LOST_AFTER_TICKS + 1;
    harness.tick(lost_after, &[1, 3]);
    harness.act();
    assert!(harness.log.state.holder_of(NodeId(2)).is_none());
    harness.agree(Entry::Members(vec![admit(2, 2)]));
    harness.tick(GAP_FACTOR * LOST_AFTER_TICKS, &[1, 3]);
    harness.act();
    assert!(harness.log.state.holder_of(NodeId(2)).is_some());
    harness.tick(1, &[1, 3]);
    harness.act();
    assert!(harness.log.state.holder_of(NodeId(2)).is_none());
}

/// Silence is little evidence where sealed steps are at stake: nobody else holds the layers.
#[test]
fn the_only_holder_of_sealed_steps_may_be_silent_as_long_as_one_without_progress() {
    let without_copies = || JobSpec { copies: 0, ..spec() };
    let is_lost_after = |log: FixtureLog, ticks: u32| {
        let mut harness = DutiesHarness::new(log);
        harness.tick(ticks - 1, &[1]);
        harness.act();
        let was_there = harness.log.state.holder_of(NodeId(2)).is_some();
        harness.tick(1, &[1]);
        harness.act();
        was_there && harness.log.state.holder_of(NodeId(2)).is_none()
    };
    let trained = |spec: JobSpec, steps: u64| {
        let mut log = FixtureLog::running(spec, &[1, 2]);
        log.keep(steps);
        log
    };
    let (usual, long) = (LOST_AFTER_TICKS + 1, TIMING.progress_ticks + 1);
    assert!(is_lost_after(trained(without_copies(), 1), long));
    assert!(is_lost_after(trained(without_copies(), 0), usual), "the first state is the seed's");
    assert!(is_lost_after(trained(spec(), 1), usual), "node 1 has a copy");
    let mut loading = trained(without_copies(), 1);
    let mut plan = loading.plan(&[1, 2]);
    plan.sources[0] = LayerSource::Nodes(vec![NodeId(2)]);
    loading.adopt(plan);
    assert!(is_lost_after(loading, long), "nor does another have what is to be loaded");
    let mut saved = trained(without_copies(), 4);
    saved.checkpoint(4, 1);
    assert!(is_lost_after(saved, usual), "there is a checkpoint of the last step");
}

/// What was measured of a machine that is lost says nothing about one that comes later.
#[test]
fn silences_of_a_lost_node_are_not_expected_of_a_new_one() {
    let mut harness = running();
    harness.tick(LOST_AFTER_TICKS / 2, &[1, 3]);
    harness.beat(2, 0, 0);
    let gone = lost(harness.log.holder(2), LossReason::Closed);
    harness.agree(Entry::Members(vec![gone]));
    harness.agree(Entry::Members(vec![admit(4, 1)]));
    harness.tick(LOST_AFTER_TICKS + 1, &[1, 3]);
    let silent = lost(harness.log.holder(4), LossReason::Silent { ticks: LOST_AFTER_TICKS + 1 });
    assert!(harness.act().contains(&Entry::Members(vec![silent])));
}

#[test]
fn an_operation_far_past_its_planned_time_is_a_loss_though_the_heart_beats() {
    let mut harness = running();
    let ticks_max = harness.plan().op_ticks_max;
    harness.beat(2, ticks_max, 0);
    harness.tick(1, &[1, 3]);
    assert_eq!(harness.decide(), None);
    harness.beat(2, ticks_max + 1, 0);
    harness.tick(1, &[1, 3]);
    let reason = LossReason::OpOverdue { ticks: ticks_max + 1, ticks_max };
    let expected = Entry::Members(vec![lost(harness.log.holder(2), reason)]);
    assert_eq!(harness.act(), [expected]);
}

#[test]
fn an_operation_that_ends_in_time_is_forgotten() {
    let mut harness = running();
    harness.beat(2, harness.plan().op_ticks_max + 1, 0);
    harness.beat(2, 0, 0);
    harness.tick(1, &[1, 2, 3]);
    assert_eq!(harness.decide(), None);
}

#[test]
fn a_closed_connection_is_a_loss_at_once() {
    let mut harness = running();
    harness.duties.handle_closed(&harness.log.state, NodeId(2));
    let expected = Entry::Members(vec![lost(harness.log.holder(2), LossReason::Closed)]);
    assert_eq!(harness.act(), [expected]);
    harness.duties.handle_closed(&harness.log.state, NodeId(2));
    harness.duties.handle_closed(&harness.log.state, NodeId(9));
    assert_eq!(harness.act(), [], "whoever is gone is not lost again");
}

#[test]
fn those_who_go_together_go_in_one_entry_proposed_once() {
    let mut harness = running();
    harness.tick(LOST_AFTER_TICKS + 1, &[1]);
    let Some(LeaderAction::Propose(entry)) = harness.decide() else { panic!("two are lost") };
    let Entry::Members(changes) = &entry else { panic!("{entry:?}") };
    assert_eq!(changes.len(), 2);
    harness.duties.on_proposed(harness.log.state.applied() + 1, &entry);
    harness.tick(5, &[1]);
    assert_eq!(harness.decide(), None, "it is under way");
}

#[test]
fn a_proposal_that_was_lost_with_the_lead_is_made_again_by_whoever_leads_next() {
    let mut harness = running();
    harness.duties.handle_closed(&harness.log.state, NodeId(2));
    let Some(LeaderAction::Propose(entry)) = harness.decide() else { panic!("one is lost") };
    harness.duties.on_proposed(harness.log.state.applied() + 1, &entry);
    harness.elect_anew();
    assert_eq!(harness.decide(), None, "empty hands");
    harness.tick(LOST_AFTER_TICKS + 1, &[1, 3]);
    let proposed = harness.act();
    let reason = LossReason::Silent { ticks: LOST_AFTER_TICKS + 1 };
    let Entry::Members(changes) = &proposed[0] else { panic!("{proposed:?}") };
    assert!(matches!(changes[..], [MemberChange::Lost { reason: found, .. }] if found == reason));
}

#[test]
fn whoever_comes_is_watched_from_then_on() {
    let mut harness = running();
    harness.tick(9, &[1, 2, 3]);
    harness.agree(Entry::Members(vec![admit(4, 1)]));
    harness.tick(LOST_AFTER_TICKS, &[1, 2, 3]);
    assert!(harness.act().iter().all(|entry| !matches!(entry, Entry::Members(_))));
    harness.tick(1, &[1, 2, 3]);
    let proposed = harness.act();
    assert!(proposed.iter().any(|entry| matches!(entry, Entry::Members(_))), "{proposed:?}");
}

/// Failure 10: a heartbeat of an earlier life keeps no later one alive.
#[test]
fn the_heart_of_an_earlier_life_does_not_count() {
    let mut log = FixtureLog::running(spec(), &[1, 2]);
    let earlier = log.holder(2);
    log.join(2);
    let mut duties = Duties::new(&log.state, TIMING);
    let refused = duties.handle_beat(&log.state, earlier, WorkerActivity::default());
    assert_eq!(refused, Err(InputRefusal::Fenced { holder: earlier }));
}

/// A plan that loads waits for no node that is gone.
#[test]
fn who_is_silent_while_a_plan_loads_is_lost_later_and_holds_nothing_up_for_ever() {
    let mut log = FixtureLog::with_job(spec(), &[1, 2, 3]);
    log.adopt(log.plan(&[1, 2]));
    let mut harness = DutiesHarness::new(log);
    harness.tick(LOST_AFTER_TICKS + 1, &[1]);
    harness.act();
    assert!(harness.log.state.holder_of(NodeId(3)).is_none(), "it loads nothing");
    harness.tick((GAP_FACTOR - 1) * LOST_AFTER_TICKS - 1, &[1]);
    harness.act();
    assert!(harness.log.state.holder_of(NodeId(2)).is_some());
    harness.tick(1, &[1]);
    harness.act();
    assert!(harness.log.state.holder_of(NodeId(2)).is_none());
    let is_lost = |need: &PlanNeed| matches!(need, PlanNeed::Now(PlanReason::Lost { .. }));
    assert!(harness.need().is_some_and(|need| is_lost(&need)));
}

#[test]
fn controllers_are_nobody_to_be_watched() {
    let mut log = FixtureLog::running(spec(), &[1]);
    log.state = log.state.with_controllers(crate::fixture::controllers(&[NodeId(100)]));
    let mut harness = DutiesHarness::new(log);
    harness.tick(3 * LOST_AFTER_TICKS, &[1]);
    assert_eq!(harness.decide(), None);
}

/// With so many members that none can be forgotten, no other is admitted, and nothing is
/// proposed again and again.
#[test]
fn nobody_is_admitted_where_there_is_no_room() {
    let nodes: Vec<u64> = (1..=crate::member::MEMBERS_MAX as u64).collect();
    let mut harness = DutiesHarness::new(FixtureLog::with_job(spec(), &nodes));
    harness.agree(Entry::Job(crate::job::JobChange::Pause));
    harness.log.vouch([9999]);
    let (state, node) = (&harness.log.state, NodeId(9999));
    let refused = harness.duties.handle_change(state, crate::fixture::admit(node.0, 1));
    assert_eq!(refused, Err(InputRefusal::NotAdmitted { node }));
    assert_eq!(harness.act(), []);
}

/// However long the entry under way takes: a member that is lost for longer is lost once.
#[test]
fn a_loss_is_noted_once_however_often_it_is_found() {
    let mut harness = running();
    harness.log.vouch([9]);
    let [second, third] = [2, 3].map(|node| harness.log.holder(node));
    harness.duties.handle_closed(&harness.log.state, NodeId(3));
    let Some(LeaderAction::Propose(entry)) = harness.decide() else { panic!("one is lost") };
    harness.duties.on_proposed(harness.log.state.applied() + 1, &entry);
    harness.tick(LOST_AFTER_TICKS + CHANGES_MAX as u32, &[1]);
    let again = harness.duties.handle_change(&harness.log.state, lost(second, LossReason::Drained));
    assert_eq!(again, Ok(()), "it is noted");
    let coming = harness.duties.handle_change(&harness.log.state, admit(9, 1));
    assert_eq!(coming, Ok(()), "there is room");
    harness.agree(entry);
    let proposed = harness.act();
    let Entry::Members(changes) = &proposed[0] else { panic!("{proposed:?}") };
    let reason = LossReason::Silent { ticks: LOST_AFTER_TICKS + 1 };
    assert_eq!(changes[..], [lost(second, reason), admit(9, 1)]);
    assert!(!harness.log.state.is_live(third));
}

/// Of two reasons the one that keeps a node away counts, whichever was found first.
#[test]
fn who_is_not_trusted_is_lost_for_that_reason() {
    let mut harness = running();
    let holder = harness.log.holder(2);
    let untrusted = LossReason::Untrusted { partners: 2 };
    for reason in [LossReason::Closed, untrusted, LossReason::Removed] {
        harness
            .duties
            .handle_change(&harness.log.state, lost(holder, reason))
            .expect("it is noted");
    }
    let proposed = harness.act();
    assert_eq!(proposed[0], Entry::Members(vec![lost(holder, untrusted)]));
}
