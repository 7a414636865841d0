//! One authority follows another: which certificates a member trusts before, meanwhile and behind.

use rustls::pki_types::CertificateDer;
use zbelastic_types::NodeId;

use super::super::verify::PeerCheck;
use super::super::*;
use super::bench::{CLUSTER, DAY_SECONDS, NOW, authority, authority_today, member};
use super::handshakes::handshake_members;

type RootCertificates = Vec<CertificateDer<'static>>;

/// An authority and the one that follows it.
fn succession() -> (ClusterAuthority, ClusterAuthority) {
    let old = authority();
    let new = old.successor(NOW.plus(DAY_SECONDS)).unwrap();
    (old, new)
}

fn roots(authorities: &[&ClusterAuthority]) -> RootCertificates {
    authorities.iter().map(|authority| authority.certificate().clone()).collect()
}

#[test]
fn certificates_of_the_new_authority_are_trusted_and_those_of_the_old_one_until_it_is_retired() {
    let (old, new) = succession();
    let now = NOW.plus(2 * DAY_SECONDS);
    let key = NodeKey::generate().requested();
    let issued =
        |by: &ClusterAuthority| by.issue(&key, PeerRole::Worker, NodeId(3), now).unwrap().chain;
    let is_believed = |by: &ClusterAuthority, trusted: &[&ClusterAuthority]| {
        let chain = issued(by);
        let check = PeerCheck::new(CLUSTER, &roots(trusted)).unwrap();
        check.check(&chain[0], &chain[1..], now)
    };
    for believed in [&[&old][..], &[&old, &new], &[&new, &old], &[&new]] {
        assert!(is_believed(&new, believed).is_ok(), "{believed:?}");
    }
    for believed in [&[&old][..], &[&old, &new], &[&new, &old]] {
        assert!(is_believed(&old, believed).is_ok(), "{believed:?}");
    }
    let refusal = is_believed(&old, &[&new]).unwrap_err();
    assert!(refusal.to_string().starts_with("E2015"), "{refusal}");
    // Not everybody can name a successor: what leads there must be made by the old one.
    let forged = authority().successor(now).unwrap();
    assert!(is_believed(&forged, &[&old, &new]).is_err());
}

#[test]
fn clocks_are_tolerated_through_the_bridge_as_without_it() {
    let (old, new) = succession();
    let issued_at = NOW.plus(2 * DAY_SECONDS);
    let key = NodeKey::generate().requested();
    let chain = new.issue(&key, PeerRole::Worker, NodeId(3), issued_at).unwrap().chain;
    let check = PeerCheck::new(CLUSTER, &roots(&[&old])).unwrap();
    let at = |now| check.check(&chain[0], &chain[1..], now);
    for now in [issued_at.minus(240), issued_at, issued_at.plus(DAY_SECONDS + 240)] {
        assert!(at(now).is_ok(), "{now}");
    }
    for now in [issued_at.minus(3600), issued_at.plus(DAY_SECONDS + 3600)] {
        assert!(matches!(at(now), Err(PeerIdentityRefusal::Clock(_))), "{now}");
    }
    // The old authority vouches for no longer than it is good itself.
    let end = NOW.plus(3650 * DAY_SECONDS);
    let late = new.issue(&key, PeerRole::Worker, NodeId(3), end.plus(3600)).unwrap().chain;
    assert!(check.check(&late[0], &late[1..], end.plus(3600)).is_err());
    assert!(old.successor(end).is_err());
}

#[test]
fn a_certificate_is_by_one_authority() {
    let (old, new) = succession();
    let by = |authority: &ClusterAuthority| {
        authority.credentials(PeerRole::Admin, NodeId(0), NOW.plus(2 * DAY_SECONDS)).unwrap()
    };
    for (own, other) in [(&old, &new), (&new, &old)] {
        let credentials = by(own).with_roots(roots(&[&old, &new])).unwrap();
        assert!(credentials.is_by(own.certificate()) && !credentials.is_by(other.certificate()));
    }
}

/// A member as of today with a certificate by one authority, that trusts these.
fn trusting(by: &ClusterAuthority, node: u64, trusted: &[&ClusterAuthority]) -> Credentials {
    member(by, PeerRole::Worker, node).with_roots(roots(trusted)).unwrap()
}

#[tokio::test]
async fn old_and_new_members_meet_while_both_are_believed_and_not_once_one_is_retired() {
    let old = authority_today();
    let new = old.successor(UnixSeconds::now()).unwrap();
    let both = [&old, &new];
    let renewed = trusting(&new, 1, &both);
    let not_yet = trusting(&old, 2, &both);
    let away = trusting(&old, 3, &[&old]);
    for (one, other) in [(&renewed, &not_yet), (&not_yet, &renewed), (&renewed, &away)] {
        for (own, other) in [(one, other), (other, one)] {
            let results = handshake_members(own, other, ExpectedPeer::AnyMember).await;
            assert!(results.accepted.is_ok() && results.dialled.is_ok(), "{}", results.texts());
        }
    }
    let retired = trusting(&new, 1, &[&new]);
    for old_one in [&not_yet, &away] {
        for (own, other) in [(&retired, old_one), (old_one, &retired)] {
            let results = handshake_members(own, other, ExpectedPeer::AnyMember).await;
            assert!(results.accepted.is_err() || results.dialled.is_err(), "{}", results.texts());
            assert!(results.texts().contains("E2015"), "{}", results.texts());
        }
    }
    let results = handshake_members(&retired, &renewed, ExpectedPeer::AnyMember).await;
    assert!(results.accepted.is_ok() && results.dialled.is_ok(), "{}", results.texts());
}
