//! The check of a peer as a pure function: one thing wrong at a time.

use rustls::pki_types::CertificateDer;
use zbelastic_types::{ClusterId, NodeId};

use super::super::verify::PeerCheck;
use super::super::*;
use super::bench::{CLUSTER, DAY_SECONDS, NOW, authority};

const HOUR_SECONDS: u64 = 60 * 60;

fn check_of(authority: &ClusterAuthority) -> PeerCheck {
    PeerCheck::new(authority.cluster(), &[authority.certificate().clone()]).unwrap()
}

fn check(
    check: &PeerCheck,
    chain: &[CertificateDer<'static>],
    now: UnixSeconds,
) -> Result<PeerIdentity, PeerIdentityRefusal> {
    check.check(&chain[0], &chain[1..], now)
}

fn issued(authority: &ClusterAuthority, role: PeerRole, node: u64) -> IssuedCertificate {
    let key = NodeKey::generate().requested();
    authority.issue(&key, role, NodeId(node), NOW).unwrap()
}

#[test]
fn a_member_has_the_identity_in_its_certificate() {
    let authority = authority();
    for role in PeerRole::ALL {
        let issued = issued(&authority, role, 17);
        let expected = PeerIdentity { cluster: CLUSTER, role, node: NodeId(17) };
        assert_eq!(check(&check_of(&authority), &issued.chain, NOW), Ok(expected));
        assert_eq!(peer_of(&issued.chain), Ok(expected));
        assert_eq!(serial_of(&issued.chain), Ok(issued.serial));
    }
}

#[test]
fn each_role_has_its_life_and_each_certificate_its_number() {
    let authority = authority();
    let lives = [(PeerRole::Worker, 1), (PeerRole::Controller, 30), (PeerRole::Admin, 7)];
    for (role, days) in lives {
        let window = issued(&authority, role, 1).window;
        assert_eq!(window.not_before, NOW);
        assert_eq!(window.not_after, NOW.plus(days * DAY_SECONDS));
    }
    let numbers = [0; 20].map(|_| issued(&authority, PeerRole::Worker, 1).serial);
    for (index, number) in numbers.iter().enumerate() {
        assert_eq!(number.0.len(), 16);
        assert!(!numbers[..index].contains(number));
    }
}

#[test]
fn no_certificate_outlives_its_authority() {
    let authority = authority();
    let key = NodeKey::generate().requested();
    let end = NOW.plus(3650 * DAY_SECONDS);
    let last = authority.issue(&key, PeerRole::Worker, NodeId(1), end.minus(1)).unwrap();
    assert_eq!(last.window.not_after, end);
    let fault = authority.issue(&key, PeerRole::Worker, NodeId(1), end).unwrap_err();
    assert!(matches!(fault, AuthorityFault::NotGood { .. }), "{fault}");
}

#[test]
fn an_expired_certificate_is_refused_with_both_clocks() {
    let authority = authority();
    let chain = issued(&authority, PeerRole::Worker, 1).chain;
    let ended = NOW.plus(DAY_SECONDS);
    assert!(check(&check_of(&authority), &chain, ended.plus(300)).is_ok());
    let now = ended.plus(301);
    let refusal = check(&check_of(&authority), &chain, now).unwrap_err();
    assert_eq!(
        refusal,
        PeerIdentityRefusal::Clock(ClockFault::Expired { now, issued: NOW, ended })
    );
    let text = refusal.to_string();
    assert!(text.contains("E2010") && text.contains(&now.to_string()), "{text}");
    assert!(text.contains(&ended.to_string()), "{text}");
}

#[test]
fn a_clock_an_hour_behind_sees_a_certificate_of_the_future() {
    let authority = authority();
    let chain = issued(&authority, PeerRole::Worker, 1).chain;
    assert!(check(&check_of(&authority), &chain, NOW.minus(300)).is_ok());
    let now = NOW.minus(HOUR_SECONDS);
    let refusal = check(&check_of(&authority), &chain, now).unwrap_err();
    assert_eq!(refusal, PeerIdentityRefusal::Clock(ClockFault::NotValidYet { now, issued: NOW }));
}

#[test]
fn a_certificate_of_another_cluster_is_refused() {
    let ours = authority();
    let theirs = ClusterAuthority::create(ClusterId(8), NOW).unwrap();
    let chain = issued(&theirs, PeerRole::Controller, 1).chain;
    let refusal = check(&check_of(&ours), &chain, NOW).unwrap_err();
    let expected = CLUSTER;
    let found = ClusterId(8);
    assert_eq!(refusal, PeerIdentityRefusal::OtherCluster { expected, found });
}

#[test]
fn a_certificate_of_an_authority_that_took_our_name_is_refused() {
    let ours = authority();
    let forged = authority();
    let chain = issued(&forged, PeerRole::Controller, 1).chain;
    let mixed = [chain[0].clone(), ours.certificate().clone()];
    for chain in [&chain[..], &chain[..1], &mixed] {
        let refusal = check(&check_of(&ours), chain, NOW).unwrap_err();
        assert!(matches!(refusal, PeerIdentityRefusal::Untrusted(_)), "{refusal}");
    }
}

#[test]
fn a_member_is_no_authority() {
    // A worker signs a controller's certificate with its own key.
    let authority = authority();
    let worker = authority.credentials(PeerRole::Worker, NodeId(3), NOW).unwrap();
    let fault = ClusterAuthority::from_parts(worker.chain()[0].clone(), worker.key().clone());
    assert!(fault.is_err());
    let forger = authority_with_key_of(&worker);
    let forged = issued(&forger, PeerRole::Controller, 1).chain[0].clone();
    let chain = [forged, worker.chain()[0].clone(), authority.certificate().clone()];
    let refusal = check(&check_of(&authority), &chain, NOW).unwrap_err();
    assert!(matches!(refusal, PeerIdentityRefusal::Untrusted(_)), "{refusal}");
}

/// An authority of the same cluster whose key is a member's.
fn authority_with_key_of(member: &Credentials) -> ClusterAuthority {
    use rcgen::{BasicConstraints, CertificateParams, DistinguishedName, IsCa, SanType};
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.not_before = rcgen::date_time_ymd(2020, 1, 1);
    params.not_after = rcgen::date_time_ymd(2040, 1, 1);
    let name = "zbe://00000000000000000000000000000007";
    params.subject_alt_names = vec![SanType::URI(name.try_into().unwrap())];
    let certificate = params.self_signed(member.key().pair()).unwrap();
    ClusterAuthority::from_parts(certificate.der().clone(), member.key().clone()).unwrap()
}

#[test]
fn a_dialler_reaches_only_the_peer_that_it_expects() {
    let authority = authority();
    let dial = |role, expected| {
        let chain = issued(&authority, role, 3).chain;
        check_of(&authority).check_dialled(&chain[0], &chain[1..], NOW, expected)
    };
    for expected in [
        ExpectedPeer::AnyMember,
        ExpectedPeer::Role(PeerRole::Worker),
        ExpectedPeer::Node(NodeId(3)),
    ] {
        assert!(dial(PeerRole::Worker, expected).is_ok());
        for role in [PeerRole::Admin, PeerRole::Viewer, PeerRole::Operator] {
            let refusal = dial(role, expected).unwrap_err();
            assert!(matches!(refusal, PeerIdentityRefusal::ServesNobody { .. }), "{refusal}");
        }
    }
    for expected in [ExpectedPeer::Role(PeerRole::Controller), ExpectedPeer::Node(NodeId(4))] {
        let refusal = dial(PeerRole::Worker, expected).unwrap_err();
        assert!(matches!(refusal, PeerIdentityRefusal::OtherPeer { .. }), "{refusal}");
    }
}

#[test]
fn five_certificates_are_too_many_and_four_are_not() {
    let authority = authority();
    let own = issued(&authority, PeerRole::Worker, 1).chain[0].clone();
    let mut chain = vec![own];
    chain.resize(4, authority.certificate().clone());
    assert!(check(&check_of(&authority), &chain, NOW).is_ok());
    chain.push(authority.certificate().clone());
    let refusal = check(&check_of(&authority), &chain, NOW).unwrap_err();
    let fault = CertificateFault::TooMany { found: 5 };
    assert_eq!(refusal, PeerIdentityRefusal::Certificate(fault));
    assert_eq!(peer_of(&chain), Err(fault));
    assert_eq!(peer_of(&[]), Err(CertificateFault::Missing));
}

#[test]
fn credentials_are_put_together_of_what_belongs_together() {
    let authority = authority();
    let other = ClusterAuthority::create(ClusterId(8), NOW).unwrap();
    let key = NodeKey::generate();
    let chain = authority.issue(&key.requested(), PeerRole::Worker, NodeId(1), NOW).unwrap().chain;
    let root = vec![authority.certificate().clone()];
    assert!(Credentials::new(chain.clone(), key.clone(), root.clone()).is_ok());
    let fault = Credentials::new(chain.clone(), NodeKey::generate(), root).unwrap_err();
    assert_eq!(fault, CredentialsFault::OtherKey);
    let root = vec![other.certificate().clone()];
    let fault = Credentials::new(chain, key, root).unwrap_err();
    assert_eq!(fault, CredentialsFault::OtherRoot { expected: CLUSTER, found: ClusterId(8) });
}

#[test]
fn an_authority_travels_as_bytes_and_shows_nothing() {
    let authority = authority();
    let bytes = postcard::to_allocvec(&authority.secret()).unwrap();
    let secret: AuthoritySecret = postcard::from_bytes(&bytes).unwrap();
    let arrived = ClusterAuthority::from_secret(&secret).unwrap();
    assert_eq!((arrived.cluster(), arrived.pin()), (CLUSTER, authority.pin()));
    let chain = issued(&arrived, PeerRole::Worker, 1).chain;
    assert!(check(&check_of(&authority), &chain, NOW).is_ok());

    assert_eq!(format!("{secret:?}"), "AuthoritySecret(..)");
    let key = authority.credentials(PeerRole::Admin, NodeId(1), NOW).unwrap();
    let printed = format!("{:?} {:?} {:?}", authority, key, key.key());
    assert!(!printed.contains("PRIVATE") && printed.len() < 1000, "{printed}");
}
