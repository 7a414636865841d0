//! Coming in, going, and being sent away.

use std::sync::Arc;

use zbelastic_types::{ClusterId, Incarnation, NodeId, Step};

use super::harness::{BOOT, BriefingContent, CONTROLLERS, NODE, SessionHarness, TIMING, briefing};
use crate::contact::Contacts;
use crate::entry::Entry;
use crate::fixture::{CLUSTER, FixtureLog, RESOURCES, contact, spec};
use crate::member::{Holder, Role};
use crate::message::{Briefing, Message};
use crate::session::{BriefingRefusal, SessionInput, WorkerCommand, WorkerEvent};

fn join(boot: u64) -> Message {
    Message::Join { boot, role: Role::Worker, resources: RESOURCES, contact: contact(1) }
}

/// Checks that the seat sends all controllers an admission request twice within two resend intervals.
fn check_admission_requests(bench: &mut SessionHarness, boot: u64) {
    bench.sent.clear();
    bench.tick(2 * TIMING.resend_ticks);
    let expected = CONTROLLERS.map(|to| (to, join(boot)));
    assert_eq!(bench.take_messages(), [expected.clone(), expected].concat());
}

#[test]
fn a_seat_asks_all_controllers_until_it_is_admitted() {
    let mut bench = SessionHarness::new();
    check_admission_requests(&mut bench, BOOT);
    let mut log = FixtureLog::empty();
    log.join(NODE.0);
    bench.brief(&log, BriefingContent::All);
    assert_eq!(bench.session.holder(), Some(log.holder(NODE.0)));
    bench.tick(2 * TIMING.resend_ticks);
    assert_eq!(bench.take_messages(), []);
}

#[test]
fn a_member_says_that_it_is_there_and_what_it_knows() {
    let log = FixtureLog::running(spec(), &[1, 2]);
    let mut bench = SessionHarness::briefed(&log);
    bench.tick(TIMING.beat_ticks - 1);
    assert_eq!(bench.sent, []);
    bench.tick(1);
    let (holder, known) = (log.holder(1), log.state.applied());
    let (generation, pulse) = (log.state.generation(), Default::default());
    let beat = Message::Beat { holder, known, generation, contacts: 0, pulse };
    assert_eq!(bench.sent, CONTROLLERS.map(|to| (to, beat.clone())));
}

/// A briefing that is refused leaves the seat as it was.
fn check_refused(bench: &mut SessionHarness, briefing: Briefing, expected: BriefingRefusal) {
    let before = format!("{:?}", bench.session);
    assert_eq!(bench.try_brief(CONTROLLERS[0], briefing), Err(expected));
    assert_eq!(format!("{:?}", bench.session), before);
    assert_eq!((bench.take_commands(), bench.take_messages()), (vec![], vec![]));
}

#[test]
fn briefings_of_another_cluster_are_refused() {
    let log = FixtureLog::running(spec(), &[1]);
    let mut bench = SessionHarness::new();
    let found = ClusterId(CLUSTER.0 + 1);
    let foreign = Message::Briefing(Box::new(briefing(&log, BriefingContent::All)));
    let refusal = BriefingRefusal::OtherCluster { expected: CLUSTER, found };
    assert_eq!(bench.try_send(found, CONTROLLERS[0], foreign), Err(refusal));
    assert_eq!((bench.session.holder(), bench.commands.len()), (None, 0));
}

#[test]
fn only_controllers_are_listened_to_and_only_briefings_of_theirs() {
    let log = FixtureLog::running(spec(), &[1]);
    let mut bench = SessionHarness::new();
    let refusal = BriefingRefusal::NotAController { from: NodeId(2) };
    assert_eq!(bench.try_brief(NodeId(2), briefing(&log, BriefingContent::All)), Err(refusal));
    let other = Message::Leave { holder: log.holder(1) };
    let refused = bench.try_send(CLUSTER, CONTROLLERS[0], other);
    assert_eq!(refused, Err(BriefingRefusal::NotForWorkers));
    assert_eq!((bench.session.holder(), bench.commands.len()), (None, 0));
}

#[test]
fn a_briefing_about_another_start_of_the_node_is_not_mine() {
    let log = FixtureLog::running(spec(), &[1]);
    let mut bench = SessionHarness::new();
    for you in [None, Some((BOOT - 1, Incarnation(1))), Some((BOOT + 1, Incarnation(9)))] {
        let other = Briefing { you, ..briefing(&log, BriefingContent::All) };
        check_refused(&mut bench, other, BriefingRefusal::NotMine);
    }
}

/// Requests go to the controllers of the setup until a briefing names the members; then to those it names.
#[test]
fn a_seat_follows_the_controllers_that_it_is_told_of() {
    let mut log = FixtureLog::empty();
    log.join(NODE.0);
    let mut bench = SessionHarness::briefed(&log);
    assert!(bench.session.controllers().into_iter().eq(CONTROLLERS));
    let members = [(NodeId(102), (Role::Controller, contact(102)))];
    let told = |index, members: &[_]| {
        let contacts =
            Contacts { index, members: members.iter().cloned().collect(), ..Contacts::default() };
        Briefing {
            contacts: Some(Arc::new(contacts).into()),
            ..briefing(&log, BriefingContent::Changes)
        }
    };
    bench.try_brief(CONTROLLERS[0], told(7, &members)).expect("it belongs");
    assert!(bench.session.controllers().into_iter().eq([NodeId(102)]));
    bench.try_brief(NodeId(102), told(6, &[])).expect("it is listened to");
    assert_eq!(bench.session.contacts().index, 7, "what is older is known better");
    bench.sent.clear();
    bench.tick(TIMING.beat_ticks);
    let [(to, Message::Beat { contacts, .. })] = &bench.sent[..] else {
        panic!("{:?}", bench.sent)
    };
    assert_eq!((*to, *contacts), (NodeId(102), 7), "it says what it knows");
    log.lose(NODE.0);
    bench.brief(&log, BriefingContent::Changes);
    let all = [CONTROLLERS[0], CONTROLLERS[1], NodeId(102)];
    assert!(bench.session.controllers().into_iter().eq(all), "all that it knows may be gone");
    let (cluster, controllers) = (ClusterId(CLUSTER.0 + 1), vec![NodeId(200)]);
    bench.input(SessionInput::Controllers { cluster, controllers }).expect("it is taken");
    assert!(bench.session.controllers().into_iter().eq([NodeId(200)]));
}

/// A controller that lags behind sends what was; even that the receiver is no member.
#[test]
fn a_briefing_that_is_older_than_what_is_known_is_refused() {
    let mut log = FixtureLog::running(spec(), &[1]);
    let old = briefing(&log, BriefingContent::All);
    log.keep(1);
    let mut bench = SessionHarness::briefed(&log);
    bench.take_commands();
    let (known, found) = (log.state.applied(), old.index);
    let before_admission = Briefing { you: None, ..old.clone() };
    check_refused(&mut bench, old, BriefingRefusal::Old { known, found });
    check_refused(&mut bench, before_admission, BriefingRefusal::Old { known, found });
    assert!(bench.session.holder().is_some());
}

/// Failure 10: a node that was fenced off forgets everything, and comes back as another life.
#[test]
fn who_was_fenced_off_forgets_and_asks_with_a_later_start() {
    let mut log = FixtureLog::running(spec(), &[1, 2]);
    let first = log.holder(1);
    let mut bench = SessionHarness::briefed(&log);
    bench.take_commands();
    log.lose(1);
    bench.brief(&log, BriefingContent::Changes);
    assert_eq!(bench.take_commands(), [WorkerCommand::Forget]);
    assert_eq!((bench.session.holder(), bench.session.generation()), (None, None));
    check_refused(&mut bench, briefing(&log, BriefingContent::All), BriefingRefusal::NotMine);
    check_admission_requests(&mut bench, BOOT + 1);
    log.apply(Entry::Members(vec![crate::fixture::admit(1, BOOT + 1)]));
    let second = log.holder(1);
    bench.brief(&log, BriefingContent::All);
    assert_eq!(bench.session.holder(), Some(second));
    assert!(second > first);
}

/// A node that was fenced off while it computed lives on, and only an operation that takes longer than its
/// plan allows has hung.
#[test]
fn an_operation_has_hung_if_it_takes_longer_than_its_plan_allows() {
    let mut log = FixtureLog::running(spec(), &[1, 2]);
    let mut bench = SessionHarness::briefed(&log);
    let ticks_max = log.state.plan().expect("one runs").record.op_ticks_max;
    bench.tick(2 * ticks_max);
    assert!(!bench.session.has_hung_operation(), "none is under way");
    bench.event(WorkerEvent::Busy { is_busy: true });
    log.lose(1);
    bench.brief(&log, BriefingContent::Changes);
    assert!(!bench.session.has_hung_operation(), "it has just begun");
    bench.tick(ticks_max - 1);
    assert!(!bench.session.has_hung_operation(), "so long it may take");
    bench.tick(1);
    assert!(bench.session.has_hung_operation());
    bench.event(WorkerEvent::Busy { is_busy: false });
    assert!(!bench.session.has_hung_operation(), "it ended after all");
}

/// A later start of the node was admitted: this life is over, and the other is not this seat's.
#[test]
fn a_life_that_another_start_took_over_is_over() {
    let mut log = FixtureLog::running(spec(), &[1, 2]);
    let mut bench = SessionHarness::briefed(&log);
    bench.take_commands();
    let later = log.join(1);
    bench.brief(&log, BriefingContent::All);
    assert_eq!(
        (bench.take_commands(), bench.session.holder()),
        (vec![WorkerCommand::Forget], None)
    );
    assert!(log.state.is_live(later));
}

#[test]
fn what_was_untold_of_the_life_before_is_not_told_in_the_next() {
    let mut log = FixtureLog::running(spec(), &[1, 2]);
    let mut bench = SessionHarness::briefed(&log);
    let generation = log.state.generation();
    bench.event(WorkerEvent::Saved {
        version: Step(4),
        generation,
        layers: Vec::new(),
        busy_milliticks: 0,
    });
    log.lose(1);
    bench.brief(&log, BriefingContent::Changes);
    log.apply(Entry::Members(vec![crate::fixture::admit(1, BOOT + 1)]));
    bench.brief(&log, BriefingContent::All);
    assert_eq!(bench.resent_messages(), []);
}

/// A machine that is about to go is so in whatever life. It does not request admission; if it did before,
/// the first message it sends as a member is that it is about to go.
#[test]
fn who_is_about_to_go_does_not_come_in_as_one_that_stays() {
    let mut log = FixtureLog::running(spec(), &[1, 2]);
    let mut bench = SessionHarness::new();
    bench.tick(TIMING.resend_ticks);
    bench.take_messages();
    bench.input(SessionInput::Drain).expect("it is taken");
    bench.tick(2 * TIMING.resend_ticks);
    assert_eq!(bench.take_messages(), [], "nobody knows it");
    for boot in [BOOT, BOOT + 1] {
        if boot > BOOT {
            log.lose(1);
            bench.brief(&log, BriefingContent::Changes);
            assert_eq!(bench.resent_messages(), [], "it was fenced off, and asks no more");
            log.apply(Entry::Members(vec![crate::fixture::admit(1, boot)]));
        }
        bench.brief(&log, BriefingContent::All);
        let drain = Message::Drain { holder: log.holder(1) };
        assert_eq!(bench.take_messages(), CONTROLLERS.map(|to| (to, drain.clone())));
        assert_eq!(bench.resent_messages(), [drain]);
    }
}

/// A forced recovery makes another cluster: members of the old one are strangers to it.
#[test]
fn controllers_of_another_cluster_are_asked_anew() {
    let log = FixtureLog::running(spec(), &[1]);
    let mut bench = SessionHarness::briefed(&log);
    bench.take_commands();
    let controllers = CONTROLLERS.to_vec();
    let same = SessionInput::Controllers { cluster: CLUSTER, controllers: controllers.clone() };
    bench.input(same).expect("it is taken");
    assert_eq!((bench.take_commands(), bench.session.holder()), (vec![], Some(log.holder(1))));
    let cluster = ClusterId(CLUSTER.0 + 1);
    bench.input(SessionInput::Controllers { cluster, controllers }).expect("it is taken");
    assert_eq!(
        (bench.take_commands(), bench.session.holder()),
        (vec![WorkerCommand::Forget], None)
    );
    let found = CLUSTER;
    let refusal = BriefingRefusal::OtherCluster { expected: cluster, found };
    assert_eq!(bench.try_brief(CONTROLLERS[0], briefing(&log, BriefingContent::All)), Err(refusal));
}

#[test]
fn who_leaves_says_so_if_it_is_a_member() {
    let mut bench = SessionHarness::new();
    bench.input(SessionInput::Leave).expect("it is taken");
    assert_eq!(bench.take_messages(), []);
    let log = FixtureLog::running(spec(), &[1]);
    let mut bench = SessionHarness::briefed(&log);
    bench.input(SessionInput::Leave).expect("it is taken");
    let leave = Message::Leave { holder: log.holder(1) };
    assert_eq!(bench.take_messages(), CONTROLLERS.map(|to| (to, leave.clone())));
    let unchanged: Holder = log.holder(1);
    assert_eq!(bench.session.holder(), Some(unchanged), "it is a member until that is agreed");
}

/// It was admitted, and counted as lost before it received that.
#[test]
fn a_seat_whose_start_is_used_up_asks_with_a_later_one() {
    let mut bench = SessionHarness::new();
    let tell = |bench: &mut SessionHarness, boot| {
        bench.try_send(CLUSTER, CONTROLLERS[0], Message::Spent { boot })
    };
    assert_eq!(tell(&mut bench, BOOT - 1), Err(BriefingRefusal::NotMine));
    check_admission_requests(&mut bench, BOOT);
    assert_eq!(tell(&mut bench, BOOT), Ok(()));
    check_admission_requests(&mut bench, BOOT + 1);
    let mut log = FixtureLog::empty();
    log.apply(Entry::Members(vec![crate::fixture::admit(NODE.0, BOOT + 1)]));
    bench.brief(&log, BriefingContent::All);
    assert_eq!(tell(&mut bench, BOOT + 1), Err(BriefingRefusal::NotMine), "it is a member");
    assert_eq!(bench.session.holder(), Some(log.holder(NODE.0)));
}
