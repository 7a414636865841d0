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
fn timed() -> JobSpec {
    JobSpec { checkpoint_every: 0, checkpoint_ticks: TICKS, step_count: 1000, ..spec() }
}

fn keep(version: u64) -> Entry {
    Entry::Keep { version: Step(version) }
}

/// A step is reported and sealed. What was proposed.
fn step(bench: &mut DutiesHarness) -> Vec<Entry> {
    bench.report_all();
    bench.act()
}

/// All nodes that stand at a stage have written a version, for which a device was busy for so long.
pub(super) fn save(bench: &mut DutiesHarness, version: u64, busy_milliticks: u32) {
    for stage in bench.plan().stage_indices() {
        let plan = bench.plan();
        let (holder, generation) = (plan.stages[stage.index()], plan.generation);
        let layers = digests(plan.layers_of(stage), version);
        let told = (layers, busy_milliticks / (stage.0 + 1));
        let state = &bench.log.state;
        let saved = bench.duties.handle_saved(state, holder, (Step(version), generation), told);
        saved.expect("it is awaited");
    }
    let proposed = bench.act();
    assert!(proposed.contains(&Entry::Checkpoint { version: Step(version) }), "{proposed:?}");
}

#[test]
fn the_next_version_becomes_a_checkpoint_when_so_much_time_has_passed() {
    let mut bench = DutiesHarness::running(timed(), &[1, 2]);
    step(&mut bench);
    bench.tick(TICKS - 1, &[1, 2]);
    assert_eq!(bench.act(), []);
    bench.tick(1, &[1, 2]);
    assert_eq!(bench.act(), [keep(2)]);
    assert_eq!((bench.log.state.due(), bench.log.pending_versions()), (Some(Step(2)), vec![]));
    step(&mut bench);
    assert_eq!((bench.log.state.due(), bench.log.pending_versions()), (None, vec![2]));
    save(&mut bench, 2, 0);
    assert_eq!(bench.log.checkpoint_versions(), [2]);
    // From there the time is counted anew.
    bench.tick(TICKS - 1, &[1, 2]);
    assert_eq!(bench.act(), []);
    bench.tick(1, &[1, 2]);
    assert_eq!(bench.act(), [keep(3)]);
}

#[test]
fn what_a_checkpoint_costs_stretches_the_time_to_the_next() {
    let mut bench = DutiesHarness::running(timed(), &[1, 2]);
    bench.tick(TICKS, &[1, 2]);
    assert_eq!(bench.act(), [keep(1)]);
    step(&mut bench);
    // Half a tick, and the other device less.
    save(&mut bench, 1, 1500);
    let interval = (1500 * COST_SHARE / 1000) as u32;
    assert!(interval > TICKS);
    for _ in 0..(interval - 1) / TICKS {
        bench.tick(TICKS, &[1, 2]);
        assert!(step(&mut bench).iter().all(|entry| matches!(entry, Entry::Seal(_))));
    }
    bench.tick((interval - 1) % TICKS, &[1, 2]);
    assert_eq!(bench.act(), []);
    bench.tick(1, &[1, 2]);
    assert!(matches!(bench.act()[..], [Entry::Keep { .. }]));
}

#[test]
fn one_that_is_under_way_is_waited_for_as_long_as_it_gets_on() {
    let mut bench = DutiesHarness::running(timed(), &[1, 2]);
    bench.tick(TICKS, &[1, 2]);
    assert_eq!(bench.act(), [keep(1)]);
    bench.tick(TICKS, &[1, 2]);
    assert_eq!(bench.act(), [], "its version is not the open one yet");
    step(&mut bench);
    bench.tick(TICKS - 1, &[1, 2]);
    assert_eq!(bench.act(), []);
    // No worker wrote anything for so long: it is given up for another.
    bench.tick(1, &[1, 2]);
    assert_eq!(bench.act(), [keep(2)]);
}

/// While a seal is under way it is not known which version is next.
#[test]
fn nothing_is_kept_while_a_seal_is_under_way_or_nothing_runs() {
    let mut bench = DutiesHarness::running(timed(), &[1, 2]);
    bench.report_all();
    let Some(crate::duty::LeaderAction::Propose(seal)) = bench.decide() else {
        panic!("it is due")
    };
    bench.duties.on_proposed(bench.log.state.applied() + 1, &seal);
    bench.tick(TICKS, &[1, 2]);
    assert_eq!(bench.decide(), None);
    bench.agree(seal);
    assert_eq!(bench.act(), [keep(2)]);
    let mut bench = DutiesHarness::running(timed(), &[1, 2]);
    bench.agree(Entry::Job(JobChange::Pause));
    bench.tick(2 * TICKS, &[1, 2]);
    assert_eq!(bench.act(), []);
    let mut bench = DutiesHarness::running(timed(), &[1, 2]);
    bench.agree(Entry::Members(vec![lost(bench.log.holder(2))]));
    bench.tick(TICKS, &[1]);
    assert!(!bench.act().iter().any(|entry| matches!(entry, Entry::Keep { .. })));
}

#[test]
fn who_applies_it_checks_that_it_is_the_next() {
    let mut bench = DutiesHarness::running(timed(), &[1, 2]);
    let expected = Step(1);
    for found in [Step(0), Step(2)] {
        let refusal = EntryRefusal::NotNext { expected, found };
        bench.log.refuse(Entry::Keep { version: found }, refusal);
    }
    bench.log.apply(keep(1));
    bench.log.keep(1);
    assert_eq!(bench.log.pending_versions(), [1]);
    let version = Step(1);
    let mut never = DutiesHarness::running(spec(), &[1, 2]);
    never.log.refuse(keep(1), EntryRefusal::NoCheckpoint { version });
}

/// What is due is not written under a plan that the run goes back to before it.
#[test]
fn a_way_back_forgets_what_is_due() {
    let mut bench = DutiesHarness::running(timed(), &[1, 2]);
    bench.log.apply(keep(1));
    let entry = bench.log.rewind(0);
    bench.log.apply(entry);
    assert_eq!(bench.log.state.due(), None);
}
