//! What two processes of one machine get through the whole transport, on each road.
//!
//! ```text
//! cargo run --release -p zbelastic-transport --example roads
//! ```
//!
//! Both ends are in this process, each on a runtime of its own: frames and bodies a second, and the
//! round trip of a short control message.

use std::error::Error;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::runtime::{Builder, Runtime};
use zbelastic_transport::identity::{ClusterAuthority, UnixSeconds};
use zbelastic_transport::{
    BulkBody, BulkFetch, EventQueue, FrameClass, FrameRules, Limits, OutgoingFrame, PeerRole,
    ProcessStart, SendOutcome, Transport, TransportEvent, TransportSetup,
};
use zbelastic_types::{ClusterId, NodeId};

const FRAMES: usize = 256;
/// 4 MiB: a microbatch of 1024 tokens of 1024 floats.
const FRAME_FLOATS: usize = 1 << 20;
const BODY_BYTES: usize = 512 << 20;
const ECHOES: usize = 2000;
const CLASS: FrameClass = FrameClass(1);
const WAIT: Duration = Duration::from_secs(60);

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

struct Node {
    runtime: Runtime,
    transport: Transport,
    events: EventQueue,
}

fn main() -> Outcome<()> {
    let folder = tempfile::tempdir()?;
    for same_host in [false, true] {
        let place = |name: &str| same_host.then(|| folder.path().join(name));
        let authority = ClusterAuthority::create(ClusterId(1), UnixSeconds::now())?;
        let mut one = node(&authority, 1, place("one").as_deref())?;
        let mut two = node(&authority, 2, place("two").as_deref())?;
        let address = two.transport.local_addr();
        one.transport.know(NodeId(2), PeerRole::Worker, vec![address]);
        let road = up(&mut one)?;
        up(&mut two)?;
        println!("{road}");
        let frames = frames(&one, &two)?;
        println!("  frames    {:8.0} MB/s", megabytes(FRAMES * FRAME_FLOATS * 4, frames));
        println!("  bodies    {:8.0} MB/s", megabytes(BODY_BYTES, bodies(&one, &two)?));
        echo_back(two);
        println!("  messages  {:8.1} us there and back", round_trip(&mut one)?);
    }
    Ok(())
}

fn node(authority: &ClusterAuthority, id: u64, folder: Option<&Path>) -> Outcome<Node> {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let bind: SocketAddr = "127.0.0.1:0".parse()?;
    let setup = TransportSetup {
        credentials: authority.credentials(PeerRole::Worker, NodeId(id), UnixSeconds::now())?,
        bind,
        local_folder: folder.map(Path::to_owned),
        start: ProcessStart { boot: 1, life: id },
        limits: Limits::default(),
    };
    let (transport, events) = runtime.block_on(Transport::bind(setup))?;
    Ok(Node { runtime, transport, events })
}

fn up(node: &mut Node) -> Outcome<String> {
    let event = node.runtime.block_on(node.events.next());
    let Some(TransportEvent::Up { road, .. }) = event else {
        return Err(format!("expected a peer, got {event:?}").into());
    };
    Ok(format!("{road:?}"))
}

fn megabytes(bytes: usize, took: Duration) -> f64 {
    bytes as f64 / 1e6 / took.as_secs_f64()
}

fn frames(one: &Node, two: &Node) -> Outcome<Duration> {
    let mut rules = FrameRules::new();
    rules.allow(NodeId(1), CLASS, vec![FRAME_FLOATS])?;
    two.transport.expect(rules);
    let (sender, received) = mpsc::channel();
    two.transport.set_frame_sink(Box::new(move |frame| {
        // The main thread counts; when it has gone, nobody does.
        let _ = sender.send(frame.parts.len());
    }));
    let frame = OutgoingFrame::new(CLASS, Vec::new(), Arc::new(vec![vec![1.0; FRAME_FLOATS]]))?;
    let began = Instant::now();
    let (mut sent, mut arrived) = (0, 0);
    let outlet = one.transport.frame_sender();
    while arrived < FRAMES {
        while sent < FRAMES && matches!(outlet.send(NodeId(2), frame.clone()), SendOutcome::Queued)
        {
            sent += 1;
        }
        received.recv_timeout(WAIT)?;
        arrived += 1;
    }
    Ok(began.elapsed())
}

fn bodies(one: &Node, two: &Node) -> Outcome<Duration> {
    let body: Arc<dyn BulkBody> = Arc::new(vec![7_u8; BODY_BYTES]);
    two.transport.serve_bulk(Box::new(move |_, _| Some(Arc::clone(&body))));
    let fetch = BulkFetch {
        holders: vec![NodeId(2)],
        key: b"body".to_vec(),
        length: BODY_BYTES as u64,
        progress: None,
    };
    let began = Instant::now();
    one.runtime.block_on(one.transport.fetch_bulk(fetch))?;
    Ok(began.elapsed())
}

/// Sends back every control message, for as long as the other end is there.
fn echo_back(node: Node) {
    let Node { runtime, transport, mut events } = node;
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

fn round_trip(one: &mut Node) -> Outcome<f64> {
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
