//! The visible status of a node.

use zbelastic_types::NodeId;

use super::members::Members;
use super::output::FatalReason;

/// A node as it sees itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RaftStatus {
    /// The id of this node.
    pub node: NodeId,
    /// The latest term it has seen.
    pub term: u64,
    /// The leader, if this node knows one.
    pub leader: Option<NodeId>,
    /// Whether this node leads.
    pub is_leader: bool,
    /// Whether it leads and has handed out an entry of its own term: it knows all that was agreed
    /// before, and only then may it decide.
    pub leads_applied: bool,
    /// Whether it still greets the others to find whether its disk is stale, and takes no part.
    pub is_greeting: bool,
    /// Why it stopped, if it did.
    pub fatal: Option<FatalReason>,
    /// How often it has started.
    pub boot: u64,
    /// The last index it knows to be committed.
    pub commit: u64,
    /// The last index it has handed out.
    pub applied: u64,
    /// The last index of its log, durable or not.
    pub last_index: u64,
    /// The index of the latest snapshot.
    pub snapshot_index: u64,
    /// The members as of the last committed entry that this node has durable.
    pub members: Members,
    /// The last index that each member is known to have, if this node leads; else empty.
    pub matched: Vec<(NodeId, u64)>,
}

impl RaftStatus {
    /// Entries of the log that a member is not known to have yet; none if this node does not lead, or
    /// has no such member.
    #[must_use]
    pub fn behind(&self, member: NodeId) -> Option<u64> {
        let (_, matched) = self.matched.iter().find(|(node, _)| *node == member)?;
        Some(self.last_index.saturating_sub(*matched))
    }
}
