//! Joins that are refused, and joiners that hang up.

use super::super::super::tests::bench::{DAY_SECONDS, client, member};
use super::super::super::*;
use super::stage::{
    JoinServerNote, cluster, controller, first_controller, join, other_cluster, setup,
    trusting_controller,
};

async fn refusal_of(refusal: JoinRefusal) -> JoinRefusal {
    let (authority, own) = cluster();
    let received = refusal.clone();
    let controller = controller(&own, move |_| Some(JoinAnswer::Refused(received.clone())));
    let address = controller.address;
    let token = JoinToken::create(PeerRole::Worker, authority.pin());
    let error = join(&setup(token, PeerRole::Worker, vec![controller.address])).await.unwrap_err();
    let JoinError::Refused { address: from, refusal } = error else { panic!("{error}") };
    assert_eq!(from, address);
    refusal
}

#[tokio::test]
async fn a_refused_token_is_reported_with_its_code_its_id_and_the_time() {
    let token = JoinTokenId(0xc0ffee);
    let at = UnixSeconds(1_800_000_000);
    let refusals = [
        ("E2002", JoinRefusal::TokenExpired { token, at }),
        ("E2004", JoinRefusal::TokenSpent { token, uses: 1, at }),
    ];
    for (code, refusal) in refusals {
        let received = refusal_of(refusal.clone()).await;
        assert_eq!(received, refusal);
        let text = received.to_string();
        assert!(text.starts_with(code) && text.contains("0000000000c0ffee"), "{text}");
        assert!(text.contains("2027-01-15 08:00:00 UTC"), "{text}");
    }
}

#[tokio::test]
async fn every_other_refusal_arrives_as_it_was_said() {
    let token = JoinTokenId(7);
    let expected = PeerRole::Worker;
    let found = PeerRole::Controller;
    let refusals = [
        JoinRefusal::TokenRevoked { token },
        JoinRefusal::TokenUnknown { token },
        JoinRefusal::WrongRole { token, expected, found },
        JoinRefusal::WrongProof { token },
        JoinRefusal::TooManyAttempts { seconds: 9 },
        JoinRefusal::WrongName(NameRefusal::Taken),
        JoinRefusal::WrongName(NameRefusal::NotForToken),
    ];
    for refusal in refusals {
        assert_eq!(refusal_of(refusal.clone()).await, refusal);
    }
}

#[tokio::test]
async fn a_token_with_another_secret_is_refused() {
    let (authority, own) = cluster();
    let token = JoinToken::create(PeerRole::Worker, authority.pin());
    let verifier = token.verifier();
    let controller = controller(&own, move |attempt| {
        let refusal = attempt.check_proof(&verifier).unwrap_err();
        Some(JoinAnswer::Refused(refusal))
    });
    let other = JoinToken::create(PeerRole::Worker, authority.pin());
    let setup = setup(other.clone(), PeerRole::Worker, vec![controller.address]);
    let JoinError::Refused { refusal, .. } = join(&setup).await.unwrap_err() else { panic!() };
    assert_eq!(refusal, JoinRefusal::WrongProof { token: other.id() });
}

/// A joiner with a token of `authority` meets a server with these credentials, which must get
/// nothing but a failed handshake.
async fn hangs_up(authority: &ClusterAuthority, server: &Credentials) -> JoinServerFault {
    let mut controller = controller(server, |_| panic!("nothing may arrive"));
    let token = JoinToken::create(PeerRole::Worker, authority.pin());
    let setup = setup(token, PeerRole::Worker, vec![controller.address]);
    let error = join(&setup).await.unwrap_err();
    let JoinError::WrongServer { address, fault } = error else { panic!("{error}") };
    assert_eq!(address, controller.address);
    let note = controller.notes.recv().await;
    let Some(JoinServerNote::HungUp(text)) = note else { panic!("{note:?}") };
    // TLS reports to the server that the handshake failed, and the reason.
    assert!(text.contains(&fault.to_string()), "{text}");
    assert!(controller.notes.try_recv().is_err());
    fault
}

#[tokio::test]
async fn a_joiner_says_nothing_to_another_cluster() {
    let (authority, _) = cluster();
    let fault = hangs_up(&authority, &first_controller(&other_cluster())).await;
    assert_eq!(fault, JoinServerFault::OtherAuthority);
    let text = fault.to_string();
    assert!(text.contains("the server is not the cluster this token belongs to"), "{text}");
}

#[tokio::test]
async fn a_joiner_sends_nothing_to_a_server_that_shows_the_clusters_public_certificate() {
    let (authority, _) = cluster();
    let forged = ClusterAuthority::create(authority.cluster(), UnixSeconds::now()).unwrap();
    let own = first_controller(&forged);
    let chain = vec![own.chain()[0].clone(), authority.certificate().clone()];
    let shown = own.renewed(chain).unwrap();
    assert_eq!(hangs_up(&authority, &shown).await, JoinServerFault::OtherAuthority);
}

#[tokio::test]
async fn a_joiner_says_nothing_to_a_member_that_is_no_controller() {
    let (authority, _) = cluster();
    for role in [PeerRole::Worker, PeerRole::Viewer, PeerRole::Admin] {
        let fault = hangs_up(&authority, &member(&authority, role, 3)).await;
        assert!(matches!(fault, JoinServerFault::Peer(_)), "{fault}");
    }
}

#[tokio::test]
async fn a_joiner_says_nothing_to_a_controller_that_hides_its_authority() {
    let (authority, own) = cluster();
    let alone = own.renewed(vec![own.chain()[0].clone()]).unwrap();
    assert_eq!(hangs_up(&authority, &alone).await, JoinServerFault::OtherAuthority);
}

#[tokio::test]
async fn a_joiner_whose_clock_differs_from_the_servers_certificate_hangs_up_with_both_clocks() {
    let (authority, _) = cluster();
    let now = UnixSeconds::now();
    for issued in [now.plus(3600), now.minus(31 * DAY_SECONDS)] {
        let node = zbelastic_types::NodeId(1);
        let own = authority.credentials(PeerRole::Controller, node, issued).unwrap();
        let fault = hangs_up(&authority, &own).await;
        assert!(matches!(fault, JoinServerFault::Peer(PeerIdentityRefusal::Clock(_))), "{fault}");
        let text = fault.to_string();
        assert!(text.contains("E2010") && text.contains(&issued.to_string()), "{text}");
    }
}

#[tokio::test]
async fn a_joiner_whose_clock_is_an_hour_off_spends_no_token_and_is_told_both_clocks() {
    let (authority, own) = cluster();
    let token = JoinToken::create(PeerRole::Worker, authority.pin());
    let mut controller = trusting_controller(&authority, &own, &token);
    let setup = setup(token, PeerRole::Worker, vec![controller.address]);
    let now = UnixSeconds::now();
    for theirs in [now.plus(3600), now.minus(3600)] {
        let error = request_certificate(&client(), &setup, theirs).await.unwrap_err();
        let JoinError::Refused { refusal, .. } = &error else { panic!("{error}") };
        assert!(matches!(refusal, JoinRefusal::Clock(ClockFault::Apart { .. })), "{refusal}");
        let text = error.to_string();
        assert!(text.contains("E2010") && text.contains(&theirs.to_string()), "{text}");
        let note = controller.notes.recv().await;
        let Some(JoinServerNote::Fault(fault)) = note else { panic!("{note:?}") };
        assert!(fault.to_string().contains("E2010"), "{fault}");
    }
}
