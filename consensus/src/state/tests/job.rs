//! The job: begun, held, done.

use std::sync::Arc;

use zbelastic_types::{Digest, Step};

use crate::entry::Entry;
use crate::fixture::{CLUSTER, FixtureLog, spec};
use crate::job::{
    CHECKPOINT_EVERY_MAX, COPIES_MAX, DOCUMENT_BYTES_MAX, HaltReason, JobChange, JobPhase,
    JobRefusal, JobSpec, LAYERS_MAX, REPLAYS_MAX, STAGES_MAX, TENSORS_MAX,
};
use crate::state::{State, StateChange};
use crate::validation::{GuardPolicy, Verdict};

fn start(spec: JobSpec) -> Entry {
    Entry::Job(JobChange::Start(Arc::new(spec)))
}

/// Another job than the usual one.
fn other() -> JobSpec {
    JobSpec { name: "another".to_owned(), config: Digest([8; 32]), ..spec() }
}

fn phase(log: &FixtureLog) -> JobPhase {
    log.state.job().expect("there is a job").phase
}

#[test]
fn a_job_is_of_a_size_that_a_cluster_can_live_with() {
    let check = |spec: JobSpec, expected: Result<(), JobRefusal>| {
        assert_eq!(spec.check(), expected);
        if let Err(refusal) = expected {
            FixtureLog::empty().refuse(start(spec), refusal);
        }
    };
    check(spec(), Ok(()));
    let size = |layers, tensors| Err(JobRefusal::Size { layers, tensors });
    check(JobSpec { layer_tensors: vec![], ..spec() }, size(0, 0));
    check(JobSpec { layer_tensors: vec![1; LAYERS_MAX], ..spec() }, Ok(()));
    let layers = LAYERS_MAX + 1;
    check(JobSpec { layer_tensors: vec![1; layers], ..spec() }, size(layers, layers as u64));
    check(JobSpec { layer_tensors: vec![TENSORS_MAX], ..spec() }, Ok(()));
    let layer_bytes = |count| JobSpec { layer_bytes: vec![1; count], ..spec() };
    let expected = spec().layer_tensors.len();
    check(layer_bytes(expected), Ok(()));
    for found in [expected - 1, expected + 1] {
        check(layer_bytes(found), Err(JobRefusal::LayerBytes { expected, found }));
    }
    let empty = JobSpec { layer_tensors: vec![1, 0, 1], ..spec() };
    check(empty, Err(JobRefusal::Zero { field: "layer_tensors" }));
    let tensors = [TENSORS_MAX, 1].to_vec();
    check(JobSpec { layer_tensors: tensors, ..spec() }, size(2, u64::from(TENSORS_MAX) + 1));
    check(JobSpec { layer_tensors: vec![u32::MAX; 2], ..spec() }, size(2, 2 * u64::from(u32::MAX)));
    let zero = |field| Err(JobRefusal::Zero { field });
    check(JobSpec { microbatch_count: 0, ..spec() }, zero("microbatch_count"));
    check(JobSpec { step_count: 0, ..spec() }, zero("step_count"));
    check(JobSpec { stages_max: 0, ..spec() }, zero("stages_max"));
    check(JobSpec { workers_min: 0, ..spec() }, zero("workers_min"));
    check(JobSpec { lost_after_ticks: 0, ..spec() }, zero("lost_after_ticks"));
    check(JobSpec { lost_after_ticks: 1, settle_ticks: 0, ..spec() }, Ok(()));
    check(JobSpec { workers_min: 4, ..spec() }, Ok(()));
    let workers = JobRefusal::Workers { found: 5, stages_max: 4 };
    check(JobSpec { workers_min: 5, ..spec() }, Err(workers));
    let document = |bytes| JobSpec { document: vec![1; bytes], ..spec() };
    check(document(DOCUMENT_BYTES_MAX), Ok(()));
    let found = DOCUMENT_BYTES_MAX + 1;
    check(document(found), Err(JobRefusal::Document { found }));
    check(JobSpec { checkpoints_kept: 0, ..spec() }, zero("checkpoints_kept"));
    let stages = STAGES_MAX as u32;
    check(JobSpec { stages_max: stages, ..spec() }, Ok(()));
    let found = stages + 1;
    check(JobSpec { stages_max: found, ..spec() }, Err(JobRefusal::Stages { found }));
    let replays = |replays_max| {
        let policy = GuardPolicy { replays_max, ..spec().policy };
        JobSpec { policy, ..spec() }
    };
    check(replays(REPLAYS_MAX), Ok(()));
    let found = REPLAYS_MAX + 1;
    check(replays(found), Err(JobRefusal::Replays { found }));
    (0..=COPIES_MAX).for_each(|copies| check(JobSpec { copies, ..spec() }, Ok(())));
    let found = COPIES_MAX + 1;
    check(JobSpec { copies: found, ..spec() }, Err(JobRefusal::Copies { found }));
    let every = CHECKPOINT_EVERY_MAX;
    check(JobSpec { checkpoint_every: every, ..spec() }, Ok(()));
    let found = every + 1;
    check(JobSpec { checkpoint_every: found, ..spec() }, Err(JobRefusal::Every { found }));
}

#[test]
fn without_a_job_nothing_is_trained() {
    let mut log = FixtureLog::empty();
    let holder = log.join(1);
    let seal = Entry::Seal(crate::fixture::seal_at(log.state.open_turn(), Verdict::Keep, 1));
    let durable = log.durable(4, holder, Vec::new());
    let entries = [
        Entry::Job(JobChange::Pause),
        Entry::Job(JobChange::Continue),
        Entry::Job(JobChange::Halt(HaltReason::Untrusted)),
        Entry::Adopt(Box::new(FixtureLog::with_job(spec(), &[1]).plan(&[1]))),
        seal,
        durable,
        Entry::Checkpoint { version: Step(4) },
        log.rewind(0),
    ];
    for entry in entries {
        log.refuse(entry, JobRefusal::Missing);
    }
}

#[test]
fn a_job_is_held_and_goes_on() {
    let mut log = FixtureLog::with_job(spec(), &[1]);
    let mut check = |change: JobChange, expected: JobPhase| {
        assert_eq!(
            log.apply(Entry::Job(change)),
            StateChange::Job { phase: expected, dropped: Vec::new() }
        );
        assert_eq!(log.state.running_spec().is_some(), expected == JobPhase::Running);
    };
    check(JobChange::Pause, JobPhase::Paused);
    check(JobChange::Continue, JobPhase::Running);
    let halt = HaltReason::DiffersFromLog { step: Step(3) };
    check(JobChange::Halt(halt), JobPhase::Halted(halt));
    check(JobChange::Halt(HaltReason::Untrusted), JobPhase::Halted(HaltReason::Untrusted));
    check(JobChange::Continue, JobPhase::Running);
    check(JobChange::Pause, JobPhase::Paused);
    check(JobChange::Halt(halt), JobPhase::Halted(halt));
    log.refuse(Entry::Job(JobChange::Pause), JobRefusal::Halted { reason: halt });
    log.refuse(start(spec()), JobRefusal::Same);
    log.refuse(start(other()), JobRefusal::UnderWay);
}

/// The last step from both sides, and the last layer; what is done stays done.
#[test]
fn a_job_is_done_when_the_checkpoint_behind_its_last_step_is_durable() {
    let mut log = FixtureLog::running(spec(), &[1]);
    log.keep(11);
    assert!(!log.state.training().is_all_sealed());
    log.keep(1);
    assert!(log.state.training().is_all_sealed());
    log.refuse(Entry::Seal(log.seal(Verdict::Keep)), JobRefusal::Done);
    log.save(12, 1);
    assert_eq!(phase(&log), JobPhase::Running);
    log.checkpoint(12, 1);
    assert_eq!(phase(&log), JobPhase::Done);
    assert!(!log.state.training().is_all_sealed(), "nothing is missing any more");
    for change in [JobChange::Pause, JobChange::Continue, JobChange::Halt(HaltReason::Untrusted)] {
        log.refuse(Entry::Job(change), JobRefusal::Done);
    }
    log.refuse(Entry::Seal(log.seal(Verdict::Keep)), JobRefusal::Done);
    log.refuse(Entry::Adopt(Box::new(log.plan(&[1]))), JobRefusal::Done);
    log.refuse(log.rewind(0), JobRefusal::Done);
}

#[test]
fn the_next_job_begins_with_nothing_of_the_last_but_its_numbers() {
    let mut log = FixtureLog::running(spec(), &[1]);
    log.keep(12);
    log.checkpoint(12, 1);
    log.refuse(start(spec()), JobRefusal::Done);
    let begun = StateChange::Job { phase: JobPhase::Running, dropped: Vec::new() };
    assert_eq!(log.apply(start(other())), begun);
    let state = &log.state;
    assert!(
        state.plan().is_none()
            && state.training().seals().last_seal().is_none()
            && state.checkpoints().is_empty()
    );
    assert_eq!((state.open_turn().step, state.history().head()), (Step(0), Step(0)));
    assert_eq!((phase(&log), state.ledger().updates()), (JobPhase::Running, 0));
    assert_eq!(log.plan(&[1]).generation.0, 2, "a generation is never given twice");
}

/// What a cluster that lost its voters goes on from.
#[test]
fn a_recovered_cluster_goes_on_from_its_checkpoint() {
    let mut log = FixtureLog::running(spec(), &[1]);
    log.keep(12);
    log.checkpoint(12, 1);
    let checkpoints = log.state.checkpoints().to_vec();
    let last = checkpoints.last().expect("there is one").clone();
    let done = State::recovered(CLUSTER, Arc::new(spec()), last.clone());
    assert_eq!(done.job().map(|job| job.phase), Some(JobPhase::Done), "every step is sealed");
    let longer = Arc::new(JobSpec { step_count: 13, ..spec() });
    let halted = JobPhase::Halted(HaltReason::NothingToRestore);
    for (was, is) in [
        (JobPhase::Running, JobPhase::Running),
        (JobPhase::Paused, JobPhase::Paused),
        (JobPhase::Stopped, JobPhase::Stopped),
        (halted, halted),
    ] {
        let state = State::recovered(CLUSTER, longer.clone(), last.clone()).held_as(was);
        assert_eq!(state.job().map(|job| job.phase), Some(is));
    }
    let mut log = FixtureLog { state: State::recovered(CLUSTER, longer, last) };
    assert_eq!((log.state.open_turn().step, log.state.ledger().updates()), (Step(12), 12));
    log.join(1);
    log.run_plan(&[1]);
    assert_eq!(log.state.generation().0, 2);
    log.keep(1);
    log.checkpoint(13, 1);
    assert_eq!(phase(&log), JobPhase::Done);
}

/// A held run may be switched off: the version it is held at becomes a checkpoint.
#[test]
fn a_run_that_is_held_keeps_the_version_it_is_held_at() {
    let mut log = FixtureLog::running(spec(), &[1]);
    log.apply(Entry::Job(JobChange::Pause));
    assert_eq!(log.pending_versions(), [0; 0], "nothing is trained yet");
    log.apply(Entry::Job(JobChange::Continue));
    log.keep(2);
    log.apply(Entry::Job(JobChange::Pause));
    log.apply(Entry::Job(JobChange::Pause));
    assert_eq!(log.pending_versions(), [2]);
    // It was proposed before the run was held.
    log.keep(1);
    assert_eq!(log.pending_versions(), [2, 3]);
    log.checkpoint(3, 1);
    assert_eq!((log.checkpoint_versions(), phase(&log)), (vec![3], JobPhase::Paused));
    log.apply(Entry::Job(JobChange::Pause));
    assert_eq!(log.pending_versions(), [0; 0], "it is one already");
}

/// A job that is held behind the last step has only to write, and a checkpoint of an earlier step
/// does not end a job.
#[test]
fn a_job_that_is_held_gets_done_and_an_older_checkpoint_ends_nothing() {
    let mut log = FixtureLog::running(spec(), &[1]);
    log.keep(12);
    log.checkpoint(8, 1);
    assert_eq!(phase(&log), JobPhase::Running);
    log.apply(Entry::Job(JobChange::Pause));
    log.checkpoint(12, 1);
    assert_eq!(phase(&log), JobPhase::Done);
}

/// Workers let go; what was sealed stays known until another job begins.
#[test]
fn a_job_that_is_stopped_ends_for_good() {
    let mut log = FixtureLog::running(spec(), &[1, 2]);
    log.keep(5);
    log.checkpoint(4, 1);
    let (rewinds, generation) = (log.state.training().seals().rewinds(), log.state.generation());
    log.apply(Entry::Job(JobChange::Stop));
    assert_eq!(phase(&log), JobPhase::Stopped);
    assert!(log.state.plan().is_none() && log.state.training().seals().last_seal().is_none());
    assert_eq!(
        log.state.training().seals().rewinds(),
        rewinds + 1,
        "what workers hold is not believed any more"
    );
    assert_eq!((log.state.open_turn().step, log.checkpoint_versions()), (Step(5), vec![4]));
    for change in [JobChange::Pause, JobChange::Continue, JobChange::Stop] {
        log.refuse(Entry::Job(change), JobRefusal::Stopped);
    }
    log.refuse(log.rewind(4), JobRefusal::Stopped);
    log.refuse(Entry::Adopt(Box::new(log.plan(&[1]))), JobRefusal::Stopped);
    log.refuse(start(spec()), JobRefusal::NameTaken { name: spec().name });
    let anew = JobSpec { name: "anew".to_owned(), ..spec() };
    let begun = StateChange::Job { phase: JobPhase::Running, dropped: Vec::new() };
    assert_eq!(log.apply(start(anew)), begun, "it may begin anew, under another name");
    assert_eq!(log.state.open_turn().step, Step(0));
    assert_eq!(log.plan(&[1, 2]).generation, generation.next());
    log.run_plan(&[1, 2]);
    log.keep(1);
}

/// A job can be stopped however it is held.
#[test]
fn a_job_that_is_held_can_be_stopped() {
    for change in [JobChange::Pause, JobChange::Halt(HaltReason::Untrusted)] {
        let mut log = FixtureLog::running(spec(), &[1]);
        log.apply(Entry::Job(change));
        log.apply(Entry::Job(JobChange::Stop));
        assert_eq!(phase(&log), JobPhase::Stopped);
    }
}

/// However it is held, and whatever else is in the configuration: its digest names it.
#[test]
fn a_job_that_is_there_already_is_told_from_another() {
    let mut log = FixtureLog::with_job(spec(), &[1]);
    let longer = JobSpec { step_count: 99, ..spec() };
    for change in [None, Some(JobChange::Pause), Some(JobChange::Halt(HaltReason::Untrusted))] {
        change.map(|change| log.apply(Entry::Job(change)));
        log.refuse(start(longer.clone()), JobRefusal::Same);
        log.refuse(start(other()), JobRefusal::UnderWay);
    }
}
