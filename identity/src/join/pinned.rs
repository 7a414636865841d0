//! How a joiner verifies the server, with nothing but a token: the authority that vouches for
//! the server must be the one that the token names. There is no way to skip this.

use std::sync::{Arc, OnceLock};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::verify_tls13_signature;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, PeerIncompatible, SignatureScheme};
use thiserror::Error as ThisError;

use super::super::certificate::{CHAIN_CERTIFICATES_MAX, SpkiPin, read_authority};
use super::super::clock::UnixSeconds;
use super::super::provider::provider;
use super::super::role::PeerRole;
use super::super::tls::{self, AlpnProtocol};
use super::super::verify::{ExpectedPeer, PeerCheck, PeerIdentityRefusal};

/// Why a joiner hangs up before it sends anything.
#[derive(Clone, Debug, PartialEq, ThisError)]
pub enum JoinServerFault {
    /// The authority that vouches for the server is not the one that the token names.
    #[error("E2008 the server is not the cluster this token belongs to")]
    OtherAuthority,
    /// The server is no controller of that cluster, or the clocks differ.
    #[error("the server cannot be joined: {0}")]
    Peer(PeerIdentityRefusal),
}

/// The authority that the token names, found among the certificates a server shows.
pub(super) fn pinned_authority(
    pin: SpkiPin,
    chain: &[CertificateDer<'_>],
) -> Result<CertificateDer<'static>, JoinServerFault> {
    chain
        .iter()
        .take(CHAIN_CERTIFICATES_MAX)
        .find(|part| read_authority(part).is_ok_and(|read| read.key == pin))
        .map(|found| found.clone().into_owned())
        .ok_or(JoinServerFault::OtherAuthority)
}

/// Whether a server that shows these certificates is a controller of the token's cluster.
pub(super) fn check_server(
    pin: SpkiPin,
    own: &CertificateDer<'_>,
    others: &[CertificateDer<'_>],
    now: UnixSeconds,
) -> Result<(), JoinServerFault> {
    let root = pinned_authority(pin, others)?;
    let read = read_authority(&root).map_err(|fault| JoinServerFault::Peer(fault.into()))?;
    let untrusted = |error| JoinServerFault::Peer(PeerIdentityRefusal::Untrusted(error));
    let check = PeerCheck::new(read.cluster, &[root]).map_err(untrusted)?;
    match check.check_dialled(own, others, now, ExpectedPeer::Role(PeerRole::Controller)) {
        Ok(_) => Ok(()),
        // It shows the authority's certificate, which is public, and has none from it.
        Err(PeerIdentityRefusal::Untrusted(_) | PeerIdentityRefusal::OtherCluster { .. }) => {
            Err(JoinServerFault::OtherAuthority)
        }
        Err(refusal) => Err(JoinServerFault::Peer(refusal)),
    }
}

/// A dialler's configuration for one attempt, and where the reason is found if it hangs up.
pub(super) fn client_config(
    pin: SpkiPin,
) -> Result<(ClientConfig, Arc<OnceLock<JoinServerFault>>), Error> {
    let provider = provider();
    let fault = Arc::new(OnceLock::new());
    let verifier = PinnedVerifier { pin, fault: Arc::clone(&fault) };
    let mut config = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    config.alpn_protocols = vec![AlpnProtocol::Join.name().to_vec()];
    tls::harden_client(&mut config);
    Ok((config, fault))
}

#[derive(Debug)]
struct PinnedVerifier {
    pin: SpkiPin,
    /// Written once, by the thread that runs the handshake. TLS carries errors as text; the
    /// command line needs the reason.
    fault: Arc<OnceLock<JoinServerFault>>,
}

impl ServerCertVerifier for PinnedVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match check_server(self.pin, end_entity, intermediates, tls::seconds(now)) {
            Ok(()) => Ok(ServerCertVerified::assertion()),
            Err(fault) => {
                let first = self.fault.get_or_init(|| fault);
                Err(tls::tls_error(first.clone()))
            }
        }
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
        verify_tls13_signature(message, cert, dss, &provider().signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}
