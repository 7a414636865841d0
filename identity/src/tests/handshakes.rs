//! The same rules where they are used: in handshakes over UDP on this machine.

use std::time::Duration;

use quinn::Connection;
use rustls::ClientConfig;
use zbelastic_types::{ClusterId, NodeId};

use super::super::*;
use super::bench::{DAY_SECONDS, authority_today, client, client_config, member, server};

/// A hang is a failure that says so. No test waits for it.
const PATIENCE: Duration = Duration::from_secs(30);

/// What became of one dial at both ends: the text of an error, or the connection.
pub(super) struct HandshakeResults {
    pub(super) accepted: Result<Connection, String>,
    pub(super) dialled: Result<Connection, String>,
}

impl HandshakeResults {
    pub(super) fn texts(&self) -> String {
        let text = |end: &Result<Connection, String>| match end {
            Ok(connection) => connection.close_reason().map_or("open".into(), |e| e.to_string()),
            Err(error) => error.clone(),
        };
        format!("accepted: {}; dialled: {}", text(&self.accepted), text(&self.dialled))
    }
}

/// Dials, and waits until both ends know: a server of TLS 1.3 judges the client's certificate after
/// the client assumes that it is through, so a dialler that got through waits for a close or for a
/// stream.
async fn handshake(own: rustls::ServerConfig, other: ClientConfig) -> HandshakeResults {
    let server = server(own);
    let client = client();
    let address = server.local_addr().unwrap();
    let dial = client.connect_with(client_config(other), address, "zbelastic.invalid").unwrap();
    let accept = async {
        let connection = server.accept().await.unwrap().await.map_err(|e| e.to_string())?;
        let mut stream = connection.open_uni().await.map_err(|e| e.to_string())?;
        stream.write_all(b"in").await.map_err(|e| e.to_string())?;
        Ok(connection)
    };
    let dialled = async {
        let connection = dial.await.map_err(|e| e.to_string())?;
        connection.accept_uni().await.map_err(|e| e.to_string())?;
        Ok(connection)
    };
    let both = async { tokio::join!(accept, dialled) };
    let (accepted, dialled) = tokio::time::timeout(PATIENCE, both).await.expect("no hang");
    HandshakeResults { accepted, dialled }
}

pub(super) async fn handshake_members(
    own: &Credentials,
    other: &Credentials,
    expected: ExpectedPeer,
) -> HandshakeResults {
    handshake(
        own.server_config(AcceptedDiallers::Members).unwrap(),
        other.client_config(expected).unwrap(),
    )
    .await
}

#[tokio::test]
async fn members_of_a_cluster_meet_and_know_each_other() {
    let authority = authority_today();
    let controller = member(&authority, PeerRole::Controller, 1);
    let worker = member(&authority, PeerRole::Worker, 2);
    for doors in [AcceptedDiallers::Members, AcceptedDiallers::MembersAndJoiners] {
        let results = handshake(
            controller.server_config(doors).unwrap(),
            worker.client_config(ExpectedPeer::Node(NodeId(1))).unwrap(),
        )
        .await;
        let accepted = results.accepted.unwrap();
        let dialled = results.dialled.unwrap();
        assert_eq!(AcceptedPeer::of(&accepted), Ok(AcceptedPeer::Member(worker.identity())));
        assert_eq!(AcceptedPeer::member(&dialled), Ok(controller.identity()));
    }
}

#[tokio::test]
async fn a_member_of_another_cluster_is_refused_at_either_end() {
    let ours = authority_today();
    let theirs = ClusterAuthority::create(ClusterId(8), UnixSeconds::now()).unwrap();
    let own = member(&ours, PeerRole::Controller, 1);
    let other = member(&theirs, PeerRole::Controller, 1);
    let results = handshake_members(&own, &other, ExpectedPeer::AnyMember).await;
    assert!(results.accepted.is_err() && results.dialled.is_err(), "{}", results.texts());
    assert!(results.texts().contains("a certificate of cluster"), "{}", results.texts());
}

#[tokio::test]
async fn a_forged_authority_with_the_clusters_name_is_refused() {
    let own = member(&authority_today(), PeerRole::Controller, 1);
    let forged = member(&authority_today(), PeerRole::Worker, 2);
    let trusting =
        Credentials::new(forged.chain().to_vec(), forged.key().clone(), own.roots().to_vec());
    let results = handshake_members(&own, &trusting.unwrap(), ExpectedPeer::AnyMember).await;
    assert!(results.accepted.is_err() && results.dialled.is_err(), "{}", results.texts());
}

#[tokio::test]
async fn certificates_of_the_past_and_of_the_future_are_refused_with_both_clocks() {
    let authority = authority_today();
    let controller = member(&authority, PeerRole::Controller, 1);
    let now = UnixSeconds::now();
    for issued in [now.minus(2 * DAY_SECONDS), now.plus(3600)] {
        let worker = authority.credentials(PeerRole::Worker, NodeId(2), issued).unwrap();
        let results = handshake_members(&controller, &worker, ExpectedPeer::AnyMember).await;
        let texts = results.texts();
        assert!(results.accepted.is_err() && results.dialled.is_err(), "{texts}");
        assert!(texts.contains("E2010") && texts.contains(&issued.to_string()), "{texts}");
        let results = handshake_members(&worker, &controller, ExpectedPeer::AnyMember).await;
        assert!(results.dialled.is_err(), "{}", results.texts());
        assert!(results.texts().contains("E2010"), "{}", results.texts());
    }
}

#[tokio::test]
async fn a_clock_four_minutes_wrong_is_tolerated() {
    let authority = authority_today();
    let controller = member(&authority, PeerRole::Controller, 1);
    let now = UnixSeconds::now();
    for issued in [now.plus(240), now.minus(DAY_SECONDS + 240)] {
        let worker = authority.credentials(PeerRole::Worker, NodeId(2), issued).unwrap();
        let results = handshake_members(&controller, &worker, ExpectedPeer::AnyMember).await;
        assert!(results.accepted.is_ok() && results.dialled.is_ok(), "{}", results.texts());
    }
}

#[tokio::test]
async fn another_node_than_the_one_dialled_is_refused() {
    let authority = authority_today();
    let own = member(&authority, PeerRole::Worker, 1);
    let other = member(&authority, PeerRole::Worker, 2);
    let results = handshake_members(&own, &other, ExpectedPeer::Node(NodeId(9))).await;
    assert!(results.dialled.is_err(), "{}", results.texts());
}

#[tokio::test]
async fn a_client_without_a_certificate_is_no_member_of_either_kind_of_server() {
    let controller = member(&authority_today(), PeerRole::Controller, 1);
    let anonymous = || {
        let verifier = controller.client_config(ExpectedPeer::AnyMember).unwrap();
        let mut config = ClientConfig::builder_with_provider(verifier.crypto_provider().clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(trusting())
            .with_no_client_auth();
        config.alpn_protocols = vec![AlpnProtocol::Member.name().to_vec()];
        config
    };
    let results =
        handshake(controller.server_config(AcceptedDiallers::Members).unwrap(), anonymous()).await;
    assert!(results.accepted.is_err() && results.dialled.is_err(), "{}", results.texts());

    let both = controller.server_config(AcceptedDiallers::MembersAndJoiners).unwrap();
    let accepted = handshake(both, anonymous()).await.accepted.unwrap();
    let fault = AcceptFault::NoMember(CertificateFault::Missing);
    assert_eq!(AcceptedPeer::of(&accepted), Err(fault));
}

#[tokio::test]
async fn a_joiner_is_only_let_in_where_joiners_are() {
    let controller = member(&authority_today(), PeerRole::Controller, 1);
    let joining = || {
        let mut config = controller.client_config(ExpectedPeer::AnyMember).unwrap();
        config.alpn_protocols = vec![AlpnProtocol::Join.name().to_vec()];
        config
    };
    let results =
        handshake(controller.server_config(AcceptedDiallers::Members).unwrap(), joining()).await;
    assert!(results.accepted.is_err() && results.dialled.is_err(), "{}", results.texts());
    // A member that speaks the join protocol is a joiner, whatever it shows.
    let both = controller.server_config(AcceptedDiallers::MembersAndJoiners).unwrap();
    let accepted = handshake(both, joining()).await.accepted.unwrap();
    assert_eq!(AcceptedPeer::of(&accepted), Ok(AcceptedPeer::Joiner));
}

#[tokio::test]
async fn a_session_is_never_resumed() {
    let authority = authority_today();
    let own = member(&authority, PeerRole::Controller, 1);
    let other = member(&authority, PeerRole::Worker, 2);
    let config = own.server_config(AcceptedDiallers::Members).unwrap();
    assert_eq!((config.send_tls13_tickets, config.max_early_data_size), (0, 0));
    assert!(!config.session_storage.can_cache());
    assert!(!other.client_config(ExpectedPeer::AnyMember).unwrap().enable_early_data);
}

/// A client that trusts any certificate.
fn trusting() -> std::sync::Arc<dyn rustls::client::danger::ServerCertVerifier> {
    std::sync::Arc::new(TrustingVerifier)
}

#[derive(Debug)]
struct TrustingVerifier;

impl rustls::client::danger::ServerCertVerifier for TrustingVerifier {
    fn verify_server_cert(
        &self,
        _end_entity: &rustls::pki_types::CertificateDer<'_>,
        _intermediates: &[rustls::pki_types::CertificateDer<'_>],
        _server_name: &rustls::pki_types::ServerName<'_>,
        _ocsp_response: &[u8],
        _now: rustls::pki_types::UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &rustls::pki_types::CertificateDer<'_>,
        _dss: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _cert: &rustls::pki_types::CertificateDer<'_>,
        _dss: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        super::super::provider::provider().signature_verification_algorithms.supported_schemes()
    }
}
