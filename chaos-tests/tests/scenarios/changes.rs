//! Planned changes: a worker comes or is about to go, and layers are copied ahead.

use zbelastic_types::NodeId;

use crate::play::{Play, PlayClaim, PlayGoal, PlayMessageKind, PlayOptions};

/// Workers that were there lose what ran ahead of the change and nothing else, and no layer moves
/// while it waits.
#[test]
pub fn a_join_costs_the_others_one_step_at_most() {
    for (workers, copies) in [(1, 1), (2, 1), (3, 1), (1, 0), (2, 0), (3, 0), (1, 2), (3, 2)] {
        let mut play = Play::new(PlayOptions { workers, copies, ..PlayOptions::default() });
        play.run_until(PlayGoal::Sealed(4));
        let newcomer = play.join();
        play.run_until(PlayGoal::Follows(newcomer));
        play.run_until(PlayGoal::Stages(workers as usize + 1));
        play.finish();
        assert!(play.redone().len() <= 1, "steps begun twice: {:?}", play.redone());
        play.expect(PlayClaim::Plans(2));
        play.expect(PlayClaim::MovedAhead);
        play.expect(PlayClaim::NoRewind);
        play.expect(PlayClaim::SameAsUndisturbed);
    }
}

#[test]
pub fn a_draining_worker_hands_over_at_a_step_boundary() {
    for copies in [1, 0, 2] {
        let mut play = Play::new(PlayOptions { workers: 4, copies, ..PlayOptions::default() });
        play.run_until(PlayGoal::Sealed(4));
        let goes = play.stage(1);
        play.drain(goes);
        play.run_until(PlayGoal::Stages(3));
        play.finish();
        assert!(play.redone().len() <= 1, "steps begun twice: {:?}", play.redone());
        play.expect(PlayClaim::Drained(goes));
        play.expect(PlayClaim::MovedAhead);
        play.expect(PlayClaim::NoRewind);
        play.expect(PlayClaim::SameAsUndisturbed);
    }
}

/// What the last workers hold would end with them: they save it, and workers that come go on from
/// it.
#[test]
pub fn draining_workers_save_a_checkpoint_that_others_resume() {
    for (workers, copies) in [(1, 0), (3, 0), (3, 1)] {
        let mut play = Play::new(PlayOptions { workers, copies, ..PlayOptions::default() });
        play.run_until(PlayGoal::Sealed(4));
        let all: Vec<_> = (0..workers as usize).map(|stage| play.stage(stage)).collect();
        all.iter().for_each(|node| play.drain(*node));
        play.run_until(PlayGoal::Admitted(0));
        let saved = play.sealed();
        play.expect(PlayClaim::Checkpoint(saved));
        all.iter().for_each(|node| play.crash(*node));
        play.join();
        play.finish();
        all.iter().for_each(|node| play.expect(PlayClaim::Drained(*node)));
        play.expect(PlayClaim::SealedAgain(&[]));
        play.expect(PlayClaim::SameAsUndisturbed);
    }
}

/// What was followed lacks its last updates: the layers are fetched when the plan begins.
#[test]
pub fn a_late_standby_fetches_its_layers_when_the_plan_begins() {
    let mut play = Play::new(PlayOptions { workers: 2, ..PlayOptions::default() });
    play.run_until(PlayGoal::Sealed(4));
    let newcomer = play.join();
    play.run_until(PlayGoal::Follows(newcomer));
    play.run_until(PlayGoal::Planned);
    play.hold(PlayMessageKind::Updates);
    play.run_until(PlayGoal::Stages(3));
    play.finish();
    assert!(play.redone().len() <= 1, "steps begun twice: {:?}", play.redone());
    play.expect(PlayClaim::MovedAtOnce);
    play.expect(PlayClaim::NoRewind);
    play.expect(PlayClaim::SameAsUndisturbed);
}

/// Four steps are sealed, and a worker has joined these and begun to follow. Nothing that it reports of what it
/// follows arrives.
fn follow_after_join(workers: u64) -> (Play, NodeId) {
    let mut play = Play::new(PlayOptions { workers, ..PlayOptions::default() });
    play.run_until(PlayGoal::Sealed(4));
    play.hold(PlayMessageKind::Following);
    let newcomer = play.join();
    play.run_until(PlayGoal::Follows(newcomer));
    (play, newcomer)
}

#[test]
pub fn a_follower_that_is_lost_costs_nobody_anything() {
    let (mut play, newcomer) = follow_after_join(2);
    play.crash(newcomer);
    play.finish();
    play.expect(PlayClaim::NoRollback);
    play.expect(PlayClaim::Plans(1));
    play.expect(PlayClaim::SameAsUndisturbed);
}

/// The plan without it has its layers from their copy, as if no worker had followed.
#[test]
pub fn an_owner_that_is_lost_while_it_is_followed_is_replaced_as_always() {
    let (mut play, _) = follow_after_join(2);
    play.crash(play.stage(0));
    play.release(PlayMessageKind::Following);
    play.finish();
    play.expect(PlayClaim::NoRewind);
    play.expect(PlayClaim::SameAsUndisturbed);
}

/// Nobody has a copy of what one worker trains alone. Once another follows all of it no sealed step is
/// lost with the first, although the plan that has copies did not begin yet.
#[test]
pub fn what_is_copied_ahead_outlasts_the_one_that_trained_alone() {
    let mut play = Play::new(PlayOptions { workers: 1, ..PlayOptions::default() });
    play.run_until(PlayGoal::Sealed(4));
    let newcomer = play.join();
    play.run_until(PlayGoal::Follows(newcomer));
    play.run_until(PlayGoal::Planned);
    play.crash(play.stage(0));
    play.finish();
    play.expect(PlayClaim::NoRewind);
    play.expect(PlayClaim::SameAsUndisturbed);
}

/// What lacks an update is at the version before, which is of no use: the run goes back.
#[test]
pub fn what_is_copied_ahead_counts_as_what_it_is() {
    let (mut play, _) = follow_after_join(1);
    play.hold(PlayMessageKind::Updates);
    let sealed = play.sealed();
    play.run_until(PlayGoal::Sealed(sealed + 2));
    play.crash(play.stage(0));
    play.finish();
    play.expect(PlayClaim::RewoundTo(0));
    play.expect(PlayClaim::SameAsUndisturbed);
}

/// A new leader begins with empty hands; what is followed goes on being followed or is anew.
#[test]
pub fn a_leader_that_dies_while_layers_are_followed_is_replaced_by_one_that_goes_on() {
    let (mut play, _) = follow_after_join(2);
    play.crash(play.leader());
    play.release(PlayMessageKind::Following);
    play.run_until(PlayGoal::Stages(3));
    play.finish();
    play.expect(PlayClaim::NoRewind);
    play.expect(PlayClaim::SameAsUndisturbed);
}

/// Times are no part of what is computed: whatever is found, a slow worker gets less to do, and the
/// bits are those of a run that was not measured.
#[test]
pub fn a_slow_worker_gets_fewer_layers_and_the_same_bits() {
    for (copies, index) in [(1, 0), (1, 1), (0, 1)] {
        let mut play = Play::new(PlayOptions { copies, ..PlayOptions::default() });
        play.run_until(PlayGoal::Sealed(4));
        let slow = play.stage(index);
        let before = play.layer_count(slow);
        play.find_slow(slow, 300);
        play.run_until(PlayGoal::Planned);
        play.finish();
        assert!(play.layer_count(slow) < before, "{before} layers before");
        assert_eq!(play.stage(index), slow, "who is there stays where it is");
        assert!(play.redone().len() <= 1, "steps begun twice: {:?}", play.redone());
        play.expect(PlayClaim::Plans(2));
        play.expect(PlayClaim::MovedAhead);
        play.expect(PlayClaim::NoRewind);
        play.expect(PlayClaim::SameAsUndisturbed);
    }
}

/// What was found dies with the leader that received it; the one that follows finds it again, or
/// not.
#[test]
pub fn a_leader_that_dies_with_what_was_found_costs_nobody_anything() {
    let mut play = Play::new(PlayOptions::default());
    play.run_until(PlayGoal::Sealed(4));
    let slow = play.stage(1);
    let before = play.layer_count(slow);
    play.hold(PlayMessageKind::Following);
    play.find_slow(slow, 300);
    play.crash(play.leader());
    play.release(PlayMessageKind::Following);
    play.finish();
    assert_eq!(play.layer_count(slow), before);
    play.expect(PlayClaim::Plans(1));
    play.expect(PlayClaim::NoRewind);
    play.expect(PlayClaim::SameAsUndisturbed);
}

/// The plan without it is made at once, and what was found of the others holds.
#[test]
pub fn a_slow_worker_that_is_lost_is_planned_out_like_any_other() {
    let mut play = Play::new(PlayOptions { workers: 4, ..PlayOptions::default() });
    play.run_until(PlayGoal::Sealed(4));
    let slow = play.stage(1);
    play.find_slow(slow, 300);
    play.run_until(PlayGoal::Planned);
    play.crash(slow);
    play.finish();
    play.expect(PlayClaim::NoRewind);
    play.expect(PlayClaim::SameAsUndisturbed);
}
