//! A rule taken away: the scenario that is about it must notice.

use std::panic::catch_unwind;

use zbelastic_consensus::mutant::{self, Mutant};

use crate::{changes, leaders, numbers, workers};

/// Plays a scenario without a rule.
fn notices(mutant: Mutant, scenario: fn()) {
    mutant::set(Some(mutant));
    let outcome = catch_unwind(scenario);
    mutant::set(None);
    assert!(outcome.is_err(), "{mutant:?} goes unnoticed");
    scenario();
}

#[test]
fn without_r1_a_step_cannot_be_run_again_by_those_who_are_left() {
    let mutant = Mutant::M24UndoFreedAtProposal;
    notices(mutant, leaders::case_03_a_stage_may_die_with_the_leader_that_proposed);
}

#[test]
fn without_r2_a_late_seal_is_applied() {
    let mutant = Mutant::R2GenerationUnchecked;
    notices(mutant, leaders::case_11_a_seal_that_comes_behind_a_new_plan_is_ignored);
}

#[test]
fn without_r3_a_step_is_sealed_that_only_its_owner_holds() {
    let mutant = Mutant::R3SealedBeforeHeld;
    let scenario =
        workers::case_07_a_step_of_a_dead_stage_is_run_again_if_its_update_is_not_held_elsewhere;
    notices(mutant, scenario);
}

#[test]
fn without_the_check_of_turns_a_stale_frame_is_processed() {
    let mutant = Mutant::M2TurnUnchecked;
    let scenario =
        workers::case_10_a_worker_that_was_cut_off_is_fenced_and_comes_back_as_a_new_life;
    notices(mutant, scenario);
}

#[test]
fn without_s9_one_that_comes_back_has_no_version_that_is_sealed() {
    let mutant = Mutant::M52CandidateKept;
    let scenario = workers::case_10_workers_come_back_without_the_step_that_was_not_sealed;
    notices(mutant, scenario);
}

#[test]
fn without_f1_the_format_is_raised_for_the_connected() {
    let mutant = Mutant::M43RaisedForTheConnected;
    notices(mutant, leaders::the_format_is_raised_once_every_member_is_known_to_read_it);
}

#[test]
fn without_n1_what_is_copied_ahead_counts_as_sealed() {
    let mutant = Mutant::M53FollowedCountsAsSealed;
    notices(mutant, changes::what_is_copied_ahead_counts_as_what_it_is);
}

#[test]
fn without_the_check_of_norms_a_gradient_that_is_not_finite_is_kept() {
    let mutant = Mutant::M10NanPasses;
    let scenario =
        numbers::case_15_a_gradient_that_is_not_finite_once_is_computed_again_by_the_same_node;
    notices(mutant, scenario);
}

#[test]
fn without_r9_what_is_late_is_given_up() {
    let mutant = Mutant::M29SilenceIsLoss;
    notices(
        mutant,
        workers::case_19_a_holder_that_answers_after_a_thousand_heartbeats_is_waited_for,
    );
}
