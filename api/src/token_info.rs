//! Tokens that admit nodes and people, as they are listed.

use std::collections::BTreeMap;

use zbelastic_consensus::access::{AccessRegistry, AccessRole, Credential, TokenId, TokenRecord};

use crate::{TokenInfo, TokenRole};

/// The descriptions of all tokens: of those that are remembered, and of those that nodes or people
/// joined with who are let in.
#[must_use]
pub fn token_infos(access: &AccessRegistry) -> Vec<TokenInfo> {
    let known = access.tokens().iter().map(|(id, token)| token_info(*id, token));
    let mut forgotten: BTreeMap<TokenId, TokenInfo> = BTreeMap::new();
    let let_in = access.credentials().values().filter(|credential| !credential.is_revoked);
    for credential in let_in {
        let Some(id) = credential.token.filter(|id| !access.tokens().contains_key(id)) else {
            continue;
        };
        let info = forgotten.entry(id).or_insert_with(|| forgotten_token(id, credential));
        info.used += 1;
        info.uses = info.used;
    }
    known.chain(forgotten.into_values()).collect()
}

/// A token that is not remembered, as it let nobody in any more. `credential` is of one who joined
/// with it.
fn forgotten_token(id: TokenId, credential: &Credential) -> TokenInfo {
    let joined_ms = credential.issued_at_s * 1000;
    TokenInfo {
        id: id.to_string(),
        role: token_role(credential.role),
        created_ms: joined_ms,
        expires_ms: joined_ms,
        uses: 0,
        used: 0,
        ephemeral: credential.is_ephemeral,
        revoked: true,
        note: Some("not remembered; who joined with it is let in".to_owned()),
    }
}

/// The role that a token admits, as the API names it. No token admits an administrator.
#[must_use]
pub const fn token_role(role: AccessRole) -> TokenRole {
    match role {
        AccessRole::Controller => TokenRole::Controller,
        AccessRole::Worker => TokenRole::Worker,
        AccessRole::Operator | AccessRole::Admin => TokenRole::Operator,
        AccessRole::Viewer => TokenRole::Viewer,
    }
}

/// The description of a token.
#[must_use]
pub fn token_info(id: TokenId, token: &TokenRecord) -> TokenInfo {
    let terms = &token.terms;
    TokenInfo {
        id: id.to_string(),
        role: token_role(terms.role),
        created_ms: token.made_at_s * 1000,
        expires_ms: terms.expires_at_s * 1000,
        uses: terms.uses_max,
        used: token.used,
        ephemeral: terms.is_ephemeral,
        revoked: token.is_revoked,
        note: Some(terms.note.clone()).filter(|note| !note.is_empty()),
    }
}

#[cfg(test)]
mod tests {
    use zbelastic_consensus::access::{AccessChange, TOKENS_MAX, TokenTerms};
    use zbelastic_consensus::{Entry, State};
    use zbelastic_types::{ClusterId, Digest, NodeId};

    use super::*;

    /// A cluster remembers so many tokens; whoever joined with one that is forgotten can be removed
    /// by its id as before.
    #[test]
    fn a_token_that_was_evicted_is_listed_and_its_nodes_are_found() {
        let mut state = State::new(ClusterId(7));
        let mut index = 0;
        let mut apply = |change: AccessChange| {
            index += 1;
            state.apply(index, Entry::Access(change)).expect("it fits");
            state.membership().access().clone()
        };
        let make = |number: u64, uses_max: u32| AccessChange::TokenMade {
            token: TokenId(number),
            terms: TokenTerms {
                role: AccessRole::Worker,
                verifier: [0; 32],
                authority: Digest([7; 32]),
                expires_at_s: 2000,
                uses_max,
                is_ephemeral: false,
                note: String::new(),
            },
            at_s: 1000,
        };
        let first = TokenId(1);
        apply(make(1, 1));
        let (at_s, expires_at_s) = (1000, 1500);
        let name = "w".to_owned();
        let role = AccessRole::Worker;
        let key = Digest([9; 32]);
        apply(AccessChange::TokenUsed { token: first, key, name, role, at_s, expires_at_s });
        let mut access = apply(make(2, 2));
        assert!(!access.is_spent_with_nodes(first), "it is used up, and can be revoked");
        for number in 3..=TOKENS_MAX as u64 + 1 {
            access = apply(make(number, 2));
        }
        assert!(!access.tokens().contains_key(&first));
        let infos = token_infos(&access);
        assert_eq!(infos.len(), TOKENS_MAX + 1);
        let info = infos.iter().find(|info| info.id == first.to_string()).expect("listed");
        assert!(info.revoked && info.used == 1);
        assert_eq!(access.joined_with(first), [NodeId(1)]);
        assert!(access.is_spent_with_nodes(first));
        access = apply(AccessChange::Revoked { node: NodeId(1) });
        assert!(!access.is_spent_with_nodes(first));
        assert_eq!(token_infos(&access).len(), TOKENS_MAX);
    }
}
