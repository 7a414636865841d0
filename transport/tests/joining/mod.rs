//! Holders that join a fetch under way.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::watch;
use zbelastic_transport::bulk::{
    CHUNK_BYTES, MemorySink, PartialBody, UnfinishedFetch, fetch_joined_into,
};
use zbelastic_types::NodeId;

use super::holders::{KEY, StreamFault, TestHolder, TestHolders};
use super::{ANSWER_BYTES, STEP_BYTES, content};

/// A body of which nothing came.
fn begin(length: usize) -> PartialBody<MemorySink> {
    PartialBody::new(KEY.to_vec(), length as u64, MemorySink::default())
}

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
    let (join, joining) = watch::channel(vec![NodeId(1)]);
    let counted = Some(Arc::clone(&progress));
    let fetch = fetch_joined_into(begin(length), joining, counted, |node| holders.open(node));
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
        let (join, joining) = watch::channel(vec![NodeId(1)]);
        join.send_modify(|nodes| nodes.push(NodeId(2)));
        let open = |node| holders.open(node);
        let fetched = fetch_joined_into(begin(length), joining, None, open).await;
        assert_eq!(fetched.is_ok(), is_sound);
        drop(join);
    }
}

/// Serves so many chunks on its first stream, with some answers and some bytes of the next chunk, and
/// is gone.
fn gone_after(chunks: u64, bytes: &Arc<Vec<u8>>) -> TestHolder {
    let cut = StreamFault::Cut(chunks * STEP_BYTES + 500);
    TestHolder {
        faults: vec![vec![cut]],
        always: vec![StreamFault::Cut(0)],
        ..TestHolder::of(bytes)
    }
}

/// All holders are lost, twice: each time the next fetch is sent what did not come before, once.
#[tokio::test]
async fn a_fetch_goes_on_with_what_came_before_all_holders_were_lost() {
    let count = 40;
    let length = count * CHUNK_BYTES;
    let bytes = content(length);
    let lost = |chunks| gone_after(chunks, &bytes);
    let all = [lost(6), lost(5), lost(9), TestHolder::of(&bytes)];
    let mut holders = TestHolders::new(all);
    let progress = Arc::<AtomicU64>::default();
    let mut body = begin(length);
    for (nodes, came) in [(vec![NodeId(1), NodeId(2)], 11), (vec![NodeId(3)], 20)] {
        let (_join, joining) = watch::channel(nodes);
        let counted = Some(Arc::clone(&progress));
        let fetched = fetch_joined_into(body, joining, counted, |node| holders.open(node)).await;
        let UnfinishedFetch { body: left, .. } = fetched.expect_err("all are gone");
        body = left.expect("the sink is there");
        assert_eq!(body.missing_bytes(), ((count - came) * CHUNK_BYTES) as u64);
        assert_eq!(progress.load(Ordering::Relaxed), (came * CHUNK_BYTES) as u64);
    }
    let (_join, joining) = watch::channel(vec![NodeId(4)]);
    let open = |node| holders.open(node);
    let fetched = fetch_joined_into(body, joining, Some(Arc::clone(&progress)), open).await;
    assert!(fetched.expect("one is left").into_bytes() == *bytes);
    assert_eq!(progress.load(Ordering::Relaxed), length as u64);
    let served = loop {
        if let (NodeId(4), served) = holders.ending().await {
            break served.expect("it was read to its end");
        }
    };
    assert_eq!((holders.openings(4), served.chunks), (1, 20));
}
