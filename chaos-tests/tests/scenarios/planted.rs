//! Rules taken away: each is missed by the scenario that needs it.

use std::panic::catch_unwind;

use zbelastic_consensus::mutant::{self, Mutant};

use crate::{leaders, numbers, workers};

const ALL: [(&str, fn()); 23] = [
    ("c1", leaders::case_01_a_leader_that_dies_before_it_proposes_costs_nothing),
    ("c2", leaders::case_02_an_entry_of_a_dead_leader_commits_with_the_next_ones_first),
    ("c3", leaders::case_03_an_entry_lost_with_its_leader_is_proposed_again),
    ("c3b", leaders::case_03_a_stage_may_die_with_the_leader_that_proposed),
    ("c4", leaders::case_04_workers_ask_for_a_seal_that_nobody_told_them),
    ("c11", leaders::case_11_a_seal_that_comes_behind_a_new_plan_is_ignored),
    ("c13", leaders::case_13_without_a_majority_training_waits_at_the_gate_and_goes_on_by_itself),
    ("c5", numbers::case_05_a_clip_behind_an_optimistic_step_costs_one_discard),
    (
        "c9a",
        numbers::case_09_a_layer_that_nobody_holds_takes_the_run_to_a_checkpoint_and_the_same_seals,
    ),
    ("c9b", numbers::case_09_a_recomputed_step_that_comes_out_otherwise_is_not_sealed),
    (
        "c15a",
        numbers::case_15_a_gradient_that_is_not_finite_once_is_computed_again_by_the_same_node,
    ),
    ("c15b", numbers::case_15_a_node_whose_sums_are_wrong_is_found_among_its_partners),
    ("c6", workers::case_06_a_stage_that_dies_before_its_report_costs_the_step_under_way),
    ("c7a", workers::case_07_a_step_of_a_dead_stage_is_sealed_if_its_update_is_held_elsewhere),
    (
        "c7b",
        workers::case_07_a_step_of_a_dead_stage_is_run_again_if_its_update_is_not_held_elsewhere,
    ),
    ("c8", workers::case_08_a_stage_that_dies_after_the_seal_costs_what_ran_ahead),
    ("c10", workers::case_10_a_worker_that_was_cut_off_is_fenced_and_comes_back_as_a_new_life),
    ("c12a", workers::case_12_two_stages_that_die_together_are_restored_from_their_copies),
    (
        "c12b",
        workers::case_12_a_stage_that_dies_together_with_its_copy_takes_the_run_to_a_checkpoint,
    ),
    ("c14a", workers::case_14_a_seal_that_is_told_twice_is_carried_out_once),
    (
        "c14b",
        workers::case_14_a_stage_that_dies_in_the_middle_of_a_commit_gets_the_version_after_it,
    ),
    ("c16a", workers::case_16_without_an_elsewhere_the_log_says_that_the_promise_is_off),
    ("c16b", workers::case_16_while_a_copy_does_not_follow_nothing_is_sealed),
];

#[test]
fn matrix() {
    std::panic::set_hook(Box::new(|_| {}));
    for mutant in [
        Mutant::M24UndoFreedAtProposal,
        Mutant::R2GenerationUnchecked,
        Mutant::R3SealedBeforeHeld,
        Mutant::R5CheckpointOfCandidate,
        Mutant::M2TurnUnchecked,
        Mutant::M4GradientsKept,
        Mutant::M5OldProgram,
        Mutant::M6AppliedTwice,
        Mutant::M7CursorMoves,
        Mutant::M10NanPasses,
        Mutant::M12FencedAccepted,
        Mutant::M14UpdatesAhead,
        Mutant::M16NormByStage,
        Mutant::M21WaitsForTheDead,
    ] {
        mutant::set(Some(mutant));
        let found: Vec<_> = ALL
            .iter()
            .filter(|(_, scenario)| catch_unwind(scenario).is_err())
            .map(|(n, _)| *n)
            .collect();
        eprintln!("{mutant:?} {found:?}");
        mutant::set(None);
    }
}
