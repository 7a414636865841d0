//! A client that is no member: an admin's command line.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use quinn::{ClientConfig, Connection, Endpoint, RecvStream, SendStream, TokioRuntime};
use rustls::pki_types::CertificateDer;
use thiserror::Error;
use tokio::net::lookup_host;
use tokio::time::timeout;
use zbelastic_identity::{
    AcceptedPeer, Credentials, PeerIdentity, PeerIdentityRefusal, UnixSeconds, shown_authority,
};

use super::greeting::{SERVER_NAME, exchange_hellos};
use super::hello::PeerHello;
use super::local_requests::LocalRequests;
use super::socket::bind_udp;
use super::tuning::{client_config, dialling_endpoint_config, open_for_client};
use crate::close_code::CloseCode;
use crate::dial_problem::{DialProblem, problem_of};
use crate::limits::{PEER_ADDRESSES_MAX, TransportLimits};
use crate::local::HostIdentity;
use crate::request::{RequestError, send_request};
use crate::version::VERSIONS;

/// Most addresses that are tried.
const ADDRESSES_MAX: usize = 64;

/// A connection of an admin to one node of the cluster.
#[derive(Debug)]
pub struct AdminClient {
    peer: PeerIdentity,
    address: String,
    connection: Connection,
    endpoint: Endpoint,
    limits: TransportLimits,
    /// The node's socket, if it is on this host.
    local: Option<LocalRequests>,
    /// The stream of the hellos: it stays open as long as the connection.
    _hello: (SendStream, RecvStream),
}

impl AdminClient {
    /// Connects to the first of the addresses (`host:port`) that answers as a node of the cluster.
    ///
    /// # Errors
    ///
    /// Every address was tried; the error holds the fault of each.
    pub async fn connect(
        addresses: &[String],
        credentials: Credentials,
    ) -> Result<Self, ConnectError> {
        let limits = TransportLimits::default();
        let mut tried = Vec::new();
        for address in addresses.iter().take(ADDRESSES_MAX) {
            match Self::connect_one(address, &credentials, &limits).await {
                Ok(client) => return Ok(client),
                Err(problem) => tried.push(ConnectAttempt { address: address.clone(), problem }),
            }
        }
        Err(ConnectError { tried })
    }

    async fn connect_one(
        address: &str,
        credentials: &Credentials,
        limits: &TransportLimits,
    ) -> Result<Self, DialProblem> {
        // Others would refuse it, and this finds the reason without dialling them.
        if let Err(refusal) = credentials.check_own(UnixSeconds::now()) {
            let why = format!("our own: {refusal}");
            let is_clock = matches!(refusal, PeerIdentityRefusal::Clock(_));
            let expired = |why| DialProblem::CertificateExpired { why };
            return Err(if is_clock { expired(why) } else { DialProblem::Other(why) });
        }
        let config = client_config(credentials, limits)
            .map_err(|error| DialProblem::Other(error.to_string()))?;
        let mut problem = DialProblem::NoSuchHost;
        for found in resolve(address).await? {
            match dial(found, &config, limits).await {
                Ok(DialledNode { endpoint, connection, peer, local, hello }) => {
                    let address = address.to_owned();
                    let limits = limits.clone();
                    let _hello = hello;
                    return Ok(Self { peer, address, connection, endpoint, limits, local, _hello });
                }
                Err(failed) => problem = failed,
            }
        }
        Err(problem)
    }

    /// Sends a request and waits for the answer.
    ///
    /// # Errors
    ///
    /// There is no answer.
    pub async fn request(&self, bytes: Vec<u8>) -> Result<Vec<u8>, RequestError> {
        self.request_within(bytes, self.limits.request_within).await
    }

    /// Sends a request and waits for the answer, at most for `within`.
    ///
    /// # Errors
    ///
    /// There is no answer.
    pub async fn request_within(
        &self,
        bytes: Vec<u8>,
        within: Duration,
    ) -> Result<Vec<u8>, RequestError> {
        let began = Instant::now();
        if let Some(local) = &self.local
            && let Some(answered) = local.send(&bytes, within).await
        {
            return answered;
        }
        let left = within.saturating_sub(began.elapsed());
        send_request(&self.connection, &bytes, left).await
    }

    /// Whether a socket of the node is held open for the next request: the last one was answered by
    /// it.
    #[must_use]
    pub fn holds_socket(&self) -> bool {
        self.local.as_ref().is_some_and(LocalRequests::holds_socket)
    }

    /// Identity of the node that this client is connected to.
    #[must_use]
    pub const fn peer(&self) -> &PeerIdentity {
        &self.peer
    }

    /// The authority that this node shows as the one that issued its certificate.
    #[must_use]
    pub fn authority(&self) -> Option<CertificateDer<'static>> {
        shown_authority(&self.connection)
    }

    /// The address that worked.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Closes the connection, and waits a bounded time for the node to learn of it.
    pub async fn close(self) {
        self.connection.close(CloseCode::Left.number().into(), &[]);
        // A node that does not answer is not waited for.
        let _ = timeout(self.limits.dial_within, self.endpoint.wait_idle()).await;
    }
}

/// The addresses of a `host:port`.
async fn resolve(address: &str) -> Result<Vec<SocketAddr>, DialProblem> {
    let (host, port) = address.rsplit_once(':').ok_or(DialProblem::NotAnAddress)?;
    if host.is_empty() || port.parse::<u16>().is_err() {
        return Err(DialProblem::NotAnAddress);
    }
    let found = lookup_host(address).await.map_err(|_| DialProblem::NoSuchHost)?;
    Ok(found.take(PEER_ADDRESSES_MAX).collect())
}

/// A node that was dialled, and the stream of the hellos.
struct DialledNode {
    endpoint: Endpoint,
    connection: Connection,
    peer: PeerIdentity,
    local: Option<LocalRequests>,
    hello: (SendStream, RecvStream),
}

async fn dial(
    address: SocketAddr,
    config: &ClientConfig,
    limits: &TransportLimits,
) -> Result<DialledNode, DialProblem> {
    let other = |why: String| DialProblem::Other(why);
    let own: SocketAddr = if address.is_ipv4() {
        (Ipv4Addr::UNSPECIFIED, 0).into()
    } else {
        (Ipv6Addr::UNSPECIFIED, 0).into()
    };
    let socket = bind_udp(own, limits.socket_buffer_bytes);
    let socket = socket.map_err(|error| other(error.to_string()))?;
    let runtime = Arc::new(TokioRuntime);
    let endpoint = Endpoint::new(dialling_endpoint_config(), None, socket, runtime)
        .map_err(|error| other(error.to_string()))?;
    let connecting = endpoint
        .connect_with(config.clone(), address, SERVER_NAME)
        .map_err(|error| other(error.to_string()))?;
    let connected = timeout(limits.dial_within, connecting).await;
    let connected = connected.map_err(|_| DialProblem::NobodyAnswers)?;
    let connection = connected.map_err(|error| problem_of(&error))?;
    let peer = AcceptedPeer::member(&connection).map_err(|fault| other(fault.to_string()))?;
    // Without it the node does not offer its socket.
    let host = HostIdentity::read().ok();
    let ours = PeerHello { host: host.clone(), ..PeerHello::anonymous(VERSIONS) };
    let exchanged = timeout(limits.handshake_within, exchange_hellos(&connection, &ours)).await;
    let (theirs, send, receive) = exchanged.map_err(|_| DialProblem::NobodyAnswers)??;
    open_for_client(&connection, limits);
    let local = theirs.offer.zip(host).map(|(offer, host)| LocalRequests::new(offer, host));
    Ok(DialledNode { endpoint, connection, peer, local, hello: (send, receive) })
}

/// No address led to a node of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub struct ConnectError {
    /// The result of each address, in the order tried.
    pub tried: Vec<ConnectAttempt>,
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no address leads to the cluster")?;
        for (index, attempt) in self.tried.iter().enumerate() {
            let lead = if index == 0 { ": " } else { "; " };
            write!(f, "{lead}{}: {}", attempt.address, attempt.problem)?;
        }
        Ok(())
    }
}

/// The failed attempt at one address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectAttempt {
    /// The address as it was given.
    pub address: String,
    /// Why it did not work.
    pub problem: DialProblem,
}
