//! Who may take part: tokens, and the credentials that were given for them.
//!
//! A *token* lets somebody in who is not known yet; a *credential* is what a node has once it was
//! let in. Both are part of what is agreed, so a token that may be used once is used once whoever
//! leads. There is no cryptography here: a verifier and a key are 32 bytes that somebody else made
//! and compares. There is no clock either: an entry carries the time of the leader that proposed it,
//! and every node applies that.
//!
//! A `NodeId` is given when a token's use is agreed on, and never twice.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use zbelastic_types::{Digest, NodeId};

use crate::contact::{ContactRefusal, check_name};
use crate::member::Role;

/// Tokens remembered. For a new one the oldest that nobody can use any more is forgotten.
pub const TOKENS_MAX: usize = 64;
/// Times that one token may be used.
pub const TOKEN_USES_MAX: u32 = 128;
/// Bytes of a token's note.
pub const NOTE_BYTES_MAX: usize = 128;
/// Credentials remembered. For a new one the oldest expired one of a node that is no member that is
/// counted on is forgotten.
pub const CREDENTIALS_MAX: usize = 1024;
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
    Observer,
}

impl AccessRole {
    /// What such a node is as a member, if it can be one.
    #[must_use]
    pub const fn member_role(self) -> Option<Role> {
        match self {
            Self::Controller => Some(Role::Controller),
            Self::Worker => Some(Role::Worker),
            Self::Admin | Self::Observer => None,
        }
    }
}

impl fmt::Display for AccessRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Admin => "admin",
            Self::Controller => "controller",
            Self::Worker => "worker",
            Self::Observer => "observer",
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
    /// Who used it.
    pub uses: Vec<TokenUse>,
    /// Whether it was revoked.
    pub is_revoked: bool,
}

impl Token {
    /// Whether somebody new can use it at this second.
    #[must_use]
    pub fn is_usable(&self, at_s: u64) -> bool {
        let is_used_up = self.uses.len() >= self.terms.uses_max as usize;
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
    /// Whether it is forgotten once the node is gone for good.
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
}

/// Why a change of tokens and credentials changed nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessRefusal {
    /// There is no such token.
    #[error("no token {token}")]
    UnknownToken {
        /// The one named.
        token: TokenId,
    },
    /// There is one of that name.
    #[error("there is a token {token} already")]
    TokenKnown {
        /// The name.
        token: TokenId,
    },
    /// Its time is over.
    #[error("token {token} expired at second {expired_at_s}, it is {at_s}")]
    TokenExpired {
        /// The token.
        token: TokenId,
        /// When it expired.
        expired_at_s: u64,
        /// When it was used.
        at_s: u64,
    },
    /// It was used as often as it may be.
    #[error("token {token} was used {uses_max} times, as often as it may be")]
    TokenUsedUp {
        /// The token.
        token: TokenId,
        /// How often.
        uses_max: u32,
    },
    /// It was revoked.
    #[error("token {token} was revoked")]
    TokenRevoked {
        /// The token.
        token: TokenId,
    },
    /// It lets in for something else.
    #[error("token {token} is for role {expected}, not for {found}")]
    TokenRole {
        /// The token.
        token: TokenId,
        /// What it is for.
        expected: AccessRole,
        /// What was asked.
        found: AccessRole,
    },
    /// It may not be used that often.
    #[error("{found} uses, 1 to {TOKEN_USES_MAX} allowed")]
    Uses {
        /// Uses asked.
        found: u32,
    },
    /// Its note is too long.
    #[error("a note of {found} bytes, at most {NOTE_BYTES_MAX}")]
    Note {
        /// Bytes found.
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
        /// When it begins.
        at_s: u64,
        /// When it ends.
        expires_at_s: u64,
    },
    /// As many credentials as there may be hold still, or are of members.
    #[error("{CREDENTIALS_MAX} credentials that cannot be forgotten; remove a node first")]
    TooManyCredentials,
    /// The node has no credential.
    #[error("node {node} has no credential")]
    NoCredential {
        /// The node.
        node: NodeId,
    },
    /// Its credential was revoked.
    #[error("the credential of node {node} was revoked")]
    Revoked {
        /// The node.
        node: NodeId,
    },
    /// Nobody would be left who votes.
    #[error("node {node} is the last controller")]
    LastController {
        /// The node.
        node: NodeId,
    },
    /// It is not ephemeral, or it is counted on.
    #[error("node {node} is not to be forgotten")]
    NotForgotten {
        /// The node.
        node: NodeId,
    },
}

impl AccessRefusal {
    /// The word under which it is counted.
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
        }
    }
}

/// Tokens and credentials as they are agreed on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Access {
    tokens: BTreeMap<TokenId, Token>,
    credentials: BTreeMap<NodeId, Credential>,
    /// The number the next node takes.
    node_next: NodeId,
}

impl Default for Access {
    fn default() -> Self {
        Self { tokens: BTreeMap::new(), credentials: BTreeMap::new(), node_next: NodeId(1) }
    }
}

impl Access {
    /// The tokens.
    #[must_use]
    pub fn tokens(&self) -> &BTreeMap<TokenId, Token> {
        &self.tokens
    }

    /// The credentials, revoked ones included.
    #[must_use]
    pub fn credentials(&self) -> &BTreeMap<NodeId, Credential> {
        &self.credentials
    }

    /// The number the next node takes.
    #[must_use]
    pub fn node_next(&self) -> NodeId {
        self.node_next
    }

    /// The credential of a node, unless it was revoked. Whether its time is over is for whoever
    /// has a clock to say.
    #[must_use]
    pub fn credential(&self, node: NodeId) -> Option<&Credential> {
        self.credentials.get(&node).filter(|credential| !credential.is_revoked)
    }

    /// Whether a node is let in as a member of this role.
    #[must_use]
    pub fn lets_in(&self, node: NodeId, role: Role) -> bool {
        let credential = self.credential(node);
        credential.is_some_and(|credential| credential.role.member_role() == Some(role))
    }

    /// Numbers up to this one are given.
    pub(crate) fn reserve(&mut self, node: NodeId) {
        self.node_next = self.node_next.max(node.next());
    }

    /// A credential of somebody who was there first.
    pub(crate) fn grant(&mut self, node: NodeId, credential: Credential) {
        self.reserve(node);
        self.credentials.insert(node, credential);
    }

    /// Checks the terms of a new token.
    pub(crate) fn check_made(
        &self,
        token: TokenId,
        terms: &TokenTerms,
        at_s: u64,
    ) -> Result<(), AccessRefusal> {
        if self.tokens.contains_key(&token) {
            return Err(AccessRefusal::TokenKnown { token });
        }
        let expired_at_s = terms.expires_at_s;
        if at_s >= expired_at_s {
            return Err(AccessRefusal::TokenExpired { token, expired_at_s, at_s });
        }
        if !(1..=TOKEN_USES_MAX).contains(&terms.uses_max) {
            return Err(AccessRefusal::Uses { found: terms.uses_max });
        }
        if terms.note.len() > NOTE_BYTES_MAX {
            return Err(AccessRefusal::Note { found: terms.note.len() });
        }
        let is_full = self.tokens.len() >= TOKENS_MAX;
        match self.oldest_dead_token(at_s) {
            None if is_full => Err(AccessRefusal::TooManyTokens),
            Some(_) | None => Ok(()),
        }
    }

    /// Remembers a token that was checked.
    pub(crate) fn make(&mut self, token: TokenId, terms: TokenTerms, at_s: u64) {
        if self.tokens.len() >= TOKENS_MAX {
            let oldest = self.oldest_dead_token(at_s).expect("checked before");
            self.tokens.remove(&oldest);
        }
        let record = Token { terms, made_at_s: at_s, uses: Vec::new(), is_revoked: false };
        self.tokens.insert(token, record);
    }

    /// The oldest token that nobody new can use.
    fn oldest_dead_token(&self, at_s: u64) -> Option<TokenId> {
        let dead = self.tokens.iter().filter(|(_, token)| !token.is_usable(at_s));
        dead.min_by_key(|(id, token)| (token.made_at_s, **id)).map(|(id, _)| *id)
    }

    /// A token that can be revoked.
    pub(crate) fn check_token(&self, token: TokenId) -> Result<&Token, AccessRefusal> {
        let found = self.tokens.get(&token).ok_or(AccessRefusal::UnknownToken { token })?;
        if found.is_revoked { Err(AccessRefusal::TokenRevoked { token }) } else { Ok(found) }
    }

    /// Revokes a token that was checked.
    pub(crate) fn revoke_token(&mut self, token: TokenId) {
        self.tokens.get_mut(&token).expect("checked before").is_revoked = true;
    }

    /// Checks the use of a token. Yields the node that this key became with it before, if it did.
    pub(crate) fn check_used(
        &self,
        (token, key): (TokenId, Digest),
        name: &str,
        role: AccessRole,
        (at_s, expires_at_s): (u64, u64),
        is_member: impl Fn(NodeId) -> bool,
    ) -> Result<Option<NodeId>, AccessRefusal> {
        let found = self.check_token(token)?;
        let terms = &found.terms;
        if terms.role != role {
            return Err(AccessRefusal::TokenRole { token, expected: terms.role, found: role });
        }
        if let Some(used) = found.uses.iter().find(|used| used.key == key) {
            self.check_known(used.node)?;
            return Ok(Some(used.node));
        }
        let expired_at_s = terms.expires_at_s;
        if at_s >= expired_at_s {
            return Err(AccessRefusal::TokenExpired { token, expired_at_s, at_s });
        }
        if found.uses.len() >= terms.uses_max as usize {
            return Err(AccessRefusal::TokenUsedUp { token, uses_max: terms.uses_max });
        }
        check_name(name)?;
        check_term(at_s, expires_at_s)?;
        let is_full = self.credentials.len() >= CREDENTIALS_MAX;
        match self.oldest_expired(at_s, is_member) {
            None if is_full => Err(AccessRefusal::TooManyCredentials),
            Some(_) | None => Ok(None),
        }
    }

    /// Lets somebody in whose use of a token was checked. Yields the node it becomes.
    pub(crate) fn let_in(
        &mut self,
        (token, key): (TokenId, Digest),
        name: String,
        (at_s, expires_at_s): (u64, u64),
        is_member: impl Fn(NodeId) -> bool,
    ) -> NodeId {
        if self.credentials.len() >= CREDENTIALS_MAX {
            let oldest = self.oldest_expired(at_s, is_member).expect("checked before");
            self.credentials.remove(&oldest);
        }
        let node = self.node_next;
        self.reserve(node);
        let used = self.tokens.get_mut(&token).expect("checked before");
        used.uses.push(TokenUse { key, node, at_s });
        let TokenTerms { role, is_ephemeral, .. } = used.terms;
        let credential = Credential {
            role,
            name,
            key,
            token: Some(token),
            issued_at_s: at_s,
            expires_at_s,
            is_ephemeral,
            is_revoked: false,
        };
        self.credentials.insert(node, credential);
        node
    }

    /// Of the credentials that do not hold any more, and are not of members, the first to expire.
    fn oldest_expired(&self, at_s: u64, is_member: impl Fn(NodeId) -> bool) -> Option<NodeId> {
        let expired = self.credentials.iter().filter(|(_, found)| found.expires_at_s <= at_s);
        let free = expired.filter(|(node, _)| !is_member(**node));
        free.min_by_key(|(node, found)| (found.expires_at_s, **node)).map(|(node, _)| *node)
    }

    /// A credential that was not revoked.
    pub(crate) fn check_known(&self, node: NodeId) -> Result<&Credential, AccessRefusal> {
        let found = self.credentials.get(&node).ok_or(AccessRefusal::NoCredential { node })?;
        if found.is_revoked { Err(AccessRefusal::Revoked { node }) } else { Ok(found) }
    }

    /// Checks a renewal.
    pub(crate) fn check_renewed(
        &self,
        node: NodeId,
        (at_s, expires_at_s): (u64, u64),
    ) -> Result<(), AccessRefusal> {
        self.check_known(node)?;
        check_term(at_s, expires_at_s)
    }

    /// Renews a credential that was checked.
    pub(crate) fn renew(&mut self, node: NodeId, key: Digest, (at_s, expires_at_s): (u64, u64)) {
        let found = self.credentials.get_mut(&node).expect("checked before");
        (found.key, found.issued_at_s, found.expires_at_s) = (key, at_s, expires_at_s);
    }

    /// Revokes a credential, if there is one. One that is ephemeral is not kept.
    pub(crate) fn revoke(&mut self, node: NodeId) {
        if let Some(found) = self.credentials.get_mut(&node) {
            found.is_revoked = true;
        }
        self.forget_ephemeral(node);
    }

    /// Forgets the credential of an ephemeral node.
    pub(crate) fn forget_ephemeral(&mut self, node: NodeId) {
        if self.credentials.get(&node).is_some_and(|found| found.is_ephemeral) {
            self.credentials.remove(&node);
        }
    }
}

fn check_term(at_s: u64, expires_at_s: u64) -> Result<(), AccessRefusal> {
    let term_s = expires_at_s.saturating_sub(at_s);
    if (1..=CREDENTIAL_S_MAX).contains(&term_s) {
        Ok(())
    } else {
        Err(AccessRefusal::Term { at_s, expires_at_s })
    }
}
