//! The command line's client.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use zbelastic_identity::{ClusterAuthority, PeerRole, UnixSeconds};
use zbelastic_transport::{AdminClient, CloseCode, DialProblem, RequestError, TransportLimits};
use zbelastic_types::{ClusterId, NodeId};

use crate::site::{DEADLINE, TransportSite, TransportTestNode, TransportTestOptions};

fn address(node: &TransportTestNode) -> String {
    node.transport.local_addr().to_string()
}

async fn answer(node: &mut TransportTestNode, expected: PeerRole) {
    let (from, bytes, reply) = node.request().await;
    assert_eq!(from.role, expected);
    assert!(reply.answer(bytes));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_admin_finds_a_node_behind_addresses_that_lead_nowhere() {
    let site = TransportSite::of(1);
    let other = TransportSite::of(2);
    let mut node = site.worker(1).await;
    let foreign = other.worker(2).await;
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let wrong = ["nonsense", "::", ":70", "localhost:70000"].map(str::to_owned);
    let dead = [silent.local_addr().unwrap().to_string(), address(&foreign)];
    let all = [&wrong[..], &dead].concat();
    let credentials = site.credentials(PeerRole::Admin, 50);
    let error = AdminClient::connect(&all, credentials.clone()).await.unwrap_err();
    let problems: Vec<_> = error.tried.iter().map(|attempt| attempt.problem.clone()).collect();
    let nonsense = || DialProblem::NotAnAddress;
    assert_eq!(problems[..4], [nonsense(), nonsense(), nonsense(), nonsense()]);
    assert_eq!(problems[4..], [DialProblem::NobodyAnswers, DialProblem::NotThisCluster]);
    let all = [&dead[..], &[address(&node)]].concat();
    let client = AdminClient::connect(&all, credentials).await.unwrap();
    assert_eq!((client.peer().node, client.address()), (NodeId(1), all[2].as_str()));
    let request = client.request(b"status".to_vec());
    let (answered, ()) = tokio::join!(request, answer(&mut node, PeerRole::Admin));
    assert_eq!(answered.unwrap(), b"status");
    client.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_out_of_date_is_reported_as_that_whoever_has_it() {
    const DAY: u64 = 24 * 60 * 60;
    let now = UnixSeconds::now();
    let before = UnixSeconds(now.0 - 20 * DAY);
    let authority = ClusterAuthority::create(ClusterId(1), before).unwrap();
    let site = TransportSite::by(authority);
    let old_admin = site.authority.credentials(PeerRole::Admin, NodeId(50), before).unwrap();
    let node = site.worker(1).await;
    let error = AdminClient::connect(&[address(&node)], old_admin).await.unwrap_err();
    assert!(matches!(error.tried[0].problem, DialProblem::CertificateExpired { .. }), "{error}");
    let stale = site.authority.credentials(PeerRole::Worker, NodeId(1), before).unwrap();
    node.transport.set_credentials(stale).unwrap();
    let admin = site.credentials(PeerRole::Admin, 50);
    let error = AdminClient::connect(&[address(&node)], admin.clone()).await.unwrap_err();
    assert!(matches!(error.tried[0].problem, DialProblem::CertificateExpired { .. }), "{error}");
    node.transport.set_credentials(site.credentials(PeerRole::Worker, 1)).unwrap();
    AdminClient::connect(&[address(&node)], admin).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_banned_admin_is_closed_and_not_let_in_again() {
    let site = TransportSite::new();
    let node = site.worker(1).await;
    let credentials = site.credentials(PeerRole::Admin, 50);
    let client = AdminClient::connect(&[address(&node)], credentials.clone()).await.unwrap();
    node.transport.ban(NodeId(50));
    assert_eq!(client.request(vec![1]).await, Err(RequestError::Broken));
    let error = AdminClient::connect(&[address(&node)], credentials).await.unwrap_err();
    assert_eq!(error.tried[0].problem, DialProblem::Refused(CloseCode::Banned));
}

/// Passes datagrams between one client and a node. Yields its address, and where it counts the
/// bytes of the largest one to the client.
async fn relay(node: SocketAddr) -> (SocketAddr, Arc<AtomicUsize>) {
    const DATAGRAM_BYTES_MAX: usize = 65_535;
    let front = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let back = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    back.connect(node).await.unwrap();
    let address = front.local_addr().unwrap();
    let largest = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&largest);
    tokio::spawn(async move {
        let mut client = address;
        let mut there = vec![0; DATAGRAM_BYTES_MAX];
        let mut here = vec![0; DATAGRAM_BYTES_MAX];
        loop {
            // One that is lost here is sent again, as on any path.
            tokio::select! {
                Ok((bytes, from)) = front.recv_from(&mut there) => {
                    client = from;
                    let _ = back.send(&there[..bytes]).await;
                }
                Ok(bytes) = back.recv(&mut here) => {
                    counted.fetch_max(bytes, Ordering::Relaxed);
                    let _ = front.send_to(&here[..bytes], client).await;
                }
            }
        }
    });
    (address, largest)
}

/// A model is read over such a connection. At the 1,472 bytes that a packet has by default each of
/// its bytes costs several times as much.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_is_answered_in_packets_as_large_as_a_members() {
    const ETHERNET_PAYLOAD_BYTES: usize = 1472;
    let site = TransportSite::new();
    let mut node = site.worker(1).await;
    let (relay, largest) = relay(node.transport.local_addr()).await;
    let credentials = site.credentials(PeerRole::Admin, 50);
    let client = AdminClient::connect(&[relay.to_string()], credentials).await.unwrap();
    let expected = vec![7; 8 << 20];
    let body = expected.clone();
    let (answered, ()) = tokio::join!(client.request(b"model".to_vec()), async {
        let (_, _, reply) = node.request().await;
        assert!(reply.answer(body));
    });
    assert!(answered.unwrap() == expected);
    let largest = largest.load(Ordering::Relaxed);
    assert!(largest > 4 * ETHERNET_PAYLOAD_BYTES, "at most {largest} bytes came at once");
    client.close().await;
}

/// A node with a socket, and a client of it.
async fn on_one_host(site: &TransportSite) -> (TransportTestNode, AdminClient) {
    let options = TransportTestOptions { same_host: true, ..TransportTestOptions::default() };
    let node = site.node(1, options).await;
    let credentials = site.credentials(PeerRole::Admin, 50);
    let client = AdminClient::connect(&[address(&node)], credentials).await.unwrap();
    (node, client)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_of_the_same_host_sends_its_requests_by_the_nodes_socket() {
    let site = TransportSite::new();
    let (mut node, client) = on_one_host(&site).await;
    for length in [0, 1, 8 << 20] {
        let body = vec![7; length];
        let (answered, ()) = tokio::join!(client.request(b"model".to_vec()), async {
            let (from, bytes, reply) = node.request().await;
            assert_eq!((from.node, from.role), (NodeId(50), PeerRole::Admin));
            assert_eq!(bytes, b"model");
            assert!(reply.answer(body.clone()));
        });
        assert!(answered.unwrap() == body, "{length} bytes");
        assert!(client.holds_socket());
    }
    // Dropped without an answer: the socket stays.
    let (answered, ()) = tokio::join!(client.request(vec![1]), async {
        drop(node.request().await);
    });
    assert_eq!(answered, Err(RequestError::Unanswered));
    assert!(client.holds_socket());
    client.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_by_a_socket_that_is_given_up_is_seen_to_be_cancelled() {
    let site = TransportSite::new();
    let (mut node, client) = on_one_host(&site).await;
    let within = Duration::from_millis(50);
    let (answered, mut reply) = tokio::join!(client.request_within(vec![1], within), async {
        let (_, _, reply) = node.request().await;
        reply
    });
    assert_eq!(answered, Err(RequestError::Deadline { within }));
    tokio::time::timeout(DEADLINE, reply.cancelled()).await.expect("it is noticed");
    // The answer to it would be taken for that of the next one.
    let (answered, ()) = tokio::join!(client.request(vec![2]), async {
        let (_, bytes, reply) = node.request().await;
        assert!(reply.answer(bytes));
    });
    assert_eq!(answered, Ok(vec![2]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_socket_serves_no_client_whose_connection_was_closed() {
    let site = TransportSite::new();
    let (mut node, client) = on_one_host(&site).await;
    let (answered, ()) = tokio::join!(client.request(vec![1]), answer(&mut node, PeerRole::Admin));
    assert_eq!((answered, client.holds_socket()), (Ok(vec![1]), true));
    node.transport.ban(NodeId(50));
    assert_eq!(client.request(vec![1]).await, Err(RequestError::Broken));
}

/// As from a container, in which the path leads nowhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_cannot_reach_the_socket_sends_its_requests_by_quic() {
    let site = TransportSite::new();
    let (mut node, client) = on_one_host(&site).await;
    site.remove_sockets();
    for _ in 0..2 {
        let (answered, ()) =
            tokio::join!(client.request(vec![1]), answer(&mut node, PeerRole::Admin));
        assert_eq!((answered, client.holds_socket()), (Ok(vec![1]), false));
    }
}

/// A busy node reads no request, however long: the client finds that it is busy all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_node_says_so_by_its_socket() {
    const LONG: usize = 512 << 10;
    let site = TransportSite::new();
    let limits = TransportLimits { requests_open_max: 1, ..TransportTestOptions::default().limits };
    let options =
        TransportTestOptions { same_host: true, limits, ..TransportTestOptions::default() };
    let mut node = site.node(1, options).await;
    let credentials = |node| site.credentials(PeerRole::Admin, node);
    let first = AdminClient::connect(&[address(&node)], credentials(50)).await.unwrap();
    let second = AdminClient::connect(&[address(&node)], credentials(51)).await.unwrap();
    let (answered, ()) = tokio::join!(first.request(vec![1]), async {
        let (_, bytes, reply) = node.request().await;
        assert_eq!(second.request(vec![2; LONG]).await, Err(RequestError::Busy));
        assert!(reply.answer(bytes));
    });
    assert_eq!(answered, Ok(vec![1]));
    // The first has its answer before the node counts its request as closed.
    let asked = async {
        loop {
            let answered = second.request(vec![3]).await;
            if answered != Err(RequestError::Busy) {
                break answered;
            }
        }
    };
    let (answered, ()) = tokio::join!(asked, async {
        let (_, bytes, reply) = node.request().await;
        assert!(reply.answer(bytes));
    });
    assert_eq!((answered, second.holds_socket()), (Ok(vec![3]), true));
}
