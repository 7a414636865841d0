//! Runs that ended: kept until somebody removes them, whatever begins after them.

use std::sync::Arc;

use zbelastic_types::{Digest, RunId, Step};

use crate::entry::Entry;
use crate::fixture::{CLUSTER, Log, spec};
use crate::job::{JobChange, JobPhase, JobRefusal, JobSpec};
use crate::run::{RUNS_MAX, RunRecord, is_run_name, run_name_of};
use crate::state::{Change, State};

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
fn train(log: &mut Log, steps: u64) {
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
    let mut log = Log::running(spec(), &[1]);
    log.keep(8);
    log.checkpoint(4, 1);
    log.checkpoint(8, 1);
    log.apply(Entry::Job(JobChange::Stop));
    let begun = log.apply(start(run(2)));
    assert_eq!(begun, Change::Job { phase: JobPhase::Running, dropped: vec![Step(4)] });
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
    let mut log = Log::running(spec(), &[1]);
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
    let mut log = Log::running(spec(), &[1]);
    log.keep(12);
    let remove = |run| Entry::Job(JobChange::Remove(RunId(run)));
    log.refuse(remove(1), JobRefusal::UnderWay);
    log.checkpoint(12, 1);
    log.apply(start(run(2)));
    train(&mut log, 12);
    log.refuse(remove(3), JobRefusal::NoRun { run: RunId(3) });
    assert_eq!(log.apply(remove(1)), Change::Removed { run: RunId(1) });
    assert_eq!(kept(&log.state), []);
    assert_eq!(log.apply(remove(2)), Change::Removed { run: RunId(2) });
    assert!(log.state.job().is_none() && log.state.checkpoints().is_empty());
    assert!(log.state.plan().is_none(), "workers let go of it");
    log.refuse(remove(2), JobRefusal::NoRun { run: RunId(2) });
    log.apply(start(spec()));
    assert_eq!(log.state.job().map(|job| job.spec.run), Some(RunId(3)));
    train(&mut log, 12);
}

#[test]
fn runs_are_kept_up_to_a_number_and_a_recovered_cluster_has_them() {
    let mut log = Log::running(spec(), &[1]);
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
    let recovered = recovered.with_ended(log.state.ended().to_vec(), log.state.run_last());
    assert_eq!(kept(&recovered), last);
    let mut log = Log { state: recovered };
    log.apply(Entry::Job(JobChange::Remove(RunId(1))));
    log.apply(start(run(RUNS_MAX + 2)));
    assert_eq!(log.state.job().map(|job| job.spec.run.0), Some(RUNS_MAX as u64 + 2));
}
