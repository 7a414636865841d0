//! A worker fails, comes back, or is cut off.

use chaos_tests::random::{DrawPurpose, Draws};
use zbelastic_consensus::job::JobChange;
use zbelastic_consensus::plan::{Promise, PromiseOff};

use crate::play::{Play, PlayClaim, PlayGoal, PlayMessageKind, PlayOptions, STEPS};

const KEPT: Promise = Promise::Kept;
const OFF: Promise = Promise::Off(PromiseOff::OneStage);
const FEWER: Promise = Promise::Fewer { copies: 1 };

/// The run waits for no replacement: the workers that are left take the layers over, from their
/// copies.
#[test]
pub fn case_06_a_stage_that_dies_before_its_report_costs_the_step_under_way() {
    let mut play = Play::new(PlayOptions::default());
    play.run_until(PlayGoal::Sealed(4));
    play.run_until(PlayGoal::Begun(play.stage(1), 4));
    play.crash(play.stage(1));
    play.finish();
    play.expect(PlayClaim::Redone(&[4]));
    play.expect(PlayClaim::NoRewind);
    play.expect(PlayClaim::Plans(2));
    play.expect(PlayClaim::SameAsUndisturbed);
}

#[test]
pub fn case_07_a_step_of_a_dead_stage_is_sealed_if_its_update_is_held_elsewhere() {
    let mut play = Play::new(PlayOptions::default());
    play.run_until(PlayGoal::Sealed(4));
    play.hold(PlayMessageKind::Raft);
    play.run_until(PlayGoal::Begun(play.stage(1), 5));
    play.run_until_quiet();
    play.crash(play.stage(1));
    play.release(PlayMessageKind::Raft);
    play.finish();
    play.expect(PlayClaim::Redone(&[5]));
    play.expect(PlayClaim::NoRewind);
    play.expect(PlayClaim::SameAsUndisturbed);
}

/// All have reported step 4 and begun the next one, and no copy follows.
fn report_a_step_that_is_not_sealed(play: &mut Play) {
    play.run_until(PlayGoal::Sealed(4));
    play.hold(PlayMessageKind::Held);
    play.run_until(PlayGoal::Begun(play.stage(1), 5));
    play.run_until_quiet();
    assert_eq!(play.sealed(), 4, "R3: what is not held elsewhere is not sealed");
}

#[test]
pub fn case_07_a_step_of_a_dead_stage_is_run_again_if_its_update_is_not_held_elsewhere() {
    let mut play = Play::new(PlayOptions::default());
    report_a_step_that_is_not_sealed(&mut play);
    play.crash(play.stage(1));
    play.run_until(PlayGoal::Stages(2));
    play.release(PlayMessageKind::Held);
    play.finish();
    play.expect(PlayClaim::Redone(&[4, 5]));
    play.expect(PlayClaim::NoRewind);
    play.expect(PlayClaim::SameAsUndisturbed);
}

/// The stage that dies has not carried out the seal yet, the others have: its layers come from
/// their copy, one version further than it was.
#[test]
pub fn case_08_a_stage_that_dies_after_the_seal_costs_what_ran_ahead() {
    let mut play = Play::new(PlayOptions::default());
    play.run_until(PlayGoal::Sealed(4));
    let lost = play.stage(1);
    play.run_until(PlayGoal::Settled(4));
    play.hold(PlayMessageKind::BriefingsTo(lost));
    play.run_until(PlayGoal::Version(play.stage(2), 5));
    play.run_until_quiet();
    assert_eq!(play.version(lost).0, 4, "it does not know the seal");
    play.crash(lost);
    play.finish();
    play.expect(PlayClaim::Redone(&[5]));
    play.expect(PlayClaim::NoRewind);
    play.expect(PlayClaim::Plans(2));
    play.expect(PlayClaim::SameAsUndisturbed);
}

/// Every step is sealed, and the last checkpoint is not there: the workers that are left write it,
/// and the layers of the lost one come from their copies.
#[test]
pub fn case_17_a_stage_that_dies_behind_the_last_step_does_not_cost_the_last_checkpoint() {
    let mut play = Play::new(PlayOptions::default());
    play.hold(PlayMessageKind::Saved);
    play.run_until(PlayGoal::Settled(STEPS));
    play.run_ticks(20);
    play.crash(play.stage(1));
    play.run_until(PlayGoal::Stages(2));
    play.release(PlayMessageKind::Saved);
    play.finish();
    play.expect(PlayClaim::Plans(2));
    play.expect(PlayClaim::NoRollback);
    play.expect(PlayClaim::NoRewind);
    play.expect(PlayClaim::Checkpoint(STEPS));
    play.expect(PlayClaim::SameAsUndisturbed);
}

/// Only one worker is left, and nothing of the last step is on a disk.
#[test]
pub fn case_17_a_job_is_not_done_before_its_last_checkpoint_is_there() {
    let mut play = Play::new(PlayOptions::default());
    play.hold(PlayMessageKind::Saved);
    play.run_until(PlayGoal::Settled(STEPS));
    play.run_ticks(20);
    assert!(!play.is_over(), "nobody could read what was trained");
    play.release(PlayMessageKind::Saved);
    play.finish();
    play.expect(PlayClaim::Plans(1));
    play.expect(PlayClaim::Checkpoint(STEPS));
}

/// The operator of a run that is held may switch all of it off. Nothing else makes a checkpoint
/// here.
#[test]
pub fn case_18_a_run_that_is_held_is_written_where_it_is_held() {
    let mut play = Play::new(PlayOptions::default());
    play.run_until(PlayGoal::Settled(4));
    assert_eq!(play.checkpoint(), None);
    play.change_job(JobChange::Pause);
    play.run_ticks(20);
    let held = play.sealed();
    assert!(held < STEPS, "it is held");
    assert_eq!(play.checkpoint(), Some(held));
    let everybody = [0, 1, 2].map(|stage| play.stage(stage));
    everybody.iter().for_each(|node| play.crash(*node));
    everybody.iter().for_each(|node| play.restart(*node));
    play.change_job(JobChange::Continue);
    play.finish();
    let redone = play.redone();
    assert!(redone.iter().all(|step| *step >= held), "what was held is not lost: {redone:?}");
    play.expect(PlayClaim::Checkpoint(STEPS));
    play.expect(PlayClaim::SameAsUndisturbed);
}

/// The seal is on its way when the run is held: what is held is the version behind it.
#[test]
pub fn case_18_a_stage_that_is_behind_writes_the_held_version_when_it_gets_there() {
    let mut play = Play::new(PlayOptions::default());
    play.run_until(PlayGoal::Settled(4));
    let behind = play.stage(1);
    play.hold(PlayMessageKind::BriefingsTo(behind));
    play.run_until(PlayGoal::Sealed(5));
    play.change_job(JobChange::Pause);
    play.run_ticks(20);
    let held = play.sealed();
    assert_eq!(play.checkpoint(), None, "a stage is missing");
    play.release(PlayMessageKind::BriefingsTo(behind));
    play.run_ticks(20);
    assert_eq!((play.sealed(), play.checkpoint()), (held, Some(held)));
    play.change_job(JobChange::Continue);
    play.finish();
    play.expect(PlayClaim::NoRewind);
    play.expect(PlayClaim::SameAsUndisturbed);
}

/// The checkpoint store takes what it writes, since pieces are named by what they hold; controllers
/// do not take its word that they are there.
#[test]
pub fn case_10_a_worker_that_was_cut_off_is_fenced_and_comes_back_as_a_new_life() {
    let mut play = Play::new(PlayOptions::default());
    play.run_until(PlayGoal::Sealed(4));
    let stale = play.stage(1);
    play.run_until(PlayGoal::Begun(stale, 4));
    play.cut_off(&[stale]);
    play.run_until(PlayGoal::Stages(2));
    play.run_until(PlayGoal::Sealed(7));
    play.reconnect(&[stale]);
    play.finish();
    play.expect(PlayClaim::Refused("fenced"));
    play.expect(PlayClaim::Refused("stale-frame"));
    play.expect(PlayClaim::Admitted(stale, 2));
    play.expect(PlayClaim::Plans(3));
    play.expect(PlayClaim::NoRewind);
    play.expect(PlayClaim::SameAsUndisturbed);
}

/// Longer than a member may be silent, and not as long as one without progress is waited for.
const HICCUP_TICKS: u32 = 100;

/// The network is cut around all of them: each is declared lost, and all that was sealed is in their
/// memory alone.
#[test]
pub fn case_10_workers_that_were_all_cut_off_come_back_with_what_they_hold() {
    let mut play = Play::new(PlayOptions { checkpoint_every: 3, ..PlayOptions::default() });
    play.run_until(PlayGoal::Sealed(5));
    let cut_off = [0, 1, 2].map(|stage| play.stage(stage));
    play.cut_off(&cut_off);
    play.run_ticks(HICCUP_TICKS);
    play.reconnect(&cut_off);
    play.finish();
    cut_off.iter().for_each(|node| play.expect(PlayClaim::Admitted(*node, 2)));
    let redone = play.redone();
    assert!(redone.iter().all(|step| *step >= 5), "nothing sealed is computed again: {redone:?}");
    play.expect(PlayClaim::NoRewind);
    play.expect(PlayClaim::SameAsUndisturbed);
}

/// All have reported a step, and it is not sealed: it is none that they come back with.
#[test]
pub fn case_10_workers_come_back_without_the_step_that_was_not_sealed() {
    let mut play = Play::new(PlayOptions { checkpoint_every: 3, ..PlayOptions::default() });
    report_a_step_that_is_not_sealed(&mut play);
    let cut_off = [0, 1, 2].map(|stage| play.stage(stage));
    play.cut_off(&cut_off);
    play.run_ticks(HICCUP_TICKS);
    play.reconnect(&cut_off);
    play.release(PlayMessageKind::Held);
    play.finish();
    play.expect(PlayClaim::Redone(&[4, 5]));
    play.expect(PlayClaim::NoRewind);
    play.expect(PlayClaim::SameAsUndisturbed);
}

/// A stage and the one that keeps its copy are cut off together, and one of them dies meanwhile:
/// nobody but the other one has those layers, and its life in the cluster is over.
#[test]
pub fn case_10_the_one_that_comes_back_with_the_only_sealed_layers_is_waited_for() {
    for (dead, back) in [(0, 1), (1, 0)] {
        let cast = PlayOptions { workers: 4, checkpoint_every: 3, ..PlayOptions::default() };
        let mut play = Play::new(cast);
        play.run_until(PlayGoal::Sealed(5));
        let cut_off = [dead, back].map(|stage| play.stage(stage));
        play.cut_off(&cut_off);
        play.run_ticks(HICCUP_TICKS);
        let [dead, back] = cut_off;
        play.crash(dead);
        play.run_ticks(20);
        play.reconnect(&[back]);
        play.finish();
        play.expect(PlayClaim::Admitted(back, 2));
        play.expect(PlayClaim::NoRewind);
        play.expect(PlayClaim::SameAsUndisturbed);
    }
}

/// They are not waited for for ever. When they come back the run has gone back: what they hold is
/// newer, and not believed.
#[test]
pub fn case_10_a_rewind_that_is_agreed_on_stays_whoever_comes_back() {
    let cast = PlayOptions { workers: 4, checkpoint_every: 3, ..PlayOptions::default() };
    let mut play = Play::new(cast);
    play.run_until(PlayGoal::Sealed(5));
    let cut_off = [0, 1].map(|stage| play.stage(stage));
    play.cut_off(&cut_off);
    play.run_until(PlayGoal::Stages(2));
    play.reconnect(&cut_off);
    play.finish();
    cut_off.iter().for_each(|node| play.expect(PlayClaim::Admitted(*node, 2)));
    play.expect(PlayClaim::RewoundTo(3));
    play.expect(PlayClaim::SealedAgain(&[3, 4]));
    play.expect(PlayClaim::SameAsUndisturbed);
}

#[test]
pub fn case_12_two_stages_that_die_together_are_restored_from_their_copies() {
    let mut play = Play::new(PlayOptions { workers: 4, ..PlayOptions::default() });
    play.run_until(PlayGoal::Sealed(4));
    let lost = [play.stage(0), play.stage(2)];
    lost.iter().for_each(|node| play.crash(*node));
    play.finish();
    play.expect(PlayClaim::Redone(&[4]));
    play.expect(PlayClaim::NoRewind);
    play.expect(PlayClaim::SameAsUndisturbed);
}

/// The second stage keeps the copy of the first.
#[test]
pub fn case_12_a_stage_that_dies_together_with_its_copy_takes_the_run_to_a_checkpoint() {
    let mut play =
        Play::new(PlayOptions { workers: 4, checkpoint_every: 3, ..PlayOptions::default() });
    play.run_until(PlayGoal::Sealed(5));
    let lost = [play.stage(0), play.stage(1)];
    lost.iter().for_each(|node| play.crash(*node));
    play.finish();
    play.expect(PlayClaim::RewoundTo(3));
    play.expect(PlayClaim::SealedAgain(&[3, 4]));
    play.expect(PlayClaim::SameAsUndisturbed);
}

/// The same deaths where checkpoints come by time: what is lost is what was sealed since the last
/// one.
#[test]
pub fn case_12_a_checkpoint_by_time_is_what_such_a_run_goes_back_to() {
    let cast = PlayOptions { workers: 4, checkpoint_ticks: 4, ..PlayOptions::default() };
    let mut play = Play::new(cast);
    play.run_until(PlayGoal::Sealed(8));
    let lost = [play.stage(0), play.stage(1)];
    lost.iter().for_each(|node| play.crash(*node));
    play.finish();
    let redone = play.redone();
    assert!(redone.first().is_some_and(|step| *step > 0), "not from the beginning: {redone:?}");
    play.expect(PlayClaim::SameAsUndisturbed);
}

/// The same deaths with two copies: the stage behind the next one has the layers too.
#[test]
pub fn case_12_with_two_copies_a_stage_may_die_together_with_one_of_them() {
    for (first, second) in [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)] {
        let cast =
            PlayOptions { workers: 4, copies: 2, checkpoint_every: 3, ..PlayOptions::default() };
        let mut play = Play::new(cast);
        play.run_until(PlayGoal::Sealed(5));
        let lost = [play.stage(first), play.stage(second)];
        lost.iter().for_each(|node| play.crash(*node));
        play.finish();
        play.expect(PlayClaim::Redone(&[5]));
        play.expect(PlayClaim::NoRewind);
        play.expect(PlayClaim::SameAsUndisturbed);
    }
}

/// Lives in which two die at a moment that is drawn.
const LIVES: u64 = 48;
/// Things that happen between a seal and that moment, at most: about two steps' worth.
const EVENTS_BEFORE: u64 = 600;

/// With two copies no moment costs a sealed step, whichever of three or four workers the two are,
/// and whichever of them the leader learns of first.
#[test]
pub fn case_12_with_two_copies_any_two_stages_may_die_at_any_moment() {
    for seed in 0..LIVES {
        let mut draws = Draws::new(seed, DrawPurpose::Faults);
        let workers = draws.between(3, 4);
        let mut play = Play::new(PlayOptions {
            workers,
            copies: 2,
            checkpoint_every: 3,
            ..PlayOptions::default()
        });
        play.run_until(PlayGoal::Sealed(draws.between(1, STEPS - 4)));
        play.run_events(draws.below(EVENTS_BEFORE));
        let sealed = play.sealed();
        let stages = play.stages() as u64;
        let first = draws.below(stages);
        let second = (first + draws.between(1, stages - 1)) % stages;
        let lost = [first, second].map(|stage| play.stage(stage as usize));
        lost.iter().for_each(|node| play.crash(*node));
        play.finish();
        let redone = play.redone();
        assert!(redone.iter().all(|step| *step >= sealed), "seed {seed}: {redone:?} of {sealed}");
        play.expect(PlayClaim::NoRewind);
        play.expect(PlayClaim::SameAsUndisturbed);
    }
}

/// Three at once are more than was promised: the run goes back, and comes out the same.
#[test]
pub fn case_12_with_two_copies_three_that_die_together_take_the_run_to_a_checkpoint() {
    let cast = PlayOptions { workers: 4, copies: 2, checkpoint_every: 3, ..PlayOptions::default() };
    let mut play = Play::new(cast);
    play.run_until(PlayGoal::Sealed(5));
    let lost = [play.stage(0), play.stage(1), play.stage(2)];
    lost.iter().for_each(|node| play.crash(*node));
    play.finish();
    play.expect(PlayClaim::RewoundTo(3));
    play.expect(PlayClaim::SealedAgain(&[3, 4]));
    play.expect(PlayClaim::SameAsUndisturbed);
}

/// There are no versions of parts of a stage here: a commit is not interrupted while the process
/// lives, and a process that dies in it takes both versions with it. So what is left of resuming is
/// that a seal which is sent twice is carried out once (rule R8).
#[test]
pub fn case_14_a_seal_that_is_sent_twice_is_applied_once() {
    let mut play = Play::new(PlayOptions::default());
    play.repeat(PlayMessageKind::Briefings);
    play.run_until(PlayGoal::Sealed(4));
    play.run_until(PlayGoal::Version(play.stage(1), 4));
    play.settle_again(play.stage(1));
    play.run_until_quiet();
    play.finish();
    play.expect(PlayClaim::NoRollback);
    play.expect(PlayClaim::SameAsUndisturbed);
}

/// One stage has carried out the seal, one has died in it, and one has not received it.
#[test]
pub fn case_14_a_stage_that_dies_in_the_middle_of_a_commit_gets_the_version_after_it() {
    let mut play = Play::new(PlayOptions::default());
    play.run_until(PlayGoal::Settled(4));
    let torn = play.stage(0);
    let behind = play.stage(2);
    play.hold(PlayMessageKind::BriefingsTo(behind));
    play.run_until(PlayGoal::Version(torn, 5));
    assert_eq!(play.version(behind).0, 4, "it does not know the seal");
    play.crash(torn);
    play.restart(torn);
    play.release(PlayMessageKind::BriefingsTo(behind));
    play.finish();
    play.expect(PlayClaim::Admitted(torn, 2));
    play.expect(PlayClaim::Plans(3));
    play.expect(PlayClaim::NoRewind);
    play.expect(PlayClaim::SameAsUndisturbed);
}

/// The holder of a copy is a stage as well, so its loss is the loss of a stage. With one stage left
/// there is no elsewhere, and the plan in the log states that the promise is off.
#[test]
pub fn case_16_without_an_elsewhere_the_log_says_that_the_promise_is_off() {
    let mut play = Play::new(PlayOptions { workers: 2, ..PlayOptions::default() });
    play.run_until(PlayGoal::Sealed(4));
    let copy_holder = play.stage(1);
    play.crash(copy_holder);
    play.run_until(PlayGoal::Stages(1));
    play.restart(copy_holder);
    play.finish();
    play.expect(PlayClaim::Promises(&[KEPT, OFF, KEPT]));
    play.expect(PlayClaim::NoRewind);
    play.expect(PlayClaim::SameAsUndisturbed);
}

/// With two copies and two stages there is one elsewhere, and the plan in the log states that it is
/// one.
#[test]
pub fn case_16_with_fewer_others_than_copies_the_log_says_how_many_there_are() {
    let mut play = Play::new(PlayOptions { copies: 2, ..PlayOptions::default() });
    play.run_until(PlayGoal::Sealed(3));
    let first = play.stage(1);
    play.crash(first);
    play.run_until(PlayGoal::Stages(2));
    let second = play.stage(0);
    play.crash(second);
    play.run_until(PlayGoal::Stages(1));
    play.restart(first);
    play.run_until(PlayGoal::Stages(2));
    play.restart(second);
    play.finish();
    play.expect(PlayClaim::Promises(&[KEPT, FEWER, OFF, FEWER, KEPT]));
    play.expect(PlayClaim::NoRewind);
    play.expect(PlayClaim::SameAsUndisturbed);
}

#[test]
pub fn case_16_while_a_copy_does_not_follow_nothing_is_sealed() {
    let mut play = Play::new(PlayOptions::default());
    play.run_until(PlayGoal::Sealed(4));
    play.hold(PlayMessageKind::Held);
    play.run_ticks(20);
    assert_eq!(play.sealed(), 4, "R3: what is not held elsewhere is not sealed");
    play.release(PlayMessageKind::Held);
    play.finish();
    play.expect(PlayClaim::NoRollback);
    play.expect(PlayClaim::SameAsUndisturbed);
}

/// Ticks from one heartbeat to the next.
const BEAT_TICKS: u32 = 4;

/// R9: the stage that dies has its copy with the one behind it, which hashes what it holds for a
/// thousand heartbeats. Its heart beats, and its heartbeats report that it gets on.
#[test]
pub fn case_19_a_holder_that_answers_after_a_thousand_heartbeats_is_waited_for() {
    let mut play = Play::new(PlayOptions { checkpoint_every: 3, ..PlayOptions::default() });
    play.run_until(PlayGoal::Sealed(5));
    let lost = play.stage(0);
    let late = play.stage(1);
    play.hold(PlayMessageKind::InventoryFrom(late));
    play.work(late, true);
    play.crash(lost);
    play.run_ticks(1_000 * BEAT_TICKS);
    assert_eq!(play.sealed(), 5, "nothing goes on without what it holds");
    play.expect(PlayClaim::NoRewind);
    play.work(late, false);
    play.release(PlayMessageKind::InventoryFrom(late));
    play.finish();
    play.expect(PlayClaim::Plans(2));
    play.expect(PlayClaim::NoRewind);
    play.expect(PlayClaim::SameAsUndisturbed);
}

/// R10: the same, but it gets no further. It is called lost, and then its layers are.
#[test]
pub fn case_19_a_holder_that_gets_no_further_is_not_waited_for() {
    let mut play = Play::new(PlayOptions { checkpoint_every: 3, ..PlayOptions::default() });
    play.run_until(PlayGoal::Sealed(5));
    let lost = play.stage(0);
    let stuck = play.stage(1);
    play.hold(PlayMessageKind::InventoryFrom(stuck));
    play.crash(lost);
    play.run_until(PlayGoal::Sealed(6));
    play.release(PlayMessageKind::InventoryFrom(stuck));
    play.finish();
    play.expect(PlayClaim::Admitted(stuck, 2));
    play.expect(PlayClaim::RewoundTo(3));
    play.expect(PlayClaim::SameAsUndisturbed);
}
