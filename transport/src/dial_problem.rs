//! Why dialling led to no connection, and the meaning of a broken connection's error for the peer
//! that was dialled.

use quinn::ConnectionError;
use thiserror::Error;

use crate::close_code::CloseCode;
use crate::version::VersionRange;

/// TLS alerts are carried as this plus the alert (RFC 9001, 4.8).
const TLS_ALERTS: std::ops::RangeInclusive<u64> = 0x100..=0x1ff;
/// The code that stands in every refusal of a certificate by its time, at either end.
const CLOCK_CODE: &str = "E2010";
/// The code that stands in every refusal of a certificate by an untrusted authority.
const AUTHORITY_CODE: &str = "E2015";

/// Why dialling an address led to no connection.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DialProblem {
    /// Not of the form `host:port`.
    #[error("not of the form host:port")]
    NotAnAddress,
    /// The name is not known.
    #[error("no such host")]
    NoSuchHost,
    /// No answer came in time.
    #[error("no answer")]
    NobodyAnswers,
    /// A process answers, but not with a certificate of this cluster.
    #[error("it is not a node of this cluster")]
    NotThisCluster,
    /// A node of the cluster answers, and trusts no authority that vouches for our certificate.
    #[error("E2015 the cluster does not believe the authority that issued our certificate")]
    AuthorityRetired,
    /// A node of the cluster answers, but not the one that was dialled.
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
        /// The versions that this program supports.
        ours: VersionRange,
        /// The versions that the peer supports.
        theirs: VersionRange,
    },
    /// The peer closed the connection on purpose.
    #[error("refused: {0}")]
    Refused(CloseCode),
    /// Another failure, in words.
    #[error("{0}")]
    Other(String),
}

/// The meaning of a broken connection's error for the peer that was dialled.
pub(crate) fn problem_of(error: &ConnectionError) -> DialProblem {
    match error {
        ConnectionError::TimedOut => DialProblem::NobodyAnswers,
        ConnectionError::ApplicationClosed(close) => {
            let code = CloseCode::of(close.error_code.into_inner());
            let is_other_cluster = code == CloseCode::NotThisCluster;
            if is_other_cluster { DialProblem::NotThisCluster } else { DialProblem::Refused(code) }
        }
        ConnectionError::TransportError(error) => {
            of_code(error.code.into(), &error.reason, RefusingEnd::Own)
        }
        ConnectionError::ConnectionClosed(close) => {
            let reason = String::from_utf8_lossy(&close.reason);
            of_code(close.error_code.into(), &reason, RefusingEnd::Peer)
        }
        ConnectionError::VersionMismatch => {
            DialProblem::Other("it speaks another version of QUIC".to_owned())
        }
        ConnectionError::Reset
        | ConnectionError::LocallyClosed
        | ConnectionError::CidsExhausted => DialProblem::Other(error.to_string()),
    }
}

/// The end that refused the other's certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RefusingEnd {
    Own,
    Peer,
}

fn of_code(code: u64, reason: &str, refusing_end: RefusingEnd) -> DialProblem {
    if !TLS_ALERTS.contains(&code) {
        return DialProblem::Other(format!("the connection failed with code {code}"));
    }
    match reason.find(CLOCK_CODE) {
        Some(at) => DialProblem::CertificateExpired { why: printable(&reason[at..]) },
        None if refusing_end == RefusingEnd::Peer && reason.contains(AUTHORITY_CODE) => {
            DialProblem::AuthorityRetired
        }
        None => DialProblem::NotThisCluster,
    }
}

/// A text of an unauthenticated peer, short and without control characters.
fn printable(text: &str) -> String {
    const CHARACTERS_MAX: usize = 400;
    text.chars().filter(|letter| !letter.is_control()).take(CHARACTERS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_distinguished_from_another_cluster_and_from_no_certificate() {
        let of_code = |code, reason| of_code(code, reason, RefusingEnd::Peer);
        let late = of_code(0x128, "other error: E2010 certificate expired:\u{7} never");
        let why = "E2010 certificate expired: never".to_owned();
        assert_eq!(late, DialProblem::CertificateExpired { why });
        assert_eq!(of_code(0x128, "whatever"), DialProblem::NotThisCluster);
        assert_eq!(of_code(0x1ff, ""), DialProblem::NotThisCluster);
        assert_eq!(of_code(0x12a, "E2015 of old"), DialProblem::AuthorityRetired);
        assert_eq!(super::of_code(0x12a, "E2015", RefusingEnd::Own), DialProblem::NotThisCluster);
        assert!(matches!(of_code(0x200, "E2010"), DialProblem::Other(_)));
        assert!(matches!(of_code(0xa, "E2010"), DialProblem::Other(_)));
    }
}
