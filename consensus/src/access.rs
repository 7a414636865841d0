//! Access to the cluster: tokens, and the credentials that were issued for them.
//!
//! A *token* admits a person or node that is not known yet; a node holds a *credential* once it was
//! let in. Both are part of the agreed state, so a token that may be used once is used once,
//! whichever node leads. There is no cryptography here: a verifier and a key are 32 bytes that code
//! outside this package makes and compares. There is no clock either: an entry carries the time of
//! the leader that proposed it, and every node applies that.
//!
//! A `NodeId` is given when a token's use is agreed on, and never twice.

mod refusal;
mod registry;
mod rotation;

use std::collections::VecDeque;
use std::fmt;

use serde::{Deserialize, Serialize};
use zbelastic_types::{Digest, NodeId};

use crate::member::{MEMBERS_MAX, Role};

pub use refusal::AccessRefusal;
pub use registry::AccessRegistry;
pub use rotation::{
    AUTHORITY_BYTES_MAX, AuthorityChange, AuthorityReport, Rotation, RotationPhase, RotationStep,
    Succession,
};

/// The most tokens remembered. For a new one the oldest that cannot be used any more is forgotten.
pub const TOKENS_MAX: usize = 64;
/// Times that one token may be used: one that machines are started with stays for as long as they
/// come and go, and each that comes uses it once.
pub const TOKEN_USES_MAX: u32 = 1 << 16;
/// Uses of a token that are remembered, for a node that lost the answer and repeats its request: so
/// many may come at once.
pub const USES_KEPT_MAX: usize = MEMBERS_MAX;
/// Bytes of a token's note.
pub const NOTE_BYTES_MAX: usize = 128;
/// Credentials remembered: eight for each member there may be. For a new one the first to have
/// expired of a node that is no member that is counted on is forgotten; else that of the worker
/// that was away longest, which needs a token to come again.
pub const CREDENTIALS_MAX: usize = 8 * MEMBERS_MAX;
/// Seconds that a credential holds at most, from one renewal to the next: 400 days.
pub const CREDENTIAL_S_MAX: u64 = 400 * 24 * 3600;

/// Number that identifies a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TokenId(pub u64);

impl fmt::Display for TokenId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Role that a token or credential gives a person or node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AccessRole {
    /// An operator with the right to every command.
    Admin,
    /// A node that votes.
    Controller,
    /// A node that runs a stage.
    Worker,
    /// An operator with the right to read, and to no command.
    Viewer,
    /// An operator with the right to commands about runs and checkpoints.
    Operator,
}

impl AccessRole {
    /// The role of such a node as a member, if it can be one.
    #[must_use]
    pub const fn member_role(self) -> Option<Role> {
        match self {
            Self::Controller => Some(Role::Controller),
            Self::Worker => Some(Role::Worker),
            Self::Admin | Self::Viewer | Self::Operator => None,
        }
    }
}

impl fmt::Display for AccessRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Admin => "admin",
            Self::Controller => "controller",
            Self::Worker => "worker",
            Self::Viewer => "viewer",
            Self::Operator => "operator",
        })
    }
}

/// The terms of a token: the role that it gives, and the limits of its use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenTerms {
    /// Role that the token gives.
    pub role: AccessRole,
    /// The value that a proof of knowing its secret is checked against.
    pub verifier: [u8; 32],
    /// The key of the authority that it names, as a digest.
    pub authority: Digest,
    /// From this second of the Unix clock on it is not good any more.
    pub expires_at_s: u64,
    /// How often it may be used.
    pub uses_max: u32,
    /// Whether the node is forgotten once it is lost for good.
    pub is_ephemeral: bool,
    /// Note for people, at most [`NOTE_BYTES_MAX`] bytes.
    pub note: String,
}

/// That a token was used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenUse {
    /// Digest of the key that the token was used with.
    pub key: Digest,
    /// The node that the user of the token became.
    pub node: NodeId,
    /// Second of the Unix clock at which it was used.
    pub at_s: u64,
}

/// A token as it is agreed on, with its uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenRecord {
    /// The terms of its use.
    pub terms: TokenTerms,
    /// Second of the Unix clock at which it was made.
    pub made_at_s: u64,
    /// How often it was used.
    pub used: u32,
    /// The last uses, oldest first, up to [`USES_KEPT_MAX`].
    pub uses: VecDeque<TokenUse>,
    /// Whether it was revoked.
    pub is_revoked: bool,
}

impl TokenRecord {
    /// Whether a key that has not used it before can use it at this second.
    #[must_use]
    pub fn is_usable(&self, at_s: u64) -> bool {
        let is_used_up = self.used >= self.terms.uses_max;
        !self.is_revoked && !is_used_up && at_s < self.terms.expires_at_s
    }
}

/// The credential with which a node is admitted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credential {
    /// The role that it authorizes.
    pub role: AccessRole,
    /// Name that people call the node by.
    pub name: String,
    /// Its key, as a digest.
    pub key: Digest,
    /// The token it was given for; none for a credential that the cluster began with.
    pub token: Option<TokenId>,
    /// When it was given, or renewed last.
    pub issued_at_s: u64,
    /// From this second of the Unix clock on it does not hold any more, unless it is renewed.
    pub expires_at_s: u64,
    /// Whether it is forgotten once the node is lost for good and was not removed.
    pub is_ephemeral: bool,
    /// Whether it was revoked.
    pub is_revoked: bool,
}

/// A change of tokens and credentials. Times are those of the leader that proposes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AccessChange {
    /// A token is made.
    TokenMade {
        /// Number of the token, drawn by its maker.
        token: TokenId,
        /// The terms of its use.
        terms: TokenTerms,
        /// Second of the Unix clock at which it is made.
        at_s: u64,
    },
    /// A token is not good any more.
    TokenRevoked {
        /// The token that is revoked.
        token: TokenId,
    },
    /// A person or node that proved to know a token's secret is admitted, and becomes a node.
    TokenUsed {
        /// The token that is used.
        token: TokenId,
        /// Digest of the key that is admitted.
        key: Digest,
        /// Name requested for the node.
        name: String,
        /// Role requested; the token must give the same one.
        role: AccessRole,
        /// Second of the Unix clock at which it is used.
        at_s: u64,
        /// Second of the Unix clock at which its credential ends.
        expires_at_s: u64,
    },
    /// A node that is known has a newer credential, perhaps with another key.
    Renewed {
        /// The node that gets a renewed credential.
        node: NodeId,
        /// Its key, as a digest.
        key: Digest,
        /// Second of the Unix clock at which it is renewed.
        at_s: u64,
        /// Second of the Unix clock at which the credential ends.
        expires_at_s: u64,
    },
    /// A node is not admitted any more. If it is a member, it is lost.
    Revoked {
        /// The node that loses its credential.
        node: NodeId,
    },
    /// An ephemeral node is absent for so long that it is forgotten.
    Forgotten {
        /// The ephemeral node that is forgotten.
        node: NodeId,
    },
    /// One authority follows another.
    Authority(AuthorityChange),
}

/// The outcome of a change of tokens and credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccessOutcome {
    /// There is such a token.
    TokenMade {
        /// The token that was made.
        token: TokenId,
    },
    /// It is not good any more.
    TokenRevoked {
        /// The token that was revoked.
        token: TokenId,
    },
    /// A person or node is admitted.
    LetIn {
        /// The token that was used.
        token: TokenId,
        /// The key, as a digest.
        key: Digest,
        /// Number of the node that is admitted.
        node: NodeId,
        /// Whether it was admitted before with this token and key; then nothing changed.
        is_repeated: bool,
    },
    /// A credential holds for longer.
    Renewed {
        /// The node that got a renewed credential.
        node: NodeId,
    },
    /// A node is not admitted any more.
    Revoked {
        /// The node that lost its credential.
        node: NodeId,
    },
    /// A node is not known any more.
    Forgotten {
        /// The node that was forgotten.
        node: NodeId,
    },
    /// The change of authority reached a phase.
    Authority {
        /// The phase that the change is in now.
        phase: RotationPhase,
        /// Tokens that are revoked with it.
        revoked: Vec<TokenId>,
    },
}
