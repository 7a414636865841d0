//! A join from a socket of its own: the joiner is no peer of a node yet.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use quinn::Endpoint;
use tokio::time::{Instant, sleep};

use super::requester::{JoinError, JoinSetup, JoinedMember, request_certificate};
use super::serve::DECISION_SECONDS_MAX;
use crate::UnixSeconds;

/// Until the controllers are dialled again that answered that they do not decide now.
const ELECTION_PAUSE: Duration = Duration::from_millis(250);

/// Requests membership of a cluster, with a token. While controllers answer that none of them decides
/// now they are asked again, for as long as a leader may take to decide.
///
/// # Errors
/// If there is no certificate. A fault that passes with time may be tried again with the same key.
pub async fn join_cluster(setup: &JoinSetup) -> Result<JoinedMember, JoinError> {
    let until = Instant::now() + Duration::from_secs(DECISION_SECONDS_MAX);
    loop {
        match join_once(setup).await {
            Err(JoinError::NobodyDecided { dials }) if dials.may_pass && Instant::now() < until => {
                sleep(ELECTION_PAUSE).await;
            }
            joined => return joined,
        }
    }
}

/// The same, with each address dialled in turn and no further round.
///
/// # Errors
/// As [`join_cluster`].
pub async fn join_once(setup: &JoinSetup) -> Result<JoinedMember, JoinError> {
    let is_v6 = !setup.cluster.is_empty() && setup.cluster.iter().all(SocketAddr::is_ipv6);
    let any: IpAddr =
        if is_v6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    let endpoint = Endpoint::client((any, 0).into());
    let endpoint = endpoint.map_err(|error| JoinError::Setup(error.to_string()))?;
    let joined = request_certificate(&endpoint, setup, UnixSeconds::now()).await;
    endpoint.wait_idle().await;
    joined
}
