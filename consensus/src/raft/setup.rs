//! The parameters that a node is started with, and the limits that all nodes of a cluster share.

use thiserror::Error;
use zbelastic_types::NodeId;

use super::members::MembersFault;

/// Bytes of one proposal. A larger one is refused.
pub const ENTRY_BYTES_MAX: usize = 1 << 20;
/// Bytes of a state machine's snapshot. A larger one is refused, and the log keeps growing. It
/// follows from the limits of the agreed state: 3.3 MB of tokens' uses, two plans of an entry each,
/// 1.2 MB of credentials, 0.8 MB of members, 0.6 MB of checkpoints, and less than 1 MB of all else.
pub const SNAPSHOT_BYTES_MAX: usize = 12 << 20;
/// Bytes of one message: a snapshot and its envelope. A larger one is refused.
pub const MESSAGE_BYTES_MAX: usize = SNAPSHOT_BYTES_MAX + (64 << 10);
/// Voters and learners of a cluster together. A change beyond is refused.
pub const NODES_MAX: usize = 64;
/// Largest index, term or boot that is believed. Sums of two stay within a `u64`.
pub const NUMBER_MAX: u64 = 1 << 62;
/// Entries a learner may lack when it is promoted. More, and its promotion is refused.
pub const PROMOTE_LAG_MAX: u64 = 256;
/// Bytes of entries gathered in one append, unless one entry alone is larger.
pub(super) const APPEND_BYTES: u64 = 256 << 10;

/// The parameters that a node is started with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RaftSetup {
    /// The id of this node. Never 0.
    pub node: NodeId,
    /// Differs between two starts from copies of one disk. The shell draws it anew for each
    /// start; it decides nothing else.
    pub life: u64,
    /// Ticks without a leader before this node stands for election. Fixed, and to be different on
    /// each node: raft-rs would draw it, and a draw is not repeatable.
    pub election_ticks: u32,
    /// Ticks between two heartbeats of a leader, and between two greetings.
    pub heartbeat_ticks: u32,
    /// Entries handed out since the last snapshot before [`super::RaftOutput::RequestSnapshot`].
    pub compact_after: u64,
    /// Entries before a snapshot that stay in memory for followers that are a little behind.
    pub tail_entries: u64,
    /// Entries proposed and not committed. At the limit proposals are refused.
    pub uncommitted_max: u64,
    /// Appends under way to one follower. At the limit it waits for an answer.
    pub appends_max: usize,
    /// Ticks after which a snapshot that brought no answer counts as lost and is sent again.
    pub snapshot_retry_ticks: u32,
    /// Ticks that a write may last. Beyond, a leader steps down if the others agreed without its disk:
    /// it could agree to much and hand out nothing.
    pub write_ticks_max: u32,
}

impl RaftSetup {
    /// The usual setup of a node: heartbeats each 2 ticks, election after `election_ticks`.
    #[must_use]
    pub fn new(node: NodeId, life: u64, election_ticks: u32) -> Self {
        Self {
            node,
            life,
            election_ticks,
            heartbeat_ticks: 2,
            compact_after: 10_000,
            tail_entries: 1_000,
            uncommitted_max: 4_096,
            appends_max: 64,
            snapshot_retry_ticks: 40,
            write_ticks_max: 40,
        }
    }

    pub(super) fn check(&self) -> Result<(), RaftStartError> {
        if self.node.0 == 0 || self.node.0 > NUMBER_MAX {
            return Err(RaftStartError::BadNode { found: self.node });
        }
        if self.heartbeat_ticks == 0 || self.election_ticks <= self.heartbeat_ticks {
            let election = self.election_ticks;
            let heartbeat = self.heartbeat_ticks;
            return Err(RaftStartError::BadTicks { election, heartbeat });
        }
        if self.appends_max == 0 || self.uncommitted_max == 0 || self.compact_after == 0 {
            return Err(RaftStartError::ZeroLimit);
        }
        Ok(())
    }

    pub(super) fn config(&self, applied: u64) -> ::raft::Config {
        let election_tick = self.election_ticks as usize;
        ::raft::Config {
            id: self.node.0,
            election_tick,
            min_election_tick: election_tick,
            max_election_tick: election_tick + 1,
            heartbeat_tick: self.heartbeat_ticks as usize,
            applied,
            max_size_per_msg: APPEND_BYTES,
            max_inflight_msgs: self.appends_max,
            check_quorum: true,
            pre_vote: true,
            ..::raft::Config::default()
        }
    }
}

/// Why a node cannot start.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RaftStartError {
    /// The node's id is not usable.
    #[error("node id {found} is not between 1 and 2^62")]
    BadNode {
        /// The id in the setup.
        found: NodeId,
    },
    /// Elections would start before a heartbeat can prevent them.
    #[error("election after {election} ticks must be later than a heartbeat, {heartbeat} ticks")]
    BadTicks {
        /// Ticks to an election.
        election: u32,
        /// Ticks to a heartbeat.
        heartbeat: u32,
    },
    /// A limit of 0 lets nothing through.
    #[error("appends_max, uncommitted_max and compact_after must not be 0")]
    ZeroLimit,
    /// The members are not usable.
    #[error("the members are not usable: {fault}")]
    BadMembers {
        /// The fault of the members.
        fault: MembersFault,
    },
    /// The first voters do not include this node.
    #[error("node {node} is not among the first voters")]
    NotVoter {
        /// The id of this node.
        node: NodeId,
    },
    /// The snapshot is too large to be sent to anyone.
    #[error("a snapshot of {found} bytes, at most {SNAPSHOT_BYTES_MAX} are possible")]
    SnapshotTooLarge {
        /// Bytes of the snapshot.
        found: usize,
    },
    /// The records hold no completed first start. Nothing was ever sent from here.
    #[error("the records hold no completed start: create the node anew")]
    NeverStarted,
    /// The records are another node's.
    #[error("the records are node {found}'s, this is node {expected}")]
    OtherNode {
        /// The id of this node.
        expected: NodeId,
        /// The node that the records are of.
        found: NodeId,
    },
    /// More was known to be committed than there is.
    #[error("commit index {commit} is beyond the last index {last_index}")]
    CommitBeyondLog {
        /// The recorded commit index.
        commit: u64,
        /// The last index recovered.
        last_index: u64,
    },
}
