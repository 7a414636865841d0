//! Unauthenticated attempts: noise, floods, other clusters, and joiners.

use std::collections::BTreeSet;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Connection, Endpoint};
use rustls::SignatureScheme;
use rustls::client::ResolvesClientCert;
use rustls::sign::CertifiedKey;
use tokio::task::JoinSet;
use zbelastic_identity::{
    ExpectedPeer, JoinAnswer, JoinError, JoinGrant, JoinRefusal, JoinSetup, JoinToken, NodeKey,
    PeerRole, UnixSeconds, request_certificate,
};
use zbelastic_transport::{DialProblem, TransportEvent, TransportLimits};
use zbelastic_types::NodeId;

use crate::raw::{RawPeer, client_config};
use crate::site::{TransportSite, TransportTestNode, TransportTestOptions};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn noise_on_the_port_is_ignored() {
    let site = TransportSite::new();
    let mut one = site.worker(1).await;
    let address = one.transport.local_addr();
    let noise = UdpSocket::bind("127.0.0.1:0").unwrap();
    noise.send_to(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", address).unwrap();
    for length in [0_usize, 1, 20, 1199, 1200, 1400, 8000] {
        // Bytes without order, the same in every run; the first bits of a long QUIC header are
        // among them.
        let bytes: Vec<u8> =
            (0..length).map(|index| (index * index * 31 + length) as u8 | 0xc0).collect();
        noise.send_to(&bytes, address).unwrap();
    }
    let mut two = site.worker(2).await;
    two.knows(&one);
    one.knows(&two);
    assert_eq!(one.up().await.0, NodeId(2));
    assert_eq!(two.up().await.0, NodeId(1));
}

/// First datagrams of handshakes that no process continues, each of its own.
async fn first_datagrams(site: &TransportSite, count: usize) -> Vec<Vec<u8>> {
    let config = client_config(&site.credentials(PeerRole::Worker, 99));
    let trap = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = trap.local_addr().unwrap();
    let mut diallers = Vec::new();
    let mut datagrams = Vec::new();
    for _ in 0..count {
        let endpoint = Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
        let own = endpoint.local_addr().unwrap();
        let connecting = endpoint.connect_with(config.clone(), address, "zbelastic").unwrap();
        let mut buffer = [0; 2048];
        let mut received = trap.recv_from(&mut buffer).await.unwrap();
        // Those before send their first packets again.
        while received.1 != own {
            received = trap.recv_from(&mut buffer).await.unwrap();
        }
        datagrams.push(buffer[..received.0].to_vec());
        diallers.push((endpoint, connecting));
    }
    datagrams
}

/// Handshakes from as many addresses; the sockets stay open and silent.
async fn flood(site: &TransportSite, address: SocketAddr, count: usize) -> Vec<UdpSocket> {
    let mut sockets = Vec::new();
    for datagram in first_datagrams(site, count).await {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.send_to(&datagram, address).unwrap();
        sockets.push(socket);
    }
    sockets
}

async fn flooded(limits: TransportLimits) -> (TransportTestNode, Vec<UdpSocket>) {
    let site = TransportSite::new();
    let mut one =
        site.node(2, TransportTestOptions { limits, ..TransportTestOptions::default() }).await;
    let sockets = flood(&site, one.transport.local_addr(), 40).await;
    // A peer that comes after the flood is accepted: datagrams are taken in order, so all of it was
    // seen.
    let mut two = site.worker(1).await;
    two.knows(&one);
    one.until(|event| matches!(event, TransportEvent::Up { .. }).then_some(())).await;
    two.until(|event| matches!(event, TransportEvent::Up { .. }).then_some(())).await;
    (one, sockets)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_handshakes_has_to_prove_its_addresses() {
    let limits = TransportLimits {
        handshakes_before_retry: 4,
        handshakes_pending_max: 8,
        handshake_within: Duration::from_secs(20),
        ..TransportLimits::default()
    };
    let (one, _sockets) = flooded(limits).await;
    let counters = one.transport.counters().accept;
    assert!(counters.pending_highest <= 8, "{counters:?}");
    assert!(counters.retried >= 36, "{counters:?}");
    assert_eq!(counters.ignored, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handshakes_beyond_the_limit_are_not_answered() {
    let limits = TransportLimits {
        handshakes_before_retry: 100,
        handshakes_pending_max: 4,
        handshake_within: Duration::from_secs(2),
        ..TransportLimits::default()
    };
    let (one, sockets) = flooded(limits).await;
    let counters = one.transport.counters().accept;
    assert!(counters.pending_highest <= 4, "{counters:?}");
    assert!(counters.ignored >= 36, "{counters:?}");
    assert!(counters.late >= 1, "{counters:?}");
    let mut answered = 0;
    for socket in sockets {
        socket.set_nonblocking(true).unwrap();
        answered += usize::from(socket.recv(&mut [0; 2048]).is_ok());
    }
    assert!(answered <= 4, "{answered}");
}

/// One address fills its own share of the pending handshakes, and no other address's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_with_too_many_handshakes_is_not_answered_and_others_are() {
    let limits = TransportLimits {
        handshakes_per_address_before_retry: 100,
        handshakes_per_address_max: 4,
        handshake_within: Duration::from_secs(20),
        ..TransportLimits::default()
    };
    let site = TransportSite::new();
    let one =
        site.node(2, TransportTestOptions { limits, ..TransportTestOptions::default() }).await;
    let address = one.transport.local_addr();
    let _sockets = flood(&site, address, 40).await;
    let Ok(endpoint) = Endpoint::client("127.0.0.2:0".parse().unwrap()) else {
        eprintln!("skipped: this machine has no second address of its own");
        return;
    };
    let config = client_config(&site.credentials(PeerRole::Worker, 1));
    // Datagrams are taken in order, so all of the flood was seen before this one.
    let connecting = endpoint.connect_with(config, address, "zbelastic").unwrap();
    let _connection = connecting.await.unwrap();
    let counters = one.transport.counters().accept;
    assert!(counters.pending_highest <= 5, "{counters:?}");
    assert!(counters.ignored_of_address >= 36, "{counters:?}");
    assert_eq!((counters.ignored, counters.retried), (0, 0), "{counters:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_clients_are_bounded_in_number() {
    let site = TransportSite::new();
    let limits = TransportLimits { clients_max: 3, ..TransportLimits::default() };
    let node =
        site.node(1, TransportTestOptions { limits, ..TransportTestOptions::default() }).await;
    let credentials = site.credentials(PeerRole::Admin, 50);
    let mut kept = Vec::new();
    for _ in 0..3 {
        kept.push(RawPeer::greeted(&credentials, &node.transport).await);
    }
    let one_more = RawPeer::silent(&credentials, &node.transport).await;
    let _streams = one_more.send_both_ways(&[&[1][..], &crate::raw::HELLO].concat()).await;
    assert_eq!(one_more.closed_for().await, zbelastic_transport::CloseCode::Crowded);
    assert_eq!(node.transport.counters().accept.open, 3);
    // Another person can still connect.
    let other = site.credentials(PeerRole::Viewer, 51);
    let _other = RawPeer::greeted(&other, &node.transport).await;
    assert_eq!(kept.remove(0).closed_for().await, zbelastic_transport::CloseCode::Crowded);
    assert!(kept.iter().all(|raw| raw.connection.close_reason().is_none()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_of_another_cluster_is_told_apart_at_both_ends() {
    let ours = TransportSite::of(1);
    let theirs = TransportSite::of(2);
    let mut one = ours.worker(2).await;
    let mut other = theirs.worker(1).await;
    other.knows(&one);
    assert_eq!(other.until_dial_failed().await.1, DialProblem::NotThisCluster);
    let event = one.next().await;
    let TransportEvent::Strangers { count, reason, .. } = event else {
        panic!("expected a failed attempt, got {event:?}");
    };
    assert_eq!(count, 1);
    assert!(!reason.is_empty());
    assert!(one.transport.counters().accept.failed >= 1);
}

fn setup(token: &JoinToken, address: SocketAddr) -> JoinSetup {
    JoinSetup {
        token: token.clone(),
        role: PeerRole::Worker,
        name: "gpu-7".parse().unwrap(),
        key: NodeKey::generate(),
        cluster: vec![address],
        advertised: Vec::new(),
    }
}

async fn join(endpoint: &Endpoint, setup: &JoinSetup) -> Result<NodeId, JoinError> {
    let joined = request_certificate(endpoint, setup, UnixSeconds::now()).await?;
    Ok(joined.credentials.identity().node)
}

/// Accepts every holder of the token, each under a number of its own, from 7 on.
fn admit_joiners(site: &TransportSite, node: TransportTestNode, token: &JoinToken) {
    let authority = site.authority.clone();
    let token = token.clone();
    tokio::spawn(async move {
        // Without its handle the transport would close.
        let TransportTestNode { transport: _transport, mut events, .. } = node;
        let mut next = 7;
        while let Some(event) = events.next().await {
            let TransportEvent::Join { attempt, reply } = event else { continue };
            if let Err(refusal) = attempt.check_proof(&token.verifier()) {
                reply.answer(JoinAnswer::Refused(refusal));
                continue;
            }
            let number = NodeId(next);
            let now = UnixSeconds::now();
            next += 1;
            let issued = authority.issue(&attempt.key, attempt.role, number, now).unwrap();
            let grant = JoinGrant::new(authority.cluster(), number, &issued, Vec::new(), None);
            reply.answer(JoinAnswer::Granted(grant));
        }
    });
}

async fn controller(site: &TransportSite, limits: TransportLimits) -> TransportTestNode {
    let role = PeerRole::Controller;
    site.node(1, TransportTestOptions { role, limits, ..TransportTestOptions::default() }).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hundreds_with_a_valid_token_join_at_once_from_one_address() {
    const JOINERS: usize = 200;
    let site = TransportSite::new();
    let token = JoinToken::create(PeerRole::Worker, site.authority.pin());
    let one = controller(&site, TransportLimits::default()).await;
    let address = one.transport.local_addr();
    admit_joiners(&site, one, &token);
    let endpoint = Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    let mut joins = JoinSet::new();
    for _ in 0..JOINERS {
        let endpoint = endpoint.clone();
        let setup = setup(&token, address);
        joins.spawn(async move { join(&endpoint, &setup).await });
    }
    let mut nodes = BTreeSet::new();
    while let Some(joined) = joins.join_next().await {
        assert!(nodes.insert(joined.unwrap().unwrap()));
    }
    assert_eq!(nodes.len(), JOINERS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_tokens_are_delayed_and_a_valid_one_joins_from_the_same_address() {
    let site = TransportSite::new();
    let token = JoinToken::create(PeerRole::Worker, site.authority.pin());
    let wrong = JoinToken::create(PeerRole::Worker, site.authority.pin());
    let one = controller(&site, TransportLimits::default()).await;
    let address = one.transport.local_addr();
    let counters = one.transport.clone();
    admit_joiners(&site, one, &token);
    let endpoint = Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    let is_reason = |refused: &JoinError| {
        matches!(refused, JoinError::Refused { refusal: JoinRefusal::WrongProof { .. }, .. })
    };
    for attempt in 0..20 {
        let refused = join(&endpoint, &setup(&wrong, address)).await.unwrap_err();
        assert!(matches!(refused, JoinError::Refused { .. }), "{refused}");
        assert!(attempt > 0 || is_reason(&refused), "{refused}");
        // Each wrong one is followed by one that is accepted.
        join(&endpoint, &setup(&token, address)).await.unwrap();
    }
    let began = Instant::now();
    let mut counted = 0;
    let mut flood = JoinSet::new();
    for _ in 0..50 {
        let endpoint = endpoint.clone();
        let setup = setup(&wrong, address);
        flood.spawn(async move { join(&endpoint, &setup).await });
    }
    join(&endpoint, &setup(&token, address)).await.unwrap();
    while let Some(refused) = flood.join_next().await {
        counted += u32::from(is_reason(&refused.unwrap().unwrap_err()));
    }
    // Each that counts doubles the wait for the next, 1 s, 2 s, 4 s, and one that is accepted ends
    // the wait: so it begins twice, however slow this machine is.
    let most = 2 * (1 + (began.elapsed().as_secs() + 1).ilog2());
    assert!(counted <= most, "{counted} of 50 heard their reason, at most {most} may have");
    assert!(counters.counters().accept.refused > 0, "others received a time to wait");
}

/// The ends of joiners that have completed the handshake and send nothing.
async fn silent_joiners(
    site: &TransportSite,
    address: SocketAddr,
    count: usize,
) -> Vec<Connection> {
    #[derive(Debug)]
    struct Nobody;
    impl ResolvesClientCert for Nobody {
        fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
            None
        }
        fn has_certs(&self) -> bool {
            false
        }
    }
    let credentials = site.credentials(PeerRole::Worker, 99);
    let mut tls = credentials.client_config(ExpectedPeer::AnyMember).unwrap();
    tls.alpn_protocols = vec![b"zbe-join/1".to_vec()];
    tls.client_auth_cert_resolver = Arc::new(Nobody);
    let config = ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).unwrap()));
    let endpoint = Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    let mut joiners = Vec::new();
    for _ in 0..count {
        let connecting = endpoint.connect_with(config.clone(), address, "zbelastic").unwrap();
        joiners.push(connecting.await.unwrap());
    }
    joiners
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_joiners_make_room_for_one_that_speaks() {
    let limits = TransportLimits { joiners_idle_per_address_max: 4, ..TransportLimits::default() };
    let site = TransportSite::new();
    let token = JoinToken::create(PeerRole::Worker, site.authority.pin());
    let one = controller(&site, limits).await;
    let address = one.transport.local_addr();
    admit_joiners(&site, one, &token);
    let silent = silent_joiners(&site, address, 4).await;
    let endpoint = Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    join(&endpoint, &setup(&token, address)).await.unwrap();
    // They entered in the order in which the controller's handshakes ended, which need not be ours.
    let mut ends: JoinSet<_> =
        silent.into_iter().map(|one| async move { one.closed().await }).collect();
    let error = ends.join_next().await.unwrap().unwrap();
    let quinn::ConnectionError::ApplicationClosed(close) = error else {
        panic!("closed otherwise: {error}");
    };
    let code = zbelastic_transport::CloseCode::of(close.error_code.into_inner());
    assert_eq!(code, zbelastic_transport::CloseCode::Crowded);
}

/// With a controller's own limits, and more silent ones from one address than it has places for them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn valid_joins_succeed_among_more_silent_joiners_than_there_are_places() {
    const ROUNDS: usize = 5;
    const SILENT: usize = 2_000;
    let limits = TransportLimits::default();
    assert!(SILENT > limits.joiners_idle_per_address_max);
    let site = TransportSite::new();
    let token = JoinToken::create(PeerRole::Worker, site.authority.pin());
    let one = controller(&site, limits).await;
    let address = one.transport.local_addr();
    admit_joiners(&site, one, &token);
    let endpoint = Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    let mut silent = Vec::new();
    for _ in 0..ROUNDS {
        silent.extend(silent_joiners(&site, address, SILENT).await);
        join(&endpoint, &setup(&token, address)).await.unwrap();
    }
}

/// Handshakes that stand still at one address do not keep out others that come from the same one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handshakes_that_stand_still_make_room_at_their_own_address() {
    let limits = TransportLimits {
        handshakes_per_address_before_retry: 2,
        handshakes_per_address_max: 2,
        handshake_within: Duration::from_secs(600),
        ..TransportLimits::default()
    };
    let site = TransportSite::new();
    let one =
        site.node(2, TransportTestOptions { limits, ..TransportTestOptions::default() }).await;
    let address = one.transport.local_addr();
    let _sockets = flood(&site, address, 2).await;
    let endpoint = Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    let config = client_config(&site.credentials(PeerRole::Worker, 1));
    let connecting = endpoint.connect_with(config, address, "zbelastic").unwrap();
    let _connection = connecting.await.unwrap();
    let counters = one.transport.counters().accept;
    assert_eq!(counters.replaced, 1, "{counters:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_joiner_with_a_token_joins_and_comes_back_as_a_member() {
    let site = TransportSite::new();
    let mut one = site
        .node(
            1,
            TransportTestOptions { role: PeerRole::Controller, ..TransportTestOptions::default() },
        )
        .await;
    let token = JoinToken::create(PeerRole::Worker, site.authority.pin());
    let setup = JoinSetup {
        token: token.clone(),
        role: PeerRole::Worker,
        name: "gpu-7".parse().unwrap(),
        key: NodeKey::generate(),
        cluster: vec![one.transport.local_addr()],
        advertised: Vec::new(),
    };
    let endpoint = Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    let request = request_certificate(&endpoint, &setup, UnixSeconds::now());
    let decided = async {
        let TransportEvent::Join { attempt, reply, .. } = one.next().await else {
            panic!("a join")
        };
        attempt.check_proof(&token.verifier()).unwrap();
        let now = UnixSeconds::now();
        let issued = site.authority.issue(&attempt.key, attempt.role, NodeId(7), now).unwrap();
        let cluster = site.authority.cluster();
        let grant = JoinGrant::new(cluster, NodeId(7), &issued, Vec::new(), None);
        reply.answer(JoinAnswer::Granted(grant));
    };
    let (joined, ()) = tokio::join!(request, decided);
    let credentials = joined.unwrap().credentials;
    assert_eq!(credentials.identity().node, NodeId(7));
    let raw = RawPeer::greeted(&credentials, &one.transport).await;
    assert_eq!(one.up().await.0, NodeId(7));
    drop(raw);
}
