//! Members come and go through the joint state (P6).

use zbelastic_types::NodeId;

use super::super::{
    ChangeRefusal, MembersFault, NODES_MAX, ProposeRefusal, RaftRefusal, VoterChange,
};
use super::cluster::{RaftCluster, n};

fn change(cluster: &mut RaftCluster, change: VoterChange) {
    let leader = cluster.elect();
    cluster.node(leader).change_voters(change).unwrap();
    cluster.drain(leader);
    settle(cluster);
}

/// Until the leader has left the joint state.
fn settle(cluster: &mut RaftCluster) {
    for _ in 0..100 {
        cluster.round();
        if let Some(leader) = cluster.leader()
            && !cluster.status(leader).members.is_joint()
        {
            return;
        }
    }
    panic!("the joint state is left; {}", cluster.summary());
}

/// A voter that does not know of its vote yet does not take the lead: it is offered again.
fn transfer_lead_to(cluster: &mut RaftCluster, to: NodeId) {
    for _ in 0..10 {
        let leader = cluster.elect();
        if leader == to {
            return;
        }
        cluster.node(leader).transfer_leader(to);
        cluster.drain(leader);
        cluster.rounds(15);
    }
    panic!("{to} leads; {}", cluster.summary());
}

fn voters(cluster: &RaftCluster) -> Vec<u64> {
    let members = cluster.status(cluster.leader().unwrap()).members;
    members.voters.iter().map(|node| node.0).collect()
}

/// Adds node 4 as a learner that has all.
fn with_learner(seed: u64) -> RaftCluster {
    let mut cluster = RaftCluster::new(seed, 3);
    cluster.commit_on(b"one", &[n(1), n(2), n(3)]);
    cluster.create(n(4), &[]);
    change(&mut cluster, VoterChange::AddLearner(n(4)));
    cluster.commit_on(b"two", &[n(1), n(2), n(3), n(4)]);
    cluster
}

#[test]
fn learner_is_added_promoted_and_replaces_a_dead_voter() {
    let mut cluster = with_learner(51);
    assert!(!cluster.status(n(4)).members.is_voter(n(4)));
    change(&mut cluster, VoterChange::Promote(n(4)));
    assert_eq!(voters(&cluster), [1, 2, 3, 4]);
    cluster.create(n(5), &[]);
    change(&mut cluster, VoterChange::AddLearner(n(5)));
    cluster.commit_on(b"three", &[n(4), n(5)]);
    let leader = cluster.leader().unwrap();
    let dead = *cluster.live().iter().find(|&&node| node != leader && node.0 <= 3).unwrap();
    cluster.crash(dead, None);
    change(&mut cluster, VoterChange::Replace { old: dead, new: n(5) });
    let live: Vec<_> = cluster.live();
    assert_eq!(voters(&cluster), live.iter().map(|node| node.0).collect::<Vec<_>>());
    cluster.commit_on(b"four", &live);
}

#[test]
fn removed_voter_is_refused_and_disturbs_nobody() {
    let mut cluster = RaftCluster::new(52, 4);
    cluster.commit_on(b"one", &[n(1), n(2), n(3), n(4)]);
    let leader = cluster.leader().unwrap();
    let removed = *cluster.live().iter().find(|&&node| node != leader).unwrap();
    cluster.part(&[removed.0], &[1, 2, 3, 4]);
    change(&mut cluster, VoterChange::Remove(removed));
    let term = cluster.status(leader).term;
    cluster.rounds(40);
    cluster.cut.clear();
    cluster.rounds(60);
    assert_eq!((cluster.leader(), cluster.status(leader).term), (Some(leader), term));
    assert!(cluster.trace.contains("RemovedNode"));
    cluster.crash(removed, None);
    cluster.restart(removed);
    cluster.rounds(20);
    assert!(cluster.status(removed).is_greeting, "nobody welcomes who has left");
}

#[test]
fn leader_lost_in_the_joint_state_does_not_hold_it_up() {
    for seed in 0..20 {
        let mut cluster = with_learner(530 + seed);
        let leader = cluster.elect();
        cluster.node(leader).change_voters(VoterChange::Promote(n(4))).unwrap();
        cluster.drain(leader);
        for _ in 0..seed % 5 {
            cluster.deliver();
            for node in cluster.live() {
                cluster.sync(node, 100);
            }
        }
        cluster.crash(leader, None);
        cluster.elect();
        settle(&mut cluster);
        cluster.restart(leader);
        cluster.commit_on(b"after", &[n(1), n(2), n(3), n(4)]);
    }
}

#[test]
fn leader_that_is_removed_by_another_leaders_entry_steps_down() {
    let mut cluster = RaftCluster::new(54, 3);
    cluster.commit_on(b"one", &[n(1), n(2), n(3)]);
    let first = cluster.leader().unwrap();
    let second = *cluster.live().iter().rfind(|&&node| node != first).unwrap();
    cluster.node(first).change_voters(VoterChange::Remove(second)).unwrap();
    cluster.drain(first);
    cluster.deliver();
    for node in cluster.live() {
        cluster.sync(node, 100);
    }
    cluster.network.clear();
    cluster.crash(first, None);
    assert_eq!(cluster.elect(), second, "it has forgotten the old leader last");
    cluster.restart(first);
    cluster.rounds(60);
    let status = cluster.status(second);
    assert!(!status.is_leader && !status.members.is_voter(second), "{status:?}");
    cluster.crash(second, None);
    let rest = cluster.live();
    cluster.commit_on(b"two", &rest);
    assert_eq!(voters(&cluster).len(), 2);
}

#[test]
fn node_that_was_away_while_all_others_were_replaced_finds_the_new_ones() {
    let mut cluster = RaftCluster::new(55, 3);
    cluster.commit_on(b"one", &[n(1), n(2), n(3)]);
    let leader = cluster.leader().unwrap();
    let away = *cluster.live().iter().find(|&&node| node != leader).unwrap();
    cluster.crash(away, None);
    let third = n(6 - away.0 - leader.0);
    for new in [4, 5] {
        cluster.create(n(new), &[]);
        change(&mut cluster, VoterChange::AddLearner(n(new)));
        cluster.commit_on(b"more", &[n(new)]);
    }
    change(&mut cluster, VoterChange::Replace { old: third, new: n(4) });
    cluster.crash(third, None);
    transfer_lead_to(&mut cluster, n(4));
    change(&mut cluster, VoterChange::Replace { old: leader, new: n(5) });
    cluster.crash(leader, None);
    cluster.restart(away);
    cluster.commit_on(b"all", &[away, n(4), n(5)]);
    assert!(!cluster.status(away).is_greeting);
}

#[test]
fn changes_that_make_no_sense_are_refused() {
    let mut cluster = with_learner(56);
    let leader = cluster.elect();
    let other = *cluster.live().iter().find(|&&node| node != leader).unwrap();
    let mut check = |change, expected| {
        let refusal = cluster.node(leader).change_voters(change).unwrap_err();
        assert_eq!(refusal, ProposeRefusal::Change(expected));
    };
    check(VoterChange::AddLearner(other), ChangeRefusal::Member { node: other });
    let fault = MembersFault::BadNode { found: n(0) };
    check(VoterChange::AddLearner(n(0)), ChangeRefusal::Fault(fault));
    check(VoterChange::Promote(other), ChangeRefusal::NotLearner { node: other });
    check(VoterChange::Remove(n(9)), ChangeRefusal::NotMember { node: n(9) });
    check(VoterChange::Remove(leader), ChangeRefusal::Leads { node: leader });
    let not_voter = VoterChange::Replace { old: n(9), new: n(4) };
    check(not_voter, ChangeRefusal::NotVoter { node: n(9) });
    let leads = VoterChange::Replace { old: leader, new: n(4) };
    check(leads, ChangeRefusal::Leads { node: leader });
    cluster.node(leader).change_voters(VoterChange::AddLearner(n(5))).unwrap();
    let refusal = cluster.node(leader).change_voters(VoterChange::Promote(n(4))).unwrap_err();
    assert_eq!(refusal, ProposeRefusal::Change(ChangeRefusal::Pending));
    cluster.drain(leader);
    settle(&mut cluster);
    let refusal = cluster.node(leader).change_voters(VoterChange::Promote(n(5))).unwrap_err();
    assert!(matches!(refusal, ProposeRefusal::Change(ChangeRefusal::Behind { .. })));
}

#[test]
fn last_voter_stays_and_members_are_bounded() {
    let mut cluster = RaftCluster::new(57, 1);
    cluster.commit_on(b"one", &[n(1)]);
    let refusal = cluster.node(n(1)).change_voters(VoterChange::Remove(n(1))).unwrap_err();
    assert_eq!(refusal, ProposeRefusal::Change(ChangeRefusal::LastVoter { node: n(1) }));
    for node in 2..=NODES_MAX as u64 {
        change(&mut cluster, VoterChange::AddLearner(n(node)));
    }
    let refusal = cluster.node(n(1)).change_voters(VoterChange::AddLearner(n(99))).unwrap_err();
    let fault = MembersFault::TooMany { found: NODES_MAX + 1 };
    assert_eq!(refusal, ProposeRefusal::Change(ChangeRefusal::Fault(fault)));
}

#[test]
fn cluster_grows_from_one_and_the_first_can_leave() {
    let mut cluster = RaftCluster::new(58, 1);
    for node in [2, 3, 4] {
        cluster.create(n(node), &[]);
        change(&mut cluster, VoterChange::AddLearner(n(node)));
        cluster.commit_on(b"more", &[n(1), n(node)]);
        change(&mut cluster, VoterChange::Promote(n(node)));
    }
    transfer_lead_to(&mut cluster, n(3));
    change(&mut cluster, VoterChange::Remove(n(1)));
    assert_eq!(voters(&cluster), [2, 3, 4]);
    let hello = super::super::RaftMessage::Raft(Vec::new());
    let refusal = cluster.node(n(3)).handle(n(1), hello).unwrap_err();
    assert_eq!(refusal, RaftRefusal::Malformed);
}
