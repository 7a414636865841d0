//! Seals: in turn, once, under their plan.

use std::sync::Arc;

use zbelastic_types::{Generation, Step};

use crate::entry::Entry;
use crate::fixture::{FixtureLog, spec, turn};
use crate::history::{DiffersFromLog, ROLLBACK_WINDOW, SEALS_KEPT_MAX};
use crate::job::{JobPhase, JobSpec};
use crate::state::{EntryRefusal, StateChange};
use crate::validation::{Seal, SealRefusal, Turn, Verdict};

const CLIP: Verdict = Verdict::Clip { coefficient: 0.5 };

fn sealed(log: &mut FixtureLog, verdict: Verdict) -> bool {
    let seal = log.seal(verdict);
    let change = log.apply(Entry::Seal(seal));
    let is_repeated = matches!(change, StateChange::Sealed { is_repeated: true, .. });
    assert_eq!(change, StateChange::Sealed { seal, is_repeated, adopted: None });
    is_repeated
}

#[test]
fn seals_lead_from_turn_to_turn() {
    let mut log = FixtureLog::running(spec(), &[1, 2]);
    let mut check = |verdict: Verdict, next: Turn, updates: u64, head: u64| {
        assert!(!sealed(&mut log, verdict));
        let state = &log.state;
        assert_eq!((state.open_turn(), state.ledger().updates()), (next, updates), "{verdict:?}");
        assert_eq!(state.history().head(), Step(head), "{verdict:?}");
        assert_eq!(state.training().seals().last_seal().map(|seal| seal.verdict), Some(verdict));
    };
    check(Verdict::Keep, turn(1, 0), 1, 1);
    check(CLIP, turn(2, 1), 2, 2);
    check(Verdict::Replay, turn(2, 2), 2, 2);
    check(Verdict::Skip, turn(3, 3), 2, 3);
    check(Verdict::Keep, turn(4, 3), 3, 4);
}

/// R2: a seal that was proposed under the plan before is refused when it is applied, whether the
/// new plan loads, runs, or ended (failure 11).
#[test]
fn r2_a_seal_of_another_plan_changes_nothing() {
    let mut log = FixtureLog::running(spec(), &[1, 2]);
    log.keep(1);
    let late = Entry::Seal(log.seal(Verdict::Keep));
    let (expected, found) = (Generation(2), Generation(1));
    log.lose(2);
    log.adopt(log.plan(&[1]));
    log.refuse(late.clone(), EntryRefusal::OtherGeneration { expected, found });
    log.load();
    log.refuse(late.clone(), SealRefusal::OtherGeneration { expected, found });
    log.apply(log.rewind(0));
    log.refuse(late, EntryRefusal::OtherGeneration { expected, found });
}

#[test]
fn nothing_is_sealed_unless_the_plan_runs() {
    let mut log = FixtureLog::with_job(spec(), &[1]);
    let generation = Generation(0);
    log.refuse(Entry::Seal(log.seal(Verdict::Keep)), EntryRefusal::NotRunning { generation });
    log.adopt(log.plan(&[1]));
    let generation = Generation(1);
    log.refuse(Entry::Seal(log.seal(Verdict::Keep)), EntryRefusal::NotRunning { generation });
    log.load();
    sealed(&mut log, Verdict::Keep);
    log.apply(log.rewind(0));
    log.refuse(Entry::Seal(log.seal(Verdict::Keep)), EntryRefusal::NotRunning { generation });
}

/// R8 and S1: a step is sealed once, and none is left out.
#[test]
fn r8_a_seal_told_again_or_too_early_changes_nothing() {
    let mut log = FixtureLog::running(spec(), &[1]);
    let again = log.seal(Verdict::Keep);
    log.keep(1);
    let (expected, found) = (turn(1, 0), turn(0, 0));
    log.refuse(Entry::Seal(again), SealRefusal::Past { expected, found });
    for found in [turn(2, 0), turn(1, 1)] {
        let early =
            Seal { turn: found, cursor_after: found.step.next(), ..log.seal(Verdict::Keep) };
        log.refuse(Entry::Seal(early), SealRefusal::Gap { expected, found });
    }
}

#[test]
fn counters_follow_from_the_ledger() {
    let mut log = FixtureLog::running(spec(), &[1]);
    log.keep(3);
    let mut check = |verdict: Verdict, found: u64, cursor: u64, expected: u64| {
        let cursor = Step(cursor);
        let wrong = Seal { updates_after: found, cursor_after: cursor, ..log.seal(verdict) };
        log.refuse(Entry::Seal(wrong), SealRefusal::Counters { expected, found, cursor });
    };
    check(Verdict::Keep, 3, 4, 4);
    check(Verdict::Keep, 4, 3, 4);
    check(CLIP, 5, 4, 4);
    check(Verdict::Skip, 4, 4, 3);
    check(Verdict::Replay, 3, 4, 3);
}

/// Failure 9: steps since the checkpoint are computed anew, and must come out as they were.
#[test]
fn a_step_that_was_sealed_before_is_sealed_with_the_same_bits() {
    let mut log = FixtureLog::running(spec(), &[1, 2]);
    let logged = [Verdict::Keep, CLIP, Verdict::Skip, Verdict::Keep].map(|verdict| {
        let seal = log.seal(verdict);
        log.apply(Entry::Seal(seal));
        seal
    });
    log.apply(log.rewind(0));
    log.run_plan(&[1, 2]);
    for seal in logged {
        let step = seal.turn.step;
        let again = Seal { turn: log.state.open_turn(), ..seal };
        let skip = Seal { verdict: Verdict::Skip, ..log.seal(Verdict::Skip) };
        let keep = Seal { square_sum_bits: 1, ..log.seal(Verdict::Keep) };
        let loss = Seal { loss_sum_bits: 1, ..again };
        let coefficient = Seal { ..log.seal(Verdict::Clip { coefficient: 0.25 }) };
        for other in [skip, keep, loss, coefficient] {
            if other != again {
                log.refuse(Entry::Seal(other), DiffersFromLog { step });
            }
        }
        let StateChange::Sealed { is_repeated, .. } = log.apply(Entry::Seal(again)) else {
            panic!("a seal")
        };
        assert!(is_repeated);
        assert_eq!(log.state.history().head(), Step(4), "nothing is remembered twice");
    }
    assert!(!sealed(&mut log, Verdict::Keep), "step 4 is new");
}

#[test]
fn a_replay_of_a_step_that_was_sealed_is_not_held_against_the_log() {
    let mut log = FixtureLog::running(spec(), &[1]);
    log.keep(2);
    log.apply(log.rewind(0));
    log.run_plan(&[1]);
    assert!(!sealed(&mut log, Verdict::Replay));
    assert!(sealed(&mut log, Verdict::Keep));
    assert_eq!(log.state.open_turn().step, Step(1));
}

#[test]
fn a_held_job_still_seals_the_step_under_way() {
    let mut log = FixtureLog::running(spec(), &[1]);
    log.apply(Entry::Job(crate::job::JobChange::Pause));
    log.keep(1);
    assert_eq!(log.state.job().map(|job| job.phase), Some(JobPhase::Paused));
}

#[test]
fn rollbacks_are_counted_over_the_last_seals() {
    let mut log = FixtureLog::running(JobSpec { step_count: 1000, ..spec() }, &[1]);
    assert_eq!(log.state.history().rollbacks(), (0, 0));
    for verdict in [CLIP, Verdict::Skip, Verdict::Replay, Verdict::Keep] {
        sealed(&mut log, verdict);
    }
    assert_eq!(log.state.history().rollbacks(), (2, 3));
    log.keep(ROLLBACK_WINDOW as u64 - 2);
    assert_eq!(log.state.history().rollbacks(), (1, ROLLBACK_WINDOW as u32));
}

/// A run that never makes checkpoints forgets its oldest seals, but only for new ones.
#[test]
fn history_without_checkpoints_has_a_limit() {
    let kept = SEALS_KEPT_MAX as u64;
    let spec = JobSpec { step_count: 2 * kept, checkpoint_every: 0, ..spec() };
    let mut log = FixtureLog::running(spec, &[1]);
    log.keep(kept);
    assert_eq!(log.state.history().base(), Step(0));
    sealed(&mut log, Verdict::Replay);
    assert_eq!(log.state.history().base(), Step(0));
    log.apply(log.rewind(0));
    log.run_plan(&[1]);
    log.keep(kept);
    assert_eq!(log.state.history().base(), Step(0), "nothing new was sealed");
    log.keep(1);
    assert_eq!((log.state.history().base(), log.state.history().head()), (Step(1), Step(kept + 1)));
}

/// With checkpoints it forgets what lies before one; the newest stays within reach.
#[test]
fn history_with_checkpoints_forgets_up_to_the_newest() {
    let kept = SEALS_KEPT_MAX as u64;
    let every = kept / 2;
    let spec =
        JobSpec { step_count: 9 * kept, checkpoint_every: every, checkpoints_kept: 8, ..spec() };
    let mut log = FixtureLog::running(spec, &[1]);
    log.keep(every);
    log.checkpoint(every, 1);
    log.keep(every);
    assert!(log.state.history().is_full() && log.state.training().can_remember_seal());
    log.keep(every);
    assert_eq!(log.state.history().base(), Step(every));
    assert!(!log.state.training().can_remember_seal(), "what lies behind the checkpoint is needed");
    log.checkpoint(2 * every, 1);
    assert!(log.state.training().can_remember_seal());
    let mut back = log.clone();
    back.apply(back.rewind(every));
    log.keep(1);
    let base = Step(every + 1);
    log.refuse(log.rewind(every), EntryRefusal::Forgotten { to: Step(every), base });
    log.apply(log.rewind(2 * every));
}

#[test]
fn two_logs_with_the_same_entries_are_equal() {
    let run = || {
        let mut log = FixtureLog::running(spec(), &[1, 2]);
        log.keep(3);
        log.checkpoint_versions();
        sealed(&mut log, CLIP);
        Arc::new(log.state)
    };
    assert_eq!(crate::codec::encode(&*run()), crate::codec::encode(&*run()));
}
