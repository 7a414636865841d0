//! The messages that nodes send each other, and the strict form of their bytes.

use ::raft::eraftpb::{Message, MessageType};
use serde::{Deserialize, Serialize};
use zbelastic_types::NodeId;

use super::entry::{LogEntry, SnapshotImage};
use super::greeting::{RaftHello, RaftHelloAnswer};

/// A message from one node to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RaftMessage {
    /// Raft's own traffic. The bytes mean something to [`super::RaftNode::handle`] alone.
    Raft(#[serde(with = "super::bytes")] Vec<u8>),
    /// A node that started verifies with a peer that its disk has lost nothing.
    Hello(RaftHello),
    /// The answer to a [`RaftHello`]: whether the node may take part.
    HelloAnswer(RaftHelloAnswer),
}

/// A message of Raft.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct WireMessage {
    pub to: NodeId,
    pub from: NodeId,
    pub term: u64,
    /// The last entry that the sender has made durable itself if it leads; 0 from others. Receivers
    /// remember it: it counts towards agreement like an acknowledgement (P5).
    pub durable: u64,
    pub body: RaftMessageBody,
}

/// The content of a message of Raft. Other fields that raft-rs knows are not used here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum RaftMessageBody {
    Append { index: u64, log_term: u64, commit: u64, entries: Vec<LogEntry> },
    AppendAnswer { index: u64, commit: u64, rejection: Option<Rejection> },
    Heartbeat { commit: u64 },
    HeartbeatAnswer { commit: u64 },
    Snapshot(SnapshotImage),
    Vote { kind: VoteKind, index: u64, log_term: u64, commit: u64, commit_term: u64 },
    VoteAnswer { is_trial: bool, is_granted: bool, commit: u64, commit_term: u64 },
    TimeoutNow,
}

/// Where a follower's log may agree with its leader's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Rejection {
    pub hint: u64,
    pub hint_term: u64,
}

/// Why a vote is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum VoteKind {
    /// Whether an election would be won (pre-vote).
    Trial,
    Election,
    /// An election that the leader requested, to hand its lead on.
    Transfer,
}

impl WireMessage {
    pub(super) fn encode(&self) -> Vec<u8> {
        postcard::to_allocvec(self).expect("a vector takes all bytes")
    }

    /// The message, if the bytes are one and nothing else.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        match postcard::take_from_bytes(bytes) {
            Ok((message, [])) => Some(message),
            Ok((_, _)) | Err(_) => None,
        }
    }

    pub(super) fn from_raft(message: &Message, durable: u64) -> Self {
        let to = NodeId(message.to);
        let from = NodeId(message.from);
        let term = message.term;
        Self { to, from, term, durable, body: RaftMessageBody::from_raft(message) }
    }

    pub(super) fn into_raft(self) -> Message {
        let to = self.to.0;
        let from = self.from.0;
        let mut message = Message { to, from, term: self.term, ..Message::default() };
        message.set_msg_type(self.body.message_type());
        self.body.fill(&mut message);
        message
    }
}

fn vote_kind(message: &Message) -> VoteKind {
    if message.get_msg_type() == MessageType::MsgRequestPreVote {
        VoteKind::Trial
    } else if message.context.is_empty() {
        VoteKind::Election
    } else {
        VoteKind::Transfer
    }
}

impl RaftMessageBody {
    fn from_raft(message: &Message) -> Self {
        let index = message.index;
        let commit = message.commit;
        let log_term = message.log_term;
        let commit_term = message.commit_term;
        match message.get_msg_type() {
            MessageType::MsgAppend => {
                let entries = message.entries.iter().map(LogEntry::from_raft).collect();
                Self::Append { index, log_term, commit, entries }
            }
            MessageType::MsgAppendResponse => {
                let rejection =
                    Rejection { hint: message.reject_hint, hint_term: message.log_term };
                let rejection = message.reject.then_some(rejection);
                Self::AppendAnswer { index, commit, rejection }
            }
            MessageType::MsgHeartbeat => Self::Heartbeat { commit },
            MessageType::MsgHeartbeatResponse => Self::HeartbeatAnswer { commit },
            MessageType::MsgSnapshot => {
                Self::Snapshot(SnapshotImage::from_raft(message.get_snapshot()))
            }
            MessageType::MsgRequestPreVote | MessageType::MsgRequestVote => {
                Self::Vote { kind: vote_kind(message), index, log_term, commit, commit_term }
            }
            MessageType::MsgRequestPreVoteResponse | MessageType::MsgRequestVoteResponse => {
                let is_trial = message.get_msg_type() == MessageType::MsgRequestPreVoteResponse;
                Self::VoteAnswer { is_trial, is_granted: !message.reject, commit, commit_term }
            }
            MessageType::MsgTimeoutNow => Self::TimeoutNow,
            MessageType::MsgHup
            | MessageType::MsgBeat
            | MessageType::MsgPropose
            | MessageType::MsgUnreachable
            | MessageType::MsgSnapStatus
            | MessageType::MsgCheckQuorum
            | MessageType::MsgTransferLeader
            | MessageType::MsgReadIndex
            | MessageType::MsgReadIndexResp => {
                unreachable!("a node proposes only as leader and never asks for a read index")
            }
        }
    }

    /// Whether the term of such a message is one its sender has written down. The term of a
    /// pre-vote is one it would enter.
    pub(super) fn carries_durable_term(&self) -> bool {
        match self {
            Self::Vote { kind: VoteKind::Trial, .. } | Self::VoteAnswer { is_trial: true, .. } => {
                false
            }
            Self::Append { .. }
            | Self::AppendAnswer { .. }
            | Self::Heartbeat { .. }
            | Self::HeartbeatAnswer { .. }
            | Self::Snapshot(_)
            | Self::Vote { .. }
            | Self::VoteAnswer { .. }
            | Self::TimeoutNow => true,
        }
    }

    fn message_type(&self) -> MessageType {
        match self {
            Self::Append { .. } => MessageType::MsgAppend,
            Self::AppendAnswer { .. } => MessageType::MsgAppendResponse,
            Self::Heartbeat { .. } => MessageType::MsgHeartbeat,
            Self::HeartbeatAnswer { .. } => MessageType::MsgHeartbeatResponse,
            Self::Snapshot(_) => MessageType::MsgSnapshot,
            Self::Vote { kind: VoteKind::Trial, .. } => MessageType::MsgRequestPreVote,
            Self::Vote { kind: VoteKind::Election | VoteKind::Transfer, .. } => {
                MessageType::MsgRequestVote
            }
            Self::VoteAnswer { is_trial: true, .. } => MessageType::MsgRequestPreVoteResponse,
            Self::VoteAnswer { is_trial: false, .. } => MessageType::MsgRequestVoteResponse,
            Self::TimeoutNow => MessageType::MsgTimeoutNow,
        }
    }

    fn fill(self, message: &mut Message) {
        match self {
            Self::Append { index, log_term, commit, entries } => {
                (message.index, message.log_term, message.commit) = (index, log_term, commit);
                message.set_entries(entries.into_iter().map(LogEntry::into_raft).collect());
            }
            Self::AppendAnswer { index, commit, rejection } => {
                (message.index, message.commit) = (index, commit);
                if let Some(Rejection { hint, hint_term }) = rejection {
                    message.reject = true;
                    (message.reject_hint, message.log_term) = (hint, hint_term);
                }
            }
            Self::Heartbeat { commit } | Self::HeartbeatAnswer { commit } => {
                message.commit = commit;
            }
            Self::Snapshot(image) => message.set_snapshot(image.into_raft()),
            Self::Vote { kind, index, log_term, commit, commit_term } => {
                (message.index, message.log_term) = (index, log_term);
                (message.commit, message.commit_term) = (commit, commit_term);
                if kind == VoteKind::Transfer {
                    message.context = ::raft::CAMPAIGN_TRANSFER.into();
                }
            }
            Self::VoteAnswer { is_granted, commit, commit_term, .. } => {
                message.reject = !is_granted;
                (message.commit, message.commit_term) = (commit, commit_term);
            }
            Self::TimeoutNow => {}
        }
    }
}
