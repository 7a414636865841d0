//! What does not belong: refused with its reason and counted, and nothing else changes.

use std::sync::Arc;

use zbelastic_types::{
    Attempt, ClusterId, Generation, Incarnation, LayerId, NodeId, StageIndex, Step,
};

use super::super::{ConnectionEnd, Core, CoreRefusal, Input, OperatorCommand, Output};
use super::in_process::{CONTROLLER, leader, n, persist, recovered};
use crate::codec;
use crate::duty::{HELD_VERSIONS_MAX, WithheldReason};
use crate::entry::{Entry, ReadyRecord};
use crate::fixture::{CLUSTER, FixtureLog, RESOURCES, contact, digest, digests, spec, sum};
use crate::job::{JobChange, JobSpec};
use crate::member::{
    AdmissionRefusal, BOOTS_PER_START, Holder, LossReason, MEMBERS_MAX, MemberChange, Role,
};
use crate::message::{Envelope, HeldLayer, HeldUpdate, LoadFault, Message, WorkerActivity};
use crate::raft::RaftMessage;
use crate::validation::{GradientReport, TensorSum, Turn};

/// Nodes 1 and 2 run the second plan, step 1 of it is open; node 3 was lost, and node 5 is not
/// trusted.
fn log() -> FixtureLog {
    let mut log = FixtureLog::running(spec(), &[1, 2, 3]);
    log.keep(1);
    log.lose(3);
    log.join(5);
    let reason = LossReason::Untrusted { partners: 2 };
    log.apply(Entry::Members(vec![MemberChange::Lost { holder: log.holder(5), reason }]));
    log.run_plan(&[1, 2]);
    log
}

const OPEN: Turn = Turn { generation: Generation(2), attempt: Attempt(0), step: Step(1) };

fn from(node: u64, message: Message) -> Input {
    let message = Box::new(Envelope { cluster: CLUSTER, message });
    Input::Message { from: n(node), message }
}

/// The input is refused for that reason, counted, and leaves no other trace.
fn check(core: &mut Core, input: Input, reason: &'static str) {
    let text = format!("{input:?}");
    let before = (codec::encode(core.state()), format!("{:?}", core.duties()), core.status());
    let mut refusals = core.refusals().clone();
    let refusal = core.handle(input).expect_err(&text);
    assert_eq!(refusal.name(), reason, "{refusal}: {text}");
    let after = (codec::encode(core.state()), format!("{:?}", core.duties()), core.status());
    assert_eq!(after, before, "{text}");
    *refusals.entry(reason).or_default() += 1;
    assert_eq!(core.refusals(), &refusals, "{text}");
    assert_eq!(persist(core), [], "{text}");
}

/// The report of stage 0 on the open turn.
fn report() -> GradientReport {
    let sums = vec![sum(LayerId(0), 0.25), sum(LayerId(1), 0.5)];
    GradientReport { turn: OPEN, stage: StageIndex(0), sums, loss_sum: None }
}

fn reported(holder: Holder, report: GradientReport) -> Message {
    Message::Report { holder, report, state: Vec::new() }
}

fn fenced() -> Holder {
    Holder {
        node: n(3),
        incarnation: FixtureLog::running(spec(), &[1, 2, 3]).holder(3).incarnation,
    }
}

#[test]
fn messages_of_strangers_and_of_the_fenced_are_refused() {
    let log = log();
    let mut core = leader(&log.state);
    let unknown = Holder { node: n(9), incarnation: Incarnation(1) };
    let earlier = Holder { incarnation: Incarnation(1), ..log.holder(1) };
    for holder in [fenced(), unknown, earlier] {
        let update =
            HeldUpdate { turn: OPEN, of: StageIndex(0), sums: Vec::new(), state: Vec::new() };
        let (generation, layers, copies) = (OPEN.generation, Vec::new(), Vec::new());
        let ready = ReadyRecord { generation, holder, layers, copies };
        for message in [
            reported(holder, report()),
            Message::Held { holder, update },
            Message::Inventory { holder, index: u64::MAX, layers: Vec::new() },
            Message::Ready(ready),
            Message::LoadFailed { holder, generation, layer: LayerId(0), cause: LoadFault::Source },
            Message::Saved {
                holder,
                version: Step(4),
                generation,
                layers: Vec::new(),
                busy_milliticks: 0,
            },
            Message::Drain { holder },
            Message::Leave { holder },
        ] {
            check(&mut core, from(holder.node.0, message.clone()), "fenced");
            check(&mut core, from(2, message), "wrong-sender");
        }
    }
}

#[test]
fn messages_of_another_cluster_or_for_somebody_else_are_refused() {
    let log = log();
    let mut core = leader(&log.state);
    let cluster = ClusterId(CLUSTER.0 + 1);
    let message = reported(log.holder(1), report());
    let foreign = Box::new(Envelope { cluster, message });
    let foreign = Input::Message { from: n(1), message: foreign };
    check(&mut core, foreign, "other-cluster");
    let briefing = Box::new(crate::message::Briefing {
        index: 1,
        leader: None,
        you: None,
        spec: None,
        job: None,
        generation: Generation(0),
        plan: None,
        is_running: false,
        open: OPEN,
        updates: 0,
        seal: None,
        requests_inventory: false,
        rewinds: 0,
        pending: Vec::new(),
        contacts: None,
        pre_copy: None,
    });
    check(&mut core, from(1, Message::Briefing(briefing)), "not-for-controllers");
    check(&mut core, from(1, Message::Raft(RaftMessage::Raft(vec![9; 9]))), "raft-malformed");
}

/// R2 and R8: only the open turn of the plan in force is counted.
#[test]
fn r2_reports_of_another_generation_step_or_attempt_are_refused() {
    let log = log();
    let mut core = leader(&log.state);
    let holder = log.holder(1);
    let (generation, attempt, step) = (Generation(1), Attempt(1), Step(0));
    for turn in [
        Turn { generation, ..OPEN },
        Turn { generation: Generation(3), ..OPEN },
        Turn { step, ..OPEN },
        Turn { step: Step(2), ..OPEN },
        Turn { attempt, ..OPEN },
    ] {
        check(
            &mut core,
            from(1, reported(holder, GradientReport { turn, ..report() })),
            "other-turn",
        );
        let of = StageIndex(1);
        let update = HeldUpdate { turn, of, sums: Vec::new(), state: Vec::new() };
        check(&mut core, from(1, Message::Held { holder, update }), "other-turn");
    }
}

#[test]
fn reports_on_what_is_not_theirs_are_refused() {
    let log = log();
    let mut core = leader(&log.state);
    let holder = log.holder(1);
    for stage in [1, 2, u32::MAX].map(StageIndex) {
        check(
            &mut core,
            from(1, reported(holder, GradientReport { stage, ..report() })),
            "not-its-stage",
        );
    }
    for layer in [2, 3, 4, u32::MAX].map(LayerId) {
        let sums = vec![sum(layer, 0.25)];
        let other = GradientReport { sums: sums.clone(), ..report() };
        check(&mut core, from(1, reported(holder, other)), "not-its-tensor");
    }
    for of in [0, 2, u32::MAX].map(StageIndex) {
        let update = HeldUpdate { turn: OPEN, of, sums: Vec::new(), state: Vec::new() };
        check(&mut core, from(1, Message::Held { holder, update }), "not-its-stage");
    }
    let (of, sums) = (StageIndex(1), vec![sum(LayerId(0), 0.25)]);
    let update = HeldUpdate { turn: OPEN, of, sums, state: Vec::new() };
    check(&mut core, from(1, Message::Held { holder, update }), "not-its-tensor");
}

fn check_sums_refused(core: &mut Core, sums: &[TensorSum], reason: &'static str) {
    let (log, sums) = (log(), sums.to_vec());
    let other = GradientReport { sums: sums.clone(), ..report() };
    check(core, from(1, reported(log.holder(1), other)), reason);
    let update = HeldUpdate { turn: OPEN, of: StageIndex(0), sums, state: Vec::new() };
    check(core, from(2, Message::Held { holder: log.holder(2), update }), reason);
}

/// Each tensor of the stage once, with a sum that some gradient has. An incomplete report is no
/// contradiction, neither before the complete one nor after it.
#[test]
fn sums_that_are_not_those_of_the_stage_are_refused() {
    let log = log();
    let mut core = leader(&log.state);
    let [first, second] = [0, 1].map(|layer| sum(LayerId(layer), 0.25));
    for _ in 0..2 {
        check_sums_refused(&mut core, &[], "missing-tensors");
        check_sums_refused(&mut core, &[second], "missing-tensors");
        check_sums_refused(&mut core, &[first, first], "tensor-twice");
        check_sums_refused(
            &mut core,
            &[first, second, TensorSum { square_sum: 9.0, ..first }],
            "tensor-twice",
        );
        for square_sum in [-0.25, f64::NEG_INFINITY, f64::NAN] {
            check_sums_refused(&mut core, &[first, TensorSum { square_sum, ..second }], "bad-sum");
        }
        core.handle(from(1, reported(log.holder(1), report()))).expect("it is counted");
        assert_eq!(core.duties().and_then(|duties| duties.withheld(core.state())), WAITS);
    }
}

const WAITS: Option<WithheldReason> = Some(WithheldReason::Reports);

/// A sum that is no number goes with values that are none, and one may be too large for a number.
#[test]
fn sums_of_gradients_that_are_not_finite_are_counted() {
    let log = log();
    for (square_sum, nonfinite) in
        [(f64::NAN, 1), (f64::INFINITY, 2), (f64::INFINITY, 0), (0.0, 0), (0.5, 1)]
    {
        let mut core = leader(&log.state);
        let second = TensorSum { square_sum, nonfinite, ..sum(LayerId(1), 0.5) };
        let other = GradientReport { sums: vec![sum(LayerId(0), 0.25), second], ..report() };
        core.handle(from(1, reported(log.holder(1), other))).expect("it may be");
    }
}

#[test]
fn a_loss_comes_from_the_head_and_from_nowhere_else() {
    let log = log();
    let mut core = leader(&log.state);
    let other = GradientReport { loss_sum: Some(9.0), ..report() };
    check(&mut core, from(1, reported(log.holder(1), other)), "not-its-loss");
    let sums = vec![sum(LayerId(2), 0.5), sum(LayerId(3), 0.5)];
    let none = GradientReport { stage: StageIndex(1), sums, loss_sum: None, ..report() };
    let head = GradientReport { loss_sum: Some(f64::NAN), ..none.clone() };
    check(&mut core, from(2, reported(log.holder(2), none)), "missing-loss");
    core.handle(from(2, reported(log.holder(2), head))).expect("it is the head's to tell");
}

#[test]
fn a_report_that_contradicts_one_that_was_counted_is_refused() {
    let log = log();
    let mut core = leader(&log.state);
    let (first, last) = (log.holder(1), log.holder(2));
    core.handle(from(1, reported(first, report()))).expect("it is counted");
    core.handle(from(1, reported(first, report()))).expect("a repeated report changes nothing");
    let other =
        GradientReport { sums: vec![sum(LayerId(1), 0.5), sum(LayerId(0), 0.125)], ..report() };
    check(&mut core, from(1, reported(first, other)), "contradicting-report");
    let loss = |loss| GradientReport {
        stage: StageIndex(1),
        sums: vec![sum(LayerId(2), 0.5), sum(LayerId(3), 0.5)],
        loss_sum: Some(loss),
        ..report()
    };
    core.handle(from(2, reported(last, loss(2.0)))).expect("it is counted");
    check(&mut core, from(2, reported(last, loss(2.5))), "contradicting-report");
    core.handle(from(2, reported(last, loss(2.0)))).expect("the first stands");
}

#[test]
fn what_nobody_asked_for_is_refused() {
    let log = log();
    let mut core = leader(&log.state);
    let holder = log.holder(1);
    let held = HeldLayer { layer: LayerId(0), version: Step(1), digest: digest(0, 1) };
    let inventory = |layers| Message::Inventory { holder, index: u64::MAX, layers };
    check(&mut core, from(1, inventory(vec![held])), "unasked");
    check(&mut core, from(1, inventory(vec![held; 4 * HELD_VERSIONS_MAX])), "unasked");
    let many = inventory(vec![held; 4 * HELD_VERSIONS_MAX + 1]);
    check(&mut core, from(1, many), "too-many-held");
    let unknown = HeldLayer { layer: LayerId(4), ..held };
    check(&mut core, from(1, inventory(vec![unknown])), "unknown-layer");
    let (version, generation) = (Step(4), OPEN.generation);
    let saved = |layers| Message::Saved { holder, version, generation, layers, busy_milliticks: 0 };
    check(&mut core, from(1, saved(digests([LayerId(0)], 4))), "unasked");
    check(&mut core, from(1, saved(digests([LayerId(4)], 4))), "unknown-layer");
    for (generation, reason) in [(1, "other-generation"), (2, "unasked"), (3, "other-generation")] {
        let generation = Generation(generation);
        let ready = ReadyRecord { generation, holder, layers: Vec::new(), copies: Vec::new() };
        check(&mut core, from(1, Message::Ready(ready)), reason);
        let failed =
            Message::LoadFailed { holder, generation, layer: LayerId(0), cause: LoadFault::Source };
        check(&mut core, from(1, failed), reason);
    }
    let unsolvable = crate::duty::PlanUnsolvable { nodes: 1, reason: "none".to_owned() };
    for number in [0, 1, u64::MAX] {
        let solution = Box::new(Err(unsolvable.clone()));
        check(&mut core, Input::Solved { number, solution }, "unasked-plan");
    }
}

fn join(boot: u64) -> Message {
    Message::Join { boot, role: Role::Worker, resources: RESOURCES, contact: contact(1) }
}

#[test]
fn who_may_not_come_is_not_admitted() {
    let mut log = log();
    log.vouch(1000..=1000 + MEMBERS_MAX as u64);
    let mut core = leader(&log.state);
    // Nothing is durable meanwhile, so no node is admitted.
    for node in 0..MEMBERS_MAX as u64 {
        core.handle(from(1000 + node, join(1))).expect("there is room");
    }
    while core.poll_output().is_some() {}
    let next = 1000 + MEMBERS_MAX as u64;
    check(&mut core, from(next, join(1)), "too-many-changes");
    core.handle(from(1000, join(1))).expect("it waits already");
    let holder = log.holder(1);
    check(&mut core, from(1, Message::Drain { holder }), "too-many-changes");
}

/// The answers of a controller to a request for admission that it refuses.
fn refused_join(core: &mut Core, node: u64, boot: u64) -> Vec<Message> {
    assert!(matches!(core.handle(from(node, join(boot))), Err(CoreRefusal::Worker(_))));
    let messages = persist(core).into_iter().map(|output| {
        let Output::Send { to, message } = output else { panic!("{output:?}") };
        assert_eq!(to, n(node));
        message.message
    });
    messages.collect()
}

/// A drained process ends, and does not come back before somebody starts it again.
#[test]
fn a_process_that_was_drained_is_not_admitted_again_and_another_start_is() {
    let mut log = log();
    log.join(4);
    let reason = LossReason::Drained;
    log.apply(Entry::Members(vec![MemberChange::Lost { holder: log.holder(4), reason }]));
    let mut core = leader(&log.state);
    let cause = AdmissionRefusal::Drained;
    for boot in [2, BOOTS_PER_START - 1] {
        assert_eq!(refused_join(&mut core, 4, boot), [Message::NotAdmitted { boot, cause }]);
    }
    core.handle(from(4, join(BOOTS_PER_START))).expect("it was started again");
}

/// An ephemeral node whose credential is forgotten, or one that is not trusted, learns that it need
/// not ask again.
#[test]
fn a_worker_without_a_credential_is_refused_with_that_reason() {
    let mut core = leader(&log().state);
    let cause = AdmissionRefusal::NoCredential;
    assert_eq!(refused_join(&mut core, 5, 100), [Message::NotAdmitted { boot: 100, cause }]);
    assert_eq!(core.refusals()["no-credential"], 1);
}

/// It was admitted with this start, and counted as lost before the answer reached it.
#[test]
fn who_asks_with_a_start_that_is_used_up_is_told_so() {
    let mut core = leader(&log().state);
    for boot in [0, 1] {
        let refused = core.handle(from(3, join(boot)));
        assert!(matches!(refused, Err(CoreRefusal::Worker(_))));
        let outputs = persist(&mut core);
        let [Output::Send { to, message }] = &outputs[..] else { panic!("{outputs:?}") };
        assert_eq!((*to, &message.message), (n(3), &Message::Spent { boot: 1 }));
    }
    core.handle(from(3, join(2))).expect("a later start is admitted");
}

/// A member that repeats its request because the answer was lost is answered, and nothing is
/// proposed.
#[test]
fn a_member_that_asks_again_is_told_that_it_was_admitted() {
    let log = log();
    let mut core = leader(&log.state);
    let refused = core.handle(from(1, join(1)));
    assert!(matches!(refused, Err(CoreRefusal::Worker(_))));
    let outputs = persist(&mut core);
    let [Output::Send { to, message }] = &outputs[..] else { panic!("{outputs:?}") };
    let Message::Briefing(briefing) = &message.message else { panic!("{message:?}") };
    assert_eq!((*to, briefing.you), (n(1), Some((1, log.holder(1).incarnation))));
}

#[test]
fn commands_that_make_no_sense_are_refused() {
    let log = log();
    let mut core = leader(&log.state);
    check(&mut core, Input::Command(OperatorCommand::Remove(n(9))), "unknown-node");
    let large = JobSpec { layer_tensors: vec![1; 2 << 20], ..spec() };
    let large = OperatorCommand::Job(JobChange::Start(Arc::new(large)));
    check(&mut core, Input::Command(large), "job-size");
    for node in [1, 9].map(n) {
        check(&mut core, Input::Command(OperatorCommand::TransferLeader(node)), "not-a-voter");
    }
    let leads = Input::Command(OperatorCommand::TransferLeader(n(CONTROLLER)));
    core.handle(leads).expect("it leads already");
}

#[test]
fn a_follower_takes_no_commands_and_no_news() {
    let log = log();
    let mut core = recovered(&log.state).expect("the disk is usable");
    persist(&mut core);
    assert!(core.duties().is_none());
    let leader = core.status().leader;
    for command in [
        OperatorCommand::Job(JobChange::Pause),
        OperatorCommand::Remove(n(1)),
        OperatorCommand::TransferLeader(n(CONTROLLER)),
    ] {
        check(&mut core, Input::Command(command), "not-leader");
    }
    let holder = log.holder(1);
    for message in [reported(holder, report()), Message::Drain { holder }] {
        check(&mut core, from(1, message.clone()), "not-leader");
        let refusal = core.handle(from(1, message));
        assert!(
            matches!(refusal, Err(CoreRefusal::NotLeader { leader: found }) if found == leader)
        );
    }
    check(&mut core, from(9, join(1)), "not-leader");
    let number = 1;
    let solution = Box::new(Ok(crate::fixture::solution(2, zbelastic_schedule::Window::One)));
    check(&mut core, Input::Solved { number, solution }, "unasked-plan");
    core.handle(Input::Closed { node: n(1), end: ConnectionEnd::Closed })
        .expect("a follower ignores it");
    assert_eq!(persist(&mut core), []);
}

fn beat(holder: Holder, known: u64) -> Message {
    let (generation, pulse) = (OPEN.generation, WorkerActivity::default());
    Message::Beat { holder, known, generation, contacts: 0, pulse }
}

/// The receivers of briefings, each with the boot and incarnation that its briefing names.
fn briefed(outputs: &[Output]) -> Vec<(NodeId, Option<(u64, Incarnation)>)> {
    let briefed = outputs.iter().filter_map(|output| {
        let Output::Send { to, message } = output else { return None };
        let Message::Briefing(briefing) = &message.message else { return None };
        Some((*to, briefing.you))
    });
    briefed.collect()
}

/// A node that was fenced off learns it from the answer, or it would never request to come back.
#[test]
fn a_beat_of_the_fenced_is_refused_and_answered() {
    let log = log();
    let mut core = leader(&log.state);
    let before = codec::encode(core.state());
    let refused = core.handle(from(3, beat(fenced(), u64::MAX)));
    assert!(matches!(refused, Err(CoreRefusal::Worker(_))), "{refused:?}");
    assert_eq!(core.refusals()["fenced"], 1);
    assert_eq!(codec::encode(core.state()), before);
    assert_eq!(briefed(&persist(&mut core)), [(n(3), None)]);
}

/// A follower that lags behind must not send a member that it does not know yet a briefing without
/// an incarnation.
#[test]
fn a_follower_does_not_send_away_who_was_admitted_after_what_it_knows() {
    let log = log();
    let mut core = recovered(&log.state).expect("the disk is usable");
    persist(&mut core);
    let applied = core.state().applied();
    let later = Holder { node: n(7), incarnation: Incarnation(applied + 1) };
    core.handle(from(7, beat(later, 0))).expect("it may be somebody");
    assert_eq!(persist(&mut core), []);
    let known = Holder { node: n(7), incarnation: Incarnation(applied) };
    core.handle(from(7, beat(known, 0))).expect("a follower refuses no beat");
    assert_eq!(briefed(&persist(&mut core)), [(n(7), None)]);
}
