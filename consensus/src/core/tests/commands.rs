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

fn order(core: &mut Core, command: OperatorCommand) -> CommandOutcome {
    let ordered = core.execute_command(command).expect("it is taken");
    persist(core);
    ordered
}

/// It is refused, counted under this word, and nothing changes.
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
        core.execute_command(made(1)).expect("it is taken")
    else {
        panic!("it is proposed")
    };
    assert_eq!((index, term), (core.status().last_index, core.status().term));
    let told = persist(&mut core).into_iter().find_map(|output| {
        let Output::Event(Event::Applied { index, change }) = output else { return None };
        Some((index, *change))
    });
    let outcome = AccessOutcome::TokenMade { token: TOKEN };
    assert_eq!(told, Some((index, StateChange::Access(outcome))));
}

#[test]
fn a_token_that_is_no_good_is_refused_at_once() {
    let mut core = leader(&FixtureLog::empty().state);
    refuse(&mut core, used(1), "token-unknown");
    order(&mut core, made(1));
    refuse(&mut core, made(1), "token-known");
    order(&mut core, used(1));
    order(&mut core, used(1));
    let refusal = refuse(&mut core, used(2), "token-used-up");
    let expected = AccessRefusal::TokenUsedUp { token: TOKEN, uses_max: 1 };
    assert!(matches!(refusal, CoreRefusal::Access(found) if found == expected));
}

/// Two uses are under way; what the first leader agreed on counts with the next leader.
#[test]
fn a_token_for_one_lets_in_one_whoever_leads() {
    let mut pump = InProcessCluster::new(3, 0);
    pump.command(made(1));
    pump.until("there is a token", |pump| !pump.state().access().tokens().is_empty());
    let first = pump.leader().expect("it leads");
    pump.input(first, Input::Command(used(1))).expect("it may be used");
    pump.input(first, Input::Command(used(2))).expect("nothing is agreed on yet");
    pump.until("it is used", |pump| pump.state().access().node_next() > n(111));
    pump.cut.insert(first);
    let follows = |pump: &InProcessCluster| pump.leader().is_some_and(|node| node != first);
    pump.until("another leads", follows);
    let second = pump.leader().expect("it leads");
    let refused = pump.input(second, Input::Command(used(3)));
    assert!(matches!(refused, Err(CoreRefusal::Access(AccessRefusal::TokenUsedUp { .. }))));
    pump.input(second, Input::Command(used(1))).expect("who was let in is told so");
    pump.rounds(20);
    let access = pump.state().access();
    assert_eq!(access.tokens()[&TOKEN].uses.len(), 1);
    assert_eq!((access.tokens()[&TOKEN].uses[0].node, access.node_next()), (n(111), n(112)));
}

#[test]
fn only_a_worker_is_drained_and_once() {
    let mut core = leader(&FixtureLog::running(spec(), &[1, 2]).state);
    refuse(&mut core, OperatorCommand::Drain(n(9)), "unknown-node");
    refuse(&mut core, OperatorCommand::Drain(n(CONTROLLER)), "not-a-worker");
    assert_eq!(order(&mut core, OperatorCommand::Drain(n(1))), CommandOutcome::Noted);
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
    assert_eq!(order(&mut core, OperatorCommand::Remove(n(1))), CommandOutcome::Noted);
    let standing = core.state().members()[&n(1)].status;
    assert_eq!(standing, MembershipStatus::Lost(LossReason::Removed));
    // A node that is lost already, or never came, is kept out as well.
    for node in [3, 4].map(n) {
        let is_proposed = matches!(
            order(&mut core, OperatorCommand::Remove(node)),
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
    order(&mut core, OperatorCommand::Job(JobChange::Stop));
    refuse(&mut core, OperatorCommand::Job(JobChange::Pause), "job-stopped");
    order(&mut core, start(other));
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
    order(&mut core, OperatorCommand::Job(JobChange::Pause));
    let refusal = refuse(&mut core, OperatorCommand::Restore { to: Step(3) }, "restore");
    let expected = EntryRefusal::NoCheckpoint { version: Step(3) };
    assert!(matches!(refusal, CoreRefusal::Restore(found) if found == expected));
    order(&mut core, OperatorCommand::Restore { to: Step(4) });
    assert_eq!(core.state().history().head(), Step(4));
}

fn phase(pump: &InProcessCluster) -> Option<JobPhase> {
    pump.state().job().map(|job| job.phase)
}

/// The whole way: held, sent back, continued, done; and the next job behind it.
#[test]
fn a_run_is_sent_back_by_order_goes_on_and_another_follows_it() {
    let mut pump = InProcessCluster::new(3, 2);
    let job = JobSpec { step_count: 400, ..spec() };
    pump.command(OperatorCommand::Job(JobChange::Start(Arc::new(job))));
    pump.until("there is a checkpoint", |pump| !pump.state().checkpoints().is_empty());
    pump.command(OperatorCommand::Job(JobChange::Pause));
    pump.until("it is held", |pump| phase(pump) == Some(JobPhase::Paused));
    pump.rounds(20);
    let to = pump.state().checkpoints().last().expect("there is one").version;
    pump.command(OperatorCommand::Restore { to });
    pump.until("it went back", |pump| pump.state().history().head() == to);
    pump.command(OperatorCommand::Job(JobChange::Continue));
    pump.until("it goes on", |pump| pump.state().history().head().0 > to.0 + 8);
    let ordered = |(_, event): &&(NodeId, Event)| {
        let Event::Applied { change, .. } = event else { return false };
        matches!(**change, StateChange::Rewound { reason: RewindReason::Ordered, .. })
    };
    assert_eq!(pump.events.iter().filter(ordered).count(), 3, "once on each controller");
    pump.command(OperatorCommand::Job(JobChange::Stop));
    pump.until("it ended", |pump| phase(pump) == Some(JobPhase::Stopped));
    let generation = pump.state().generation();
    let (name, config) = ("next".to_owned(), Digest([3; 32]));
    let next = JobSpec { name, config, step_count: 12, ..spec() };
    pump.command(OperatorCommand::Job(JobChange::Start(Arc::new(next))));
    pump.until("the next one is done", |pump| phase(pump) == Some(JobPhase::Done));
    assert!(pump.state().generation() > generation, "a generation is never given twice");
    let configs = pump.workers.values().map(|worker| worker.session.spec().map(|spec| spec.config));
    assert!(configs.into_iter().all(|config| config == Some(Digest([3; 32]))));
}

#[test]
fn workers_know_where_everybody_is_reached() {
    let mut pump = InProcessCluster::new(3, 3);
    let knows = |pump: &InProcessCluster, worker: u64| {
        pump.workers[&n(worker)].session.contacts().members == pump.state().contacts().members
    };
    pump.until("all know all", |pump| {
        pump.leader().is_some()
            && pump.state().live_workers().count() == 3
            && (1..=3).all(|worker| knows(pump, worker))
    });
    let seat = &pump.workers[&n(1)].session;
    assert_eq!(seat.contacts().members[&n(2)], (Role::Worker, contact(2)));
    assert!(seat.controllers().into_iter().eq([101, 102, 103].map(n)));
    pump.loss_permille = 300;
    pump.command(OperatorCommand::Remove(n(3)));
    pump.until("the others hear that one is gone", |pump| {
        !pump.state().contacts().members.contains_key(&n(3)) && (1..=2).all(|w| knows(pump, w))
    });
}

/// A controller that comes back at another address reports it, whichever node leads.
#[test]
fn a_controller_that_moved_is_reached_where_it_is_now() {
    for moved in [CONTROLLER, CONTROLLER + 1, CONTROLLER + 2].map(n) {
        let mut pump = InProcessCluster::new(3, 0);
        pump.until("somebody leads", |pump| pump.leader().is_some());
        let core = pump.controllers.get_mut(&moved).expect("a controller");
        core.setup.contact = contact(7);
        pump.until("it is known where it is", |pump| {
            pump.leader().is_some() && pump.state().members()[&moved].contact == contact(7)
        });
    }
}

fn standing(state: &State) -> TrainingStatus {
    leader(state).training_status()
}

/// Which nodes a leader waits for, and for what.
fn awaited(standing: &TrainingStatus) -> Vec<(u64, AwaitedAnswer)> {
    let (TrainingStatus::Planning { awaited } | TrainingStatus::Loading { awaited, .. }) = standing
    else {
        panic!("{standing} waits for nobody")
    };
    awaited.iter().map(|awaited| (awaited.node.0, awaited.answer)).collect()
}

#[test]
fn status_says_why_nothing_is_sealed() {
    let follower = recovered(&FixtureLog::empty().state).expect("the disk is usable");
    assert_eq!(follower.training_status(), TrainingStatus::NoQuorum { ticks: 0 });
    assert_eq!(standing(&FixtureLog::empty().state), TrainingStatus::NoJob);
    let two = JobSpec { workers_min: 2, ..spec() };
    let waits = |present| TrainingStatus::WaitingForWorkers { present, left_out: 0, needed: 2 };
    assert_eq!(standing(&FixtureLog::with_job(two.clone(), &[]).state), waits(0));
    assert_eq!(standing(&FixtureLog::with_job(two.clone(), &[1]).state), waits(1));
    let planning = standing(&FixtureLog::with_job(two, &[1, 2]).state);
    assert_eq!(awaited(&planning), [(1, AwaitedAnswer::Inventory), (2, AwaitedAnswer::Inventory)]);
    let text = "waiting for node 2: has not said which layers it holds";
    assert!(planning.to_string().contains(text), "{planning}");
    let mut log = FixtureLog::with_job(spec(), &[1, 2]);
    log.adopt(log.plan(&[1, 2]));
    let ready = crate::entry::Entry::Ready(log.ready(0));
    log.apply(ready);
    let generation = log.state.generation();
    let loading = standing(&log.state);
    assert!(matches!(loading, TrainingStatus::Loading { ready: 1, stages: 2, .. }), "{loading}");
    assert_eq!(awaited(&loading), [(2, AwaitedAnswer::Ready)]);
    let mut log = FixtureLog::running(spec(), &[1, 2]);
    assert_eq!(standing(&log.state), TrainingStatus::Running { generation, withheld: None });
    for (change, expected) in [
        (JobChange::Pause, TrainingStatus::Paused),
        (JobChange::Halt(HaltReason::Untrusted), TrainingStatus::Halted(HaltReason::Untrusted)),
        (JobChange::Stop, TrainingStatus::Stopped),
    ] {
        log.apply(crate::entry::Entry::Job(change));
        assert_eq!(standing(&log.state), expected);
    }
    let mut log = FixtureLog::running(spec(), &[1]);
    log.keep(12);
    let saving = |durable| TrainingStatus::Saving { durable, layers: 4 };
    assert_eq!(standing(&log.state), saving(0));
    let holder = log.holder(1);
    let first = crate::fixture::digests([LayerId(0)], 12);
    log.apply(log.durable(12, holder, first));
    assert_eq!(standing(&log.state), saving(1));
    log.checkpoint(12, 1);
    assert_eq!(standing(&log.state), TrainingStatus::Done);
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

/// A controller that is cut off from a majority shows it soon in its standing, and not any more
/// when there is a leader again.
#[test]
fn without_a_quorum_every_controller_says_so() {
    /// Ticks within which it must be known: three seconds of ticks of 50 ms.
    const TICKS_MAX: u32 = 60;
    let mut pump = InProcessCluster::new(3, 2);
    pump.command(OperatorCommand::Job(JobChange::Start(Arc::new(spec()))));
    pump.rounds(5);
    pump.cut.extend([n(CONTROLLER + 1), n(CONTROLLER + 2)]);
    let alone = n(CONTROLLER);
    let is_lost = |pump: &InProcessCluster| {
        matches!(pump.controllers[&alone].training_status(), TrainingStatus::NoQuorum { .. })
    };
    let rounds = (0..TICKS_MAX).find(|_| {
        pump.rounds(1);
        is_lost(&pump)
    });
    assert!(rounds.is_some(), "it is known within {TICKS_MAX} ticks");
    let TrainingStatus::NoQuorum { ticks } = pump.controllers[&alone].training_status() else {
        panic!("nobody leads")
    };
    pump.rounds(5);
    let expected = TrainingStatus::NoQuorum { ticks: ticks + 5 };
    assert_eq!(pump.controllers[&alone].training_status(), expected);
    pump.cut.clear();
    pump.until("somebody leads again", |pump| !is_lost(pump));
}
