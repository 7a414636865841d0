//! Members that send what they must not.

use zbelastic_identity::PeerRole;
use zbelastic_transport::{
    CONTROL_FRAME_BYTES_MAX, CONTROL_MESSAGE_BYTES_MAX, CONTROL_PIECE_BYTES_MAX, CloseCode,
    DownReason, TransportEvent, TransportLimits, VersionRange,
};
use zbelastic_types::NodeId;

use crate::raw::{HELLO, RawPeer, cannot_open_one_way};
use crate::site::{TransportSite, TransportTestNode, TransportTestOptions};

const CONTROL: u8 = 0x10;
const LONG: u8 = 0x11;
const TENSOR: u8 = 0x12;
const REQUEST: u8 = 0x20;
const BULK: u8 = 0x21;

fn control_frame(stream: u8, kind: u8, length: u64) -> Vec<u8> {
    let mut bytes = vec![stream, kind];
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes
}

/// What a worker is closed for when it sends the bytes on a new stream.
async fn closed_for(site: &TransportSite, node: &mut TransportTestNode, bytes: &[u8]) -> CloseCode {
    let raw = RawPeer::greeted(&site.credentials(PeerRole::Worker, 2), &node.transport).await;
    assert_eq!(node.up().await.0, NodeId(2));
    let stream = raw.send_one_way(bytes).await;
    let code = raw.closed_for().await;
    let (from, reason) = node.down().await;
    let DownReason::Violation(violation) = reason else { panic!("a violation, not {reason:?}") };
    assert_eq!((from, violation.code()), (NodeId(2), code));
    drop(stream);
    code
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lengths_above_the_limits_close_before_anything_comes() {
    let site = TransportSite::new();
    let mut node = site.worker(1).await;
    let whole_max = CONTROL_FRAME_BYTES_MAX as u64;
    let long_max = CONTROL_MESSAGE_BYTES_MAX as u64;
    let piece_max = CONTROL_PIECE_BYTES_MAX as u64;
    for (stream, kind, max) in [(CONTROL, 0, whole_max), (LONG, 1, long_max), (LONG, 2, piece_max)]
    {
        for length in [0, max + 1, 1 << 63, u64::MAX] {
            let bytes = control_frame(stream, kind, length);
            assert_eq!(closed_for(&site, &mut node, &bytes).await, CloseCode::Length, "{length}");
        }
    }
    // A piece within the limit is refused for another reason: no message was started.
    let piece = control_frame(LONG, 2, piece_max);
    assert_eq!(closed_for(&site, &mut node, &piece).await, CloseCode::Malformed);
    // A frame of a class that no rule names may be read past, unless it is too long for that.
    let mut frame = vec![TENSOR, 1, 0, 0, 0, 0, 0, 0, 0];
    frame.extend_from_slice(&(1_u64 << 63).to_le_bytes());
    assert_eq!(closed_for(&site, &mut node, &frame).await, CloseCode::Length);
    assert_eq!(node.transport.counters().frames_refused, 1, "and none of the control messages");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_longest_frame_is_taken() {
    let site = TransportSite::new();
    let mut node = site.worker(1).await;
    let raw = RawPeer::greeted(&site.credentials(PeerRole::Worker, 2), &node.transport).await;
    node.up().await;
    for length in [1_usize, (64 << 10) - 1, 64 << 10] {
        let mut bytes = control_frame(CONTROL, 0, length as u64);
        bytes.resize(bytes.len() + length, 1);
        let _stream = raw.send_one_way(&bytes).await;
        assert_eq!(node.control().await, (NodeId(2), vec![1; length]));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_kinds_close_the_connection() {
    let site = TransportSite::new();
    let mut node = site.worker(1).await;
    for bytes in [&[0][..], &[0x01], &[0x13], &[0x20], &[0xff], &control_frame(CONTROL, 3, 1)] {
        assert_eq!(closed_for(&site, &mut node, bytes).await, CloseCode::Malformed, "{bytes:?}");
    }
    let raw = RawPeer::greeted(&site.credentials(PeerRole::Worker, 2), &node.transport).await;
    node.up().await;
    let _streams = raw.send_both_ways(&[0x22]).await;
    assert_eq!(raw.closed_for().await, CloseCode::Malformed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_longer_than_the_limit_closes_before_it_comes() {
    let site = TransportSite::new();
    let mut node = site.worker(1).await;
    for length in [(1_u32 << 20) + 1, u32::MAX] {
        let raw = RawPeer::greeted(&site.credentials(PeerRole::Worker, 2), &node.transport).await;
        node.up().await;
        let _streams = raw.send_both_ways(&[&[REQUEST][..], &length.to_le_bytes()].concat()).await;
        assert_eq!(raw.closed_for().await, CloseCode::Length);
        node.down().await;
    }
}

/// One message of a kind, as a stream of one way or of both.
enum RawMessage {
    OneWay(Vec<u8>),
    BothWays(Vec<u8>),
}

/// A kind, how it is sent, and the roles that may send it.
type MessageCase = (&'static str, fn() -> RawMessage, &'static [PeerRole]);

fn control_message(kind: u8) -> RawMessage {
    let mut bytes = control_frame(CONTROL, 0, 1);
    bytes.push(kind);
    RawMessage::OneWay(bytes)
}

/// Every role with every kind. What a role may, leaves the connection open: a request that follows
/// is given to the node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_role_may_send_what_it_may_and_is_closed_for_the_rest() {
    use PeerRole::{Controller, Worker};
    let kinds: [MessageCase; 6] = [
        ("raft", || control_message(0), &[Controller]),
        ("member", || control_message(1), &[Controller, Worker]),
        ("blob", || control_message(2), &[Controller, Worker]),
        ("tensor", || RawMessage::OneWay(vec![TENSOR]), &[Worker]),
        ("bulk", || RawMessage::BothWays(vec![BULK]), &[Controller, Worker]),
        ("request", || RawMessage::BothWays(vec![REQUEST, 0, 0, 0, 0]), &PeerRole::ALL),
    ];
    let site = TransportSite::new();
    for role in PeerRole::ALL {
        for (name, message, allowed) in &kinds {
            let mut node = site.worker(1).await;
            let raw = RawPeer::greeted(&site.credentials(role, 2), &node.transport).await;
            let may = allowed.contains(&role);
            let _streams = match message() {
                RawMessage::OneWay(_) if !role.serves() => {
                    assert!(!may && cannot_open_one_way(&raw).await, "{role} {name}");
                    continue;
                }
                RawMessage::OneWay(bytes) => (Some(raw.send_one_way(&bytes).await), None),
                RawMessage::BothWays(bytes) => (None, Some(raw.send_both_ways(&bytes).await)),
            };
            if !may {
                assert_eq!(raw.closed_for().await, CloseCode::Forbidden, "{role} {name}");
                continue;
            }
            let _request = raw.send_both_ways(&[REQUEST, 2, 0, 0, 0, 7, 7]).await;
            let is_given = |event| match event {
                TransportEvent::Request { bytes, .. } => (bytes.as_ref() == [7, 7]).then_some(()),
                TransportEvent::Down { reason, .. } => panic!("{role} {name}: {reason:?}"),
                TransportEvent::Up { .. }
                | TransportEvent::Control { .. }
                | TransportEvent::Join { .. }
                | TransportEvent::DialFailed { .. }
                | TransportEvent::DuplicateIdentity { .. }
                | TransportEvent::Strangers { .. } => None,
            };
            node.until(is_given).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hello_that_makes_no_sense_is_closed_for_its_reason() {
    let site = TransportSite::new();
    let node = site.worker(1).await;
    let credentials = site.credentials(PeerRole::Worker, 2);
    let longer = [&HELLO[..4], &[6, 0], &HELLO[6..], &[0]].concat();
    let too_long = [&HELLO[..4], &[1, 4]].concat();
    for hello in [longer, too_long] {
        let raw = RawPeer::silent(&credentials, &node.transport).await;
        let _streams = raw.send_both_ways(&[&[1][..], &hello].concat()).await;
        assert_eq!(raw.closed_for().await, CloseCode::Malformed);
    }
    let raw = RawPeer::silent(&credentials, &node.transport).await;
    let _streams = raw.send_both_ways(&[0x20]).await;
    assert_eq!(raw.closed_for().await, CloseCode::Malformed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_of_other_versions_hears_ours() {
    let site = TransportSite::new();
    let node = site.worker(1).await;
    let raw = RawPeer::silent(&site.credentials(PeerRole::Worker, 2), &node.transport).await;
    let newer = [1, 4, 0, 9, 0, 0, 0];
    let (_send, mut receive) = raw.send_both_ways(&newer).await;
    let mut versions = [0; 4];
    receive.read_exact(&mut versions).await.unwrap();
    assert_eq!(versions, [2, 0, 3, 0]);
}

/// Versions that members retired are refused from then on; connections that are there stay.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_program_is_refused_once_its_version_is_given_up() {
    let site = TransportSite::new();
    let mut node = site.worker(1).await;
    let old = RawPeer::greeted(&site.credentials(PeerRole::Worker, 2), &node.transport).await;
    let up = node.next().await;
    let TransportEvent::Up { versions, .. } = up else { panic!("expected it up, got {up:?}") };
    assert_eq!(versions, VersionRange { oldest: 2, newest: 2 });
    node.transport.retire_versions_before(3);
    let again = RawPeer::silent(&site.credentials(PeerRole::Worker, 3), &node.transport).await;
    let (_send, mut receive) = again.send_both_ways(&[&[1][..], &HELLO].concat()).await;
    let mut spoken = [0; 4];
    receive.read_exact(&mut spoken).await.unwrap();
    assert_eq!(spoken, [3, 0, 3, 0]);
    let message = [control_frame(CONTROL, 0, 1), vec![1]].concat();
    let _stream = old.send_one_way(&message).await;
    assert_eq!(node.control().await.0, NodeId(2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_says_no_hello_is_closed_in_time() {
    let site = TransportSite::new();
    let limits = TransportLimits {
        handshake_within: std::time::Duration::from_millis(300),
        ..TransportLimits::default()
    };
    let node =
        site.node(1, TransportTestOptions { limits, ..TransportTestOptions::default() }).await;
    let raw = RawPeer::silent(&site.credentials(PeerRole::Worker, 2), &node.transport).await;
    assert_eq!(raw.closed_for().await, CloseCode::Late);
    assert_eq!(node.transport.counters().accept.late, 1);
}
