//! Members come, come back, and go.

use zbelastic_types::{ClusterId, Incarnation, NodeId};

use crate::entry::{CHANGES_MAX, Entry};
use crate::fixture::{FixtureLog, RESOURCES, admit, contact, lost};
use crate::member::{Holder, LossReason, MEMBERS_MAX, MemberChange, MembershipStatus, Role};
use crate::state::{EntryRefusal, State, StateChange};

fn refuse(log: &mut FixtureLog, change: MemberChange) {
    log.refuse(Entry::Members(vec![change]), EntryRefusal::Members);
}

fn membership_status(log: &FixtureLog, node: u64) -> MembershipStatus {
    log.state.members()[&NodeId(node)].status
}

#[test]
fn a_node_is_admitted_with_the_index_of_the_entry_as_its_life() {
    let mut log = FixtureLog::empty();
    let first = log.join(5);
    assert_eq!(first, Holder { node: NodeId(5), incarnation: Incarnation(1) });
    assert_eq!(log.join(6).incarnation, Incarnation(2));
    let workers: Vec<_> = log.state.live_workers().map(|(holder, _)| holder.node.0).collect();
    assert_eq!(workers, [5, 6]);
    assert!(!log.state.membership().is_controller(NodeId(5)));
}

#[test]
fn a_request_of_an_earlier_start_is_stale() {
    let mut log = FixtureLog::empty();
    log.apply(Entry::Members(vec![admit(5, 3)]));
    refuse(&mut log, admit(5, 2));
    refuse(&mut log, admit(5, 3));
    log.lose(5);
    refuse(&mut log, admit(5, 3));
    log.apply(Entry::Members(vec![admit(5, 4)]));
    assert!(log.state.holder_of(NodeId(5)).is_some());
}

/// Failure 10: a node that comes back is a new life, and nothing of the old one is counted on.
#[test]
fn a_later_start_supersedes_the_life_before() {
    let mut log = FixtureLog::empty();
    let (old, new) = (log.join(5), log.join(5));
    assert!(!log.state.is_live(old) && log.state.is_live(new));
    refuse(&mut log, lost(old));
    refuse(&mut log, MemberChange::Drain { holder: old });
    assert_eq!(membership_status(&log, 5), MembershipStatus::Present);
}

#[test]
fn who_is_lost_is_lost_once() {
    let mut log = FixtureLog::empty();
    let holder = log.join(5);
    log.lose(5);
    assert_eq!(membership_status(&log, 5), MembershipStatus::Lost(LossReason::Closed));
    assert_eq!(log.state.holder_of(NodeId(5)), None);
    refuse(&mut log, lost(holder));
    refuse(&mut log, MemberChange::Drain { holder });
    let unknown = Holder { node: NodeId(9), incarnation: Incarnation(1) };
    refuse(&mut log, lost(unknown));
}

#[test]
fn who_drains_is_counted_on_until_it_is_lost() {
    let mut log = FixtureLog::empty();
    let holder = log.join(5);
    log.apply(Entry::Members(vec![MemberChange::Drain { holder }]));
    assert_eq!(membership_status(&log, 5), MembershipStatus::Draining);
    assert!(log.state.is_live(holder));
    refuse(&mut log, MemberChange::Drain { holder });
    let reason = LossReason::Drained;
    log.apply(Entry::Members(vec![MemberChange::Lost { holder, reason }]));
    assert!(!log.state.is_live(holder));
}

#[test]
fn who_is_not_trusted_never_comes_back() {
    let mut log = FixtureLog::empty();
    let (holder, other) = (log.join(5), log.join(6));
    let reason = LossReason::Untrusted { partners: 2 };
    log.apply(Entry::Members(vec![MemberChange::Lost { holder, reason }, lost(other)]));
    assert!(log.state.membership().quarantined().iter().eq([&NodeId(5)]));
    refuse(&mut log, admit(5, 100));
    log.join(6);
}

#[test]
fn the_changes_that_fit_are_made_and_named() {
    let mut log = FixtureLog::empty();
    let (gone, stays) = (log.join(5), log.join(6));
    log.lose(5);
    let changes = vec![lost(gone), admit(7, 1), admit(6, 1), lost(stays)];
    let made = log.apply(Entry::Members(changes));
    assert_eq!(made, StateChange::Members(vec![admit(7, 1), lost(stays)]));
    log.refuse(Entry::Members(Vec::new()), EntryRefusal::Members);
}

/// A full cluster admits no node; a member that was lost longest ago makes room.
#[test]
fn members_have_a_limit() {
    let mut log = FixtureLog::empty();
    let nodes = 0..MEMBERS_MAX as u64;
    let full: Vec<_> = nodes.map(|node| admit(node, 1)).collect();
    log.apply(Entry::Members(full[..CHANGES_MAX - 1].to_vec()));
    log.apply(Entry::Members(full[CHANGES_MAX - 1..].to_vec()));
    assert_eq!(log.state.members().len(), MEMBERS_MAX);
    refuse(&mut log, admit(9999, 1));
    log.join(3);
    log.lose(8);
    log.lose(3);
    log.join(9999);
    assert!(!log.state.members().contains_key(&NodeId(8)), "node 3's life is the younger one");
    assert_eq!(log.state.members().len(), MEMBERS_MAX);
}

#[test]
fn an_entry_changes_so_many_members_and_no_more() {
    let mut log = FixtureLog::empty();
    let changes: Vec<_> = (0..=CHANGES_MAX as u64).map(|_| admit(1, 1)).collect();
    let last = MemberChange::Admit {
        node: NodeId(2),
        boot: 1,
        role: Role::Worker,
        resources: RESOURCES,
        contact: contact(1),
    };
    let changes = [&changes[1..], &[last]].concat();
    log.apply(Entry::Members(changes));
    assert_eq!(log.state.members().len(), 1);
}

#[test]
fn a_controller_votes_until_it_is_lost() {
    let mut log = FixtureLog {
        state: State::new(ClusterId(1))
            .with_controllers(crate::fixture::controllers(&[NodeId(1), NodeId(2)])),
    };
    log.join(3);
    assert!(log.state.controllers().eq([NodeId(1), NodeId(2)]));
    log.lose(1);
    assert!(log.state.controllers().eq([NodeId(2)]));
    assert_eq!(log.state.live_workers().count(), 1);
}

#[test]
#[should_panic(expected = "S2")]
fn an_index_is_applied_once() {
    let mut state = State::new(ClusterId(1));
    state.pass(4);
    let _ = state.apply(4, Entry::Members(Vec::new()));
}
