//! When the open turn is sealed, and why not yet.

use std::collections::BTreeSet;
use std::sync::Arc;

use zbelastic_types::{LayerId, NodeId, StageIndex, Step};

use crate::duty::sealing::RECOMPUTE_REPLAYS_MAX;
use crate::duty::{HeldForSpace, InputRefusal, LeaderAction, WithheldReason};
use crate::entry::{Entry, RewindReason};
use crate::fixture::{FixtureLog, crossed, spec};
use crate::history::SEALS_KEPT_MAX;
use crate::job::{HaltReason, JobChange, JobSpec};
use crate::message::HeldUpdate;
use crate::plan::{Promise, PromiseOff};
use crate::validation::{Reason, Seal, Verdict};

use super::harness::DutiesHarness;

fn withheld(harness: &mut DutiesHarness, expected: WithheldReason) {
    assert_eq!(harness.decide(), None);
    assert_eq!(harness.duties.withheld(&harness.log.state), Some(expected));
}

fn sealed(harness: &mut DutiesHarness) -> Seal {
    let proposed = harness.act();
    let [Entry::Seal(seal)] = proposed[..] else { panic!("{proposed:?}") };
    seal
}

/// A run that has sealed `count` steps; the open one attests nothing.
fn running(count: u64) -> DutiesHarness {
    let mut log = FixtureLog::running(spec(), &[1, 2]);
    log.keep(count);
    DutiesHarness::new(log)
}

/// R3: what is promised to survive the loss of a node is elsewhere before it is sealed.
#[test]
fn r3_no_seal_is_proposed_before_every_stages_update_is_held() {
    let mut harness = running(1);
    assert_eq!(harness.plan().promise, Promise::Kept);
    harness.report(0);
    withheld(&mut harness, WithheldReason::Reports);
    harness.report(1);
    withheld(&mut harness, WithheldReason::NotHeld { stage: StageIndex(0) });
    harness.hold(0);
    withheld(&mut harness, WithheldReason::NotHeld { stage: StageIndex(1) });
    harness.hold(1);
    assert_eq!(sealed(&mut harness).verdict, Verdict::Keep);
}

/// The order of reports does not matter: an update may be held before it is reported.
#[test]
fn r3_an_update_that_is_held_but_not_reported_is_not_sealed() {
    let mut harness = running(1);
    harness.hold(0);
    harness.hold(1);
    harness.report(0);
    withheld(&mut harness, WithheldReason::Reports);
    harness.report(1);
    sealed(&mut harness);
}

/// R3: if no update is held elsewhere the plan in the log says so, and nothing is waited for.
#[test]
fn r3_with_the_promise_off_reports_are_enough() {
    let check = |spec: JobSpec, nodes: &[u64], expected: PromiseOff| {
        let mut harness = DutiesHarness::running(spec, nodes);
        assert_eq!(harness.plan().promise, Promise::Off(expected));
        (0..nodes.len()).for_each(|stage| harness.report(stage));
        sealed(&mut harness);
    };
    check(JobSpec { copies: 0, ..spec() }, &[1, 2], PromiseOff::Configured);
    check(spec(), &[1], PromiseOff::OneStage);
}

/// R3: with two copies both hold an update before it is sealed, and where only one can be, that
/// one.
#[test]
fn r3_an_update_is_held_by_everybody_who_keeps_a_copy_before_it_is_sealed() {
    let job = JobSpec { copies: 2, ..spec() };
    let mut harness = DutiesHarness::running(job.clone(), &[1, 2, 3]);
    assert_eq!(harness.plan().promise, Promise::Kept);
    (0..3).for_each(|stage| harness.report(stage));
    (1..3).for_each(|stage| harness.hold(stage));
    let holders: Vec<_> = harness.plan().copy_holders(StageIndex(0)).collect();
    assert_eq!(holders.len(), 2);
    withheld(&mut harness, WithheldReason::NotHeld { stage: StageIndex(0) });
    harness.hold_at(holders[0], 0, 1.0, 0);
    harness.hold_at(holders[0], 0, 1.0, 0);
    withheld(&mut harness, WithheldReason::NotHeld { stage: StageIndex(0) });
    harness.hold_at(holders[1], 0, 1.0, 0);
    sealed(&mut harness);
    let mut harness = DutiesHarness::running(job, &[1, 2]);
    assert_eq!(harness.plan().promise, Promise::Fewer { copies: 1 });
    (0..2).for_each(|stage| harness.report(stage));
    harness.hold(0);
    withheld(&mut harness, WithheldReason::NotHeld { stage: StageIndex(1) });
    harness.hold(1);
    sealed(&mut harness);
}

#[test]
fn what_was_held_of_an_earlier_step_does_not_count() {
    let mut harness = running(1);
    harness.report_all();
    sealed(&mut harness);
    harness.report(0);
    harness.report(1);
    withheld(&mut harness, WithheldReason::NotHeld { stage: StageIndex(0) });
}

#[test]
fn a_seal_is_proposed_once() {
    let mut harness = running(1);
    harness.report_all();
    let Some(LeaderAction::Propose(entry)) = harness.decide() else { panic!("all is told") };
    harness.duties.on_proposed(harness.log.state.applied() + 1, &entry);
    harness.report(0);
    assert_eq!(harness.decide(), None, "it is under way");
}

/// The other half of R2: a seal that is under way when a plan is adopted is not proposed again, for
/// the turn it is about is not open any more.
#[test]
fn r2_what_was_told_under_the_plan_before_is_not_sealed_under_the_next() {
    let mut harness = running(1);
    harness.report_all();
    let plan = harness.log.plan(&[1, 2]);
    harness.agree(Entry::Adopt(Box::new(plan)));
    assert_eq!(harness.act(), []);
    harness.load();
    assert_eq!(harness.act(), []);
    harness.report_all();
    assert_eq!(
        sealed(&mut harness).turn,
        harness.log.state.training().seals().last_seal().expect("sealed").turn
    );
}

#[test]
fn nothing_is_sealed_while_the_job_is_held() {
    let mut harness = running(1);
    harness.report_all();
    harness.agree(Entry::Job(JobChange::Pause));
    withheld(&mut harness, WithheldReason::NotRunning);
    harness.agree(Entry::Job(JobChange::Continue));
    sealed(&mut harness);
}

#[test]
fn a_step_that_attests_is_not_sealed_before_owner_and_copy_told_their_state() {
    let mut harness = running(3);
    harness.report(0);
    harness.report(1);
    harness.hold(1);
    let (turn, sums) = (harness.log.state.open_turn(), harness.sums(0, 1.0));
    let of = StageIndex(0);
    let holder = harness.plan().copy_holders(of).next().expect("somebody keeps it");
    let update = HeldUpdate { turn, of, sums, state: Vec::new() };
    harness.duties.handle_held(&harness.log.state, holder, update).expect("it is counted");
    withheld(&mut harness, WithheldReason::NotAttested { stage: of });
    harness.hold(0);
    sealed(&mut harness);
}

/// It cannot be known which of two states is right: the run goes back to where both were the same.
#[test]
fn states_that_differ_take_the_run_back_to_a_checkpoint() {
    let mut log = FixtureLog::running(spec(), &[1, 2]);
    log.keep(4);
    log.checkpoint(4, 1);
    log.keep(2);
    let mut harness = DutiesHarness::new(log);
    harness.report(0);
    harness.report(1);
    harness.hold(0);
    harness.hold_with(1, 1.0, 99);
    let reason = RewindReason::StateDiffers { layer: LayerId(2) };
    let (generation, to) = (harness.log.state.generation(), Step(4));
    let proposed = harness.act();
    assert_eq!(proposed, [Entry::Rewind { generation, to, reason }]);
    assert_eq!(harness.log.state.open_turn().step, to);
}

/// The stage that trains a second replica reports its state too, though only the owner reports sums
/// of it.
#[test]
fn a_second_replica_that_differs_takes_the_run_back_to_a_checkpoint() {
    let mut log = FixtureLog::with_job(JobSpec { attest_every: 1, ..spec() }, &[1, 2]);
    let mut plan = log.plan(&[1, 2]);
    crossed(&mut plan);
    log.adopt(plan);
    log.load();
    let mut harness = DutiesHarness::new(log);
    harness.report_all();
    sealed(&mut harness);
    harness.twin_version = Some(99);
    harness.report_all();
    let reason = RewindReason::StateDiffers { layer: LayerId(0) };
    let (generation, to) = (harness.log.state.generation(), Step(0));
    assert_eq!(harness.act(), [Entry::Rewind { generation, to, reason }]);
}

/// It cannot be known which of two replicas is wrong, and the keeper of a copy follows the owner:
/// however often they differ, no node is sent away for it. They are compared without copies as
/// well.
#[test]
fn replicas_that_differ_again_speak_against_nobody() {
    for copies in [0, 1] {
        let mut harness =
            DutiesHarness::running(JobSpec { attest_every: 1, copies, ..spec() }, &[1, 2]);
        for round in 0..3 {
            harness.agree(harness.log.rewind(0));
            let mut plan = harness.log.plan(&[1, 2]);
            crossed(&mut plan);
            harness.agree(Entry::Adopt(Box::new(plan)));
            for stage in 0..2 {
                harness.agree(Entry::Ready(harness.log.ready(stage)));
            }
            harness.agree(Entry::Resume { generation: harness.log.state.generation() });
            harness.report_all();
            sealed(&mut harness);
            harness.twin_version = Some(99);
            harness.report_all();
            let proposed = harness.act();
            let is_back = matches!(proposed[..], [Entry::Rewind { .. }]);
            assert!(is_back, "copies {copies}, round {round}: {proposed:#?}");
            harness.twin_version = None;
        }
        assert!(harness.log.state.membership().quarantined().is_empty());
    }
}

#[test]
fn no_more_is_sealed_than_can_be_remembered_without_a_checkpoint() {
    let kept = SEALS_KEPT_MAX as u64;
    let spec = JobSpec { step_count: 2 * kept, checkpoint_every: kept / 2, ..spec() };
    let mut log = FixtureLog::running(spec, &[1, 2]);
    log.keep(kept - 1);
    let mut harness = DutiesHarness::new(log);
    harness.report_all();
    sealed(&mut harness);
    harness.report_all();
    withheld(&mut harness, WithheldReason::CheckpointOverdue);
    harness.log.checkpoint(kept, 1);
    sealed(&mut harness);
}

/// A run whose checkpoints by steps fail, three of them since the one at 4; after so many ticks one is
/// due by time.
fn unplaced_with(checkpoint_every: u64, checkpoint_ticks: u32) -> DutiesHarness {
    let by_steps = JobSpec { step_count: 100, checkpoint_every, attest_every: 0, ..spec() };
    let mut log = FixtureLog::running(JobSpec { checkpoint_ticks, ..by_steps }, &[1, 2]);
    log.keep(4);
    log.checkpoint(4, 1);
    let mut harness = DutiesHarness::new(log);
    let third = 4 + 3 * checkpoint_every;
    for step in 4..third {
        harness.report_all();
        let seal = sealed(&mut harness);
        harness.agree(Entry::Seal(seal));
        // One report a layer, and one about a version that is not under way.
        for version in [step, step, 99] {
            harness.duties.handle_unplaced(&harness.log.state, Step(version));
        }
    }
    harness.duties.handle_unplaced(&harness.log.state, Step(third));
    harness.report_all();
    withheld(&mut harness, WithheldReason::CheckpointsUnplaced { last: Some(Step(4)) });
    harness
}

/// Controllers that run out of space for their logs are no majority any more when they end for it.
#[test]
fn a_run_is_held_while_too_many_logs_are_nearly_full_and_no_step_stalls_for_it() {
    let mut harness = running(1);
    let nodes = BTreeSet::from([NodeId(7), NodeId(8)]);
    harness.duties.handle_full_logs(nodes.clone());
    harness.report_all();
    harness.tick(5_000, &[1, 2]);
    withheld(&mut harness, WithheldReason::LogsFull { nodes });
    assert_eq!(harness.duties.held_for_space(), Some(HeldForSpace::Logs));
    harness.duties.handle_full_logs(BTreeSet::new());
    assert_eq!(harness.duties.held_for_space(), None);
    sealed(&mut harness);
}

fn unplaced() -> DutiesHarness {
    unplaced_with(2, 0)
}

#[test]
fn the_version_behind_a_hold_becomes_a_checkpoint_where_they_are_due_by_time() {
    let keep = Entry::Keep { version: Step(18) };
    for (checkpoint_ticks, expected) in [(1_000_000, vec![keep]), (0, Vec::new())] {
        let mut harness = unplaced_with(4, checkpoint_ticks);
        harness.duties.handle_room(&harness.log.state);
        let acted = harness.act();
        assert!(matches!(acted[0], Entry::Seal(_)), "{acted:?}");
        assert_eq!(acted[1..], expected, "{checkpoint_ticks} ticks");
    }
}

#[test]
fn a_run_is_held_when_checkpoints_fail_one_after_the_other_and_tries_one_when_there_is_room() {
    let mut harness = unplaced();
    harness.duties.handle_room(&harness.log.state);
    let seal = sealed(&mut harness);
    harness.agree(Entry::Seal(seal));
    assert_eq!(harness.act(), [], "version 12 becomes a checkpoint anyway");
    // What fails from now on is counted anew, and late reports of what failed before are not.
    for version in [6, 8, 10, 12] {
        harness.duties.handle_unplaced(&harness.log.state, Step(version));
    }
    harness.report_all();
    sealed(&mut harness);
}

#[test]
fn a_run_that_is_held_tries_a_checkpoint_now_and_then_and_goes_on_with_one_that_is_there() {
    let mut harness = unplaced();
    harness.tick(5_999, &[1, 2]);
    withheld(&mut harness, WithheldReason::CheckpointsUnplaced { last: Some(Step(4)) });
    harness.tick(2, &[1, 2]);
    let seal = sealed(&mut harness);
    harness.agree(Entry::Seal(seal));
    harness.report_all();
    let seal = sealed(&mut harness);
    harness.agree(Entry::Seal(seal));
    harness.duties.handle_unplaced(&harness.log.state, Step(12));
    harness.report_all();
    withheld(&mut harness, WithheldReason::CheckpointsUnplaced { last: Some(Step(4)) });
    harness.log.checkpoint(12, 1);
    let entry = Entry::Checkpoint { version: Step(12) };
    let index = harness.log.state.applied();
    harness.duties.on_applied(&harness.log.state, index, &entry, Ok(()));
    sealed(&mut harness);
}

/// A run that went back over one step, which was sealed with these sums.
fn recomputing() -> (DutiesHarness, Seal) {
    let mut harness = DutiesHarness::running(JobSpec { attest_every: 0, ..spec() }, &[1, 2]);
    harness.report_all();
    let logged = sealed(&mut harness);
    harness.agree(harness.log.rewind(0));
    harness.log.run_plan(&[1, 2]);
    harness.elect_anew();
    (harness, logged)
}

#[test]
fn a_step_that_comes_out_as_it_was_sealed_is_sealed_again() {
    let (mut harness, logged) = recomputing();
    harness.report_all();
    let turn = harness.log.state.open_turn();
    assert_eq!(sealed(&mut harness), Seal { turn, ..logged });
}

/// It is run again a few times; then the run is held, for it is not the run that was sealed.
#[test]
fn a_step_that_comes_out_otherwise_is_replayed_and_then_the_run_is_held() {
    let (mut harness, logged) = recomputing();
    let tell_otherwise = |harness: &mut DutiesHarness| {
        for stage in 0..2 {
            harness.try_report(stage, 0.5).expect("it is counted");
            harness.hold_with(stage, 0.5, 0);
        }
    };
    for replays in 0..RECOMPUTE_REPLAYS_MAX {
        tell_otherwise(&mut harness);
        let seal = sealed(&mut harness);
        assert_eq!(
            (seal.verdict, seal.reason),
            (Verdict::Replay, Reason::DiffersFromLog { replays })
        );
    }
    tell_otherwise(&mut harness);
    let step = logged.turn.step;
    let halt = Entry::Job(JobChange::Halt(HaltReason::DiffersFromLog { step }));
    assert_eq!(harness.act(), [halt]);
    tell_otherwise(&mut harness);
    assert_eq!(harness.act(), [], "nothing more until a person says so");
}

/// What spoiled a step that was left out need not come again: it is left out again.
#[test]
fn a_step_that_was_left_out_is_left_out_again_whatever_comes_out() {
    let mut log = FixtureLog::running(JobSpec { attest_every: 0, ..spec() }, &[1, 2]);
    let skipped = log.seal(Verdict::Skip);
    log.apply(Entry::Seal(skipped));
    log.apply(log.rewind(0));
    log.run_plan(&[1, 2]);
    let mut harness = DutiesHarness::new(log);
    harness.report_all();
    let turn = harness.log.state.open_turn();
    assert_eq!(sealed(&mut harness), Seal { turn, ..skipped });
}

#[test]
fn a_job_of_another_size_counts_its_own_tensors() {
    let spec = JobSpec { layer_tensors: vec![1, 1, 1, 2], copies: 0, ..spec() };
    let mut log = FixtureLog::empty();
    log.apply(Entry::Job(JobChange::Start(Arc::new(spec))));
    [1, 2].into_iter().for_each(|node| _ = log.join(node));
    log.run_plan(&[1, 2]);
    let mut harness = DutiesHarness::new(log);
    harness.report(0);
    let (stage, expected, found) = (StageIndex(1), 3, 2);
    let refusal = InputRefusal::MissingTensors { stage, expected, found };
    assert_eq!(harness.try_report(1, 1.0), Err(refusal));
    withheld(&mut harness, WithheldReason::Reports);
}
