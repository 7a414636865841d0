//! Checks that no planted bug leads to, each shown what it must not pass.

use std::sync::Arc;

use zbelastic_consensus::duty::PLANS_FAILED_MAX;
use zbelastic_consensus::entry::RewindReason;
use zbelastic_consensus::state::StateChange;
use zbelastic_consensus::validation::{Reason, Seal, Turn, Verdict};
use zbelastic_types::{Attempt, Generation, LayerId, NodeId, Step};

use super::InvariantChecker;
use crate::case::LifeCase;
use crate::digest_model::DigestShape;
use crate::digest_reference::DigestReference;
use crate::failure::Invariant;
use crate::life::parts;
use crate::numeric_faults::NumericFault;
use crate::options::ComputeModelKind;
use crate::queue::VirtualTime;
use crate::reference::LifeReference;

fn checker() -> InvariantChecker {
    let (spec, _) = parts(&LifeCase::draw(1, ComputeModelKind::Digest));
    let layer_tensors = spec.layer_tensors.clone();
    let shape = DigestShape { seed: 1, layer_tensors, spike_share: 0.0 };
    let reference = DigestReference::new(shape, spec.microbatch_count);
    InvariantChecker::new(LifeReference::Digest(reference), Arc::new(spec))
}

fn broken(checker: &mut InvariantChecker) -> Option<Invariant> {
    checker.take_failure().and_then(|failure| failure.invariant)
}

fn seal(step: u64, verdict: Verdict) -> Seal {
    let turn = Turn { generation: Generation(1), attempt: Attempt(0), step: Step(step) };
    let square_sum_bits = 0;
    let loss_sum_bits = 0;
    let updates_after = 0;
    let cursor_after = turn.after(verdict).step;
    let reason = Reason::Sound;
    Seal { turn, verdict, reason, square_sum_bits, loss_sum_bits, updates_after, cursor_after }
}

#[test]
fn steps_are_sealed_one_after_the_other() {
    let mut checker = checker();
    checker.history.check_order(&mut checker.failure, &seal(0, Verdict::Keep), false);
    checker.history.check_order(&mut checker.failure, &seal(0, Verdict::Replay), false);
    assert_eq!(broken(&mut checker), None);
    checker.history.check_order(&mut checker.failure, &seal(1, Verdict::Keep), false);
    assert_eq!(broken(&mut checker), Some(Invariant::S1));
    checker.history.check_order(&mut checker.failure, &seal(1, Verdict::Replay), false);
    assert_eq!(broken(&mut checker), Some(Invariant::S1));
}

#[test]
fn a_term_has_one_leader() {
    let mut checker = checker();
    checker.leads(NodeId(1), 3);
    checker.leads(NodeId(1), 3);
    checker.leads(NodeId(2), 4);
    assert_eq!(broken(&mut checker), None);
    checker.leads(NodeId(1), 4);
    assert_eq!(broken(&mut checker), Some(Invariant::S5));
}

#[test]
fn an_entry_is_refused_everywhere_or_nowhere() {
    let mut checker = checker();
    checker.refused(7, "seal refused: Past");
    checker.refused(7, "seal refused: Past");
    assert_eq!(broken(&mut checker), None);
    checker.refused(7, "seal refused: Gap");
    assert_eq!(broken(&mut checker), Some(Invariant::S2));
}

const NODE: NodeId = NodeId(5);
const LAYER: LayerId = LayerId(0);

/// A bit of the layer flips, and is reported under this plan.
fn flip(checker: &mut InvariantChecker, generation: u64) {
    let turn = Turn {
        generation: Generation(generation),
        attempt: Attempt(0),
        step: Step(checker.sealed()),
    };
    let fault = NumericFault::StateFlip(1);
    checker.damage.spoiled((NODE, VirtualTime(0)), turn, fault, Some(LAYER));
}

/// A worker cannot read the layer of a checkpoint in as many plans as are tried.
fn miss(checker: &mut InvariantChecker, version: u64) {
    for generation in 1..=PLANS_FAILED_MAX as u64 {
        checker.damage.reads.note(NODE, Step(version), LAYER, false);
        checker.damage.reads.reported(NODE, LAYER, Generation(generation));
    }
}

/// The run goes back. Yields the invariant that this breaks.
fn rewind(
    checker: &mut InvariantChecker,
    to: u64,
    reason: RewindReason,
    dropped: &[u64],
) -> Option<Invariant> {
    let dropped: Vec<Step> = dropped.iter().copied().map(Step).collect();
    checker.check_rewind(Step(to), reason, &dropped);
    broken(checker)
}

const DIFFERS: RewindReason = RewindReason::StateDiffers { layer: LAYER };
const LOST: RewindReason = RewindReason::LayerLost { layer: LAYER };

#[test]
fn a_state_is_wrong_only_where_a_bit_flipped() {
    assert_eq!(rewind(&mut checker(), 0, DIFFERS, &[]), Some(Invariant::L3));
    let mut checker = checker();
    flip(&mut checker, 1);
    let other = RewindReason::StateDiffers { layer: LayerId(1) };
    assert_eq!(rewind(&mut checker, 0, other, &[]), Some(Invariant::L3), "another layer");
    flip(&mut checker, 2);
    flip(&mut checker, 2);
    assert_eq!(rewind(&mut checker, 0, DIFFERS, &[]), None);
    assert_eq!(rewind(&mut checker, 0, DIFFERS, &[]), Some(Invariant::L3), "both are given up");
}

/// Reads that failed once, and a flipped bit that was found, excuse nothing that comes later.
#[test]
fn a_checkpoint_that_could_not_be_read_once_is_not_given_up_for_it_later() {
    let mut checker = checker();
    flip(&mut checker, 1);
    assert_eq!(rewind(&mut checker, 12, DIFFERS, &[]), None);
    assert_eq!(rewind(&mut checker, 12, LOST, &[]), Some(Invariant::L3), "it can be read");
    miss(&mut checker, 12);
    assert_eq!(rewind(&mut checker, 6, LOST, &[12]), None);
    checker.applied(VirtualTime(9), 1, &StateChange::Resumed(Generation(4)), None);
    assert_eq!(broken(&mut checker), None);
    flip(&mut checker, 4);
    assert_eq!(rewind(&mut checker, 12, DIFFERS, &[]), None);
    assert_eq!(rewind(&mut checker, 6, LOST, &[12]), Some(Invariant::L3), "it could be read");
}

#[test]
fn a_run_goes_back_past_no_checkpoint_that_can_be_read() {
    let mut checker = checker();
    flip(&mut checker, 1);
    miss(&mut checker, 12);
    assert_eq!(rewind(&mut checker, 6, DIFFERS, &[12]), None);
    flip(&mut checker, 2);
    assert_eq!(rewind(&mut checker, 0, DIFFERS, &[3, 6]), Some(Invariant::L3));
}

#[test]
fn a_run_is_held_for_want_of_checkpoints_only_if_none_could_be_read() {
    let mut checker = checker();
    let held = |checker: &mut InvariantChecker, base: u64, versions: &[Step]| {
        checker.held_with_nothing_left(Step(base), versions);
        broken(checker)
    };
    let versions = [Step(6), Step(12)];
    miss(&mut checker, 12);
    assert_eq!(held(&mut checker, 6, &versions), Some(Invariant::N1), "6 was never read");
    miss(&mut checker, 6);
    assert_eq!(held(&mut checker, 6, &versions), None);
    assert_eq!(held(&mut checker, 0, &versions), Some(Invariant::N1), "it has its beginning");
    checker.applied(VirtualTime(9), 1, &StateChange::Resumed(Generation(4)), None);
    assert_eq!(held(&mut checker, 6, &versions), Some(Invariant::N1), "a plan ran since");
}

#[test]
fn a_step_comes_out_otherwise_only_where_its_gradient_was_marked() {
    let mut checker = checker();
    let reason = Reason::DiffersFromLog { replays: 0 };
    let spoiled = Seal { reason, ..seal(0, Verdict::Replay) };
    flip(&mut checker, 1);
    let check = |checker: &mut InvariantChecker| {
        let InvariantChecker { verdicts, damage, failure, .. } = checker;
        verdicts.check_verdict(failure, damage, &spoiled, true);
        broken(checker)
    };
    assert_eq!(check(&mut checker), Some(Invariant::N5), "a flipped bit changes no gradient");
    let mark = NumericFault::Mark(f32::NAN, 1);
    checker.damage.spoiled((NODE, VirtualTime(0)), spoiled.turn, mark, None);
    assert_eq!(check(&mut checker), None);
}

#[test]
fn who_has_learned_of_a_new_cluster_keeps_nothing_of_the_one_before() {
    let mut checker = checker();
    for step in 0..3 {
        checker.history.acknowledge(&seal(step, Verdict::Keep));
    }
    checker.recovered_from(Step(1));
    let anew: Vec<u64> = (0..5).filter(|step| checker.is_sealed_anew(Step(*step))).collect();
    assert_eq!(anew, [2, 3]);
    checker.keeps(NODE, Step(3), false);
    checker.keeps(NODE, Step(1), true);
    assert_eq!(broken(&mut checker), None);
    checker.keeps(NODE, Step(2), true);
    assert_eq!(broken(&mut checker), Some(Invariant::S9));
    checker.keeps(NODE, Step(4), false);
    assert_eq!(broken(&mut checker), Some(Invariant::S9));
}
