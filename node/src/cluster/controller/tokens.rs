//! Tokens that admit nodes and people, as clients create them.

use zbelastic_consensus::access::{AccessChange, AccessRole, TokenId, TokenTerms};
use zbelastic_identity::{JoinToken, PeerRole, SpkiPin};
use zbelastic_types::Digest;

use zbelastic_api::{TokenRequest, TokenRole};

/// A token that was made, and is to be agreed on.
pub(super) struct NewToken {
    pub(super) id: TokenId,
    /// The token itself, secret and all.
    pub(super) text: String,
    pub(super) change: AccessChange,
}

impl NewToken {
    /// Makes a token of an authority, `at_s` seconds since 1970.
    pub(super) fn create(request: TokenRequest, authority: SpkiPin, at_s: u64) -> Self {
        let (role, token_role) = match request.role {
            TokenRole::Controller => (AccessRole::Controller, PeerRole::Controller),
            TokenRole::Worker => (AccessRole::Worker, PeerRole::Worker),
            TokenRole::Operator => (AccessRole::Operator, PeerRole::Operator),
            TokenRole::Viewer => (AccessRole::Viewer, PeerRole::Viewer),
        };
        let token = JoinToken::create(token_role, authority);
        let id = TokenId(token.id().0);
        let terms = TokenTerms {
            role,
            verifier: token.verifier().to_bytes(),
            authority: Digest(authority.0),
            expires_at_s: at_s.saturating_add(request.ttl_s),
            uses_max: request.uses,
            is_ephemeral: request.ephemeral,
            note: request.note.unwrap_or_default(),
        };
        let change = AccessChange::TokenMade { token: id, terms, at_s };
        Self { id, text: token.reveal(), change }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_agreed_on_with_the_terms_that_were_requested() {
        let request = TokenRequest {
            role: TokenRole::Viewer,
            ttl_s: 60,
            uses: 3,
            ephemeral: true,
            note: Some("for a screen".to_owned()),
        };
        let NewToken { id, text, change } = NewToken::create(request, SpkiPin([7; 32]), 1000);
        let AccessChange::TokenMade { token, terms, at_s } = change else { panic!("{change:?}") };
        assert_eq!((token, at_s, terms.expires_at_s), (id, 1000, 1060));
        assert_eq!((terms.role, terms.uses_max, terms.is_ephemeral), (AccessRole::Viewer, 3, true));
        assert_eq!((terms.note.as_str(), terms.authority), ("for a screen", Digest([7; 32])));
        assert!(JoinToken::parse(&text).is_ok_and(|parsed| parsed.id().0 == id.0));
    }
}
