//! The side that asks: a command line.
//!
//! It knows no socket. Bytes travel through an [`Exchange`] that the caller brings. A redirect is
//! followed, a few times; nothing is tried again in silence: what fails is told, with what it means
//! for a script.

use super::answer::Answer;
use super::refusal::Refusal;
use super::request::Request;
use super::wire::{WireError, decode_answer, encode_request};
use super::{ADDRESSES_MAX, escape};
use crate::failure::{Detail, Failure, FailureCode};

/// Redirects that are followed for one question: leaders change, but not that often.
pub const REDIRECTS_MAX: usize = 4;

/// Sends a message to the first of these addresses that answers, and returns its answer.
pub type Exchange<'a> = Box<dyn FnMut(&[String], &[u8]) -> Result<Vec<u8>, ClientError> + 'a>;

/// Why a message got no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// Nobody answers at any address.
    #[error("the cluster does not answer")]
    Unreachable {
        /// Each address with the reason.
        tried: Vec<(String, String)>,
    },
    /// Somebody answers, and does not accept the certificate.
    #[error("the cluster does not accept this certificate: {reason}")]
    Denied {
        /// Why not.
        reason: String,
    },
    /// Whoever answers cannot show that it belongs to the cluster.
    #[error("{address} is not of this cluster: {reason}")]
    Stranger {
        /// Where.
        address: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The connection ended before the answer came. Whether the order was carried out is not known.
    #[error("the connection ended before the answer came: {reason}")]
    Broken {
        /// Why.
        reason: String,
    },
}

/// Why a question has no good answer.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The message got no answer.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// What came, or would have gone, is no message.
    #[error("the node speaks otherwise: {0}")]
    Wire(#[from] WireError),
    /// Too few controllers are there.
    #[error("too few controllers are there to decide")]
    NoQuorum {
        /// For how long.
        since_ms: u64,
        /// Who is missing.
        missing: Vec<String>,
    },
    /// Nobody says who decides.
    #[error("nobody says who decides, after {redirects} redirects")]
    NoLeader {
        /// Redirects that were followed.
        redirects: usize,
    },
    /// The node says no.
    #[error("{0}")]
    Refused(Refusal),
    /// The answer is one to another question.
    #[error("the node answers {found} to {request}")]
    Unexpected {
        /// What was asked.
        request: &'static str,
        /// What was answered.
        found: &'static str,
    },
}

/// Asks a cluster.
pub struct ApiClient<'a> {
    addresses: Vec<String>,
    exchange: Exchange<'a>,
}

impl<'a> ApiClient<'a> {
    /// A client that begins at these addresses.
    #[must_use]
    pub fn new(addresses: Vec<String>, exchange: Exchange<'a>) -> Self {
        Self { addresses, exchange }
    }

    /// Asks, and follows redirects. Where the answer came from is asked first the next time.
    ///
    /// # Errors
    /// If there is no answer, or it says no.
    pub fn ask(&mut self, request: &Request) -> Result<Answer, ApiError> {
        let message = encode_request(request)?;
        let mut asked = self.addresses.clone();
        for redirects in 0..=REDIRECTS_MAX {
            let answer = decode_answer(&(self.exchange)(&asked, &message)?)?;
            match answer {
                Answer::Redirect { addresses } if addresses.is_empty() => {
                    return Err(ApiError::NoLeader { redirects });
                }
                Answer::Redirect { mut addresses } => {
                    addresses.truncate(ADDRESSES_MAX);
                    asked = addresses;
                }
                Answer::NoQuorum { since_ms, missing } => {
                    return Err(ApiError::NoQuorum { since_ms, missing });
                }
                Answer::Refused(refusal) => return Err(ApiError::Refused(refusal)),
                answer => {
                    self.remember(asked);
                    return Ok(answer);
                }
            }
        }
        Err(ApiError::NoLeader { redirects: REDIRECTS_MAX })
    }

    /// Puts the addresses that answered first, and keeps the others for when they do not any more.
    fn remember(&mut self, answered: Vec<String>) {
        let known = std::mem::take(&mut self.addresses);
        let others: Vec<String> =
            known.into_iter().filter(|known| !answered.contains(known)).collect();
        self.addresses = answered.into_iter().chain(others).take(ADDRESSES_MAX).collect();
    }
}

impl ApiError {
    /// The exit code.
    #[must_use]
    pub const fn code(&self) -> FailureCode {
        match self {
            Self::Client(ClientError::Denied { .. }) => FailureCode::NotAuthorised,
            Self::Client(
                ClientError::Unreachable { .. }
                | ClientError::Stranger { .. }
                | ClientError::Broken { .. },
            ) => FailureCode::Unreachable,
            Self::NoQuorum { .. } | Self::NoLeader { .. } => FailureCode::NoQuorum,
            Self::Refused(refusal) => refusal.code(),
            Self::Wire(_) | Self::Unexpected { .. } => FailureCode::Internal,
        }
    }
}

impl From<ApiError> for Failure {
    fn from(error: ApiError) -> Self {
        let (code, what) = (error.code(), escape(&error.to_string()).into_owned());
        let details = match error {
            ApiError::Refused(refusal) => return refusal.failure(),
            ApiError::Client(error) => client_details(&error),
            ApiError::NoQuorum { since_ms, missing } => quorum_details(since_ms, &missing),
            ApiError::NoLeader { .. } => vec![
                Detail::new("the controllers are choosing a leader, or cannot reach each other")
                    .hint("again in a moment, then `zbelastic status`"),
            ],
            ApiError::Wire(_) | ApiError::Unexpected { .. } => vec![
                Detail::new("the two programs may be of different versions")
                    .hint("`zbelastic --version` on both sides"),
            ],
        };
        Self { code, what, details }
    }
}

fn client_details(error: &ClientError) -> Vec<Detail> {
    match error {
        ClientError::Unreachable { tried } => {
            let mut details: Vec<Detail> = tried
                .iter()
                .take(ADDRESSES_MAX)
                .map(|(address, reason)| Detail::new(escape(reason)).at(escape(address)))
                .collect();
            let hint = "--cluster ADDR with a node that runs; its port must be open for UDP";
            match details.last_mut() {
                Some(last) => last.hint = Some(hint.to_owned()),
                None => details.push(Detail::new("no address is known").hint(hint)),
            }
            details
        }
        ClientError::Denied { .. } => vec![
            Detail::new("the certificate has ended, was revoked, or belongs to another cluster")
                .hint("--data-dir with the folder of whoever ran `zbelastic init`"),
        ],
        ClientError::Stranger { .. } => vec![
            Detail::new("another cluster or another program may listen there now")
                .hint("--cluster ADDR with a node of this cluster"),
        ],
        ClientError::Broken { .. } => vec![
            Detail::new("whether the order was carried out is not known")
                .hint("`zbelastic status`, then again"),
        ],
    }
}

fn quorum_details(since_ms: u64, missing: &[String]) -> Vec<Detail> {
    let names: Vec<_> = missing.iter().map(|name| escape(name)).collect();
    let missing = if names.is_empty() { "some".to_owned() } else { names.join(", ") };
    vec![
        Detail::new(format!("not heard for {:.1} s: {missing}", since_ms as f64 / 1e3))
            .why("what is agreed on needs more than half of the controllers")
            .hint(
                "start them again; if they are lost for good, \
                 `zbelastic cluster recover --force-new-cluster`",
            ),
    ]
}
