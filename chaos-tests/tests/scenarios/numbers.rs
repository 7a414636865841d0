//! A verdict differs from what was guessed, or numbers are wrong.

use chaos_tests::numeric::NumericFault;
use zbelastic_schedule::ScheduleKind;

use crate::play::{Cast, Claim, Goal, Mail, Play};

/// A share of the usual norm above which a few steps of the run are.
const CLIPS_SOME: f64 = 1.02;

/// No verdict is sent before it is agreed on here. What a stage may have guessed wrong is that the
/// step is kept as it is: it went ahead, and a clip makes it drop that.
#[test]
pub fn case_05_a_clip_behind_an_optimistic_step_costs_one_discard() {
    let mut play = Play::new(Cast { clip_share: CLIPS_SOME, ..Cast::default() });
    play.run_until(Goal::Settled(9));
    play.hold(Mail::Briefings);
    play.run_until(Goal::Begun(play.stage(0), 10));
    play.run_until_quiet();
    play.release(Mail::Briefings);
    play.finish();
    play.expect(Claim::Verdicts(9, &["clip"]));
    play.expect(Claim::RedoneAfter("clip"));
    play.expect(Claim::SameAsUndisturbed);
}

#[test]
pub fn case_09_a_layer_that_nobody_holds_takes_the_run_to_a_checkpoint_and_the_same_seals() {
    let mut play = Play::new(Cast { copies: 0, checkpoint_every: 3, ..Cast::default() });
    play.run_until(Goal::Sealed(8));
    play.crash(play.stage(1));
    play.finish();
    play.expect(Claim::RewoundTo(6));
    play.expect(Claim::SealedAgain(&[6, 7]));
    play.expect(Claim::SameAsUndisturbed);
}

/// Without any copy: who trains the second replica has every layer of it as sealed.
#[test]
pub fn case_09_a_layer_of_two_replicas_is_where_its_twin_is_trained() {
    let kind = ScheduleKind::Chimera;
    let mut play = Play::new(Cast { workers: 4, copies: 0, kind, ..Cast::default() });
    play.run_until(Goal::Sealed(8));
    assert_eq!(play.stages(), 4);
    play.crash(play.stage(1));
    play.run_until(Goal::Stages(2));
    play.crash(play.stage(0));
    play.finish();
    play.expect(Claim::NoRewind);
    play.expect(Claim::SameAsUndisturbed);
}

#[test]
pub fn case_09_a_recomputed_step_that_comes_out_otherwise_is_not_sealed() {
    let mut play = Play::new(Cast { copies: 0, checkpoint_every: 3, ..Cast::default() });
    play.run_until(Goal::Sealed(8));
    let spoilt = play.stage(0);
    play.crash(play.stage(1));
    play.run_until(Goal::Stages(2));
    play.spoil(spoilt, NumericFault::Mark(f32::INFINITY, 1));
    play.finish();
    play.expect(Claim::Verdicts(6, &["keep", "replay", "keep"]));
    play.expect(Claim::SameAsUndisturbed);
}

/// There is one replica of a stage, so a replay stays where it was; after the last one the batch is
/// left out.
#[test]
pub fn case_15_a_gradient_that_is_not_finite_once_is_computed_again_by_the_same_node() {
    let mut play = Play::new(Cast { replays: 2, ..Cast::default() });
    play.run_until(Goal::Sealed(4));
    play.spoil(play.stage(1), NumericFault::Mark(f32::NAN, 1));
    play.finish();
    play.expect(Claim::Verdicts(4, &["replay", "keep"]));
    play.expect(Claim::Redone(&[4, 5]));
    play.expect(Claim::SameAsUndisturbed);
}

/// A gradient is computed once, and its sums twice: by its owner, and by the keeper of its copy. If
/// they differ, a plan pairs others; a node that contradicts two of them is at fault, and stays away.
#[test]
pub fn case_15_a_node_whose_sums_are_wrong_is_found_among_its_partners() {
    let mut play = Play::new(Cast::default());
    play.run_until(Goal::Sealed(4));
    let wrong = play.stage(1);
    play.spoil_for_good(wrong);
    play.finish();
    play.expect(Claim::Quarantined(wrong));
    play.expect(Claim::NoRewind);
    play.expect(Claim::SameAsUndisturbed);
}
