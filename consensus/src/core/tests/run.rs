//! Whole runs: controllers agree, workers train, and nodes that are lost are done without.

use std::sync::Arc;

use zbelastic_types::{Generation, NodeId, Step};

use super::super::{Core, CoreRefusal, CoreStart, Event, Input, OperatorCommand, Output};
use super::in_process::{CONTROLLER, InProcessCluster, n, persist, setup};
use crate::codec;
use crate::fixture::spec;
use crate::job::{JobChange, JobPhase, JobSpec};
use crate::member::LossReason;
use crate::plan::PlanReason;
use crate::raft::{RecoveredLog, encode_record};
use crate::session::WorkerCommand;
use crate::state::{PlanPhase, State, StateChange};
use crate::validation::Verdict;

fn start(pump: &mut InProcessCluster, step_count: u64) {
    let spec = JobSpec { step_count, ..spec() };
    pump.command(OperatorCommand::Job(JobChange::Start(Arc::new(spec))));
}

fn head(pump: &InProcessCluster) -> u64 {
    let heads = pump.controllers.values().map(|core| core.state().history().head().0);
    heads.max().unwrap_or(0)
}

fn is_done(state: &State) -> bool {
    state.job().is_some_and(|job| job.phase == JobPhase::Done)
}

fn all_done(pump: &InProcessCluster) -> bool {
    let there = pump.controllers.iter().filter(|(node, _)| !pump.cut.contains(node));
    there.into_iter().all(|(_, core)| is_done(core.state()))
}

/// The steps that were sealed, as one controller reported them in its events.
fn sealed_at(pump: &InProcessCluster, node: NodeId) -> Vec<u64> {
    let step = |(at, event): &(NodeId, Event)| {
        let Event::Applied { change, .. } = event else { return None };
        let StateChange::Sealed { seal, .. } = **change else { return None };
        (*at == node).then_some(seal.turn.step.0)
    };
    pump.events.iter().filter_map(step).collect()
}

/// Once nothing is under way any more, all controllers have the same state.
fn agree(pump: &mut InProcessCluster) {
    pump.rounds(10);
    let states: Vec<_> =
        pump.controllers.values().map(|core| codec::encode(core.state())).collect();
    assert!(states.windows(2).all(|pair| pair[0] == pair[1]), "all agreed on the same");
}

fn check_run(controllers: u64, workers: u64) -> InProcessCluster {
    let mut pump = InProcessCluster::new(controllers, workers);
    start(&mut pump, 12);
    pump.until("the job is done", all_done);
    agree(&mut pump);
    for node in pump.controllers.keys() {
        assert_eq!(sealed_at(&pump, *node), (0..12).collect::<Vec<_>>(), "S1 at node {node}");
    }
    let state = pump.state();
    assert!(state.history().seals().all(|seal| seal.verdict == Verdict::Keep));
    assert_eq!(state.checkpoints().last().map(|found| found.version), Some(Step(12)));
    pump
}

#[test]
fn one_controller_alone_trains_a_job_to_its_end() {
    check_run(1, 1);
    check_run(1, 3);
}

#[test]
fn three_controllers_agree_on_every_seal() {
    let pump = check_run(3, 2);
    for worker in pump.workers.values() {
        let settled =
            worker.commands.iter().filter(|order| matches!(order, WorkerCommand::ApplySeal(_)));
        assert_eq!(settled.count(), 12, "every seal reaches every worker once");
    }
}

/// The next leader begins without any reports, and workers send them again.
#[test]
fn r8_a_leader_that_goes_is_followed_by_one_that_seals_no_step_twice() {
    let mut pump = InProcessCluster::new(3, 2);
    start(&mut pump, 40);
    pump.until("some steps are sealed", |pump| head(pump) >= 5);
    let (gone, plan) = (pump.leader().expect("it leads"), pump.state().generation());
    pump.cut.insert(gone);
    pump.until("another leads", |pump| pump.leader().is_some_and(|node| node != gone));
    pump.until("the job is done", all_done);
    pump.cut.clear();
    pump.until("who was gone knows as well", all_done);
    assert!(pump.controllers[&gone].duties().is_none(), "it leads no more");
    let refused = pump.input(gone, Input::Command(OperatorCommand::Job(JobChange::Pause)));
    let leader = pump.leader();
    assert!(matches!(refused, Err(CoreRefusal::NotLeader { leader: found }) if found == leader));
    agree(&mut pump);
    assert_eq!(pump.state().generation(), plan, "no worker was lost, no plan was needed");
    for node in pump.controllers.keys() {
        assert_eq!(sealed_at(&pump, *node), (0..40).collect::<Vec<_>>(), "S1 at node {node}");
    }
}

#[test]
fn without_a_quorum_nothing_is_sealed_and_with_it_training_goes_on() {
    let mut pump = InProcessCluster::new(3, 2);
    start(&mut pump, 40);
    pump.until("some steps are sealed", |pump| head(pump) >= 5);
    pump.cut.extend([n(CONTROLLER + 1), n(CONTROLLER + 2)]);
    pump.rounds(1);
    let before = head(&pump);
    pump.rounds(200);
    assert_eq!(head(&pump), before);
    pump.cut.clear();
    pump.until("the job is done", all_done);
    agree(&mut pump);
}

#[test]
fn a_lost_worker_is_done_without_and_nothing_sealed_is_lost() {
    let mut pump = InProcessCluster::new(1, 3);
    start(&mut pump, 40);
    pump.until("some steps are sealed", |pump| head(pump) >= 5);
    pump.cut.insert(n(3));
    pump.until("a plan without it runs", |pump| pump.state().generation() == Generation(2));
    let before = head(&pump);
    let plan = pump.state().plan().expect("there is a plan");
    let reason = &plan.record.reason;
    let PlanReason::Lost { holder, reason: LossReason::Silent { .. } } = reason else {
        panic!("{reason}")
    };
    assert_eq!(holder.node, n(3));
    assert_eq!(plan.record.from_step, Step(before), "nothing sealed is lost");
    pump.until("the job is done", all_done);
    let sealed = sealed_at(&pump, n(CONTROLLER));
    assert_eq!(sealed, (0..40).collect::<Vec<_>>(), "nothing was sealed again");
}

#[test]
fn a_worker_that_comes_is_planned_in_at_a_later_step() {
    let mut pump = InProcessCluster::new(1, 1);
    start(&mut pump, 40);
    pump.until("some steps are sealed", |pump| head(pump) >= 5);
    pump.add_worker(2);
    pump.until("a plan with it runs", |pump| {
        let plan = pump.state().plan().expect("there is a plan");
        plan.record.stages.len() == 2 && plan.phase == PlanPhase::Running
    });
    let reason = &pump.state().plan().expect("there is a plan").record.reason;
    assert_eq!(*reason, PlanReason::Joined { count: 1 });
    pump.until("the job is done", all_done);
    assert_eq!(sealed_at(&pump, n(CONTROLLER)), (0..40).collect::<Vec<_>>());
}

/// One controller, whose cluster trains, and another that waits to be admitted.
fn with_a_newcomer() -> (InProcessCluster, NodeId, NodeId) {
    let mut pump = InProcessCluster::new(1, 1);
    start(&mut pump, 40);
    pump.until("some steps are sealed", |pump| head(pump) >= 5);
    let (first, second) = (n(CONTROLLER), n(CONTROLLER + 1));
    pump.start(second, CoreStart::Wait { controllers: vec![first], boot: 1 });
    (pump, first, second)
}

#[test]
fn a_controller_that_waits_is_admitted_and_knows_what_the_others_do() {
    let (mut pump, _, second) = with_a_newcomer();
    pump.until("it votes", |pump| {
        let members = pump.controllers[&second].status().members;
        members.voters.contains(&second) && members.outgoing.is_empty()
    });
    assert!(pump.state().is_controller(second));
    pump.until("the job is done", all_done);
    agree(&mut pump);
}

/// The only voter is to go, and the node that is to follow it does not vote yet.
#[test]
fn a_controller_that_is_to_go_takes_in_who_follows_it_first() {
    let (mut pump, first, second) = with_a_newcomer();
    pump.until("it is admitted", |pump| pump.state().is_controller(second));
    pump.command(OperatorCommand::Remove(first));
    pump.until("it alone votes", |pump| {
        let members = pump.controllers[&second].status().members;
        members.voters.iter().eq([&second]) && members.outgoing.is_empty()
    });
    pump.until("it leads", |pump| pump.controllers[&second].duties().is_some());
}

/// It stopped once its first start was durable, and before any answer.
#[test]
fn a_controller_that_starts_again_before_it_is_admitted_asks_again() {
    let mut pump = InProcessCluster::new(1, 1);
    pump.until("somebody leads", |pump| pump.leader().is_some());
    let (first, second) = (n(CONTROLLER), n(CONTROLLER + 1));
    let start = CoreStart::Wait { controllers: vec![first], boot: 1 };
    let mut core = Core::new(setup(second), start).expect("it waits");
    let records = persist(&mut core).into_iter().filter_map(|output| {
        let Output::Persist { records, .. } = output else { return None };
        Some(records)
    });
    let bytes: Vec<_> = records.flatten().map(|record| encode_record(&record)).collect();
    let log = RecoveredLog::from_records(bytes.iter().map(Vec::as_slice));
    let log = Box::new(log.expect("the records add up"));
    pump.start(second, CoreStart::Recover { log, controllers: vec![first], boot: 2 });
    pump.until("it votes", |pump| {
        pump.controllers[&second].status().members.voters.contains(&second)
    });
}

#[test]
fn a_person_may_have_another_controller_lead() {
    let mut pump = InProcessCluster::new(3, 1);
    pump.until("somebody leads", |pump| pump.leader().is_some());
    let leader = pump.leader().expect("it leads");
    let other = pump.controllers.keys().copied().find(|node| *node != leader).expect("another");
    pump.command(OperatorCommand::TransferLeader(other));
    pump.until("the other leads", |pump| pump.leader() == Some(other));
}
