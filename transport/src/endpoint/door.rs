//! Attempts from outside: handshakes and joiners are bounded in number, all together and by address, and
//! in time; one that is silent makes room for the next one. Strangers are reported in few events.

mod pending;
mod room;

use std::net::SocketAddr;
use std::sync::Arc;

use quinn::{Connection, Endpoint, Incoming};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use super::close::CloseCode;
use super::context::Context;
use super::greeting::{Greeted, be_greeted};
use super::hello::HelloFault;
use super::join::{Failed, Failures, JoinerGone, serve_join};
use super::tuning::{open_for_client, open_for_member};
use crate::event::TransportEvent;
use crate::identity::{Accepted, JoinGate, PeerIdentity};
use crate::limits::Limits;
use pending::{Crowded, Pending};
pub(super) use room::IsDeciding;
use room::Room;

/// Failures of joiners that wait for the gate's verdict. Their tasks wait beyond it.
const FAILURES_WAITING_MAX: usize = 64;

/// What is done with an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// The handshake begins.
    Accept,
    /// The handshake begins, and the oldest one of an address that is crowded ends.
    Replace,
    /// It has to prove its address first, and nothing is kept of it meanwhile.
    Retry,
    /// It gets no answer: too many are under way.
    Ignore,
    /// It gets no answer: too many are under way from its address.
    IgnoreAddress,
}

/// How many handshakes are under way.
#[derive(Clone, Copy, Debug)]
struct Crowd {
    all: usize,
    of_address: usize,
}

/// Decides by how many handshakes are under way.
const fn answer(crowd: Crowd, is_address_proved: bool, limits: &Limits) -> Answer {
    let Crowd { all, of_address } = crowd;
    let is_proof_wanted = all >= limits.handshakes_before_retry
        || of_address >= limits.handshakes_per_address_before_retry;
    if is_proof_wanted && !is_address_proved {
        return Answer::Retry;
    }
    let is_address_full = of_address >= limits.handshakes_per_address_max;
    let is_full = all >= limits.handshakes_pending_max;
    match (is_address_proved, is_address_full, is_full) {
        (_, false, false) => Answer::Accept,
        (true, _, _) => Answer::Replace,
        (false, true, _) => Answer::IgnoreAddress,
        (false, false, true) => Answer::Ignore,
    }
}

/// An attempt that did not lead to a peer.
struct Stranger {
    address: SocketAddr,
    why: String,
}

/// What came of a handshake.
enum Knock {
    /// A peer, which the keeper has now.
    Peer,
    /// A joiner, which wants to become a member.
    Joiner(Connection),
    /// Neither: it ended without a connection to keep.
    Stranger(Stranger),
}

/// Strangers since the last event about them.
struct StrangerBook {
    count: u64,
    tell_from: Instant,
}

/// Answers every attempt, until the endpoint closes.
pub(super) async fn keep_door(
    context: Arc<Context>,
    endpoint: Endpoint,
    inbox: mpsc::Sender<Greeted>,
) {
    let mut handshakes = Pending::default();
    let (mut room, mut gate) = (Room::default(), JoinGate::default());
    let (failures, mut failed) = mpsc::channel(FAILURES_WAITING_MAX);
    let mut book = StrangerBook { count: 0, tell_from: Instant::now() };
    loop {
        tokio::select! {
            incoming = endpoint.accept() => {
                let Some(incoming) = incoming else { return };
                let address = incoming.remote_address().ip();
                if let Some(incoming) = sift(&context, &mut handshakes, incoming) {
                    let entering = enter(Arc::clone(&context), incoming, inbox.clone());
                    handshakes.begin(address, entering);
                }
            }
            Some(knock) = handshakes.next() => match knock {
                None | Some(Knock::Peer) => {}
                Some(Knock::Joiner(connection)) => {
                    receive_joiner(&context, &mut room, &failures, connection);
                }
                Some(Knock::Stranger(stranger)) => book.note(&context, stranger),
            },
            Some(Failed { address, verdict }) = failed.recv() => {
                // A joiner that went away needs no verdict.
                let _ = verdict.send(gate.failed(address, std::time::Instant::now()));
            }
            Some(Some(JoinerGone { address, is_member, why })) = room.next() => {
                if is_member {
                    gate.succeeded(address.ip());
                }
                if let Some(why) = why {
                    book.note(&context, Stranger { address, why });
                }
            }
        }
    }
}

fn receive_joiner(
    context: &Arc<Context>,
    room: &mut Room,
    failures: &Failures,
    connection: Connection,
) {
    let serve = |is_deciding| {
        serve_join(Arc::clone(context), connection.clone(), failures.clone(), is_deciding)
    };
    if !room.enter(&connection, &context.limits, serve) {
        context.tallies.door_refused.one();
        connection.close(CloseCode::Crowded.number().into(), &[]);
    }
}

/// The attempt, if its handshake may begin.
fn sift(context: &Context, handshakes: &mut Pending, incoming: Incoming) -> Option<Incoming> {
    let (limits, address) = (&context.limits, incoming.remote_address().ip());
    let crowd = handshakes.crowd(address);
    match answer(crowd, incoming.remote_address_validated(), limits) {
        Answer::Accept => return Some(incoming),
        Answer::Replace => {
            let crowded = Crowded {
                all_max: limits.handshakes_pending_max,
                of_address_max: limits.handshakes_per_address_max,
            };
            if handshakes.make_room(address, crowded, Instant::now()) {
                context.tallies.door_replaced.one();
                return Some(incoming);
            }
            context.tallies.door_ignored_of_address.one();
            incoming.ignore();
        }
        Answer::Retry => {
            context.tallies.door_retried.one();
            // It fails only for an address that is proved, and this one is not.
            let _ = incoming.retry();
        }
        Answer::Ignore => {
            context.tallies.door_ignored.one();
            incoming.ignore();
        }
        Answer::IgnoreAddress => {
            context.tallies.door_ignored_of_address.one();
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

/// From an attempt to a peer that is handed to the keeper, to a joiner, or to a stranger.
async fn enter(context: Arc<Context>, incoming: Incoming, inbox: mpsc::Sender<Greeted>) -> Knock {
    let address = incoming.remote_address();
    let _pending = context.tallies.door_pending.hold();
    let until = Instant::now() + context.limits.handshake_within;
    match shake_hands(&context, incoming, until).await {
        Ok((connection, Accepted::Joiner)) => Knock::Joiner(connection),
        Ok((connection, Accepted::Member(peer))) => {
            match meet(&context, &connection, peer, until).await {
                Ok(greeted) => {
                    // Without a keeper the transport closes, and the connection with it.
                    let _ = inbox.send(greeted).await;
                    Knock::Peer
                }
                Err(why) => Knock::Stranger(Stranger { address, why: format!("{peer}: {why}") }),
            }
        }
        Err(why) => Knock::Stranger(Stranger { address, why }),
    }
}

/// The handshake of TLS, and the peer that it was with.
async fn shake_hands(
    context: &Context,
    incoming: Incoming,
    until: Instant,
) -> Result<(Connection, Accepted), String> {
    let connected = async { incoming.accept()?.await };
    let Ok(connected) = timeout_at(until, connected).await else {
        context.tallies.door_late.one();
        return Err("its handshake took too long".to_owned());
    };
    let failed = |why: String| {
        context.tallies.door_failed.one();
        why
    };
    let connection = connected.map_err(|error| failed(error.to_string()))?;
    match Accepted::of(&connection) {
        Ok(accepted) => Ok((connection, accepted)),
        Err(fault) => {
            connection.close(CloseCode::NotThisCluster.number().into(), &[]);
            Err(failed(fault.to_string()))
        }
    }
}

/// The hello of a member. From then on its lanes are open.
async fn meet(
    context: &Context,
    connection: &Connection,
    peer: PeerIdentity,
    until: Instant,
) -> Result<Greeted, String> {
    let (tally, code, why) =
        match timeout_at(until, be_greeted(context, connection.clone(), peer)).await {
            Ok(Ok(greeted)) => {
                let open = if peer.role.serves() { open_for_member } else { open_for_client };
                open(connection, &context.limits);
                return Ok(greeted);
            }
            Ok(Err(fault)) => (&context.tallies.door_failed, code_of(&fault), fault.to_string()),
            Err(_) => (&context.tallies.door_late, CloseCode::Late, "no hello in time".to_owned()),
        };
    tally.one();
    connection.close(code.number().into(), &[]);
    Err(why)
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

    /// So many handshakes, none of them from the address that knocks.
    fn elsewhere(all: usize) -> Crowd {
        Crowd { all, of_address: 0 }
    }

    #[test]
    fn addresses_are_proved_from_one_count_on_and_the_oldest_makes_room_from_another() {
        let limits = Limits::default();
        let (retry, max) = (limits.handshakes_before_retry, limits.handshakes_pending_max);
        assert_eq!(answer(elsewhere(retry - 1), false, &limits), Answer::Accept);
        assert_eq!(answer(elsewhere(retry), false, &limits), Answer::Retry);
        assert_eq!(answer(elsewhere(retry), true, &limits), Answer::Accept);
        assert_eq!(answer(elsewhere(max - 1), true, &limits), Answer::Accept);
        assert_eq!(answer(elsewhere(max - 1), false, &limits), Answer::Retry);
        assert_eq!(answer(elsewhere(max), true, &limits), Answer::Replace);
        assert_eq!(answer(elsewhere(max), false, &limits), Answer::Retry);
        let believing = Limits { handshakes_before_retry: max + 1, ..limits };
        assert_eq!(answer(elsewhere(max - 1), false, &believing), Answer::Accept);
        assert_eq!(answer(elsewhere(max), false, &believing), Answer::Ignore);
    }

    #[test]
    fn an_address_is_proved_and_replaced_earlier_than_all_together() {
        let limits = Limits::default();
        let retry = limits.handshakes_per_address_before_retry;
        let max = limits.handshakes_per_address_max;
        assert!(retry < max && max < limits.handshakes_pending_max);
        let answer = |of_address, is_proved| {
            answer(Crowd { all: of_address, of_address }, is_proved, &limits)
        };
        assert_eq!(answer(retry - 1, false), Answer::Accept);
        assert_eq!(answer(retry, false), Answer::Retry);
        assert_eq!(answer(retry, true), Answer::Accept);
        assert_eq!(answer(max - 1, true), Answer::Accept);
        assert_eq!(answer(max, true), Answer::Replace);
        assert_eq!(answer(max, false), Answer::Retry);
    }
}
