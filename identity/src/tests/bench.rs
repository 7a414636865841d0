//! What the tests of identities share: clusters, and endpoints of this machine.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use zbelastic_types::{ClusterId, NodeId};

use super::super::*;

pub(in super::super) const CLUSTER: ClusterId = ClusterId(7);
pub(in super::super) const NOW: UnixSeconds = UnixSeconds(1_800_000_000);
pub(in super::super) const DAY_SECONDS: u64 = 24 * 60 * 60;

pub(in super::super) fn authority() -> ClusterAuthority {
    ClusterAuthority::create(CLUSTER, NOW).unwrap()
}

/// An authority as of now, for handshakes: TLS reads the machine's clock.
pub(in super::super) fn authority_today() -> ClusterAuthority {
    ClusterAuthority::create(CLUSTER, UnixSeconds::now().minus(60 * DAY_SECONDS)).unwrap()
}

pub(in super::super) fn member(
    authority: &ClusterAuthority,
    role: PeerRole,
    node: u64,
) -> Credentials {
    authority.credentials(role, NodeId(node), UnixSeconds::now()).unwrap()
}

pub(in super::super) fn loopback() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

pub(in super::super) fn server(config: rustls::ServerConfig) -> quinn::Endpoint {
    let config = QuicServerConfig::try_from(config).unwrap();
    quinn::Endpoint::server(quinn::ServerConfig::with_crypto(Arc::new(config)), loopback()).unwrap()
}

pub(in super::super) fn client() -> quinn::Endpoint {
    quinn::Endpoint::client(loopback()).unwrap()
}

pub(in super::super) fn client_config(config: rustls::ClientConfig) -> quinn::ClientConfig {
    let config = QuicClientConfig::try_from(config).unwrap();
    quinn::ClientConfig::new(Arc::new(config))
}
