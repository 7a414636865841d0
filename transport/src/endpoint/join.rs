//! The door for joiners: processes that want to become members.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use quinn::Connection;
use tokio::sync::{mpsc, oneshot};

use super::close::CloseCode;
use super::context::Context;
use super::door::IsDeciding;
use crate::event::TransportEvent;
use crate::identity::{
    self, JoinAnswer, JoinAttempt, JoinDelay, JoinRefusal, JoinReply, JoinServeFault, UnixSeconds,
};

/// How serving a joiner ended.
pub(super) struct JoinerGone {
    pub(super) address: SocketAddr,
    pub(super) is_member: bool,
    /// What was wrong, if anything was.
    pub(super) why: Option<String>,
}

/// A joiner failed by its own fault. `verdict` receives whether the reason may be sent to it.
pub(super) struct Failed {
    pub(super) address: IpAddr,
    pub(super) verdict: oneshot::Sender<Result<(), JoinDelay>>,
}

/// Where failures are reported: to the owner of the gate.
pub(super) type Failures = mpsc::Sender<Failed>;

/// What an answer means for the joiner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// It became a member.
    Member,
    /// It came without what it takes.
    AtFault,
    /// Neither. The answer is sent as it is.
    Unknown,
}

impl Standing {
    const fn of(answer: &JoinAnswer) -> Self {
        match answer {
            JoinAnswer::Granted(_) => Self::Member,
            JoinAnswer::Refused(
                JoinRefusal::TokenExpired { .. }
                | JoinRefusal::TokenRevoked { .. }
                | JoinRefusal::TokenSpent { .. }
                | JoinRefusal::TokenUnknown { .. }
                | JoinRefusal::WrongRole { .. }
                | JoinRefusal::WrongProof { .. }
                | JoinRefusal::WrongRequest(_)
                | JoinRefusal::NoMember
                | JoinRefusal::Unreadable,
            ) => Self::AtFault,
            JoinAnswer::Refused(
                JoinRefusal::TooManyAttempts { .. }
                | JoinRefusal::Clock(_)
                | JoinRefusal::WrongName(_)
                | JoinRefusal::NotLeader { .. }
                | JoinRefusal::NotReady,
            ) => Self::Unknown,
        }
    }
}

/// Serves one joiner on its connection. The node decides, whatever failed before from the same
/// address; only how a failure is answered depends on that. Each wait within has its own end.
pub(super) async fn serve_join(
    context: Arc<Context>,
    connection: Connection,
    failures: Failures,
    is_deciding: IsDeciding,
) -> JoinerGone {
    let address = connection.remote_address();
    let is_member = Arc::new(AtomicBool::new(false));
    let desk = Desk {
        failures: failures.clone(),
        address: address.ip(),
        is_deciding,
        is_member: Arc::clone(&is_member),
    };
    let hand_on = |attempt, reply| desk.ask_node(&context, attempt, reply);
    let served = identity::serve_join(&connection, UnixSeconds::now(), hand_on).await;
    connection.close(CloseCode::Left.number().into(), &[]);
    let why = match served {
        Ok(()) => None,
        Err(fault) => {
            context.tallies.door_failed.one();
            if matches!(fault, JoinServeFault::Read(_)) {
                // It sent no request to decide about. That counts, and changes nothing else.
                let _ = verdict(&failures, address.ip()).await;
            }
            Some(fault.to_string())
        }
    };
    JoinerGone { address, is_member: is_member.load(Ordering::Relaxed), why }
}

/// Whether a failure from an address may be answered with its reason.
async fn verdict(failures: &Failures, address: IpAddr) -> Result<(), JoinDelay> {
    let (sender, verdict) = oneshot::channel();
    // Without an owner of the gate the transport closes.
    let _ = failures.send(Failed { address, verdict: sender }).await;
    verdict.await.unwrap_or(Ok(()))
}

/// Where the node's answer passes on its way back.
struct Desk {
    failures: Failures,
    address: IpAddr,
    is_deciding: IsDeciding,
    is_member: Arc<AtomicBool>,
}

impl Desk {
    /// Gives the attempt to the node.
    fn ask_node(self, context: &Arc<Context>, attempt: JoinAttempt, reply: JoinReply) {
        let (to_us, answered) = JoinReply::pair();
        self.is_deciding.store(true, Ordering::Relaxed);
        // An event that finds no room drops the reply, and the joiner receives `NotReady`.
        if !context.events.offer(TransportEvent::Join { attempt, reply: to_us }) {
            self.is_deciding.store(false, Ordering::Relaxed);
            return;
        }
        let context = Arc::clone(context);
        tokio::spawn(async move {
            let answer = answered.await;
            self.is_deciding.store(false, Ordering::Relaxed);
            if let Ok(answer) = answer {
                reply.answer(self.look_at(&context, answer).await);
            }
        });
    }

    async fn look_at(&self, context: &Context, answer: JoinAnswer) -> JoinAnswer {
        match Standing::of(&answer) {
            Standing::Unknown => answer,
            Standing::Member => {
                self.is_member.store(true, Ordering::Relaxed);
                answer
            }
            Standing::AtFault => match verdict(&self.failures, self.address).await {
                Ok(()) => answer,
                Err(delay) => {
                    context.tallies.door_refused.one();
                    let seconds = delay.seconds();
                    JoinAnswer::Refused(JoinRefusal::TooManyAttempts { seconds })
                }
            },
        }
    }
}
