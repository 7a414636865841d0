//! Disks that were set back, wiped or copied (P5).

use super::super::{FatalReason, RaftMessage, StaleCause};
use super::cluster::{RaftCluster, n};

/// Node 3 of three falls back to a copy of its disk that lacks what it has acknowledged since.
fn set_back(seed: u64, restarts_between: u32) -> RaftCluster {
    let mut cluster = RaftCluster::new(seed, 3);
    cluster.commit_on(b"one", &[n(1), n(2), n(3)]);
    let old = cluster.machines[&n(3)].disk.clone();
    for _ in 0..restarts_between {
        cluster.crash(n(3), None);
        cluster.restart(n(3));
        cluster.commit_on(b"between", &[n(1), n(2), n(3)]);
    }
    cluster.commit_on(b"two", &[n(1), n(2), n(3)]);
    cluster.crash(n(3), None);
    cluster.machines.get_mut(&n(3)).unwrap().disk = old;
    cluster.network.clear();
    cluster
}

/// All that node 3 sends is a greeting, until it stops.
fn rounds_in_which_3_only_greets(cluster: &mut RaftCluster) {
    for _ in 0..60 {
        cluster.round();
        let mut sent = cluster.network.iter().filter(|(from, _, _)| *from == n(3));
        assert!(sent.all(|(_, _, message)| !matches!(message, RaftMessage::Raft(_))));
    }
}

#[test]
fn stale_disk_is_fatal_and_does_not_vote() {
    // The leader remembers the acknowledgements; which node leads does not matter for long.
    let mut cluster = set_back(41, 0);
    if cluster.leader() == Some(n(3)) {
        cluster.elect();
    }
    cluster.restart(n(3));
    rounds_in_which_3_only_greets(&mut cluster);
    let fatal = cluster.machines[&n(3)].fatal.unwrap();
    let FatalReason::StaleDisk { cause, .. } = fatal else { panic!("{fatal:?}") };
    assert!(matches!(cause, StaleCause::Entries { .. } | StaleCause::Term { .. }), "{cause:?}");
    assert_eq!(cluster.status(n(3)).fatal, Some(fatal));
    cluster.commit_on(b"three", &[n(1), n(2)]);
}

#[test]
fn disk_from_before_an_earlier_start_is_fatal_even_if_the_peers_restarted() {
    let mut cluster = set_back(42, 1);
    for node in [1, 2] {
        cluster.crash(n(node), None);
        cluster.restart(n(node));
    }
    cluster.elect();
    cluster.restart(n(3));
    rounds_in_which_3_only_greets(&mut cluster);
    let fatal = cluster.machines[&n(3)].fatal;
    let cause = StaleCause::Boot { seen: 2, found: 2 };
    assert!(matches!(fatal, Some(FatalReason::StaleDisk { cause: found, .. }) if found == cause));
}

/// The limit of the method, so that nobody believes more: boots are on disk, but what a node
/// acknowledged within its last life is only in the memory of the others.
#[test]
fn stale_disk_of_the_last_life_is_not_found_if_all_peers_restarted() {
    let mut cluster = set_back(43, 0);
    for node in [1, 2] {
        cluster.crash(n(node), None);
        cluster.restart(n(node));
    }
    cluster.elect();
    cluster.restart(n(3));
    cluster.rounds(30);
    assert_eq!(cluster.machines[&n(3)].fatal, None);
    // Agreement holds all the same: the two others have what node 3 forgot.
    cluster.commit_on(b"three", &[n(1), n(2), n(3)]);
}

#[test]
fn wiped_disk_under_the_old_name_is_fatal() {
    let mut cluster = RaftCluster::new(44, 3);
    cluster.commit_on(b"one", &[n(1), n(2), n(3)]);
    cluster.crash(n(3), None);
    cluster.create(n(3), &[n(1), n(2), n(3)]);
    rounds_in_which_3_only_greets(&mut cluster);
    let fatal = cluster.machines[&n(3)].fatal;
    assert!(matches!(
        fatal,
        Some(FatalReason::StaleDisk { cause: StaleCause::Boot { seen: 1, found: 1 }, .. })
    ));
}

#[test]
fn all_can_greet_at_once_over_a_bad_network() {
    let mut cluster = RaftCluster::new(45, 5);
    (cluster.loss, cluster.doubles) = (30, 30);
    let all: Vec<_> = (1..=5).map(n).collect();
    cluster.commit_on(b"one", &all);
    for _ in 0..5 {
        for &node in &all {
            cluster.crash(node, None);
        }
        for &node in &all {
            cluster.restart(node);
            assert!(cluster.status(node).is_greeting);
        }
        cluster.commit_on(b"again", &all);
    }
}

#[test]
fn greeting_needs_a_majority() {
    let mut cluster = RaftCluster::new(46, 3);
    cluster.commit_on(b"one", &[n(1), n(2), n(3)]);
    for node in 1..=3 {
        cluster.crash(n(node), None);
    }
    cluster.restart(n(1));
    cluster.rounds(50);
    assert!(cluster.status(n(1)).is_greeting);
    cluster.restart(n(2));
    cluster.commit_on(b"two", &[n(1), n(2)]);
    assert!(!cluster.status(n(1)).is_greeting);
}

#[test]
fn late_and_doubled_greetings_do_no_harm() {
    let mut cluster = RaftCluster::new(47, 3);
    cluster.commit_on(b"one", &[n(1), n(2), n(3)]);
    cluster.crash(n(3), None);
    cluster.restart(n(3));
    cluster.sync(n(3), 100);
    let hellos: Vec<_> = cluster.network.clone();
    assert!(
        hellos.iter().any(|(from, _, message)| {
            *from == n(3) && matches!(message, RaftMessage::Hello(_))
        })
    );
    cluster.commit_on(b"two", &[n(1), n(2), n(3)]);
    cluster.network.extend(hellos.clone());
    cluster.rounds(5);
    cluster.crash(n(3), None);
    cluster.restart(n(3));
    cluster.network.extend(hellos);
    cluster.commit_on(b"three", &[n(1), n(2), n(3)]);
    assert_eq!(cluster.machines[&n(3)].fatal, None);
}
