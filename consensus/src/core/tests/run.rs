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

fn start(cluster: &mut InProcessCluster, step_count: u64) {
    let spec = JobSpec { step_count, ..spec() };
    cluster.command(OperatorCommand::Job(JobChange::Start(Arc::new(spec))));
}

fn head(cluster: &InProcessCluster) -> u64 {
    let heads = cluster.controllers.values().map(|core| core.state().history().head().0);
    heads.max().unwrap_or(0)
}

fn is_done(state: &State) -> bool {
    state.job().is_some_and(|job| job.phase == JobPhase::Done)
}

fn all_done(cluster: &InProcessCluster) -> bool {
    let there = cluster.controllers.iter().filter(|(node, _)| !cluster.cut.contains(node));
    there.into_iter().all(|(_, core)| is_done(core.state()))
}

/// The steps that were sealed, as one controller reported them in its events.
fn sealed_at(cluster: &InProcessCluster, node: NodeId) -> Vec<u64> {
    let step = |(at, event): &(NodeId, Event)| {
        let Event::Applied { change, .. } = event else { return None };
        let StateChange::Sealed { seal, .. } = **change else { return None };
        (*at == node).then_some(seal.turn.step.0)
    };
    cluster.events.iter().filter_map(step).collect()
}

/// Once nothing is under way any more, all controllers have the same state.
fn agree(cluster: &mut InProcessCluster) {
    cluster.rounds(10);
    let states: Vec<_> =
        cluster.controllers.values().map(|core| codec::encode(core.state())).collect();
    assert!(states.windows(2).all(|pair| pair[0] == pair[1]), "all agreed on the same");
}

fn check_run(controllers: u64, workers: u64) -> InProcessCluster {
    let mut cluster = InProcessCluster::new(controllers, workers);
    start(&mut cluster, 12);
    cluster.until("the job is done", all_done);
    agree(&mut cluster);
    for node in cluster.controllers.keys() {
        assert_eq!(sealed_at(&cluster, *node), (0..12).collect::<Vec<_>>(), "S1 at node {node}");
    }
    let state = cluster.state();
    assert!(state.history().seals().all(|seal| seal.verdict == Verdict::Keep));
    assert_eq!(state.checkpoints().last().map(|found| found.version), Some(Step(12)));
    cluster
}

#[test]
fn one_controller_alone_trains_a_job_to_its_end() {
    check_run(1, 1);
    check_run(1, 3);
}

#[test]
fn three_controllers_agree_on_every_seal() {
    let cluster = check_run(3, 2);
    for worker in cluster.workers.values() {
        let applied =
            worker.commands.iter().filter(|command| matches!(command, WorkerCommand::ApplySeal(_)));
        assert_eq!(applied.count(), 12, "every seal reaches every worker once");
    }
}

/// The next leader begins without any reports, and workers send them again.
#[test]
fn r8_a_leader_that_goes_is_followed_by_one_that_seals_no_step_twice() {
    let mut cluster = InProcessCluster::new(3, 2);
    start(&mut cluster, 40);
    cluster.until("some steps are sealed", |cluster| head(cluster) >= 5);
    let (cut_off, plan) = (cluster.leader().expect("it leads"), cluster.state().generation());
    cluster.cut.insert(cut_off);
    cluster.until("another leads", |cluster| cluster.leader().is_some_and(|node| node != cut_off));
    cluster.until("the job is done", all_done);
    cluster.cut.clear();
    cluster.until("the one that was cut off knows as well", all_done);
    assert!(cluster.controllers[&cut_off].duties().is_none(), "it leads no more");
    let refused = cluster.input(cut_off, Input::Command(OperatorCommand::Job(JobChange::Pause)));
    let leader = cluster.leader();
    assert!(matches!(refused, Err(CoreRefusal::NotLeader { leader: found }) if found == leader));
    agree(&mut cluster);
    assert_eq!(cluster.state().generation(), plan, "no worker was lost, no plan was needed");
    for node in cluster.controllers.keys() {
        assert_eq!(sealed_at(&cluster, *node), (0..40).collect::<Vec<_>>(), "S1 at node {node}");
    }
}

#[test]
fn without_a_quorum_nothing_is_sealed_and_with_it_training_goes_on() {
    let mut cluster = InProcessCluster::new(3, 2);
    start(&mut cluster, 40);
    cluster.until("some steps are sealed", |cluster| head(cluster) >= 5);
    cluster.cut.extend([n(CONTROLLER + 1), n(CONTROLLER + 2)]);
    cluster.rounds(1);
    let before = head(&cluster);
    cluster.rounds(200);
    assert_eq!(head(&cluster), before);
    cluster.cut.clear();
    cluster.until("the job is done", all_done);
    agree(&mut cluster);
}

#[test]
fn a_lost_worker_is_done_without_and_nothing_sealed_is_lost() {
    let mut cluster = InProcessCluster::new(1, 3);
    start(&mut cluster, 40);
    cluster.until("some steps are sealed", |cluster| head(cluster) >= 5);
    cluster.cut.insert(n(3));
    cluster
        .until("a plan without it runs", |cluster| cluster.state().generation() == Generation(2));
    let before = head(&cluster);
    let plan = cluster.state().plan().expect("there is a plan");
    let reason = &plan.record.reason;
    let PlanReason::Lost { holder, reason: LossReason::Silent { .. } } = reason else {
        panic!("{reason}")
    };
    assert_eq!(holder.node, n(3));
    assert_eq!(plan.record.from_step, Step(before), "nothing sealed is lost");
    cluster.until("the job is done", all_done);
    let sealed = sealed_at(&cluster, n(CONTROLLER));
    assert_eq!(sealed, (0..40).collect::<Vec<_>>(), "nothing was sealed again");
}

#[test]
fn a_worker_that_comes_is_planned_in_at_a_later_step() {
    let mut cluster = InProcessCluster::new(1, 1);
    start(&mut cluster, 40);
    cluster.until("some steps are sealed", |cluster| head(cluster) >= 5);
    cluster.add_worker(2);
    cluster.until("a plan with it runs", |cluster| {
        let plan = cluster.state().plan().expect("there is a plan");
        plan.record.stages.len() == 2 && plan.phase == PlanPhase::Running
    });
    let reason = &cluster.state().plan().expect("there is a plan").record.reason;
    assert_eq!(*reason, PlanReason::Joined { count: 1 });
    cluster.until("the job is done", all_done);
    assert_eq!(sealed_at(&cluster, n(CONTROLLER)), (0..40).collect::<Vec<_>>());
}

/// One controller, whose cluster trains, and another that waits to be admitted.
fn with_a_newcomer() -> (InProcessCluster, NodeId, NodeId) {
    let mut cluster = InProcessCluster::new(1, 1);
    start(&mut cluster, 40);
    cluster.until("some steps are sealed", |cluster| head(cluster) >= 5);
    let (first, second) = (n(CONTROLLER), n(CONTROLLER + 1));
    cluster.start(second, CoreStart::Wait { controllers: vec![first], boot: 1 });
    (cluster, first, second)
}

#[test]
fn a_controller_that_waits_is_admitted_and_knows_what_the_others_do() {
    let (mut cluster, _, second) = with_a_newcomer();
    cluster.until("it votes", |cluster| {
        let members = cluster.controllers[&second].status().members;
        members.voters.contains(&second) && members.outgoing.is_empty()
    });
    assert!(cluster.state().membership().is_controller(second));
    cluster.until("the job is done", all_done);
    agree(&mut cluster);
}

/// The only voter is to go, and the node that is to follow it does not vote yet.
#[test]
fn a_controller_that_is_to_go_takes_in_who_follows_it_first() {
    let (mut cluster, first, second) = with_a_newcomer();
    cluster.until("it is admitted", |cluster| cluster.state().membership().is_controller(second));
    cluster.command(OperatorCommand::Remove(first));
    cluster.until("it alone votes", |cluster| {
        let members = cluster.controllers[&second].status().members;
        members.voters.iter().eq([&second]) && members.outgoing.is_empty()
    });
    cluster.until("it leads", |cluster| cluster.controllers[&second].duties().is_some());
}

/// It stopped once its first start was durable, and before any answer.
#[test]
fn a_controller_that_starts_again_before_it_is_admitted_asks_again() {
    let mut cluster = InProcessCluster::new(1, 1);
    cluster.until("somebody leads", |cluster| cluster.leader().is_some());
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
    cluster.start(second, CoreStart::Recover { log, controllers: vec![first], boot: 2 });
    cluster.until("it votes", |cluster| {
        cluster.controllers[&second].status().members.voters.contains(&second)
    });
}

#[test]
fn a_person_may_have_another_controller_lead() {
    let mut cluster = InProcessCluster::new(3, 1);
    cluster.until("somebody leads", |cluster| cluster.leader().is_some());
    let leader = cluster.leader().expect("it leads");
    let other = cluster.controllers.keys().copied().find(|node| *node != leader).expect("another");
    cluster.command(OperatorCommand::TransferLeader(other));
    cluster.until("the other leads", |cluster| cluster.leader() == Some(other));
}
