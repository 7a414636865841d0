//! Every limit of the wire, with its default and its effect when it is reached.
//!
//! A limit that is here may be set by the process. One that two processes must share to understand
//! each other, such as the length of a control frame, is a constant, and `docs/wire-format.md`
//! lists it.

use std::time::Duration;

/// Longest control frame that travels whole. A longer message is cut into pieces.
pub const CONTROL_FRAME_BYTES_MAX: usize = 64 << 10;
/// Longest control message of all. One that claims more closes the connection.
pub const CONTROL_MESSAGE_BYTES_MAX: usize = 14 << 20;
/// Longest piece of a control message that was cut. A longer one closes the connection.
pub const CONTROL_PIECE_BYTES_MAX: usize = 1 << 20;
/// Longest request. A longer one is not sent, and is refused when it arrives.
pub const REQUEST_BYTES_MAX: usize = 1 << 20;
/// Longest answer to a request. A longer one is not sent, and is not read to its end.
pub const ANSWER_BYTES_MAX: usize = 16 << 20;
/// Most addresses kept of one peer. More are left out.
pub const PEER_ADDRESSES_MAX: usize = 8;

/// The limits of one process. Each names the effect when it is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransportLimits {
    /// Handshakes under way at once. One more ends the oldest of the address that has the most, if
    /// it proved its own address, and is not answered otherwise.
    pub handshakes_pending_max: usize,
    /// Handshakes under way from which on an address must be proved first, by a stateless Retry.
    pub handshakes_before_retry: usize,
    /// Handshakes under way at once from one address, or one network of 64 bits of IPv6. One more
    /// ends the oldest of them, if it proved its address, and is not answered otherwise: no address
    /// takes the places of others, and no peer those of others behind the same address.
    pub handshakes_per_address_max: usize,
    /// Handshakes under way from one address from which on it must be proved first. Fewer than may
    /// be under way: a sender that writes another's address on its datagrams does not keep that one
    /// out.
    pub handshakes_per_address_before_retry: usize,
    /// Time limit of a handshake and the hello after it. Then the connection is closed.
    pub handshake_within: Duration,
    /// How long a peer may be silent before it counts as lost.
    pub idle_within: Duration,
    /// How often a connection without traffic sends a keep-alive.
    pub keep_alive_every: Duration,
    /// Streams of one direction that a member may have open. More wait at the sender.
    pub streams_one_way_max: u32,
    /// Streams of both directions that a member may have open. More wait at the sender.
    pub streams_both_ways_max: u32,
    /// Connections of members at once. More are refused.
    pub members_max: usize,
    /// Connections of people at once: admins, operators and viewers. One more closes the oldest of
    /// the person with the most, or is refused if no person has more than one beyond the
    /// newcomer's.
    pub clients_max: usize,
    /// Joins that wait for the node's decision at once. More are refused.
    pub joins_max: usize,
    /// Connections at once of joiners that sent no request yet, or were answered and do not hang
    /// up. One more closes the oldest of the address that has the most.
    pub joiners_idle_max: usize,
    /// The same from one address, or one network of 64 bits of IPv6. One more closes the oldest of
    /// them.
    pub joiners_idle_per_address_max: usize,
    /// Control messages that wait for one peer. More drop the oldest, and are counted.
    pub control_queue_messages_max: usize,
    /// Bytes of control messages that wait for one peer. More drop the oldest, and are counted.
    pub control_queue_bytes_max: usize,
    /// Tensor frames of one urgency that wait for one peer. More are given back to the sender as
    /// full.
    pub frame_queue_max: usize,
    /// Events that wait for the node. Control messages beyond it are dropped and counted, requests
    /// are answered as busy; events of peers wait.
    pub events_max: usize,
    /// Requests that wait for an answer of the node, of all peers together. More are answered as
    /// busy.
    pub requests_open_max: usize,
    /// Time limit of a request, as the requester counts.
    pub request_within: Duration,
    /// The first pause before a peer is dialled again.
    pub redial_first: Duration,
    /// The longest pause before a peer is dialled again.
    pub redial_longest: Duration,
    /// Time within which one address must answer before the next one is tried.
    pub dial_within: Duration,
    /// How long the node with the higher id waits for the other one to dial before it dials.
    pub dial_patience: Duration,
    /// Bytes that the operating system keeps for the socket, each way. It may give fewer.
    pub socket_buffer_bytes: usize,
    /// Bytes under way to or from one member.
    pub window_bytes: u32,
    /// The least time between two [`crate::TransportEvent::Strangers`] events.
    pub strangers_reported_every: Duration,
}

impl Default for TransportLimits {
    fn default() -> Self {
        Self {
            handshakes_pending_max: 1024,
            handshakes_before_retry: 64,
            handshakes_per_address_max: 512,
            handshakes_per_address_before_retry: 16,
            handshake_within: Duration::from_secs(5),
            idle_within: Duration::from_secs(10),
            keep_alive_every: Duration::from_secs(1),
            streams_one_way_max: 256,
            streams_both_ways_max: 32,
            members_max: 1024,
            clients_max: 64,
            joins_max: 1024,
            joiners_idle_max: 1024,
            joiners_idle_per_address_max: 512,
            control_queue_messages_max: 1024,
            control_queue_bytes_max: 32 << 20,
            frame_queue_max: 64,
            events_max: 4096,
            requests_open_max: 256,
            request_within: Duration::from_secs(30),
            redial_first: Duration::from_millis(100),
            redial_longest: Duration::from_secs(5),
            dial_within: Duration::from_secs(2),
            dial_patience: Duration::from_secs(2),
            socket_buffer_bytes: 8 << 20,
            window_bytes: 64 << 20,
            strangers_reported_every: Duration::from_secs(10),
        }
    }
}
