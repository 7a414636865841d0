//! A proxy for datagrams on this machine, with conditions for each link.
//!
//! A node binds its own port and advertises the proxy's. A datagram that is sent there comes out at
//! the node, and the node's answers go back the same way, so every path between two nodes leads
//! through here: no rights and no kernel module are needed. Each direction of each pair is a
//! [`ProxyLink`] with its own conditions.
//!
//! One thread does it ([`relay`]); requests of this handle go to it over a bounded queue. Queues
//! are bounded everywhere: a datagram that does not fit is lost and counted, as with any router.
//!
//! It knows a sender by the address that its datagrams come from, which is a node's bound one. A
//! sender that has no node's address, such as a command line, is [`NetworkSite::OUTSIDE`].
//!
//! [`ProxyLink`]: super::link_conditions::ProxyLink

mod relay;

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use serde::Serialize;

use self::relay::ProxyRelay;
use super::link_conditions::{LinkConditions, LinkCounts};

/// Requests that wait for the thread.
const REQUESTS_WAITING_MAX: usize = 256;

/// A place that datagrams come from and go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct NetworkSite(pub u32);

impl NetworkSite {
    /// The site of every sender that is no node.
    pub const OUTSIDE: Self = Self(u32::MAX);
}

impl fmt::Display for NetworkSite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::OUTSIDE { f.write_str("outside") } else { write!(f, "{}", self.0) }
    }
}

/// A direction of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct LinkEndpoints {
    /// The site that sends.
    pub from: NetworkSite,
    /// The site that receives.
    pub to: NetworkSite,
}

/// Which links something is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkSelector {
    /// All, and those that come.
    All,
    /// All to a site.
    To(NetworkSite),
    /// All from a site.
    From(NetworkSite),
    /// The link with these endpoints.
    One(LinkEndpoints),
}

impl LinkSelector {
    /// Whether this one is among them.
    #[must_use]
    pub fn contains(self, endpoints: LinkEndpoints) -> bool {
        match self {
            Self::All => true,
            Self::To(site) => endpoints.to == site,
            Self::From(site) => endpoints.from == site,
            Self::One(one) => one == endpoints,
        }
    }
}

/// The counts of the proxy so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ProxyCounts {
    /// Counts of each link.
    pub links: Vec<(LinkEndpoints, LinkCounts)>,
    /// Datagrams in flight that were dropped because there were too many.
    pub overflowed: u64,
    /// Datagrams that the system did not accept.
    pub refused: u64,
    /// Recorded datagrams that were sent again.
    pub replayed: u64,
}

impl ProxyCounts {
    /// Datagrams that one node sent to another, those that were lost included.
    #[must_use]
    pub fn sent(&self) -> u64 {
        let is_inner = |endpoints: &LinkEndpoints| {
            endpoints.from != NetworkSite::OUTSIDE && endpoints.to != NetworkSite::OUTSIDE
        };
        let inner = self.links.iter().filter(|(endpoints, _)| is_inner(endpoints));
        inner.map(|(_, counts)| counts.sent).sum()
    }
}

/// A request to the thread.
enum ProxyRequest {
    Add { site: NetworkSite, listener: UdpSocket, target: SocketAddr },
    Set { links: LinkSelector, conditions: LinkConditions },
    Record { is_on: bool },
    Replay { links: LinkSelector, count: usize },
    Count { answer: SyncSender<ProxyCounts> },
    Stop,
}

/// A running proxy. It ends when this is dropped.
#[derive(Debug)]
pub struct Proxy {
    requests: SyncSender<ProxyRequest>,
    /// The thread sends here when it has carried out the request.
    done: Receiver<()>,
    wake_sender: UnixDatagram,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// A proxy with clear conditions on all its links, and with draws that follow from the seed.
    ///
    /// # Errors
    /// If the system has no thread or no socket left.
    pub fn start(seed: u64) -> io::Result<Self> {
        let (wake_sender, wake_receiver) = UnixDatagram::pair()?;
        wake_receiver.set_nonblocking(true)?;
        wake_sender.set_nonblocking(true)?;
        let (requests, inbox) = sync_channel(REQUESTS_WAITING_MAX);
        let (does, done) = sync_channel(REQUESTS_WAITING_MAX);
        let relay = ProxyRelay::new(seed, inbox, does, wake_receiver);
        let name = "proxy".to_owned();
        let thread = std::thread::Builder::new().name(name).spawn(move || relay.run())?;
        Ok(Self { requests, done, wake_sender, thread: Some(thread) })
    }

    /// Datagrams that reach the address that is returned go to `target`, which is where `site` has
    /// bound itself or will, and sends from.
    ///
    /// # Errors
    /// If there is no free port.
    pub fn add(&self, site: NetworkSite, target: SocketAddr) -> io::Result<SocketAddr> {
        let listener = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        self.request(ProxyRequest::Add { site, listener, target });
        Ok(address)
    }

    /// Sets the conditions of these links, for all datagrams that are sent after this returns.
    pub fn set(&self, links: LinkSelector, conditions: LinkConditions) {
        self.request(ProxyRequest::Set { links, conditions });
    }

    /// Whether the last datagrams of each link are kept to be sent again.
    pub fn record(&self, is_on: bool) {
        self.request(ProxyRequest::Record { is_on });
    }

    /// Sends up to so many of the oldest datagrams that were kept of these links again.
    pub fn replay(&self, links: LinkSelector, count: usize) {
        self.request(ProxyRequest::Replay { links, count });
    }

    /// The counts so far.
    #[must_use]
    pub fn counts(&self) -> ProxyCounts {
        let (answer, counts) = sync_channel(1);
        self.request(ProxyRequest::Count { answer });
        counts.recv().expect("the thread runs until it is stopped")
    }

    fn request(&self, request: ProxyRequest) {
        self.requests.send(request).expect("the thread runs until it is stopped");
        // A full socket has woken the thread already.
        let _ = self.wake_sender.send(&[1]);
        self.done.recv().expect("the thread runs until it is stopped");
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // If the thread is gone already, it panicked, and has printed that.
        let _ = self.requests.send(ProxyRequest::Stop);
        let _ = self.wake_sender.send(&[1]);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests;
