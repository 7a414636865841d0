//! The words themselves: what does not hold is not claimed in vain, and a play goes one way.

use chaos_tests::numeric_faults::NumericFault;

use crate::play::{Play, PlayClaim, PlayGoal, PlayMessageKind, PlayOptions};

#[test]
#[should_panic(expected = "steps begun more than once")]
fn a_rollback_is_not_overlooked() {
    let mut play = Play::new(PlayOptions::default());
    play.run_until(PlayGoal::Sealed(4));
    play.crash(play.stage(1));
    play.finish();
    play.expect(PlayClaim::NoRollback);
}

#[test]
#[should_panic(expected = "sealed otherwise than if nothing happens")]
fn a_batch_left_out_is_not_overlooked() {
    let mut play = Play::new(PlayOptions::default());
    play.run_until(PlayGoal::Sealed(4));
    play.spoil(play.stage(1), NumericFault::Mark(f32::NAN, 1));
    play.finish();
    play.expect(PlayClaim::SameAsUndisturbed);
}

#[test]
#[should_panic(expected = "no late seal")]
fn an_entry_that_nobody_ignored_is_not_taken_for_ignored() {
    let play = Play::undisturbed(PlayOptions::default());
    play.expect(PlayClaim::LateSealIgnored);
}

#[test]
#[should_panic(expected = "is not reached")]
fn a_goal_out_of_reach_ends_the_play() {
    let mut play = Play::new(PlayOptions::default());
    play.run_until(PlayGoal::Sealed(4));
    play.hold(PlayMessageKind::Held);
    play.run_until(PlayGoal::Sealed(5));
}

#[test]
fn nothing_happens_to_an_undisturbed_cluster() {
    let play = Play::undisturbed(PlayOptions::default());
    play.expect(PlayClaim::NoRollback);
    play.expect(PlayClaim::Plans(1));
    play.expect(PlayClaim::SameAsUndisturbed);
}
