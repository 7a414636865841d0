//! Commands of operators, and the answers to them.

use std::sync::Arc;

use zbelastic_types::{Digest, LayerId, NodeId, Step};

use super::super::{CommandOutcome, Core, CoreRefusal, Event, Input, OperatorCommand, Output};
use super::in_process::{CONTROLLER, InProcessCluster, leader, n, persist, recovered};
use crate::access::{AccessChange, AccessOutcome, AccessRefusal, AccessRole, TokenId, TokenTerms};
use crate::duty::{AwaitedAnswer, PlanUnsolvable};
use crate::entry::RewindReason;
use crate::fixture::{FixtureLog, contact, spec};
use crate::job::{HaltReason, JobChange, JobPhase, JobRefusal, JobSpec};
use crate::member::{LossReason, MembershipStatus, Role};
use crate::message::Message;
use crate::state::{EntryRefusal, State, StateChange};
use crate::training_status::TrainingStatus;

const TOKEN: TokenId = TokenId(300);

fn made(uses_max: u32) -> OperatorCommand {
    let terms = TokenTerms {
        role: AccessRole::Worker,
        verifier: [7; 32],
        authority: Digest([6; 32]),
        expires_at_s: 1000,
        uses_max,
        is_ephemeral: false,
        note: String::new(),
    };
    OperatorCommand::Access(AccessChange::TokenMade { token: TOKEN, terms, at_s: 1 })
}

fn used(key: u8) -> OperatorCommand {
    OperatorCommand::Access(AccessChange::TokenUsed {
        token: TOKEN,
        key: Digest([key; 32]),
        name: "spot".to_owned(),
        role: AccessRole::Worker,
        at_s: 1,
        expires_at_s: 9,
    })
}

fn execute(core: &mut Core, command: OperatorCommand) -> CommandOutcome {
    let outcome = core.execute_command(command).expect("it is accepted");
    persist(core);
    outcome
}

/// Checks that a command is refused, counted under this name, and changes nothing.
fn refuse(core: &mut Core, command: OperatorCommand, word: &str) -> CoreRefusal {
    let (before, count) = (core.state().clone(), core.refusals().get(word).copied());
    let refusal = core.execute_command(command).expect_err("it is refused");
    assert_eq!(refusal.name(), word);
    assert_eq!(core.refusals()[word], count.unwrap_or(0) + 1);
    persist(core);
    assert_eq!(*core.state(), before);
    refusal
}

#[test]
fn what_is_proposed_is_told_by_its_index_and_by_what_it_changed() {
    let mut core = leader(&FixtureLog::empty().state);
    let CommandOutcome::Proposed { index, term } =
        core.execute_command(made(1)).expect("it is accepted")
    else {
        panic!("it is proposed")
    };
    assert_eq!((index, term), (core.status().last_index, core.status().term));
    let applied = persist(&mut core).into_iter().find_map(|output| {
        let Output::Event(Event::Applied { index, term, change }) = output else { return None };
        Some((index, term, *change))
    });
    let outcome = AccessOutcome::TokenMade { token: TOKEN };
    assert_eq!(applied, Some((index, term, StateChange::Access(outcome))));
}

#[test]
fn a_token_that_is_no_good_is_refused_at_once() {
    let mut core = leader(&FixtureLog::empty().state);
    refuse(&mut core, used(1), "token-unknown");
    execute(&mut core, made(1));
    refuse(&mut core, made(1), "token-known");
    execute(&mut core, used(1));
    execute(&mut core, used(1));
    let refusal = refuse(&mut core, used(2), "token-used-up");
    let expected = AccessRefusal::TokenUsedUp { token: TOKEN, uses_max: 1 };
    assert!(matches!(refusal, CoreRefusal::Access(found) if found == expected));
}

/// Two uses are under way; what the first leader agreed on counts with the next leader.
#[test]
fn a_token_for_one_lets_in_one_whoever_leads() {
    let mut cluster = InProcessCluster::new(3, 0);
    cluster.command(made(1));
    cluster.until("there is a token", |cluster| !cluster.state().access().tokens().is_empty());
    let first = cluster.leader().expect("it leads");
    cluster.input(first, Input::Command(used(1))).expect("it may be used");
    cluster.input(first, Input::Command(used(2))).expect("nothing is agreed on yet");
    cluster.until("it is used", |cluster| cluster.state().access().node_next() > n(111));
    cluster.cut.insert(first);
    let another_leads =
        |cluster: &InProcessCluster| cluster.leader().is_some_and(|node| node != first);
    cluster.until("another leads", another_leads);
    let second = cluster.leader().expect("it leads");
    let refused = cluster.input(second, Input::Command(used(3)));
    assert!(matches!(refused, Err(CoreRefusal::Access(AccessRefusal::TokenUsedUp { .. }))));
    cluster
        .input(second, Input::Command(used(1)))
        .expect("a key that was admitted gets the same answer");
    cluster.rounds(20);
    let access = cluster.state().access();
    assert_eq!(access.tokens()[&TOKEN].uses.len(), 1);
    assert_eq!((access.tokens()[&TOKEN].uses[0].node, access.node_next()), (n(111), n(112)));
}

#[test]
fn only_a_worker_is_drained_and_once() {
    let mut core = leader(&FixtureLog::running(spec(), &[1, 2]).state);
    refuse(&mut core, OperatorCommand::Drain(n(9)), "unknown-node");
    refuse(&mut core, OperatorCommand::Drain(n(CONTROLLER)), "not-a-worker");
    assert_eq!(execute(&mut core, OperatorCommand::Drain(n(1))), CommandOutcome::Noted);
    assert_eq!(core.state().members()[&n(1)].status, MembershipStatus::Draining);
    refuse(&mut core, OperatorCommand::Drain(n(1)), "draining");
}

#[test]
fn whoever_is_removed_is_lost_and_its_credential_with_it() {
    let mut log = FixtureLog::running(spec(), &[1, 2, 3]);
    log.lose(3);
    log.vouch([4]);
    let mut core = leader(&log.state);
    refuse(&mut core, OperatorCommand::Remove(n(CONTROLLER)), "last-controller");
    refuse(&mut core, OperatorCommand::Remove(n(9)), "unknown-node");
    assert_eq!(execute(&mut core, OperatorCommand::Remove(n(1))), CommandOutcome::Noted);
    let status = core.state().members()[&n(1)].status;
    assert_eq!(status, MembershipStatus::Lost(LossReason::Removed));
    // A node that is lost already, or never came, is kept out as well.
    for node in [3, 4].map(n) {
        let is_proposed = matches!(
            execute(&mut core, OperatorCommand::Remove(node)),
            CommandOutcome::Proposed { .. }
        );
        assert!(is_proposed);
    }
    for node in [1, 3, 4].map(n) {
        assert!(core.state().access().credential(node).is_none());
        refuse(&mut core, OperatorCommand::Remove(node), "unknown-node");
        let join = Message::Join {
            boot: 9,
            role: Role::Worker,
            resources: crate::fixture::RESOURCES,
            contact: contact(1),
        };
        let message = crate::message::Envelope { cluster: crate::fixture::CLUSTER, message: join };
        let refused = core.handle(Input::Message { from: node, message: Box::new(message) });
        assert!(refused.is_err());
    }
    assert_eq!(core.refusals()["no-credential"], 3);
}

#[test]
fn a_job_is_checked_before_it_is_proposed() {
    let mut core = leader(&FixtureLog::with_job(spec(), &[]).state);
    let start = |spec: JobSpec| OperatorCommand::Job(JobChange::Start(Arc::new(spec)));
    refuse(&mut core, start(spec()), "job-same");
    let (name, config) = ("another".to_owned(), Digest([1; 32]));
    let other = JobSpec { name, config, ..spec() };
    refuse(&mut core, start(other.clone()), "job-under-way");
    let none = JobSpec { step_count: 0, ..other.clone() };
    refuse(&mut core, start(none), "job-zero");
    refuse(&mut core, OperatorCommand::Restore { to: Step(0) }, "job-not-held");
    execute(&mut core, OperatorCommand::Job(JobChange::Stop));
    refuse(&mut core, OperatorCommand::Job(JobChange::Pause), "job-stopped");
    execute(&mut core, start(other));
    assert_eq!(core.state().job().map(|job| job.phase), Some(JobPhase::Running));
}

#[test]
fn only_to_what_is_there_a_job_that_is_held_goes_back() {
    let mut log = FixtureLog::running(spec(), &[1, 2]);
    log.keep(5);
    log.checkpoint(4, 1);
    let mut core = leader(&log.state);
    let refusal = refuse(&mut core, OperatorCommand::Restore { to: Step(4) }, "job-not-held");
    assert!(matches!(refusal, CoreRefusal::Job(JobRefusal::NotHeld)));
    execute(&mut core, OperatorCommand::Job(JobChange::Pause));
    let refusal = refuse(&mut core, OperatorCommand::Restore { to: Step(3) }, "restore");
    let expected = EntryRefusal::NoCheckpoint { version: Step(3) };
    assert!(matches!(refusal, CoreRefusal::Restore(found) if found == expected));
    execute(&mut core, OperatorCommand::Restore { to: Step(4) });
    assert_eq!(core.state().history().head(), Step(4));
}

fn phase(cluster: &InProcessCluster) -> Option<JobPhase> {
    cluster.state().job().map(|job| job.phase)
}

/// The whole way: held, sent back, continued, done; and the next job behind it.
#[test]
fn a_run_is_sent_back_by_order_goes_on_and_another_follows_it() {
    let mut cluster = InProcessCluster::new(3, 2);
    let job = JobSpec { step_count: 400, ..spec() };
    cluster.command(OperatorCommand::Job(JobChange::Start(Arc::new(job))));
    cluster.until("there is a checkpoint", |cluster| !cluster.state().checkpoints().is_empty());
    cluster.command(OperatorCommand::Job(JobChange::Pause));
    cluster.until("it is held", |cluster| phase(cluster) == Some(JobPhase::Paused));
    cluster.rounds(20);
    let to = cluster.state().checkpoints().last().expect("there is one").version;
    cluster.command(OperatorCommand::Restore { to });
    cluster.until("it went back", |cluster| cluster.state().history().head() == to);
    cluster.command(OperatorCommand::Job(JobChange::Continue));
    cluster.until("it goes on", |cluster| cluster.state().history().head().0 > to.0 + 8);
    let is_restored = |(_, event): &&(NodeId, Event)| {
        let Event::Applied { change, .. } = event else { return false };
        matches!(**change, StateChange::Rewound { reason: RewindReason::Ordered, .. })
    };
    assert_eq!(cluster.events.iter().filter(is_restored).count(), 3, "once on each controller");
    cluster.command(OperatorCommand::Job(JobChange::Stop));
    cluster.until("it ended", |cluster| phase(cluster) == Some(JobPhase::Stopped));
    let generation = cluster.state().generation();
    let (name, config) = ("next".to_owned(), Digest([3; 32]));
    let next = JobSpec { name, config, step_count: 12, ..spec() };
    cluster.command(OperatorCommand::Job(JobChange::Start(Arc::new(next))));
    cluster.until("the next one is done", |cluster| phase(cluster) == Some(JobPhase::Done));
    assert!(cluster.state().generation() > generation, "a generation is never given twice");
    let configs =
        cluster.workers.values().map(|worker| worker.session.spec().map(|spec| spec.config));
    assert!(configs.into_iter().all(|config| config == Some(Digest([3; 32]))));
}

#[test]
fn workers_know_where_everybody_is_reached() {
    let mut cluster = InProcessCluster::new(3, 3);
    let has_contacts = |cluster: &InProcessCluster, worker: u64| {
        cluster.workers[&n(worker)].session.contacts().members
            == cluster.state().membership().contacts().members
    };
    cluster.until("all know all", |cluster| {
        cluster.leader().is_some()
            && cluster.state().live_workers().count() == 3
            && (1..=3).all(|worker| has_contacts(cluster, worker))
    });
    let session = &cluster.workers[&n(1)].session;
    assert_eq!(session.contacts().members[&n(2)], (Role::Worker, contact(2)));
    assert!(session.controllers().into_iter().eq([101, 102, 103].map(n)));
    cluster.loss_permille = 300;
    cluster.command(OperatorCommand::Remove(n(3)));
    cluster.until("the others hear that one is gone", |cluster| {
        !cluster.state().membership().contacts().members.contains_key(&n(3))
            && (1..=2).all(|w| has_contacts(cluster, w))
    });
}

/// A controller that comes back at another address reports it, whichever node leads.
#[test]
fn a_controller_that_moved_is_reached_where_it_is_now() {
    for moved in [CONTROLLER, CONTROLLER + 1, CONTROLLER + 2].map(n) {
        let mut cluster = InProcessCluster::new(3, 0);
        cluster.until("a node leads", |cluster| cluster.leader().is_some());
        let core = cluster.controllers.get_mut(&moved).expect("a controller");
        core.setup.contact = contact(7);
        cluster.until("it is known where it is", |cluster| {
            cluster.leader().is_some() && cluster.state().members()[&moved].contact == contact(7)
        });
    }
}

fn training_status(state: &State) -> TrainingStatus {
    leader(state).training_status()
}

/// Which nodes a leader waits for, and for what.
fn awaited(status: &TrainingStatus) -> Vec<(u64, AwaitedAnswer)> {
    let (TrainingStatus::Planning { awaited, .. } | TrainingStatus::Loading { awaited, .. }) =
        status
    else {
        panic!("{status} waits for nobody")
    };
    awaited.iter().map(|awaited| (awaited.node.0, awaited.answer)).collect()
}

#[test]
fn status_says_why_nothing_is_sealed() {
    let follower = recovered(&FixtureLog::empty().state).expect("the disk is usable");
    assert_eq!(follower.training_status(), TrainingStatus::NoQuorum { ticks: 0 });
    assert_eq!(training_status(&FixtureLog::empty().state), TrainingStatus::NoJob);
    let two = JobSpec { workers_min: 2, ..spec() };
    let waits = |present| TrainingStatus::WaitingForWorkers { present, left_out: 0, needed: 2 };
    assert_eq!(training_status(&FixtureLog::with_job(two.clone(), &[]).state), waits(0));
    assert_eq!(training_status(&FixtureLog::with_job(two.clone(), &[1]).state), waits(1));
    let planning = training_status(&FixtureLog::with_job(two, &[1, 2]).state);
    assert_eq!(awaited(&planning), [(1, AwaitedAnswer::Inventory), (2, AwaitedAnswer::Inventory)]);
    let text = "waiting for nodes that did not report yet which layers they hold: 1, 2";
    assert!(planning.to_string().contains(text), "{planning}");
    let mut log = FixtureLog::with_job(spec(), &[1, 2]);
    log.adopt(log.plan(&[1, 2]));
    let ready = crate::entry::Entry::Ready(log.ready(0));
    log.apply(ready);
    let generation = log.state.generation();
    let loading = training_status(&log.state);
    assert!(matches!(loading, TrainingStatus::Loading { ready: 1, stages: 2, .. }), "{loading}");
    assert_eq!(awaited(&loading), [(2, AwaitedAnswer::Ready)]);
    let mut log = FixtureLog::running(spec(), &[1, 2]);
    assert_eq!(training_status(&log.state), TrainingStatus::Running { generation, withheld: None });
    for (change, expected) in [
        (JobChange::Pause, TrainingStatus::Paused),
        (JobChange::Halt(HaltReason::Untrusted), TrainingStatus::Halted(HaltReason::Untrusted)),
        (JobChange::Stop, TrainingStatus::Stopped),
    ] {
        log.apply(crate::entry::Entry::Job(change));
        assert_eq!(training_status(&log.state), expected);
    }
    let mut log = FixtureLog::running(spec(), &[1]);
    log.keep(12);
    let saving = |durable| TrainingStatus::Saving { durable, layers: 4 };
    assert_eq!(training_status(&log.state), saving(0));
    let holder = log.holder(1);
    let first = crate::fixture::digests([LayerId(0)], 12);
    log.apply(log.durable(12, holder, first));
    assert_eq!(training_status(&log.state), saving(1));
    log.checkpoint(12, 1);
    assert_eq!(training_status(&log.state), TrainingStatus::Done);
}

#[test]
fn status_says_why_there_is_no_plan() {
    // The workers send nothing, and are not lost meanwhile.
    let lost_after_ticks = 2 * super::in_process::TIMING.inventory_ticks;
    let patient = JobSpec { lost_after_ticks, ..spec() };
    let mut core = leader(&FixtureLog::with_job(patient, &[1, 2]).state);
    for number in [1, 2] {
        let none = PlanUnsolvable { nodes: 2, reason: "memory".to_owned() };
        let input = Input::Solved { number, solution: Box::new(Err(none.clone())) };
        if core.handle(input).is_ok() {
            for _ in 0..super::in_process::TIMING.inventory_ticks + 1 {
                core.handle(Input::Tick).expect("a tick is taken");
            }
            persist(&mut core);
            assert_eq!(core.training_status(), TrainingStatus::NoPlan(none.into()));
            return;
        }
    }
    panic!("a plan was asked for");
}

/// Heartbeats are answered while disks take no writes, so nobody is deposed: the status has to name
/// who did not write.
#[test]
fn a_leader_whose_entries_nobody_writes_names_the_disks() {
    /// Five seconds of ticks.
    const UNWRITTEN_TICKS: u32 = 500;
    let mut core = leader(&FixtureLog::empty().state);
    core.execute_command(made(1)).expect("it is accepted");
    let tick = |core: &mut Core| core.handle(Input::Tick).expect("a tick");
    let behind = vec![core.status().node];
    (1..UNWRITTEN_TICKS).for_each(|_| tick(&mut core));
    assert_eq!(core.training_status(), TrainingStatus::NoJob, "slow disks are waited for");
    tick(&mut core);
    let expected = TrainingStatus::NotAgreed { ticks: UNWRITTEN_TICKS, behind };
    assert_eq!(core.training_status(), expected);
    persist(&mut core);
    tick(&mut core);
    assert_eq!(core.training_status(), TrainingStatus::NoJob, "it was written");
}

/// A controller that is cut off from a majority shows it soon in its status, and not any more when
/// there is a leader again.
#[test]
fn without_a_quorum_every_controller_says_so() {
    /// Ticks within which it must be known: three seconds of ticks of 50 ms.
    const TICKS_MAX: u32 = 60;
    let mut cluster = InProcessCluster::new(3, 2);
    cluster.command(OperatorCommand::Job(JobChange::Start(Arc::new(spec()))));
    cluster.rounds(5);
    cluster.cut.extend([n(CONTROLLER + 1), n(CONTROLLER + 2)]);
    let alone = n(CONTROLLER);
    let is_lost = |cluster: &InProcessCluster| {
        matches!(cluster.controllers[&alone].training_status(), TrainingStatus::NoQuorum { .. })
    };
    let rounds = (0..TICKS_MAX).find(|_| {
        cluster.rounds(1);
        is_lost(&cluster)
    });
    assert!(rounds.is_some(), "it is known within {TICKS_MAX} ticks");
    let TrainingStatus::NoQuorum { ticks } = cluster.controllers[&alone].training_status() else {
        panic!("nobody leads")
    };
    cluster.rounds(5);
    let expected = TrainingStatus::NoQuorum { ticks: ticks + 5 };
    assert_eq!(cluster.controllers[&alone].training_status(), expected);
    cluster.cut.clear();
    cluster.until("somebody leads again", |cluster| !is_lost(cluster));
}
