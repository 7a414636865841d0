//! Planned changes: a worker comes or is about to go, and layers are copied ahead.

use crate::play::{Cast, Claim, Goal, Mail, Play};

/// Workers that were there lose what ran ahead of the change and nothing else, and no layer moves while
/// it waits.
#[test]
pub fn a_join_costs_the_others_one_step_at_most() {
    for (workers, copies) in [(1, 1), (2, 1), (3, 1), (1, 0), (2, 0), (3, 0), (1, 2), (3, 2)] {
        let mut play = Play::new(Cast { workers, copies, ..Cast::default() });
        play.run_until(Goal::Sealed(4));
        let newcomer = play.join();
        play.run_until(Goal::Follows(newcomer));
        play.run_until(Goal::Stages(workers as usize + 1));
        play.finish();
        assert!(play.redone().len() <= 1, "steps begun twice: {:?}", play.redone());
        play.expect(Claim::Plans(2));
        play.expect(Claim::MovedAhead);
        play.expect(Claim::NoRewind);
        play.expect(Claim::SameAsUndisturbed);
    }
}

#[test]
pub fn who_is_about_to_go_hands_over_at_a_step_boundary_and_is_gone() {
    for copies in [1, 0, 2] {
        let mut play = Play::new(Cast { workers: 4, copies, ..Cast::default() });
        play.run_until(Goal::Sealed(4));
        let goes = play.stage(1);
        play.drain(goes);
        play.run_until(Goal::Stages(3));
        play.finish();
        assert!(play.redone().len() <= 1, "steps begun twice: {:?}", play.redone());
        play.expect(Claim::Drained(goes));
        play.expect(Claim::MovedAhead);
        play.expect(Claim::NoRewind);
        play.expect(Claim::SameAsUndisturbed);
    }
}

/// What the last workers hold would end with them: they save it, and workers that come go on from it.
#[test]
pub fn all_who_are_about_to_go_save_what_they_hold_and_the_next_go_on_from_it() {
    for (workers, copies) in [(1, 0), (3, 0), (3, 1)] {
        let mut play = Play::new(Cast { workers, copies, ..Cast::default() });
        play.run_until(Goal::Sealed(4));
        let all: Vec<_> = (0..workers as usize).map(|stage| play.stage(stage)).collect();
        all.iter().for_each(|node| play.drain(*node));
        play.run_until(Goal::Admitted(0));
        let saved = play.sealed();
        play.expect(Claim::Checkpoint(saved));
        all.iter().for_each(|node| play.crash(*node));
        play.join();
        play.finish();
        all.iter().for_each(|node| play.expect(Claim::Drained(*node)));
        play.expect(Claim::SealedAgain(&[]));
        play.expect(Claim::SameAsUndisturbed);
    }
}

/// What was followed lacks its last updates: the layers are fetched when the plan begins.
#[test]
pub fn who_falls_behind_fetches_its_layers_when_the_plan_begins() {
    let mut play = Play::new(Cast { workers: 2, ..Cast::default() });
    play.run_until(Goal::Sealed(4));
    let newcomer = play.join();
    play.run_until(Goal::Follows(newcomer));
    play.run_until(Goal::Planned);
    play.hold(Mail::Updates);
    play.run_until(Goal::Stages(3));
    play.finish();
    assert!(play.redone().len() <= 1, "steps begun twice: {:?}", play.redone());
    play.expect(Claim::MovedAtOnce);
    play.expect(Claim::NoRewind);
    play.expect(Claim::SameAsUndisturbed);
}

#[test]
pub fn a_follower_that_is_lost_costs_nobody_anything() {
    let mut play = Play::new(Cast { workers: 2, ..Cast::default() });
    play.run_until(Goal::Sealed(4));
    play.hold(Mail::Following);
    let newcomer = play.join();
    play.run_until(Goal::Follows(newcomer));
    play.crash(newcomer);
    play.finish();
    play.expect(Claim::NoRollback);
    play.expect(Claim::Plans(1));
    play.expect(Claim::SameAsUndisturbed);
}

/// The plan without it has its layers from their copy, as if nobody had followed.
#[test]
pub fn an_owner_that_is_lost_while_it_is_followed_is_replaced_as_always() {
    let mut play = Play::new(Cast { workers: 2, ..Cast::default() });
    play.run_until(Goal::Sealed(4));
    play.hold(Mail::Following);
    let newcomer = play.join();
    play.run_until(Goal::Follows(newcomer));
    play.crash(play.stage(0));
    play.release(Mail::Following);
    play.finish();
    play.expect(Claim::NoRewind);
    play.expect(Claim::SameAsUndisturbed);
}

/// A new leader begins with empty hands; what is followed goes on being followed or is anew.
#[test]
pub fn a_leader_that_dies_while_layers_are_followed_is_replaced_by_one_that_goes_on() {
    let mut play = Play::new(Cast { workers: 2, ..Cast::default() });
    play.run_until(Goal::Sealed(4));
    play.hold(Mail::Following);
    let newcomer = play.join();
    play.run_until(Goal::Follows(newcomer));
    play.crash(play.leader());
    play.release(Mail::Following);
    play.run_until(Goal::Stages(3));
    play.finish();
    play.expect(Claim::NoRewind);
    play.expect(Claim::SameAsUndisturbed);
}

/// Times are no part of what is computed: whatever is found, a slow worker gets less to do, and the
/// bits are those of a run in which nobody looked.
#[test]
pub fn who_is_found_slow_gets_less_to_do_and_the_same_bits_come_out() {
    for (copies, index) in [(1, 0), (1, 1), (0, 1)] {
        let mut play = Play::new(Cast { copies, ..Cast::default() });
        play.run_until(Goal::Sealed(4));
        let slow = play.stage(index);
        let before = play.layer_count(slow);
        play.find_slow(slow, 300);
        play.run_until(Goal::Planned);
        play.finish();
        assert!(play.layer_count(slow) < before, "{before} layers before");
        assert_eq!(play.stage(index), slow, "who is there stays where it is");
        assert!(play.redone().len() <= 1, "steps begun twice: {:?}", play.redone());
        play.expect(Claim::Plans(2));
        play.expect(Claim::MovedAhead);
        play.expect(Claim::NoRewind);
        play.expect(Claim::SameAsUndisturbed);
    }
}

/// What was found dies with the leader that received it; the one that follows finds it again, or not.
#[test]
pub fn a_leader_that_dies_with_what_was_found_costs_nobody_anything() {
    let mut play = Play::new(Cast::default());
    play.run_until(Goal::Sealed(4));
    let slow = play.stage(1);
    let before = play.layer_count(slow);
    play.hold(Mail::Following);
    play.find_slow(slow, 300);
    play.crash(play.leader());
    play.release(Mail::Following);
    play.finish();
    assert_eq!(play.layer_count(slow), before);
    play.expect(Claim::Plans(1));
    play.expect(Claim::NoRewind);
    play.expect(Claim::SameAsUndisturbed);
}

/// The plan without it is made at once, and what was found of the others holds.
#[test]
pub fn a_slow_worker_that_is_lost_is_planned_out_like_any_other() {
    let mut play = Play::new(Cast { workers: 4, ..Cast::default() });
    play.run_until(Goal::Sealed(4));
    let slow = play.stage(1);
    play.find_slow(slow, 300);
    play.run_until(Goal::Planned);
    play.crash(slow);
    play.finish();
    play.expect(Claim::NoRewind);
    play.expect(Claim::SameAsUndisturbed);
}
