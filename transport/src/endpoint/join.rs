//! The door for those who want to become members.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use quinn::Connection;
use tokio::time::timeout;

use super::close::CloseCode;
use super::context::Context;
use crate::event::TransportEvent;
use crate::identity::{
    self, JoinAnswer, JoinAttempt, JoinDelay, JoinRefusal, JoinReply, JoinServeFault, UnixSeconds,
};

/// How serving a joiner ended.
pub(super) struct JoinerGone {
    pub(super) address: SocketAddr,
    pub(super) standing: Standing,
    /// What was wrong, if anything was.
    pub(super) why: Option<String>,
}

/// What an attempt says about who made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It became a member.
    Member,
    /// It came without what it takes.
    AtFault,
    /// Nothing.
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

/// Serves one joiner on its connection. The node decides, but for one who comes too often; a node
/// without room for the question is not ready, which the joiner is told.
pub(super) async fn serve_join(
    context: Arc<Context>,
    connection: Connection,
    delay: Option<JoinDelay>,
) -> JoinerGone {
    let address = connection.remote_address();
    let gone = |standing, why: Option<String>| JoinerGone { address, standing, why };
    let Ok(_place) = context.joins_open.try_acquire() else {
        context.tallies.door_refused.one();
        connection.close(CloseCode::Crowded.number().into(), &[]);
        return gone(Standing::Unknown, Some("too many joins at once".to_owned()));
    };
    let standing = Arc::new(OnceLock::new());
    let hand_on = |attempt, reply: JoinReply| match delay {
        Some(delay) => {
            context.tallies.door_refused.one();
            let seconds = delay.seconds();
            reply.answer(JoinAnswer::Refused(JoinRefusal::TooManyAttempts { seconds }));
        }
        None => ask_node(&context, attempt, reply, Arc::clone(&standing)),
    };
    let served = identity::serve_join(&connection, UnixSeconds::now(), hand_on);
    let served = timeout(context.limits.join_within, served).await;
    connection.close(CloseCode::Left.number().into(), &[]);
    match served {
        Ok(Ok(())) => gone(standing.get().copied().unwrap_or(Standing::Unknown), None),
        Ok(Err(fault)) => {
            context.tallies.door_failed.one();
            let is_unreadable = matches!(fault, JoinServeFault::Read(_));
            let standing = if is_unreadable { Standing::AtFault } else { Standing::Unknown };
            gone(standing, Some(fault.to_string()))
        }
        Err(_) => {
            context.tallies.door_late.one();
            gone(Standing::Unknown, Some("its join took too long".to_owned()))
        }
    }
}

/// Gives the question to the node, and looks at the answer on its way back.
fn ask_node(
    context: &Context,
    attempt: JoinAttempt,
    reply: JoinReply,
    standing: Arc<OnceLock<Standing>>,
) {
    let (to_us, answered) = JoinReply::pair();
    // An event that finds no room drops the reply, and the joiner hears "not ready".
    if !context.events.offer(TransportEvent::Join { attempt, reply: to_us }) {
        return;
    }
    tokio::spawn(async move {
        if let Ok(answer) = answered.await {
            // One attempt has one answer.
            let _ = standing.set(Standing::of(&answer));
            reply.answer(answer);
        }
    });
}
