//! The way back: to a checkpoint, or to the beginning.

use zbelastic_types::{Attempt, Generation, LayerId, Step};

use crate::entry::{Entry, RewindReason};
use crate::fixture::{FixtureLog, spec};
use crate::job::{HaltReason, JobChange, JobPhase, JobRefusal, JobSpec};
use crate::state::{EntryRefusal, PlanPhase, StateChange};
use crate::validation::Verdict;

/// Ten steps, of which one was skipped; checkpoints of versions 4 and 8.
fn log() -> FixtureLog {
    let mut log = FixtureLog::running(JobSpec { step_count: 1000, ..spec() }, &[1, 2]);
    log.keep(2);
    log.apply(Entry::Seal(log.seal(Verdict::Skip)));
    log.keep(1);
    log.checkpoint(4, 1);
    log.keep(4);
    log.checkpoint(8, 1);
    log.keep(2);
    log
}

fn rewound(to: u64, dropped: &[u64]) -> StateChange {
    let reason = RewindReason::LayerLost { layer: LayerId(0) };
    StateChange::Rewound {
        to: Step(to),
        reason,
        dropped: dropped.iter().copied().map(Step).collect(),
    }
}

#[test]
fn a_run_goes_back_to_a_checkpoint_with_its_ledger_and_its_log() {
    let mut log = log();
    log.keep(2);
    assert_eq!(log.pending_versions(), [12]);
    assert_eq!(log.apply(log.rewind(4)), rewound(4, &[8]));
    let (state, open) = (&log.state, log.state.open_turn());
    assert_eq!((open.generation, open.step, open.attempt), (Generation(1), Step(4), Attempt(0)));
    assert_eq!((state.ledger().updates(), state.history().head()), (3, Step(12)));
    assert_eq!((log.checkpoint_versions(), log.pending_versions()), (vec![4], vec![]));
    assert_eq!(state.plan().map(|plan| &plan.phase), Some(&PlanPhase::Closed));
}

#[test]
fn a_run_goes_back_to_its_beginning() {
    let mut log = log();
    assert_eq!(log.apply(log.rewind(0)), rewound(0, &[4, 8]));
    assert_eq!((log.state.open_turn().step, log.state.ledger().updates()), (Step(0), 0));
    assert!(log.checkpoint_versions().is_empty());
}

/// Where two nodes report the open version differently and a checkpoint has it, nothing sealed is
/// lost.
#[test]
fn a_run_may_go_back_to_where_it_stands() {
    let mut log = FixtureLog::running(spec(), &[1, 2]);
    log.keep(4);
    log.checkpoint(4, 1);
    log.refuse(log.rewind(5), EntryRefusal::AheadOfLedger { to: Step(5), open: Step(4) });
    assert_eq!(log.apply(log.rewind(4)), rewound(4, &[]));
    assert!(!log.state.is_running());
}

#[test]
fn a_run_goes_nowhere_else() {
    let mut log = log();
    for version in [1, 5, 10] {
        let version = Step(version);
        log.refuse(log.rewind(version.0), EntryRefusal::NoCheckpoint { version });
    }
    let reason = RewindReason::LayerLost { layer: LayerId(0) };
    for found in [Generation(0), Generation(2)] {
        let expected = Generation(1);
        let other = Entry::Rewind { generation: found, to: Step(8), reason };
        log.refuse(other, EntryRefusal::OtherGeneration { expected, found });
    }
    log.keep(2);
    log.checkpoint(12, 1);
    let base = Step(8);
    log.refuse(log.rewind(0), EntryRefusal::Forgotten { to: Step(0), base });
    log.refuse(log.rewind(4), EntryRefusal::NoCheckpoint { version: Step(4) });
    log.apply(log.rewind(8));
}

#[test]
fn a_planned_change_does_not_outlive_the_way_back() {
    let mut log = log();
    log.join(3);
    let mut plan = log.plan(&[1, 2, 3]);
    plan.from_step = Step(12);
    log.adopt(plan);
    log.apply(log.rewind(8));
    assert!(log.state.next_plan().is_none());
    assert_eq!(log.plan(&[1]).generation, Generation(3), "its number is not given again");
}

/// Versions that were dropped are collected anew, and what is open is not collected twice.
#[test]
fn checkpoints_on_the_way_forward_are_made_again() {
    let mut log = log();
    log.apply(log.rewind(4));
    log.run_plan(&[1, 2]);
    log.keep(3);
    assert!(log.pending_versions().is_empty());
    log.keep(1);
    assert_eq!(log.pending_versions(), [8]);
    log.checkpoint(8, 1);
    log.apply(log.rewind(8));
    log.run_plan(&[1, 2]);
    log.keep(4);
    assert_eq!((log.checkpoint_versions(), log.pending_versions()), (vec![4, 8], vec![12]));
}

fn rewind_to(log: &FixtureLog, to: u64) -> Entry {
    let reason = RewindReason::Ordered;
    Entry::Rewind { generation: log.state.generation(), to: Step(to), reason }
}

/// A step that was sealed before the order may come out otherwise: it is sealed anew.
#[test]
fn whoever_goes_back_by_order_is_free_from_there() {
    let mut log = log();
    log.apply(Entry::Job(JobChange::Pause));
    let (to, reason, dropped) = (Step(4), RewindReason::Ordered, vec![Step(8)]);
    let entry = rewind_to(&log, 4);
    assert_eq!(log.apply(entry), StateChange::Rewound { to, reason, dropped });
    let state = &log.state;
    assert_eq!((state.open_turn().step, state.history().head()), (Step(4), Step(4)));
    assert_eq!((state.ledger().updates(), log.checkpoint_versions()), (3, vec![4]));
    assert_eq!(log.state.job().map(|job| job.phase), Some(JobPhase::Paused), "it is held still");
    log.apply(Entry::Job(JobChange::Continue));
    log.run_plan(&[1, 2]);
    let seal = log.seal(Verdict::Skip);
    let StateChange::Sealed { is_repeated, .. } = log.apply(Entry::Seal(seal)) else { panic!() };
    assert!(!is_repeated, "it is not held against what was sealed before");
    log.keep(1);
    assert_eq!(log.state.history().head(), Step(6));
}

#[test]
fn only_a_job_that_is_held_goes_back_by_order() {
    let mut log = log();
    log.refuse(rewind_to(&log, 4), JobRefusal::NotHeld);
    let halt = JobChange::Halt(HaltReason::NothingToRestore);
    for (held, to) in [(JobChange::Pause, 8), (halt, 4)] {
        log.apply(Entry::Job(held));
        log.refuse(rewind_to(&log, 3), EntryRefusal::NoCheckpoint { version: Step(3) });
        let open = log.state.open_turn().step;
        let to_later = Step(open.0 + 1);
        let ahead = EntryRefusal::AheadOfLedger { to: to_later, open };
        log.refuse(rewind_to(&log, to_later.0), ahead);
        let entry = rewind_to(&log, to);
        log.apply(entry);
    }
    log.apply(rewind_to(&log, 0));
    assert_eq!((log.state.open_turn().step, log.state.history().head()), (Step(0), Step(0)));
    let mut empty = FixtureLog::empty();
    empty.refuse(rewind_to(&empty, 0), JobRefusal::Missing);
}

/// The beginning can be had from the seed, though what was sealed first is forgotten.
#[test]
fn the_beginning_is_gone_back_to_by_order_however_far_it_is() {
    let mut log = log();
    log.keep(2);
    log.checkpoint(12, 1);
    assert_eq!(log.state.history().base(), Step(8));
    log.apply(Entry::Job(JobChange::Pause));
    log.refuse(log.rewind(0), EntryRefusal::Forgotten { to: Step(0), base: Step(8) });
    log.apply(rewind_to(&log, 0));
    assert_eq!((log.state.history().base(), log.state.history().head()), (Step(0), Step(0)));
}
