//! What two processes of one machine get through the whole transport, beside a plain stream.
//!
//! ```text
//! cargo run --release -p zbelastic-transport --example roads
//! ```
//!
//! Both ends are in this process, each on a runtime of its own. The plain stream is a Unix socket
//! as the path of one host has, written in pieces of 1 MiB and read into one buffer of 1 MiB again
//! and again; frames and bodies are dropped as they arrive. All take turns, and of each the best
//! round counts: other work on the machine only lowers it. Processor time is that of all
//! threads, of the mean round. A checksum of a body is computed twice, by its holder and by its
//! fetcher: what one of the two costs alone is the line `checksum, once`.

use std::error::Error;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::runtime::{Builder, Runtime};
use zbelastic_identity::{ClusterAuthority, PeerRole, UnixSeconds};
use zbelastic_transport::bulk::CHUNK_BYTES;
use zbelastic_transport::{
    BulkBody, BulkFetch, ChunkSink, EventQueue, FrameBody, FrameClass, FrameRules, MemorySink,
    OutgoingFrame, ProcessStart, SendOutcome, Transport, TransportEvent, TransportLimits,
    TransportSetup,
};
use zbelastic_types::{ClusterId, NodeId};

const TURN_BYTES: usize = 256 << 20;
const ROUNDS: usize = 5;
/// 4 MiB: a microbatch of 1024 tokens of 1024 floats.
const FRAME_FLOATS: usize = 1 << 20;
const FRAMES: usize = TURN_BYTES / 4 / FRAME_FLOATS;
const PLAIN_BYTES: usize = 1 << 20;
const GIB: f64 = (1_u64 << 30) as f64;
const ECHOES: usize = 2000;
const CLASS: FrameClass = FrameClass(1);
const WAIT: Duration = Duration::from_secs(60);

type PathResult<T> = Result<T, Box<dyn Error + Send + Sync>>;

struct PathNode {
    runtime: Runtime,
    transport: Transport,
    events: EventQueue,
}

fn main() -> PathResult<()> {
    let folder = tempfile::tempdir()?;
    let body = content();
    for same_host in [true, false] {
        let folder_of = |name: &str| same_host.then(|| folder.path().join(name));
        let authority = ClusterAuthority::create(ClusterId(1), UnixSeconds::now())?;
        let mut one = node(&authority, 1, folder_of("one").as_deref())?;
        let mut two = node(&authority, 2, folder_of("two").as_deref())?;
        let address = two.transport.local_addr();
        one.transport.add_peer(NodeId(2), PeerRole::Worker, vec![address]);
        println!("{}", up(&mut one)?);
        up(&mut two)?;
        compare(&one, &two, &body)?;
        echo_back(two);
        println!("  messages     {:8.1} us there and back", round_trip(&mut one)?);
    }
    Ok(())
}

/// Bytes that no part of the path could predict.
fn content() -> Arc<Vec<u8>> {
    let mut bytes = vec![0; TURN_BYTES];
    blake3::Hasher::new().finalize_xof().fill(&mut bytes);
    Arc::new(bytes)
}

/// The cost of the rounds of one contender.
#[derive(Clone, Copy)]
struct ContenderCost {
    /// Time of the fastest round.
    best: Duration,
    /// Processor time of all threads, for all rounds together.
    processor: Duration,
}

type BenchmarkRound<'a> = &'a dyn Fn() -> PathResult<()>;

/// Runs the contenders in turn, and prints their costs.
fn compare(one: &PathNode, two: &PathNode, body: &Arc<Vec<u8>>) -> PathResult<()> {
    let four = |four: &[u8]| f32::from_ne_bytes(four.try_into().expect("chunks of four"));
    let floats: Arc<Vec<f32>> = Arc::new(body.chunks_exact(4).map(four).collect());
    let [plain_cost, frames, bodies, plain_kept, kept, checksum] = take_turns([
        &|| plain(one, two, body, false),
        &|| frames(one, two, &floats),
        &|| bodies(one, two, body),
        &|| plain(one, two, body, true),
        &|| kept_bodies(one, two, body),
        &|| checksum(body),
    ])?;
    show("plain stream", plain_cost, plain_cost);
    show("frames", frames, plain_cost);
    show("bodies", bodies, plain_cost);
    show("checksum, once", checksum, plain_cost);
    println!("  into memory for all of it:");
    show("plain stream", plain_kept, plain_kept);
    show("bodies", kept, plain_kept);
    Ok(())
}

fn take_turns<const COUNT: usize>(
    turns: [BenchmarkRound<'_>; COUNT],
) -> PathResult<[ContenderCost; COUNT]> {
    let mut costs = [ContenderCost { best: Duration::MAX, processor: Duration::ZERO }; COUNT];
    for _ in 0..ROUNDS {
        for (cost, turn) in costs.iter_mut().zip(&turns) {
            let began = Instant::now();
            let before = processor_time()?;
            turn()?;
            cost.best = cost.best.min(began.elapsed());
            cost.processor += processor_time()? - before;
        }
    }
    Ok(costs)
}

fn show(name: &str, cost: ContenderCost, plain: ContenderCost) {
    let rate = TURN_BYTES as f64 / 1e6 / cost.best.as_secs_f64();
    let ratio = plain.best.as_secs_f64() / cost.best.as_secs_f64();
    let processor = cost.processor.as_secs_f64() * GIB / (ROUNDS * TURN_BYTES) as f64;
    println!(
        "  {name:12} {rate:8.0} MB/s, {ratio:.2} of plain, {processor:.2} s/GiB of processors"
    );
}

/// What all threads of this process have had so far, in ticks of a hundredth of a second.
fn processor_time() -> PathResult<Duration> {
    let text = std::fs::read_to_string("/proc/self/stat")?;
    let after_name = text.rsplit(')').next().unwrap_or_default();
    let ticks = after_name.split_whitespace().skip(11).take(2).map(str::parse::<u64>);
    let ticks: u64 = ticks.sum::<Result<_, _>>()?;
    Ok(Duration::from_millis(ticks * 10))
}

/// From `two` to `one`, into a buffer that is used again or into memory for all of it.
fn plain(one: &PathNode, two: &PathNode, body: &Arc<Vec<u8>>, is_kept: bool) -> PathResult<()> {
    let guard = one.runtime.enter();
    let (mut near, far) = UnixStream::pair()?;
    drop(guard);
    let far = far.into_std()?;
    let body = Arc::clone(body);
    let sending = two.runtime.spawn(async move {
        let mut far = UnixStream::from_std(far)?;
        for piece in body.chunks(PLAIN_BYTES) {
            far.write_all(piece).await?;
        }
        Ok::<(), std::io::Error>(())
    });
    let receiving = one.runtime.spawn(async move {
        let mut buffer = vec![0; if is_kept { TURN_BYTES } else { PLAIN_BYTES }];
        for piece in 0..TURN_BYTES / PLAIN_BYTES {
            let start = if is_kept { piece * PLAIN_BYTES } else { 0 };
            near.read_exact(&mut buffer[start..start + PLAIN_BYTES]).await?;
        }
        Ok::<_, std::io::Error>(buffer)
    });
    one.runtime.block_on(receiving)??;
    Ok(two.runtime.block_on(sending)??)
}

/// What verification costs at one end: chunks of a body, on one thread.
fn checksum(body: &[u8]) -> PathResult<()> {
    body.chunks(CHUNK_BYTES).for_each(|chunk| {
        std::hint::black_box(crc32fast::hash(chunk));
    });
    Ok(())
}

fn node(authority: &ClusterAuthority, id: u64, folder: Option<&Path>) -> PathResult<PathNode> {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let bind: SocketAddr = "127.0.0.1:0".parse()?;
    let setup = TransportSetup {
        credentials: authority.credentials(PeerRole::Worker, NodeId(id), UnixSeconds::now())?,
        bind,
        local_folder: folder.map(Path::to_owned),
        start: ProcessStart { boot: 1, life: id },
        limits: TransportLimits::default(),
    };
    let (transport, events) = runtime.block_on(Transport::bind(setup))?;
    Ok(PathNode { runtime, transport, events })
}

fn up(node: &mut PathNode) -> PathResult<String> {
    let event = node.runtime.block_on(node.events.next());
    let Some(TransportEvent::Up { path, .. }) = event else {
        return Err(format!("expected a peer, got {event:?}").into());
    };
    Ok(format!("{path:?}"))
}

/// A piece of floats that lie together.
struct FloatSlice {
    floats: Arc<Vec<f32>>,
    start: usize,
}

impl FrameBody for FloatSlice {
    fn parts(&self) -> Vec<&[f32]> {
        vec![&self.floats[self.start..self.start + FRAME_FLOATS]]
    }
}

/// From `two` to `one`, each piece once.
fn frames(one: &PathNode, two: &PathNode, floats: &Arc<Vec<f32>>) -> PathResult<()> {
    let mut rules = FrameRules::new();
    rules.allow(NodeId(2), CLASS, vec![FRAME_FLOATS])?;
    one.transport.set_frame_rules(rules);
    let (sender, received) = mpsc::channel();
    one.transport.set_frame_sink(Box::new(move |frame| {
        // The main thread counts; when it has ended, the count is not needed.
        let _ = sender.send(frame.parts.len());
    }));
    let outlet = two.transport.frame_sender();
    let mut starts = (0..TURN_BYTES / 4).step_by(FRAME_FLOATS).peekable();
    let mut arrived = 0;
    while arrived < FRAMES {
        while let Some(&start) = starts.peek() {
            let body = Arc::new(FloatSlice { floats: Arc::clone(floats), start });
            let frame = OutgoingFrame::new(CLASS, Vec::new(), body)?;
            if !matches!(outlet.send(NodeId(1), frame), SendOutcome::Queued) {
                break;
            }
            starts.next();
        }
        received.recv_timeout(WAIT)?;
        arrived += 1;
    }
    Ok(())
}

/// Takes chunks as a layer does that has its memory already.
struct DiscardSink;

impl ChunkSink for DiscardSink {
    fn write(&mut self, _: u64, _: &[u8]) -> std::io::Result<()> {
        Ok(())
    }
}

fn bodies(one: &PathNode, two: &PathNode, body: &Arc<Vec<u8>>) -> PathResult<()> {
    one.runtime.block_on(one.transport.fetch_bulk_into(serve(two, body), DiscardSink))?;
    Ok(())
}

/// Into one vector, which grows.
fn kept_bodies(one: &PathNode, two: &PathNode, body: &Arc<Vec<u8>>) -> PathResult<()> {
    one.runtime.block_on(one.transport.fetch_bulk_into(serve(two, body), MemorySink::default()))?;
    Ok(())
}

fn serve(holder: &PathNode, body: &Arc<Vec<u8>>) -> BulkFetch {
    let body: Arc<dyn BulkBody> = Arc::<Vec<u8>>::clone(body);
    holder.transport.set_bulk_source(Box::new(move |_, _| Some(Arc::clone(&body))));
    let holders = vec![NodeId(2)];
    let key = b"body".to_vec();
    BulkFetch { holders, key, length: TURN_BYTES as u64, progress: None }
}

/// Sends back every control message, for as long as the other end is there.
fn echo_back(node: PathNode) {
    let PathNode { runtime, transport, mut events } = node;
    std::thread::spawn(move || {
        while let Some(event) = runtime.block_on(events.next()) {
            if let TransportEvent::Control { from, bytes } = event {
                transport.send(from.node, bytes);
            } else if let TransportEvent::Down { .. } = event {
                return;
            }
        }
    });
}

fn round_trip(one: &mut PathNode) -> PathResult<f64> {
    let began = Instant::now();
    for _ in 0..ECHOES {
        one.transport.send(NodeId(2), Bytes::from_static(b"\x01ping"));
        let event = one.runtime.block_on(one.events.next());
        if !matches!(event, Some(TransportEvent::Control { .. })) {
            return Err(format!("expected a message, got {event:?}").into());
        }
    }
    Ok(began.elapsed().as_secs_f64() * 1e6 / ECHOES as f64)
}
