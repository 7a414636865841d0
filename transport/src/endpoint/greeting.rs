//! From an address or an attempt to a peer with a hello that was read.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use quinn::{ClientConfig, Connection, ConnectionError, Endpoint, RecvStream, SendStream};
use tokio::sync::watch;
use tokio::time::timeout;
use zbelastic_identity::{AcceptedPeer, PeerIdentity, PeerRole};
use zbelastic_types::NodeId;

use super::context::TransportContext;
use super::hello::{HelloFault, PeerHello};
use super::hub::AdmissionHandle;
use crate::close_code::CloseCode;
use crate::dial_problem::{DialProblem, problem_of};
use crate::event::DownReason;
use crate::peers::LinkFacts;
use crate::version::{VERSIONS, VersionRange};

/// The server name that a dialler sends: it is not checked, certificates name nodes.
pub(super) const SERVER_NAME: &str = "zbelastic";
/// The first byte of the stream on which hellos go. `docs/wire-format.md` lists the others.
pub(super) const HELLO_STREAM: u8 = 0x01;

/// A connection with a known peer, after its hello was read.
pub(crate) struct PeerConnection {
    pub(crate) peer: PeerIdentity,
    pub(super) connection: Connection,
    pub(super) hello: PeerHello,
    pub(super) side: DialSide,
    pub(super) send: SendStream,
    pub(super) receive: RecvStream,
    first_reason: Arc<OnceLock<DownReason>>,
}

/// The end of a connection that dialled it.
pub(super) enum DialSide {
    /// We did, with the count of our attempts, and admitted the peer to our same-host socket.
    Dialled { attempt: u64, admission: Option<AdmissionHandle> },
    /// The peer did, and waits for our hello.
    Accepted,
}

/// Closes a connection, and keeps the first reason why.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionCloser {
    connection: Connection,
    first_reason: Arc<OnceLock<DownReason>>,
}

/// Why no address of a peer led to it: the last address and its fault.
#[derive(Debug)]
pub(crate) struct PeerDialFailure {
    pub(crate) address: SocketAddr,
    pub(crate) problem: DialProblem,
}

impl PeerConnection {
    pub(crate) fn address(&self) -> SocketAddr {
        self.connection.remote_address()
    }

    pub(crate) fn closer(&self) -> ConnectionCloser {
        ConnectionCloser {
            connection: self.connection.clone(),
            first_reason: Arc::clone(&self.first_reason),
        }
    }

    pub(crate) fn facts(&self, own: NodeId) -> LinkFacts {
        let is_lower = own < self.peer.node;
        let (dialled_by_lower, attempt) = match self.side {
            DialSide::Dialled { attempt, .. } => (is_lower, attempt),
            DialSide::Accepted => (!is_lower, self.hello.attempt),
        };
        LinkFacts { start: self.hello.start, dialled_by_lower, attempt }
    }

    /// Whether the peer is a member's process, and not a command line: of a person, or in the folder
    /// of a member, whose processes count their starts from 1.
    pub(crate) fn serves(&self) -> bool {
        let has_started = match self.side {
            DialSide::Dialled { .. } => true,
            DialSide::Accepted => self.hello.start.boot > 0,
        };
        self.peer.role.serves() && has_started
    }

    pub(crate) fn refuse(self, code: CloseCode) {
        self.connection.close(code.number().into(), &[]);
    }
}

impl ConnectionCloser {
    pub(crate) fn close(&self, reason: DownReason) {
        self.close_as(reason, reason.code());
    }

    /// Closes, and sends the peer a code of its own.
    pub(crate) fn close_as(&self, reason: DownReason, code: CloseCode) {
        // Only the first reason counts: later ones are its consequences.
        let _ = self.first_reason.set(reason);
        self.connection.close(code.number().into(), &[]);
    }

    /// Whether this side closed it.
    pub(super) fn is_ours(&self) -> bool {
        self.first_reason.get().is_some()
    }

    /// Why it ended: for our reason if we closed it, else for the one in `error`.
    pub(super) fn reason(&self, error: &ConnectionError) -> DownReason {
        self.first_reason.get().copied().unwrap_or_else(|| DownReason::of(error))
    }
}

impl DownReason {
    const fn code(self) -> CloseCode {
        match self {
            Self::Violation(violation) => violation.code(),
            Self::Replaced => CloseCode::Replaced,
            Self::Banned => CloseCode::Banned,
            Self::Left
            | Self::ProcessEnded
            | Self::Silent
            | Self::Reset
            | Self::Forgotten
            | Self::ClosedByPeer(_)
            | Self::Broken
            | Self::Closing => CloseCode::Left,
        }
    }

    fn of(error: &ConnectionError) -> Self {
        match error {
            ConnectionError::ApplicationClosed(close) => {
                let code = CloseCode::of(close.error_code.into_inner());
                if code == CloseCode::Left { Self::Left } else { Self::ClosedByPeer(code) }
            }
            ConnectionError::TimedOut => Self::Silent,
            ConnectionError::Reset => Self::Reset,
            ConnectionError::LocallyClosed => Self::Closing,
            ConnectionError::VersionMismatch
            | ConnectionError::TransportError(_)
            | ConnectionError::ConnectionClosed(_)
            | ConnectionError::CidsExhausted => Self::Broken,
        }
    }
}

/// Dials by the credentials of the moment.
#[derive(Clone)]
pub(crate) struct Dialler {
    pub(super) endpoint: Endpoint,
    pub(super) config: watch::Receiver<ClientConfig>,
}

impl Dialler {
    /// Tries the addresses in turn until one leads to the node.
    pub(crate) async fn dial(
        &self,
        context: &TransportContext,
        node: NodeId,
        addresses: &[SocketAddr],
        attempt: u64,
    ) -> Result<PeerConnection, PeerDialFailure> {
        let mut failure = None;
        for &address in addresses {
            match self.dial_one(context, node, address, attempt).await {
                Ok(peer_connection) => return Ok(peer_connection),
                Err(problem) => failure = Some(PeerDialFailure { address, problem }),
            }
        }
        Err(failure.expect("a peer is dialled only if it has addresses"))
    }

    async fn dial_one(
        &self,
        context: &TransportContext,
        node: NodeId,
        address: SocketAddr,
        attempt: u64,
    ) -> Result<PeerConnection, DialProblem> {
        let connection = self.connect(context.limits.dial_within, address).await?;
        let peer = AcceptedPeer::member(&connection)
            .map_err(|fault| DialProblem::Other(fault.to_string()))?;
        if peer.node != node {
            connection.close(CloseCode::Left.number().into(), &[]);
            return Err(DialProblem::AnotherNode);
        }
        super::tuning::open_for_member(&connection, &context.limits);
        let within = context.limits.handshake_within;
        let dialled = timeout(within, complete_dial(context, connection, peer, attempt)).await;
        dialled.unwrap_or(Err(DialProblem::NobodyAnswers))
    }

    async fn connect(
        &self,
        within: std::time::Duration,
        address: SocketAddr,
    ) -> Result<Connection, DialProblem> {
        let config = self.config.borrow().clone();
        let connecting = self
            .endpoint
            .connect_with(config, address, SERVER_NAME)
            .map_err(|error| DialProblem::Other(error.to_string()))?;
        let connected = timeout(within, connecting).await;
        let connected = connected.map_err(|_| DialProblem::NobodyAnswers)?;
        connected.map_err(|error| problem_of(&error))
    }
}

/// The hello that this process sends to a member with this admission to its same-host socket.
pub(super) fn hello_to_member(
    context: &TransportContext,
    attempt: u64,
    admission: Option<&AdmissionHandle>,
) -> PeerHello {
    PeerHello {
        versions: context.versions.range(),
        start: context.start,
        attempt,
        host: context.local_hub.as_ref().map(|hub| hub.host().clone()),
        offer: admission.map(|admission| admission.admission.offer().clone()),
    }
}

/// Sends the dialler's hello, and waits for the answer.
async fn complete_dial(
    context: &TransportContext,
    connection: Connection,
    peer: PeerIdentity,
    attempt: u64,
) -> Result<PeerConnection, DialProblem> {
    let admission = match &context.local_hub {
        Some(hub) => hub.admit(peer.node).await,
        None => None,
    };
    let ours = hello_to_member(context, attempt, admission.as_ref());
    let (hello, send, receive) = exchange_hellos(&connection, &ours).await?;
    let side = DialSide::Dialled { attempt, admission };
    let first_reason = Arc::default();
    Ok(PeerConnection { peer, connection, hello, side, send, receive, first_reason })
}

/// Writes a dialler's hello on a new stream and reads the answer.
pub(super) async fn exchange_hellos(
    connection: &Connection,
    ours: &PeerHello,
) -> Result<(PeerHello, SendStream, RecvStream), DialProblem> {
    let result = async {
        let (mut send, mut receive) = connection.open_bi().await.map_err(std::io::Error::from)?;
        send.write_all(&[HELLO_STREAM]).await.map_err(std::io::Error::from)?;
        ours.write(&mut send).await?;
        let hello = PeerHello::read(ours.versions, &mut receive).await?;
        Ok::<_, HelloFault>((hello, send, receive))
    };
    let fault = match result.await {
        Ok(exchanged) => return Ok(exchanged),
        Err(fault) => fault,
    };
    let code = match fault {
        HelloFault::Version { .. } => CloseCode::Version,
        HelloFault::Malformed => CloseCode::Malformed,
        HelloFault::Broken(_) => CloseCode::Left,
    };
    let closed = connection.close_reason();
    connection.close(code.number().into(), &[]);
    Err(match fault {
        HelloFault::Version { ours, theirs } => DialProblem::Version { ours, theirs },
        HelloFault::Malformed => DialProblem::Other(fault.to_string()),
        HelloFault::Broken(_) => match closed {
            Some(error) => problem_of(&error),
            None => DialProblem::Other(fault.to_string()),
        },
    })
}

/// Reads the hello of a member, or a person's command line, that dialled.
pub(super) async fn receive_hello(
    context: &TransportContext,
    connection: Connection,
    peer: PeerIdentity,
) -> Result<PeerConnection, HelloFault> {
    let versions = versions_for(context, peer.role);
    let (mut send, mut receive) = connection.accept_bi().await.map_err(std::io::Error::from)?;
    let mut tag = [0];
    let read = receive.read_exact(&mut tag).await;
    read.map_err(|error| HelloFault::Broken(std::io::Error::other(error)))?;
    if tag != [HELLO_STREAM] {
        return Err(HelloFault::Malformed);
    }
    match PeerHello::read(versions, &mut receive).await {
        Ok(hello) => {
            let side = DialSide::Accepted;
            let first_reason = Arc::default();
            Ok(PeerConnection { peer, connection, hello, side, send, receive, first_reason })
        }
        Err(fault) => {
            if let HelloFault::Version { .. } = fault {
                // It reads our versions and closes; the caller waits for that.
                let ours = PeerHello::anonymous(versions);
                ours.write(&mut send).await?;
                connection.closed().await;
            }
            Err(fault)
        }
    }
}

/// The versions supported with a peer: command lines of people may still use versions that members
/// retired.
pub(super) fn versions_for(context: &TransportContext, role: PeerRole) -> VersionRange {
    if role.serves() { context.versions.range() } else { VERSIONS }
}
