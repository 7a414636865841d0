//! A client that is no member: an admin's command line.

use std::fmt;

use thiserror::Error;

use crate::endpoint::{CloseCode, VersionRange};
use crate::identity::{Credentials, PeerIdentity};
use crate::request::RequestError;

/// A connection of an admin to one node of the cluster.
#[derive(Debug)]
pub struct AdminClient {
    peer: PeerIdentity,
    address: String,
}

impl AdminClient {
    /// Connects to the first of the addresses (`host:port`) that answers as a node of the cluster.
    ///
    /// # Errors
    ///
    /// Every address was tried; the error tells what came of each.
    pub async fn connect(
        addresses: &[String],
        credentials: Credentials,
    ) -> Result<Self, ConnectError> {
        let _ = credentials;
        let tried = addresses
            .iter()
            .map(|address| ConnectAttempt {
                address: address.clone(),
                problem: DialProblem::NobodyAnswers,
            })
            .collect();
        Err(ConnectError { tried })
    }

    /// Asks and waits for the answer.
    ///
    /// # Errors
    ///
    /// There is no answer.
    pub async fn request(&self, bytes: Vec<u8>) -> Result<Vec<u8>, RequestError> {
        let _ = bytes;
        Err(RequestError::NoRoad)
    }

    /// Who answers.
    #[must_use]
    pub const fn peer(&self) -> &PeerIdentity {
        &self.peer
    }

    /// The address that worked.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Closes in order.
    pub async fn close(self) {}
}

/// No address led to a node of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub struct ConnectError {
    /// What came of each address, in the order tried.
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

/// What came of one address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectAttempt {
    /// The address as it was given.
    pub address: String,
    /// Why it did not work.
    pub problem: DialProblem,
}

/// Why dialling an address led to nobody.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DialProblem {
    /// Not of the form `host:port`.
    #[error("not of the form host:port")]
    NotAnAddress,
    /// The name is not known.
    #[error("no such host")]
    NoSuchHost,
    /// Nothing came back.
    #[error("nobody answers")]
    NobodyAnswers,
    /// Somebody answers, but not with a certificate of this cluster.
    #[error("it is not a node of this cluster")]
    NotThisCluster,
    /// A node of the cluster answers, but not the one wanted.
    #[error("another node answers there")]
    AnotherNode,
    /// A certificate is out of date, ours or the peer's; or a clock is wrong.
    #[error("a certificate is expired or not yet valid: {why}")]
    CertificateExpired {
        /// Which one and when.
        why: String,
    },
    /// No version in common.
    #[error("it speaks protocol versions {theirs}, this program speaks {ours}")]
    Version {
        /// What this program speaks.
        ours: VersionRange,
        /// What the peer speaks.
        theirs: VersionRange,
    },
    /// The peer closed the connection on purpose.
    #[error("refused: {0}")]
    Refused(CloseCode),
    /// Something else.
    #[error("{0}")]
    Other(String),
}
