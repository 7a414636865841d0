//! What a crash may lose, and what a disk may look like afterwards.

use super::super::{
    CompactRefusal, RaftNode, RaftOutput, RaftRecord, RaftSetup, RaftStartError, RecoverError,
    RecoveredLog, SNAPSHOT_BYTES_MAX, decode_record, encode_record,
};
use super::cluster::{RaftCluster, n};
use zbelastic_types::NodeId;

fn recover(records: &[Vec<u8>]) -> Result<RecoveredLog, RecoverError> {
    RecoveredLog::from_records(records.iter().map(Vec::as_slice))
}

#[test]
fn crash_before_persist_loses_only_what_nobody_acknowledged() {
    let mut cluster = RaftCluster::new(21, 3);
    cluster.commit_on(b"kept", &[n(1), n(2), n(3)]);
    let leader = cluster.leader().unwrap();
    let last_index = cluster.status(leader).last_index;
    cluster.disk_speed = 0;
    cluster.propose(leader, b"lost");
    cluster.rounds(3);
    assert_eq!(cluster.status(leader).commit, last_index, "nothing is durable on anyone");
    for node in cluster.live() {
        cluster.crash(node, None);
        cluster.restart(node);
        assert_eq!(cluster.status(node).last_index, last_index);
    }
    cluster.disk_speed = 100;
    cluster.network.clear();
    cluster.commit_on(b"next", &[n(1), n(2), n(3)]);
    assert!(cluster.agreed.values().any(|entry| entry.data == b"kept"));
    assert!(cluster.agreed.values().all(|entry| entry.data != b"lost"));
}

#[test]
fn entry_durable_on_two_of_three_survives_the_loss_of_the_leaders_write() {
    let mut cluster = RaftCluster::new(22, 3);
    cluster.commit_on(b"one", &[n(1), n(2), n(3)]);
    let leader = cluster.leader().unwrap();
    cluster.disk_speed = 0;
    cluster.propose(leader, b"two");
    for _ in 0..4 {
        cluster.deliver();
        for node in cluster.live().into_iter().filter(|&node| node != leader) {
            cluster.sync(node, 100);
        }
    }
    let status = cluster.status(leader);
    assert_eq!(status.commit, status.last_index, "two of three have it");
    assert_eq!(
        status.applied + 1,
        status.last_index,
        "and a follower that has not does not hand it out"
    );
    cluster.crash(leader, None);
    cluster.disk_speed = 100;
    cluster.restart(leader);
    cluster.commit_on(b"three", &[n(1), n(2), n(3)]);
    assert!(cluster.agreed.values().any(|entry| entry.data == b"two"));
}

#[test]
fn torn_tail_is_cut() {
    for torn in [0, 1, 5, 9, 12] {
        let mut cluster = RaftCluster::new(23, 3);
        cluster.commit_on(b"one", &[n(1), n(2), n(3)]);
        let leader = cluster.leader().unwrap();
        cluster.disk_speed = 0;
        cluster.propose(leader, b"torn");
        cluster.crash(leader, Some(torn));
        cluster.disk_speed = 100;
        assert!(cluster.restart(leader), "a record of {torn} bytes is torn");
        cluster.commit_on(b"two", &[n(1), n(2), n(3)]);
    }
}

#[test]
fn damage_before_the_tail_is_refused() {
    let mut cluster = RaftCluster::new(24, 3);
    cluster.commit_on(b"one", &[n(1), n(2), n(3)]);
    let records = cluster.machines[&n(1)].disk.records.clone();
    for (at, whole) in records.iter().enumerate() {
        for byte in 0..whole.len() {
            let mut records = records.clone();
            records[at][byte] ^= 0x10;
            let number = at as u64;
            match recover(&records) {
                Ok(log) => assert!(log.torn && at == records.len() - 1),
                Err(RecoverError::BadRecord { number: found, .. }) => assert_eq!(found, number),
                Err(other) => panic!("record {at}, byte {byte}: {other}"),
            }
        }
    }
}

#[test]
fn missing_record_is_refused() {
    let mut cluster = RaftCluster::new(25, 3);
    for step in 0..5_u8 {
        cluster.commit_on(&[step], &[n(1), n(2), n(3)]);
    }
    let records = cluster.machines[&n(1)].disk.records.clone();
    let is_append = |bytes: &Vec<u8>| matches!(decode_record(bytes), Ok(RaftRecord::Append(_)));
    let middle = records.iter().position(is_append).unwrap() + 2;
    let mut records = records;
    let first = records.iter().skip(middle).position(is_append).unwrap() + middle;
    records.remove(first);
    assert!(matches!(recover(&records), Err(RecoverError::Gap { .. })));
}

#[test]
fn whole_cluster_loses_power_again_and_again() {
    let mut cluster = RaftCluster::new(26, 3);
    cluster.compact_after = 7;
    cluster.disk_speed = 50;
    for step in 0..30_u8 {
        let leader = cluster.elect();
        for part in 0..4_u8 {
            let _ = cluster.node(leader).propose(vec![step, part]);
            cluster.drain(leader);
        }
        let rounds = cluster.draw.below(6) as u32;
        cluster.rounds(rounds);
        let agreed = cluster.agreed.len();
        for node in cluster.live() {
            let torn = cluster.draw.below(40) as usize;
            let torn = cluster.draw.percent(50).then_some(torn);
            cluster.crash(node, torn);
        }
        cluster.network.clear();
        for node in [2, 3, 1] {
            cluster.restart(n(node));
            let between = cluster.draw.below(4) as u32;
            cluster.rounds(between);
        }
        cluster.disk_speed = 100;
        cluster.commit_on(&[step], &[n(1), n(2), n(3)]);
        cluster.disk_speed = 50;
        assert!(cluster.agreed.len() > agreed, "nothing that was agreed is lost");
    }
    assert!(cluster.machines[&n(1)].disk.records.len() < 200);
}

/// A disk may hold any part of what was under way. Here that is a compaction.
#[test]
fn crash_at_any_record_of_a_compaction_recovers_the_same() {
    let mut cluster = RaftCluster::new(27, 3);
    for step in 0..6_u8 {
        cluster.commit_on(&[step], &[n(1), n(2), n(3)]);
    }
    let leader = cluster.leader().unwrap();
    let state = cluster.machines[&leader].state;
    cluster.propose(leader, b"after");
    cluster.sync(leader, 100);
    let before = cluster.machines[&leader].disk.records.clone();
    let last_index = cluster.status(leader).last_index;
    assert!(last_index > state.index);
    cluster.node(leader).compact(state.index, state.bytes()).unwrap();
    let (records, token) = persist(cluster.node(leader));
    for kept in 0..=records.len() {
        let mut disk = before.clone();
        disk.extend(records[..kept].iter().map(encode_record));
        check_recovery(&disk, leader.0, last_index);
    }
    cluster.node(leader).on_persisted(token);
    let outputs: Vec<_> = std::iter::from_fn(|| cluster.node(leader).poll()).collect();
    let number = before.len() as u64 + cluster.machines[&leader].disk.base;
    assert!(outputs.iter().any(|output| matches!(
        output,
        RaftOutput::Trim { before } if before.0 == number
    )));
    let disk: Vec<_> = records.iter().map(encode_record).collect();
    check_recovery(&disk, leader.0, last_index);
}

fn persist(node: &mut RaftNode) -> (Vec<RaftRecord>, super::super::PersistToken) {
    while let Some(output) = node.poll() {
        if let RaftOutput::Persist { token, records } = output {
            return (records, token);
        }
    }
    panic!("something is to be persisted");
}

fn check_recovery(disk: &[Vec<u8>], node: u64, last_index: u64) {
    let log = recover(disk).unwrap();
    let node = RaftNode::recover(RaftSetup::new(n(node), 99, 10), log).unwrap();
    let status = node.status();
    assert_eq!(status.last_index, last_index);
    assert_eq!((status.boot, status.term), (2, 2));
    assert_eq!(status.members.voters.len(), 3);
}

#[test]
fn leader_whose_disk_hangs_gives_way() {
    let mut cluster = RaftCluster::new(28, 3);
    cluster.commit_on(b"one", &[n(1), n(2), n(3)]);
    let slow = cluster.leader().unwrap();
    cluster.hung.insert(slow);
    cluster.propose(slow, b"two");
    cluster.rounds(100);
    assert!(!cluster.status(slow).is_leader);
    let others: Vec<_> = cluster.live().into_iter().filter(|&node| node != slow).collect();
    cluster.commit_on(b"three", &others);
    assert!(cluster.agreed.values().any(|entry| entry.data == b"two"), "the others had it");
    cluster.hung.clear();
    cluster.commit_on(b"four", &[n(1), n(2), n(3)]);
}

#[test]
fn slow_disks_depose_no_leader_that_nobody_could_replace() {
    // Voters, and whether the disk of the leader hangs, and of each other one.
    for (voters, leaders, others) in [(1, true, false), (3, false, true), (3, true, true)] {
        let mut cluster = RaftCluster::new(28, voters);
        let nodes: Vec<_> = (1..=voters).map(n).collect();
        cluster.commit_on(b"one", &nodes);
        let leader = cluster.leader().expect("it agreed");
        let term = cluster.status(leader).term;
        let hangs = |node: &NodeId| if *node == leader { leaders } else { others };
        cluster.hung.extend(nodes.iter().copied().filter(hangs));
        cluster.propose(leader, b"two");
        cluster.rounds(1_000);
        assert!(cluster.status(leader).leads_applied, "of {voters}: {}", cluster.summary());
        assert!(cluster.agreed.values().all(|entry| entry.data != b"two"));
        cluster.hung.clear();
        cluster.commit_on(b"three", &nodes);
        assert_eq!((cluster.leader(), cluster.status(leader).term), (Some(leader), term));
        assert!(cluster.agreed.values().any(|entry| entry.data == b"two"));
    }
}

#[test]
fn start_that_was_never_durable_can_be_made_anew() {
    let setup = || RaftSetup::new(n(1), 1, 10);
    let mut node = RaftNode::create(setup(), &[n(1), n(2)], vec![1]).unwrap();
    let (records, _) = persist(&mut node);
    let disk: Vec<_> = records.iter().map(encode_record).collect();
    for kept in 0..disk.len() {
        let log = recover(&disk[..kept]).unwrap();
        let refusal = RaftNode::recover(setup(), log).err();
        assert_eq!(refusal, Some(RaftStartError::NeverStarted));
    }
    let log = recover(&disk).unwrap();
    let other = RaftNode::recover(RaftSetup::new(n(2), 1, 10), log.clone()).err();
    let expected = RaftStartError::OtherNode { expected: n(2), found: n(1) };
    assert_eq!(other, Some(expected));
    assert_eq!(RaftNode::recover(setup(), log).unwrap().status().boot, 2);
}

#[test]
fn compactions_without_a_state_are_refused() {
    let mut cluster = RaftCluster::new(29, 3);
    cluster.commit_on(b"one", &[n(1), n(2), n(3)]);
    let applied = cluster.status(n(1)).applied;
    let mut check = |index, bytes, expected| {
        let done = cluster.node(n(1)).compact(index, vec![0; bytes]);
        assert_eq!(done, expected);
    };
    let found = applied + 1;
    check(found, 1, Err(CompactRefusal::NotApplied { applied, found }));
    let found = SNAPSHOT_BYTES_MAX + 1;
    check(applied, found, Err(CompactRefusal::TooLarge { found }));
    check(applied, SNAPSHOT_BYTES_MAX, Ok(()));
    check(applied, 1, Err(CompactRefusal::NotNewer { latest: applied, found: applied }));
}

#[test]
fn setups_that_cannot_work_are_refused() {
    let node = |setup: RaftSetup, voters: &[u64]| {
        let voters: Vec<_> = voters.iter().map(|&id| n(id)).collect();
        RaftNode::create(setup, &voters, Vec::new()).err().unwrap()
    };
    let setup = RaftSetup::new(n(1), 1, 10);
    assert_eq!(node(RaftSetup::new(n(0), 1, 10), &[]), RaftStartError::BadNode { found: n(0) });
    let ticks = RaftStartError::BadTicks { election: 2, heartbeat: 2 };
    assert_eq!(node(RaftSetup::new(n(1), 1, 2), &[1]), ticks);
    let limits = RaftSetup { appends_max: 0, ..setup.clone() };
    assert_eq!(node(limits, &[1]), RaftStartError::ZeroLimit);
    assert_eq!(node(setup.clone(), &[2, 3]), RaftStartError::NotVoter { node: n(1) });
    assert!(matches!(node(setup, &[0, 1]), RaftStartError::BadMembers { .. }));
}
