//! Coming in, going, and being sent away.

use std::sync::Arc;

use zbelastic_types::{ClusterId, Incarnation, NodeId, Step};

use super::bench::{BOOT, Bench, CONTROLLERS, NODE, TIMING, Told, briefing};
use crate::contact::Contacts;
use crate::entry::Entry;
use crate::fixture::{CLUSTER, Log, RESOURCES, contact, spec};
use crate::member::{Holder, Role};
use crate::message::{Briefing, Message};
use crate::seat::{BriefingRefusal, News, Order, SeatInput};

fn join(boot: u64) -> Message {
    Message::Join { boot, role: Role::Worker, resources: RESOURCES, contact: contact(1) }
}

/// Checks that the seat sends all controllers an admission request twice within two resend intervals.
fn asks(bench: &mut Bench, boot: u64) {
    bench.sent.clear();
    bench.tick(2 * TIMING.resend_ticks);
    let expected = CONTROLLERS.map(|to| (to, join(boot)));
    assert_eq!(bench.taken_messages(), [expected.clone(), expected].concat());
}

#[test]
fn a_seat_asks_all_controllers_until_it_is_admitted() {
    let mut bench = Bench::new();
    asks(&mut bench, BOOT);
    let mut log = Log::empty();
    log.join(NODE.0);
    bench.brief(&log, Told::All);
    assert_eq!(bench.seat.holder(), Some(log.holder(NODE.0)));
    bench.tick(2 * TIMING.resend_ticks);
    assert_eq!(bench.taken_messages(), []);
}

#[test]
fn a_member_says_that_it_is_there_and_what_it_knows() {
    let log = Log::running(spec(), &[1, 2]);
    let mut bench = Bench::briefed(&log);
    bench.tick(TIMING.beat_ticks - 1);
    assert_eq!(bench.sent, []);
    bench.tick(1);
    let (holder, known) = (log.holder(1), log.state.applied());
    let (generation, pulse) = (log.state.generation(), Default::default());
    let beat = Message::Beat { holder, known, generation, contacts: 0, pulse };
    assert_eq!(bench.sent, CONTROLLERS.map(|to| (to, beat.clone())));
}

/// A briefing that is refused leaves the seat as it was.
fn check_refused(bench: &mut Bench, briefing: Briefing, expected: BriefingRefusal) {
    let before = format!("{:?}", bench.seat);
    assert_eq!(bench.try_tell(CONTROLLERS[0], briefing), Err(expected));
    assert_eq!(format!("{:?}", bench.seat), before);
    assert_eq!((bench.taken_orders(), bench.taken_messages()), (vec![], vec![]));
}

#[test]
fn briefings_of_another_cluster_are_refused() {
    let log = Log::running(spec(), &[1]);
    let mut bench = Bench::new();
    let found = ClusterId(CLUSTER.0 + 1);
    let foreign = Message::Briefing(Box::new(briefing(&log, Told::All)));
    let refusal = BriefingRefusal::OtherCluster { expected: CLUSTER, found };
    assert_eq!(bench.try_tell_in(found, CONTROLLERS[0], foreign), Err(refusal));
    assert_eq!((bench.seat.holder(), bench.orders.len()), (None, 0));
}

#[test]
fn only_controllers_are_listened_to_and_only_briefings_of_theirs() {
    let log = Log::running(spec(), &[1]);
    let mut bench = Bench::new();
    let refusal = BriefingRefusal::NotAController { from: NodeId(2) };
    assert_eq!(bench.try_tell(NodeId(2), briefing(&log, Told::All)), Err(refusal));
    let other = Message::Leave { holder: log.holder(1) };
    let refused = bench.try_tell_in(CLUSTER, CONTROLLERS[0], other);
    assert_eq!(refused, Err(BriefingRefusal::NotForWorkers));
    assert_eq!((bench.seat.holder(), bench.orders.len()), (None, 0));
}

#[test]
fn a_briefing_about_another_start_of_the_node_is_not_mine() {
    let log = Log::running(spec(), &[1]);
    let mut bench = Bench::new();
    for you in [None, Some((BOOT - 1, Incarnation(1))), Some((BOOT + 1, Incarnation(9)))] {
        let other = Briefing { you, ..briefing(&log, Told::All) };
        check_refused(&mut bench, other, BriefingRefusal::NotMine);
    }
}

/// Requests go to the controllers of the setup until a briefing names the members; then to those it names.
#[test]
fn a_seat_follows_the_controllers_that_it_is_told_of() {
    let mut log = Log::empty();
    log.join(NODE.0);
    let mut bench = Bench::briefed(&log);
    assert!(bench.seat.controllers().into_iter().eq(CONTROLLERS));
    let members = [(NodeId(102), (Role::Controller, contact(102)))];
    let told = |index, members: &[_]| {
        let contacts =
            Contacts { index, members: members.iter().cloned().collect(), ..Contacts::default() };
        Briefing { contacts: Some(Arc::new(contacts).into()), ..briefing(&log, Told::Changes) }
    };
    bench.try_tell(CONTROLLERS[0], told(7, &members)).expect("it belongs");
    assert!(bench.seat.controllers().into_iter().eq([NodeId(102)]));
    bench.try_tell(NodeId(102), told(6, &[])).expect("it is listened to");
    assert_eq!(bench.seat.contacts().index, 7, "what is older is known better");
    bench.sent.clear();
    bench.tick(TIMING.beat_ticks);
    let [(to, Message::Beat { contacts, .. })] = &bench.sent[..] else {
        panic!("{:?}", bench.sent)
    };
    assert_eq!((*to, *contacts), (NodeId(102), 7), "it says what it knows");
    log.lose(NODE.0);
    bench.brief(&log, Told::Changes);
    let all = [CONTROLLERS[0], CONTROLLERS[1], NodeId(102)];
    assert!(bench.seat.controllers().into_iter().eq(all), "all that it knows may be gone");
    let (cluster, controllers) = (ClusterId(CLUSTER.0 + 1), vec![NodeId(200)]);
    bench.input(SeatInput::Controllers { cluster, controllers }).expect("it is taken");
    assert!(bench.seat.controllers().into_iter().eq([NodeId(200)]));
}

/// A controller that lags behind sends what was; even that the receiver is no member.
#[test]
fn a_briefing_that_is_older_than_what_is_known_is_refused() {
    let mut log = Log::running(spec(), &[1]);
    let old = briefing(&log, Told::All);
    log.keep(1);
    let mut bench = Bench::briefed(&log);
    bench.taken_orders();
    let (known, found) = (log.state.applied(), old.index);
    let before_admission = Briefing { you: None, ..old.clone() };
    check_refused(&mut bench, old, BriefingRefusal::Old { known, found });
    check_refused(&mut bench, before_admission, BriefingRefusal::Old { known, found });
    assert!(bench.seat.holder().is_some());
}

/// Failure 10: a node that was fenced off forgets everything, and comes back as another life.
#[test]
fn who_was_fenced_off_forgets_and_asks_with_a_later_start() {
    let mut log = Log::running(spec(), &[1, 2]);
    let first = log.holder(1);
    let mut bench = Bench::briefed(&log);
    bench.taken_orders();
    log.lose(1);
    bench.brief(&log, Told::Changes);
    assert_eq!(bench.taken_orders(), [Order::Forget]);
    assert_eq!((bench.seat.holder(), bench.seat.generation()), (None, None));
    check_refused(&mut bench, briefing(&log, Told::All), BriefingRefusal::NotMine);
    asks(&mut bench, BOOT + 1);
    log.apply(Entry::Members(vec![crate::fixture::admit(1, BOOT + 1)]));
    let second = log.holder(1);
    bench.brief(&log, Told::All);
    assert_eq!(bench.seat.holder(), Some(second));
    assert!(second > first);
}

/// A node that was fenced off while it computed lives on, and only an operation that takes longer than its
/// plan allows has hung.
#[test]
fn an_operation_has_hung_if_it_takes_longer_than_its_plan_allows() {
    let mut log = Log::running(spec(), &[1, 2]);
    let mut bench = Bench::briefed(&log);
    let ticks_max = log.state.plan().expect("one runs").record.op_ticks_max;
    bench.tick(2 * ticks_max);
    assert!(!bench.seat.has_hung_operation(), "none is under way");
    bench.news(News::Busy { is_busy: true });
    log.lose(1);
    bench.brief(&log, Told::Changes);
    assert!(!bench.seat.has_hung_operation(), "it has just begun");
    bench.tick(ticks_max - 1);
    assert!(!bench.seat.has_hung_operation(), "so long it may take");
    bench.tick(1);
    assert!(bench.seat.has_hung_operation());
    bench.news(News::Busy { is_busy: false });
    assert!(!bench.seat.has_hung_operation(), "it ended after all");
}

/// A later start of the node was admitted: this life is over, and the other is not this seat's.
#[test]
fn a_life_that_another_start_took_over_is_over() {
    let mut log = Log::running(spec(), &[1, 2]);
    let mut bench = Bench::briefed(&log);
    bench.taken_orders();
    let later = log.join(1);
    bench.brief(&log, Told::All);
    assert_eq!((bench.taken_orders(), bench.seat.holder()), (vec![Order::Forget], None));
    assert!(log.state.is_live(later));
}

#[test]
fn what_was_untold_of_the_life_before_is_not_told_in_the_next() {
    let mut log = Log::running(spec(), &[1, 2]);
    let mut bench = Bench::briefed(&log);
    let generation = log.state.generation();
    bench.news(News::Saved {
        version: Step(4),
        generation,
        layers: Vec::new(),
        busy_milliticks: 0,
    });
    log.lose(1);
    bench.brief(&log, Told::Changes);
    log.apply(Entry::Members(vec![crate::fixture::admit(1, BOOT + 1)]));
    bench.brief(&log, Told::All);
    assert_eq!(bench.told_again(), []);
}

/// A machine that is about to go is so in whatever life. It does not request admission; if it did before,
/// the first message it sends as a member is that it is about to go.
#[test]
fn who_is_about_to_go_does_not_come_in_as_one_that_stays() {
    let mut log = Log::running(spec(), &[1, 2]);
    let mut bench = Bench::new();
    bench.tick(TIMING.resend_ticks);
    bench.taken_messages();
    bench.input(SeatInput::Drain).expect("it is taken");
    bench.tick(2 * TIMING.resend_ticks);
    assert_eq!(bench.taken_messages(), [], "nobody knows it");
    for boot in [BOOT, BOOT + 1] {
        if boot > BOOT {
            log.lose(1);
            bench.brief(&log, Told::Changes);
            assert_eq!(bench.told_again(), [], "it was fenced off, and asks no more");
            log.apply(Entry::Members(vec![crate::fixture::admit(1, boot)]));
        }
        bench.brief(&log, Told::All);
        let drain = Message::Drain { holder: log.holder(1) };
        assert_eq!(bench.taken_messages(), CONTROLLERS.map(|to| (to, drain.clone())));
        assert_eq!(bench.told_again(), [drain]);
    }
}

/// A forced recovery makes another cluster: members of the old one are strangers to it.
#[test]
fn controllers_of_another_cluster_are_asked_anew() {
    let log = Log::running(spec(), &[1]);
    let mut bench = Bench::briefed(&log);
    bench.taken_orders();
    let controllers = CONTROLLERS.to_vec();
    let same = SeatInput::Controllers { cluster: CLUSTER, controllers: controllers.clone() };
    bench.input(same).expect("it is taken");
    assert_eq!((bench.taken_orders(), bench.seat.holder()), (vec![], Some(log.holder(1))));
    let cluster = ClusterId(CLUSTER.0 + 1);
    bench.input(SeatInput::Controllers { cluster, controllers }).expect("it is taken");
    assert_eq!((bench.taken_orders(), bench.seat.holder()), (vec![Order::Forget], None));
    let found = CLUSTER;
    let refusal = BriefingRefusal::OtherCluster { expected: cluster, found };
    assert_eq!(bench.try_tell(CONTROLLERS[0], briefing(&log, Told::All)), Err(refusal));
}

#[test]
fn who_leaves_says_so_if_it_is_a_member() {
    let mut bench = Bench::new();
    bench.input(SeatInput::Leave).expect("it is taken");
    assert_eq!(bench.taken_messages(), []);
    let log = Log::running(spec(), &[1]);
    let mut bench = Bench::briefed(&log);
    bench.input(SeatInput::Leave).expect("it is taken");
    let leave = Message::Leave { holder: log.holder(1) };
    assert_eq!(bench.taken_messages(), CONTROLLERS.map(|to| (to, leave.clone())));
    let unchanged: Holder = log.holder(1);
    assert_eq!(bench.seat.holder(), Some(unchanged), "it is a member until that is agreed");
}

/// It was admitted, and counted as lost before it received that.
#[test]
fn a_seat_whose_start_is_used_up_asks_with_a_later_one() {
    let mut bench = Bench::new();
    let tell = |bench: &mut Bench, boot| {
        bench.try_tell_in(CLUSTER, CONTROLLERS[0], Message::Spent { boot })
    };
    assert_eq!(tell(&mut bench, BOOT - 1), Err(BriefingRefusal::NotMine));
    asks(&mut bench, BOOT);
    assert_eq!(tell(&mut bench, BOOT), Ok(()));
    asks(&mut bench, BOOT + 1);
    let mut log = Log::empty();
    log.apply(Entry::Members(vec![crate::fixture::admit(NODE.0, BOOT + 1)]));
    bench.brief(&log, Told::All);
    assert_eq!(tell(&mut bench, BOOT + 1), Err(BriefingRefusal::NotMine), "it is a member");
    assert_eq!(bench.seat.holder(), Some(log.holder(NODE.0)));
}
