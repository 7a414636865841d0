//! The joiner's end: from a token to credentials.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use quinn::crypto::rustls::QuicClientConfig;
use rustls::pki_types::CertificateDer;
use thiserror::Error;
use tokio::time::timeout;
use zbelastic_types::ClusterId;

use super::super::authority::{AuthorityFault, ClusterAuthority};
use super::super::certificate::read_authority;
use super::super::clock::UnixSeconds;
use super::super::credentials::{Credentials, CredentialsFault};
use super::super::key::NodeKey;
use super::super::name::NodeName;
use super::super::peer::PeerIdentity;
use super::super::role::PeerRole;
use super::super::token::JoinToken;
use super::super::verify::PeerIdentityRefusal;
use super::message::{
    ControllerContact, JOIN_ANSWER_BYTES_MAX, JoinAnswer, JoinGrant, JoinMessageFault, JoinRefusal,
    JoinRequest,
};
use super::pinned::{self, JoinServerFault};
use super::proof::{BindingFault, ChannelBinding, ProofClaim, request_digest};
use super::serve::DECISION_SECONDS_MAX;

/// Time within which one address must answer a dial. A handshake needs three round trips.
const DIAL_SECONDS_MAX: u64 = 5;
/// Time within which an answer must arrive: the cluster's time to decide, and the way there and
/// back.
const ANSWER_SECONDS_MAX: u64 = DECISION_SECONDS_MAX + 5;
/// The most dials of one attempt, so that controllers which point at each other end.
const DIALS_MAX: usize = 32;
/// How often one address is dialled: because someone typed it, because it leads now, and because it
/// was at its limit before.
const DIALS_PER_ADDRESS_MAX: usize = 4;
/// TLS requires a name where we have none. It is not sent and not checked.
const NO_NAME: &str = "zbelastic.invalid";

/// The parameters of a joiner's request.
#[derive(Clone, Debug)]
pub struct JoinSetup {
    /// The token to join with.
    pub token: JoinToken,
    /// The role to request.
    pub role: PeerRole,
    /// Name of the node.
    pub name: NodeName,
    /// The node's key. The same one in a second attempt, so that a repeated use of the token, after
    /// the answer was lost, is not a second use.
    pub key: NodeKey,
    /// Where members of the cluster may be.
    pub cluster: Vec<SocketAddr>,
    /// Where others may dial this node.
    pub advertised: Vec<SocketAddr>,
}

impl JoinSetup {
    /// The request of a member after its certificate ended: another one for its key, from a
    /// controller of its own cluster. No token is needed.
    ///
    /// # Errors
    /// If its root is none.
    pub fn of_member(
        credentials: &Credentials,
        name: NodeName,
        cluster: Vec<SocketAddr>,
    ) -> Result<Self, CredentialsFault> {
        let role = credentials.identity().role;
        let pin = read_authority(&credentials.roots()[0])?.key;
        Ok(Self {
            token: JoinToken::of_member(role, pin),
            role,
            name,
            key: credentials.key().clone(),
            cluster,
            advertised: Vec::new(),
        })
    }
}

/// The credentials and contacts of a joiner once it is a member.
#[derive(Clone, Debug)]
pub struct JoinedMember {
    /// Its certificate, key and root.
    pub credentials: Credentials,
    /// The controllers to dial now.
    pub controllers: Vec<ControllerContact>,
    /// For a controller: the authority.
    pub authority: Option<ClusterAuthority>,
}

/// The outcomes of the dials of an attempt that reached no controller which could decide.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JoinDials {
    /// Each address, and why it did not help.
    pub failed: Vec<(SocketAddr, String)>,
    /// Whether a controller of the cluster answered that it does not lead, or cannot decide now: that
    /// passes, as after an election.
    pub may_pass: bool,
}

/// Why a node did not join.
#[derive(Debug, Error)]
pub enum JoinError {
    /// TLS or QUIC cannot be set up here.
    #[error("this machine cannot dial: {0}")]
    Setup(String),
    /// No controller was reached that could decide.
    #[error("no controller that leads was reached, after {} connection attempts", dials.failed.len())]
    NobodyDecided {
        /// The addresses that were dialled, and why each did not help.
        dials: JoinDials,
    },
    /// The server is no controller of the token's cluster, or the clocks differ. Nothing was sent.
    #[error("{address}: {fault}")]
    WrongServer {
        /// Address of the server.
        address: SocketAddr,
        /// The fault of the server.
        fault: JoinServerFault,
    },
    /// The cluster refused the request.
    #[error("{refusal}")]
    Refused {
        /// Address of the controller that answered.
        address: SocketAddr,
        /// The refusal that the controller sent.
        refusal: JoinRefusal,
    },
    /// The cluster granted the request, and sent a grant that cannot be used.
    #[error("{address} granted what cannot be used: {fault}")]
    WrongGrant {
        /// Address of the controller that sent the grant.
        address: SocketAddr,
        /// The fault of the grant.
        fault: GrantFault,
    },
}

/// A fault of a grant.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum GrantFault {
    /// The parts do not fit together.
    #[error(transparent)]
    Credentials(#[from] CredentialsFault),
    /// The certificate is for another identity.
    #[error("a certificate for {found}, requested one for {expected}")]
    OtherIdentity {
        /// The identity that was requested, with the node id in the grant.
        expected: PeerIdentity,
        /// The identity that the certificate names.
        found: PeerIdentity,
    },
    /// Others would not trust it.
    #[error(transparent)]
    Unbelievable(#[from] PeerIdentityRefusal),
    /// Its authority is not the one that the token names.
    #[error(transparent)]
    Authority(#[from] JoinServerFault),
    /// The authority's secret is missing for a controller, or was sent to another role.
    #[error("the authority's key comes to controllers alone")]
    WrongSecret,
    /// The authority's secret is damaged.
    #[error(transparent)]
    Secret(#[from] AuthorityFault),
}

/// The outcome of one dial, if not membership or the end of the attempt.
enum JoinDialFailure {
    /// Try the next address, and these first.
    TryOther { reason: String, leader: Vec<SocketAddr>, is_answer: bool },
    /// There is nothing more to try.
    Final(JoinError),
}

/// Requests a certificate of the cluster that the token names: dials its addresses in turn, follows
/// to the leader, and checks the grant. Nothing is sent to a server that is not of that cluster.
///
/// # Errors
/// If there is no certificate. `NobodyDecided` and some refusals pass with time; trying again, with
/// the same key, is the caller's business.
pub async fn request_certificate(
    endpoint: &quinn::Endpoint,
    setup: &JoinSetup,
    now: UnixSeconds,
) -> Result<JoinedMember, JoinError> {
    let mut waiting: VecDeque<SocketAddr> = setup.cluster.iter().copied().collect();
    let mut dials = JoinDials::default();
    while let Some(address) = waiting.pop_front() {
        let before = dials.failed.iter().filter(|(dialled, _)| *dialled == address).count();
        if dials.failed.len() >= DIALS_MAX || before >= DIALS_PER_ADDRESS_MAX {
            continue;
        }
        match dial(endpoint, setup, address, now).await {
            Ok(joined) => return Ok(joined),
            Err(JoinDialFailure::Final(error)) => return Err(error),
            Err(JoinDialFailure::TryOther { reason, leader, is_answer }) => {
                dials.failed.push((address, reason));
                dials.may_pass |= is_answer;
                leader.into_iter().rev().for_each(|next| waiting.push_front(next));
            }
        }
    }
    Err(JoinError::NobodyDecided { dials })
}

async fn dial(
    endpoint: &quinn::Endpoint,
    setup: &JoinSetup,
    address: SocketAddr,
    now: UnixSeconds,
) -> Result<JoinedMember, JoinDialFailure> {
    let connection = connect(endpoint, setup, address).await?;
    let answer = timeout(
        Duration::from_secs(ANSWER_SECONDS_MAX),
        send_join_request(&connection, setup, now),
    )
    .await
    .unwrap_or(Err(JoinExchangeFault::TooSlow))
    .map_err(|fault| JoinDialFailure::of_lost(&connection, address, &fault))?;
    let root = pinned_root(&connection, setup);
    connection.close(0_u32.into(), b"thank you");
    match answer {
        JoinAnswer::Granted(grant) => root
            .and_then(|root| check_grant(&grant, root, setup, now))
            .map_err(|fault| JoinDialFailure::Final(JoinError::WrongGrant { address, fault })),
        JoinAnswer::Refused(refusal) => Err(failure_of_refusal(address, refusal)),
    }
}

fn failure_of_refusal(address: SocketAddr, refusal: JoinRefusal) -> JoinDialFailure {
    match refusal {
        JoinRefusal::NotLeader { ref leader } => {
            let (reason, leader) = (refusal.to_string(), leader.clone());
            JoinDialFailure::TryOther { reason, leader, is_answer: true }
        }
        JoinRefusal::NotReady => {
            let reason = refusal.to_string();
            JoinDialFailure::TryOther { reason, leader: Vec::new(), is_answer: true }
        }
        JoinRefusal::TokenExpired { .. }
        | JoinRefusal::TokenRevoked { .. }
        | JoinRefusal::TokenSpent { .. }
        | JoinRefusal::TokenUnknown { .. }
        | JoinRefusal::WrongRole { .. }
        | JoinRefusal::WrongProof { .. }
        | JoinRefusal::TooManyAttempts { .. }
        | JoinRefusal::Clock(_)
        | JoinRefusal::WrongName(_)
        | JoinRefusal::WrongRequest(_)
        | JoinRefusal::NoMember
        | JoinRefusal::Unreadable => {
            JoinDialFailure::Final(JoinError::Refused { address, refusal })
        }
    }
}

impl JoinDialFailure {
    fn try_other(error: &impl ToString) -> Self {
        Self::TryOther { reason: error.to_string(), leader: Vec::new(), is_answer: false }
    }

    /// A connection that the other side closed before it answered: it was at its limit, as many
    /// join at once, and is dialled again. One that went silent is not.
    fn of_lost(connection: &quinn::Connection, address: SocketAddr, error: &impl ToString) -> Self {
        Self::of_close(connection.close_reason().as_ref(), address, error)
    }

    fn of_close(
        close: Option<&quinn::ConnectionError>,
        address: SocketAddr,
        error: &impl ToString,
    ) -> Self {
        use quinn::ConnectionError as Error;
        let is_closed_by_peer = match close {
            Some(Error::ApplicationClosed(_) | Error::ConnectionClosed(_) | Error::Reset) => true,
            Some(
                Error::VersionMismatch
                | Error::TransportError(_)
                | Error::TimedOut
                | Error::LocallyClosed
                | Error::CidsExhausted,
            )
            | None => false,
        };
        let leader = if is_closed_by_peer { vec![address] } else { Vec::new() };
        Self::TryOther { reason: error.to_string(), leader, is_answer: false }
    }

    fn setup(error: &impl ToString) -> Self {
        Self::Final(JoinError::Setup(error.to_string()))
    }
}

async fn connect(
    endpoint: &quinn::Endpoint,
    setup: &JoinSetup,
    address: SocketAddr,
) -> Result<quinn::Connection, JoinDialFailure> {
    let pinned = pinned::client_config(setup.token.pin());
    let (config, fault) = pinned.map_err(|error| JoinDialFailure::setup(&error))?;
    let config =
        QuicClientConfig::try_from(config).map_err(|error| JoinDialFailure::setup(&error))?;
    let config = quinn::ClientConfig::new(Arc::new(config));
    // An address that cannot be dialled, such as port 0, is a matter of that address.
    let connecting = endpoint
        .connect_with(config, address, NO_NAME)
        .map_err(|error| JoinDialFailure::try_other(&error))?;
    match timeout(Duration::from_secs(DIAL_SECONDS_MAX), connecting).await {
        Ok(Ok(connection)) => Ok(connection),
        Ok(Err(error)) => Err(match fault.get().cloned() {
            Some(fault) => JoinDialFailure::Final(JoinError::WrongServer { address, fault }),
            None => JoinDialFailure::of_close(Some(&error), address, &error),
        }),
        Err(_) => {
            Err(JoinDialFailure::try_other(&format!("no answer for {DIAL_SECONDS_MAX} seconds")))
        }
    }
}

/// Why a server that is the right one gave no answer.
#[derive(Debug, Error)]
enum JoinExchangeFault {
    #[error("no answer for {ANSWER_SECONDS_MAX} seconds")]
    TooSlow,
    #[error(transparent)]
    Binding(#[from] BindingFault),
    #[error(transparent)]
    Connection(#[from] quinn::ConnectionError),
    #[error(transparent)]
    Write(#[from] quinn::WriteError),
    #[error(transparent)]
    Read(#[from] quinn::ReadToEndError),
    #[error(transparent)]
    Message(#[from] JoinMessageFault),
}

/// The bytes that a joiner sends on one channel.
pub(super) fn request_bytes(
    setup: &JoinSetup,
    channel: &ChannelBinding,
    now: UnixSeconds,
) -> Vec<u8> {
    let request = setup.key.signing_request();
    let claim = ProofClaim {
        channel,
        request: &request_digest(&request),
        role: setup.role,
        name: setup.name.as_str(),
    };
    let message = JoinRequest {
        token: setup.token.id(),
        role: setup.role,
        name: setup.name.as_str(),
        request: &request,
        proof: claim.prove(&setup.token.verifier()),
        clock: now,
        addresses: setup.advertised.clone(),
    };
    message.encode()
}

async fn send_join_request(
    connection: &quinn::Connection,
    setup: &JoinSetup,
    now: UnixSeconds,
) -> Result<JoinAnswer, JoinExchangeFault> {
    let channel = ChannelBinding::of(connection)?;
    let (mut send, mut receive) = connection.open_bi().await?;
    send.write_all(&request_bytes(setup, &channel, now)).await?;
    // Nothing closed the stream before, and a server that hung up shows in the read.
    let _ = send.finish();
    let answer = receive.read_to_end(JOIN_ANSWER_BYTES_MAX).await?;
    Ok(JoinAnswer::decode(&answer)?)
}

/// The authority that the server showed and that the handshake found to be the token's.
fn pinned_root(
    connection: &quinn::Connection,
    setup: &JoinSetup,
) -> Result<CertificateDer<'static>, GrantFault> {
    let chain = connection
        .peer_identity()
        .and_then(|identity| identity.downcast::<Vec<CertificateDer<'static>>>().ok())
        .unwrap_or_default();
    Ok(pinned::pinned_authority(setup.token.pin(), &chain)?)
}

fn check_grant(
    grant: &JoinGrant,
    root: CertificateDer<'static>,
    setup: &JoinSetup,
    now: UnixSeconds,
) -> Result<JoinedMember, GrantFault> {
    let cluster = cluster_of(&root)?;
    let credentials = Credentials::new(grant.chain(), setup.key.clone(), vec![root])?;
    let expected = PeerIdentity { cluster, role: setup.role, node: grant.node };
    let found = credentials.identity();
    if found != expected || grant.cluster != cluster {
        return Err(GrantFault::OtherIdentity { expected, found });
    }
    credentials.check_own(now)?;
    if grant.authority.is_some() != (setup.role == PeerRole::Controller) {
        return Err(GrantFault::WrongSecret);
    }
    let authority = grant.authority.as_ref().map(ClusterAuthority::from_secret).transpose()?;
    // The token may name the authority before: the issuer of the certificate, which leads to it,
    // issues now.
    if authority.as_ref().is_some_and(|authority| !credentials.is_by(authority.certificate())) {
        return Err(JoinServerFault::OtherAuthority.into());
    }
    Ok(JoinedMember { credentials, controllers: grant.controllers.clone(), authority })
}

fn cluster_of(root: &CertificateDer<'_>) -> Result<ClusterId, GrantFault> {
    let read = read_authority(root).map_err(CredentialsFault::from)?;
    Ok(read.cluster)
}
