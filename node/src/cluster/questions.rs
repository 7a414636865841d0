//! Requests that nodes answer: which role may send which, and what every node answers alike.

use zbelastic_transport::{PeerIdentity, PeerRole, Reply};
use zbelastic_types::NodeId;

use super::journal::Journal;
use crate::api::{Answer, LOG_LINES_MAX, Logs, Refusal, Request, encode_answer};

/// Whether a client with this role may send this request: a viewer reads, an operator gives orders about runs
/// and checkpoints, and membership is an administrator's matter.
fn may_ask(role: PeerRole, request: &Request) -> bool {
    match request {
        Request::Status
        | Request::Events { .. }
        | Request::RunList
        | Request::CheckpointList { .. }
        | Request::CheckpointShow { .. }
        | Request::Trace { .. }
        | Request::ClusterInfo => match role {
            PeerRole::Admin
            | PeerRole::Operator
            | PeerRole::Viewer
            | PeerRole::Controller
            | PeerRole::Worker => true,
        },
        Request::Logs { .. }
        | Request::Run { .. }
        | Request::RunRemove { .. }
        | Request::PutData { .. }
        | Request::Pause
        | Request::Resume
        | Request::Stop
        | Request::CheckpointVerify { .. }
        | Request::CheckpointRestore { .. }
        | Request::CheckpointCollect
        | Request::CheckpointExport { .. }
        | Request::CheckpointSubtree { .. } => match role {
            PeerRole::Admin | PeerRole::Operator => true,
            PeerRole::Viewer | PeerRole::Controller | PeerRole::Worker => false,
        },
        // A backup holds the keys that tokens are checked with.
        Request::TokenCreate(_)
        | Request::TokenList
        | Request::TokenRevoke { .. }
        | Request::NodeDrain { .. }
        | Request::NodeRemove { .. }
        | Request::ClusterRotateCa { .. }
        | Request::ClusterBackup { .. } => match role {
            PeerRole::Admin => true,
            PeerRole::Operator | PeerRole::Viewer | PeerRole::Controller | PeerRole::Worker => {
                false
            }
        },
    }
}

/// Whether the sender may send this request. If not, the node logs that.
///
/// # Errors
/// If that is not for its role.
pub fn check(journal: &mut Journal, from: PeerIdentity, request: &Request) -> Result<(), Refusal> {
    if may_ask(from.role, request) {
        return Ok(());
    }
    let what = format!("a certificate of a {} may not ask {}", from.role, request.name());
    journal.log(format!("refused node {}: {what}", from.node));
    Err(Refusal::NotAuthorised { what })
}

/// What a node logged, so many lines from a number on.
#[must_use]
pub fn logs(journal: &Journal, node: NodeId, (from, max): (u64, u32)) -> Answer {
    let max = max.min(LOG_LINES_MAX) as usize;
    let (first_sequence, next_sequence, lines) = journal.lines(from, max);
    Answer::Logs(Logs { node, first_sequence, next_sequence, lines })
}

/// Sends an answer.
pub fn reply(reply: Reply, answer: &Answer) {
    // An answer that is too large is a mistake of ours, and is answered as one.
    let bytes = encode_answer(answer).or_else(|error| {
        let what = error.to_string();
        encode_answer(&Answer::Refused(Refusal::Internal { what }))
    });
    if let Ok(bytes) = bytes {
        reply.answer(bytes);
    }
}
