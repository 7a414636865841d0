//! Attempts from outside: handshakes and joiners are bounded in number, all together and by
//! address, and in time; one that is silent is evicted for the next one. Failed attempts are
//! reported in few events.

mod joiner_set;
mod pending_handshakes;

use std::net::SocketAddr;
use std::sync::Arc;

use quinn::{Connection, Endpoint, Incoming};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};
use zbelastic_identity::{AcceptedPeer, JoinGate, PeerIdentity};

use super::context::TransportContext;
use super::greeting::{PeerConnection, receive_hello};
use super::hello::HelloFault;
use super::join::{JoinerEnd, JoinerFailure, JoinerFailureSender, serve_join};
use super::tuning::{open_for_client, open_for_member};
use crate::close_code::CloseCode;
use crate::event::TransportEvent;
use crate::limits::TransportLimits;
pub(super) use joiner_set::DecidingFlag;
use joiner_set::JoinerSet;
use pending_handshakes::{CrowdLimits, PendingHandshakes};

/// Failures of joiners that wait for the gate's decision. Their tasks wait beyond it.
const FAILURES_WAITING_MAX: usize = 64;

/// The decision about a connection attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AcceptDecision {
    /// The handshake of the attempt begins.
    Accept,
    /// The handshake begins, and the oldest one of the address with the most is ended.
    Replace,
    /// It has to prove its address first, and nothing is kept of it meanwhile.
    Retry,
    /// It gets no answer: too many are under way.
    Ignore,
    /// It gets no answer: too many are under way from its address.
    IgnoreAddress,
}

/// Counts of the handshakes under way: all, and those of one address.
#[derive(Clone, Copy, Debug)]
struct HandshakeCounts {
    all: usize,
    of_address: usize,
}

/// Decides by how many handshakes are under way.
const fn decide(
    counts: HandshakeCounts,
    is_address_proved: bool,
    limits: &TransportLimits,
) -> AcceptDecision {
    let HandshakeCounts { all, of_address } = counts;
    let is_proof_wanted = all >= limits.handshakes_before_retry
        || of_address >= limits.handshakes_per_address_before_retry;
    if is_proof_wanted && !is_address_proved {
        return AcceptDecision::Retry;
    }
    let is_address_full = of_address >= limits.handshakes_per_address_max;
    let is_full = all >= limits.handshakes_pending_max;
    match (is_address_proved, is_address_full, is_full) {
        (_, false, false) => AcceptDecision::Accept,
        (true, _, _) => AcceptDecision::Replace,
        (false, true, _) => AcceptDecision::IgnoreAddress,
        (false, false, true) => AcceptDecision::Ignore,
    }
}

/// An attempt that did not lead to a peer.
struct FailedAttempt {
    address: SocketAddr,
    reason: String,
}

/// The result of a handshake.
enum HandshakeOutcome {
    /// A peer with a connection that the supervisor has now.
    Peer,
    /// A joiner, which requests to become a member.
    Joiner(Connection),
    /// Neither: it ended without a connection to keep.
    Failed(FailedAttempt),
}

/// Counts failed attempts since the last event about them.
struct StrangerReporter {
    count: u64,
    next_report: Instant,
}

/// Answers every attempt, until the endpoint closes.
pub(super) async fn accept_peers(
    context: Arc<TransportContext>,
    endpoint: Endpoint,
    connections: mpsc::Sender<PeerConnection>,
) {
    let mut handshakes = PendingHandshakes::default();
    let mut joiners = JoinerSet::default();
    let mut gate = JoinGate::default();
    let (failures, mut failed) = mpsc::channel(FAILURES_WAITING_MAX);
    let mut reporter = StrangerReporter { count: 0, next_report: Instant::now() };
    loop {
        tokio::select! {
            incoming = endpoint.accept() => {
                let Some(incoming) = incoming else { return };
                let address = incoming.remote_address().ip();
                if let Some(incoming) = filter_attempt(&context, &mut handshakes, incoming) {
                    let context = Arc::clone(&context);
                    let handshake = handle_attempt(context, incoming, connections.clone());
                    handshakes.begin(address, handshake);
                }
            }
            Some(outcome) = handshakes.next() => match outcome {
                None | Some(HandshakeOutcome::Peer) => {}
                Some(HandshakeOutcome::Joiner(connection)) => {
                    admit_joiner(&context, &mut joiners, &failures, connection);
                }
                Some(HandshakeOutcome::Failed(attempt)) => reporter.record(&context, attempt),
            },
            Some(JoinerFailure { address, verdict }) = failed.recv() => {
                // A joiner that went away needs no decision.
                let _ = verdict.send(gate.failed(address, std::time::Instant::now()));
            }
            Some(Some(JoinerEnd { address, is_member, reason })) = joiners.next() => {
                if is_member {
                    gate.succeeded(address.ip());
                }
                if let Some(reason) = reason {
                    reporter.record(&context, FailedAttempt { address, reason });
                }
            }
        }
    }
}

fn admit_joiner(
    context: &Arc<TransportContext>,
    joiners: &mut JoinerSet,
    failures: &JoinerFailureSender,
    connection: Connection,
) {
    let serve = |is_deciding| {
        serve_join(Arc::clone(context), connection.clone(), failures.clone(), is_deciding)
    };
    if !joiners.insert(&connection, &context.limits, serve) {
        context.counters.accept_refused.increment();
        connection.close(CloseCode::Crowded.number().into(), &[]);
    }
}

/// The attempt, if its handshake may begin.
fn filter_attempt(
    context: &TransportContext,
    handshakes: &mut PendingHandshakes,
    incoming: Incoming,
) -> Option<Incoming> {
    let limits = &context.limits;
    let address = incoming.remote_address().ip();
    let counts = handshakes.counts(address);
    match decide(counts, incoming.remote_address_validated(), limits) {
        AcceptDecision::Accept => return Some(incoming),
        AcceptDecision::Replace => {
            let crowd_limits = CrowdLimits {
                all_max: limits.handshakes_pending_max,
                of_address_max: limits.handshakes_per_address_max,
            };
            if handshakes.evict_oldest(address, crowd_limits, Instant::now()) {
                context.counters.accept_replaced.increment();
                return Some(incoming);
            }
            context.counters.accept_ignored_of_address.increment();
            incoming.ignore();
        }
        AcceptDecision::Retry => {
            context.counters.accept_retried.increment();
            // It fails only for an address that is proved, and this one is not.
            let _ = incoming.retry();
        }
        AcceptDecision::Ignore => {
            context.counters.accept_ignored.increment();
            incoming.ignore();
        }
        AcceptDecision::IgnoreAddress => {
            context.counters.accept_ignored_of_address.increment();
            incoming.ignore();
        }
    }
    None
}

impl StrangerReporter {
    fn record(&mut self, context: &TransportContext, attempt: FailedAttempt) {
        self.count += 1;
        let now = Instant::now();
        let FailedAttempt { address: last, reason } = attempt;
        if now < self.next_report {
            return;
        }
        if context.events.try_send(TransportEvent::Strangers { count: self.count, last, reason }) {
            self.count = 0;
            self.next_report = now + context.limits.strangers_reported_every;
        }
    }
}

/// From an attempt to a peer that is handed to the supervisor, to a joiner, or to a failure.
async fn handle_attempt(
    context: Arc<TransportContext>,
    incoming: Incoming,
    connections: mpsc::Sender<PeerConnection>,
) -> HandshakeOutcome {
    let address = incoming.remote_address();
    let _pending = context.counters.accept_pending.hold();
    let until = Instant::now() + context.limits.handshake_within;
    match handshake(&context, incoming, until).await {
        Ok((connection, AcceptedPeer::Joiner)) => HandshakeOutcome::Joiner(connection),
        Ok((connection, AcceptedPeer::Member(peer))) => {
            match exchange_hello(&context, &connection, peer, until).await {
                Ok(peer_connection) => {
                    // Without a supervisor the transport closes, and the connection with it.
                    let _ = connections.send(peer_connection).await;
                    HandshakeOutcome::Peer
                }
                Err(reason) => HandshakeOutcome::Failed(FailedAttempt {
                    address,
                    reason: format!("{peer}: {reason}"),
                }),
            }
        }
        Err(reason) => HandshakeOutcome::Failed(FailedAttempt { address, reason }),
    }
}

/// The handshake of TLS, and the peer that it was with.
async fn handshake(
    context: &TransportContext,
    incoming: Incoming,
    until: Instant,
) -> Result<(Connection, AcceptedPeer), String> {
    let connected = async { incoming.accept()?.await };
    let Ok(connected) = timeout_at(until, connected).await else {
        context.counters.accept_late.increment();
        return Err("its handshake took too long".to_owned());
    };
    let failed = |reason: String| {
        context.counters.accept_failed.increment();
        reason
    };
    let connection = connected.map_err(|error| failed(error.to_string()))?;
    match AcceptedPeer::of(&connection) {
        Ok(accepted) => Ok((connection, accepted)),
        Err(fault) => {
            connection.close(CloseCode::NotThisCluster.number().into(), &[]);
            Err(failed(fault.to_string()))
        }
    }
}

/// The hello of a member. From then on its lanes are open.
async fn exchange_hello(
    context: &TransportContext,
    connection: &Connection,
    peer: PeerIdentity,
    until: Instant,
) -> Result<PeerConnection, String> {
    let (counter, code, reason) =
        match timeout_at(until, receive_hello(context, connection.clone(), peer)).await {
            Ok(Ok(peer_connection)) => {
                let is_member = peer_connection.serves();
                let open = if is_member { open_for_member } else { open_for_client };
                open(connection, &context.limits);
                return Ok(peer_connection);
            }
            Ok(Err(fault)) => (&context.counters.accept_failed, code_of(&fault), fault.to_string()),
            Err(_) => {
                (&context.counters.accept_late, CloseCode::Late, "no hello in time".to_owned())
            }
        };
    counter.increment();
    connection.close(code.number().into(), &[]);
    Err(reason)
}

const fn code_of(fault: &HelloFault) -> CloseCode {
    match fault {
        HelloFault::Malformed => CloseCode::Malformed,
        HelloFault::Version { .. } => CloseCode::Version,
        HelloFault::Broken(_) => CloseCode::Left,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many handshakes, none of them from the address of the attempt.
    fn other_addresses(all: usize) -> HandshakeCounts {
        HandshakeCounts { all, of_address: 0 }
    }

    #[test]
    fn addresses_are_proved_from_one_count_on_and_the_oldest_is_evicted_from_another() {
        let limits = TransportLimits::default();
        let retry = limits.handshakes_before_retry;
        let max = limits.handshakes_pending_max;
        assert_eq!(decide(other_addresses(retry - 1), false, &limits), AcceptDecision::Accept);
        assert_eq!(decide(other_addresses(retry), false, &limits), AcceptDecision::Retry);
        assert_eq!(decide(other_addresses(retry), true, &limits), AcceptDecision::Accept);
        assert_eq!(decide(other_addresses(max - 1), true, &limits), AcceptDecision::Accept);
        assert_eq!(decide(other_addresses(max - 1), false, &limits), AcceptDecision::Retry);
        assert_eq!(decide(other_addresses(max), true, &limits), AcceptDecision::Replace);
        assert_eq!(decide(other_addresses(max), false, &limits), AcceptDecision::Retry);
        let without_retry = TransportLimits { handshakes_before_retry: max + 1, ..limits };
        assert_eq!(decide(other_addresses(max - 1), false, &without_retry), AcceptDecision::Accept);
        assert_eq!(decide(other_addresses(max), false, &without_retry), AcceptDecision::Ignore);
    }

    #[test]
    fn an_address_is_proved_and_replaced_earlier_than_all_together() {
        let limits = TransportLimits::default();
        let retry = limits.handshakes_per_address_before_retry;
        let max = limits.handshakes_per_address_max;
        assert!(retry < max && max < limits.handshakes_pending_max);
        let answer = |of_address, is_proved| {
            decide(HandshakeCounts { all: of_address, of_address }, is_proved, &limits)
        };
        assert_eq!(answer(retry - 1, false), AcceptDecision::Accept);
        assert_eq!(answer(retry, false), AcceptDecision::Retry);
        assert_eq!(answer(retry, true), AcceptDecision::Accept);
        assert_eq!(answer(max - 1, true), AcceptDecision::Accept);
        assert_eq!(answer(max, true), AcceptDecision::Replace);
        assert_eq!(answer(max, false), AcceptDecision::Retry);
    }
}
