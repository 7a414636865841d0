//! Every lane, on both paths.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use tokio::sync::watch;
use zbelastic_transport::{
    ANSWER_BYTES_MAX, BulkFetch, CONTROL_MESSAGE_BYTES_MAX, DownReason, FrameClass, FrameRejection,
    FrameRules, MemorySink, OutgoingFrame, PeerViolation, ReceivedFrame, RequestError, SendOutcome,
    TransportEvent, TransportLimits,
};
use zbelastic_types::NodeId;

use crate::site::{DEADLINE, TransportSite, TransportTestNode, TransportTestOptions};

const CLASS: FrameClass = FrameClass(7);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn control_messages_of_every_length_pass_both_ways() {
    for same_host in [false, true] {
        let site = TransportSite::new();
        let (mut one, mut two) = site.pair(same_host).await;
        for length in [1, 2, 65_535, 65_536, 65_537, CONTROL_MESSAGE_BYTES_MAX] {
            let message = vec![1_u8; length];
            one.transport.send(NodeId(2), message.clone().into());
            assert_eq!(two.control().await, (NodeId(1), message.clone()));
            two.transport.send(NodeId(1), message.clone().into());
            assert_eq!(one.control().await, (NodeId(2), message));
        }
        one.transport.send(NodeId(2), vec![1; CONTROL_MESSAGE_BYTES_MAX + 1].into());
        one.transport.send(NodeId(2), bytes::Bytes::new());
        one.transport.send(NodeId(9), vec![1].into());
        let control = one.transport.counters().control;
        assert_eq!((control.dropped_not_sendable, control.dropped_no_path), (2, 1));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_control_messages_keep_their_order() {
    for same_host in [false, true] {
        let site = TransportSite::new();
        let (one, mut two) = site.pair(same_host).await;
        for number in 0..500_u16 {
            let [low, high] = number.to_le_bytes();
            one.transport.send(NodeId(2), vec![1, low, high].into());
        }
        for number in 0..500_u16 {
            let [low, high] = number.to_le_bytes();
            assert_eq!(two.control().await, (NodeId(1), vec![1, low, high]));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_control_message_of_no_known_kind_is_dropped_and_counted() {
    let site = TransportSite::new();
    let (one, mut two) = site.pair(false).await;
    one.transport.send(NodeId(2), vec![3, 1].into());
    one.transport.send(NodeId(2), vec![255, 1].into());
    one.transport.send(NodeId(2), vec![2, 1].into());
    assert_eq!(two.control().await, (NodeId(1), vec![2, 1]));
    assert_eq!(two.transport.counters().control.dropped_unknown_kind, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_are_answered_refused_or_left_unanswered() {
    let site = TransportSite::new();
    let (one, mut two) = site.pair(false).await;
    let request = one.transport.request(NodeId(2), b"long".to_vec());
    let (answered, ()) = tokio::join!(request, answer(&mut two, Some(vec![9; ANSWER_BYTES_MAX])));
    assert_eq!(answered.unwrap().len(), ANSWER_BYTES_MAX);
    let request = one.transport.request(NodeId(2), Vec::new());
    let (answered, ()) = tokio::join!(request, answer(&mut two, Some(Vec::new())));
    assert_eq!(answered, Ok(Vec::new()));
    let request = one.transport.request(NodeId(2), b"nothing".to_vec());
    let (answered, ()) = tokio::join!(request, answer(&mut two, None));
    assert_eq!(answered, Err(RequestError::Unanswered));
    let request = one.transport.request(NodeId(2), b"too much".to_vec());
    let too_long = Some(vec![9; ANSWER_BYTES_MAX + 1]);
    let (answered, ()) = tokio::join!(request, answer(&mut two, too_long));
    assert_eq!(answered, Err(RequestError::Unanswered));
    let too_long = one.transport.request(NodeId(2), vec![0; (1 << 20) + 1]).await;
    assert_eq!(too_long, Err(RequestError::TooLong { bytes: (1 << 20) + 1, limit: 1 << 20 }));
    assert_eq!(one.transport.request(NodeId(9), vec![1]).await, Err(RequestError::NoPath));
}

async fn answer(node: &mut TransportTestNode, bytes: Option<Vec<u8>>) {
    let (_, _, reply) = node.request().await;
    if let Some(bytes) = bytes {
        assert!(reply.answer(bytes));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_is_dropped_is_cancelled_at_the_other_end() {
    let site = TransportSite::new();
    let (one, mut two) = site.pair(false).await;
    let transport = one.transport.clone();
    let asking = tokio::spawn(async move { transport.request(NodeId(2), vec![1]).await });
    let (_, _, mut reply) = two.request().await;
    asking.abort();
    tokio::time::timeout(DEADLINE, reply.cancelled()).await.unwrap();
    assert!(reply.is_cancelled());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_beyond_the_open_ones_is_answered_as_busy() {
    let site = TransportSite::new();
    let limits = TransportLimits { requests_open_max: 1, ..TransportLimits::default() };
    let mut one =
        site.node(1, TransportTestOptions { limits, ..TransportTestOptions::default() }).await;
    let mut two = site.worker(2).await;
    one.knows(&two);
    one.up().await;
    two.up().await;
    let transport = two.transport.clone();
    let first = tokio::spawn(async move { transport.request(NodeId(1), vec![1]).await });
    let (_, _, reply) = one.request().await;
    assert_eq!(two.transport.request(NodeId(1), vec![2]).await, Err(RequestError::Busy));
    assert!(reply.answer(vec![3]));
    assert_eq!(first.await.unwrap(), Ok(vec![3]));
}

fn receive_frames(
    node: &TransportTestNode,
    from: u64,
    parts: &[usize],
) -> mpsc::Receiver<ReceivedFrame> {
    let mut rules = FrameRules::new();
    rules.allow(NodeId(from), CLASS, parts.to_vec()).unwrap();
    node.transport.set_frame_rules(rules);
    let (sender, receiver) = mpsc::channel();
    node.transport.set_frame_sink(Box::new(move |frame| sender.send(frame).unwrap()));
    receiver
}

fn frame(floats: &[usize]) -> OutgoingFrame {
    let parts: Vec<Vec<f32>> = floats.iter().map(|&count| vec![1.5; count]).collect();
    OutgoingFrame::new(CLASS, vec![1, 2, 3], Arc::new(parts)).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_pass_from_a_plain_thread_and_a_wrong_length_ends_the_connection() {
    for same_host in [false, true] {
        let site = TransportSite::new();
        let (one, mut two) = site.pair(same_host).await;
        let received = receive_frames(&two, 1, &[3, 1000]);
        let sender = one.transport.frame_sender();
        let plain = std::thread::spawn(move || {
            for _ in 0..10 {
                assert!(matches!(sender.send(NodeId(2), frame(&[3, 1000])), SendOutcome::Queued));
            }
            sender
        });
        let frames = tokio::task::spawn_blocking(move || {
            let take = || received.recv_timeout(DEADLINE).unwrap();
            (0..10).map(|_| take()).collect::<Vec<_>>()
        });
        for frame in frames.await.unwrap() {
            assert_eq!((frame.from.node, frame.meta), (NodeId(1), vec![1, 2, 3]));
            assert_eq!(frame.parts, [vec![1.5; 3], vec![1.5; 1000]]);
        }
        let sender = plain.join().unwrap();
        assert!(matches!(sender.send(NodeId(2), frame(&[3, 1001])), SendOutcome::Queued));
        let refusal = FrameRejection::WrongLength { class: CLASS, expected: 4012, found: 4016 };
        let (from, reason) = two.down().await;
        assert_eq!(
            (from, reason),
            (NodeId(1), DownReason::Violation(PeerViolation::Frame(refusal)))
        );
        let counters = two.transport.counters();
        assert_eq!((counters.accept.violations, counters.frames_refused), (1, 1));
    }
}

/// The first frames of a plan are sent while its workers still connect; those of the plan before are
/// of no use to anybody, nor those to a member that left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_to_a_peer_that_is_not_up_yet_are_held_for_it_until_a_new_plan() {
    for same_host in [false, true] {
        let site = TransportSite::new();
        let options = TransportTestOptions { same_host, ..TransportTestOptions::default() };
        let mut one = site.node(1, options.clone()).await;
        let mut two = site.node(2, options).await;
        let received = receive_frames(&two, 1, &[3, 1000]);
        let sender = one.transport.frame_sender();
        let send = |floats: &[usize]| {
            assert!(matches!(sender.send(NodeId(2), frame(floats)), SendOutcome::Queued));
        };
        send(&[3]);
        one.transport.discard_held_frames();
        send(&[1000]);
        one.transport.forget(NodeId(2));
        (0..3).for_each(|_| send(&[3, 1000]));
        let refused = (0..=TransportLimits::default().frame_queue_max)
            .find(|_| !matches!(sender.send(NodeId(3), frame(&[1])), SendOutcome::Queued));
        assert_eq!(refused, Some(TransportLimits::default().frame_queue_max), "they are bounded");
        one.knows(&two);
        two.knows(&one);
        one.up().await;
        two.up().await;
        send(&[3, 1000]);
        let frames = tokio::task::spawn_blocking(move || {
            let take = || received.recv_timeout(DEADLINE).unwrap();
            (0..4).map(|_| take()).collect::<Vec<_>>()
        });
        let expected = [vec![1.5; 3], vec![1.5; 1000]];
        assert!(frames.await.unwrap().iter().all(|frame| frame.parts == expected));
    }
}

/// Whoever sends more than is held for a peer waits until it is connected, until a new plan discards what is held,
/// or until what is sent is superseded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thread_waits_for_space_in_the_queue_that_is_held_for_a_peer() {
    const WAITING: usize = 10;
    for same_host in [false, true] {
        let site = TransportSite::new();
        let options = TransportTestOptions { same_host, ..TransportTestOptions::default() };
        let mut one = site.node(1, options.clone()).await;
        let mut two = site.node(2, options).await;
        let received = receive_frames(&two, 1, &[3, 1000]);
        let sender = one.transport.frame_sender();
        let fill = |to| {
            let frame = || frame(&[3, 1000]);
            (0..).find(|_| !matches!(sender.send(to, frame()), SendOutcome::Queued))
        };
        let (plan, _) = watch::channel(1);
        let send_more = |to, of_plan: u64| {
            let (sender, plan) = (sender.clone(), plan.subscribe());
            tokio::task::spawn_blocking(move || {
                for _ in 0..WAITING {
                    let mut plan = plan.clone();
                    let superseded = async move {
                        plan.wait_for(|in_force| *in_force > of_plan).await.unwrap();
                    };
                    sender.send_blocking(to, frame(&[3, 1000]), superseded);
                }
            })
        };
        let held = fill(NodeId(3)).expect("it is bounded");
        let waiting = send_more(NodeId(3), 1);
        plan.send_replace(2);
        waiting.await.unwrap();
        let waiting = send_more(NodeId(3), 2);
        one.transport.discard_held_frames();
        waiting.await.unwrap();
        assert_eq!(fill(NodeId(2)), Some(held));
        let waiting = send_more(NodeId(2), 2);
        one.knows(&two);
        two.knows(&one);
        one.up().await;
        two.up().await;
        waiting.await.unwrap();
        let frames = tokio::task::spawn_blocking(move || {
            (0..held + WAITING)
                .map(|_| received.recv_timeout(DEADLINE))
                .filter(Result::is_ok)
                .count()
        });
        assert_eq!(frames.await.unwrap(), held + WAITING);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_that_a_sink_does_not_take_hold_up_frames_and_nothing_else() {
    for same_host in [false, true] {
        let site = TransportSite::new();
        let (mut one, mut two) = site.pair(same_host).await;
        let (release, held) = mpsc::channel::<()>();
        let held = std::sync::Mutex::new(held);
        let mut rules = FrameRules::new();
        rules.allow(NodeId(1), CLASS, vec![1 << 20]).unwrap();
        two.transport.set_frame_rules(rules);
        // The sink blocks until the test lets it go: a device thread that does not take frames.
        two.transport.set_frame_sink(Box::new(move |_| {
            tokio::task::block_in_place(|| {
                let _ = held.lock().unwrap().recv();
            });
        }));
        let sender = one.transport.frame_sender();
        let big = frame(&[1 << 20]);
        let mut is_full = false;
        for _ in 0..10_000 {
            match sender.send(NodeId(2), big.clone()) {
                SendOutcome::Queued => {}
                SendOutcome::Full(_) => {
                    is_full = true;
                    break;
                }
                SendOutcome::NoPath(_) => panic!("the peer is there"),
            }
        }
        assert!(is_full, "the queue is bounded");
        one.transport.send(NodeId(2), vec![1, 1].into());
        assert_eq!(two.control().await, (NodeId(1), vec![1, 1]));
        let request = one.transport.request(NodeId(2), vec![4]);
        let (answered, ()) = tokio::join!(request, answer(&mut two, Some(vec![5])));
        assert_eq!(answered, Ok(vec![5]));
        two.transport.send(NodeId(1), vec![2, 2].into());
        assert_eq!(one.control().await, (NodeId(2), vec![2, 2]));
        drop(release);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_is_fetched_from_holders_on_either_path() {
    for same_host in [false, true] {
        let site = TransportSite::new();
        let (one, two) = site.pair(same_host).await;
        let body: Vec<u8> = (0..3_500_000_u32).map(|index| (index % 251) as u8).collect();
        let served = Arc::new(body.clone());
        two.transport.set_bulk_source(Box::new(move |peer, key| {
            assert_eq!(peer.node, NodeId(1));
            let body = Arc::clone(&served);
            (key == b"weights").then_some(body as Arc<dyn zbelastic_transport::BulkBody>)
        }));
        let length = body.len() as u64;
        let holders = vec![NodeId(9), NodeId(2)];
        let fetch = BulkFetch {
            holders: holders.clone(),
            key: b"weights".to_vec(),
            length,
            progress: None,
        };
        let fetched = one.transport.fetch_bulk_into(fetch, MemorySink::default()).await;
        assert!(fetched.unwrap().into_bytes() == body);
        let bulk = one.transport.counters().bulk;
        let by_road = (bulk.quic_bytes_received > 0, bulk.same_host_bytes_received > 0);
        assert_eq!(by_road, (!same_host, same_host));
        let unknown = BulkFetch { holders, key: b"other".to_vec(), length, progress: None };
        assert!(one.transport.fetch_bulk_into(unknown, MemorySink::default()).await.is_err());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_takes_no_events_loses_control_messages_and_no_news() {
    let site = TransportSite::new();
    let limits = TransportLimits { events_max: 64, ..TransportLimits::default() };
    let mut one =
        site.node(1, TransportTestOptions { limits, ..TransportTestOptions::default() }).await;
    let limits = TransportLimits {
        request_within: Duration::from_millis(200),
        ..TransportLimits::default()
    };
    let mut two =
        site.node(2, TransportTestOptions { limits, ..TransportTestOptions::default() }).await;
    one.knows(&two);
    two.up().await;
    for _ in 0..1000 {
        two.transport.send(NodeId(1), vec![1, 0].into());
    }
    // When a request is refused, the queue of events is full. Those before are not answered.
    let full = async {
        while two.transport.request(NodeId(1), vec![1]).await != Err(RequestError::Busy) {}
    };
    tokio::time::timeout(DEADLINE, full).await.unwrap();
    two.transport.close().await;
    let mut messages = 0;
    let duplicate = one.until(|event| {
        messages += usize::from(matches!(event, TransportEvent::Control { .. }));
        if let TransportEvent::Down { peer, .. } = event { Some(peer.node) } else { None }
    });
    assert_eq!(duplicate.await, NodeId(2));
    assert!(messages <= 64, "{messages}");
    assert!(one.transport.counters().control.dropped_events_full > 0);
}
