//! The thread of the proxy: receives datagrams, passes them to their link, and sends them when it is time.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixDatagram;
use std::sync::mpsc::{Receiver, SyncSender};
use std::time::{Duration, Instant};

use super::super::link_conditions::{LinkConditions, ProxyLink};
use super::super::system::{wait_readable, widen};
use super::{LinkEndpoints, LinkSelector, NetworkSite, ProxyCounts, ProxyRequest};

/// Sources that each front keeps a socket for, all fronts together. The one that was silent longest
/// makes room; what it sends later gets a new one.
const FLOWS_MAX: usize = 512;
/// Datagrams that may be under way.
const PENDING_MAX: usize = 65_536;
/// Bytes that may be under way.
const PENDING_BYTES_MAX: usize = 64 << 20;
/// Datagrams of a link that are kept to be sent again: the oldest makes room.
const RECORDED_MAX: usize = 256;
/// Datagrams taken from one socket before others have their turn.
const BURST_MAX: usize = 64;
/// No datagram is longer.
const DATAGRAM_BYTES_MAX: usize = 65_536;
/// What the sockets of the proxy may hold, if the system allows it.
const SOCKET_BYTES: u32 = 4 << 20;
/// How long it waits if nothing is under way.
const IDLE: Duration = Duration::from_secs(3600);

/// Where a node's datagrams arrive.
struct ProxyListener {
    site: NetworkSite,
    socket: UdpSocket,
    target: SocketAddr,
}

/// One source that sends to one front.
struct ProxyFlow {
    front: usize,
    source: SocketAddr,
    link: LinkEndpoints,
    /// The target sees the source under this socket's address, and answers to it.
    back: UdpSocket,
    used: u64,
}

/// Which way through a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FlowDirection {
    /// From the source to the target.
    Inward,
    /// From the target to the source.
    Outward,
}

/// A datagram under way.
#[derive(PartialEq, Eq)]
struct PendingDatagram {
    at_us: u64,
    /// Of two for the same moment, the one that came first.
    number: u64,
    flow: u64,
    side: FlowDirection,
    bytes: Vec<u8>,
}

impl FlowDirection {
    fn link_from(self, inward: LinkEndpoints) -> LinkEndpoints {
        match self {
            Self::Inward => inward,
            Self::Outward => LinkEndpoints { from: inward.to, to: inward.from },
        }
    }
}

impl Ord for PendingDatagram {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at_us, self.number).cmp(&(other.at_us, other.number))
    }
}

impl PartialOrd for PendingDatagram {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// What was kept of a link.
type LinkRecording = VecDeque<(u64, FlowDirection, Vec<u8>)>;

pub(super) struct ProxyRelay {
    seed: u64,
    inbox: Receiver<ProxyRequest>,
    done: SyncSender<()>,
    wake_receiver: UnixDatagram,
    began: Instant,
    fronts: Vec<ProxyListener>,
    flows: BTreeMap<u64, ProxyFlow>,
    /// The flow of a source at a front.
    by_source: BTreeMap<(usize, SocketAddr), u64>,
    links: BTreeMap<LinkEndpoints, ProxyLink>,
    /// Weathers for links that come later, in the order in which they were set.
    conditions: Vec<(LinkSelector, LinkConditions)>,
    pending: BinaryHeap<Reverse<PendingDatagram>>,
    pending_bytes: usize,
    recordings: Option<BTreeMap<LinkEndpoints, LinkRecording>>,
    numbers: u64,
    counts: ProxyCounts,
}

/// A socket that can be read.
#[derive(Clone, Copy)]
enum ReadableSocket {
    Wake,
    Front(usize),
    Flow(u64),
}

impl ProxyRelay {
    pub(super) fn new(
        seed: u64,
        inbox: Receiver<ProxyRequest>,
        done: SyncSender<()>,
        ear: UnixDatagram,
    ) -> Self {
        Self {
            seed,
            inbox,
            done,
            wake_receiver: ear,
            began: Instant::now(),
            fronts: Vec::new(),
            flows: BTreeMap::new(),
            by_source: BTreeMap::new(),
            links: BTreeMap::new(),
            conditions: Vec::new(),
            pending: BinaryHeap::new(),
            pending_bytes: 0,
            recordings: None,
            numbers: 0,
            counts: ProxyCounts::default(),
        }
    }

    /// Works until it gets the request to stop.
    pub(super) fn run(mut self) {
        let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
        let mut ready = Vec::new();
        loop {
            let (sockets, meanings) = self.readables();
            if wait_readable(&sockets, self.until_next(), &mut ready).is_err() {
                return;
            }
            self.deliver_due();
            for place in &ready {
                match meanings[*place] {
                    ReadableSocket::Wake => {
                        if self.handle_requests(&mut buffer) {
                            return;
                        }
                    }
                    ReadableSocket::Front(front) => self.read_front(front, &mut buffer),
                    ReadableSocket::Flow(flow) => self.read_flow(flow, &mut buffer),
                }
            }
        }
    }

    fn readables(&self) -> (Vec<RawFd>, Vec<ReadableSocket>) {
        let fronts = self.fronts.iter().enumerate();
        let fronts =
            fronts.map(|(place, front)| (front.socket.as_raw_fd(), ReadableSocket::Front(place)));
        let flows =
            self.flows.iter().map(|(id, flow)| (flow.back.as_raw_fd(), ReadableSocket::Flow(*id)));
        let ear = (self.wake_receiver.as_raw_fd(), ReadableSocket::Wake);
        std::iter::once(ear).chain(fronts).chain(flows).unzip()
    }

    fn now_us(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_micros()).expect("less than five hundred millennia")
    }

    fn until_next(&self) -> Duration {
        let wait = |Reverse(next): &Reverse<PendingDatagram>| {
            Duration::from_micros(next.at_us.saturating_sub(self.now_us()))
        };
        self.pending.peek().map_or(IDLE, wait)
    }

    /// Carries out the requests; returns whether it is to stop.
    fn handle_requests(&mut self, buffer: &mut [u8]) -> bool {
        while self.wake_receiver.recv(buffer).is_ok() {}
        while let Ok(request) = self.inbox.try_recv() {
            match request {
                ProxyRequest::Add { site, front, target } => {
                    widen(front.as_raw_fd(), SOCKET_BYTES);
                    self.fronts.push(ProxyListener { site, socket: front, target });
                }
                ProxyRequest::Set { links, weather } => self.set(links, weather),
                ProxyRequest::Record { is_on } => self.recordings = is_on.then(BTreeMap::new),
                ProxyRequest::Replay { links, count } => self.replay(links, count),
                ProxyRequest::Count { answer } => {
                    let links = self.links.iter().map(|(way, link)| (*way, link.counts()));
                    let counts = ProxyCounts { links: links.collect(), ..self.counts.clone() };
                    // The handle may have gone.
                    let _ = answer.try_send(counts);
                }
                ProxyRequest::Stop => return true,
            }
            // The handle may have gone.
            let _ = self.done.try_send(());
        }
        false
    }

    fn set(&mut self, links: LinkSelector, weather: LinkConditions) {
        // What came before and is about no other links has no effect any more.
        self.conditions.retain(|(before, _)| links != LinkSelector::All && *before != links);
        self.conditions.push((links, weather));
        let touched = self.links.iter_mut().filter(|(way, _)| links.contains(**way));
        touched.for_each(|(_, link)| link.set(weather));
    }

    fn link(&mut self, way: LinkEndpoints) -> &mut ProxyLink {
        let Self { links, conditions: weathers, seed, .. } = self;
        links.entry(way).or_insert_with(|| {
            let weather = weathers.iter().rev().find(|(links, _)| links.contains(way));
            let weather = weather.map_or(LinkConditions::CLEAR, |(_, weather)| *weather);
            ProxyLink::new(*seed, way.from.0, way.to.0, weather)
        })
    }

    fn read_front(&mut self, front: usize, buffer: &mut [u8]) {
        for _ in 0..BURST_MAX {
            let Ok((length, source)) = self.fronts[front].socket.recv_from(buffer) else { return };
            match self.flow(front, source) {
                Ok(flow) => self.accept_datagram(flow, FlowDirection::Inward, &buffer[..length]),
                Err(_) => self.counts.refused += 1,
            }
        }
    }

    fn read_flow(&mut self, id: u64, buffer: &mut [u8]) {
        for _ in 0..BURST_MAX {
            // It may have made room for another since it was found readable.
            let Some(flow) = self.flows.get(&id) else { return };
            let Ok((length, source)) = flow.back.recv_from(buffer) else { return };
            if source == self.fronts[flow.front].target {
                self.accept_datagram(id, FlowDirection::Outward, &buffer[..length]);
            }
        }
    }

    /// The flow of a source at a front.
    fn flow(&mut self, front: usize, source: SocketAddr) -> io::Result<u64> {
        if let Some(id) = self.by_source.get(&(front, source)) {
            return Ok(*id);
        }
        if self.flows.len() >= FLOWS_MAX {
            self.evict_idle_flow();
        }
        let back = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        back.set_nonblocking(true)?;
        widen(back.as_raw_fd(), SOCKET_BYTES);
        let sender = self.fronts.iter().find(|front| front.target == source);
        let from = sender.map_or(NetworkSite::OUTSIDE, |front| front.site);
        let way = LinkEndpoints { from, to: self.fronts[front].site };
        self.numbers += 1;
        let id = self.numbers;
        self.flows.insert(id, ProxyFlow { front, source, link: way, back, used: id });
        self.by_source.insert((front, source), id);
        Ok(id)
    }

    fn evict_idle_flow(&mut self) {
        let silent = self.flows.iter().min_by_key(|(_, flow)| flow.used).map(|(id, _)| *id);
        if let Some(flow) = silent.and_then(|id| self.flows.remove(&id)) {
            self.by_source.remove(&(flow.front, flow.source));
        }
    }

    fn accept_datagram(&mut self, id: u64, side: FlowDirection, bytes: &[u8]) {
        self.numbers += 1;
        let number = self.numbers;
        let Some(flow) = self.flows.get_mut(&id) else { return };
        flow.used = number;
        let way = side.link_from(flow.link);
        self.record(way, id, side, bytes);
        let now_us = self.now_us();
        for delivery in self.link(way).send(now_us, bytes.len()).into_iter().flatten() {
            let mut bytes = bytes.to_vec();
            if let Some(bit) = delivery.flipped_bit {
                let place = usize::try_from(bit / 8).expect("within a datagram");
                bytes[place] ^= 1 << (bit % 8);
            }
            self.schedule(
                PendingDatagram { at_us: delivery.at_us, number, flow: id, side, bytes },
                now_us,
            );
        }
    }

    fn record(&mut self, way: LinkEndpoints, flow: u64, side: FlowDirection, bytes: &[u8]) {
        let Some(recordings) = &mut self.recordings else { return };
        let recording = recordings.entry(way).or_default();
        if recording.len() >= RECORDED_MAX {
            recording.pop_front();
        }
        recording.push_back((flow, side, bytes.to_vec()));
    }

    fn replay(&mut self, links: LinkSelector, count: usize) {
        let mut again = Vec::new();
        for (way, recording) in self.recordings.iter().flatten() {
            if links.contains(*way) {
                again.extend(recording.iter().take(count).cloned());
            }
        }
        for (flow, side, bytes) in again {
            self.counts.replayed += 1;
            self.deliver(flow, side, &bytes);
        }
    }

    fn schedule(&mut self, pending: PendingDatagram, now_us: u64) {
        if pending.at_us <= now_us {
            self.deliver(pending.flow, pending.side, &pending.bytes);
            return;
        }
        let bytes = pending.bytes.len();
        if self.pending.len() >= PENDING_MAX || self.pending_bytes + bytes > PENDING_BYTES_MAX {
            self.counts.overflowed += 1;
            return;
        }
        self.pending_bytes += bytes;
        self.pending.push(Reverse(pending));
    }

    /// Puts out whatever is due.
    fn deliver_due(&mut self) {
        let now_us = self.now_us();
        while self.pending.peek().is_some_and(|Reverse(next)| next.at_us <= now_us) {
            let Some(Reverse(next)) = self.pending.pop() else { return };
            self.pending_bytes -= next.bytes.len();
            self.deliver(next.flow, next.side, &next.bytes);
        }
    }

    fn deliver(&mut self, id: u64, side: FlowDirection, bytes: &[u8]) {
        let Some(flow) = self.flows.get(&id) else { return };
        let front = &self.fronts[flow.front];
        let sent = match side {
            FlowDirection::Inward => flow.back.send_to(bytes, front.target),
            FlowDirection::Outward => front.socket.send_to(bytes, flow.source),
        };
        self.counts.refused += u64::from(sent.is_err());
    }
}
