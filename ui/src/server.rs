//! The listener: accepts connections up to a limit, and answers their requests.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::{Duration, sleep, timeout};
use zbelastic_view::{Dashboard, Observation, RunCosts};

use crate::access::AccessPolicy;
use crate::deadlines::{ClientDeadlines, DeadlineStream};
use crate::hub::{HubSender, PageDemand, hub};
use crate::routes;
use crate::shared::{SharedServer, keep_sessions};

/// Connections that are answered at once: four for each page that may be open. One more gets 503 and
/// is closed.
pub const CONNECTIONS_MAX: usize = 4 * crate::VIEWERS_MAX;
/// A refusal is sent within this, or the connection is closed without it.
const REFUSAL_WITHIN: Duration = Duration::from_secs(1);
/// Pause after an error of `accept`, which is for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Requests about sessions that wait.
const SESSION_QUEUE_MAX: usize = 64;

/// Why the server does not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Another program listens at the address.
    #[error("{address} is taken by another program")]
    Taken {
        /// The address that was given.
        address: SocketAddr,
    },
    /// Ports below 1024 are the administrator's.
    #[error("no permission to listen at {address}")]
    NotPermitted {
        /// The address that was given.
        address: SocketAddr,
    },
    /// No network of this machine has the address.
    #[error("{address} is not an address of this machine")]
    NotOurs {
        /// The address that was given.
        address: SocketAddr,
    },
    /// Anything else.
    #[error("cannot listen at {address}: {source}")]
    Other {
        /// The address that was given.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
}

impl ServeError {
    fn of(address: SocketAddr, source: io::Error) -> Self {
        if source.kind() == io::ErrorKind::AddrInUse {
            return Self::Taken { address };
        }
        if source.kind() == io::ErrorKind::PermissionDenied {
            return Self::NotPermitted { address };
        }
        if source.kind() == io::ErrorKind::AddrNotAvailable {
            return Self::NotOurs { address };
        }
        Self::Other { address, source }
    }
}

/// Settings of a server.
pub struct UiSettings {
    /// Where it listens.
    pub address: SocketAddr,
    /// Who is let in.
    pub policy: AccessPolicy,
    /// What the run costs and could reach.
    pub costs: RunCosts,
}

/// A server that runs in threads of its own until it is dropped.
pub struct UiServer {
    /// Dropped last: with it all tasks end.
    _runtime: Runtime,
    address: SocketAddr,
    observed: mpsc::Sender<Observation>,
    demand: watch::Receiver<PageDemand>,
}

impl UiServer {
    /// Listens, and answers from threads of `runtime`.
    ///
    /// # Errors
    /// If it cannot listen at the address.
    pub fn start(settings: UiSettings, runtime: Runtime) -> Result<Self, ServeError> {
        let UiSettings { address: wanted, policy, costs } = settings;
        let listener = runtime.block_on(TcpListener::bind(wanted));
        let listener = listener.map_err(|error| ServeError::of(wanted, error))?;
        let address = listener.local_addr().map_err(|error| ServeError::of(wanted, error))?;
        let entered = runtime.enter();
        let service = PageService::start(policy, costs, ClientDeadlines::default());
        drop(entered);
        let HubSender { observed, demand, .. } = service.0.hub.clone();
        runtime.spawn(accept_all(listener, service));
        Ok(Self { _runtime: runtime, address, observed, demand })
    }

    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sends observations to the server.
    #[must_use]
    pub fn observer(&self) -> PageObserver {
        PageObserver { observed: self.observed.clone(), demand: self.demand.clone() }
    }
}

/// Sends observations to a server, from a thread that may wait.
#[derive(Clone, Debug)]
pub struct PageObserver {
    observed: mpsc::Sender<Observation>,
    demand: watch::Receiver<PageDemand>,
}

impl PageObserver {
    /// Sends an observation; false if the server has ended. It waits for the hub, which waits for
    /// no page.
    ///
    /// # Panics
    /// If called within a task: its thread would stand still.
    #[must_use]
    pub fn send(&self, observation: Observation) -> bool {
        self.observed.blocking_send(observation).is_ok()
    }

    /// The newest step whose lanes pages have, or 0, if a page is open: lanes are requested only for
    /// pages, from that step on.
    #[must_use]
    pub fn lanes_wanted(&self) -> Option<u64> {
        let demand = *self.demand.borrow();
        (demand.viewers > 0).then_some(demand.newest_lanes)
    }
}

/// Answers requests, whatever carries the bytes of a connection.
#[derive(Clone)]
pub struct PageService(Arc<SharedServer>);

impl PageService {
    /// Starts the tasks that it needs, in the runtime that the caller is in.
    ///
    /// # Panics
    /// Outside a runtime.
    #[must_use]
    pub fn start(policy: AccessPolicy, costs: RunCosts, deadlines: ClientDeadlines) -> Self {
        let (hub, sender) = hub(Dashboard::new(costs));
        tokio::spawn(hub.run());
        let (sessions, inbox) = mpsc::channel(SESSION_QUEUE_MAX);
        tokio::spawn(keep_sessions(inbox));
        let token_checks = Semaphore::new(1);
        Self(Arc::new(SharedServer { hub: sender, policy, sessions, token_checks, deadlines }))
    }

    /// Answers the requests of a connection until it ends. A client that breaks HTTP, does not read or goes
    /// away ends its own connection and nothing else.
    pub async fn serve(self, stream: impl AsyncRead + AsyncWrite + Unpin) {
        let ClientDeadlines { head, read, .. } = self.0.deadlines;
        let stream = DeadlineStream::new(stream, read);
        let service = service_fn(move |request| {
            let server = self.0.clone();
            async move { Ok::<_, Infallible>(routes::answer(server, request).await) }
        });
        let mut connection = http1::Builder::new();
        connection.timer(TokioTimer::new()).header_read_timeout(head);
        let _ = connection.serve_connection(TokioIo::new(stream), service).await;
    }
}

async fn accept_all(listener: TcpListener, service: PageService) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            sleep(ACCEPT_PAUSE).await;
            continue;
        };
        match places.clone().try_acquire_owned() {
            Ok(place) => {
                let service = service.clone();
                tokio::spawn(async move {
                    let _ = stream.set_nodelay(true);
                    service.serve(stream).await;
                    drop(place);
                });
            }
            // Sent before the next connection is accepted: refusals need no memory of their own.
            Err(_) => drop(timeout(REFUSAL_WITHIN, refuse(stream)).await),
        }
    }
}

async fn refuse(mut stream: TcpStream) {
    const REFUSAL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 10\r\n\
        Content-Length: 32\r\nConnection: close\r\n\r\ntoo many connections, come back\n";
    let _ = stream.write_all(REFUSAL).await;
    let _ = stream.shutdown().await;
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, DuplexStream, duplex};

    use super::*;
    use crate::TokenRefusal;

    /// Longer than any wait of these tests.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// A client of a server that waits for it no longer than this in one respect, and its connection.
    fn connect(
        policy: AccessPolicy,
        deadlines: ClientDeadlines,
    ) -> (DuplexStream, tokio::task::JoinHandle<()>) {
        let service = PageService::start(policy, RunCosts::default(), deadlines);
        let (client, server) = duplex(64);
        (client, tokio::spawn(service.serve(server)))
    }

    fn waiting() -> ClientDeadlines {
        ClientDeadlines { head: PATIENCE, body: PATIENCE, read: PATIENCE }
    }

    #[test]
    fn what_the_system_refuses_is_named() {
        let check = |kind: io::ErrorKind, expected: &str| {
            let address = SocketAddr::from(([127, 0, 0, 1], 80));
            let found = ServeError::of(address, kind.into()).to_string();
            assert!(found.starts_with(expected), "{found}");
        };
        check(io::ErrorKind::PermissionDenied, "no permission to listen at 127.0.0.1:80");
        check(io::ErrorKind::AddrInUse, "127.0.0.1:80 is taken by another program");
        check(io::ErrorKind::AddrNotAvailable, "127.0.0.1:80 is not an address of this machine");
        check(io::ErrorKind::OutOfMemory, "cannot listen at 127.0.0.1:80: ");
    }

    #[tokio::test]
    async fn a_form_that_does_not_come_gives_its_place_back() {
        let refuse = |_: &str| Err(TokenRefusal::Refused { reason: "spent".to_owned() });
        let policy = AccessPolicy::Token(Arc::new(refuse));
        let deadlines = ClientDeadlines { body: Duration::from_millis(20), ..waiting() };
        let (mut client, connection) = connect(policy, deadlines);
        let half = b"POST /login HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\ntoken=";
        client.write_all(half).await.expect("it is read");
        let mut answer = String::new();
        let answered = timeout(PATIENCE / 2, client.read_to_string(&mut answer)).await;
        answered.expect("it is answered").expect("text");
        assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
        timeout(PATIENCE / 2, connection).await.expect("it ended").expect("no panic");
    }

    #[tokio::test]
    async fn a_client_that_does_not_read_gives_its_place_back() {
        let deadlines = ClientDeadlines { read: Duration::from_millis(20), ..waiting() };
        let (mut client, connection) = connect(AccessPolicy::Loopback, deadlines);
        let request = b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n";
        client.write_all(request).await.expect("it is read");
        timeout(PATIENCE / 2, connection).await.expect("it ended").expect("no panic");
    }
}
