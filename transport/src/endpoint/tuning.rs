//! How QUIC is set: limits before and after a peer is authenticated, and windows for bulk.

use std::sync::Arc;
use std::time::Duration;

use quinn::congestion::CubicConfig;
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{
    ClientConfig, Connection, EndpointConfig, IdleTimeout, MtuDiscoveryConfig, ServerConfig,
    TransportConfig, VarInt,
};
use zbelastic_identity::{AcceptedDiallers, Credentials, ExpectedPeer};

use super::connection_id::RandomConnectionIds;
use super::setup::BindError;
use crate::limits::TransportLimits;

/// Bytes that a connection may send before its peer is known, and an unauthenticated peer at any
/// time.
const STRANGER_WINDOW_BYTES: u32 = 64 << 10;
/// Handshake bytes kept of a connection: four certificates of 8 KiB do not come at once.
const HANDSHAKE_BYTES_MAX: usize = 16 << 10;
/// Bytes kept of one attempt that was not looked at yet, beyond its first packet.
const ATTEMPT_BYTES_MAX: u64 = 4 << 10;
/// Bytes kept of all such attempts together.
const ATTEMPTS_BYTES_MAX: u64 = 1 << 20;
/// Attempts that were not looked at yet. The accepting task looks at them at once.
const ATTEMPTS_MAX: usize = 1024;
/// The largest packet that is tried: a jumbo frame of Ethernet less its headers.
const PACKET_BYTES_MAX: u16 = 8952;
/// The time that is assumed for a round trip before one was measured. Ours are machines of one
/// site; the standard's third of a second would make the first loss cost a second.
const ROUND_TRIP_GUESS: Duration = Duration::from_millis(50);
/// Bytes that may be under way before anything is known of the path. The standard's two packets of
/// the largest size are one probe for that size and no space for anything else; and quinn-proto up
/// to 0.11.19 lets a full window hold up even the packet that closes.
const WINDOW_AT_FIRST_BYTES: u64 = 16 * PACKET_BYTES_MAX as u64;
/// One stream may hold a quarter of a connection's window: three that stall leave a quarter free.
const STREAM_SHARE: u32 = 4;

/// How an endpoint dials and how it is dialled, by one set of credentials.
#[derive(Clone, Debug)]
pub(super) struct QuicConfigs {
    pub(super) server: ServerConfig,
    pub(super) client: ClientConfig,
}

impl QuicConfigs {
    pub(super) fn new(
        credentials: &Credentials,
        limits: &TransportLimits,
    ) -> Result<Self, BindError> {
        Ok(Self {
            server: server_config(credentials, limits)?,
            client: client_config(credentials, limits)?,
        })
    }
}

/// An endpoint that can end the connections of the process before it: after a restart at the same
/// port it answers their packets with the stateless resets that they were promised, so that peers
/// dial anew at once, and not when they have received nothing for [`TransportLimits::idle_within`].
pub(super) fn endpoint_config(credentials: &Credentials) -> EndpointConfig {
    let mut config = EndpointConfig::new(Arc::new(credentials.key().reset_key()));
    config.cid_generator(|| Box::new(RandomConnectionIds));
    config.max_udp_payload_size(PACKET_BYTES_MAX).expect("above the least that QUIC requires");
    config
}

/// An endpoint that only dials: that of a person's command line. It accepts packets as large as a
/// member's: a peer sends none that are larger than this endpoint's limit, and models are read over
/// such a connection.
pub(super) fn dialling_endpoint_config() -> EndpointConfig {
    let mut config = EndpointConfig::default();
    config.max_udp_payload_size(PACKET_BYTES_MAX).expect("above the least that QUIC requires");
    config
}

fn server_config(
    credentials: &Credentials,
    limits: &TransportLimits,
) -> Result<ServerConfig, BindError> {
    let tls = credentials.server_config(AcceptedDiallers::MembersAndJoiners).map_err(unusable)?;
    let crypto = QuicServerConfig::try_from(tls).map_err(unusable)?;
    let mut config = ServerConfig::with_crypto(Arc::new(crypto));
    config
        .transport_config(Arc::new(before_known(limits)))
        .max_incoming(ATTEMPTS_MAX)
        .incoming_buffer_size(ATTEMPT_BYTES_MAX)
        .incoming_buffer_size_total(ATTEMPTS_BYTES_MAX)
        .migration(true);
    Ok(config)
}

pub(super) fn client_config(
    credentials: &Credentials,
    limits: &TransportLimits,
) -> Result<ClientConfig, BindError> {
    let tls = credentials.client_config(ExpectedPeer::AnyMember).map_err(unusable)?;
    let crypto = QuicClientConfig::try_from(tls).map_err(unusable)?;
    let mut config = ClientConfig::new(Arc::new(crypto));
    config.transport_config(Arc::new(before_known(limits)));
    Ok(config)
}

fn unusable(error: impl std::fmt::Display) -> BindError {
    BindError::Credentials { why: error.to_string() }
}

/// The configuration of a connection until [`open_for_member`] or [`open_for_client`].
pub(super) fn before_known(limits: &TransportLimits) -> TransportConfig {
    let mut mtu = MtuDiscoveryConfig::default();
    mtu.upper_bound(PACKET_BYTES_MAX);
    let mut congestion = CubicConfig::default();
    congestion.initial_window(WINDOW_AT_FIRST_BYTES);
    let mut config = TransportConfig::default();
    config
        .congestion_controller_factory(Arc::new(congestion))
        .max_idle_timeout(IdleTimeout::try_from(limits.idle_within).ok())
        .keep_alive_interval(Some(limits.keep_alive_every))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .max_concurrent_bidi_streams(VarInt::from_u32(1))
        .stream_receive_window(VarInt::from_u32(limits.window_bytes / STREAM_SHARE))
        .receive_window(VarInt::from_u32(STRANGER_WINDOW_BYTES))
        .send_window(u64::from(limits.window_bytes))
        .crypto_buffer_size(HANDSHAKE_BYTES_MAX)
        .datagram_receive_buffer_size(None)
        .initial_rtt(ROUND_TRIP_GUESS)
        .mtu_discovery_config(Some(mtu));
    config
}

/// Opens the lanes of a member.
pub(super) fn open_for_member(connection: &Connection, limits: &TransportLimits) {
    connection.set_receive_window(VarInt::from_u32(limits.window_bytes));
    connection.set_max_concurrent_uni_streams(VarInt::from_u32(limits.streams_one_way_max));
    connection.set_max_concurrent_bi_streams(VarInt::from_u32(limits.streams_both_ways_max));
}

/// Lets a person's command line send requests.
pub(super) fn open_for_client(connection: &Connection, limits: &TransportLimits) {
    connection.set_receive_window(VarInt::from_u32(limits.window_bytes / STREAM_SHARE));
    connection.set_max_concurrent_bi_streams(VarInt::from_u32(limits.streams_both_ways_max));
}
