//! The bulk lane: whole bodies from holders that come, go, send wrong bytes and stall.

mod holders;
mod joining;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex, repeat, sink, split};
use zbelastic_transport::bulk::{
    BULK_BYTES_MAX, BulkBody, BulkError, BulkFetch, CHUNK_BYTES, CheckedChunks, CheckedFetch,
    ChunkCheck, ChunkRequestFault, ChunkSink, FETCH_WHOLE_BYTES_MAX, HolderError, KEY_BYTES_MAX,
    ServeBulkError, ServeSummary, fetch, fetch_checked_into, fetch_into, serve,
};
use zbelastic_types::NodeId;

use holders::{KEY, StreamFault, TestHolder, TestHolders};

/// An answer, and a chunk with its checksum.
const ANSWER_BYTES: u64 = 9;
const STEP_BYTES: u64 = CHUNK_BYTES as u64 + CHECKSUM_BYTES;
const CHECKSUM_BYTES: u64 = 4;
/// How often in a row a holder may fail.
const FAILURES: usize = 3;

fn content(length: usize) -> Arc<Vec<u8>> {
    let mut bytes = vec![0; length];
    blake3::Hasher::new().finalize_xof().fill(&mut bytes);
    Arc::new(bytes)
}

fn failures(result: Result<Vec<u8>, BulkError>) -> Vec<(u64, HolderError)> {
    match result {
        Err(BulkError::NoHolderLeft { failures, .. }) => {
            failures.into_iter().map(|failure| (failure.holder.0, failure.error)).collect()
        }
        Err(other) => panic!("another error: {other}"),
        Ok(bytes) => panic!("{} bytes", bytes.len()),
    }
}

#[tokio::test]
async fn every_length_arrives_from_one_holder_and_from_three() {
    for length in [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 11 * CHUNK_BYTES + 5] {
        let bytes = content(length);
        for count in [1, 3] {
            let holders = TestHolders::new(vec![TestHolder::of(&bytes); count]);
            assert!(holders.fetch(length).await.unwrap() == *bytes, "{length} from {count}");
        }
    }
}

#[tokio::test]
async fn holders_share_the_work_and_hardly_anything_is_moved_twice() {
    let length = 40 * CHUNK_BYTES + 17;
    let bytes = content(length);
    let holders = TestHolders::new(vec![TestHolder::of(&bytes); 3]);
    assert!(holders.fetch(length).await.unwrap() == *bytes);
    let limit = length as u64 * 11 / 10;
    assert!(holders.moved_by_all() <= limit, "{} of {length}", holders.moved_by_all());
    for node in 1..=3 {
        assert!(holders.moved(node) >= STEP_BYTES, "{node} helped");
    }
}

#[tokio::test]
async fn a_chunk_that_came_damaged_comes_from_another_holder() {
    let length = 24 * CHUNK_BYTES;
    let bytes = content(length);
    let damaged = TestHolder {
        faults: vec![vec![StreamFault::Flip(ANSWER_BYTES + STEP_BYTES + 1000)]],
        always: vec![StreamFault::Cut(0)],
        ..TestHolder::of(&bytes)
    };
    let holders = TestHolders::new([damaged, TestHolder::of(&bytes)]);
    assert!(holders.fetch(length).await.unwrap() == *bytes);
    // Beyond the length: the damaged chunk, and what is read of the next.
    let limit = length as u64 + 2 * STEP_BYTES + 24 * CHECKSUM_BYTES + 100;
    assert!(holders.moved_by_all() <= limit, "{} of {length}", holders.moved_by_all());
    assert!(holders.moved(1) < 5 * STEP_BYTES, "the stream is not read on");
}

/// Compares chunks with those of the sound bytes.
#[derive(Debug)]
struct SoundBytes(Arc<Vec<u8>>);

impl ChunkCheck for SoundBytes {
    fn is_sound(&self, chunk: u64, bytes: &[u8]) -> bool {
        self.0.chunks(CHUNK_BYTES).nth(chunk as usize) == Some(bytes)
    }
}

/// A holder whose disk damaged these chunks; their checksums are computed of the damaged bytes.
fn rotten(bytes: &Arc<Vec<u8>>, chunks: impl IntoIterator<Item = usize>) -> TestHolder {
    let mut bytes = bytes.to_vec();
    for chunk in chunks {
        bytes[chunk * CHUNK_BYTES + 2] ^= 8;
    }
    TestHolder::of(&Arc::new(bytes))
}

async fn fetch_checked(
    bytes: &Arc<Vec<u8>>,
    holders: Vec<TestHolder>,
    wanted: Vec<u64>,
) -> CheckedFetch<RecordingSink> {
    let holders = TestHolders::new(holders);
    let check = Arc::new(SoundBytes(Arc::clone(bytes)));
    let chunks = CheckedChunks { wanted, check };
    let request = holders.request(bytes.len(), None);
    fetch_checked_into(request, chunks, RecordingSink::default(), |node| holders.open(node)).await
}

#[tokio::test]
async fn each_chunk_comes_from_a_holder_that_has_it_sound() {
    let bytes = content(20 * CHUNK_BYTES + 5);
    let all = || (0..21).collect::<Vec<_>>();
    for (first, second, wanted) in [
        (vec![0], vec![20], all()),
        (vec![3, 4, 5, 19], vec![0, 1, 6, 18], all()),
        ((0..10).collect(), (10..21).collect(), all()),
        (vec![3, 9], vec![4], vec![3, 4]),
    ] {
        let bad = [&first, &second].map(|chunks: &Vec<usize>| {
            chunks.iter().any(|chunk| wanted.contains(&(*chunk as u64)))
        });
        assert_eq!(bad, [true; 2]);
        let holders = vec![rotten(&bytes, first), rotten(&bytes, second)];
        let CheckedFetch { outcome, unsound } =
            fetch_checked(&bytes, holders, wanted.clone()).await;
        let found = outcome.expect("each is sound at one of them").chunks;
        assert_eq!(found.len(), wanted.len());
        for (offset, found) in found {
            let at = offset as usize;
            assert!(wanted.contains(&(offset / CHUNK_BYTES as u64)));
            assert!(bytes[at..at + found.len()] == found);
        }
        assert!(unsound.iter().all(|node| node.0 <= 2), "{unsound:?}");
    }
}

#[tokio::test]
async fn holders_of_unsound_chunks_are_named_and_what_is_sound_nowhere_ends_the_fetch() {
    let bytes = content(6 * CHUNK_BYTES);
    let holders = vec![rotten(&bytes, 0..6), TestHolder::of(&bytes)];
    let fetched = fetch_checked(&bytes, holders, (0..6).collect()).await;
    assert!(fetched.outcome.is_ok());
    assert_eq!(fetched.unsound, [NodeId(1)]);

    let holders = vec![rotten(&bytes, [2, 4]), rotten(&bytes, [4])];
    let fetched = fetch_checked(&bytes, holders, (0..6).collect()).await;
    let Err(BulkError::NoHolderLeft { failures, .. }) = fetched.outcome else {
        panic!("chunk 4 is sound nowhere")
    };
    let is_4 = |error: &HolderError| matches!(error, HolderError::Unsound { chunk: 4 });
    assert_eq!(failures.iter().filter(|failure| is_4(&failure.error)).count(), 2);
    assert_eq!(fetched.unsound, [NodeId(1), NodeId(2)]);
}

#[tokio::test]
async fn a_damaged_checksum_is_a_damaged_chunk() {
    let bytes = content(CHUNK_BYTES);
    let damaged = TestHolder {
        always: vec![StreamFault::Flip(ANSWER_BYTES + CHECKSUM_BYTES - 1)],
        ..TestHolder::of(&bytes)
    };
    let failed = failures(TestHolders::new([damaged]).fetch(CHUNK_BYTES).await);
    assert_eq!(failed.len(), FAILURES);
    for (_, error) in failed {
        assert!(matches!(error, HolderError::Damaged { chunk: 0 }), "{error}");
    }
}

#[tokio::test]
async fn a_cut_stream_is_taken_up_where_it_ended() {
    let length = 12 * CHUNK_BYTES;
    let bytes = content(length);
    let cut = vec![StreamFault::Cut(ANSWER_BYTES + 6 * STEP_BYTES + 500)];
    let holders = TestHolders::new([TestHolder { faults: vec![cut], ..TestHolder::of(&bytes) }]);
    assert!(holders.fetch(length).await.unwrap() == *bytes);
    assert_eq!(holders.openings(1), 2);
    let limit = length as u64 + 12 * CHECKSUM_BYTES + 500 + 100;
    assert!(holders.moved(1) <= limit, "{} of {length}", holders.moved(1));
}

#[tokio::test]
async fn a_holder_may_fail_again_after_it_gave_something() {
    let length = 12 * CHUNK_BYTES;
    let bytes = content(length);
    let cut = vec![StreamFault::Cut(ANSWER_BYTES + STEP_BYTES + 1)];
    let holders = TestHolders::new([TestHolder {
        faults: vec![cut; 2 * FAILURES],
        ..TestHolder::of(&bytes)
    }]);
    assert!(holders.fetch(length).await.unwrap() == *bytes);
    assert_eq!(holders.openings(1), 2 * FAILURES + 1);
}

#[tokio::test]
async fn what_a_stalled_holder_owes_is_taken_over() {
    let length = 20 * CHUNK_BYTES;
    let bytes = content(length);
    for offset in [0, 5, ANSWER_BYTES + 7, ANSWER_BYTES + 2 * STEP_BYTES + 9] {
        let stalled =
            TestHolder { always: vec![StreamFault::Stall(offset)], ..TestHolder::of(&bytes) };
        let holders = TestHolders::new([stalled, TestHolder::of(&bytes)]);
        assert!(holders.fetch(length).await.unwrap() == *bytes);
    }
}

#[tokio::test]
async fn one_chunk_is_taken_over_by_a_holder_that_had_nothing_to_do() {
    let bytes = content(100);
    let stalled =
        TestHolder { always: vec![StreamFault::Stall(ANSWER_BYTES)], ..TestHolder::of(&bytes) };
    let holders = TestHolders::new([stalled, TestHolder::of(&bytes)]);
    assert!(holders.fetch(100).await.unwrap() == *bytes);
    assert_eq!(holders.openings(2), 1);
}

#[tokio::test]
async fn a_holder_of_another_length_is_tried_once() {
    let bytes = content(CHUNK_BYTES + 9);
    let other = content(CHUNK_BYTES + 10);
    let holders = TestHolders::new([TestHolder::of(&other), TestHolder::of(&bytes)]);
    assert!(holders.fetch(CHUNK_BYTES + 9).await.unwrap() == *bytes);
    for (expected, length) in [(CHUNK_BYTES, 2 * CHUNK_BYTES), (5 * CHUNK_BYTES, 1), (1, 0)] {
        let holders = TestHolders::new([TestHolder::of(&content(length))]);
        let failed = failures(holders.fetch(expected).await);
        assert_eq!((failed.len(), holders.openings(1)), (1, 1));
        let HolderError::WrongLength { expected: reported, found } = failed[0].1 else {
            panic!("another error: {}", failed[0].1);
        };
        assert_eq!((reported, found), (expected as u64, length as u64));
    }
}

#[tokio::test]
async fn an_error_names_the_holder_that_failed_and_how() {
    let bytes = content(10);
    let unreachable = TestHolder { is_unreachable: true, ..TestHolder::of(&bytes) };
    let cut = TestHolder { always: vec![StreamFault::Cut(3)], ..TestHolder::of(&bytes) };
    let holders = TestHolders::new([unreachable, cut]);
    let failed = failures(holders.fetch(10).await);
    let count = |node| failed.iter().filter(|(holder, _)| *holder == node).count();
    assert_eq!((count(1), count(2)), (FAILURES, FAILURES));
    for (node, error) in failed {
        let (expected, kind) = match (node, error) {
            (1, HolderError::Unreachable(error)) => {
                (io::ErrorKind::ConnectionRefused, error.kind())
            }
            (2, HolderError::Stream(error)) => (io::ErrorKind::UnexpectedEof, error.kind()),
            (_, other) => panic!("another error of {node}: {other}"),
        };
        assert_eq!(kind, expected);
    }
}

/// Fetches one chunk and a bit from a holder that answers with these bytes whatever is requested.
async fn from_answer(answer: Vec<u8>, tail: u64) -> Vec<(u64, HolderError)> {
    let length = CHUNK_BYTES as u64 + 1;
    let request = BulkFetch { holders: vec![NodeId(1)], key: KEY.to_vec(), length, progress: None };
    let fetched = fetch(request, move |_| {
        let reader = io::Cursor::new(answer.clone());
        let reader = AsyncReadExt::chain(reader, AsyncReadExt::take(repeat(0x5a), tail));
        async move { Ok((reader, sink())) }
    });
    failures(fetched.await)
}

fn answer(status: u8, length: u64) -> Vec<u8> {
    [&[status][..], &length.to_le_bytes()].concat()
}

#[tokio::test]
async fn answers_that_are_none_are_refused() {
    let length = CHUNK_BYTES as u64 + 1;
    let failed = from_answer(answer(1, 0), 0).await;
    assert!(matches!(failed[..], [(1, HolderError::UnknownKey)]), "{failed:?}");
    let failed = from_answer(answer(2, length), 0).await;
    assert!(matches!(failed[..], [(1, HolderError::RangeRefused)]), "{failed:?}");
    let failed = from_answer(answer(3, length), 0).await;
    assert!(matches!(failed[..], [(1, HolderError::NoAnswer { status: 3 })]), "{failed:?}");
    for found in [0, length - 1, length + 1, 1 << 63, u64::MAX] {
        let failed = from_answer(answer(0, found), u64::MAX).await;
        let [(1, HolderError::WrongLength { found: reported, .. })] = failed[..] else {
            panic!("another error: {failed:?}");
        };
        assert_eq!(reported, found);
    }
    // A stream that never ends is a chunk that is damaged.
    let failed = from_answer(answer(0, length), u64::MAX).await;
    assert_eq!(failed.len(), FAILURES);
    assert!(matches!(failed[0], (1, HolderError::Damaged { chunk: 0 })), "{failed:?}");
}

#[tokio::test]
async fn what_cannot_be_requested_is_not() {
    let fetch_with = async |holders: &[u64], key_bytes, length| {
        let holders = holders.iter().copied().map(NodeId).collect();
        let request = BulkFetch { holders, key: vec![1; key_bytes], length, progress: None };
        fetch(request, |_| async { Ok((tokio::io::empty(), sink())) }).await
    };
    assert!(matches!(fetch_with(&[], 1, 1).await, Err(BulkError::NoHolders)));
    let found = KEY_BYTES_MAX + 1;
    let result = fetch_with(&[1], found, 1).await;
    assert!(matches!(result, Err(BulkError::KeyTooLong { found: reported }) if reported == found));
    assert!(matches!(
        fetch_with(&[1], KEY_BYTES_MAX, 1).await,
        Err(BulkError::NoHolderLeft { .. })
    ));
    let found = BULK_BYTES_MAX + 1;
    let result = fetch_with(&[1], 1, found).await;
    let expected = (found, FETCH_WHOLE_BYTES_MAX);
    assert!(matches!(result, Err(BulkError::TooLong { found, most }) if (found, most) == expected));
    let request = BulkFetch { holders: vec![NodeId(1)], length: found, ..BulkFetch::default() };
    let open = |_| async { Ok((tokio::io::empty(), sink())) };
    let result = fetch_into(request, RecordingSink::default(), open).await.map(|_| ());
    let expected = (found, BULK_BYTES_MAX);
    assert!(matches!(result, Err(BulkError::TooLong { found, most }) if (found, most) == expected));
}

/// Keeps what it was given, and fails once it holds `chunks_max` chunks if that is set.
#[derive(Debug, Default)]
struct RecordingSink {
    chunks: BTreeMap<u64, Vec<u8>>,
    chunks_max: Option<usize>,
}

impl ChunkSink for RecordingSink {
    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if self.chunks_max == Some(self.chunks.len()) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        assert!(self.chunks.insert(offset, bytes.to_vec()).is_none(), "{offset} comes twice");
        Ok(())
    }
}

#[tokio::test]
async fn a_sink_gets_each_chunk_once_and_the_caller_sees_bytes_arrive() {
    let bytes = content(40 * CHUNK_BYTES + 17);
    let damaged = TestHolder {
        faults: vec![vec![StreamFault::Flip(STEP_BYTES + 60)]],
        ..TestHolder::of(&bytes)
    };
    let holders = TestHolders::new([damaged, TestHolder::of(&bytes)]);
    let progress = Arc::new(AtomicU64::new(0));
    let request = holders.request(bytes.len(), Some(Arc::clone(&progress)));
    let recorder =
        fetch_into(request, RecordingSink::default(), |node| holders.open(node)).await.unwrap();
    let joined: Vec<u8> = recorder.chunks.into_values().flatten().collect();
    assert!(joined == *bytes);
    assert_eq!(progress.load(Ordering::Relaxed), bytes.len() as u64);
}

/// Takes bytes in the order of their offsets alone.
#[derive(Debug, Default)]
struct OrderedSink(u64);

impl ChunkSink for OrderedSink {
    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        assert_eq!(offset, self.0);
        self.0 += bytes.len() as u64;
        Ok(())
    }
}

#[tokio::test]
async fn one_holder_serves_chunks_in_order_whatever_fails_on_the_way() {
    let bytes = content(9 * CHUNK_BYTES + 17);
    let cut = StreamFault::Cut(ANSWER_BYTES + 3 * STEP_BYTES + 100);
    let faults = vec![vec![StreamFault::Flip(2 * STEP_BYTES + 60)], vec![cut]];
    let holders = TestHolders::new([TestHolder { faults, ..TestHolder::of(&bytes) }]);
    let request = holders.request(bytes.len(), None);
    let sink = fetch_into(request, OrderedSink::default(), |node| holders.open(node)).await;
    assert_eq!(sink.unwrap().0, bytes.len() as u64);
}

#[tokio::test]
async fn progress_counts_what_came_before_a_fetch_failed() {
    let bytes = content(3 * CHUNK_BYTES);
    let cut = TestHolder {
        always: vec![StreamFault::Cut(ANSWER_BYTES + STEP_BYTES)],
        ..TestHolder::of(&bytes)
    };
    let first =
        TestHolder { faults: vec![cut.always.clone()], always: vec![StreamFault::Cut(0)], ..cut };
    let holders = TestHolders::new([first]);
    let progress = Arc::new(AtomicU64::new(0));
    let request = holders.request(bytes.len(), Some(Arc::clone(&progress)));
    let fetched = fetch(request, |node| holders.open(node)).await;
    assert_eq!(failures(fetched).len(), FAILURES);
    assert_eq!(progress.load(Ordering::Relaxed), CHUNK_BYTES as u64);
}

#[tokio::test]
async fn a_sink_that_fails_ends_the_fetch() {
    let bytes = content(20 * CHUNK_BYTES);
    let holders = TestHolders::new(vec![TestHolder::of(&bytes); 2]);
    let full = RecordingSink { chunks_max: Some(2), ..RecordingSink::default() };
    let request = holders.request(bytes.len(), None);
    let result = fetch_into(request, full, |node| holders.open(node)).await.map(|_| ());
    let Err(BulkError::Sink(error)) = result else { panic!("another end: {result:?}") };
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
}

#[tokio::test]
async fn a_length_without_bytes_behind_it_takes_no_memory() {
    let holders = TestHolders::new([TestHolder::default()]);
    let length = usize::try_from(FETCH_WHOLE_BYTES_MAX).unwrap();
    let failed = failures(holders.fetch(length).await);
    assert!(matches!(failed[..], [(1, HolderError::WrongLength { found: 0, .. })]), "{failed:?}");
}

#[tokio::test]
async fn a_fetch_that_is_dropped_ends_its_streams() {
    let bytes = content(8 * CHUNK_BYTES);
    let stalled = TestHolder { always: vec![StreamFault::Stall(100)], ..TestHolder::of(&bytes) };
    let mut holders = TestHolders::new([stalled]);
    tokio::select! {
        biased;
        _ = holders.fetch(bytes.len()) => panic!("it stalls"),
        () = async { while holders.moved(1) < 100 { tokio::task::yield_now().await } } => {}
    }
    let (_, served) = holders.ending().await;
    assert!(matches!(served, Err(ServeBulkError::Stream(_))), "{served:?}");
}

fn request(key: &[u8], first: u64, count: u64) -> Vec<u8> {
    let key_bytes = u16::try_from(key.len()).unwrap().to_le_bytes();
    [&key_bytes[..], key, &first.to_le_bytes(), &count.to_le_bytes()].concat()
}

/// What a holder of `body` answers to bytes, and how it ends.
async fn replies(
    body: &Arc<Vec<u8>>,
    requests: &[u8],
) -> (Vec<u8>, Result<ServeSummary, ServeBulkError>) {
    let body: Arc<dyn BulkBody> = Arc::<Vec<u8>>::clone(body);
    let mut replies = Vec::new();
    let find = move |key: &[u8]| (key == KEY).then(|| Arc::clone(&body));
    let served = serve(requests, &mut replies, find).await;
    (replies, served)
}

#[tokio::test]
async fn requests_that_give_nothing_leave_the_stream_as_it_is() {
    let body = content(CHUNK_BYTES + 2);
    let ranges = [(0, 0), (2, 1), (1, 2), (0, 3), (0, u64::MAX), (1, u64::MAX), (u64::MAX, 1)];
    let mut requests = request(b"another key", 0, 1);
    let mut expected = answer(1, 0);
    for (first, count) in ranges {
        requests.extend(request(KEY, first, count));
        expected.extend(answer(2, body.len() as u64));
    }
    requests.extend(request(KEY, 1, 1));
    let last = &body[CHUNK_BYTES..];
    expected.extend(
        [&answer(0, body.len() as u64), &crc32fast::hash(last).to_le_bytes()[..], last].concat(),
    );
    let (replies, served) = replies(&body, &requests).await;
    assert_eq!(replies, expected);
    assert_eq!(served.unwrap(), ServeSummary { chunks: 1, bytes: 2 });
}

#[tokio::test]
async fn a_key_that_is_too_long_ends_the_stream() {
    let body = content(1);
    let (replies, served) = replies(&body, &request(&[0; KEY_BYTES_MAX + 1], 0, 1)).await;
    assert!(replies.is_empty());
    let Err(ServeBulkError::Refused(ChunkRequestFault::KeyTooLong { found })) = served else {
        panic!("another end: {served:?}");
    };
    assert_eq!(found, KEY_BYTES_MAX + 1);
}

/// A body that is not in memory.
struct UnlentBody(Vec<u8>);

impl BulkBody for UnlentBody {
    fn len(&self) -> u64 {
        self.0.len() as u64
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.0.read(offset, into)
    }
}

#[tokio::test]
async fn a_body_that_is_read_gives_the_bytes_of_one_that_is_lent() {
    let lent = content(6 * CHUNK_BYTES + 3);
    let read: Arc<dyn BulkBody> = Arc::new(UnlentBody(lent.to_vec()));
    let requests = [request(KEY, 0, 2), request(KEY, 6, 1), request(KEY, 1, 6)].concat();
    let mut from_read = Vec::new();
    serve(&requests[..], &mut from_read, move |_: &[u8]| Some(Arc::clone(&read))).await.unwrap();
    assert!(from_read == replies(&lent, &requests).await.0);
}

/// A body whose second chunk cannot be read.
struct TornBody;

impl BulkBody for TornBody {
    fn len(&self) -> u64 {
        3 * CHUNK_BYTES as u64
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        into.fill(0);
        if offset == CHUNK_BYTES as u64 { Err(io::ErrorKind::InvalidData.into()) } else { Ok(()) }
    }
}

#[tokio::test]
async fn a_body_that_cannot_be_read_ends_the_stream() {
    let (near, far) = duplex(1024);
    let (reader, writer) = split(far);
    let serving = tokio::spawn(serve(reader, writer, |_: &[u8]| {
        Some(Arc::new(TornBody) as Arc<dyn BulkBody>)
    }));
    let (mut reader, mut writer) = split(near);
    writer.write_all(&request(KEY, 0, 3)).await.unwrap();
    let mut replies = Vec::new();
    reader.read_to_end(&mut replies).await.unwrap();
    assert_eq!(replies.len() as u64, ANSWER_BYTES + STEP_BYTES);
    let served = serving.await.unwrap();
    assert!(matches!(served, Err(ServeBulkError::Body { chunk: 1, .. })), "{served:?}");
}

fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_bytes_as_requests_end_in_answers_or_an_error(
        mut bytes in prop::collection::vec(any::<u8>(), 0..80),
        key_bytes in 0_u8..20,
    ) {
        if let [first, second, ..] = &mut bytes[..] {
            (*first, *second) = (key_bytes, 0);
        }
        let (replies, _) = block_on(replies(&content(10), &bytes));
        prop_assert!(replies.len() <= 9 * bytes.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn any_bytes_as_an_answer_end_in_an_error(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        is_right in any::<bool>(),
    ) {
        let mut all = if is_right { answer(0, CHUNK_BYTES as u64 + 1) } else { Vec::new() };
        all.extend(bytes);
        prop_assert!(!block_on(from_answer(all, 0)).is_empty());
    }
}
