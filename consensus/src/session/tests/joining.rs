//! Coming in, going, and being sent away.

use std::sync::Arc;

use zbelastic_types::{ClusterId, Incarnation, NodeId, Step};

use super::harness::{BOOT, BriefingContent, CONTROLLERS, NODE, SessionHarness, TIMING, briefing};
use crate::contacts::Contacts;
use crate::entry::Entry;
use crate::fixture::{CLUSTER, FixtureLog, RESOURCES, contact, spec};
use crate::member::{AdmissionRefusal, Holder, Role};
use crate::message::{Briefing, Message};
use crate::session::{BriefingRefusal, SessionInput, WorkerCommand, WorkerEvent};

fn join(boot: u64) -> Message {
    Message::Join { boot, role: Role::Worker, resources: RESOURCES, contact: contact(1) }
}

/// Checks that the session sends all controllers an admission request twice within two resend
/// intervals.
fn check_admission_requests(harness: &mut SessionHarness, boot: u64) {
    harness.sent.clear();
    harness.tick(2 * TIMING.resend_ticks);
    let expected = CONTROLLERS.map(|to| (to, join(boot)));
    assert_eq!(harness.take_messages(), [expected.clone(), expected].concat());
}

#[test]
fn a_seat_asks_all_controllers_until_it_is_admitted() {
    let mut harness = SessionHarness::new();
    check_admission_requests(&mut harness, BOOT);
    let mut log = FixtureLog::empty();
    log.join(NODE.0);
    harness.brief(&log, BriefingContent::All);
    assert_eq!(harness.session.holder(), Some(log.holder(NODE.0)));
    harness.tick(2 * TIMING.resend_ticks);
    assert_eq!(harness.take_messages(), []);
}

#[test]
fn a_member_says_that_it_is_there_and_what_it_knows() {
    let log = FixtureLog::running(spec(), &[1, 2]);
    let mut harness = SessionHarness::briefed(&log);
    harness.tick(TIMING.beat_ticks - 1);
    assert_eq!(harness.sent, []);
    harness.tick(1);
    let (holder, known) = (log.holder(1), log.state.applied());
    let (generation, pulse) = (log.state.generation(), Default::default());
    let beat = Message::Beat { holder, known, generation, contacts: 0, pulse };
    assert_eq!(harness.sent, CONTROLLERS.map(|to| (to, beat.clone())));
}

/// A briefing that is refused leaves the session as it was.
fn check_refused(harness: &mut SessionHarness, briefing: Briefing, expected: BriefingRefusal) {
    let before = format!("{:?}", harness.session);
    assert_eq!(harness.try_brief(CONTROLLERS[0], briefing), Err(expected));
    assert_eq!(format!("{:?}", harness.session), before);
    assert_eq!((harness.take_commands(), harness.take_messages()), (vec![], vec![]));
}

#[test]
fn briefings_of_another_cluster_are_refused() {
    let log = FixtureLog::running(spec(), &[1]);
    let mut harness = SessionHarness::new();
    let found = ClusterId(CLUSTER.0 + 1);
    let foreign = Message::Briefing(Box::new(briefing(&log, BriefingContent::All)));
    let refusal = BriefingRefusal::OtherCluster { expected: CLUSTER, found };
    assert_eq!(harness.try_send(found, CONTROLLERS[0], foreign), Err(refusal));
    assert_eq!((harness.session.holder(), harness.commands.len()), (None, 0));
}

#[test]
fn only_controllers_are_listened_to_and_only_briefings_of_theirs() {
    let log = FixtureLog::running(spec(), &[1]);
    let mut harness = SessionHarness::new();
    let refusal = BriefingRefusal::NotAController { from: NodeId(2) };
    assert_eq!(harness.try_brief(NodeId(2), briefing(&log, BriefingContent::All)), Err(refusal));
    let other = Message::Leave { holder: log.holder(1) };
    let refused = harness.try_send(CLUSTER, CONTROLLERS[0], other);
    assert_eq!(refused, Err(BriefingRefusal::NotForWorkers));
    assert_eq!((harness.session.holder(), harness.commands.len()), (None, 0));
}

#[test]
fn a_briefing_about_another_start_of_the_node_is_not_mine() {
    let log = FixtureLog::running(spec(), &[1]);
    let mut harness = SessionHarness::new();
    for you in [None, Some((BOOT - 1, Incarnation(1))), Some((BOOT + 1, Incarnation(9)))] {
        let other = Briefing { you, ..briefing(&log, BriefingContent::All) };
        check_refused(&mut harness, other, BriefingRefusal::NotMine);
    }
}

/// Requests go to the controllers of the setup until a briefing names the members; then to those it
/// names.
#[test]
fn a_seat_follows_the_controllers_that_it_is_told_of() {
    let mut log = FixtureLog::empty();
    log.join(NODE.0);
    let mut harness = SessionHarness::briefed(&log);
    assert!(harness.session.controllers().into_iter().eq(CONTROLLERS));
    let members = [(NodeId(102), (Role::Controller, contact(102)))];
    let contacts_at = |index, members: &[_]| {
        let contacts =
            Contacts { index, members: members.iter().cloned().collect(), ..Contacts::default() };
        Briefing {
            contacts: Some(Arc::new(contacts).into()),
            ..briefing(&log, BriefingContent::Changes)
        }
    };
    harness.try_brief(CONTROLLERS[0], contacts_at(7, &members)).expect("it belongs");
    assert!(harness.session.controllers().into_iter().eq([NodeId(102)]));
    harness.try_brief(NodeId(102), contacts_at(6, &[])).expect("it is listened to");
    assert_eq!(harness.session.contacts().index, 7, "what is older is known better");
    harness.sent.clear();
    harness.tick(TIMING.beat_ticks);
    let [(to, Message::Beat { contacts, .. })] = &harness.sent[..] else {
        panic!("{:?}", harness.sent)
    };
    assert_eq!((*to, *contacts), (NodeId(102), 7), "it says what it knows");
    log.lose(NODE.0);
    harness.brief(&log, BriefingContent::Changes);
    let all = [CONTROLLERS[0], CONTROLLERS[1], NodeId(102)];
    assert!(harness.session.controllers().into_iter().eq(all), "all that it knows may be gone");
    let (cluster, controllers) = (ClusterId(CLUSTER.0 + 1), vec![NodeId(200)]);
    harness.input(SessionInput::Controllers { cluster, controllers }).expect("it is taken");
    assert!(harness.session.controllers().into_iter().eq([NodeId(200)]));
}

/// A controller that lags behind sends what was; even that the receiver is no member.
#[test]
fn a_briefing_that_is_older_than_what_is_known_is_refused() {
    let mut log = FixtureLog::running(spec(), &[1]);
    let old = briefing(&log, BriefingContent::All);
    log.keep(1);
    let mut harness = SessionHarness::briefed(&log);
    harness.take_commands();
    let (known, found) = (log.state.applied(), old.index);
    let before_admission = Briefing { you: None, ..old.clone() };
    check_refused(&mut harness, old, BriefingRefusal::Old { known, found });
    check_refused(&mut harness, before_admission, BriefingRefusal::Old { known, found });
    assert!(harness.session.holder().is_some());
}

/// Failure 10: a node that was fenced off gives up what is not sealed, and comes back as another
/// life.
#[test]
fn who_was_fenced_off_ends_that_life_and_requests_admission_with_a_later_start() {
    let mut log = FixtureLog::running(spec(), &[1, 2]);
    let first = log.holder(1);
    let mut harness = SessionHarness::briefed(&log);
    harness.take_commands();
    log.lose(1);
    harness.brief(&log, BriefingContent::Changes);
    assert_eq!(harness.take_commands(), [WorkerCommand::EndLife]);
    assert_eq!((harness.session.holder(), harness.session.generation()), (None, None));
    check_refused(&mut harness, briefing(&log, BriefingContent::All), BriefingRefusal::NotMine);
    check_admission_requests(&mut harness, BOOT + 1);
    log.apply(Entry::Members(vec![crate::fixture::admit(1, BOOT + 1)]));
    let second = log.holder(1);
    harness.brief(&log, BriefingContent::All);
    assert_eq!(harness.session.holder(), Some(second));
    assert!(second > first);
}

/// A node that was fenced off while it computed lives on, and only an operation that takes longer
/// than its plan allows has hung.
#[test]
fn an_operation_has_hung_if_it_takes_longer_than_its_plan_allows() {
    let mut log = FixtureLog::running(spec(), &[1, 2]);
    let mut harness = SessionHarness::briefed(&log);
    let ticks_max = log.state.plan().expect("one runs").record.op_ticks_max;
    harness.tick(2 * ticks_max);
    assert!(!harness.session.has_hung_operation(), "none is under way");
    harness.event(WorkerEvent::Busy { is_busy: true });
    log.lose(1);
    harness.brief(&log, BriefingContent::Changes);
    assert!(!harness.session.has_hung_operation(), "it has just begun");
    harness.tick(ticks_max - 1);
    assert!(!harness.session.has_hung_operation(), "so long it may take");
    harness.tick(1);
    assert!(harness.session.has_hung_operation());
    harness.event(WorkerEvent::Busy { is_busy: false });
    assert!(!harness.session.has_hung_operation(), "it ended after all");
}

/// A later start of the node was admitted: this life is over, and the other is not this session's.
#[test]
fn a_life_that_another_start_took_over_is_over() {
    let mut log = FixtureLog::running(spec(), &[1, 2]);
    let mut harness = SessionHarness::briefed(&log);
    harness.take_commands();
    let later = log.join(1);
    harness.brief(&log, BriefingContent::All);
    assert_eq!(
        (harness.take_commands(), harness.session.holder()),
        (vec![WorkerCommand::EndLife], None)
    );
    assert!(log.state.is_live(later));
}

#[test]
fn what_was_untold_of_the_life_before_is_not_told_in_the_next() {
    let mut log = FixtureLog::running(spec(), &[1, 2]);
    let mut harness = SessionHarness::briefed(&log);
    let generation = log.state.generation();
    harness.event(WorkerEvent::Saved {
        version: Step(4),
        generation,
        layers: Vec::new(),
        busy_milliticks: 0,
    });
    log.lose(1);
    harness.brief(&log, BriefingContent::Changes);
    log.apply(Entry::Members(vec![crate::fixture::admit(1, BOOT + 1)]));
    harness.brief(&log, BriefingContent::All);
    assert_eq!(harness.resent_messages(), []);
}

/// A machine that is about to go is so in whatever life. It does not request admission; if it did
/// before, the first message it sends as a member is that it is about to go.
#[test]
fn who_is_about_to_go_does_not_come_in_as_one_that_stays() {
    let mut log = FixtureLog::running(spec(), &[1, 2]);
    let mut harness = SessionHarness::new();
    harness.tick(TIMING.resend_ticks);
    harness.take_messages();
    harness.input(SessionInput::Drain).expect("it is taken");
    harness.tick(2 * TIMING.resend_ticks);
    assert_eq!(harness.take_messages(), [], "nobody knows it");
    for boot in [BOOT, BOOT + 1] {
        if boot > BOOT {
            log.lose(1);
            harness.brief(&log, BriefingContent::Changes);
            assert_eq!(harness.resent_messages(), [], "it was fenced off, and asks no more");
            log.apply(Entry::Members(vec![crate::fixture::admit(1, boot)]));
        }
        harness.brief(&log, BriefingContent::All);
        let drain = Message::Drain { holder: log.holder(1) };
        assert_eq!(harness.take_messages(), CONTROLLERS.map(|to| (to, drain.clone())));
        assert_eq!(harness.resent_messages(), [drain]);
    }
}

/// A forced recovery makes another cluster: members of the old one are strangers to it.
#[test]
fn controllers_of_another_cluster_are_asked_anew() {
    let log = FixtureLog::running(spec(), &[1]);
    let mut harness = SessionHarness::briefed(&log);
    harness.take_commands();
    let controllers = CONTROLLERS.to_vec();
    let same = SessionInput::Controllers { cluster: CLUSTER, controllers: controllers.clone() };
    harness.input(same).expect("it is taken");
    assert_eq!((harness.take_commands(), harness.session.holder()), (vec![], Some(log.holder(1))));
    let cluster = ClusterId(CLUSTER.0 + 1);
    harness.input(SessionInput::Controllers { cluster, controllers }).expect("it is taken");
    assert_eq!(
        (harness.take_commands(), harness.session.holder()),
        (vec![WorkerCommand::Forget], None)
    );
    let found = CLUSTER;
    let refusal = BriefingRefusal::OtherCluster { expected: cluster, found };
    assert_eq!(
        harness.try_brief(CONTROLLERS[0], briefing(&log, BriefingContent::All)),
        Err(refusal)
    );
}

#[test]
fn who_leaves_says_so_if_it_is_a_member() {
    let mut harness = SessionHarness::new();
    harness.input(SessionInput::Leave).expect("it is taken");
    assert_eq!(harness.take_messages(), []);
    let log = FixtureLog::running(spec(), &[1]);
    let mut harness = SessionHarness::briefed(&log);
    harness.input(SessionInput::Leave).expect("it is taken");
    let leave = Message::Leave { holder: log.holder(1) };
    assert_eq!(harness.take_messages(), CONTROLLERS.map(|to| (to, leave.clone())));
    let unchanged: Holder = log.holder(1);
    assert_eq!(harness.session.holder(), Some(unchanged), "it is a member until that is agreed");
}

/// Only a process that requests admission with the start that was refused ends for that.
#[test]
fn a_process_that_will_not_be_admitted_ends() {
    let mut harness = SessionHarness::new();
    let refuse = |harness: &mut SessionHarness, boot| {
        let cause = AdmissionRefusal::Drained;
        harness.try_send(CLUSTER, CONTROLLERS[0], Message::NotAdmitted { boot, cause })
    };
    assert_eq!(refuse(&mut harness, BOOT - 1), Err(BriefingRefusal::NotMine));
    let mut log = FixtureLog::empty();
    log.join(NODE.0);
    let mut member = SessionHarness::briefed(&log);
    assert_eq!(refuse(&mut member, BOOT), Err(BriefingRefusal::NotMine));
    assert_eq!([harness.ended, member.ended], [None; 2]);
    assert_eq!(refuse(&mut harness, BOOT), Ok(()));
    assert_eq!(harness.ended, Some(AdmissionRefusal::Drained));
}

/// It was admitted, and counted as lost before it received that.
#[test]
fn a_seat_whose_start_is_used_up_asks_with_a_later_one() {
    let mut harness = SessionHarness::new();
    let tell = |harness: &mut SessionHarness, boot| {
        harness.try_send(CLUSTER, CONTROLLERS[0], Message::Spent { boot })
    };
    assert_eq!(tell(&mut harness, BOOT - 1), Err(BriefingRefusal::NotMine));
    check_admission_requests(&mut harness, BOOT);
    assert_eq!(tell(&mut harness, BOOT), Ok(()));
    check_admission_requests(&mut harness, BOOT + 1);
    let mut log = FixtureLog::empty();
    log.apply(Entry::Members(vec![crate::fixture::admit(NODE.0, BOOT + 1)]));
    harness.brief(&log, BriefingContent::All);
    assert_eq!(tell(&mut harness, BOOT + 1), Err(BriefingRefusal::NotMine), "it is a member");
    assert_eq!(harness.session.holder(), Some(log.holder(NODE.0)));
}
