//! Joins that succeed, and grants that must not be accepted.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use zbelastic_types::{ClusterId, NodeId};

use super::super::super::*;
use super::stage::{
    JoinServerNote, NODE, cluster, contact, controller, first_controller, grant, join,
    other_cluster, setup, trusting_controller,
};

#[tokio::test]
async fn a_worker_joins_with_nothing_but_a_token() {
    let (authority, own) = cluster();
    let token = JoinToken::create(PeerRole::Worker, authority.pin());
    let mut controller = trusting_controller(&authority, &own, &token);
    let setup = setup(token, PeerRole::Worker, vec![controller.address]);
    let joined = join(&setup).await.unwrap();

    let identity =
        PeerIdentity { cluster: authority.cluster(), role: PeerRole::Worker, node: NODE };
    assert_eq!(joined.credentials.identity(), identity);
    assert_eq!(joined.credentials.key().digest(), setup.key.digest());
    assert_eq!(joined.credentials.roots(), [authority.certificate().clone()]);
    assert_eq!(joined.controllers, [contact("10.0.0.4:7000".parse().unwrap())]);
    assert!(joined.authority.is_none());

    let Some(JoinServerNote::Attempt(attempt)) = controller.notes.recv().await else { panic!() };
    assert_eq!((attempt.role, attempt.name.as_str()), (PeerRole::Worker, "gpu-7"));
    assert_eq!(attempt.key_digest(), setup.key.digest());
    assert_eq!(attempt.addresses, setup.advertised);
    assert!(attempt.from.ip().is_loopback());
}

#[tokio::test]
async fn a_controller_that_joins_gets_the_authority() {
    let (authority, own) = cluster();
    let token = JoinToken::create(PeerRole::Controller, authority.pin());
    let controller = trusting_controller(&authority, &own, &token);
    let joined = join(&setup(token, PeerRole::Controller, vec![controller.address])).await.unwrap();
    let arrived = joined.authority.unwrap();
    assert_eq!((arrived.cluster(), arrived.pin()), (authority.cluster(), authority.pin()));
}

/// A joiner whose token names the authority before finds the cluster with it, as long as the log
/// lets it.
#[tokio::test]
async fn tokens_of_the_old_authority_and_of_the_new_one_let_in_once_the_new_one_issues() {
    let (old, _) = cluster();
    let new = old.successor(UnixSeconds::now()).unwrap();
    let own = first_controller(&new);
    for pin in [old.pin(), new.pin()] {
        for role in [PeerRole::Worker, PeerRole::Controller] {
            let token = JoinToken::create(role, pin);
            let controller = trusting_controller(&new, &own, &token);
            let joined = join(&setup(token, role, vec![controller.address])).await.unwrap();
            assert!(joined.credentials.is_by(new.certificate()));
            assert!(joined.credentials.trusts(pin));
            let pins = joined.authority.map(|authority| authority.pin());
            assert_eq!(pins, (role == PeerRole::Controller).then(|| new.pin()));
        }
    }
}

/// A machine that is started while all controllers are restarted finds some of them, and no leader yet.
#[tokio::test]
async fn a_worker_that_comes_in_an_election_joins_behind_it() {
    const ELECTION_ANSWERS: usize = 3;
    let (authority, own) = cluster();
    let token = JoinToken::create(PeerRole::Worker, authority.pin());
    let answered = AtomicUsize::new(0);
    let issuer = authority.clone();
    let controller = controller(&own, move |attempt| {
        let refusal = match answered.fetch_add(1, Ordering::Relaxed) {
            0 => JoinRefusal::NotReady,
            1..ELECTION_ANSWERS => JoinRefusal::NotLeader { leader: Vec::new() },
            _ => return Some(JoinAnswer::Granted(grant(&issuer, attempt))),
        };
        Some(JoinAnswer::Refused(refusal))
    });
    let setup = setup(token, PeerRole::Worker, vec![controller.address]);
    let JoinError::NobodyDecided { dials } = join(&setup).await.unwrap_err() else { panic!() };
    assert!(dials.may_pass, "{dials:?}");
    assert_eq!(join_cluster(&setup).await.unwrap().credentials.identity().node, NODE);
}

#[tokio::test]
async fn the_same_joiner_asking_again_is_recognised_by_its_key() {
    let (authority, own) = cluster();
    let token = JoinToken::create(PeerRole::Worker, authority.pin());
    let mut controller = trusting_controller(&authority, &own, &token);
    let again = setup(token.clone(), PeerRole::Worker, vec![controller.address]);
    let other = setup(token, PeerRole::Worker, vec![controller.address]);
    for setup in [&again, &again, &other] {
        join(setup).await.unwrap();
    }
    let mut digests = Vec::new();
    while let Ok(JoinServerNote::Attempt(attempt)) = controller.notes.try_recv() {
        digests.push(attempt.key_digest());
    }
    assert_eq!(digests, [again.key.digest(), again.key.digest(), other.key.digest()]);
}

#[tokio::test]
async fn a_joiner_follows_to_the_controller_that_leads() {
    let (authority, own) = cluster();
    let token = JoinToken::create(PeerRole::Worker, authority.pin());
    let leader = trusting_controller(&authority, &own, &token);
    let known = vec![leader.address];
    let follower = controller(&own, move |_| {
        Some(JoinAnswer::Refused(JoinRefusal::NotLeader { leader: known.clone() }))
    });
    let setup = setup(token, PeerRole::Worker, vec![follower.address]);
    assert_eq!(join(&setup).await.unwrap().credentials.identity().node, NODE);
}

#[tokio::test]
async fn a_member_whose_certificate_ended_requests_with_its_key_and_no_token() {
    let (authority, own) = cluster();
    let long_ago = UnixSeconds::now().minus(40 * 24 * 3600);
    let key = NodeKey::generate();
    let ended = authority.issue(&key.requested(), PeerRole::Worker, NODE, long_ago).unwrap();
    let ended = Credentials::new(ended.chain, key, vec![authority.certificate().clone()]).unwrap();
    let issuing = authority.clone();
    let known = ended.key().digest();
    let mut controller = controller(&own, move |attempt| {
        assert!(attempt.is_of_member() && attempt.key_digest() == known);
        Some(JoinAnswer::Granted(grant(&issuing, attempt)))
    });
    let name = "gpu-7".parse().unwrap();
    let setup = JoinSetup::of_member(&ended, name, vec![controller.address]).unwrap();
    let renewed = join(&setup).await.unwrap().credentials;
    assert_eq!(renewed.identity(), ended.identity());
    assert_eq!(renewed.key().digest(), known);
    assert!(renewed.window().not_before > ended.window().not_after);

    // No request is sent to a server of another cluster, nor is one by a joiner with a token.
    let foreign = first_controller(&other_cluster());
    let mut foreign_controller = trusting_controller(&authority, &foreign, &setup.token);
    let setup = JoinSetup { cluster: vec![foreign_controller.address], ..setup };
    assert!(join(&setup).await.is_err());
    assert!(matches!(controller.notes.recv().await, Some(JoinServerNote::Attempt(_))));
    assert!(!matches!(foreign_controller.notes.recv().await, Some(JoinServerNote::Attempt(_))));
}

#[tokio::test]
async fn addresses_that_do_not_help_are_passed_over() {
    let (authority, own) = cluster();
    let token = JoinToken::create(PeerRole::Worker, authority.pin());
    let leader = trusting_controller(&authority, &own, &token);
    let electing = controller(&own, |_| Some(JoinAnswer::Refused(JoinRefusal::NotReady)));
    let silent = controller(&own, |_| None);
    let nowhere: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let addresses = vec![nowhere, electing.address, silent.address, leader.address];
    assert!(join(&setup(token, PeerRole::Worker, addresses)).await.is_ok());
}

#[tokio::test]
async fn controllers_that_point_at_each_other_end_the_attempt() {
    let (authority, own) = cluster();
    let token = JoinToken::create(PeerRole::Worker, authority.pin());
    let other = Arc::new(OnceLock::new());
    let known = Arc::clone(&other);
    let first = controller(&own, move |_| {
        let leader = known.get().copied().into_iter().collect();
        Some(JoinAnswer::Refused(JoinRefusal::NotLeader { leader }))
    });
    let back = vec![first.address];
    let second = controller(&own, move |_| {
        Some(JoinAnswer::Refused(JoinRefusal::NotLeader { leader: back.clone() }))
    });
    other.set(second.address).unwrap();
    let setup = setup(token, PeerRole::Worker, vec![first.address]);
    let JoinError::NobodyDecided { dials } = join(&setup).await.unwrap_err() else { panic!() };
    let dialled: Vec<_> = dials.failed.iter().map(|(address, _)| *address).collect();
    let first = first.address;
    let second = second.address;
    assert_eq!(dialled, [first, second].repeat(4));
}

/// A worker requests a certificate, and a controller grants what `change` made of a good grant.
async fn fault_of(
    change: fn(&ClusterAuthority, &JoinAttempt, JoinGrant) -> JoinGrant,
) -> GrantFault {
    let (authority, own) = cluster();
    let token = JoinToken::create(PeerRole::Worker, authority.pin());
    let granting = authority.clone();
    let controller = controller(&own, move |attempt| {
        let good = grant(&granting, attempt);
        Some(JoinAnswer::Granted(change(&granting, attempt, good)))
    });
    let error = join(&setup(token, PeerRole::Worker, vec![controller.address])).await.unwrap_err();
    let JoinError::WrongGrant { fault, .. } = error else { panic!("{error}") };
    fault
}

fn regrant(
    authority: &ClusterAuthority,
    key: &RequestedKey,
    role: PeerRole,
    now: UnixSeconds,
) -> JoinGrant {
    let issued = authority.issue(key, role, NODE, now).unwrap();
    JoinGrant::new(authority.cluster(), NODE, &issued, Vec::new(), None)
}

#[tokio::test]
async fn a_grant_for_another_key_is_not_accepted() {
    let fault = fault_of(|authority, attempt, _| {
        let key = NodeKey::generate().requested();
        regrant(authority, &key, attempt.role, UnixSeconds::now())
    });
    assert_eq!(fault.await, GrantFault::Credentials(CredentialsFault::OtherKey));
}

#[tokio::test]
async fn a_grant_for_another_node_role_or_cluster_is_not_accepted() {
    let changes: [fn(&ClusterAuthority, &JoinAttempt, JoinGrant) -> JoinGrant; 3] = [
        |_, _, mut good| {
            good.node = NodeId(9);
            good
        },
        |authority, attempt, _| {
            regrant(authority, &attempt.key, PeerRole::Viewer, UnixSeconds::now())
        },
        |_, _, mut good| {
            good.cluster = ClusterId(8);
            good
        },
    ];
    for change in changes {
        let fault = fault_of(change).await;
        assert!(matches!(fault, GrantFault::OtherIdentity { .. }), "{fault}");
    }
}

#[tokio::test]
async fn a_grant_by_another_authority_is_not_accepted() {
    let fault = fault_of(|_, attempt, _| {
        regrant(&other_cluster(), &attempt.key, attempt.role, UnixSeconds::now())
    });
    let fault = fault.await;
    assert!(
        matches!(fault, GrantFault::Credentials(CredentialsFault::OtherRoot { .. })),
        "{fault}"
    );
    let fault = fault_of(|authority, attempt, _| {
        let forged = ClusterAuthority::create(authority.cluster(), UnixSeconds::now()).unwrap();
        regrant(&forged, &attempt.key, attempt.role, UnixSeconds::now())
    });
    let fault = fault.await;
    assert!(
        matches!(fault, GrantFault::Unbelievable(PeerIdentityRefusal::Untrusted(_))),
        "{fault}"
    );
}

#[tokio::test]
async fn a_grant_from_a_clock_an_hour_ahead_names_both_clocks() {
    let fault = fault_of(|authority, attempt, _| {
        regrant(authority, &attempt.key, attempt.role, UnixSeconds::now().plus(3600))
    });
    let fault = fault.await;
    assert!(matches!(fault, GrantFault::Unbelievable(PeerIdentityRefusal::Clock(_))), "{fault}");
    assert!(fault.to_string().contains("E2010"), "{fault}");
}

#[tokio::test]
async fn a_worker_that_is_sent_the_authority_does_not_take_it() {
    let fault = fault_of(|authority, _, mut good| {
        good.authority = Some(authority.secret());
        good
    });
    assert_eq!(fault.await, GrantFault::WrongSecret);
}
