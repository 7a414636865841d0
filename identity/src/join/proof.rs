//! The proof that a joiner holds a token, bound to the channel it is shown on.

use std::fmt;

use ring::digest::{SHA256, digest};
use ring::hmac;

use super::super::role::PeerRole;
use super::super::token::TokenVerifier;

/// The name under which TLS derives the channel's own value.
const EXPORTER_LABEL: &[u8] = b"EXPORTER-zbe-join/1";
const PROOF_LABEL: &[u8] = b"zbelastic join proof 1";

/// A value that both ends of one TLS connection know, and no third party; another connection has
/// another one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ChannelBinding(pub(super) [u8; 32]);

/// A connection with an incomplete handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the connection has no value of its own: its handshake is not complete")]
pub struct BindingFault;

impl ChannelBinding {
    /// The value of this connection.
    ///
    /// # Errors
    /// If its handshake is not complete.
    pub fn of(connection: &quinn::Connection) -> Result<Self, BindingFault> {
        let mut value = [0_u8; 32];
        connection
            .export_keying_material(&mut value, EXPORTER_LABEL, b"")
            .map_err(|_| BindingFault)?;
        Ok(Self(value))
    }
}

/// Prints nothing of the value: a peer that knew it could pass a proof on.
impl fmt::Debug for ChannelBinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ChannelBinding(..)")
    }
}

/// The claim that a proof is about.
#[derive(Clone, Copy)]
pub(super) struct ProofClaim<'a> {
    pub channel: &'a ChannelBinding,
    /// The digest of the signing request.
    pub request: &'a [u8; 32],
    pub role: PeerRole,
    pub name: &'a str,
}

/// The digest of a signing request's bytes.
pub(super) fn request_digest(request: &[u8]) -> [u8; 32] {
    digest(&SHA256, request).as_ref().try_into().expect("SHA-256 has 32 bytes")
}

impl ProofClaim<'_> {
    /// The bytes of the claim. Only the last part has no fixed length, so no two claims share them.
    fn bytes(&self) -> Vec<u8> {
        let role = [self.role.letter() as u8];
        let parts: [&[u8]; 5] =
            [PROOF_LABEL, &self.channel.0, self.request, &role, self.name.as_bytes()];
        parts.concat()
    }

    pub(super) fn prove(&self, verifier: &TokenVerifier) -> [u8; 32] {
        let tag = hmac::sign(&verifier.hmac_key(), &self.bytes());
        tag.as_ref().try_into().expect("HMAC-SHA-256 has 32 bytes")
    }

    /// Whether `proof` is of this claim. Takes the same time for every wrong proof.
    pub(super) fn is_proved_by(&self, verifier: &TokenVerifier, proof: &[u8; 32]) -> bool {
        hmac::verify(&verifier.hmac_key(), &self.bytes(), proof).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::certificate::SpkiPin;
    use super::super::super::token::JoinToken;
    use super::*;

    #[test]
    fn a_proof_is_of_one_channel_one_request_one_role_and_one_name() {
        let verifier = JoinToken::create(PeerRole::Worker, SpkiPin([0; 32])).verifier();
        let channel = ChannelBinding([1; 32]);
        let request = [2; 32];
        let claim = ProofClaim {
            channel: &channel,
            request: &request,
            role: PeerRole::Worker,
            name: "gpu-7",
        };
        let proof = claim.prove(&verifier);
        assert!(claim.is_proved_by(&verifier, &proof));

        let others = [
            ProofClaim { channel: &ChannelBinding([9; 32]), ..claim },
            ProofClaim { request: &[9; 32], ..claim },
            ProofClaim { role: PeerRole::Controller, ..claim },
            ProofClaim { name: "gpu-8", ..claim },
        ];
        for other in others {
            assert!(!other.is_proved_by(&verifier, &proof));
        }
        let another = JoinToken::create(PeerRole::Worker, SpkiPin([0; 32])).verifier();
        assert!(!claim.is_proved_by(&another, &proof));
        for position in 0..proof.len() {
            let mut wrong = proof;
            wrong[position] ^= 1;
            assert!(!claim.is_proved_by(&verifier, &wrong));
        }
    }
}
