//! Runs that ended: kept until a person removes them, whatever begins after them.

use std::sync::Arc;

use zbelastic_types::{Digest, RunId, Step};

use crate::entry::Entry;
use crate::fixture::{CLUSTER, FixtureLog, spec};
use crate::job::{JobChange, JobPhase, JobRefusal, JobSpec, RunOrigin};
use crate::run::{RUNS_MAX, is_run_name, run_name_of};
use crate::run_record::RunRecord;
use crate::state::{State, StateChange};

/// A run of the usual kind with another name and configuration.
fn run(number: usize) -> JobSpec {
    let mut config = Digest([8; 32]);
    config.0[..8].copy_from_slice(&(number as u64).to_le_bytes());
    JobSpec { name: format!("run-{number}"), config, ..spec() }
}

fn start(spec: JobSpec) -> Entry {
    Entry::Job(JobChange::Start(Arc::new(spec)))
}

/// Trains so many steps of the job that has just begun, and ends it.
fn train(log: &mut FixtureLog, steps: u64) {
    log.run_plan(&[1]);
    log.keep(steps);
    log.checkpoint(steps, 1);
    if steps < 12 {
        log.apply(Entry::Job(JobChange::Stop));
    }
}

fn kept(state: &State) -> Vec<(u64, u64)> {
    let kept = |ended: &RunRecord| (ended.run().0, ended.checkpoint.version.0);
    state.ended().iter().map(kept).collect()
}

#[test]
fn a_new_run_keeps_the_last_checkpoint_of_each_before_it() {
    let mut log = FixtureLog::running(spec(), &[1]);
    log.keep(8);
    log.checkpoint(4, 1);
    log.checkpoint(8, 1);
    log.apply(Entry::Job(JobChange::Stop));
    let begun = log.apply(start(run(2)));
    assert_eq!(begun, StateChange::Job { phase: JobPhase::Running, dropped: vec![Step(4)] });
    train(&mut log, 12);
    log.apply(start(run(3)));
    assert_eq!(kept(&log.state), [(1, 8), (2, 12)]);
    assert_eq!(log.state.job().map(|job| job.spec.run), Some(RunId(3)));
    let phases: Vec<JobPhase> = log.state.ended().iter().map(|ended| ended.phase).collect();
    assert_eq!(phases, [JobPhase::Stopped, JobPhase::Done]);
    log.apply(Entry::Job(JobChange::Stop));
    log.apply(start(JobSpec { config: Digest([4; 32]), ..run(3) }));
    assert_eq!(
        kept(&log.state),
        [(1, 8), (2, 12)],
        "of a run without a checkpoint nothing is left"
    );
    assert_eq!(log.state.job().map(|job| job.spec.run), Some(RunId(4)), "no number comes twice");
}

#[test]
fn names_are_of_one_run() {
    let mut log = FixtureLog::running(spec(), &[1]);
    log.keep(12);
    log.checkpoint(12, 1);
    let taken = |name: &str| JobRefusal::NameTaken { name: name.to_owned() };
    let namesake = JobSpec { name: spec().name, ..run(2) };
    log.refuse(start(namesake.clone()), taken("a-run"));
    log.apply(start(run(2)));
    train(&mut log, 4);
    log.refuse(start(namesake), taken("a-run"));
    log.refuse(start(JobSpec { name: "run-2".to_owned(), ..run(3) }), taken("run-2"));
    for name in ["", "A", ".hidden", "a/b", "a b", "-a", "\u{e4}", &"a".repeat(64)] {
        assert!(!is_run_name(name), "{name}");
        let name = name.to_owned();
        log.refuse(start(JobSpec { name: name.clone(), ..run(3) }), JobRefusal::Name { name });
    }
    for name in ["a", "0", "llama-3.1_8b", &"a".repeat(63)] {
        assert!(is_run_name(name), "{name}");
        assert_eq!(run_name_of(name), name);
    }
    assert_eq!(run_name_of("My run (2).v1"), "my-run--2-.v1");
    assert_eq!(run_name_of("../\u{e4}"), "run");
    assert!(is_run_name(&run_name_of(&"x ".repeat(99))));
}

#[test]
fn a_run_that_ended_goes_when_it_is_removed_and_none_that_is_under_way() {
    let mut log = FixtureLog::running(spec(), &[1]);
    log.keep(12);
    let remove = |run| Entry::Job(JobChange::Remove(RunId(run)));
    log.refuse(remove(1), JobRefusal::UnderWay);
    log.checkpoint(12, 1);
    log.apply(start(run(2)));
    train(&mut log, 12);
    log.refuse(remove(3), JobRefusal::NoRun { run: RunId(3) });
    assert_eq!(log.apply(remove(1)), StateChange::Removed { run: RunId(1) });
    assert_eq!(kept(&log.state), []);
    assert_eq!(log.apply(remove(2)), StateChange::Removed { run: RunId(2) });
    assert!(log.state.job().is_none() && log.state.checkpoints().is_empty());
    assert!(log.state.plan().is_none(), "workers let go of it");
    log.refuse(remove(2), JobRefusal::NoRun { run: RunId(2) });
    log.apply(start(spec()));
    assert_eq!(log.state.job().map(|job| job.spec.run), Some(RunId(3)));
    train(&mut log, 12);
}

#[test]
fn runs_are_kept_up_to_a_number_and_a_recovered_cluster_has_them() {
    let mut log = FixtureLog::running(spec(), &[1]);
    log.keep(12);
    log.checkpoint(12, 1);
    for number in 2..=RUNS_MAX + 1 {
        log.apply(start(run(number)));
        train(&mut log, 4);
    }
    log.refuse(start(run(RUNS_MAX + 2)), JobRefusal::TooManyRuns);
    let (spec, last) = (log.state.job().expect("there is one").spec.clone(), kept(&log.state));
    let checkpoint = log.state.checkpoints().last().expect("there is one").clone();
    let recovered = State::recovered(CLUSTER, spec, checkpoint);
    let recovered = recovered.held_as(JobPhase::Stopped);
    let recovered =
        recovered.with_ended(log.state.ended().to_vec(), log.state.training().runs().run_last());
    assert_eq!(kept(&recovered), last);
    let mut log = FixtureLog { state: recovered };
    log.apply(Entry::Job(JobChange::Remove(RunId(1))));
    log.apply(start(run(RUNS_MAX + 2)));
    assert_eq!(log.state.job().map(|job| job.spec.run.0), Some(RUNS_MAX as u64 + 2));
}

/// A run that goes on from another.
fn branch(number: usize, parent: u64, version: u64) -> JobSpec {
    let state = Digest([6; 32]);
    let from = Some(RunOrigin { run: RunId(parent), version: Step(version), state });
    JobSpec { from, ..run(number) }
}

/// A run that was stopped at its checkpoint of step 8.
fn stopped() -> FixtureLog {
    let mut log = FixtureLog::running(spec(), &[1]);
    log.keep(8);
    log.checkpoint(4, 1);
    log.checkpoint(8, 1);
    log.apply(Entry::Job(JobChange::Stop));
    log
}

#[test]
fn a_branch_begins_with_the_state_of_its_parents_last_checkpoint() {
    let mut log = stopped();
    let parent = log.state.checkpoints().last().expect("of step 8").clone();
    log.apply(start(branch(2, 1, 8)));
    assert_eq!(kept(&log.state), [(1, 8)], "the parent is kept as it was");
    assert_eq!(log.state.checkpoints(), std::slice::from_ref(&parent));
    assert_eq!(log.state.open_turn().step, Step(8));
    assert_eq!(log.state.open_turn().generation, log.state.generation());
    assert_eq!(log.state.ledger().updates(), parent.ledger.updates());
    let history = log.state.history();
    assert_eq!((history.base(), history.head()), (Step(8), Step(8)));
    let spec = log.state.job().expect("it began").spec.clone();
    assert_eq!(
        (spec.run, spec.run_of(Step(8)), spec.run_of(Step(9))),
        (RunId(2), RunId(1), RunId(2))
    );
    log.run_plan(&[1]);
    log.keep(4);
    log.checkpoint(12, 1);
    assert_eq!(log.state.job().map(|job| job.phase), Some(JobPhase::Done));
    log.apply(start(run(3)));
    assert_eq!(kept(&log.state), [(1, 8), (2, 12)]);
}

#[test]
fn a_branch_without_a_checkpoint_of_its_own_holds_its_parent_and_leaves_nothing() {
    let mut log = stopped();
    log.apply(start(branch(2, 1, 8)));
    let remove = |run| Entry::Job(JobChange::Remove(RunId(run)));
    log.refuse(remove(1), JobRefusal::Needed { name: "run-2".to_owned() });
    log.apply(Entry::Job(JobChange::Stop));
    log.apply(start(branch(3, 1, 8)));
    assert_eq!(kept(&log.state), [(1, 8)], "the second left nothing");
    log.run_plan(&[1]);
    log.keep(4);
    log.refuse(remove(1), JobRefusal::Needed { name: "run-3".to_owned() });
    log.checkpoint(12, 1);
    log.apply(remove(1));
    log.apply(start(run(4)));
    assert_eq!(kept(&log.state), [(3, 12)]);
}

#[test]
fn a_branch_of_what_is_not_kept_is_refused() {
    let mut log = FixtureLog::running(spec(), &[1]);
    log.keep(8);
    log.checkpoint(8, 1);
    let origin = |run, version| JobRefusal::Origin { run: RunId(run), version: Step(version) };
    log.refuse(start(branch(2, 1, 8)), origin(1, 8));
    log.apply(Entry::Job(JobChange::Stop));
    log.refuse(start(branch(2, 1, 4)), origin(1, 4));
    log.refuse(start(branch(2, 7, 8)), origin(7, 8));
    let other = JobSpec { layer_tensors: vec![1; 3], layer_bytes: Vec::new(), ..branch(2, 1, 8) };
    log.refuse(start(other), JobRefusal::OtherModel { run: RunId(1) });
    let none = JobRefusal::NoStepsLeft { version: Step(8), step_count: 8 };
    log.refuse(start(JobSpec { step_count: 8, ..branch(2, 1, 8) }), none);
    log.apply(start(branch(2, 1, 8)));
    log.run_plan(&[1]);
    log.keep(1);
    log.apply(Entry::Job(JobChange::Pause));
    let back = |to| log.state.training().check_restore(Step(to));
    assert_eq!(back(8), Ok(()));
    let refused = back(0).expect_err("it has no such beginning");
    assert_eq!(refused, crate::state::EntryRefusal::NoCheckpoint { version: Step(0) });
}
