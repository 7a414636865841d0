//! Bans, and processes that end.

use std::time::Duration;

use zbelastic_identity::PeerRole;
use zbelastic_transport::{
    CloseCode, DialProblem, DownReason, ProcessStart, Transport, TransportEvent, TransportLimits,
    TransportPath,
};
use zbelastic_types::NodeId;

use crate::site::{DEADLINE, TransportSite, TransportTestOptions};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ban_closes_a_live_connection_and_keeps_the_node_out() {
    for same_host in [false, true] {
        let site = TransportSite::new();
        let (mut one, mut two) = site.pair(same_host).await;
        two.transport.ban(NodeId(1));
        assert_eq!(two.down().await, (NodeId(1), DownReason::Banned));
        let expected = DownReason::ClosedByPeer(CloseCode::Banned);
        assert_eq!(one.down().await, (NodeId(2), expected));
        let (_, refused) = one.until_dial_failed().await;
        assert_eq!(refused, DialProblem::Refused(CloseCode::Banned));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_process_with_the_same_boot_is_reported_and_the_first_one_stays() {
    let site = TransportSite::new();
    let (one, mut two) = site.pair(false).await;
    let start = ProcessStart { boot: 1, life: 99 };
    let mut copy =
        site.node(1, TransportTestOptions { start, ..TransportTestOptions::default() }).await;
    copy.knows(&two);
    assert_eq!(copy.until_duplicate().await, NodeId(2));
    one.transport.send(NodeId(2), vec![1, 5].into());
    assert_eq!(two.control().await, (NodeId(1), vec![1, 5]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_whose_copy_started_later_gets_a_report() {
    let site = TransportSite::new();
    let (mut one, mut two) = site.pair(false).await;
    let start = ProcessStart { boot: 2, life: 99 };
    let mut copy =
        site.node(1, TransportTestOptions { start, ..TransportTestOptions::default() }).await;
    copy.knows(&two);
    assert_eq!(copy.up().await.0, NodeId(2));
    assert_eq!(two.down().await, (NodeId(1), DownReason::Replaced));
    assert_eq!(two.up().await.1, 2);
    assert_eq!(one.until_duplicate().await, NodeId(2));
}

/// The runtime of a process that is killed ends without a message. Its sockets are closed by the
/// system, which the other end of the same-host path sees at once.
#[test]
fn a_killed_process_of_the_same_host_is_noticed_by_its_socket() {
    let runtime = |threads| {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(threads).enable_all().build().unwrap()
    };
    let here = runtime(2);
    let there = runtime(1);
    let site = TransportSite::new();
    let options = TransportTestOptions { same_host: true, ..TransportTestOptions::default() };
    let mut one = here.block_on(site.node(1, options.clone()));
    let mut two = there.block_on(site.node(2, options));
    one.knows(&two);
    here.block_on(one.up());
    there.block_on(two.up());
    // The handles stay, so nothing closes in order.
    there.shutdown_background();
    let (node, reason) = here.block_on(one.down());
    assert_eq!((node, reason), (NodeId(2), DownReason::ProcessEnded));
}

/// Over QUIC no peer sees a process end. The next one at the same port answers what is still sent
/// to the former one with a stateless reset, long before the connection would count as silent.
#[test]
fn a_killed_process_that_starts_again_ends_its_former_connections() {
    let runtime = |threads| {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(threads).enable_all().build().unwrap()
    };
    let here = runtime(2);
    let there = runtime(1);
    let site = TransportSite::new();
    let limits = TransportLimits {
        idle_within: Duration::from_secs(600),
        ..TransportTestOptions::default().limits
    };
    let options = TransportTestOptions { limits, ..TransportTestOptions::default() };
    let mut one = here.block_on(site.node(1, options.clone()));
    let mut setup = site.setup(2, &options);
    let (transport, mut events) = there.block_on(Transport::bind(setup.clone())).unwrap();
    setup.bind = transport.local_addr();
    one.transport.add_peer(NodeId(2), PeerRole::Worker, vec![setup.bind]);
    here.block_on(one.up());
    assert!(matches!(there.block_on(events.next()), Some(TransportEvent::Up { .. })));
    // The handle stays until the runtime is gone, so nothing closes in order.
    there.shutdown_timeout(DEADLINE);
    drop((transport, events));
    setup.start = ProcessStart { boot: 2, life: 2 };
    let again = here.block_on(Transport::bind(setup)).unwrap();
    assert_eq!(here.block_on(one.down()), (NodeId(2), DownReason::Reset));
    assert_eq!(here.block_on(one.up()), (NodeId(2), 2, TransportPath::Quic));
    drop(again);
}
