//! Elections, commits, partitions, snapshots.

use super::super::{ProposeRefusal, RaftOutput};
use super::cluster::{RaftCluster, n};

#[test]
fn elects_and_commits() {
    let mut cluster = RaftCluster::new(1, 3);
    cluster.commit_on(b"one", &[n(1), n(2), n(3)]);
    cluster.commit_on(b"two", &[n(1), n(2), n(3)]);
    let status = cluster.status(cluster.leader().unwrap());
    assert_eq!(status.matched.len(), 3);
    assert!(status.matched.iter().all(|&(_, matched)| matched == status.last_index));
    assert!(status.matched.iter().all(|&(node, _)| status.behind(node) == Some(0)));
}

#[test]
fn one_voter_alone_leads_at_once() {
    let mut cluster = RaftCluster::new(2, 1);
    cluster.commit_on(b"one", &[n(1)]);
    cluster.crash(n(1), None);
    cluster.restart(n(1));
    assert!(!cluster.status(n(1)).is_greeting);
    cluster.commit_on(b"two", &[n(1)]);
}

#[test]
fn loss_of_the_leader_is_survived() {
    let mut cluster = RaftCluster::new(3, 3);
    cluster.commit_on(b"one", &[n(1), n(2), n(3)]);
    let first = cluster.leader().unwrap();
    cluster.crash(first, None);
    let rest: Vec<_> = cluster.live();
    cluster.commit_on(b"two", &rest);
    assert!(cluster.status(rest[0]).term > 2);
    cluster.restart(first);
    cluster.commit_on(b"three", &[n(1), n(2), n(3)]);
}

#[test]
fn minority_commits_nothing_and_its_leader_steps_down() {
    let mut cluster = RaftCluster::new(4, 3);
    cluster.commit_on(b"one", &[n(1), n(2), n(3)]);
    let lonely = cluster.leader().unwrap();
    let others: Vec<_> = [1, 2, 3].into_iter().filter(|&id| id != lonely.0).collect();
    cluster.part(&[lonely.0], &others);
    let applied = cluster.status(lonely).applied;
    cluster.propose(lonely, b"lost");
    cluster.rounds(40);
    assert_eq!(cluster.status(lonely).applied, applied);
    assert!(!cluster.status(lonely).is_leader, "a leader without a majority steps down");
    let others: Vec<_> = others.into_iter().map(n).collect();
    cluster.commit_on(b"kept", &others);
    cluster.cut.clear();
    cluster.commit_on(b"again", &[n(1), n(2), n(3)]);
    assert!(cluster.agreed.values().all(|entry| entry.data != b"lost"));
}

#[test]
fn follower_far_behind_gets_a_snapshot() {
    let mut cluster = RaftCluster::new(5, 3);
    cluster.compact_after = 10;
    let mut cluster = restarted_all(cluster);
    let leader = cluster.elect();
    let behind = *cluster.live().iter().find(|&&node| node != leader).unwrap();
    cluster.crash(behind, None);
    for step in 0..50_u8 {
        let rest = cluster.live();
        cluster.commit_on(&[step], &rest);
    }
    cluster.restart(behind);
    cluster.commit_on(b"last", &[n(1), n(2), n(3)]);
    assert_eq!(cluster.machines[&behind].installs, 1);
    assert_eq!(cluster.machines[&behind].state, cluster.machines[&leader].state);
    assert!(cluster.machines[&leader].disk.records.len() < 60, "the log is trimmed");
}

fn restarted_all(mut cluster: RaftCluster) -> RaftCluster {
    for node in cluster.live() {
        cluster.sync(node, 100);
        cluster.crash(node, None);
        cluster.restart(node);
    }
    cluster
}

#[test]
fn snapshot_that_was_lost_is_sent_again() {
    let mut cluster = RaftCluster::new(6, 3);
    cluster.compact_after = 5;
    let mut cluster = restarted_all(cluster);
    let leader = cluster.elect();
    let behind = *cluster.live().iter().find(|&&node| node != leader).unwrap();
    cluster.crash(behind, None);
    for step in 0..20_u8 {
        let rest = cluster.live();
        cluster.commit_on(&[step], &rest);
    }
    cluster.restart(behind);
    cluster.loss = 60;
    cluster.rounds(200);
    cluster.loss = 0;
    cluster.commit_on(b"last", &[n(1), n(2), n(3)]);
    assert_eq!(cluster.machines[&behind].state, cluster.machines[&leader].state);
}

#[test]
fn lead_is_handed_on() {
    let mut cluster = RaftCluster::new(7, 3);
    let leader = cluster.elect();
    let next = *cluster.live().iter().find(|&&node| node != leader).unwrap();
    cluster.rounds(3);
    cluster.node(leader).transfer_leader(next);
    cluster.drain(leader);
    cluster.rounds(4);
    assert_eq!(cluster.leader(), Some(next));
}

#[test]
fn proposals_are_refused_with_the_reason() {
    let mut cluster = RaftCluster::new(8, 3);
    let leader = cluster.elect();
    cluster.rounds(3);
    let follower = *cluster.live().iter().find(|&&node| node != leader).unwrap();
    let refusal = cluster.node(follower).propose(vec![1]).unwrap_err();
    assert_eq!(refusal, ProposeRefusal::NotLeader { leader: Some(leader) });
    let raft = cluster.node(leader);
    assert_eq!(raft.propose(Vec::new()), Err(ProposeRefusal::Empty));
    let large = super::super::ENTRY_BYTES_MAX + 1;
    assert_eq!(raft.propose(vec![0; large]), Err(ProposeRefusal::TooLarge { found: large }));
    for _ in 0..4_096 {
        raft.propose(vec![1]).unwrap();
    }
    let refusal = raft.propose(vec![1]).unwrap_err();
    assert_eq!(refusal, ProposeRefusal::Backlog { found: 4_096, limit: 4_096 });
    raft.transfer_leader(follower);
}

#[test]
fn leader_sends_before_it_has_written_and_follower_after() {
    let mut cluster = RaftCluster::new(9, 3);
    let leader = cluster.elect();
    cluster.rounds(3);
    cluster.network.clear();
    cluster.node(leader).propose(b"quick".to_vec()).unwrap();
    let mut kinds = Vec::new();
    while let Some(output) = cluster.node(leader).poll() {
        kinds.push(matches!(output, RaftOutput::Send { .. }));
        if let RaftOutput::Send { to, message } = output {
            cluster.network.push((leader, to, message));
        }
    }
    assert_eq!(kinds, [true, true, false], "two appends, then the write");
    cluster.disk_speed = 0;
    cluster.deliver();
    assert!(cluster.network.is_empty(), "no acknowledgement of what is not durable");
    for node in cluster.live().into_iter().filter(|&node| node != leader) {
        cluster.sync(node, 100);
    }
    assert_eq!(cluster.network.len(), 2);
}

#[test]
fn two_runs_from_one_seed_are_equal() {
    let run = |seed| {
        let mut cluster = RaftCluster::new(seed, 3);
        (cluster.loss, cluster.doubles, cluster.disk_speed) = (10, 10, 60);
        for step in 0..300_u64 {
            if let Some(leader) = cluster.leader() {
                let _ = cluster.node(leader).propose(step.to_le_bytes().to_vec());
                cluster.drain(leader);
            }
            cluster.round();
        }
        cluster.trace
    };
    let trace = run(11);
    assert!(trace.len() > 100_000);
    assert_eq!(trace, run(11));
    assert_ne!(trace, run(12));
}
