//! The two messages of a join, and their bytes: postcard, consumed to the last byte.
//!
//! Lists are counted while they are read, so that a count which was made up reserves no memory.

use std::fmt;
use std::marker::PhantomData;
use std::net::SocketAddr;

use rustls::pki_types::CertificateDer;
use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use thiserror::Error;
use zbelastic_types::{ClusterId, NodeId};

use super::super::authority::{AuthoritySecret, IssuedCertificate};
use super::super::certificate::CHAIN_CERTIFICATES_MAX;
use super::super::clock::{ClockFault, UnixSeconds};
use super::super::key::SigningRequestFault;
use super::super::name::NodeNameFault;
use super::super::role::PeerRole;
use super::super::token::JoinTokenId;

/// The longest request: a signing request of 8 KiB, a name, eight addresses, and a margin.
pub const JOIN_REQUEST_BYTES_MAX: usize = 10 << 10;
/// The longest answer: four certificates of 8 KiB, the authority, sixteen controllers, and a
/// margin.
pub const JOIN_ANSWER_BYTES_MAX: usize = 64 << 10;
/// The most addresses of one node.
pub const ADDRESSES_MAX: usize = 8;
/// The most controllers that an answer names. A cluster has three to seven.
pub const CONTROLLERS_MAX: usize = 16;

/// The request of a joiner, sent once it has verified the server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinRequest<'a> {
    /// Id of the token that the joiner claims to hold.
    pub token: JoinTokenId,
    /// The role that it requests.
    pub role: PeerRole,
    /// The name that its owner gave the node.
    #[serde(borrow)]
    pub name: &'a str,
    /// Its signing request, in DER.
    #[serde(borrow)]
    pub request: &'a [u8],
    /// The proof that it holds the token.
    pub proof: [u8; 32],
    /// The time of the joiner's clock.
    pub clock: UnixSeconds,
    /// Addresses at which others may dial it. Empty if it only dials.
    #[serde(deserialize_with = "at_most::<_, _, ADDRESSES_MAX>")]
    pub addresses: Vec<SocketAddr>,
}

impl<'a> JoinRequest<'a> {
    /// The request as bytes, in postcard.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    /// The request in `bytes`.
    ///
    /// # Errors
    /// If they are too many, or no request to the last byte.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, JoinMessageFault> {
        decode(bytes, JOIN_REQUEST_BYTES_MAX)
    }
}

/// The controller's answer to a joiner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum JoinAnswer {
    /// The joiner is a member now.
    Granted(JoinGrant),
    /// The join is refused, for this reason.
    Refused(JoinRefusal),
}

impl JoinAnswer {
    /// The answer as bytes, in postcard.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    /// The answer in `bytes`.
    ///
    /// # Errors
    /// If they are too many, or no answer to the last byte.
    pub fn decode(bytes: &[u8]) -> Result<Self, JoinMessageFault> {
        decode(bytes, JOIN_ANSWER_BYTES_MAX)
    }
}

/// The certificates, node id and controllers that a new member gets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinGrant {
    /// Id of the cluster.
    pub cluster: ClusterId,
    /// Node id of the joiner in the cluster.
    pub node: NodeId,
    #[serde(deserialize_with = "at_most::<_, _, CHAIN_CERTIFICATES_MAX>")]
    chain: Vec<Vec<u8>>,
    /// The controllers to dial next.
    #[serde(deserialize_with = "at_most::<_, _, CONTROLLERS_MAX>")]
    pub controllers: Vec<ControllerContact>,
    /// For a controller, and for no other role: the authority, so that it can admit others.
    pub authority: Option<AuthoritySecret>,
}

/// Where a controller is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControllerContact {
    /// Node id of the controller.
    pub node: NodeId,
    /// Where to dial it.
    #[serde(deserialize_with = "at_most::<_, _, ADDRESSES_MAX>")]
    pub addresses: Vec<SocketAddr>,
}

impl JoinGrant {
    /// A grant of this certificate.
    #[must_use]
    pub fn new(
        cluster: ClusterId,
        node: NodeId,
        issued: &IssuedCertificate,
        controllers: Vec<ControllerContact>,
        authority: Option<AuthoritySecret>,
    ) -> Self {
        let chain = issued.chain.iter().map(|part| part.to_vec()).collect();
        Self { cluster, node, chain, controllers, authority }
    }

    /// The certificates, the joiner's own first.
    #[must_use]
    pub fn chain(&self) -> Vec<CertificateDer<'static>> {
        self.chain.iter().map(|part| CertificateDer::from(part.clone())).collect()
    }
}

/// Why a join is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
pub enum JoinRefusal {
    /// The token's time is over.
    #[error("E2002 token {token} expired at {at}")]
    TokenExpired {
        /// Id of the token.
        token: JoinTokenId,
        /// When the token expired, in seconds since 1970.
        at: UnixSeconds,
    },
    /// The token was revoked.
    #[error("E2003 token {token} was revoked")]
    TokenRevoked {
        /// Id of the token.
        token: JoinTokenId,
    },
    /// The token was used as often as it may be.
    #[error("E2004 token {token} is spent: all of its {uses} uses are taken, the last at {at}")]
    TokenSpent {
        /// Id of the token.
        token: JoinTokenId,
        /// Number of uses that the token allows.
        uses: u64,
        /// When the last use was.
        at: UnixSeconds,
    },
    /// The cluster has no token with this id.
    #[error("E2005 token {token} is not known here")]
    TokenUnknown {
        /// Id of the token.
        token: JoinTokenId,
    },
    /// The token is for another role.
    #[error("E2006 token {token} is for the role {expected}, and {found} was requested")]
    WrongRole {
        /// Id of the token.
        token: JoinTokenId,
        /// The role that the token is for.
        expected: PeerRole,
        /// The role that was requested.
        found: PeerRole,
    },
    /// The proof is not of this token, this channel, this request, this role and this name.
    #[error("E2007 the proof for token {token} is wrong")]
    WrongProof {
        /// Id of the token.
        token: JoinTokenId,
    },
    /// The attempt failed, and so did too many others lately, of the same address or of all.
    #[error("E2009 too many attempts to join, try again in {seconds} seconds")]
    TooManyAttempts {
        /// Seconds to wait before another attempt.
        seconds: u64,
    },
    /// The clocks are too far apart for certificates to be of use.
    #[error("{0}")]
    Clock(ClockFault),
    /// The name is none, or the cluster does not accept it.
    #[error("E2011 the name was refused: {0}")]
    WrongName(NameRefusal),
    /// The signing request is refused.
    #[error("E2012 {0}")]
    WrongRequest(SigningRequestFault),
    /// The message is none, or there are too many addresses in it.
    #[error("E2013 the join request cannot be read by the other side: are the versions the same?")]
    Unreadable,
    /// Another controller is the leader. The request has to be sent there.
    #[error("this controller does not lead the cluster")]
    NotLeader {
        /// Addresses of the leader. Empty if it is not known.
        #[serde(deserialize_with = "at_most::<_, _, ADDRESSES_MAX>")]
        leader: Vec<SocketAddr>,
    },
    /// The cluster cannot decide now: too few controllers, or the decision exceeded its time.
    #[error("the cluster cannot let anyone in right now, try again later")]
    NotReady,
    /// A member requested another certificate, and there is none with its key.
    #[error(
        "E2014 no member has this key: it was removed, or was away for so long that it was forgotten"
    )]
    NoMember,
}

/// Why a name is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
pub enum NameRefusal {
    /// It is no name.
    #[error(transparent)]
    Form(#[from] NodeNameFault),
    /// Another member has it.
    #[error("another member has it")]
    Taken,
    /// The token is for other names.
    #[error("the token is for other names")]
    NotForToken,
}

/// Why bytes are no message of a join.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum JoinMessageFault {
    /// There are more bytes than a message may have.
    #[error("a message of {found} bytes, at most {maximum} are looked at")]
    TooLong {
        /// Number of bytes of the message.
        found: usize,
        /// The most bytes that the message may have.
        maximum: usize,
    },
    /// Not the message, or not only.
    #[error("the bytes are no message of a join")]
    Damaged,
}

pub(super) fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    postcard::to_allocvec(message).expect("a vector takes all bytes")
}

fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8], maximum: usize) -> Result<T, JoinMessageFault> {
    if bytes.len() > maximum {
        return Err(JoinMessageFault::TooLong { found: bytes.len(), maximum });
    }
    match postcard::take_from_bytes(bytes) {
        Ok((message, [])) => Ok(message),
        Ok((_, _)) | Err(_) => Err(JoinMessageFault::Damaged),
    }
}

/// A list of at most `MAX`. Grows as it is read, not by the length that is announced.
fn at_most<'de, D, T, const MAX: usize>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    deserializer.deserialize_seq(AtMost::<T, MAX>(PhantomData))
}

struct AtMost<T, const MAX: usize>(PhantomData<T>);

impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for AtMost<T, MAX> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of at most {MAX}")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Vec<T>, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = sequence.next_element()? {
            if list.len() == MAX {
                return Err(A::Error::custom("the list is too long"));
            }
            list.push(item);
        }
        Ok(list)
    }
}
