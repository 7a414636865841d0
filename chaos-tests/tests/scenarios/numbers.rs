//! A verdict differs from what was guessed, or numbers are wrong.

use chaos_tests::numeric_faults::NumericFault;
use zbelastic_schedule::ScheduleKind;

use crate::play::{Play, PlayClaim, PlayGoal, PlayMessageKind, PlayOptions};

/// A share of the usual norm above which a few steps of the run are.
const CLIPS_SOME: f64 = 1.02;

/// No verdict is sent before it is agreed on here. What a stage may have guessed wrong is that the
/// step is kept as it is: it went ahead, and a clip makes it drop that.
#[test]
pub fn case_05_a_clip_behind_an_optimistic_step_costs_one_discard() {
    let mut play = Play::new(PlayOptions { clip_share: CLIPS_SOME, ..PlayOptions::default() });
    play.run_until(PlayGoal::Settled(9));
    play.hold(PlayMessageKind::Briefings);
    play.run_until(PlayGoal::Begun(play.stage(0), 10));
    play.run_until_quiet();
    play.release(PlayMessageKind::Briefings);
    play.finish();
    play.expect(PlayClaim::Verdicts(9, &["clip"]));
    play.expect(PlayClaim::RedoneAfter("clip"));
    play.expect(PlayClaim::SameAsUndisturbed);
}

#[test]
pub fn case_09_a_layer_that_nobody_holds_takes_the_run_to_a_checkpoint_and_the_same_seals() {
    let mut play =
        Play::new(PlayOptions { copies: 0, checkpoint_every: 3, ..PlayOptions::default() });
    play.run_until(PlayGoal::Sealed(8));
    play.crash(play.stage(1));
    play.finish();
    play.expect(PlayClaim::RewoundTo(6));
    play.expect(PlayClaim::SealedAgain(&[6, 7]));
    play.expect(PlayClaim::SameAsUndisturbed);
}

/// Without any copy: the worker of the second replica has every layer of it as sealed. Three stages
/// have no schedule of two directions, and go on with the same lanes.
#[test]
pub fn case_09_a_layer_of_two_replicas_is_where_its_twin_is_trained() {
    let kind = ScheduleKind::Chimera;
    let mut play = Play::new(PlayOptions { workers: 4, copies: 0, kind, ..PlayOptions::default() });
    play.run_until(PlayGoal::Sealed(8));
    assert_eq!(play.stages(), 4);
    play.crash(play.stage(1));
    play.run_until(PlayGoal::Stages(3));
    play.finish();
    play.expect(PlayClaim::NoRewind);
    play.expect(PlayClaim::SameAsUndisturbed);
}

#[test]
pub fn case_09_a_recomputed_step_that_comes_out_otherwise_is_not_sealed() {
    let mut play =
        Play::new(PlayOptions { copies: 0, checkpoint_every: 3, ..PlayOptions::default() });
    play.run_until(PlayGoal::Sealed(8));
    let spoilt = play.stage(0);
    play.crash(play.stage(1));
    play.run_until(PlayGoal::Stages(2));
    play.spoil(spoilt, NumericFault::Mark(f32::INFINITY, 1));
    play.finish();
    play.expect(PlayClaim::Verdicts(6, &["keep", "replay", "keep"]));
    play.expect(PlayClaim::SameAsUndisturbed);
}

/// There is one replica of a stage, so a replay stays where it was; after the last one the batch is
/// left out.
#[test]
pub fn case_15_a_gradient_that_is_not_finite_once_is_computed_again_by_the_same_node() {
    let mut play = Play::new(PlayOptions { replays: 2, ..PlayOptions::default() });
    play.run_until(PlayGoal::Sealed(4));
    play.spoil(play.stage(1), NumericFault::Mark(f32::NAN, 1));
    play.finish();
    play.expect(PlayClaim::Verdicts(4, &["replay", "keep"]));
    play.expect(PlayClaim::Redone(&[4, 5]));
    play.expect(PlayClaim::SameAsUndisturbed);
}

/// A gradient is computed once, and its sums twice: by its owner, and by the holder of its copy. If
/// they differ, a plan pairs others; a node that contradicts two of them is at fault, and stays
/// away.
#[test]
pub fn case_15_a_node_whose_sums_are_wrong_is_found_among_its_partners() {
    let mut play = Play::new(PlayOptions::default());
    play.run_until(PlayGoal::Sealed(4));
    let wrong = play.stage(1);
    play.spoil_for_good(wrong);
    play.finish();
    play.expect(PlayClaim::Quarantined(wrong));
    play.expect(PlayClaim::NoRewind);
    play.expect(PlayClaim::SameAsUndisturbed);
}
