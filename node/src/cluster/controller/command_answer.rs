//! The answers to commands that are applied.

use zbelastic_api::{ChangeSummary, RunDisposition};
use zbelastic_consensus::access::TokenId;

/// The answer to a command once it is applied.
pub(super) enum CommandAnswer {
    /// The change, and its nodes.
    Done(ChangeSummary),
    /// A token was created: its id, its text, and where a node that has it can join.
    TokenCreated { id: TokenId, text: String, addresses: Vec<String> },
    /// A token was revoked. `with_nodes`: the nodes that joined with it are removed now.
    TokenRevoked { token: TokenId, with_nodes: bool },
    /// The status of the job.
    Job,
    /// A run was accepted; its events begin at a sequence number.
    Run { disposition: RunDisposition, events_from: u64 },
    /// How far the change of authority is.
    Rotation,
}
