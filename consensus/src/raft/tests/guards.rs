//! What others may send without doing harm (P3).

use proptest::prelude::*;

use super::super::entry::{LogEntry, NodeChange, Payload, SnapshotImage};
use super::super::message::{RaftMessageBody, Rejection, VoteKind, WireMessage};
use super::super::{
    ENTRY_BYTES_MAX, FatalReason, MESSAGE_BYTES_MAX, Members, MembersFault, NUMBER_MAX, RaftHello,
    RaftMessage, RaftRefusal,
};
use super::cluster::{RaftCluster, n};

/// A cluster of three with some entries, its leader, and a follower.
fn calm(seed: u64) -> (RaftCluster, u64, u64) {
    let mut cluster = RaftCluster::new(seed, 3);
    for step in 0..4_u8 {
        cluster.commit_on(&[step], &[n(1), n(2), n(3)]);
    }
    let leader = cluster.leader().unwrap();
    let follower = *cluster.live().iter().find(|&&node| node != leader).unwrap();
    cluster.network.clear();
    (cluster, leader.0, follower.0)
}

fn message(from: u64, to: u64, term: u64, body: RaftMessageBody) -> RaftMessage {
    RaftMessage::Raft(WireMessage { to: n(to), from: n(from), term, durable: 0, body }.encode())
}

/// The message is refused for `expected`, and the receiver is as it was.
fn check(
    cluster: &mut RaftCluster,
    from: u64,
    to: u64,
    message: RaftMessage,
    expected: RaftRefusal,
) {
    let before = cluster.status(n(to));
    assert_eq!(cluster.node(n(to)).handle(n(from), message), Err(expected));
    assert_eq!(cluster.status(n(to)), before);
    assert_eq!(cluster.node(n(to)).poll(), None);
}

fn entry(index: u64, term: u64, payload: Payload) -> LogEntry {
    LogEntry { index, term, payload }
}

fn append(index: u64, log_term: u64, entries: Vec<LogEntry>) -> RaftMessageBody {
    RaftMessageBody::Append { index, log_term, commit: 0, entries }
}

#[test]
fn messages_of_the_wrong_form_are_refused() {
    let (mut cluster, leader, to) = calm(61);
    let large = RaftMessage::Raft(vec![0; MESSAGE_BYTES_MAX + 1]);
    let refusal = RaftRefusal::TooLarge { found: MESSAGE_BYTES_MAX + 1 };
    check(&mut cluster, leader, to, large, refusal);
    check(&mut cluster, leader, to, RaftMessage::Raft(vec![]), RaftRefusal::Malformed);
    let beat = |from, to, term| message(from, to, term, RaftMessageBody::Heartbeat { commit: 0 });
    let RaftMessage::Raft(mut longer) = beat(leader, to, 2) else { unreachable!() };
    longer.push(0);
    check(&mut cluster, leader, to, RaftMessage::Raft(longer), RaftRefusal::Malformed);
    let refusal = RaftRefusal::WrongSender { expected: n(9), found: n(leader) };
    check(&mut cluster, 9, to, beat(leader, to, 2), refusal);
    let refusal = RaftRefusal::WrongSender { expected: n(to), found: n(to) };
    check(&mut cluster, to, to, beat(to, to, 2), refusal);
    let refusal = RaftRefusal::WrongReceiver { expected: n(to), found: n(9) };
    check(&mut cluster, leader, to, beat(leader, 9, 2), refusal);
    let term = |found| RaftRefusal::BadNumber { quantity: "the term", found };
    check(&mut cluster, leader, to, beat(leader, to, 0), term(0));
    let far = NUMBER_MAX + 1;
    check(&mut cluster, leader, to, beat(leader, to, far), term(far));
    let ack = RaftMessageBody::HeartbeatAnswer { commit: 0 };
    let refusal = RaftRefusal::UnknownNode { from: n(9) };
    check(&mut cluster, 9, to, message(9, to, 2, ack), refusal);
    let hello = RaftMessage::Hello(RaftHello { boot: 0, life: 0, term: 1, last_index: 1 });
    let refusal = RaftRefusal::BadNumber { quantity: "the boot", found: 0 };
    check(&mut cluster, leader, to, hello, refusal);
}

#[test]
fn entries_that_would_end_raft_rs_are_refused() {
    let (mut cluster, leader, to) = calm(62);
    let status = cluster.status(n(to));
    let (term, last) = (status.term, status.last_index);
    let data = || Payload::Data(vec![1]);
    let mut check = |body, refusal| {
        check(&mut cluster, leader, to, message(leader, to, term, body), refusal);
    };
    let bad = |quantity, found| RaftRefusal::BadNumber { quantity, found };
    check(append(last + 5, 0, vec![]), bad("the term of the log", 0));
    check(append(0, 0, vec![]), bad("the index", 0));
    check(append(last + 1, term + 1, vec![]), bad("the term of the log", term + 1));
    let gap = |found, found_term| RaftRefusal::BadEntries {
        before: last,
        before_term: term,
        found,
        found_term,
    };
    check(append(last, term, vec![entry(last + 2, term, data())]), gap(last + 2, term));
    check(append(last, term, vec![entry(last + 1, term - 1, data())]), gap(last + 1, term - 1));
    check(append(last, term, vec![entry(last + 1, term + 1, data())]), gap(last + 1, term + 1));
    let found = ENTRY_BYTES_MAX + 1;
    let large = entry(last + 1, term, Payload::Data(vec![0; found]));
    let refusal = RaftRefusal::EntryTooLarge { index: last + 1, found };
    check(append(last, term, vec![large]), refusal);
    let refusal = RaftRefusal::ContradictsCommitted { index: last, expected: term, found: 1 };
    check(append(last, 1, vec![]), refusal);
    check(append(1, 1, vec![entry(2, 1, data()), entry(3, 1, data())]), {
        RaftRefusal::ContradictsCommitted { index: 2, expected: term, found: 1 }
    });
}

#[test]
fn leaders_answers_and_votes_out_of_place_are_refused() {
    let (mut cluster, leader, to) = calm(63);
    let other = 6 - leader - to;
    let status = cluster.status(n(to));
    let (term, last_index) = (status.term, status.last_index);
    let two = RaftRefusal::TwoLeaders { term, expected: n(leader), found: n(other) };
    let beat = message(other, to, term, RaftMessageBody::Heartbeat { commit: 0 });
    check(&mut cluster, other, to, beat, two);
    let refusal = RaftRefusal::NotLeader { from: n(other), term };
    check(&mut cluster, other, to, message(other, to, term, RaftMessageBody::TimeoutNow), refusal);
    let later = message(leader, to, term + 1, RaftMessageBody::TimeoutNow);
    let refusal = RaftRefusal::NotLeader { from: n(leader), term };
    check(&mut cluster, leader, to, later, refusal);
    let found = last_index + 1;
    let ack = RaftMessageBody::AppendAnswer { index: found, commit: 0, rejection: None };
    let refusal = RaftRefusal::AckBeyondLog { found, last_index };
    check(&mut cluster, to, leader, message(to, leader, term, ack), refusal);
}

#[test]
fn snapshots_that_would_end_raft_rs_are_refused() {
    let (mut cluster, leader, to) = calm(64);
    let status = cluster.status(n(to));
    let (term, last) = (status.term, status.last_index);
    let image = |index, members| SnapshotImage { index, term, members, data: vec![] };
    let mut check = |image: SnapshotImage, refusal| {
        let message = message(leader, to, term, RaftMessageBody::Snapshot(image));
        check(&mut cluster, leader, to, message, refusal);
    };
    let members =
        |voters: &[u64]| Members::first(&voters.iter().map(|&node| n(node)).collect::<Vec<_>>());
    let bad = |quantity, found| RaftRefusal::BadNumber { quantity, found };
    check(image(0, members(&[1, 2, 3])), bad("the index of the snapshot", 0));
    let later = SnapshotImage { term: term + 1, ..image(last + 9, members(&[1, 2, 3])) };
    check(later, bad("the term of the snapshot", term + 1));
    let foreign = RaftRefusal::ForeignSnapshot { index: last + 9 };
    check(image(last + 9, members(&[leader])), foreign);
    check(image(last + 9, members(&[])), RaftRefusal::BadMembers(MembersFault::NoVoters));
    let fault = MembersFault::BadNode { found: n(0) };
    check(image(last + 9, members(&[0, to])), RaftRefusal::BadMembers(fault));
    let mut twice = members(&[1, 2, 3]);
    twice.learners.insert(n(to));
    let fault = MembersFault::LearnerVotes { node: n(to) };
    check(image(last + 9, twice), RaftRefusal::BadMembers(fault));
    let contradiction = SnapshotImage { term: 1, ..image(last, members(&[1, 2, 3])) };
    let refusal = RaftRefusal::ContradictsCommitted { index: last, expected: term, found: 1 };
    check(contradiction, refusal);
}

#[test]
fn heartbeat_beyond_the_log_is_the_end_of_a_member() {
    let (mut cluster, leader, to) = calm(65);
    let status = cluster.status(n(to));
    let (commit, last_index) = (status.last_index + 1, status.last_index);
    let beat = message(leader, to, status.term, RaftMessageBody::Heartbeat { commit });
    let refusal = RaftRefusal::BeyondLog { commit, last_index };
    assert_eq!(cluster.node(n(to)).handle(n(leader), beat.clone()), Err(refusal));
    cluster.drain(n(to));
    let reason = FatalReason::StaleLog { leader: n(leader), commit, last_index };
    assert_eq!(cluster.machines[&n(to)].fatal, Some(reason));
    check(&mut cluster, leader, to, beat, RaftRefusal::Stopped);
    cluster.rounds(30);
    assert!(cluster.network.iter().all(|(from, _, _)| *from != n(to)), "it says nothing more");
}

#[test]
fn node_without_a_log_does_not_vote() {
    let (mut cluster, leader, _) = calm(66);
    cluster.create(n(4), &[]);
    cluster.sync(n(4), 100);
    let body = RaftMessageBody::Vote {
        kind: VoteKind::Trial,
        index: 0,
        log_term: 0,
        commit: 0,
        commit_term: 0,
    };
    check(&mut cluster, leader, 4, message(leader, 4, 9, body), RaftRefusal::NoMember);
}

#[test]
fn change_of_members_that_cannot_be_is_an_entry_without_effect() {
    let (mut cluster, leader, to) = calm(67);
    let status = cluster.status(n(to));
    let (term, last) = (status.term, status.last_index);
    let changes = [
        vec![],
        vec![1, 2, 3].into_iter().map(|id| NodeChange::Remove(n(id))).collect(),
        vec![NodeChange::Learner(n(to))],
        vec![NodeChange::Voter(n(0))],
        (10..200).map(|id| NodeChange::Voter(n(id))).collect(),
    ];
    let count = changes.len() as u64;
    let index = last + 1..;
    let entries = index.zip(changes).map(|(index, each)| entry(index, term, Payload::Change(each)));
    let body = RaftMessageBody::Append {
        index: last,
        log_term: term,
        commit: last,
        entries: entries.collect(),
    };
    cluster.node(n(to)).handle(n(leader), message(leader, to, term, body)).unwrap();
    cluster.drain(n(to));
    cluster.sync(n(to), 100);
    let beat = message(leader, to, term, RaftMessageBody::Heartbeat { commit: last + count });
    cluster.node(n(to)).handle(n(leader), beat).unwrap();
    cluster.drain(n(to));
    let after = cluster.status(n(to));
    assert_eq!((after.applied, after.members), (last + count, status.members));
}

fn bodies() -> impl Strategy<Value = RaftMessageBody> {
    let number = || prop_oneof![4 => 0..12_u64, 1 => Just(NUMBER_MAX), 1 => any::<u64>()];
    let node = || (0..6_u64).prop_map(n);
    let change = prop_oneof![
        node().prop_map(NodeChange::Voter),
        node().prop_map(NodeChange::Learner),
        node().prop_map(NodeChange::Remove),
    ];
    let payload = prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..4).prop_map(Payload::Data),
        proptest::collection::vec(change, 0..4).prop_map(Payload::Change),
    ];
    let entry = (0..12_u64, 0..5_u64, payload).prop_map(|(index, term, payload)| LogEntry {
        index,
        term,
        payload,
    });
    let entries = (proptest::collection::vec(entry, 0..5), any::<bool>(), number());
    let nodes = || proptest::collection::btree_set(node(), 0..4);
    let members = (nodes(), nodes(), nodes()).prop_map(|(voters, outgoing, learners)| Members {
        voters,
        outgoing,
        learners,
    });
    let kind =
        prop_oneof![Just(VoteKind::Trial), Just(VoteKind::Election), Just(VoteKind::Transfer)];
    let hint = proptest::option::of(
        (number(), number()).prop_map(|(hint, hint_term)| Rejection { hint, hint_term }),
    );
    prop_oneof![
        4 => (number(), 0..5_u64, number(), entries).prop_map(|(index, log_term, commit, all)| {
            let (mut entries, is_row, _) = all;
            for (entry, follows) in entries.iter_mut().zip(1..).filter(|_| is_row) {
                entry.index = index.wrapping_add(follows);
                entry.term = entry.term.max(log_term);
            }
            RaftMessageBody::Append { index, log_term, commit, entries }
        }),
        2 => (number(), number(), hint)
            .prop_map(|(index, commit, rejection)| RaftMessageBody::AppendAnswer { index, commit, rejection }),
        2 => number().prop_map(|commit| RaftMessageBody::Heartbeat { commit }),
        1 => number().prop_map(|commit| RaftMessageBody::HeartbeatAnswer { commit }),
        2 => (number(), number(), members).prop_map(|(index, term, members)| {
            RaftMessageBody::Snapshot(SnapshotImage { index, term, members, data: vec![0; 16] })
        }),
        2 => (kind, number(), number(), number(), number()).prop_map(
            |(kind, index, log_term, commit, commit_term)| RaftMessageBody::Vote {
                kind, index, log_term, commit, commit_term
            }
        ),
        2 => (any::<bool>(), any::<bool>(), number(), number()).prop_map(
            |(is_trial, is_granted, commit, commit_term)| RaftMessageBody::VoteAnswer {
                is_trial, is_granted, commit, commit_term
            }
        ),
        1 => Just(RaftMessageBody::TimeoutNow),
    ]
}

/// One thing that happens to a node among liars.
#[derive(Clone, Debug)]
enum NodeInput {
    Tick(u32),
    Message { from: u64, term: u64, body: RaftMessageBody },
    Bytes(Vec<u8>),
    Persisted(u32),
}

fn events() -> impl Strategy<Value = Vec<NodeInput>> {
    let term = prop_oneof![8 => 0..6_u64, 1 => Just(NUMBER_MAX), 1 => any::<u64>()];
    let event = prop_oneof![
        1 => (1..15_u32).prop_map(NodeInput::Tick),
        8 => (0..6_u64, term, bodies())
            .prop_map(|(from, term, body)| NodeInput::Message { from, term, body }),
        1 => proptest::collection::vec(any::<u8>(), 0..60).prop_map(NodeInput::Bytes),
        2 => (1..4_u32).prop_map(NodeInput::Persisted),
    ];
    proptest::collection::vec(event, 1..60)
}

/// A node that receives only lies. Its outputs are not checked: it may well believe them.
fn among_liars(receiver: u64, events: Vec<NodeInput>) {
    use super::super::{RaftNode, RaftOutput};
    let (mut cluster, _, _) = calm(68);
    cluster.create(n(4), &[]);
    cluster.sync(n(4), 100);
    let node: &mut RaftNode = cluster.node(n(receiver));
    let mut tokens = std::collections::VecDeque::new();
    for event in events {
        let before = node.status();
        let result = match event {
            NodeInput::Tick(count) => {
                (0..count).for_each(|_| node.tick());
                Ok(())
            }
            NodeInput::Message { from, term, body } => {
                node.handle(n(from), message(from, receiver, term, body))
            }
            NodeInput::Bytes(bytes) => node.handle(n(2), RaftMessage::Raft(bytes)),
            NodeInput::Persisted(count) => {
                for _ in 0..count {
                    tokens.pop_front().into_iter().for_each(|token| node.on_persisted(token));
                }
                Ok(())
            }
        };
        if let Err(refusal) = result
            && !matches!(refusal, RaftRefusal::BeyondLog { .. })
        {
            assert_eq!(node.status(), before, "{refusal}");
        }
        while let Some(output) = node.poll() {
            if let RaftOutput::Persist { token, .. } = output {
                tokens.push_back(token);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn no_message_stops_a_node_or_changes_it_when_refused(
        receiver in 1..=4_u64,
        events in events(),
    ) {
        among_liars(receiver, events);
    }

    #[test]
    fn no_changed_byte_stops_a_node(
        seed in 0..20_u64,
        flips in proptest::collection::vec((any::<usize>(), any::<u8>()), 1..4),
    ) {
        let mut cluster = RaftCluster::new(seed, 3);
        cluster.commit_on(b"one", &[n(1), n(2), n(3)]);
        for _ in 0..40 {
            for (_, _, message) in &mut cluster.network {
                if let RaftMessage::Raft(bytes) = message {
                    for &(at, with) in &flips {
                        let at = at % bytes.len();
                        bytes[at] ^= with;
                    }
                }
            }
            for (from, to, message) in std::mem::take(&mut cluster.network) {
                let _ = cluster.node(to).handle(from, message);
            }
            for node in cluster.live() {
                cluster.node(node).tick();
                while let Some(output) = cluster.node(node).poll() {
                    use super::super::RaftOutput;
                    match output {
                        RaftOutput::Send { to, message } => {
                            cluster.network.push((node, to, message));
                        }
                        RaftOutput::Persist { token, .. } => cluster.node(node).on_persisted(token),
                        RaftOutput::Trim { .. }
                        | RaftOutput::Committed(_)
                        | RaftOutput::Installed { .. }
                        | RaftOutput::RequestSnapshot
                        | RaftOutput::LeaderChanged { .. }
                        | RaftOutput::Fatal(_) => {}
                    }
                }
            }
        }
    }
}
