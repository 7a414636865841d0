//! Who may take part: tokens, and the credentials that were given for them.
//!
//! A *token* lets somebody in who is not known yet; a *credential* is what a node has once it was
//! let in. Both are part of what is agreed, so a token that may be used once is used once whoever
//! leads. There is no cryptography here: a verifier and a key are 32 bytes that somebody else made
//! and compares. There is no clock either: an entry carries the time of the leader that proposed it,
//! and every node applies that.
//!
//! A `NodeId` is given when a token's use is agreed on, and never twice.

mod book;
mod refusal;
mod rotation;

use std::collections::VecDeque;
use std::fmt;

use serde::{Deserialize, Serialize};
use zbelastic_types::{Digest, NodeId};

use crate::member::{MEMBERS_MAX, Role};

pub use book::Access;
pub use refusal::AccessRefusal;
pub use rotation::{
    AUTHORITY_BYTES_MAX, AuthorityChange, AuthorityReport, Rotation, RotationPhase, RotationStep,
    Succession,
};

/// Tokens remembered. For a new one the oldest that nobody can use any more is forgotten.
pub const TOKENS_MAX: usize = 64;
/// Times that one token may be used: one that machines are started with stays for as long as they come
/// and go, and each that comes uses it once.
pub const TOKEN_USES_MAX: u32 = 1 << 16;
/// Uses of a token that are remembered, for who lost the answer and asks again: so many may come at once.
pub const USES_KEPT_MAX: usize = MEMBERS_MAX;
/// Bytes of a token's note.
pub const NOTE_BYTES_MAX: usize = 128;
/// Credentials remembered: eight for each member there may be. For a new one the first to have expired
/// of a node that is no member that is counted on is forgotten; else that of the worker that was away
/// longest, which needs a token to come again.
pub const CREDENTIALS_MAX: usize = 8 * MEMBERS_MAX;
/// Seconds that a credential holds at most, from one renewal to the next: 400 days.
pub const CREDENTIAL_S_MAX: u64 = 400 * 24 * 3600;

/// Names a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TokenId(pub u64);

impl fmt::Display for TokenId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// What somebody is let in for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AccessRole {
    /// A person who gives orders.
    Admin,
    /// A node that votes.
    Controller,
    /// A node that runs a stage.
    Worker,
    /// Somebody who reads, and does nothing else.
    Viewer,
    /// A person who gives orders about runs and checkpoints.
    Operator,
}

impl AccessRole {
    /// What such a node is as a member, if it can be one.
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

/// What a token is good for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenTerms {
    /// What it lets in.
    pub role: AccessRole,
    /// What a proof of knowing its secret is held against.
    pub verifier: [u8; 32],
    /// The key of the authority that it names, as a digest.
    pub authority: Digest,
    /// From this second of the Unix clock on it is not good any more.
    pub expires_at_s: u64,
    /// How often it may be used.
    pub uses_max: u32,
    /// Whether the node is forgotten once it is gone for good.
    pub is_ephemeral: bool,
    /// For people.
    pub note: String,
}

/// That a token was used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenUse {
    /// The key of who used it, as a digest.
    pub key: Digest,
    /// The node it became.
    pub node: NodeId,
    /// When.
    pub at_s: u64,
}

/// A token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token {
    /// What it is good for.
    pub terms: TokenTerms,
    /// When it was made.
    pub made_at_s: u64,
    /// How often it was used.
    pub used: u32,
    /// Who used it last, up to [`USES_KEPT_MAX`].
    pub uses: VecDeque<TokenUse>,
    /// Whether it was revoked.
    pub is_revoked: bool,
}

impl Token {
    /// Whether somebody new can use it at this second.
    #[must_use]
    pub fn is_usable(&self, at_s: u64) -> bool {
        let is_used_up = self.used >= self.terms.uses_max;
        !self.is_revoked && !is_used_up && at_s < self.terms.expires_at_s
    }
}

/// What a node shows to be let in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credential {
    /// What it is let in for.
    pub role: AccessRole,
    /// What people call it.
    pub name: String,
    /// Its key, as a digest.
    pub key: Digest,
    /// The token it was given for; none for those who were there first.
    pub token: Option<TokenId>,
    /// When it was given, or renewed last.
    pub issued_at_s: u64,
    /// From this second of the Unix clock on it does not hold any more, unless it is renewed.
    pub expires_at_s: u64,
    /// Whether it is forgotten once the node is gone for good and was not removed.
    pub is_ephemeral: bool,
    /// Whether it was revoked.
    pub is_revoked: bool,
}

/// What happens to tokens and credentials. Times are those of the leader that proposes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AccessChange {
    /// A token is made.
    TokenMade {
        /// Its name, which whoever makes it draws.
        token: TokenId,
        /// What it is good for.
        terms: TokenTerms,
        /// When.
        at_s: u64,
    },
    /// A token is not good any more.
    TokenRevoked {
        /// Which.
        token: TokenId,
    },
    /// Somebody who proved to know a token's secret is let in, and becomes a node.
    TokenUsed {
        /// The token.
        token: TokenId,
        /// The key of who is let in, as a digest.
        key: Digest,
        /// The name it wants.
        name: String,
        /// What it wants to be let in for.
        role: AccessRole,
        /// When.
        at_s: u64,
        /// When its credential ends.
        expires_at_s: u64,
    },
    /// A node that is known has a newer credential, perhaps with another key.
    Renewed {
        /// The node.
        node: NodeId,
        /// Its key, as a digest.
        key: Digest,
        /// When.
        at_s: u64,
        /// When the credential ends.
        expires_at_s: u64,
    },
    /// A node is not let in any more. If it is a member, it is lost.
    Revoked {
        /// The node.
        node: NodeId,
    },
    /// An ephemeral node is gone for so long that it is forgotten.
    Forgotten {
        /// The node.
        node: NodeId,
    },
    /// One authority follows another.
    Authority(AuthorityChange),
}

/// What a change of tokens and credentials came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccessOutcome {
    /// There is such a token.
    TokenMade {
        /// Which.
        token: TokenId,
    },
    /// It is not good any more.
    TokenRevoked {
        /// Which.
        token: TokenId,
    },
    /// Somebody is let in.
    LetIn {
        /// The token used.
        token: TokenId,
        /// The key, as a digest.
        key: Digest,
        /// The node it is.
        node: NodeId,
        /// Whether it was let in before with this token and key; then nothing changed.
        is_repeated: bool,
    },
    /// A credential holds for longer.
    Renewed {
        /// Whose.
        node: NodeId,
    },
    /// A node is not let in any more.
    Revoked {
        /// Which.
        node: NodeId,
    },
    /// A node is not known any more.
    Forgotten {
        /// Which.
        node: NodeId,
    },
    /// The change of authority is so far.
    Authority {
        /// How far.
        phase: RotationPhase,
        /// Tokens that are revoked with it.
        revoked: Vec<TokenId>,
    },
}
