//! A node that started verifies with its peers that its disk has lost nothing (P5).
//!
//! A disk can be set back: a virtual machine returns to yesterday, a folder is copied back. Such
//! a node has forgotten votes and entries that others count on, and would break agreement by
//! taking part. So each voter greets before it does:
//!
//! ```text
//!   node S                                   each voter P
//!   boot := boot + 1, durable
//!   Hello(boot, life, term, last index)  ->  has S had this boot, or a later one?
//!                                            was S seen in a later term?
//!                                            has S acknowledged entries it does not have?
//!                                            no: remember S's boot, durable
//!   all say welcome: take part          <-   Welcome or StaleCause
//!   anyone says stale: stop for good
//! ```
//!
//! The node that counted on the forgotten records may be one voter alone, so all are greeted. Some
//! may be lost for good: after [`GREET_TICKS`] a majority will do.
//!
//! Boots are remembered on disk, terms and acknowledgements in memory. A disk that was set back to
//! its present boot is therefore found out only if one of the peers that answer is still the
//! process that saw the rest. A node that is greeting answers greetings, so a whole cluster can
//! start at once.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use thiserror::Error;
use zbelastic_types::NodeId;

use super::members::Members;
use super::setup::NODES_MAX;

/// Nodes with boots that are remembered. Beyond, unknown nodes get no answer until some are
/// removed.
pub(super) const PEERS_MAX: usize = 4 * NODES_MAX;

/// Ticks that a greeting waits for voters that do not answer.
pub(super) const GREET_TICKS: u32 = 60;

/// The memory of a node that started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RaftHello {
    /// How often it has started, this start included.
    pub boot: u64,
    /// Distinguishes this start from one with a copy of the disk.
    pub life: u64,
    /// The term that the node is in.
    pub term: u64,
    /// The last index of its log.
    pub last_index: u64,
}

/// The answer to the [`RaftHello`] with the same boot and life.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RaftHelloAnswer {
    /// The boot of the greeting.
    pub boot: u64,
    /// The life of the greeting.
    pub life: u64,
    /// Whether the node may take part.
    pub verdict: Result<Welcome, StaleCause>,
}

/// A peer remembers nothing that the greeting node has forgotten.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// The last index the peer knows to be committed.
    pub commit: u64,
    /// The members at that index. A node that was away may know none of them.
    pub members: Members,
}

/// The records that a peer remembers and the greeting node does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, Error)]
pub enum StaleCause {
    /// The node has started this often already, from another copy of the disk or later.
    #[error("boot {seen} was seen, the disk says boot {found}")]
    Boot {
        /// The latest boot of the node that the peer has seen.
        seen: u64,
        /// The boot of the greeting.
        found: u64,
    },
    /// The node was in a later term.
    #[error("term {seen} was seen, the disk says term {found}")]
    Term {
        /// The latest term of the node that the peer has seen.
        seen: u64,
        /// The term of the greeting.
        found: u64,
    },
    /// The node has acknowledged more entries.
    #[error("entry {seen} was acknowledged, the disk ends with entry {found}")]
    Entries {
        /// The last entry acknowledged.
        seen: u64,
        /// The last entry of the greeting.
        found: u64,
    },
}

/// The observations of another node since this one started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct PeerObservation {
    /// The latest term it wrote down.
    term: u64,
    /// The term of this node's lead in which it acknowledged entries last.
    ack_term: u64,
    /// The last entry it acknowledged then.
    ack_index: u64,
    /// The last entry it acknowledged that was committed.
    committed: u64,
}

/// The records of other nodes.
#[derive(Clone, Debug, Default)]
pub(super) struct PeerTable {
    boots: BTreeMap<NodeId, (u64, u64)>,
    observations: BTreeMap<NodeId, PeerObservation>,
}

/// How a peer judges a greeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GreetingJudgement {
    /// It is the greeting that was remembered before.
    Known,
    /// The boot must be remembered before the answer.
    New,
    /// The disk is stale.
    Stale(StaleCause),
    /// Too many nodes are remembered.
    NoRoom,
}

impl PeerTable {
    pub(super) fn new(boots: BTreeMap<NodeId, (u64, u64)>) -> Self {
        Self { boots, observations: BTreeMap::new() }
    }

    pub(super) fn boots(&self) -> impl Iterator<Item = (NodeId, u64, u64)> + '_ {
        self.boots.iter().map(|(&node, &(boot, life))| (node, boot, life))
    }

    pub(super) fn forget(&mut self, node: NodeId) {
        self.boots.remove(&node);
        self.observations.remove(&node);
    }

    /// `node` has written down `term`.
    pub(super) fn saw_term(&mut self, node: NodeId, term: u64) {
        if let Some(seen) = self.observation(node) {
            seen.term = seen.term.max(term);
        }
    }

    /// The observations of `node`. Beyond the limit unknown nodes are not observed.
    fn observation(&mut self, node: NodeId) -> Option<&mut PeerObservation> {
        if self.observations.len() >= PEERS_MAX && !self.observations.contains_key(&node) {
            return None;
        }
        Some(self.observations.entry(node).or_default())
    }

    /// `node` acknowledged the log of this node, which leads in `term`, up to `index`.
    pub(super) fn saw_ack(&mut self, node: NodeId, term: u64, index: u64) {
        let Some(seen) = self.observation(node) else { return };
        if seen.ack_term < term {
            (seen.ack_term, seen.ack_index) = (term, 0);
        }
        seen.ack_index = seen.ack_index.max(index);
    }

    /// Acknowledged entries up to `commit` can no longer be replaced.
    pub(super) fn saw_commit(&mut self, commit: u64) {
        for seen in self.observations.values_mut() {
            seen.committed = seen.committed.max(seen.ack_index.min(commit));
        }
    }

    /// Judges a greeting, and records it if it is new.
    pub(super) fn judge(&mut self, node: NodeId, hello: &RaftHello) -> GreetingJudgement {
        let known = self.boots.get(&node).copied();
        if let Some((seen, life)) = known
            && (seen > hello.boot || (seen == hello.boot && life != hello.life))
        {
            return GreetingJudgement::Stale(StaleCause::Boot { seen, found: hello.boot });
        }
        if let Some(cause) = self.observations.get(&node).and_then(|seen| seen.contradicts(hello)) {
            return GreetingJudgement::Stale(cause);
        }
        if known == Some((hello.boot, hello.life)) {
            return GreetingJudgement::Known;
        }
        if known.is_none() && self.boots.len() >= PEERS_MAX {
            return GreetingJudgement::NoRoom;
        }
        self.boots.insert(node, (hello.boot, hello.life));
        GreetingJudgement::New
    }
}

impl PeerObservation {
    fn contradicts(&self, hello: &RaftHello) -> Option<StaleCause> {
        if self.term > hello.term {
            return Some(StaleCause::Term { seen: self.term, found: hello.term });
        }
        // A later leader may have replaced entries that were acknowledged and not committed.
        let seen = if self.ack_term >= hello.term {
            self.ack_index.max(self.committed)
        } else {
            self.committed
        };
        if seen > hello.last_index {
            return Some(StaleCause::Entries { seen, found: hello.last_index });
        }
        None
    }
}

/// A greeting under way.
#[derive(Clone, Debug)]
pub(super) struct Greeting {
    /// The latest members that this node knows of, and as of which index.
    members: Members,
    members_at: u64,
    /// Other nodes that sent messages in the meantime: perhaps they know newer members.
    callers: BTreeSet<NodeId>,
    welcomes: BTreeSet<NodeId>,
    ticks: u32,
}

impl Greeting {
    pub(super) fn new(node: NodeId, members: Members, commit: u64) -> Self {
        let welcomes = BTreeSet::from([node]);
        let callers = BTreeSet::new();
        Self { members, members_at: commit, callers, welcomes, ticks: 0 }
    }

    /// Whether enough voters have answered with a welcome.
    pub(super) fn is_over(&self) -> bool {
        let all = self.members.all_voters().all(|node| self.welcomes.contains(&node));
        all || self.ticks >= GREET_TICKS && self.members.is_majority(&self.welcomes)
    }

    /// The nodes that a greeting is sent to, or sent again.
    pub(super) fn unanswered(&self) -> impl Iterator<Item = NodeId> + '_ {
        let greeted: BTreeSet<_> = self.members.all_voters().chain(self.callers.clone()).collect();
        greeted.into_iter().filter(|node| !self.welcomes.contains(node))
    }

    /// A tick. Yields whether it is time to greet again.
    pub(super) fn tick(&mut self, interval: u32) -> bool {
        self.ticks += 1;
        self.ticks.is_multiple_of(interval)
    }

    /// A node sent a message. Yields whether it is to be greeted now and was not before.
    pub(super) fn note_caller(&mut self, node: NodeId) -> bool {
        let is_new = !self.is_greeted(node) && self.callers.len() < NODES_MAX;
        is_new && self.callers.insert(node)
    }

    pub(super) fn is_greeted(&self, node: NodeId) -> bool {
        self.members.is_voter(node) || self.callers.contains(&node)
    }

    /// Whether a peer knows later members.
    pub(super) fn is_newer(&self, welcome: &Welcome) -> bool {
        welcome.commit > self.members_at
    }

    pub(super) fn learn(&mut self, welcome: Welcome) {
        (self.members, self.members_at) = (welcome.members, welcome.commit);
    }

    pub(super) fn welcome(&mut self, by: NodeId) {
        self.welcomes.insert(by);
    }
}
