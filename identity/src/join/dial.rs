//! A join from a socket of its own: the joiner is no peer of a node yet.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use quinn::Endpoint;

use super::requester::{JoinError, JoinSetup, JoinedMember, request_certificate};
use crate::UnixSeconds;

/// Requests membership of a cluster, with a token.
///
/// # Errors
/// If there is no certificate. A fault that passes with time may be tried again with the same key.
pub async fn join_cluster(setup: &JoinSetup) -> Result<JoinedMember, JoinError> {
    let is_v6 = !setup.cluster.is_empty() && setup.cluster.iter().all(SocketAddr::is_ipv6);
    let any: IpAddr =
        if is_v6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    let endpoint = Endpoint::client((any, 0).into());
    let endpoint = endpoint.map_err(|error| JoinError::Setup(error.to_string()))?;
    let joined = request_certificate(&endpoint, setup, UnixSeconds::now()).await;
    endpoint.wait_idle().await;
    joined
}
