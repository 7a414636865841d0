//! Entries and snapshots in their own form, as they are written and sent.
//!
//! raft-rs keeps changes of voters as protobuf inside an entry. Here such an entry names the
//! changes, and the protobuf is made from them on the way in (P4).

use ::protobuf::Message as _;
use ::raft::eraftpb::{
    ConfChangeSingle, ConfChangeTransition, ConfChangeType, ConfChangeV2, Entry, EntryType,
    Snapshot,
};
use serde::{Deserialize, Serialize};
use zbelastic_types::NodeId;

use super::members::Members;

/// One entry of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogEntry {
    /// Index of the entry in the log.
    pub index: u64,
    /// The term of the leader that appended it.
    pub term: u64,
    /// The proposal or the changes of members that it holds.
    pub payload: Payload,
}

/// The content of an entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Payload {
    /// A proposal. Empty for the entry with which a leader begins its term.
    Data(#[serde(with = "super::bytes")] Vec<u8>),
    /// Changes of members that enter the joint state. None of them: the joint state is left.
    Change(Vec<NodeChange>),
}

/// One change of one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeChange {
    /// The node gets a vote.
    Voter(NodeId),
    /// The node gets the log, without a vote.
    Learner(NodeId),
    /// The node is no member any more.
    Remove(NodeId),
}

/// The state machine's state at an index, in place of the log up to there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotImage {
    /// The last index it holds.
    pub index: u64,
    /// The term of that entry.
    pub term: u64,
    /// The members at that index.
    pub members: Members,
    /// The state machine's state.
    #[serde(with = "super::bytes")]
    pub data: Vec<u8>,
}

impl NodeChange {
    pub(super) fn node(self) -> NodeId {
        match self {
            Self::Voter(node) | Self::Learner(node) | Self::Remove(node) => node,
        }
    }

    fn to_single(self) -> ConfChangeSingle {
        let node_id = self.node().0;
        let mut single = ConfChangeSingle { node_id, ..ConfChangeSingle::default() };
        single.set_change_type(match self {
            Self::Voter(_) => ConfChangeType::AddNode,
            Self::Learner(_) => ConfChangeType::AddLearnerNode,
            Self::Remove(_) => ConfChangeType::RemoveNode,
        });
        single
    }

    fn from_single(single: &ConfChangeSingle) -> Self {
        let node = NodeId(single.node_id);
        match single.get_change_type() {
            ConfChangeType::AddNode => Self::Voter(node),
            ConfChangeType::AddLearnerNode => Self::Learner(node),
            ConfChangeType::RemoveNode => Self::Remove(node),
        }
    }
}

/// raft-rs's form of `changes`: through the joint state, which is left by itself (P6).
pub(super) fn joint_change(changes: &[NodeChange]) -> ConfChangeV2 {
    let mut change = ConfChangeV2::default();
    if !changes.is_empty() {
        change.set_transition(ConfChangeTransition::Implicit);
    }
    change.set_changes(changes.iter().map(|each| each.to_single()).collect());
    change
}

/// The change without the joint state that a single step needs. For the mutant alone.
pub(super) fn bare_change(change: NodeChange) -> ConfChangeV2 {
    let mut bare = ConfChangeV2::default();
    bare.set_changes(vec![change.to_single()].into());
    bare
}

impl LogEntry {
    /// The bytes of its proposal, if it is one.
    pub(super) fn data_bytes(&self) -> Option<usize> {
        match &self.payload {
            Payload::Data(data) => Some(data.len()),
            Payload::Change(_) => None,
        }
    }

    pub(super) fn from_raft(entry: &Entry) -> Self {
        let payload = match entry.get_entry_type() {
            EntryType::EntryNormal => Payload::Data(entry.data.to_vec()),
            EntryType::EntryConfChange | EntryType::EntryConfChangeV2 => {
                Payload::Change(changes_of(entry))
            }
        };
        Self { index: entry.index, term: entry.term, payload }
    }

    pub(super) fn into_raft(self) -> Entry {
        let mut entry = Entry { index: self.index, term: self.term, ..Entry::default() };
        match self.payload {
            Payload::Data(data) => entry.data = data.into(),
            Payload::Change(changes) => {
                entry.set_entry_type(EntryType::EntryConfChangeV2);
                entry.data = change_data(&changes).into();
            }
        }
        entry
    }
}

/// The changes of members in an entry of raft-rs. Such an entry is always of this node's making.
pub(super) fn changes_of(entry: &Entry) -> Vec<NodeChange> {
    let mut change = ConfChangeV2::default();
    change.merge_from_bytes(&entry.data).expect("this node encoded it");
    change.get_changes().iter().map(NodeChange::from_single).collect()
}

fn change_data(changes: &[NodeChange]) -> Vec<u8> {
    joint_change(changes).write_to_bytes().expect("a vector takes all bytes")
}

impl SnapshotImage {
    pub(super) fn from_raft(snapshot: &Snapshot) -> Self {
        let metadata = snapshot.get_metadata();
        Self {
            index: metadata.index,
            term: metadata.term,
            members: Members::from_raft(metadata.get_conf_state()),
            data: snapshot.data.to_vec(),
        }
    }

    pub(super) fn into_raft(self) -> Snapshot {
        let mut snapshot = Snapshot { data: self.data.into(), ..Snapshot::default() };
        let metadata = snapshot.mut_metadata();
        metadata.index = self.index;
        metadata.term = self.term;
        metadata.set_conf_state(self.members.to_raft());
        snapshot
    }
}
