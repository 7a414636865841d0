//! Measures the page against its goals: what its server costs with ten pages open, and how it does in
//! headless Chromium with a thousand simulated nodes and an hour of steps.
//!
//! ```text
//! cargo run --release -p zbelastic-ui --example page_measures -- [NODES]
//! cargo run --release -p zbelastic-ui --example page_measures -- http://127.0.0.1:PORT/
//! ```
//!
//! With the address of a page it is looked at for a minute, and how long each event took until it was drawn is
//! printed: by the clock of the cluster, which runs on this machine.
//!
//! Chromium and chromedriver are Debian's `chromium` and `chromium-driver`; without them their rows are
//! left out.

#[expect(dead_code, reason = "the tests of the page use more of it")]
#[path = "../../cli/tests/page/browser.rs"]
mod browser;
#[path = "../tests/common/fleet.rs"]
mod fleet;

use std::error::Error;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::runtime::Builder;
use zbelastic_api::{ClusterEvent, EventKind};
use zbelastic_ui::{AccessPolicy, CONNECTIONS_MAX, PageObserver, UiServer, UiSettings};
use zbelastic_view::{LANE_STEPS_KEPT, Observation, RunCosts};

const VIEWERS: usize = 10;
/// A step of the simulated run, and how long each row is measured.
const STEP: Duration = Duration::from_millis(200);
const WINDOW: Duration = Duration::from_secs(15);
/// How long the page of a real cluster is looked at.
const LOOK: Duration = Duration::from_secs(60);
/// Steps of an hour.
const HOUR_STEPS: u64 = 3600 * 5;
/// Microbatches of a step in the simulated lanes, which have a stage a node.
const MICROBATCHES: u64 = 8;
/// Connections that are refused, one after the other.
const REFUSED: usize = 10_000;
/// The names of the server's threads begin so, and so their processor time is found.
const THREAD: &str = "page-server";

fn step(number: u64) -> ClusterEvent {
    let kind = EventKind::Step {
        step: number,
        step_count: 10 * HOUR_STEPS,
        loss: Some(2.0 + 6.0 / (1.0 + number as f64 / 500.0)),
        gnorm: Some(0.5),
        verdict: if number.is_multiple_of(40) { "clip" } else { "keep" }.to_owned(),
        clip: Some(1.0),
        lr: 1e-3,
        ms: 200.0,
        tokens_per_s: 80_000.0,
        attempts: 1,
        bubble: Some(0.05),
        bubble_planned: Some(0.04),
        causes: None,
        generation: 1,
        stages: 1,
        eta_s: Some(1.0),
    };
    ClusterEvent::new(number, 1_000_000 + number * 200, kind)
}

/// Sends what a cluster would answer, until it is over.
fn feed(observer: PageObserver, nodes: u64, is_over: Arc<AtomicBool>) {
    let mut number = HOUR_STEPS + 1;
    while !is_over.load(Ordering::Relaxed) {
        let mut sent = observer.send(Observation::Events(vec![step(number)]));
        if number.is_multiple_of(5) {
            sent &= observer.send(Observation::Status(Box::new(fleet::status(nodes))));
        }
        if number.is_multiple_of(25) {
            sent &= observer.send(Observation::Trace(fleet::trace(number, nodes, MICROBATCHES)));
        }
        if !sent {
            return;
        }
        number += 1;
        thread::sleep(STEP);
    }
}

/// Reads a page's stream, and counts its bytes.
fn view(address: SocketAddr, bytes: &AtomicU64, is_over: &AtomicBool) -> std::io::Result<()> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    stream.write_all(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
    let mut piece = vec![0; 1 << 20];
    while !is_over.load(Ordering::Relaxed) {
        match stream.read(&mut piece) {
            Ok(0) => return Ok(()),
            Ok(length) => drop(bytes.fetch_add(length as u64, Ordering::Relaxed)),
            // Nothing came for a second.
            Err(_) => {}
        }
    }
    Ok(())
}

/// Processor time of the server's threads.
fn server_time() -> Duration {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().filter_map(Result::ok);
    let times = tasks.filter_map(|task| {
        let name = fs::read_to_string(task.path().join("comm")).ok()?;
        let times = fs::read_to_string(task.path().join("schedstat")).ok()?;
        let ran: u64 = times.split(' ').next()?.parse().ok()?;
        name.starts_with(THREAD).then_some(ran)
    });
    Duration::from_nanos(times.sum())
}

struct Served {
    server: UiServer,
    is_over: Arc<AtomicBool>,
}

fn serve(nodes: u64) -> Result<Served, Box<dyn Error>> {
    let mut runtime = Builder::new_multi_thread();
    runtime.worker_threads(1).thread_name(THREAD).enable_all();
    let address = SocketAddr::from(([127, 0, 0, 1], 0));
    let settings =
        UiSettings { address, policy: AccessPolicy::Loopback, costs: RunCosts::default() };
    let server = UiServer::start(settings, runtime.build()?)?;
    let is_over = Arc::new(AtomicBool::new(false));
    let observer = server.observer();
    // An hour that was observed before.
    for number in 1..=HOUR_STEPS {
        if !observer.send(Observation::Events(vec![step(number)])) {
            return Err("the server ended".into());
        }
    }
    for number in 1..=LANE_STEPS_KEPT as u64 {
        if !observer.send(Observation::Trace(fleet::trace(number, nodes, MICROBATCHES))) {
            return Err("the server ended".into());
        }
    }
    let seen = Arc::clone(&is_over);
    thread::spawn(move || feed(observer, nodes, seen));
    Ok(Served { server, is_over })
}

/// The share of a step that the server's threads compute, with ten pages.
fn cost(nodes: u64) -> Result<(), Box<dyn Error>> {
    let Served { server, is_over } = serve(nodes)?;
    let bytes = Arc::new(AtomicU64::new(0));
    for _ in 0..VIEWERS {
        let address = server.address();
        let bytes = Arc::clone(&bytes);
        let seen = Arc::clone(&is_over);
        thread::spawn(move || view(address, &bytes, &seen));
    }
    // Snapshots are sent once.
    thread::sleep(Duration::from_secs(3));
    let before = (server_time(), bytes.load(Ordering::Relaxed), Instant::now());
    thread::sleep(WINDOW);
    let share = (server_time() - before.0).as_secs_f64() / before.2.elapsed().as_secs_f64();
    let rate = (bytes.load(Ordering::Relaxed) - before.1) as f64 / WINDOW.as_secs_f64() / 1e6;
    println!("{nodes:5} nodes, {VIEWERS} pages: {:.2} % of a core, {rate:.2} MB/s", share * 100.0);
    is_over.store(true, Ordering::Relaxed);
    Ok(())
}

fn refusals() -> Result<(), Box<dyn Error>> {
    let Served { server, is_over } = serve(8)?;
    let mut open = Vec::new();
    for _ in 0..CONNECTIONS_MAX {
        let mut stream = TcpStream::connect(server.address())?;
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
        stream.read_exact(&mut [0; 16])?;
        open.push(stream);
    }
    let began = Instant::now();
    let mut polite = 0;
    for _ in 0..REFUSED {
        let mut answer = String::new();
        let read = TcpStream::connect(server.address())?.read_to_string(&mut answer);
        polite += usize::from(read.is_ok() && answer.starts_with("HTTP/1.1 503"));
    }
    println!("{polite} of {REFUSED} connections too many answered 503 in {:.1?}", began.elapsed());
    drop(open);
    let mut stream = TcpStream::connect(server.address())?;
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    println!("and then {}", answer.lines().next().unwrap_or("nothing"));
    is_over.store(true, Ordering::Relaxed);
    Ok(())
}

fn in_browser(nodes: u64) -> Result<(), Box<dyn Error>> {
    let Some(browser) = browser::Browser::start() else { return Ok(()) };
    let Served { server, is_over } = serve(nodes)?;
    let address = format!("http://{}/", server.address());
    browser.open(&address);
    browser.wait("the nodes are there", "return state.status !== null");
    browser.wait("lanes are drawn", "return state.lanes.length > 1");
    let paint = browser.run(
        "return performance.getEntriesByName('first-contentful-paint').map(entry => entry.startTime)[0]",
    );
    let weight = browser.run(
        "return performance.getEntriesByType('resource').filter(entry => !entry.name.endsWith('/events'))\
         .reduce((sum, entry) => sum + entry.encodedBodySize, 0) + \
         performance.getEntriesByType('navigation')[0].encodedBodySize",
    );
    println!("first paint {paint} ms, {weight} bytes of page, scripts and styles");
    browser.run(
        "window.frames_seen = 0; const count = () => { window.frames_seen += 1; requestAnimationFrame(count); }; \
         requestAnimationFrame(count); return 0",
    );
    let before = browser.run("return window.frames_seen").as_f64().unwrap_or(0.0);
    let began = Instant::now();
    thread::sleep(WINDOW);
    let frames = browser.run("return window.frames_seen").as_f64().unwrap_or(0.0) - before;
    let rate = frames / began.elapsed().as_secs_f64();
    println!("{nodes} nodes, {HOUR_STEPS} steps, live: {rate:.0} frames a second");
    let drawn = browser.run(
        "return `${document.querySelectorAll('#nodes tr').length} rows of nodes, ${lanes.drawn} operations of \
         stages, ${state.lanes.length} steps of lanes beside ${new Set(state.lanes.map(one => one.planned)).size} plan`",
    );
    println!("drawn: {}", drawn.as_str().unwrap_or_default());
    browser.chrome("HeapProfiler.enable", &json!({}));
    browser.chrome("HeapProfiler.collectGarbage", &json!({}));
    let heap = browser.chrome("Runtime.getHeapUsage", &json!({}));
    let [objects, arrays, page] = ["usedSize", "backingStorageSize", "embedderHeapUsedSize"]
        .map(|part| heap[part].as_f64().unwrap_or(f64::NAN) / 1e6);
    println!(
        "after an hour of steps {:.1} MB: {objects:.1} of JavaScript's objects, {arrays:.1} of its arrays, \
         {page:.1} of the page's elements",
        objects + arrays + page
    );
    is_over.store(true, Ordering::Relaxed);
    Ok(())
}

/// How long events of a real cluster take from when they are recorded until the page has drawn them.
fn delays(address: &str) -> Result<(), Box<dyn Error>> {
    let browser = browser::Browser::start().ok_or("there is no Chromium")?;
    browser.open(address);
    browser.wait("the run is there", "return state.steps.step.length > 0");
    browser.run(
        "window.drawn = []; const seen = new WeakSet(state.marks); let last = state.steps.step.at(-1); \
         setInterval(() => { const fresh = state.marks.filter(mark => !seen.has(mark)); \
         fresh.forEach(mark => seen.add(mark)); \
         const { step, at_ms, verdicts } = state.steps; \
         step.forEach((number, at) => { if (number > last && verdicts[at] === 'c') fresh.push({ kind: 'clip', at_ms: at_ms[at] }); }); \
         last = step.at(-1) ?? 0; \
         if (!fresh.length) return; \
         requestAnimationFrame(() => requestAnimationFrame(() => { const now = Date.now(); \
         for (const { kind, at_ms } of fresh) window.drawn.push([kind, at_ms, now - at_ms]); })); }, 10); return 0",
    );
    thread::sleep(LOOK);
    let drawn = browser.run("return window.drawn");
    println!("event        recorded at      drawn after");
    for mark in drawn.as_array().into_iter().flatten() {
        let kind = mark[0].as_str().unwrap_or_default();
        println!("{kind:12} {} {:>8} ms", mark[1], mark[2].to_string());
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let argument = std::env::args().nth(1);
    if let Some(address) = argument.as_deref().filter(|given| given.starts_with("http://")) {
        return delays(address);
    }
    let nodes = argument.map_or(Ok(1000), |nodes| nodes.parse())?;
    cost(8)?;
    cost(nodes)?;
    refusals()?;
    in_browser(nodes)
}
