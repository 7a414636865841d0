//! The thread of the proxy: receives datagrams, passes them to their link, and sends them when it
//! is time.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixDatagram;
use std::sync::mpsc::{Receiver, SyncSender};
use std::time::{Duration, Instant};

use super::super::link_conditions::{LinkConditions, ProxyLink};
use super::super::system::{wait_readable, widen};
use super::{LinkEndpoints, LinkSelector, NetworkSite, ProxyCounts, ProxyRequest};

/// Sources that listeners keep a socket for, all listeners together. The one that was silent
/// longest is evicted; a datagram that it sends later opens a new one.
const FLOWS_MAX: usize = 512;
/// Most datagrams in flight.
const PENDING_MAX: usize = 65_536;
/// Most bytes of datagrams in flight.
const PENDING_BYTES_MAX: usize = 64 << 20;
/// Datagrams of a link that are kept to be sent again: the oldest is dropped first.
const RECORDED_MAX: usize = 256;
/// Datagrams read from one socket before others have their turn.
const BURST_MAX: usize = 64;
/// No datagram is longer.
const DATAGRAM_BYTES_MAX: usize = 65_536;
/// The bytes that each buffer of the proxy's sockets may hold, if the system allows it.
const SOCKET_BYTES: u32 = 4 << 20;
/// How long it waits if no datagram is in flight.
const IDLE: Duration = Duration::from_secs(3600);

/// Where a node's datagrams arrive.
struct ProxyListener {
    site: NetworkSite,
    socket: UdpSocket,
    target: SocketAddr,
}

/// One source that sends to one listener.
struct ProxyFlow {
    listener: usize,
    source: SocketAddr,
    link: LinkEndpoints,
    /// The target sees the source under this socket's address, and answers to it.
    back: UdpSocket,
    used: u64,
}

/// The direction of a datagram through a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FlowDirection {
    /// From the source to the target.
    Inward,
    /// From the target to the source.
    Outward,
}

/// A datagram in flight.
#[derive(PartialEq, Eq)]
struct PendingDatagram {
    at_us: u64,
    /// Of two for the same moment, the one that came first.
    number: u64,
    flow: u64,
    direction: FlowDirection,
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

/// The datagrams that were kept of a link.
type LinkRecording = VecDeque<(u64, FlowDirection, Vec<u8>)>;

pub(super) struct ProxyRelay {
    seed: u64,
    inbox: Receiver<ProxyRequest>,
    done: SyncSender<()>,
    wake_receiver: UnixDatagram,
    began: Instant,
    listeners: Vec<ProxyListener>,
    flows: BTreeMap<u64, ProxyFlow>,
    /// The flow of a source at a listener.
    by_source: BTreeMap<(usize, SocketAddr), u64>,
    links: BTreeMap<LinkEndpoints, ProxyLink>,
    /// Conditions for links that come later, in the order in which they were set.
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
    Listener(usize),
    Flow(u64),
}

impl ProxyRelay {
    pub(super) fn new(
        seed: u64,
        inbox: Receiver<ProxyRequest>,
        done: SyncSender<()>,
        wake_receiver: UnixDatagram,
    ) -> Self {
        Self {
            seed,
            inbox,
            done,
            wake_receiver,
            began: Instant::now(),
            listeners: Vec::new(),
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
                    ReadableSocket::Listener(listener) => self.read_listener(listener, &mut buffer),
                    ReadableSocket::Flow(flow) => self.read_flow(flow, &mut buffer),
                }
            }
        }
    }

    fn readables(&self) -> (Vec<BorrowedFd<'_>>, Vec<ReadableSocket>) {
        let listeners = self.listeners.iter().enumerate();
        let listeners = listeners
            .map(|(place, listener)| (listener.socket.as_fd(), ReadableSocket::Listener(place)));
        let flows =
            self.flows.iter().map(|(id, flow)| (flow.back.as_fd(), ReadableSocket::Flow(*id)));
        let wake_receiver = (self.wake_receiver.as_fd(), ReadableSocket::Wake);
        std::iter::once(wake_receiver).chain(listeners).chain(flows).unzip()
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
                ProxyRequest::Add { site, listener, target } => {
                    widen(&listener, SOCKET_BYTES);
                    self.listeners.push(ProxyListener { site, socket: listener, target });
                }
                ProxyRequest::Set { links, conditions } => self.set(links, conditions),
                ProxyRequest::Record { is_on } => self.recordings = is_on.then(BTreeMap::new),
                ProxyRequest::Replay { links, count } => self.replay(links, count),
                ProxyRequest::Count { answer } => {
                    let links =
                        self.links.iter().map(|(endpoints, link)| (*endpoints, link.counts()));
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

    fn set(&mut self, links: LinkSelector, conditions: LinkConditions) {
        // A condition that came before and is about no other links has no effect any more.
        self.conditions.retain(|(before, _)| links != LinkSelector::All && *before != links);
        self.conditions.push((links, conditions));
        let touched = self.links.iter_mut().filter(|(endpoints, _)| links.contains(**endpoints));
        touched.for_each(|(_, link)| link.set(conditions));
    }

    fn link(&mut self, endpoints: LinkEndpoints) -> &mut ProxyLink {
        let Self { links, conditions, seed, .. } = self;
        links.entry(endpoints).or_insert_with(|| {
            let conditions = conditions.iter().rev().find(|(links, _)| links.contains(endpoints));
            let conditions =
                conditions.map_or(LinkConditions::CLEAR, |(_, conditions)| *conditions);
            ProxyLink::new(*seed, endpoints.from.0, endpoints.to.0, conditions)
        })
    }

    fn read_listener(&mut self, listener: usize, buffer: &mut [u8]) {
        for _ in 0..BURST_MAX {
            let Ok((length, source)) = self.listeners[listener].socket.recv_from(buffer) else {
                return;
            };
            match self.flow(listener, source) {
                Ok(flow) => self.accept_datagram(flow, FlowDirection::Inward, &buffer[..length]),
                Err(_) => self.counts.refused += 1,
            }
        }
    }

    fn read_flow(&mut self, id: u64, buffer: &mut [u8]) {
        for _ in 0..BURST_MAX {
            // It may have been evicted since it was found readable.
            let Some(flow) = self.flows.get(&id) else { return };
            let Ok((length, source)) = flow.back.recv_from(buffer) else { return };
            if source == self.listeners[flow.listener].target {
                self.accept_datagram(id, FlowDirection::Outward, &buffer[..length]);
            }
        }
    }

    /// The flow of a source at a listener.
    fn flow(&mut self, listener: usize, source: SocketAddr) -> io::Result<u64> {
        if let Some(id) = self.by_source.get(&(listener, source)) {
            return Ok(*id);
        }
        if self.flows.len() >= FLOWS_MAX {
            self.evict_idle_flow();
        }
        let back = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        back.set_nonblocking(true)?;
        widen(&back, SOCKET_BYTES);
        let sender = self.listeners.iter().find(|listener| listener.target == source);
        let from = sender.map_or(NetworkSite::OUTSIDE, |listener| listener.site);
        let endpoints = LinkEndpoints { from, to: self.listeners[listener].site };
        self.numbers += 1;
        let id = self.numbers;
        self.flows.insert(id, ProxyFlow { listener, source, link: endpoints, back, used: id });
        self.by_source.insert((listener, source), id);
        Ok(id)
    }

    fn evict_idle_flow(&mut self) {
        let silent = self.flows.iter().min_by_key(|(_, flow)| flow.used).map(|(id, _)| *id);
        if let Some(flow) = silent.and_then(|id| self.flows.remove(&id)) {
            self.by_source.remove(&(flow.listener, flow.source));
        }
    }

    fn accept_datagram(&mut self, id: u64, direction: FlowDirection, bytes: &[u8]) {
        self.numbers += 1;
        let number = self.numbers;
        let Some(flow) = self.flows.get_mut(&id) else { return };
        flow.used = number;
        let endpoints = direction.link_from(flow.link);
        self.record(endpoints, id, direction, bytes);
        let now_us = self.now_us();
        for delivery in self.link(endpoints).send(now_us, bytes.len()).into_iter().flatten() {
            let mut bytes = bytes.to_vec();
            if let Some(bit) = delivery.flipped_bit {
                let place = usize::try_from(bit / 8).expect("within a datagram");
                bytes[place] ^= 1 << (bit % 8);
            }
            self.schedule(
                PendingDatagram { at_us: delivery.at_us, number, flow: id, direction, bytes },
                now_us,
            );
        }
    }

    fn record(
        &mut self,
        endpoints: LinkEndpoints,
        flow: u64,
        direction: FlowDirection,
        bytes: &[u8],
    ) {
        let Some(recordings) = &mut self.recordings else { return };
        let recording = recordings.entry(endpoints).or_default();
        if recording.len() >= RECORDED_MAX {
            recording.pop_front();
        }
        recording.push_back((flow, direction, bytes.to_vec()));
    }

    fn replay(&mut self, links: LinkSelector, count: usize) {
        let mut again = Vec::new();
        for (endpoints, recording) in self.recordings.iter().flatten() {
            if links.contains(*endpoints) {
                again.extend(recording.iter().take(count).cloned());
            }
        }
        for (flow, direction, bytes) in again {
            self.counts.replayed += 1;
            self.deliver(flow, direction, &bytes);
        }
    }

    fn schedule(&mut self, pending: PendingDatagram, now_us: u64) {
        if pending.at_us <= now_us {
            self.deliver(pending.flow, pending.direction, &pending.bytes);
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

    /// Delivers the datagrams that are due.
    fn deliver_due(&mut self) {
        let now_us = self.now_us();
        while self.pending.peek().is_some_and(|Reverse(next)| next.at_us <= now_us) {
            let Some(Reverse(next)) = self.pending.pop() else { return };
            self.pending_bytes -= next.bytes.len();
            self.deliver(next.flow, next.direction, &next.bytes);
        }
    }

    fn deliver(&mut self, id: u64, direction: FlowDirection, bytes: &[u8]) {
        let Some(flow) = self.flows.get(&id) else { return };
        let listener = &self.listeners[flow.listener];
        let sent = match direction {
            FlowDirection::Inward => flow.back.send_to(bytes, listener.target),
            FlowDirection::Outward => listener.socket.send_to(bytes, flow.source),
        };
        self.counts.refused += u64::from(sent.is_err());
    }
}
