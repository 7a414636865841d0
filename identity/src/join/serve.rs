//! The controller's end of a join: reads a joiner's request, passes it on, writes the answer.
//! Whether it is admitted is decided elsewhere.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::super::clock::{UnixSeconds, check_apart};
use super::super::key::{KeyDigest, RequestedKey};
use super::super::name::NodeName;
use super::super::role::PeerRole;
use super::super::token::{JoinTokenId, TokenVerifier};
use super::message::{
    JOIN_REQUEST_BYTES_MAX, JoinAnswer, JoinMessageFault, JoinRefusal, JoinRequest, NameRefusal,
};
use super::proof::{BindingFault, ChannelBinding, ProofClaim, request_digest};

/// Time within which a joiner must open its stream, and then again within which it must send its
/// request.
pub const READ_SECONDS_MAX: u64 = 5;
/// Time within which the cluster must decide. An election and a commit need less than five seconds.
pub const DECISION_SECONDS_MAX: u64 = 20;
/// Time within which a joiner must read its answer.
const GOODBYE_SECONDS_MAX: u64 = 5;

/// A joiner's request to join, well-formed and not yet verified.
#[derive(Clone, Debug)]
pub struct JoinAttempt {
    /// Id of the token that the joiner claims to hold.
    pub token: JoinTokenId,
    /// The role that it requests.
    pub role: PeerRole,
    /// The name that its owner gave the node.
    pub name: NodeName,
    /// The key to make a certificate for. The same key twice is the same joiner, which did not get
    /// its answer: [`RequestedKey::digest`] identifies the key.
    pub key: RequestedKey,
    /// The addresses at which others may dial it, as it claims.
    pub addresses: Vec<SocketAddr>,
    /// Where it came from. Its handshake is complete, so this is not forged.
    pub from: SocketAddr,
    channel: ChannelBinding,
    request: [u8; 32],
    proof: [u8; 32],
}

impl JoinAttempt {
    /// Whether it holds the token that `verifier` is of. Check this before anything that depends on
    /// the token's record is answered, so that only its holder learns about it.
    ///
    /// # Errors
    /// If the proof is wrong: another token, another connection, or something was changed.
    pub fn check_proof(&self, verifier: &TokenVerifier) -> Result<(), JoinRefusal> {
        let claim = ProofClaim {
            channel: &self.channel,
            request: &self.request,
            role: self.role,
            name: self.name.as_str(),
        };
        if claim.is_proved_by(verifier, &self.proof) {
            return Ok(());
        }
        Err(JoinRefusal::WrongProof { token: self.token })
    }

    /// Whether it is a member with a certificate that ended. That the key is its own was checked
    /// with its signing request; a certificate for it is of use to no other process.
    #[must_use]
    pub fn is_of_member(&self) -> bool {
        self.token == JoinTokenId::MEMBER
    }

    /// The digest of the key, by which a repeated attempt is recognised.
    #[must_use]
    pub fn key_digest(&self) -> KeyDigest {
        self.key.digest()
    }
}

/// Why there is no attempt to decide about.
#[derive(Debug, Error)]
pub enum JoinReadFault {
    /// Reading the request failed.
    #[error("a joiner went away: {0}")]
    Broken(#[from] io::Error),
    /// It exceeded its time.
    #[error("a joiner sent nothing for {READ_SECONDS_MAX} seconds")]
    TooSlow,
    /// The bytes that it sent are no request.
    #[error(transparent)]
    Message(#[from] JoinMessageFault),
    /// It sent a request that is refused without a decision of the cluster.
    #[error("a joiner was refused: {0}")]
    Refused(JoinRefusal),
}

impl JoinReadFault {
    /// The refusal to send to the joiner, if it is still there.
    fn refusal(&self) -> Option<JoinRefusal> {
        match self {
            Self::Broken(_) | Self::TooSlow => None,
            Self::Message(_) => Some(JoinRefusal::Unreadable),
            Self::Refused(refusal) => Some(refusal.clone()),
        }
    }
}

/// Reads the one message of a joiner, to the end of the stream.
///
/// # Errors
/// If there is no attempt in it that is worth deciding about.
pub async fn read_join(
    stream: &mut (impl AsyncRead + Unpin),
    channel: ChannelBinding,
    from: SocketAddr,
    now: UnixSeconds,
) -> Result<JoinAttempt, JoinReadFault> {
    let mut bytes = Vec::new();
    let limited = &mut stream.take(JOIN_REQUEST_BYTES_MAX as u64 + 1);
    timeout(Duration::from_secs(READ_SECONDS_MAX), limited.read_to_end(&mut bytes))
        .await
        .map_err(|_| JoinReadFault::TooSlow)??;
    attempt_of(&bytes, channel, from, now)
}

fn attempt_of(
    bytes: &[u8],
    channel: ChannelBinding,
    from: SocketAddr,
    now: UnixSeconds,
) -> Result<JoinAttempt, JoinReadFault> {
    let request = JoinRequest::decode(bytes)?;
    let refused = JoinReadFault::Refused;
    check_apart(now, request.clock).map_err(|fault| refused(JoinRefusal::Clock(fault)))?;
    let name: NodeName = request
        .name
        .parse()
        .map_err(|fault| refused(JoinRefusal::WrongName(NameRefusal::Form(fault))))?;
    let key = RequestedKey::from_request(request.request)
        .map_err(|fault| refused(JoinRefusal::WrongRequest(fault)))?;
    Ok(JoinAttempt {
        token: request.token,
        role: request.role,
        name,
        key,
        addresses: request.addresses,
        from,
        channel,
        request: request_digest(request.request),
        proof: request.proof,
    })
}

/// Where the answer to one attempt goes. If it is dropped without one, the joiner gets
/// [`JoinRefusal::NotReady`].
#[derive(Debug)]
pub struct JoinReply {
    sender: oneshot::Sender<JoinAnswer>,
}

impl JoinReply {
    /// A reply and where its answer comes out. [`serve_join`] makes one itself.
    #[must_use]
    pub fn pair() -> (Self, oneshot::Receiver<JoinAnswer>) {
        let (sender, receiver) = oneshot::channel();
        (Self { sender }, receiver)
    }

    /// Answers. Returns at once; whether the joiner still listens is not known, which is why it may
    /// send its request again with the same key.
    pub fn answer(self, answer: JoinAnswer) {
        // A joiner that hung up needs no answer.
        let _ = self.sender.send(answer);
    }
}

/// How serving a joiner ended before it was answered.
#[derive(Debug, Error)]
pub enum JoinServeFault {
    /// The connection ended before the joiner opened its stream.
    #[error("a joiner's connection broke: {0}")]
    Connection(#[from] quinn::ConnectionError),
    /// Writing the answer failed.
    #[error("a joiner's stream broke: {0}")]
    Write(#[from] quinn::WriteError),
    /// The connection has no value of its own.
    #[error(transparent)]
    Binding(#[from] BindingFault),
    /// There was nothing to decide about. A refusal was sent, unless the joiner was too slow or
    /// went away.
    #[error(transparent)]
    Read(#[from] JoinReadFault),
}

/// Serves the joiner at the other end of an accepted connection: reads its request, gives it to
/// `forward`, waits for the answer, sends it, and closes. One request a connection. Every wait
/// ends.
///
/// # Errors
/// If there was no request, or the joiner went away.
pub async fn serve_join(
    connection: &quinn::Connection,
    now: UnixSeconds,
    forward: impl FnOnce(JoinAttempt, JoinReply),
) -> Result<(), JoinServeFault> {
    let channel = ChannelBinding::of(connection)?;
    let opened = timeout(Duration::from_secs(READ_SECONDS_MAX), connection.accept_bi()).await;
    let (mut send, mut receive) = opened.map_err(|_| JoinReadFault::TooSlow)??;
    let read = read_join(&mut receive, channel, connection.remote_address(), now).await;
    let (answer, fault) = match read {
        Ok(attempt) => (decide(attempt, forward).await, None),
        Err(fault) => match fault.refusal() {
            Some(refusal) => (JoinAnswer::Refused(refusal), Some(fault)),
            None => return Err(fault.into()),
        },
    };
    send.write_all(&answer.encode()).await?;
    // The stream was not closed by us before, and a peer that hung up needs no end of it.
    let _ = send.finish();
    let close_within = Duration::from_secs(GOODBYE_SECONDS_MAX);
    // The joiner closes when it has read. If it does not, the wait ends.
    let _ = timeout(close_within, connection.closed()).await;
    fault.map_or(Ok(()), |fault| Err(fault.into()))
}

async fn decide(attempt: JoinAttempt, forward: impl FnOnce(JoinAttempt, JoinReply)) -> JoinAnswer {
    let (reply, answer) = JoinReply::pair();
    forward(attempt, reply);
    match timeout(Duration::from_secs(DECISION_SECONDS_MAX), answer).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(_)) | Err(_) => JoinAnswer::Refused(JoinRefusal::NotReady),
    }
}
