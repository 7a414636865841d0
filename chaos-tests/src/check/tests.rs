//! Checks that no planted bug leads to, each shown what it must not pass.

use std::sync::Arc;

use zbelastic_consensus::entry::RewindReason;
use zbelastic_consensus::validation::{Reason, Seal, Turn, Verdict};
use zbelastic_types::{Attempt, Generation, LayerId, NodeId, Step};

use super::InvariantChecker;
use crate::case::LifeCase;
use crate::digest_model::DigestShape;
use crate::digest_reference::DigestReference;
use crate::failure::Invariant;
use crate::life::parts;
use crate::options::ComputeModelKind;
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

#[test]
fn a_state_is_wrong_only_where_a_bit_flipped() {
    let mut checker = checker();
    checker.check_rewind(RewindReason::StateDiffers { layer: LayerId(0) });
    assert_eq!(broken(&mut checker), Some(Invariant::L3));
}
