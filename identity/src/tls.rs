//! Our rules as configurations of TLS: version 1.3 only, no early data, no resumption (a resumed
//! session would skip the check of the certificate), and our own checks of the peer.

use std::sync::Arc;

use quinn::crypto::rustls::HandshakeData;
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::verify_tls13_signature;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::NoServerSessionStorage;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    ClientConfig, DigitallySignedStruct, DistinguishedName, Error, OtherError, PeerIncompatible,
    ServerConfig, SignatureScheme,
};
use thiserror::Error as ThisError;

use super::certificate::{CertificateFault, peer_of};
use super::clock::UnixSeconds;
use super::peer::PeerIdentity;
use super::provider::provider;
use super::verify::{ExpectedPeer, PeerCheck};

/// The protocol of a connection, as both ends agree on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AlpnProtocol {
    /// The protocol between two members.
    Member,
    /// A joiner without a certificate requests one.
    Join,
}

impl AlpnProtocol {
    /// The name under which the two sides agree on it (ALPN).
    #[must_use]
    pub const fn name(self) -> &'static [u8] {
        match self {
            Self::Member => b"zbe/1",
            Self::Join => b"zbe-join/1",
        }
    }
}

/// The diallers that an endpoint accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcceptedDiallers {
    /// Members, each with its certificate: without one there is no connection.
    Members,
    /// Joiners too. One port serves both, and TLS requests certificates before it is known which it
    /// is, so [`AcceptedPeer::of`] has to be called for each connection.
    MembersAndJoiners,
}

/// The peer of a connection that an endpoint accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcceptedPeer {
    /// A member, with the identity that its certificate names.
    Member(PeerIdentity),
    /// A joiner, which may request a certificate and nothing else.
    Joiner,
}

/// Why a connection that an endpoint accepted must be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ThisError)]
pub enum AcceptFault {
    /// Neither protocol was agreed on.
    #[error("a connection without a protocol of ours")]
    UnknownProtocol,
    /// It uses the members' protocol and did not show a member's certificate.
    #[error("a member's connection: {0}")]
    NoMember(#[from] CertificateFault),
}

impl AcceptedPeer {
    /// The peer at the other end of a connection that an endpoint accepted, once its handshake is
    /// complete. The one place where a connection without a certificate is let pass.
    ///
    /// # Errors
    /// If the connection must be closed at once.
    pub fn of(connection: &quinn::Connection) -> Result<Self, AcceptFault> {
        let protocol = connection
            .handshake_data()
            .and_then(|data| data.downcast::<HandshakeData>().ok())
            .and_then(|data| data.protocol);
        match protocol.as_deref() {
            Some(name) if name == AlpnProtocol::Join.name() => Ok(Self::Joiner),
            Some(name) if name == AlpnProtocol::Member.name() => {
                Ok(Self::Member(Self::member(connection)?))
            }
            Some(_) | None => Err(AcceptFault::UnknownProtocol),
        }
    }

    /// The member at the other end of a member's connection, dialled or accepted.
    ///
    /// # Errors
    /// If no certificate was shown.
    pub fn member(connection: &quinn::Connection) -> Result<PeerIdentity, CertificateFault> {
        let certificates = connection
            .peer_identity()
            .and_then(|identity| identity.downcast::<Vec<CertificateDer<'static>>>().ok())
            .ok_or(CertificateFault::Missing)?;
        peer_of(&certificates)
    }
}

/// The authority's certificate that the other end of a member's connection showed behind its own:
/// the one that issues there now. It is shown and not trusted.
#[must_use]
pub fn shown_authority(connection: &quinn::Connection) -> Option<CertificateDer<'static>> {
    let shown = connection.peer_identity()?.downcast::<Vec<CertificateDer<'static>>>().ok()?;
    shown.get(1).cloned()
}

/// What a member proves its own identity with, and how it checks that of its peers.
pub(super) struct MemberTls {
    /// Its certificates, its own first.
    pub(super) chain: Vec<CertificateDer<'static>>,
    pub(super) key: PrivateKeyDer<'static>,
    pub(super) check: PeerCheck,
}

pub(super) fn server_config(
    own: MemberTls,
    doors: AcceptedDiallers,
) -> Result<ServerConfig, Error> {
    let MemberTls { chain, key, check } = own;
    let mandatory = doors == AcceptedDiallers::Members;
    let verifier = Arc::new(MemberVerifier { check, expected: ExpectedPeer::AnyMember, mandatory });
    let mut config = ServerConfig::builder_with_provider(Arc::new(provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)?;
    config.alpn_protocols = match doors {
        AcceptedDiallers::Members => vec![AlpnProtocol::Member.name().to_vec()],
        AcceptedDiallers::MembersAndJoiners => {
            vec![AlpnProtocol::Member.name().to_vec(), AlpnProtocol::Join.name().to_vec()]
        }
    };
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.max_early_data_size = 0;
    Ok(config)
}

pub(super) fn client_config(own: MemberTls, expected: ExpectedPeer) -> Result<ClientConfig, Error> {
    let MemberTls { chain, key, check } = own;
    let verifier = MemberVerifier { check, expected, mandatory: true };
    let mut config = ClientConfig::builder_with_provider(Arc::new(provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_client_auth_cert(chain, key)?;
    config.alpn_protocols = vec![AlpnProtocol::Member.name().to_vec()];
    harden_client(&mut config);
    Ok(config)
}

/// The settings that every dialler's configuration shares.
pub(super) fn harden_client(config: &mut ClientConfig) {
    config.resumption = Resumption::disabled();
    config.enable_early_data = false;
    config.enable_sni = false;
}

/// Our check of the peer's certificates, as TLS calls it.
#[derive(Debug)]
struct MemberVerifier {
    check: PeerCheck,
    /// The peers that a dialler expects. The side that is dialled accepts any member.
    expected: ExpectedPeer,
    /// Whether a client must have a certificate.
    mandatory: bool,
}

/// A refusal as TLS carries it: its text is part of the connection's error.
pub(super) fn tls_error(refusal: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::Other(OtherError(Arc::new(refusal)))
}

pub(super) fn seconds(now: UnixTime) -> UnixSeconds {
    UnixSeconds(now.as_secs())
}

impl ServerCertVerifier for MemberVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check
            .check_dialled(end_entity, intermediates, seconds(now), self.expected)
            .map(|_| ServerCertVerified::assertion())
            .map_err(tls_error)
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(PeerIncompatible::Tls12NotOffered.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, self.check.algorithms())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.check.algorithms().supported_schemes()
    }
}

impl ClientCertVerifier for MemberVerifier {
    fn client_auth_mandatory(&self) -> bool {
        self.mandatory
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check
            .check(end_entity, intermediates, seconds(now))
            .map(|_| ClientCertVerified::assertion())
            .map_err(tls_error)
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(PeerIncompatible::Tls12NotOffered.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, self.check.algorithms())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.check.algorithms().supported_schemes()
    }
}
