//! The tensor lane: what arrives, what is refused before it comes, and what is read past.

use std::future::ready;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::{io, thread};

use proptest::prelude::*;
use tokio::io::{
    AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf, duplex, empty, repeat,
};
use tokio::sync::watch;
use zbelastic_identity::{PeerIdentity, PeerRole};
use zbelastic_transport::frame::{
    FRAME_BYTES_MAX, FRAME_PARTS_MAX, FRAME_QUEUE_BYTES, FrameArrival, FrameBody, FrameClass,
    FrameNotQueued, FramePart, FrameReader, FrameRejection, FrameRules, FrameTooLarge,
    META_BYTES_MAX, OutgoingFrame, PartPool, ReadFrameError, ReceivedFrame, RuleError, Urgency,
    frame_queue, write_frame,
};
use zbelastic_types::{ClusterId, NodeId};

const PEER: NodeId = NodeId(7);
const CLASS: FrameClass = FrameClass(3);

fn peer() -> PeerIdentity {
    PeerIdentity { cluster: ClusterId(1), role: PeerRole::Worker, node: PEER }
}

fn rules(parts: &[usize]) -> FrameRules {
    let mut rules = FrameRules::new();
    rules.allow(PEER, CLASS, parts.to_vec()).unwrap();
    rules
}

fn reader<R: AsyncRead + Unpin>(stream: R, rules: FrameRules) -> FrameReader<R> {
    reader_with(stream, rules, PartPool::default())
}

fn reader_with<R: AsyncRead + Unpin>(
    stream: R,
    rules: FrameRules,
    pool: PartPool,
) -> FrameReader<R> {
    FrameReader::new(stream, peer(), watch::channel(Arc::new(rules)).1, pool)
}

fn frame(class: FrameClass, meta: &[u8], parts: Vec<Vec<f32>>) -> OutgoingFrame {
    OutgoingFrame::new(class, meta.to_vec(), Arc::new(parts)).unwrap()
}

async fn bytes_of(frames: &[OutgoingFrame]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for frame in frames {
        let before = bytes.len();
        let written = write_frame(&mut bytes, frame).await.unwrap();
        assert_eq!(written, (bytes.len() - before) as u64);
    }
    bytes
}

fn header(class: FrameClass, meta_bytes: u32, body_bytes: u64) -> Vec<u8> {
    let mut bytes = class.0.to_le_bytes().to_vec();
    bytes.extend(meta_bytes.to_le_bytes());
    bytes.extend(body_bytes.to_le_bytes());
    bytes
}

fn bits<T: AsRef<[f32]>>(parts: &[T]) -> Vec<Vec<u32>> {
    parts.iter().map(|part| part.as_ref().iter().map(|float| float.to_bits()).collect()).collect()
}

/// Gives nothing and never ends: a reader of it waits forever.
struct SilentReader;

impl AsyncRead for SilentReader {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        _: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Poll::Pending
    }
}

fn taken(arrival: Option<FrameArrival>) -> ReceivedFrame {
    match arrival {
        Some(FrameArrival::Frame(frame)) => frame,
        Some(FrameArrival::Skipped { .. }) | None => panic!("no frame: {arrival:?}"),
    }
}

#[tokio::test]
async fn frames_arrive_bit_for_bit_through_any_pipe() {
    let odd = [0x7fc0_0001, 0xffa5_5a5a, 0x7f80_0001, 0x8000_0000, 0, 1, 0x7f80_0000, 0xff7f_ffff];
    let odd: Vec<f32> = odd.into_iter().map(f32::from_bits).collect();
    let long: Vec<f32> =
        (0..5000_u32).map(|n| f32::from_bits(n.wrapping_mul(0x9e37_79b9))).collect();
    let parts = vec![odd, long];
    for pipe_bytes in [1, 7, 4096, 1 << 20] {
        let (mut near, far) = duplex(pipe_bytes);
        let sent = frame(CLASS, b"meta", parts.clone());
        let sender = tokio::spawn(async move {
            write_frame(&mut near, &sent).await.unwrap();
            write_frame(&mut near, &sent).await.unwrap();
        });
        let mut reader = reader(far, rules(&[8, 5000]));
        for _ in 0..2 {
            let got = taken(reader.read().await.unwrap());
            assert_eq!((got.from, got.class, &got.meta[..]), (peer(), CLASS, &b"meta"[..]));
            assert_eq!(bits(&got.parts), bits(&parts));
        }
        assert_eq!(reader.read().await.unwrap(), None);
        sender.await.unwrap();
    }
}

/// Parts from the length on from which memory is kept, and of more than one length.
#[tokio::test]
async fn parts_lie_in_the_memory_of_those_that_were_dropped() {
    let lengths = [100_000, 50_000];
    let sent = |first: f32| frame(CLASS, b"", lengths.map(|floats| vec![first; floats]).into());
    let bytes = bytes_of(&[sent(1.0), sent(2.0), sent(3.0)]).await;
    let pool = PartPool::default();
    let mut reader = reader_with(&bytes[..], rules(&lengths), pool.clone());
    let addresses = |frame: &ReceivedFrame| -> Vec<_> {
        frame.parts.iter().map(|part| part.as_ptr()).collect()
    };
    let first = taken(reader.read().await.unwrap());
    let memory = addresses(&first);
    assert_eq!(pool.unused_bytes(), 0);
    drop(first);
    assert_eq!(pool.unused_bytes(), 4 * 150_000);
    let second = taken(reader.read().await.unwrap());
    assert_eq!((addresses(&second), pool.unused_bytes()), (memory.clone(), 0));
    assert_eq!(second.parts, [vec![2.0; 100_000], vec![2.0; 50_000]]);
    let kept: Vec<Vec<f32>> = second.parts.into_iter().map(FramePart::into_vec).collect();
    let third = taken(reader.read().await.unwrap());
    assert!(addresses(&third).iter().all(|address| !memory.contains(address)));
    assert_eq!(kept, [vec![2.0; 100_000], vec![2.0; 50_000]]);
}

/// The stream ends within the second part.
#[tokio::test]
async fn memory_of_a_frame_that_broke_off_is_used_again() {
    let lengths = [100_000, 50_000];
    let parts = lengths.map(|floats| vec![1.0; floats]).into();
    let bytes = bytes_of(&[frame(CLASS, b"", parts)]).await;
    let pool = PartPool::default();
    let mut reader = reader_with(&bytes[..bytes.len() - 1], rules(&lengths), pool.clone());
    assert!(matches!(reader.read().await, Err(ReadFrameError::Cut)));
    assert_eq!(pool.unused_bytes(), 4 * 150_000);
}

#[tokio::test]
async fn a_frame_may_be_empty() {
    for parts in [vec![], vec![0], vec![0, 0]] {
        let sent = frame(CLASS, b"", parts.iter().map(|&floats| vec![0.0; floats]).collect());
        let bytes = bytes_of(&[sent]).await;
        assert_eq!(bytes, header(CLASS, 0, 0));
        let got = taken(reader(&bytes[..], rules(&parts)).read().await.unwrap());
        assert_eq!((got.meta.len(), got.parts.len()), (0, parts.len()));
    }
}

/// What a reader returns for a header behind which nothing ever comes.
async fn verdict(rules: FrameRules, header: Vec<u8>) -> FrameRejection {
    match reader(header.chain(SilentReader), rules).read().await {
        Err(ReadFrameError::Refused(refusal)) => refusal,
        other => panic!("not refused: {other:?}"),
    }
}

trait Chain: Sized {
    fn chain<R>(self, rest: R) -> Chained<R>;
}

impl Chain for Vec<u8> {
    fn chain<R>(self, rest: R) -> Chained<R> {
        Chained { first: io::Cursor::new(self), rest }
    }
}

/// Bytes, and then what a stream gives.
struct Chained<R> {
    first: io::Cursor<Vec<u8>>,
    rest: R,
}

impl<R: AsyncRead + Unpin> AsyncRead for Chained<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.first.position() < self.first.get_ref().len() as u64 {
            return Pin::new(&mut self.first).poll_read(context, buffer);
        }
        Pin::new(&mut self.rest).poll_read(context, buffer)
    }
}

#[tokio::test]
async fn a_body_of_another_length_is_refused_before_it_comes() {
    for found in [0, 1, 11, 13, 16, FRAME_BYTES_MAX, 1 << 60, 1 << 63, u64::MAX] {
        let expected = FrameRejection::WrongLength { class: CLASS, expected: 12, found };
        assert_eq!(verdict(rules(&[1, 2]), header(CLASS, 0, found)).await, expected);
    }
}

#[tokio::test]
async fn the_longest_body_is_distinguished_from_its_neighbours() {
    let floats = usize::try_from(FRAME_BYTES_MAX).unwrap() / 4;
    for found in [FRAME_BYTES_MAX - 1, FRAME_BYTES_MAX + 1] {
        let expected = FRAME_BYTES_MAX;
        let refusal = FrameRejection::WrongLength { class: CLASS, expected, found };
        assert_eq!(verdict(rules(&[floats]), header(CLASS, 0, found)).await, refusal);
    }
    // The right length is not refused: the stream only ends too early.
    let bytes = header(CLASS, 0, FRAME_BYTES_MAX);
    let result = reader(&bytes[..], rules(&[floats])).read().await;
    assert!(matches!(result, Err(ReadFrameError::Cut)), "{result:?}");
}

#[tokio::test]
async fn a_class_without_rule_is_read_past_up_to_the_longest_frame() {
    for found in [FRAME_BYTES_MAX + 1, 1 << 60, 1 << 63, u64::MAX] {
        let expected = FrameRejection::TooLong { class: FrameClass(9), found };
        assert_eq!(verdict(rules(&[1]), header(FrameClass(9), 0, found)).await, expected);
    }
    let known = bytes_of(&[frame(CLASS, b"", vec![vec![1.5]])]).await;
    for bytes in [0, 1, 65_536, 65_537, FRAME_BYTES_MAX - 1, FRAME_BYTES_MAX] {
        let stale = header(FrameClass(9), 0, bytes).chain(AsyncReadExt::take(repeat(0xa5), bytes));
        let stream = AsyncReadExt::chain(stale, &known[..]);
        let mut reader = reader(stream, rules(&[1]));
        let skipped = FrameArrival::Skipped { class: FrameClass(9), bytes };
        assert_eq!(reader.read().await.unwrap(), Some(skipped));
        assert_eq!(taken(reader.read().await.unwrap()).parts, [[1.5]]);
    }
}

#[tokio::test]
async fn meta_has_a_longest_length() {
    let class = CLASS;
    for found in [META_BYTES_MAX as u32 + 1, u32::MAX] {
        for class in [CLASS, FrameClass(9)] {
            let expected = FrameRejection::MetaTooLong { class, found };
            assert_eq!(verdict(rules(&[1]), header(class, found, 4)).await, expected);
        }
    }
    let sent = frame(class, &[9; META_BYTES_MAX], vec![vec![2.0]]);
    let bytes = bytes_of(&[sent]).await;
    let got = taken(reader(&bytes[..], rules(&[1])).read().await.unwrap());
    assert_eq!(got.meta, [9; META_BYTES_MAX]);
    let too_long = OutgoingFrame::new(class, vec![9; META_BYTES_MAX + 1], Arc::new(Vec::new()));
    assert_eq!(too_long.unwrap_err(), FrameTooLarge::Meta { found: META_BYTES_MAX + 1 });
}

#[tokio::test]
async fn new_rules_hold_from_the_next_frame_on() {
    let one = frame(CLASS, b"", vec![vec![1.0]]);
    let two = frame(CLASS, b"", vec![vec![1.0; 2]]);
    let bytes = bytes_of(&[one.clone(), two, one]).await;
    let (sender, receiver) = watch::channel(Arc::new(rules(&[1])));
    let mut reader = FrameReader::new(&bytes[..], peer(), receiver, PartPool::default());
    assert_eq!(taken(reader.read().await.unwrap()).parts, [[1.0]]);
    sender.send(Arc::new(rules(&[2]))).unwrap();
    assert_eq!(taken(reader.read().await.unwrap()).parts, [[1.0; 2]]);
    sender.send(Arc::new(FrameRules::new())).unwrap();
    let skipped = FrameArrival::Skipped { class: CLASS, bytes: 4 };
    assert_eq!(reader.read().await.unwrap(), Some(skipped));
}

#[tokio::test]
async fn rules_are_for_one_sender() {
    let bytes = bytes_of(&[frame(CLASS, b"", vec![vec![1.0]])]).await;
    let other = PeerIdentity { node: NodeId(8), ..peer() };
    let rules = watch::channel(Arc::new(rules(&[1]))).1;
    let mut reader = FrameReader::new(&bytes[..], other, rules, PartPool::default());
    let skipped = FrameArrival::Skipped { class: CLASS, bytes: 4 };
    assert_eq!(reader.read().await.unwrap(), Some(skipped));
}

#[tokio::test]
async fn a_stream_ends_well_only_between_two_frames() {
    let whole = bytes_of(&[frame(CLASS, b"meta", vec![vec![1.0; 3]])]).await;
    for length in 1..whole.len() {
        let mut reader = reader(&whole[..length], rules(&[3]));
        let result = reader.read().await;
        assert!(matches!(result, Err(ReadFrameError::Cut)), "{length}: {result:?}");
    }
    assert_eq!(reader(empty(), rules(&[3])).read().await.unwrap(), None);
}

#[test]
fn rules_and_frames_have_the_same_bounds() {
    let most = usize::try_from(FRAME_BYTES_MAX).unwrap() / 4;
    let allow = |parts| FrameRules::new().allow(PEER, CLASS, parts);
    assert_eq!(allow(vec![most]), Ok(()));
    for parts in [vec![most, 1], vec![usize::MAX], vec![usize::MAX / 4, usize::MAX / 4 + 2]] {
        assert_eq!(allow(parts), Err(RuleError::TooLong { class: CLASS }));
    }
    assert_eq!(allow(vec![0; FRAME_PARTS_MAX]), Ok(()));
    let found = FRAME_PARTS_MAX + 1;
    assert_eq!(allow(vec![0; found]), Err(RuleError::TooManyParts { class: CLASS, found }));
    let send = |body| OutgoingFrame::new(CLASS, Vec::new(), Arc::new(body)).map(|_| ());
    let piece = most / FRAME_PARTS_MAX;
    assert_eq!(send(RepeatedPart { part: vec![0.0; piece], times: FRAME_PARTS_MAX }), Ok(()));
    let longer = RepeatedPart { part: vec![0.0; piece + 1], times: FRAME_PARTS_MAX };
    assert_eq!(send(longer), Err(FrameTooLarge::Body));
    let more = RepeatedPart { part: Vec::new(), times: found };
    assert_eq!(send(more), Err(FrameTooLarge::Parts { found }));
}

/// One part, many times.
struct RepeatedPart {
    part: Vec<f32>,
    times: usize,
}

impl FrameBody for RepeatedPart {
    fn parts(&self) -> Vec<&[f32]> {
        vec![&self.part; self.times]
    }
}

/// Notes where the bytes it gets lie, and how often it is flushed.
#[derive(Default)]
struct RecordingWriter {
    writes: Vec<Vec<*const u8>>,
    flushes: usize,
}

impl AsyncWrite for RecordingWriter {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
        panic!("all slices are given at once");
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.writes.push(slices.iter().map(|slice| slice.as_ptr()).collect());
        Poll::Ready(Ok(slices.iter().map(|slice| slice.len()).sum()))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.flushes += 1;
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[tokio::test]
async fn a_frame_is_one_write_from_where_its_floats_lie() {
    let frame = frame(CLASS, b"meta", vec![vec![1.0; 100], vec![2.0; 10]]);
    let mut writer = RecordingWriter::default();
    write_frame(&mut writer, &frame).await.unwrap();
    let addresses: Vec<_> = frame.parts().iter().map(|part| part.as_ptr().cast::<u8>()).collect();
    assert_eq!((writer.writes.len(), writer.flushes), (1, 1));
    assert_eq!(writer.writes[0][1..], addresses);
}

#[tokio::test]
async fn a_full_queue_hands_a_frame_back_and_takes_it_later() {
    let (queue, mut outlet) = frame_queue(2);
    let small = frame(CLASS, b"", vec![vec![1.0]]);
    let sender = thread::spawn(move || {
        queue.try_send(small.clone()).unwrap();
        queue.try_send(small.clone()).unwrap();
        let full = queue.try_send(small.clone());
        assert!(matches!(full, Err(FrameNotQueued::Full(_))), "{full:?}");
        (queue, small)
    });
    let (queue, small) = sender.join().unwrap();
    let (mut near, far) = duplex(1024);
    let writing = tokio::spawn(async move { outlet.write_to(&mut near, |_| ()).await });
    let mut reader = reader(far, rules(&[1]));
    taken(reader.read().await.unwrap());
    taken(reader.read().await.unwrap());
    queue.try_send(small).unwrap();
    taken(reader.read().await.unwrap());
    drop(queue);
    writing.await.unwrap().unwrap();
    assert_eq!(reader.read().await.unwrap(), None);
}

#[tokio::test]
async fn a_queue_counts_bytes_until_they_are_written() {
    let body: Arc<dyn FrameBody> =
        Arc::new(RepeatedPart { part: vec![0.0; FRAME_QUEUE_BYTES as usize / 16], times: 2 });
    let half = OutgoingFrame::new(CLASS, Vec::new(), body).unwrap();
    let small = frame(CLASS, b"", vec![vec![1.0]]);
    let (queue, outlet) = frame_queue(8);
    queue.try_send(half.clone()).unwrap();
    queue.try_send(half.clone()).unwrap();
    assert!(matches!(queue.try_send(small.clone()), Err(FrameNotQueued::Full(_))));
    drop(outlet);
    assert!(matches!(queue.try_send(small.clone()), Err(FrameNotQueued::Closed(_))));

    let (queue, mut outlet) = frame_queue(8);
    let body: Arc<dyn FrameBody> =
        Arc::new(RepeatedPart { part: vec![0.0; FRAME_QUEUE_BYTES as usize / 8], times: 3 });
    let longer = OutgoingFrame::new(CLASS, Vec::new(), body).unwrap();
    queue.try_send(longer.clone()).unwrap();
    assert!(matches!(queue.try_send(small.clone()), Err(FrameNotQueued::Full(_))), "waits alone");
    let mut sink = tokio::io::sink();
    let mut written = 0;
    tokio::select! {
        biased;
        _ = outlet.write_to(&mut sink, |bytes| written += bytes) => panic!("the queue is there"),
        () = ready(()) => {}
    }
    queue.try_send(small).unwrap();
    assert_eq!(written, longer.body_bytes() + 16);
}

fn urgent(urgency: Urgency, meta: u8) -> OutgoingFrame {
    frame(CLASS, &[meta], vec![vec![1.0; 100]]).with_urgency(urgency)
}

/// The pipe is shorter than a frame: no frame is written before the one before it is read.
#[tokio::test]
async fn a_critical_frame_overtakes_a_full_background_and_order_stays_otherwise() {
    let (queue, mut outlet) = frame_queue(3);
    for meta in 1..=3 {
        queue.try_send(urgent(Urgency::Background, meta)).unwrap();
    }
    let full = queue.try_send(urgent(Urgency::Background, 4));
    assert!(matches!(full, Err(FrameNotQueued::Full(_))), "{full:?}");
    let (mut near, far) = duplex(64);
    let mut reader = reader(far, rules(&[100]));
    let mut order = Vec::new();
    let writing = async move { outlet.write_to(&mut near, |_| ()).await };
    let reading = async {
        order.extend(taken(reader.read().await.unwrap()).meta);
        // The beginning of the second frame is in the pipe by now: it stays the second.
        for meta in 11..=13 {
            queue.try_send(urgent(Urgency::Critical, meta)).unwrap();
        }
        let full = queue.try_send(urgent(Urgency::Critical, 14));
        assert!(matches!(full, Err(FrameNotQueued::Full(_))), "{full:?}");
        drop(queue);
        while let Some(arrival) = reader.read().await.unwrap() {
            order.extend(taken(Some(arrival)).meta);
        }
    };
    let (written, ()) = tokio::join!(writing, reading);
    written.unwrap();
    assert_eq!(order, [1, 2, 11, 12, 13, 3]);
}

#[tokio::test]
async fn each_urgency_has_all_the_bytes_of_a_queue() {
    let body: Arc<dyn FrameBody> =
        Arc::new(RepeatedPart { part: vec![0.0; FRAME_QUEUE_BYTES as usize / 4], times: 1 });
    let whole = OutgoingFrame::new(CLASS, Vec::new(), body).unwrap();
    assert_eq!(whole.urgency(), Urgency::Critical);
    let (queue, _outlet) = frame_queue(8);
    for urgency in [Urgency::Background, Urgency::Critical] {
        queue.try_send(whole.clone().with_urgency(urgency)).unwrap();
        let full = queue.try_send(urgent(urgency, 1));
        assert!(matches!(full, Err(FrameNotQueued::Full(_))), "{full:?}");
    }
}

#[tokio::test]
async fn what_waits_when_a_stream_fails_goes_onto_the_next() {
    let (queue, mut outlet) = frame_queue(8);
    for meta in [b"1", b"2"] {
        queue.try_send(frame(CLASS, meta, vec![vec![1.0]])).unwrap();
    }
    let (mut near, far) = duplex(64);
    drop(far);
    outlet.write_to(&mut near, |_| ()).await.unwrap_err();
    let (mut near, far) = duplex(64);
    drop(queue);
    outlet.write_to(&mut near, |_| ()).await.unwrap();
    assert_eq!(taken(reader(far, rules(&[1])).read().await.unwrap()).meta, b"2");
    near.shutdown().await.unwrap();
}

fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

proptest! {
    #[test]
    fn any_bytes_end_in_a_frame_or_an_error(
        mut bytes in prop::collection::vec(any::<u8>(), 0..200),
        class in 0_u8..4,
        lengths in prop::collection::vec(0_usize..6, 0..4),
    ) {
        // Else hardly any of them would name a class that is known, or a length that is short.
        for (at, byte) in bytes.iter_mut().enumerate() {
            if !matches!(at, 0 | 4 | 8) && at < 16 {
                *byte = 0;
            }
        }
        if let Some(first) = bytes.first_mut() {
            *first = class;
        }
        let count = bytes.len();
        let mut reader = reader(&bytes[..], rules(&lengths));
        let mut frames = 0;
        while let Ok(Some(_)) = block_on(reader.read()) {
            frames += 1;
        }
        prop_assert!(frames * 16 <= count);
    }
}
