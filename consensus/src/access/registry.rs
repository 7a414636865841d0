//! The records of tokens and credentials. Everything is checked before it is written.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};
use zbelastic_types::{Digest, NodeId};

use super::{
    AccessRefusal, AccessRole, CREDENTIAL_S_MAX, CREDENTIALS_MAX, Credential, NOTE_BYTES_MAX,
    Rotation, TOKEN_USES_MAX, TOKENS_MAX, TokenId, TokenRecord, TokenTerms, TokenUse,
    USES_KEPT_MAX,
};
use crate::contact::check_name;
use crate::member::Role;
use crate::mutant::{self, Mutant};

/// Tokens and credentials as they are agreed on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AccessRegistry {
    pub(super) tokens: BTreeMap<TokenId, TokenRecord>,
    credentials: BTreeMap<NodeId, Credential>,
    /// The number of the next node.
    node_next: NodeId,
    /// The last change of authority.
    pub(super) rotation: Option<Rotation>,
}

impl Default for AccessRegistry {
    fn default() -> Self {
        let tokens = BTreeMap::new();
        let credentials = BTreeMap::new();
        Self { tokens, credentials, node_next: NodeId(1), rotation: None }
    }
}

impl AccessRegistry {
    /// All tokens that are remembered, by number.
    #[must_use]
    pub fn tokens(&self) -> &BTreeMap<TokenId, TokenRecord> {
        &self.tokens
    }

    /// The credentials, revoked ones included.
    #[must_use]
    pub fn credentials(&self) -> &BTreeMap<NodeId, Credential> {
        &self.credentials
    }

    /// The number of the next node.
    #[must_use]
    pub fn node_next(&self) -> NodeId {
        self.node_next
    }

    /// The credential of a node, unless it was revoked. The caller, which has a clock, checks
    /// whether it has expired.
    #[must_use]
    pub fn credential(&self, node: NodeId) -> Option<&Credential> {
        self.credentials.get(&node).filter(|credential| !credential.is_revoked)
    }

    /// Whether a node is authorized as a member of this role.
    #[must_use]
    pub fn authorizes(&self, node: NodeId, role: Role) -> bool {
        let credential = self.credential(node);
        credential.is_some_and(|credential| credential.role.member_role() == Some(role))
    }

    /// Nodes and people that joined with a token and are let in.
    #[must_use]
    pub fn joined_with(&self, token: TokenId) -> Vec<NodeId> {
        let credentials = self.credentials.iter().filter(|(_, found)| !found.is_revoked);
        let of_token = credentials.filter(|(_, credential)| credential.token == Some(token));
        of_token.map(|(node, _)| *node).collect()
    }

    /// Whether a token lets nobody in any more, and somebody who joined with it is still let in.
    #[must_use]
    pub fn is_spent_with_nodes(&self, token: TokenId) -> bool {
        let is_spent = self.tokens.get(&token).is_none_or(|token| token.is_revoked);
        is_spent && !self.joined_with(token).is_empty()
    }

    /// Numbers up to this one are given.
    pub(crate) fn reserve(&mut self, node: NodeId) {
        self.node_next = self.node_next.max(node.next());
    }

    /// Stores a credential that the cluster begins with.
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
        let record = TokenRecord {
            terms,
            made_at_s: at_s,
            used: 0,
            uses: VecDeque::new(),
            is_revoked: false,
        };
        self.tokens.insert(token, record);
    }

    /// The oldest token that no new key can use.
    fn oldest_dead_token(&self, at_s: u64) -> Option<TokenId> {
        let dead = self.tokens.iter().filter(|(_, token)| !token.is_usable(at_s));
        dead.min_by_key(|(id, token)| (token.made_at_s, **id)).map(|(id, _)| *id)
    }

    /// A token that can be revoked.
    pub(crate) fn check_token(&self, token: TokenId) -> Result<&TokenRecord, AccessRefusal> {
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
        if found.used >= terms.uses_max {
            return Err(AccessRefusal::TokenUsedUp { token, uses_max: terms.uses_max });
        }
        check_name(name)?;
        check_term(at_s, expires_at_s)?;
        let is_full = self.credentials.len() >= CREDENTIALS_MAX;
        match self.first_to_forget(at_s, is_member) {
            None if is_full => Err(AccessRefusal::TooManyCredentials),
            Some(_) | None => Ok(None),
        }
    }

    /// Admits the sender of a use that was checked. Yields the node it becomes.
    pub(crate) fn redeem_token(
        &mut self,
        (token, key): (TokenId, Digest),
        name: String,
        (at_s, expires_at_s): (u64, u64),
        is_member: impl Fn(NodeId) -> bool,
    ) -> NodeId {
        if self.credentials.len() >= CREDENTIALS_MAX {
            let oldest = self.first_to_forget(at_s, is_member).expect("checked before");
            self.credentials.remove(&oldest);
        }
        let node = self.node_next;
        self.reserve(node);
        let used = self.tokens.get_mut(&token).expect("checked before");
        if used.uses.len() == USES_KEPT_MAX {
            used.uses.pop_front();
        }
        used.used += 1;
        used.uses.push_back(TokenUse { key, node, at_s });
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

    /// Of the credentials that are not of members, the first to have expired; if none has, that of
    /// the worker whose credential was issued longest ago. A revoked one is known until it expires.
    fn first_to_forget(&self, at_s: u64, is_member: impl Fn(NodeId) -> bool) -> Option<NodeId> {
        let free = || self.credentials.iter().filter(|(node, _)| !is_member(**node));
        let expired = free().filter(|(_, found)| found.expires_at_s <= at_s);
        let expired = expired.min_by_key(|(node, found)| (found.expires_at_s, **node));
        let is_worker = |found: &Credential| found.role == AccessRole::Worker && !found.is_revoked;
        let away = free().filter(|(_, found)| is_worker(found));
        let away = || away.min_by_key(|(node, found)| (found.issued_at_s, **node));
        expired.or_else(away).map(|(node, _)| *node)
    }

    /// A credential that was not revoked.
    pub(crate) fn check_known(&self, node: NodeId) -> Result<&Credential, AccessRefusal> {
        let found = self.credentials.get(&node).ok_or(AccessRefusal::NoCredential { node })?;
        if found.is_revoked { Err(AccessRefusal::Revoked { node }) } else { Ok(found) }
    }

    /// Checks the node and the term of a renewal.
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

    /// Revokes a credential, if there is one. It is known until its time is over, ephemeral or not:
    /// so long the certificate holds that the node has.
    pub(crate) fn revoke(&mut self, node: NodeId) {
        if let Some(found) = self.credentials.get_mut(&node) {
            found.is_revoked = true;
            if found.is_ephemeral && mutant::is(Mutant::M40RemovalForgotten) {
                self.credentials.remove(&node);
            }
        }
    }

    /// Nodes with a revoked credential.
    pub fn revoked(&self) -> impl Iterator<Item = NodeId> {
        let revoked = self.credentials.iter().filter(|(_, found)| found.is_revoked);
        revoked.map(|(node, _)| *node)
    }

    /// Forgets the credential of an ephemeral node, unless it was revoked.
    pub(crate) fn forget_ephemeral(&mut self, node: NodeId) {
        let is_gone = |found: &Credential| found.is_ephemeral && !found.is_revoked;
        if self.credentials.get(&node).is_some_and(is_gone) {
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
