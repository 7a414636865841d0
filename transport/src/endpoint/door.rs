//! Who knocks: handshakes are bounded in number and time, and strangers are told of in few words.

use std::net::SocketAddr;
use std::sync::Arc;

use quinn::{Endpoint, Incoming};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::close::CloseCode;
use super::context::Context;
use super::greeting::{Greeted, be_greeted};
use super::hello::HelloFault;
use super::join::serve_join;
use super::tuning::{open_for_client, open_for_member};
use crate::event::TransportEvent;
use crate::identity::{Accepted, PeerIdentity};
use crate::limits::Limits;

/// What is done with an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// The handshake begins.
    Accept,
    /// It has to prove its address first, and nothing is kept of it meanwhile.
    Retry,
    /// It gets no answer.
    Ignore,
}

/// Decides by how many handshakes are under way.
const fn answer(pending: usize, is_address_proved: bool, limits: &Limits) -> Answer {
    if pending >= limits.handshakes_pending_max {
        Answer::Ignore
    } else if pending >= limits.handshakes_before_retry && !is_address_proved {
        Answer::Retry
    } else {
        Answer::Accept
    }
}

/// Somebody who knocked and did not become a peer.
struct Stranger {
    address: SocketAddr,
    why: String,
}

/// Strangers since the node was last told.
struct StrangerBook {
    count: u64,
    tell_from: Instant,
}

/// Answers whoever knocks, until the endpoint closes.
pub(super) async fn keep_door(
    context: Arc<Context>,
    endpoint: Endpoint,
    inbox: mpsc::Sender<Greeted>,
) {
    let mut handshakes = JoinSet::new();
    let mut book = StrangerBook { count: 0, tell_from: Instant::now() };
    loop {
        tokio::select! {
            incoming = endpoint.accept() => {
                let Some(incoming) = incoming else { return };
                let pending = handshakes.len();
                if let Some(incoming) = sift(&context, pending, incoming) {
                    handshakes.spawn(enter(Arc::clone(&context), incoming, inbox.clone()));
                }
            }
            Some(ended) = handshakes.join_next() => {
                if let Ok(Some(stranger)) = ended {
                    book.note(&context, stranger);
                }
            }
        }
    }
}

/// The attempt, if its handshake may begin.
fn sift(context: &Context, pending: usize, incoming: Incoming) -> Option<Incoming> {
    match answer(pending, incoming.remote_address_validated(), &context.limits) {
        Answer::Accept => return Some(incoming),
        Answer::Retry => {
            context.tallies.door_retried.one();
            // It fails only for an address that is proved, and this one is not.
            let _ = incoming.retry();
        }
        Answer::Ignore => {
            context.tallies.door_ignored.one();
            incoming.ignore();
        }
    }
    None
}

impl StrangerBook {
    fn note(&mut self, context: &Context, stranger: Stranger) {
        self.count += 1;
        let now = Instant::now();
        let Stranger { address: last, why } = stranger;
        if now < self.tell_from {
            return;
        }
        if context.events.offer(TransportEvent::Strangers { count: self.count, last, why }) {
            self.count = 0;
            self.tell_from = now + context.limits.strangers_told_every;
        }
    }
}

/// From an attempt to a peer that is handed to the keeper, or to a stranger.
async fn enter(
    context: Arc<Context>,
    incoming: Incoming,
    inbox: mpsc::Sender<Greeted>,
) -> Option<Stranger> {
    let address = incoming.remote_address();
    let stranger = |why: String| Some(Stranger { address, why });
    let pending = context.tallies.door_pending.hold();
    let within = context.limits.handshake_within;
    let begun = Instant::now();
    let connected = async { incoming.accept()?.await };
    let connection = match timeout(within, connected).await {
        Ok(Ok(connection)) => connection,
        Ok(Err(error)) => {
            context.tallies.door_failed.one();
            return stranger(error.to_string());
        }
        Err(_) => {
            context.tallies.door_late.one();
            return stranger("its handshake took too long".to_owned());
        }
    };
    let peer = match Accepted::of(&connection) {
        Ok(Accepted::Member(peer)) => peer,
        Ok(Accepted::Joiner) => {
            drop(pending);
            tokio::spawn(serve_join(Arc::clone(&context), connection));
            return None;
        }
        Err(fault) => {
            context.tallies.door_failed.one();
            connection.close(CloseCode::NotThisCluster.number().into(), &[]);
            return stranger(fault.to_string());
        }
    };
    let rest = within.saturating_sub(begun.elapsed());
    let greeted = timeout(rest, meet(&context, connection.clone(), peer)).await;
    let why = match greeted {
        Ok(Ok(greeted)) => {
            // Without a keeper the transport closes, and the connection with it.
            let _ = inbox.send(greeted).await;
            return None;
        }
        Ok(Err(fault)) => {
            context.tallies.door_failed.one();
            connection.close(code_of(&fault).number().into(), &[]);
            fault.to_string()
        }
        Err(_) => {
            context.tallies.door_late.one();
            connection.close(CloseCode::Late.number().into(), &[]);
            "no hello in time".to_owned()
        }
    };
    stranger(format!("{peer}: {why}"))
}

const fn code_of(fault: &HelloFault) -> CloseCode {
    match fault {
        HelloFault::Malformed => CloseCode::Malformed,
        HelloFault::Version { .. } => CloseCode::Version,
        HelloFault::Broken(_) => CloseCode::Left,
    }
}

async fn meet(
    context: &Context,
    connection: quinn::Connection,
    peer: PeerIdentity,
) -> Result<Greeted, HelloFault> {
    let greeted = be_greeted(connection, peer).await?;
    if peer.role.serves() {
        open_for_member(&greeted.connection, &context.limits);
    } else {
        open_for_client(&greeted.connection, &context.limits);
    }
    Ok(greeted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_proved_from_one_count_on_and_nobody_is_answered_from_another() {
        let limits = Limits::default();
        let (retry, max) = (limits.handshakes_before_retry, limits.handshakes_pending_max);
        assert_eq!(answer(retry - 1, false, &limits), Answer::Accept);
        assert_eq!(answer(retry, false, &limits), Answer::Retry);
        assert_eq!(answer(retry, true, &limits), Answer::Accept);
        assert_eq!(answer(max - 1, true, &limits), Answer::Accept);
        assert_eq!(answer(max - 1, false, &limits), Answer::Retry);
        assert_eq!(answer(max, true, &limits), Answer::Ignore);
        assert_eq!(answer(max, false, &limits), Answer::Ignore);
    }
}
