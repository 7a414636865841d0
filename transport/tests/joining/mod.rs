//! Holders that join a fetch under way.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::watch;
use zbelastic_transport::bulk::{BulkFetch, CHUNK_BYTES, MemorySink, fetch_joined_into};
use zbelastic_types::NodeId;

use super::holders::{StreamFault, TestHolder, TestHolders};
use super::{ANSWER_BYTES, STEP_BYTES, content};

/// The first holder stalls behind some chunks: the fetch ends by the one that joins.
#[tokio::test]
async fn a_holder_that_joins_a_fetch_under_way_sends_what_is_missing() {
    let length = 40 * CHUNK_BYTES;
    let bytes = content(length);
    let stalled = TestHolder {
        always: vec![StreamFault::Stall(ANSWER_BYTES + 5 * STEP_BYTES)],
        ..TestHolder::of(&bytes)
    };
    let holders = TestHolders::new([stalled, TestHolder::of(&bytes)]);
    let progress = Arc::<AtomicU64>::default();
    let request = BulkFetch {
        holders: vec![NodeId(1)],
        ..holders.request(length, Some(Arc::clone(&progress)))
    };
    let (join, joining) = watch::channel(vec![NodeId(1)]);
    let fetch = fetch_joined_into(request, joining, MemorySink::default(), |n| holders.open(n));
    let joins = async {
        while progress.load(Ordering::Relaxed) < 5 * CHUNK_BYTES as u64 {
            tokio::task::yield_now().await;
        }
        join.send_modify(|nodes| nodes.push(NodeId(2)));
    };
    let fetched = tokio::join!(fetch, joins).0;
    assert!(fetched.unwrap().into_bytes() == *bytes);
    assert!(holders.moved(2) >= 35 * STEP_BYTES, "{}", holders.moved(2));
}

/// One that joined before is requested, though the first failed for good meanwhile.
#[tokio::test]
async fn a_fetch_ends_when_all_failed_and_not_while_one_that_joined_is_left() {
    let length = 3 * CHUNK_BYTES;
    let bytes = content(length);
    let gone = || TestHolder { is_unreachable: true, ..TestHolder::of(&bytes) };
    for second in [TestHolder::of(&bytes), gone()] {
        let is_sound = !second.is_unreachable;
        let holders = TestHolders::new([gone(), second]);
        let request = BulkFetch { holders: vec![NodeId(1)], ..holders.request(length, None) };
        let (join, joining) = watch::channel(vec![NodeId(1)]);
        join.send_modify(|nodes| nodes.push(NodeId(2)));
        let open = |node| holders.open(node);
        let fetched = fetch_joined_into(request, joining, MemorySink::default(), open).await;
        assert_eq!(fetched.is_ok(), is_sound);
        drop(join);
    }
}
