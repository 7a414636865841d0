//! Everything at once, from seeds: crashes with torn writes, loss, doubles, partitions, slow
//! disks, snapshots and changes of members. The cluster checks agreement at each output.

use super::super::VoterChange;
use super::cluster::{RaftCluster, n};

fn storm(seed: u64, rounds: u32) {
    let mut cluster = RaftCluster::new(seed, 1 + seed % 4);
    cluster.compact_after = 5 + cluster.draw.below(30);
    cluster.loss = cluster.draw.below(25);
    cluster.doubles = cluster.draw.below(10);
    cluster.disk_speed = 30 + cluster.draw.below(71);
    let mut newcomer = 10;
    for _ in 0..rounds {
        act(&mut cluster, &mut newcomer);
        cluster.round();
    }
    cluster.cut.clear();
    cluster.hung.clear();
    (cluster.loss, cluster.doubles, cluster.disk_speed) = (0, 0, 100);
    let down: Vec<_> = cluster.machines.keys().copied().collect();
    for node in down {
        if cluster.machines[&node].node.is_none() {
            cluster.restart(node);
        }
    }
    cluster.rounds(60);
    let leader = cluster.elect();
    let members = cluster.status(leader).members;
    let all: Vec<_> = members.voters.iter().chain(&members.learners).copied().collect();
    cluster.commit_on(b"calm", &all);
    assert!(cluster.machines.values().all(|machine| machine.fatal.is_none()), "seed {seed}");
}

fn act(cluster: &mut RaftCluster, newcomer: &mut u64) {
    let all: Vec<_> = cluster.machines.keys().copied().collect();
    let node = all[cluster.draw.below(all.len() as u64) as usize];
    let is_live = cluster.machines[&node].node.is_some();
    match cluster.draw.below(100) {
        0..=3 if is_live => {
            let torn = cluster.draw.below(60) as usize;
            let torn = cluster.draw.percent(40).then_some(torn);
            cluster.crash(node, torn);
        }
        4..=20 if !is_live => {
            cluster.restart(node);
        }
        21..=22 => cluster.part(&[node.0], &all.iter().map(|node| node.0).collect::<Vec<_>>()),
        23..=30 => cluster.cut.clear(),
        40 => {
            cluster.hung.insert(node);
        }
        41..=43 => cluster.hung.clear(),
        31..=34 => change_members(cluster, newcomer),
        35..=36 if is_live => {
            let to = all[cluster.draw.below(all.len() as u64) as usize];
            cluster.node(node).transfer_leader(to);
            cluster.drain(node);
        }
        _ if is_live => {
            let data = cluster.draw.next().to_le_bytes().to_vec();
            let _ = cluster.node(node).propose(data);
            cluster.drain(node);
        }
        _ => {}
    }
}

fn change_members(cluster: &mut RaftCluster, newcomer: &mut u64) {
    let Some(leader) = cluster.leader() else { return };
    let members = cluster.status(leader).members;
    let learner = members.learners.first().copied();
    let voter = members.voters.iter().copied().find(|&node| node != leader);
    let change = match (cluster.draw.below(4), learner, voter) {
        (0, Some(learner), _) => VoterChange::Promote(learner),
        (1, _, Some(voter)) if members.voters.len() > 3 => VoterChange::Remove(voter),
        (2, Some(new), Some(old)) => VoterChange::Replace { old, new },
        _ if members.learners.is_empty() && *newcomer < 16 => {
            *newcomer += 1;
            cluster.create(n(*newcomer), &[]);
            VoterChange::AddLearner(n(*newcomer))
        }
        _ => return,
    };
    let _ = cluster.node(leader).change_voters(change);
    cluster.drain(leader);
}

#[test]
fn storms_end_in_agreement() {
    for seed in 0..150 {
        storm(seed, 400);
    }
}
