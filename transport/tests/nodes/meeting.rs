//! Which peers find each other, and which are there after a restart.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use zbelastic_identity::PeerRole;
use zbelastic_transport::{
    BindError, DialProblem, DownReason, ProcessStart, Transport, TransportLimits, TransportPath,
};
use zbelastic_types::NodeId;

use crate::site::{TransportSite, TransportTestOptions};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_nodes_meet_and_one_leaves_in_order() {
    for same_host in [false, true] {
        let site = TransportSite::new();
        let (one, mut two) = site.pair(same_host).await;
        assert_eq!(two.transport.round_trip(NodeId(1)).is_none(), same_host, "sockets have none");
        assert_eq!(two.transport.round_trip(NodeId(3)), None, "it is not there");
        one.transport.close().await;
        assert_eq!(two.down().await, (NodeId(1), DownReason::Left));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_addresses_before_the_right_one_are_passed_by() {
    let site = TransportSite::new();
    let mut one = site.worker(1).await;
    let mut two = site.worker(2).await;
    // A socket that is open and never answers, and an address of no host.
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let nowhere: SocketAddr = "192.0.2.1:7000".parse().unwrap();
    let addresses = vec![silent.local_addr().unwrap(), nowhere, two.transport.local_addr()];
    one.transport.add_peer(NodeId(2), PeerRole::Worker, addresses);
    assert_eq!(one.up().await, (NodeId(2), 1, TransportPath::Quic));
    assert_eq!(two.up().await, (NodeId(1), 1, TransportPath::Quic));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_higher_id_dials_when_the_lower_one_does_not() {
    let site = TransportSite::new();
    let limits =
        TransportLimits { dial_patience: Duration::from_millis(50), ..TransportLimits::default() };
    let options = TransportTestOptions { limits, ..TransportTestOptions::default() };
    let mut one = site.node(1, options.clone()).await;
    let mut two = site.node(2, options).await;
    two.knows(&one);
    assert_eq!(one.up().await.0, NodeId(2));
    assert_eq!(two.up().await.0, NodeId(1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_not_there_is_reported_once_and_found_when_it_comes() {
    let site = TransportSite::new();
    let reserved = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = reserved.local_addr().unwrap();
    let mut one = site.worker(1).await;
    one.transport.add_peer(NodeId(2), PeerRole::Worker, vec![address]);
    let expected = (NodeId(2), DialProblem::NobodyAnswers);
    assert_eq!(one.until_dial_failed().await, expected);
    drop(reserved);
    let mut two = site
        .node(2, TransportTestOptions { bind: address, ..TransportTestOptions::default() })
        .await;
    // A dial that began before may be given up in the midst of its handshake.
    assert_eq!(two.until_up().await, NodeId(1));
    assert_eq!(one.up().await.0, NodeId(2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_node_at_the_address_is_not_taken_for_the_wanted_one() {
    let site = TransportSite::new();
    let mut one = site.worker(1).await;
    let three = site.worker(3).await;
    one.transport.add_peer(NodeId(2), PeerRole::Worker, vec![three.transport.local_addr()]);
    assert_eq!(one.until_dial_failed().await, (NodeId(2), DialProblem::AnotherNode));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_starts_again_takes_the_place_of_its_former_life_at_once() {
    let site = TransportSite::new();
    let (one, mut two) = site.pair(false).await;
    // The first life is still there, as a process that hangs would be.
    let start = ProcessStart { boot: 2, life: 2 };
    let mut again =
        site.node(1, TransportTestOptions { start, ..TransportTestOptions::default() }).await;
    again.knows(&two);
    assert_eq!(two.down().await, (NodeId(1), DownReason::Replaced));
    assert_eq!(two.up().await, (NodeId(1), 2, TransportPath::Quic));
    assert_eq!(again.up().await.0, NodeId(2));
    two.transport.send(NodeId(1), vec![1, 7].into());
    assert_eq!(again.control().await, (NodeId(2), vec![1, 7]));
    drop(one);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forgotten_node_is_closed_and_a_known_one_comes_back() {
    let site = TransportSite::new();
    let (mut one, mut two) = site.pair(false).await;
    two.transport.forget(NodeId(1));
    one.transport.forget(NodeId(2));
    assert_eq!(one.until_down().await, NodeId(2));
    assert_eq!(two.until_down().await, NodeId(1));
    one.knows(&two);
    assert_eq!(one.up().await.0, NodeId(2));
    assert_eq!(two.up().await.0, NodeId(1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_in_use_is_reported_as_that() {
    let site = TransportSite::new();
    let one = site.worker(1).await;
    let bind = one.transport.local_addr();
    let setup = site.setup(2, &TransportTestOptions { bind, ..TransportTestOptions::default() });
    let refused = Transport::bind(setup).await;
    assert!(matches!(refused, Err(BindError::PortInUse { address }) if address == bind));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_nodes_that_all_know_each_other_hold_one_connection_each() {
    let site = TransportSite::new();
    let mut nodes = Vec::new();
    for id in 1..=5 {
        nodes.push(site.worker(id).await);
    }
    for one in &nodes {
        for other in nodes.iter().filter(|other| other.id != one.id) {
            one.knows(other);
        }
    }
    for node in &mut nodes {
        let mut there = Vec::new();
        while there.len() < 4 {
            there.push(node.up().await.0);
        }
        there.sort_unstable();
        there.dedup();
        assert_eq!(there.len(), 4);
    }
    for node in &nodes {
        assert_eq!(node.transport.counters().accept.open, 4);
    }
}
