//! Why a node or person is not admitted, or a token is not made.

use zbelastic_types::{Digest, NodeId};

use super::{
    AUTHORITY_BYTES_MAX, AccessRole, CREDENTIAL_S_MAX, CREDENTIALS_MAX, NOTE_BYTES_MAX,
    RotationPhase, TOKEN_USES_MAX, TOKENS_MAX, TokenId,
};
use crate::contact::ContactRefusal;

/// Why a change of tokens and credentials changed nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessRefusal {
    /// There is no such token.
    #[error("no token {token}")]
    UnknownToken {
        /// Number of the token that the change names.
        token: TokenId,
    },
    /// There is one of that name.
    #[error("there is a token {token} already")]
    TokenKnown {
        /// Number of the token that the change would make.
        token: TokenId,
    },
    /// Its time is over.
    #[error("token {token} expired at second {expired_at_s}, it is {at_s}")]
    TokenExpired {
        /// Number of the expired token.
        token: TokenId,
        /// Second of the Unix clock from which on the token is not good.
        expired_at_s: u64,
        /// Second of the Unix clock at which it was made or used.
        at_s: u64,
    },
    /// It was used as often as it may be.
    #[error("token {token} was used {uses_max} times, as often as it may be")]
    TokenUsedUp {
        /// Number of the token that is used up.
        token: TokenId,
        /// Uses that the token allows.
        uses_max: u32,
    },
    /// The token was revoked before.
    #[error("token {token} was revoked")]
    TokenRevoked {
        /// Number of the revoked token.
        token: TokenId,
    },
    /// The token authorizes another role.
    #[error("token {token} is for role {expected}, not for {found}")]
    TokenRole {
        /// Number of the token that gives another role.
        token: TokenId,
        /// Role that the token gives.
        expected: AccessRole,
        /// Role that was requested.
        found: AccessRole,
    },
    /// It may not be used that often.
    #[error("{found} uses, 1 to {TOKEN_USES_MAX} allowed")]
    Uses {
        /// Uses that were requested.
        found: u32,
    },
    /// Its note is too long.
    #[error("a note of {found} bytes, at most {NOTE_BYTES_MAX}")]
    Note {
        /// Length of the note in bytes.
        found: usize,
    },
    /// As many tokens as there may be can still be used.
    #[error("{TOKENS_MAX} tokens that can be used; revoke one first")]
    TooManyTokens,
    /// Name of a node that is not one.
    #[error(transparent)]
    Name(#[from] ContactRefusal),
    /// A credential that would end before it begins, or too late.
    #[error("a credential from second {at_s} to {expires_at_s}, 1 to {CREDENTIAL_S_MAX} allowed")]
    Term {
        /// Second of the Unix clock at which it begins.
        at_s: u64,
        /// Second of the Unix clock at which it ends.
        expires_at_s: u64,
    },
    /// As many credentials as there may be hold still, or are of members.
    #[error("{CREDENTIALS_MAX} credentials that cannot be forgotten; remove a node first")]
    TooManyCredentials,
    /// The node has no credential.
    #[error("node {node} has no credential")]
    NoCredential {
        /// The node that has no credential.
        node: NodeId,
    },
    /// Its credential was revoked.
    #[error("the credential of node {node} was revoked")]
    Revoked {
        /// The node that lost its credential.
        node: NodeId,
    },
    /// No controller would be left to vote.
    #[error("node {node} is the last controller")]
    LastController {
        /// The only controller that is counted on.
        node: NodeId,
    },
    /// It is not ephemeral, or it is counted on.
    #[error("node {node} is not to be forgotten")]
    NotForgotten {
        /// The node that the change would forget.
        node: NodeId,
    },
    /// One of the certificates is empty or too long.
    #[error("an authority's certificate of {found} bytes, 1 to {AUTHORITY_BYTES_MAX} allowed")]
    CertificateSize {
        /// Length of the certificate in bytes.
        found: usize,
    },
    /// It is about another authority than the one that is to follow, or follows another than the
    /// one that issues.
    #[error("authority {found} does not follow the one that issues now")]
    OtherAuthority {
        /// The key of the one named, as a digest.
        found: Digest,
    },
    /// The change of authority is not so far, or further.
    #[error("the change of authority is {found}")]
    RotationPhase {
        /// The phase that the change is in.
        found: RotationPhase,
    },
}

impl AccessRefusal {
    /// The name under which the refusal is counted.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::UnknownToken { .. } => "token-unknown",
            Self::TokenKnown { .. } => "token-known",
            Self::TokenExpired { .. } => "token-expired",
            Self::TokenUsedUp { .. } => "token-used-up",
            Self::TokenRevoked { .. } => "token-revoked",
            Self::TokenRole { .. } => "token-role",
            Self::Uses { .. } => "token-uses",
            Self::Note { .. } => "token-note",
            Self::TooManyTokens => "too-many-tokens",
            Self::Name(_) => "node-name",
            Self::Term { .. } => "credential-term",
            Self::TooManyCredentials => "too-many-credentials",
            Self::NoCredential { .. } => "no-credential",
            Self::Revoked { .. } => "revoked",
            Self::LastController { .. } => "last-controller",
            Self::NotForgotten { .. } => "not-forgotten",
            Self::CertificateSize { .. } => "authority-size",
            Self::OtherAuthority { .. } => "other-authority",
            Self::RotationPhase { .. } => "rotation-phase",
        }
    }
}
