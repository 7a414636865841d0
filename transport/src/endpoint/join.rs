//! Accepts joiners: processes that request to become members.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use quinn::Connection;
use tokio::sync::{mpsc, oneshot};
use zbelastic_identity::{
    JoinAnswer, JoinAttempt, JoinDelay, JoinRefusal, JoinReply, JoinServeFault, UnixSeconds,
};

use super::accept::DecidingFlag;
use super::context::TransportContext;
use crate::close_code::CloseCode;
use crate::event::TransportEvent;

/// The end of serving a joiner.
pub(super) struct JoinerEnd {
    pub(super) address: SocketAddr,
    pub(super) is_member: bool,
    /// The error, if serving failed.
    pub(super) reason: Option<String>,
}

/// A joiner failed by its own fault. `verdict` receives whether the reason may be sent to it.
pub(super) struct JoinerFailure {
    pub(super) address: IpAddr,
    pub(super) verdict: oneshot::Sender<Result<(), JoinDelay>>,
}

/// Where failures are reported: to the owner of the gate.
pub(super) type JoinerFailureSender = mpsc::Sender<JoinerFailure>;

/// The result of an answer for the joiner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JoinerStatus {
    /// It became a member.
    Member,
    /// It has no valid token, proof or request.
    AtFault,
    /// Neither. The answer is sent as it is.
    Unknown,
}

impl JoinerStatus {
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

/// Serves one joiner on its connection. The node decides, regardless of failures before from the
/// same address; only how a failure is answered depends on that. Each wait within has its own end.
pub(super) async fn serve_join(
    context: Arc<TransportContext>,
    connection: Connection,
    failures: JoinerFailureSender,
    is_deciding: DecidingFlag,
) -> JoinerEnd {
    let address = connection.remote_address();
    let is_member = Arc::new(AtomicBool::new(false));
    let relay = JoinAnswerRelay {
        failures: failures.clone(),
        address: address.ip(),
        is_deciding,
        is_member: Arc::clone(&is_member),
    };
    let forward = |attempt, reply| relay.forward_to_node(&context, attempt, reply);
    let served = zbelastic_identity::serve_join(&connection, UnixSeconds::now(), forward).await;
    connection.close(CloseCode::Left.number().into(), &[]);
    let reason = match served {
        Ok(()) => None,
        Err(fault) => {
            context.counters.accept_failed.increment();
            if matches!(fault, JoinServeFault::Read(_)) {
                // It sent no request to decide about. That counts, and changes nothing else.
                let _ = check_gate(&failures, address.ip()).await;
            }
            Some(fault.to_string())
        }
    };
    JoinerEnd { address, is_member: is_member.load(Ordering::Relaxed), reason }
}

/// Whether a failure from an address may be answered with its reason.
async fn check_gate(failures: &JoinerFailureSender, address: IpAddr) -> Result<(), JoinDelay> {
    let (sender, verdict) = oneshot::channel();
    // Without an owner of the gate the transport closes.
    let _ = failures.send(JoinerFailure { address, verdict: sender }).await;
    verdict.await.unwrap_or(Ok(()))
}

/// Passes the node's answer back to the joiner.
struct JoinAnswerRelay {
    failures: JoinerFailureSender,
    address: IpAddr,
    is_deciding: DecidingFlag,
    is_member: Arc<AtomicBool>,
}

impl JoinAnswerRelay {
    /// Gives the attempt to the node.
    fn forward_to_node(
        self,
        context: &Arc<TransportContext>,
        attempt: JoinAttempt,
        reply: JoinReply,
    ) {
        let (to_us, answered) = JoinReply::pair();
        self.is_deciding.store(true, Ordering::Relaxed);
        // An event that finds the queue full drops the reply, and the joiner receives `NotReady`.
        if !context.events.try_send(TransportEvent::Join { attempt, reply: to_us }) {
            self.is_deciding.store(false, Ordering::Relaxed);
            return;
        }
        let context = Arc::clone(context);
        tokio::spawn(async move {
            let answer = answered.await;
            self.is_deciding.store(false, Ordering::Relaxed);
            if let Ok(answer) = answer {
                reply.answer(self.filter_answer(&context, answer).await);
            }
        });
    }

    async fn filter_answer(&self, context: &TransportContext, answer: JoinAnswer) -> JoinAnswer {
        match JoinerStatus::of(&answer) {
            JoinerStatus::Unknown => answer,
            JoinerStatus::Member => {
                self.is_member.store(true, Ordering::Relaxed);
                answer
            }
            JoinerStatus::AtFault => match check_gate(&self.failures, self.address).await {
                Ok(()) => answer,
                Err(delay) => {
                    context.counters.accept_refused.increment();
                    let seconds = delay.seconds();
                    JoinAnswer::Refused(JoinRefusal::TooManyAttempts { seconds })
                }
            },
        }
    }
}
