//! What the lanes of one host cost, beside a raw TCP stream in the same run.
//!
//! ```text
//! cargo run --release -p zbelastic-transport --example lanes
//! ```
//!
//! Both ends are in this process, each on a runtime of its own. A transfer ends in a new vector,
//! so every contender pays for its pages; the best of a few rounds counts, because what else runs
//! on the machine only takes away.

use std::error::Error;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use zbelastic_identity::{PeerIdentity, PeerRole};
use zbelastic_transport::bulk::{BulkBody, BulkFetch, fetch, serve};
use zbelastic_transport::frame::{
    FrameArrival, FrameClass, FrameReader, FrameRules, OutgoingFrame, PartPool, write_frame,
};
use zbelastic_transport::local::{LocalLane, LocalListener, dial};
use zbelastic_types::{ClusterId, NodeId};

const TRANSFER_BYTES: usize = 256 << 20;
const ROUNDS: usize = 5;
const ECHOES: usize = 2000;
/// One microbatch of 512 tokens of 768 floats.
const LARGE_FLOATS: usize = 512 * 768;

type LaneResult<T> = Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> LaneResult<()> {
    let bytes = content();
    let raw = measure(|| raw_tcp(&bytes))?;
    show("raw TCP stream", raw, raw);
    let folder = std::env::temp_dir().join(format!("zbelastic-lanes-{}", std::process::id()));
    let local = measure(|| same_host(&bytes, &folder.join("path")))?;
    show("bulk, same-host path", local, raw);
    for floats in [1, 1024, LARGE_FLOATS] {
        let once = echo(floats, &folder.join("echo"))?;
        println!("frame of {floats} floats there and back: {:.1} us", once.as_secs_f64() * 1e6);
    }
    Ok(std::fs::remove_dir_all(&folder)?)
}

/// The time that transfers took.
#[derive(Clone, Copy)]
struct TransferCost {
    best: Duration,
    /// Of all processors together, for one transfer.
    processor: Duration,
}

fn show(name: &str, cost: TransferCost, raw: TransferCost) {
    let rate = TRANSFER_BYTES as f64 / cost.best.as_secs_f64() / 1e9;
    let ratio = raw.best.as_secs_f64() / cost.best.as_secs_f64();
    let busy = cost.processor.as_secs_f64() / raw.processor.as_secs_f64();
    println!("{name}: {rate:.2} GB/s, {ratio:.2} of raw TCP, {busy:.2} times its processor time");
}

/// A transfer times itself, so that what is set up before and checked after does not count.
fn measure(mut transfer: impl FnMut() -> LaneResult<TransferCost>) -> LaneResult<TransferCost> {
    let rounds = (0..ROUNDS).map(|_| transfer()).collect::<LaneResult<Vec<_>>>()?;
    let best = rounds.iter().map(|round| round.best).min().expect("there are rounds");
    let processor: Duration = rounds.iter().map(|round| round.processor).sum();
    Ok(TransferCost { best, processor: processor / ROUNDS as u32 })
}

fn timed<T>(transfer: impl FnOnce() -> LaneResult<T>) -> LaneResult<(T, TransferCost)> {
    let began = Instant::now();
    let before = processor_time()?;
    let received = transfer()?;
    let best = began.elapsed();
    Ok((received, TransferCost { best, processor: processor_time()? - before }))
}

/// What all threads of this process have had so far, in ticks of a hundredth of a second.
fn processor_time() -> LaneResult<Duration> {
    let text = std::fs::read_to_string("/proc/self/stat")?;
    let after_name = text.rsplit(')').next().unwrap_or_default();
    let ticks = after_name.split_whitespace().skip(11).take(2).map(str::parse::<u64>);
    let ticks: u64 = ticks.sum::<Result<_, _>>()?;
    Ok(Duration::from_millis(ticks * 10))
}

/// Bytes that no part of the way could guess.
fn content() -> Arc<Vec<u8>> {
    let mut bytes = vec![0; TRANSFER_BYTES];
    blake3::Hasher::new().finalize_xof().fill(&mut bytes);
    Arc::new(bytes)
}

fn raw_tcp(bytes: &Arc<Vec<u8>>) -> LaneResult<TransferCost> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let sent = Arc::clone(bytes);
    let sender = thread::spawn(move || -> io::Result<()> {
        let (mut stream, _) = listener.accept()?;
        stream.write_all(&sent)
    });
    let (received, cost) = timed(|| {
        let mut received = vec![0; bytes.len()];
        TcpStream::connect(address)?.read_exact(&mut received)?;
        Ok(received)
    })?;
    sender.join().expect("the sender does not panic")?;
    assert!(received == **bytes, "what was sent arrived");
    Ok(cost)
}

fn same_host(bytes: &Arc<Vec<u8>>, folder: &Path) -> LaneResult<TransferCost> {
    let holder = Runtime::new()?;
    let fetcher = Runtime::new()?;
    let body: Arc<dyn BulkBody> = Arc::<Vec<u8>>::clone(bytes);
    let mut listener = holder.block_on(LocalListener::bind(folder, &std::env::temp_dir()))?;
    let admission = listener.admit(NodeId(2))?;
    let host = listener.host().clone();
    let offer = Arc::new(admission.offer().clone());
    holder.spawn(async move {
        loop {
            let (reader, writer) = listener.arrival().await.stream.into_split();
            let body = Arc::clone(&body);
            tokio::spawn(serve(reader, writer, move |_: &[u8]| Some(Arc::clone(&body))));
        }
    });
    bulk_over(bytes, &fetcher, move |_| {
        let offer = Arc::clone(&offer);
        let host = host.clone();
        async move {
            let stream = dial(&offer, &host, LocalLane::Bulk).await.map_err(io::Error::other)?;
            Ok(stream.into_split())
        }
    })
}

/// One transfer over the streams that `open` gives, whatever path they take.
fn bulk_over<O, F, R, W>(
    bytes: &Arc<Vec<u8>>,
    fetcher: &Runtime,
    open: O,
) -> LaneResult<TransferCost>
where
    O: Fn(NodeId) -> F,
    F: Future<Output = io::Result<(R, W)>> + Send + 'static,
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    let length = bytes.len() as u64;
    let request =
        BulkFetch { holders: vec![NodeId(1)], key: b"bench".to_vec(), length, progress: None };
    let (received, cost) = timed(|| Ok(fetcher.block_on(fetch(request, open))?))?;
    assert!(received == **bytes, "what was sent arrived");
    Ok(cost)
}

/// The mean time of a frame there and back.
fn echo(floats: usize, folder: &Path) -> LaneResult<Duration> {
    let echoer = Runtime::new()?;
    let caller = Runtime::new()?;
    let mut listener = echoer.block_on(LocalListener::bind(folder, &std::env::temp_dir()))?;
    let admission = listener.admit(NodeId(2))?;
    let host = listener.host().clone();
    let offer = admission.offer().clone();
    echoer.spawn(async move {
        let stream = listener.arrival().await.stream;
        return_frames(stream, floats).await
    });
    caller.block_on(async move {
        let stream = dial(&offer, &host, LocalLane::Tensor).await?;
        let (reader, mut writer) = stream.into_split();
        let (mut frames, _rules) = reader_of(reader, floats)?;
        let frame = frame_of(vec![0.5; floats])?;
        let began = Instant::now();
        for _ in 0..ECHOES {
            write_frame(&mut writer, &frame).await?;
            frames.read().await?;
        }
        Ok(began.elapsed() / ECHOES as u32)
    })
}

async fn return_frames(stream: UnixStream, floats: usize) -> LaneResult<()> {
    let (reader, mut writer) = stream.into_split();
    let (mut frames, _rules) = reader_of(reader, floats)?;
    while let Some(FrameArrival::Frame(mut frame)) = frames.read().await? {
        write_frame(&mut writer, &frame_of(frame.parts.remove(0).into_vec())?).await?;
    }
    Ok(())
}

type RuleSender = watch::Sender<Arc<FrameRules>>;

fn reader_of<R>(stream: R, floats: usize) -> LaneResult<(FrameReader<R>, RuleSender)>
where
    R: AsyncRead + Unpin,
{
    let node = NodeId(1);
    let mut rules = FrameRules::new();
    rules.allow(node, FrameClass(1), vec![floats])?;
    let (sender, rules) = watch::channel(Arc::new(rules));
    let from = PeerIdentity { cluster: ClusterId(1), role: PeerRole::Worker, node };
    Ok((FrameReader::new(stream, from, rules, PartPool::default()), sender))
}

fn frame_of(part: Vec<f32>) -> LaneResult<OutgoingFrame> {
    Ok(OutgoingFrame::new(FrameClass(1), vec![7; 64], Arc::new(vec![part]))?)
}
