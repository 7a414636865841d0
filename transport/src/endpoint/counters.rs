//! Counters of traffic that was carried, dropped and refused, from the start.

/// A reading of the counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TransportCounters {
    /// Counters of the Control lane.
    pub control: ControlCounters,
    /// Counters of the Tensor lane, in frames.
    pub frames: LaneCounters,
    /// Frames that broke their rule. Each closed its connection.
    pub frames_refused: u64,
    /// Counters of the Bulk lane, in chunks.
    pub bulk: LaneCounters,
    /// Counters of requests, sent and received.
    pub requests: RequestCounters,
    /// Counters of the accepting side: handshakes, refusals and open connections.
    pub accept: AcceptCounters,
}

/// Bytes of a lane by path, and its losses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneCounters {
    /// Units sent: frames, chunks.
    pub sent: u64,
    /// Units received. Of the Bulk lane only bytes are counted here.
    pub received: u64,
    /// Bytes sent over QUIC.
    pub quic_bytes_sent: u64,
    /// Bytes received over QUIC.
    pub quic_bytes_received: u64,
    /// Bytes sent over the same-host path.
    pub same_host_bytes_sent: u64,
    /// Bytes received over the same-host path.
    pub same_host_bytes_received: u64,
    /// Units dropped on arrival: frames that no rule names, or that came before a sink was set.
    pub dropped: u64,
}

/// Counters of the Control lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ControlCounters {
    /// Messages and bytes by path.
    pub lane: LaneCounters,
    /// Messages dropped because the queue of the peer was full: the oldest.
    pub dropped_queue_full: u64,
    /// Messages dropped because no path led to the peer.
    pub dropped_no_path: u64,
    /// Messages dropped because the node did not receive its events.
    pub dropped_events_full: u64,
    /// Messages not sent because they are empty or longer than the limit.
    pub dropped_not_sendable: u64,
    /// Messages dropped because this program does not know their kind.
    pub dropped_unknown_kind: u64,
}

/// Counters of requests, sent and received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestCounters {
    /// Requests that this process sent to members.
    pub sent: u64,
    /// Requests given to the node.
    pub accepted: u64,
    /// Requests answered as busy.
    pub refused_busy: u64,
    /// Requests refused by role or length.
    pub refused: u64,
}

/// Counters of the accepting side: handshakes, refusals and open connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AcceptCounters {
    /// Handshakes under way now.
    pub pending: u64,
    /// The most there ever were.
    pub pending_highest: u64,
    /// Attempts answered with a Retry, to prove their address.
    pub retried: u64,
    /// Handshakes that ended early, because newer ones came and their address had the most.
    pub replaced: u64,
    /// Attempts not answered because too many were under way.
    pub ignored: u64,
    /// Attempts not answered because too many from their address were under way.
    pub ignored_of_address: u64,
    /// Handshakes that failed: wrong cluster, no certificate, damage.
    pub failed: u64,
    /// Handshakes or hellos that exceeded their time.
    pub late: u64,
    /// Members refused: banned, forged, crowded, duplicate.
    pub refused: u64,
    /// Connections closed because of messages or frames that the peer sent.
    pub violations: u64,
    /// Connections that are open now.
    pub open: u64,
}
