//! Checkpoints: opened by a seal, collected layer by layer, kept so long.

use zbelastic_types::{Digest, Generation, LayerId, Step};

use crate::checkpoint::{CHECKPOINTS_MAX, PENDING_MAX};
use crate::entry::Entry;
use crate::fixture::{FixtureLog, LAYERS, all_layers, digest, digests, spec};
use crate::job::{CHECKPOINT_EVERY_MAX, JobSpec};
use crate::state::{EntryRefusal, StateChange};
use crate::validation::Verdict;

fn log() -> FixtureLog {
    FixtureLog::running(JobSpec { step_count: 1000, ..spec() }, &[1, 2])
}

fn durable(log: &FixtureLog, version: u64, layers: &[u32]) -> Entry {
    let layers = digests(layers.iter().map(|layer| LayerId(*layer)), version);
    log.durable(version, log.holder(1), layers)
}

#[test]
fn the_seal_before_a_version_opens_its_checkpoint() {
    let mut log = log();
    log.keep(3);
    assert!(log.pending_versions().is_empty());
    log.apply(Entry::Seal(log.seal(Verdict::Replay)));
    assert!(log.pending_versions().is_empty());
    log.keep(1);
    assert_eq!(log.pending_versions(), [4]);
    let pending = &log.state.pending()[0];
    assert_eq!(pending.ledger, *log.state.ledger(), "the ledger as it stands at version 4");
    log.keep(1);
    assert_ne!(log.state.pending()[0].ledger, *log.state.ledger());
}

#[test]
fn so_many_checkpoints_are_under_way_and_the_oldest_gives_way() {
    let mut log = log();
    log.keep(4 * PENDING_MAX as u64);
    assert_eq!(log.pending_versions(), [4, 8, 12, 16]);
    log.keep(4);
    assert_eq!(log.pending_versions(), [8, 12, 16, 20]);
    log.refuse(durable(&log, 4, &[0]), EntryRefusal::NoCheckpoint { version: Step(4) });
}

#[test]
fn layers_are_durable_with_one_digest() {
    let mut log = log();
    log.keep(4);
    let version = Step(4);
    assert_eq!(log.apply(durable(&log, 4, &[0, 2])), StateChange::Durable { version });
    log.apply(durable(&log, 4, &[0, 1]));
    let refused = |layer| EntryRefusal::DurableLayer { version, layer: LayerId(layer) };
    let wrong = vec![(LayerId(3), digest(3, 4)), (LayerId(2), Digest([0; 32]))];
    let holder = log.holder(1);
    log.refuse(log.durable(4, holder, wrong), refused(2));
    log.refuse(durable(&log, 4, &[3, LAYERS]), refused(LAYERS));
    let twice = vec![(LayerId(3), digest(3, 4)), (LayerId(3), digest(3, 5))];
    log.refuse(log.durable(4, holder, twice), refused(3));
    log.refuse(durable(&log, 8, &[0]), EntryRefusal::NoCheckpoint { version: Step(8) });
    assert_eq!(log.state.pending()[0].layers.len(), 3);
    log.lose(1);
    let layers = digests(all_layers(), 4);
    log.refuse(log.durable(4, holder, layers), EntryRefusal::NotAHolder { holder });
}

#[test]
fn what_was_written_before_a_rewind_does_not_count_after_it() {
    let mut log = log();
    log.keep(4);
    let before = durable(&log, 4, &[0]);
    log.apply(log.rewind(0));
    log.run_plan(&[1, 2]);
    log.keep(4);
    let (expected, found) = (Generation(2), Generation(1));
    log.refuse(before, EntryRefusal::OtherGeneration { expected, found });
    log.apply(durable(&log, 4, &[0]));
}

/// R5 as far as the state goes: a checkpoint has all layers of a sealed version, with its ledger.
#[test]
fn r5_a_checkpoint_is_complete_or_not_there() {
    let mut log = log();
    let version = Step(4);
    let checkpoint = Entry::Checkpoint { version };
    log.refuse(checkpoint.clone(), EntryRefusal::NoCheckpoint { version });
    log.keep(4);
    log.apply(durable(&log, 4, &[0, 1, 3]));
    let incomplete = EntryRefusal::Incomplete { version, expected: LAYERS, found: 3 };
    log.refuse(checkpoint.clone(), incomplete);
    log.apply(durable(&log, 4, &[2]));
    log.keep(1);
    let dropped = Vec::new();
    assert_eq!(log.apply(checkpoint.clone()), StateChange::Checkpoint { version, dropped });
    log.refuse(checkpoint, EntryRefusal::NoCheckpoint { version });
    let found = &log.state.checkpoints()[0];
    assert!(found.layers.iter().copied().eq((0..LAYERS).map(|layer| digest(layer, 4))));
    assert_eq!((found.ledger.open_turn().step, found.ledger.updates()), (version, 4));
}

#[test]
fn so_many_checkpoints_are_kept_and_history_ends_at_the_oldest() {
    let mut log = log();
    let mut check = |version: u64, dropped: &[u64], kept: &[u64], base: u64| {
        log.keep(4);
        let dropped = dropped.iter().copied().map(Step).collect();
        let expected = StateChange::Checkpoint { version: Step(version), dropped };
        assert_eq!(log.checkpoint(version, 2), expected);
        assert_eq!(log.checkpoint_versions(), kept);
        assert_eq!(log.state.history().base(), Step(base));
        let known = |step| log.state.history().logged(Step(step)).is_some();
        assert!(known(base) && known(version - 1) && !known(version));
        assert!(base == 0 || !known(base - 1));
    };
    check(4, &[], &[4], 0);
    check(8, &[], &[4, 8], 0);
    check(12, &[4], &[8, 12], 8);
    check(16, &[8], &[12, 16], 12);
}

#[test]
fn a_newer_checkpoint_gives_up_the_older_ones_under_way() {
    let mut log = log();
    log.keep(12);
    log.checkpoint(8, 1);
    assert_eq!((log.checkpoint_versions(), log.pending_versions()), (vec![8], vec![12]));
}

#[test]
fn checkpoints_kept_have_a_limit_whatever_is_configured() {
    let spec =
        JobSpec { step_count: 1000, checkpoints_kept: u32::MAX, checkpoint_every: 1, ..spec() };
    let mut log = FixtureLog::running(spec, &[1]);
    for version in 1..=CHECKPOINTS_MAX as u64 + 1 {
        log.keep(1);
        log.checkpoint(version, 1);
    }
    assert_eq!(log.state.checkpoints().len(), CHECKPOINTS_MAX);
    assert_eq!(log.checkpoint_versions()[0], 2);
}

#[test]
fn without_an_interval_there_is_the_last_version_alone() {
    let mut log = FixtureLog::running(JobSpec { checkpoint_every: 0, ..spec() }, &[1]);
    log.keep(11);
    assert!(log.pending_versions().is_empty());
    log.keep(1);
    assert_eq!(log.pending_versions(), [12]);
}

/// Holders of the plan before were writing it, and were stopped.
#[test]
fn a_plan_that_begins_with_a_checkpoint_under_way_takes_it_over() {
    let mut log = log();
    log.keep(4);
    log.apply(durable(&log, 4, &[0]));
    log.run_plan(&[1, 2]);
    assert_eq!(log.pending_versions(), [4]);
    assert_eq!(log.state.pending()[0].generation(), Generation(2));
    log.apply(durable(&log, 4, &[1, 2, 3]));
    log.apply(Entry::Checkpoint { version: Step(4) });
    assert_eq!(log.checkpoint_versions(), [4]);
}

/// The one checkpoint failed, and nothing can be sealed before there is another.
#[test]
fn a_run_that_waits_for_a_checkpoint_gets_one_with_the_next_plan() {
    let every = CHECKPOINT_EVERY_MAX;
    let spec = JobSpec { step_count: 1 << 20, checkpoint_every: every, ..spec() };
    let mut log = FixtureLog::running(spec, &[1, 2]);
    log.keep(every - 1);
    log.run_plan(&[1, 2]);
    assert_eq!(log.pending_versions(), [], "there is time");
    while log.state.training().can_remember_seal() {
        log.keep(1);
    }
    let open = log.state.open_turn().step.0;
    log.run_plan(&[1, 2]);
    assert!(log.pending_versions().contains(&open), "{:?}", log.pending_versions());
    log.checkpoint(open, 1);
    assert!(log.state.training().can_remember_seal());
}
