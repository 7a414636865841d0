//! The proofs that a member shows, and the roots that it trusts: its certificates, its key, its
//! roots.

use std::fmt;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, ServerConfig};
use thiserror::Error;
use zbelastic_types::ClusterId;

use super::certificate::{
    CertificateFault, MemberCertificate, SerialNumber, SpkiPin, check_chain_size, read_authority,
    read_member,
};
use super::clock::{UnixSeconds, ValidityWindow};
use super::key::NodeKey;
use super::peer::{PeerIdentity, cluster_text};
use super::tls::{self, AcceptedDiallers, MemberTls};
use super::verify::{ExpectedPeer, PeerCheck, PeerIdentityRefusal};

/// A member's own certificates and key, and the authorities it trusts. Cheap to clone.
#[derive(Clone)]
pub struct Credentials {
    parts: Arc<CredentialParts>,
}

struct CredentialParts {
    chain: Vec<CertificateDer<'static>>,
    key: NodeKey,
    roots: Vec<CertificateDer<'static>>,
    own: MemberCertificate,
}

/// Why parts make no credentials.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum CredentialsFault {
    /// One of the certificates is none.
    #[error(transparent)]
    Certificate(#[from] CertificateFault),
    /// The key is not the one that the certificate is for.
    #[error("the key is not the one the certificate is for")]
    OtherKey,
    /// A root is of another cluster than the certificate.
    #[error(
        "a root of cluster {} beside a certificate of cluster {}",
        cluster_text(*found),
        cluster_text(*expected)
    )]
    OtherRoot {
        /// The cluster in the member's certificate.
        expected: ClusterId,
        /// The cluster in the root's certificate.
        found: ClusterId,
    },
    /// A root cannot be used.
    #[error("a root that cannot be used: {0}")]
    Root(rustls::Error),
}

impl Credentials {
    /// Puts the parts together. `chain` begins with the member's own certificate.
    ///
    /// # Errors
    /// If the parts do not belong together. Whether they are good now is another question:
    /// [`Credentials::check_own`].
    pub fn new(
        chain: Vec<CertificateDer<'static>>,
        key: NodeKey,
        roots: Vec<CertificateDer<'static>>,
    ) -> Result<Self, CredentialsFault> {
        check_chain_size(&chain)?;
        check_chain_size(&roots)?;
        let own = read_member(&chain[0])?;
        if own.key.0 != key.digest().0 {
            return Err(CredentialsFault::OtherKey);
        }
        for root in &roots {
            let expected = own.identity.cluster;
            let found = read_authority(root)?.cluster;
            if expected != found {
                return Err(CredentialsFault::OtherRoot { expected, found });
            }
        }
        let credentials = Self { parts: Arc::new(CredentialParts { chain, key, roots, own }) };
        credentials.peer_check().map_err(CredentialsFault::Root)?;
        Ok(credentials)
    }

    /// The member's identity, as its certificate names it.
    #[must_use]
    pub fn identity(&self) -> PeerIdentity {
        self.parts.own.identity
    }

    /// From when to when the certificate is good.
    #[must_use]
    pub fn window(&self) -> ValidityWindow {
        self.parts.own.window
    }

    /// The number of the certificate.
    #[must_use]
    pub fn serial(&self) -> &SerialNumber {
        &self.parts.own.serial
    }

    /// The certificates this member shows, its own first.
    #[must_use]
    pub fn chain(&self) -> &[CertificateDer<'static>] {
        &self.parts.chain
    }

    /// The authorities it trusts.
    #[must_use]
    pub fn roots(&self) -> &[CertificateDer<'static>] {
        &self.parts.roots
    }

    /// Whether it trusts the authority with this key.
    #[must_use]
    pub fn trusts(&self, pin: SpkiPin) -> bool {
        let has_key = |root: &CertificateDer<'_>| {
            read_authority(root).is_ok_and(|authority| authority.key == pin)
        };
        self.parts.roots.iter().any(has_key)
    }

    /// The key, which a renewed certificate is for as well.
    #[must_use]
    pub fn key(&self) -> &NodeKey {
        &self.parts.key
    }

    /// The same member with a renewed certificate.
    ///
    /// # Errors
    /// As [`Credentials::new`].
    pub fn renewed(&self, chain: Vec<CertificateDer<'static>>) -> Result<Self, CredentialsFault> {
        Self::new(chain, self.parts.key.clone(), self.parts.roots.clone())
    }

    /// The same member, that trusts these authorities.
    ///
    /// # Errors
    /// As [`Credentials::new`].
    pub fn with_roots(
        &self,
        roots: Vec<CertificateDer<'static>>,
    ) -> Result<Self, CredentialsFault> {
        Self::new(self.parts.chain.clone(), self.parts.key.clone(), roots)
    }

    /// Whether the certificate was issued by this authority, independently of other authorities
    /// that it leads to.
    #[must_use]
    pub fn is_by(&self, authority: &CertificateDer<'static>) -> bool {
        let check = PeerCheck::new(self.identity().cluster, std::slice::from_ref(authority));
        check.is_ok_and(|check| {
            check.check(&self.parts.chain[0], &[], self.window().not_before).is_ok()
        })
    }

    /// Whether others would trust these credentials at `now`.
    ///
    /// # Errors
    /// With the refusal that others would report.
    pub fn check_own(&self, now: UnixSeconds) -> Result<(), PeerIdentityRefusal> {
        let check = self.peer_check().map_err(PeerIdentityRefusal::Untrusted)?;
        check.check(&self.parts.chain[0], &self.parts.chain[1..], now).map(|_| ())
    }

    /// The TLS configuration to accept connections with.
    ///
    /// # Errors
    /// If TLS cannot use the certificates or the key.
    pub fn server_config(&self, doors: AcceptedDiallers) -> Result<ServerConfig, rustls::Error> {
        tls::server_config(self.member_tls()?, doors)
    }

    /// The TLS configuration to dial members with.
    ///
    /// # Errors
    /// If TLS cannot use the certificates or the key.
    pub fn client_config(&self, expected: ExpectedPeer) -> Result<ClientConfig, rustls::Error> {
        tls::client_config(self.member_tls()?, expected)
    }

    pub(super) fn peer_check(&self) -> Result<PeerCheck, rustls::Error> {
        PeerCheck::new(self.identity().cluster, &self.parts.roots)
    }

    fn member_tls(&self) -> Result<MemberTls, rustls::Error> {
        let CredentialParts { chain, key, .. } = &*self.parts;
        let check = self.peer_check()?;
        Ok(MemberTls { chain: chain.clone(), key: key.private_key(), check })
    }
}

/// Prints the identity and the serial number, and nothing of the key.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("identity", &self.parts.own.identity)
            .field("serial", &self.parts.own.serial)
            .finish_non_exhaustive()
    }
}
