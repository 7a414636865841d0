//! A controller that decides by a function, and a joiner.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::mpsc;
use zbelastic_types::{ClusterId, NodeId};

use super::super::super::tests::bench::{authority_today, client, member, server};
use super::super::super::*;

/// The number that a joiner is given here.
pub(super) const NODE: NodeId = NodeId(42);
/// The most notes of a controller that wait for a test. No test lets it write more.
const NOTES_MAX: usize = 64;

/// What came to a controller.
#[derive(Debug)]
pub(super) enum JoinServerNote {
    /// No attempt: the handshake failed, with this text.
    HungUp(String),
    /// An attempt, as it was decided about.
    Attempt(JoinAttempt),
    /// The end of a connection that led to no attempt.
    Fault(JoinServeFault),
}

pub(super) struct JoinServer {
    pub address: SocketAddr,
    pub notes: mpsc::Receiver<JoinServerNote>,
    // An endpoint that is dropped closes what runs on it.
    _endpoint: quinn::Endpoint,
}

/// What a controller answers.
type JoinDecision = Arc<dyn Fn(&JoinAttempt) -> Option<JoinAnswer> + Send + Sync>;

/// A controller with these credentials that answers what `decide` returns, or not at all.
pub(super) fn controller(
    own: &Credentials,
    decide: impl Fn(&JoinAttempt) -> Option<JoinAnswer> + Send + Sync + 'static,
) -> JoinServer {
    let endpoint = server(own.server_config(AcceptedDiallers::MembersAndJoiners).unwrap());
    let address = endpoint.local_addr().unwrap();
    let (sender, notes) = mpsc::channel(NOTES_MAX);
    tokio::spawn(accept_all(endpoint.clone(), sender, Arc::new(decide)));
    JoinServer { address, notes, _endpoint: endpoint }
}

async fn accept_all(
    endpoint: quinn::Endpoint,
    notes: mpsc::Sender<JoinServerNote>,
    decide: JoinDecision,
) {
    while let Some(incoming) = endpoint.accept().await {
        tokio::spawn(accept_one(incoming, notes.clone(), Arc::clone(&decide)));
    }
}

async fn accept_one(
    incoming: quinn::Incoming,
    notes: mpsc::Sender<JoinServerNote>,
    decide: JoinDecision,
) {
    let connection = match incoming.await {
        Ok(connection) => connection,
        Err(error) => return notes.try_send(JoinServerNote::HungUp(error.to_string())).unwrap(),
    };
    assert_eq!(AcceptedPeer::of(&connection), Ok(AcceptedPeer::Joiner));
    let noted = notes.clone();
    let served = serve_join(&connection, UnixSeconds::now(), move |attempt, reply| {
        let answer = decide(&attempt);
        noted.try_send(JoinServerNote::Attempt(attempt)).unwrap();
        if let Some(answer) = answer {
            reply.answer(answer);
        }
    });
    if let Err(fault) = served.await {
        notes.try_send(JoinServerNote::Fault(fault)).unwrap();
    }
}

pub(super) fn setup(token: JoinToken, role: PeerRole, cluster: Vec<SocketAddr>) -> JoinSetup {
    JoinSetup {
        token,
        role,
        name: "gpu-7".parse().unwrap(),
        key: NodeKey::generate(),
        cluster,
        advertised: vec!["10.0.0.7:7000".parse().unwrap()],
    }
}

pub(super) async fn join(setup: &JoinSetup) -> Result<JoinedMember, JoinError> {
    request_certificate(&client(), setup, UnixSeconds::now()).await
}

pub(super) fn first_controller(authority: &ClusterAuthority) -> Credentials {
    member(authority, PeerRole::Controller, 1)
}

pub(super) fn cluster() -> (ClusterAuthority, Credentials) {
    let authority = authority_today();
    let own = first_controller(&authority);
    (authority, own)
}

pub(super) fn contact(address: SocketAddr) -> ControllerContact {
    ControllerContact { node: NodeId(1), addresses: vec![address] }
}

/// What a controller grants that trusts every holder of the token.
pub(super) fn grant(authority: &ClusterAuthority, attempt: &JoinAttempt) -> JoinGrant {
    let now = UnixSeconds::now();
    let issued = authority.issue(&attempt.key, attempt.role, NODE, now).unwrap();
    let secret = (attempt.role == PeerRole::Controller).then(|| authority.secret());
    let controllers = vec![contact("10.0.0.4:7000".parse().unwrap())];
    JoinGrant::new(authority.cluster(), NODE, &issued, controllers, secret)
}

/// A controller that admits every joiner that proves to hold the token, for its role.
pub(super) fn trusting_controller(
    authority: &ClusterAuthority,
    own: &Credentials,
    token: &JoinToken,
) -> JoinServer {
    let authority = authority.clone();
    let token = token.clone();
    controller(own, move |attempt| {
        assert_eq!(attempt.token, token.id());
        Some(match attempt.check_proof(&token.verifier()) {
            Ok(()) => JoinAnswer::Granted(grant(&authority, attempt)),
            Err(refusal) => JoinAnswer::Refused(refusal),
        })
    })
}

pub(super) fn other_cluster() -> ClusterAuthority {
    ClusterAuthority::create(ClusterId(8), UnixSeconds::now()).unwrap()
}
