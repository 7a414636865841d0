//! Requests that nodes answer: which role may send which, and the answers that every node gives
//! alike.

use zbelastic_identity::{PeerIdentity, PeerRole};
use zbelastic_transport::RequestReply;
use zbelastic_types::NodeId;

use super::journal::Journal;
use zbelastic_api::{
    ApiAnswer, ApiRefusal, ApiRequest, EVENTS_MAX, EventPage, LOG_LINES_MAX, LogPage, encode_answer,
};

/// Whether a client with this role may send this request: a viewer reads, an operator commands runs
/// and checkpoints, and membership is an administrator's matter.
fn is_allowed(role: PeerRole, request: &ApiRequest) -> bool {
    match request {
        ApiRequest::Status
        | ApiRequest::Events { .. }
        | ApiRequest::RunList
        | ApiRequest::CheckpointList { .. }
        | ApiRequest::CheckpointShow { .. }
        | ApiRequest::Trace { .. }
        | ApiRequest::ClusterInfo => match role {
            PeerRole::Admin
            | PeerRole::Operator
            | PeerRole::Viewer
            | PeerRole::Controller
            | PeerRole::Worker => true,
        },
        ApiRequest::Logs { .. }
        | ApiRequest::Run { .. }
        | ApiRequest::RunContinue { .. }
        | ApiRequest::RunRemove { .. }
        | ApiRequest::PutData { .. }
        | ApiRequest::Pause
        | ApiRequest::Resume
        | ApiRequest::Stop
        | ApiRequest::CheckpointVerify { .. }
        | ApiRequest::CheckpointRestore { .. }
        | ApiRequest::CheckpointCollect
        | ApiRequest::CheckpointExport { .. }
        | ApiRequest::CheckpointSubtree { .. } => match role {
            PeerRole::Admin | PeerRole::Operator => true,
            PeerRole::Viewer | PeerRole::Controller | PeerRole::Worker => false,
        },
        // A backup holds the keys that tokens are checked with.
        ApiRequest::TokenCreate(_)
        | ApiRequest::TokenList
        | ApiRequest::TokenRevoke { .. }
        | ApiRequest::NodeDrain { .. }
        | ApiRequest::NodeRemove { .. }
        | ApiRequest::ClusterRotateCa { .. }
        | ApiRequest::ClusterBackup { .. } => match role {
            PeerRole::Admin => true,
            PeerRole::Operator | PeerRole::Viewer | PeerRole::Controller | PeerRole::Worker => {
                false
            }
        },
    }
}

/// Whether the leader alone can do what is requested: it is proposed to the log, or needs all that
/// was agreed on.
#[must_use]
pub const fn needs_leader(request: &ApiRequest) -> bool {
    match request {
        ApiRequest::Run { .. }
        | ApiRequest::RunContinue { .. }
        | ApiRequest::RunRemove { .. }
        | ApiRequest::Pause
        | ApiRequest::Resume
        | ApiRequest::Stop
        | ApiRequest::CheckpointRestore { .. }
        | ApiRequest::CheckpointCollect
        | ApiRequest::TokenCreate(_)
        | ApiRequest::TokenRevoke { .. }
        | ApiRequest::NodeDrain { .. }
        | ApiRequest::NodeRemove { .. }
        | ApiRequest::ClusterRotateCa { .. } => true,
        ApiRequest::Status
        | ApiRequest::Events { .. }
        | ApiRequest::Logs { .. }
        | ApiRequest::RunList
        | ApiRequest::CheckpointList { .. }
        | ApiRequest::CheckpointShow { .. }
        | ApiRequest::CheckpointVerify { .. }
        | ApiRequest::CheckpointExport { .. }
        | ApiRequest::CheckpointSubtree { .. }
        | ApiRequest::Trace { .. }
        | ApiRequest::ClusterInfo
        | ApiRequest::ClusterBackup { .. }
        | ApiRequest::PutData { .. }
        | ApiRequest::TokenList => false,
    }
}

/// Whether the sender may send this request. If not, the node logs that.
///
/// # Errors
/// If that is not for its role.
pub fn authorize(
    journal: &mut Journal,
    from: PeerIdentity,
    request: &ApiRequest,
) -> Result<(), ApiRefusal> {
    if is_allowed(from.role, request) {
        return Ok(());
    }
    let what =
        format!("a certificate of the role {} may not request {}", from.role, request.name());
    journal.log(format!("refused node {}: {what}", from.node));
    Err(ApiRefusal::NotAuthorised { what })
}

/// The events that a node reported, so many from a number on.
#[must_use]
pub fn events(journal: &Journal, (from, max): (u64, u32)) -> ApiAnswer {
    let max = max.min(EVENTS_MAX) as usize;
    let (first_sequence, next_sequence, events) = journal.events(from, max);
    let log = journal.number();
    ApiAnswer::Events(EventPage { log, first_sequence, next_sequence, events })
}

/// The lines that a node logged, so many from a number on.
#[must_use]
pub fn logs(journal: &Journal, node: NodeId, (from, max): (u64, u32)) -> ApiAnswer {
    let max = max.min(LOG_LINES_MAX) as usize;
    let (first_sequence, next_sequence, lines) = journal.lines(from, max);
    ApiAnswer::Logs(LogPage { node, first_sequence, next_sequence, lines })
}

/// Encodes an answer and sends it to the client.
pub fn reply(reply: RequestReply, answer: &ApiAnswer) {
    // An answer that is too large is a mistake of ours, and is answered as one.
    let bytes = encode_answer(answer).or_else(|error| {
        let what = error.to_string();
        encode_answer(&ApiAnswer::Refused(ApiRefusal::Internal { what }))
    });
    if let Ok(bytes) = bytes {
        reply.answer(bytes);
    }
}
