//! A version becomes a checkpoint because time has passed.

use zbelastic_types::Step;

use super::harness::DutiesHarness;
use crate::duty::COST_SHARE;
use crate::entry::Entry;
use crate::fixture::{digests, lost, spec};
use crate::job::{JobChange, JobSpec};
use crate::state::EntryRefusal;

const TICKS: u32 = 20;

/// No checkpoint before the end but by time.
fn timed_spec() -> JobSpec {
    JobSpec { checkpoint_every: 0, checkpoint_ticks: TICKS, step_count: 1000, ..spec() }
}

fn keep(version: u64) -> Entry {
    Entry::Keep { version: Step(version) }
}

/// A step is reported and sealed. What was proposed.
fn step(harness: &mut DutiesHarness) -> Vec<Entry> {
    harness.report_all();
    harness.act()
}

/// All nodes that stand at a stage have written a version, for which a device was busy for so long.
pub(super) fn save(harness: &mut DutiesHarness, version: u64, busy_milliticks: u32) {
    for stage in harness.plan().stage_indices() {
        let plan = harness.plan();
        let (holder, generation) = (plan.stages[stage.index()], plan.generation);
        let layers = digests(plan.layers_of(stage), version);
        let reported = (layers, busy_milliticks / (stage.0 + 1));
        let state = &harness.log.state;
        let saved =
            harness.duties.handle_saved(state, holder, (Step(version), generation), reported);
        saved.expect("it is awaited");
    }
    let proposed = harness.act();
    assert!(proposed.contains(&Entry::Checkpoint { version: Step(version) }), "{proposed:?}");
}

#[test]
fn the_next_version_becomes_a_checkpoint_when_so_much_time_has_passed() {
    let mut harness = DutiesHarness::running(timed_spec(), &[1, 2]);
    step(&mut harness);
    harness.tick(TICKS - 1, &[1, 2]);
    assert_eq!(harness.act(), []);
    harness.tick(1, &[1, 2]);
    assert_eq!(harness.act(), [keep(2)]);
    assert_eq!(
        (harness.log.state.training().checkpoints().due(), harness.log.pending_versions()),
        (Some(Step(2)), vec![])
    );
    step(&mut harness);
    assert_eq!(
        (harness.log.state.training().checkpoints().due(), harness.log.pending_versions()),
        (None, vec![2])
    );
    save(&mut harness, 2, 0);
    assert_eq!(harness.log.checkpoint_versions(), [2]);
    // From there the time is counted anew.
    harness.tick(TICKS - 1, &[1, 2]);
    assert_eq!(harness.act(), []);
    harness.tick(1, &[1, 2]);
    assert_eq!(harness.act(), [keep(3)]);
}

#[test]
fn what_a_checkpoint_costs_stretches_the_time_to_the_next() {
    let mut harness = DutiesHarness::running(timed_spec(), &[1, 2]);
    harness.tick(TICKS, &[1, 2]);
    assert_eq!(harness.act(), [keep(1)]);
    step(&mut harness);
    // Half a tick, and the other device less.
    save(&mut harness, 1, 1500);
    let interval = (1500 * COST_SHARE / 1000) as u32;
    assert!(interval > TICKS);
    for _ in 0..(interval - 1) / TICKS {
        harness.tick(TICKS, &[1, 2]);
        assert!(step(&mut harness).iter().all(|entry| matches!(entry, Entry::Seal(_))));
    }
    harness.tick((interval - 1) % TICKS, &[1, 2]);
    assert_eq!(harness.act(), []);
    harness.tick(1, &[1, 2]);
    assert!(matches!(harness.act()[..], [Entry::Keep { .. }]));
}

#[test]
fn one_that_is_under_way_is_waited_for_as_long_as_it_gets_on() {
    let mut harness = DutiesHarness::running(timed_spec(), &[1, 2]);
    harness.tick(TICKS, &[1, 2]);
    assert_eq!(harness.act(), [keep(1)]);
    harness.tick(TICKS, &[1, 2]);
    assert_eq!(harness.act(), [], "its version is not the open one yet");
    step(&mut harness);
    harness.tick(TICKS - 1, &[1, 2]);
    assert_eq!(harness.act(), []);
    // No worker wrote anything for so long: it is given up for another.
    harness.tick(1, &[1, 2]);
    assert_eq!(harness.act(), [keep(2)]);
}

/// While a seal is under way it is not known which version is next.
#[test]
fn nothing_is_kept_while_a_seal_is_under_way_or_nothing_runs() {
    let mut harness = DutiesHarness::running(timed_spec(), &[1, 2]);
    harness.report_all();
    let Some(crate::duty::LeaderAction::Propose(seal)) = harness.decide() else {
        panic!("it is due")
    };
    harness.duties.on_proposed(harness.log.state.applied() + 1, &seal);
    harness.tick(TICKS, &[1, 2]);
    assert_eq!(harness.decide(), None);
    harness.agree(seal);
    assert_eq!(harness.act(), [keep(2)]);
    let mut harness = DutiesHarness::running(timed_spec(), &[1, 2]);
    harness.agree(Entry::Job(JobChange::Pause));
    harness.tick(2 * TICKS, &[1, 2]);
    assert_eq!(harness.act(), []);
    let mut harness = DutiesHarness::running(timed_spec(), &[1, 2]);
    harness.agree(Entry::Members(vec![lost(harness.log.holder(2))]));
    harness.tick(TICKS, &[1]);
    assert!(!harness.act().iter().any(|entry| matches!(entry, Entry::Keep { .. })));
}

#[test]
fn who_applies_it_checks_that_it_is_the_next() {
    let mut harness = DutiesHarness::running(timed_spec(), &[1, 2]);
    let expected = Step(1);
    for found in [Step(0), Step(2)] {
        let refusal = EntryRefusal::NotNext { expected, found };
        harness.log.refuse(Entry::Keep { version: found }, refusal);
    }
    harness.log.apply(keep(1));
    harness.log.keep(1);
    assert_eq!(harness.log.pending_versions(), [1]);
    let version = Step(1);
    let mut never = DutiesHarness::running(spec(), &[1, 2]);
    never.log.refuse(keep(1), EntryRefusal::NoCheckpoint { version });
}

/// What is due is not written under a plan that the run goes back to before it.
#[test]
fn a_way_back_forgets_what_is_due() {
    let mut harness = DutiesHarness::running(timed_spec(), &[1, 2]);
    harness.log.apply(keep(1));
    let entry = harness.log.rewind(0);
    harness.log.apply(entry);
    assert_eq!(harness.log.state.training().checkpoints().due(), None);
}
