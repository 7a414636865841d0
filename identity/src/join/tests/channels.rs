//! What one channel proved is worth nothing on another.

use std::time::Duration;

use super::super::super::tests::bench::{client, client_config, loopback, server};
use super::super::super::*;
use super::super::pinned;
use super::super::requester::request_bytes;
use super::stage::{cluster, setup};

/// A hang is a failure that says so. No test waits for it.
const PATIENCE: Duration = Duration::from_secs(30);

/// Both ends of one connection between a joiner and a controller.
async fn connection(
    own: &Credentials,
    token: &JoinToken,
) -> [(quinn::Connection, quinn::Endpoint); 2] {
    let server = server(own.server_config(AcceptedDiallers::MembersAndJoiners).unwrap());
    let client = client();
    let (config, _) = pinned::client_config(token.pin()).unwrap();
    let address = server.local_addr().unwrap();
    let dial = client.connect_with(client_config(config), address, "zbelastic.invalid").unwrap();
    let accept = async { server.accept().await.unwrap().await.unwrap() };
    let (accepted, dialled) = tokio::join!(accept, dial);
    [(dialled.unwrap(), client), (accepted, server)]
}

#[tokio::test]
async fn both_ends_of_a_connection_know_its_value_and_another_has_another() {
    let (authority, own) = cluster();
    let token = JoinToken::create(PeerRole::Worker, authority.pin());
    let [first, second] = connection(&own, &token).await;
    let [third, _] = connection(&own, &token).await;
    let value = ChannelBinding::of(&first.0).unwrap();
    assert!(value == ChannelBinding::of(&second.0).unwrap());
    assert!(value != ChannelBinding::of(&third.0).unwrap());
    assert_eq!(format!("{value:?}"), "ChannelBinding(..)");
}

#[tokio::test]
async fn a_proof_replayed_on_another_connection_is_refused() {
    let (authority, own) = cluster();
    let token = JoinToken::create(PeerRole::Worker, authority.pin());
    let [joiner, controller] = connection(&own, &token).await;
    let [thief, again] = connection(&own, &token).await;

    let setup = setup(token.clone(), PeerRole::Worker, vec![loopback()]);
    let now = UnixSeconds::now();
    let request = request_bytes(&setup, &ChannelBinding::of(&joiner.0).unwrap(), now);

    let here = ChannelBinding::of(&controller.0).unwrap();
    let attempt = read_join(&mut request.as_slice(), here, loopback(), now).await.unwrap();
    assert_eq!(attempt.check_proof(&token.verifier()), Ok(()));

    // The very same bytes, sent through the other connection.
    let receive = async {
        let mut receive = again.0.accept_uni().await.unwrap();
        let there = ChannelBinding::of(&again.0).unwrap();
        read_join(&mut receive, there, loopback(), now).await.unwrap()
    };
    let send = async {
        let mut send = thief.0.open_uni().await.unwrap();
        send.write_all(&request).await.unwrap();
        send.finish().unwrap();
    };
    let both = async { tokio::join!(receive, send) };
    let (replayed, ()) = tokio::time::timeout(PATIENCE, both).await.expect("no hang");
    let refusal = JoinRefusal::WrongProof { token: token.id() };
    assert_eq!(replayed.check_proof(&token.verifier()), Err(refusal));
    assert_eq!(replayed.key_digest(), attempt.key_digest());
}
