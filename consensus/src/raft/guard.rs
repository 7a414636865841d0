//! What is checked before raft-rs sees a message (R3).
//!
//! raft-rs trusts its peers: a commit index beyond the log, a gap between entries or a snapshot
//! with strange members ends the process. Each check here names the assertion it stands before.

use ::raft::{RawNode, StateRole};
use thiserror::Error;
use zbelastic_types::NodeId;

use super::entry::{LogEntry, SnapshotImage};
use super::members::{Members, MembersFault};
use super::message::{Body, Rejection, WireMessage};
use super::setup::{ENTRY_BYTES_MAX, MESSAGE_BYTES_MAX, NUMBER_MAX, SNAPSHOT_BYTES_MAX};
use super::storage::LogStore;

/// Why a message is not let in. The node is as it was before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RaftRefusal {
    /// The node has stopped for good.
    #[error("this node has stopped")]
    Stopped,
    /// The node still asks the others whether its disk is stale.
    #[error("this node is greeting")]
    Greeting,
    /// A leader's snapshot is being written; what else comes is lost and will be sent again.
    #[error("this node is writing a snapshot")]
    Installing,
    /// Too many bytes.
    #[error("a message of {found} bytes, at most {MESSAGE_BYTES_MAX} are read")]
    TooLarge {
        /// How many there are.
        found: usize,
    },
    /// The bytes are no message.
    #[error("the bytes are no message")]
    Malformed,
    /// The message says it is from another than who sent it.
    #[error("sent by node {expected}, the message says node {found}")]
    WrongSender {
        /// Who sent it.
        expected: NodeId,
        /// Who it says it is from.
        found: NodeId,
    },
    /// The message is for another node.
    #[error("this is node {expected}, the message is for node {found}")]
    WrongReceiver {
        /// This node.
        expected: NodeId,
        /// Whom it is for.
        found: NodeId,
    },
    /// An answer from a node that was never asked.
    #[error("node {from} is no member")]
    UnknownNode {
        /// The sender.
        from: NodeId,
    },
    /// A node that has left. Its id is never given again.
    #[error("node {from} was removed")]
    RemovedNode {
        /// The sender.
        from: NodeId,
    },
    /// Too many nodes are remembered to remember another.
    #[error("no room to remember node {from}")]
    NoRoom {
        /// The sender.
        from: NodeId,
    },
    /// A number that no honest node reaches, or 0 where none can be.
    #[error("{what} is {found}")]
    BadNumber {
        /// What the number is.
        what: &'static str,
        /// The number.
        found: u64,
    },
    /// Entries that do not follow one another.
    #[error("entry {found} of term {found_term} follows entry {before} of term {before_term}")]
    BadEntries {
        /// The entry before.
        before: u64,
        /// Its term.
        before_term: u64,
        /// The entry that follows it.
        found: u64,
        /// Its term.
        found_term: u64,
    },
    /// An entry that is too large.
    #[error("entry {index} has {found} bytes, at most {ENTRY_BYTES_MAX} may be")]
    EntryTooLarge {
        /// The entry.
        index: u64,
        /// Its bytes.
        found: usize,
    },
    /// What is committed here is another in the message.
    #[error("entry {index} is committed with term {expected}, the message says {found}")]
    ContradictsCommitted {
        /// The entry.
        index: u64,
        /// Its term here.
        expected: u64,
        /// Its term in the message.
        found: u64,
    },
    /// Two leaders in one term.
    #[error("node {expected} leads in term {term}, the message is from node {found}")]
    TwoLeaders {
        /// The term.
        term: u64,
        /// Who is known to lead.
        expected: NodeId,
        /// Who says it leads.
        found: NodeId,
    },
    /// Only the leader may ask for an election.
    #[error("node {from} does not lead in term {term}")]
    NotLeader {
        /// The sender.
        from: NodeId,
        /// The term of this node.
        term: u64,
    },
    /// The leader believes more to be here than there is. The node stops.
    #[error("entry {commit} is said to be here, the last is {last_index}")]
    BeyondLog {
        /// What the leader says.
        commit: u64,
        /// What is here.
        last_index: u64,
    },
    /// An acknowledgement of entries that were never sent.
    #[error("entry {found} is acknowledged, the last is {last_index}")]
    AckBeyondLog {
        /// What is acknowledged.
        found: u64,
        /// What is here.
        last_index: u64,
    },
    /// A vote that was not asked for yet: the question waits for what is being written.
    #[error("a vote that was not asked for")]
    EarlyVote,
    /// A node without any log has nothing to vote by.
    #[error("this node is no member yet")]
    NoMember,
    /// A snapshot with members that cannot be.
    #[error("a snapshot with members that cannot be: {0}")]
    BadMembers(MembersFault),
    /// A snapshot of a cluster to which this node does not belong.
    #[error("a snapshot at index {index} without this node")]
    ForeignSnapshot {
        /// Its index.
        index: u64,
    },
    /// A snapshot that is too large.
    #[error("a snapshot of {found} bytes, at most {SNAPSHOT_BYTES_MAX} may be")]
    SnapshotTooLarge {
        /// Its bytes.
        found: usize,
    },
}

/// What a message is checked against.
pub(super) struct Guard<'a> {
    pub raw: &'a RawNode<LogStore>,
    pub members: &'a Members,
    /// Whether entries are being written: then no vote can have been asked for.
    pub is_log_under_way: bool,
}

impl Guard<'_> {
    /// Checks a message whose sender and receiver are right.
    pub(super) fn check(&self, message: &WireMessage) -> Result<(), RaftRefusal> {
        check_number("the term", message.term, 1)?;
        check_form(message)?;
        self.check_sender(message)?;
        if message.term < self.raw.raft.term {
            return Ok(());
        }
        match &message.body {
            Body::Append { index, log_term, entries, .. } => {
                self.check_leader(message)?;
                self.check_committed(*index, *log_term)?;
                entries.iter().try_for_each(|each| self.check_committed(each.index, each.term))
            }
            Body::Heartbeat { commit } => {
                self.check_leader(message)?;
                self.check_heartbeat(*commit)
            }
            Body::Snapshot(image) => {
                self.check_leader(message)?;
                self.check_committed(image.index, image.term)?;
                self.check_snapshot(image)
            }
            Body::AppendAnswer { index, .. } => self.check_ack(message.term, *index),
            Body::Vote { .. } => self.check_vote(),
            Body::VoteAnswer { .. } => self.check_vote_answer(),
            Body::TimeoutNow => self.check_timeout_now(message),
            Body::HeartbeatAnswer { .. } => Ok(()),
        }
    }

    /// Before `StepPeerNotFound`. Who asks may be a member that this node has not heard of yet.
    fn check_sender(&self, message: &WireMessage) -> Result<(), RaftRefusal> {
        match &message.body {
            Body::AppendAnswer { .. } | Body::HeartbeatAnswer { .. } | Body::VoteAnswer { .. } => {
                if self.members.is_member(message.from) {
                    return Ok(());
                }
                Err(RaftRefusal::UnknownNode { from: message.from })
            }
            Body::Append { .. }
            | Body::Heartbeat { .. }
            | Body::Snapshot(_)
            | Body::Vote { .. }
            | Body::TimeoutNow => Ok(()),
        }
    }

    fn check_leader(&self, message: &WireMessage) -> Result<(), RaftRefusal> {
        let raft = &self.raw.raft;
        let (expected, found) = (NodeId(raft.leader_id), message.from);
        if message.term == raft.term && expected.0 != ::raft::INVALID_ID && expected != found {
            return Err(RaftRefusal::TwoLeaders { term: raft.term, expected, found });
        }
        Ok(())
    }

    /// Before "entry conflict with committed entry" and `restore`'s assertion.
    fn check_committed(&self, index: u64, found: u64) -> Result<(), RaftRefusal> {
        let log = &self.raw.raft.raft_log;
        if index > log.committed || index + 1 < log.first_index() {
            return Ok(());
        }
        match log.term(index) {
            Ok(expected) if expected != found => {
                Err(RaftRefusal::ContradictsCommitted { index, expected, found })
            }
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Before "to_commit is out of range".
    fn check_heartbeat(&self, commit: u64) -> Result<(), RaftRefusal> {
        let last_index = self.raw.raft.raft_log.last_index();
        if commit > last_index {
            return Err(RaftRefusal::BeyondLog { commit, last_index });
        }
        Ok(())
    }

    /// Before "unable to restore config" and "invalid restore".
    fn check_snapshot(&self, image: &SnapshotImage) -> Result<(), RaftRefusal> {
        image.members.check().map_err(RaftRefusal::BadMembers)?;
        if !image.members.is_member(NodeId(self.raw.raft.id)) {
            return Err(RaftRefusal::ForeignSnapshot { index: image.index });
        }
        Ok(())
    }

    /// An index beyond the log would be counted as acknowledged once the log gets there.
    fn check_ack(&self, term: u64, found: u64) -> Result<(), RaftRefusal> {
        let last_index = self.raw.raft.raft_log.last_index();
        let is_ours = self.raw.raft.state == StateRole::Leader && term == self.raw.raft.term;
        if is_ours && found > last_index {
            return Err(RaftRefusal::AckBeyondLog { found, last_index });
        }
        Ok(())
    }

    /// Before "term should be set when sending": a node in term 0 cannot answer. It need not: who
    /// has no log was never promoted.
    fn check_vote(&self) -> Result<(), RaftRefusal> {
        if self.raw.raft.raft_log.last_index() == 0 {
            return Err(RaftRefusal::NoMember);
        }
        Ok(())
    }

    /// Before `become_leader`'s assertion that all is persisted.
    fn check_vote_answer(&self) -> Result<(), RaftRefusal> {
        if self.is_log_under_way && self.raw.raft.state != StateRole::Leader {
            return Err(RaftRefusal::EarlyVote);
        }
        Ok(())
    }

    fn check_timeout_now(&self, message: &WireMessage) -> Result<(), RaftRefusal> {
        let raft = &self.raw.raft;
        if message.term != raft.term || raft.leader_id != message.from.0 {
            return Err(RaftRefusal::NotLeader { from: message.from, term: raft.term });
        }
        if self.is_log_under_way && self.members.is_alone(NodeId(raft.id)) {
            return Err(RaftRefusal::EarlyVote);
        }
        Ok(())
    }
}

fn check_number(what: &'static str, found: u64, least: u64) -> Result<(), RaftRefusal> {
    if found < least || found > NUMBER_MAX {
        return Err(RaftRefusal::BadNumber { what, found });
    }
    Ok(())
}

/// Checks what needs no state to be checked.
fn check_form(message: &WireMessage) -> Result<(), RaftRefusal> {
    match &message.body {
        Body::Append { index, log_term, commit, entries } => {
            check_number("the commit index", *commit, 0)?;
            // Term 0 is what raft-rs finds wherever there is no entry, also beyond the last one.
            // All logs begin with a snapshot, so entries follow some entry.
            check_number("the index", *index, 1)?;
            check_number("the term of the log", *log_term, 1)?;
            check_entries(message.term, (*index, *log_term), entries)
        }
        Body::AppendAnswer { index, commit, rejection } => {
            check_number("the index", *index, 0)?;
            check_number("the commit index", *commit, 0)?;
            let Some(Rejection { hint, hint_term }) = rejection else { return Ok(()) };
            check_number("the hint", *hint, 0)?;
            check_number("the hint's term", *hint_term, 0)
        }
        Body::Heartbeat { commit } | Body::HeartbeatAnswer { commit } => {
            check_number("the commit index", *commit, 0)
        }
        Body::Snapshot(image) => check_image(message.term, image),
        Body::Vote { index, log_term, commit, commit_term, .. } => {
            check_number("the index", *index, 0)?;
            check_number("the term of the log", *log_term, 0)?;
            check_number("the commit index", *commit, 0)?;
            check_number("the term of the commit", *commit_term, 0)
        }
        Body::VoteAnswer { commit, commit_term, .. } => {
            check_number("the commit index", *commit, 0)?;
            check_number("the term of the commit", *commit_term, 0)
        }
        Body::TimeoutNow => Ok(()),
    }
}

/// Before "unstable.slice out of bound".
fn check_entries(
    term: u64,
    (mut before, mut before_term): (u64, u64),
    entries: &[LogEntry],
) -> Result<(), RaftRefusal> {
    for entry in entries {
        let (found, found_term) = (entry.index, entry.term);
        let follows = found == before + 1 && found_term >= before_term;
        if !follows || found_term > term {
            return Err(RaftRefusal::BadEntries { before, before_term, found, found_term });
        }
        if let Some(found) = entry.data_bytes().filter(|&bytes| bytes > ENTRY_BYTES_MAX) {
            return Err(RaftRefusal::EntryTooLarge { index: entry.index, found });
        }
        (before, before_term) = (found, found_term);
    }
    if before_term > term {
        return Err(RaftRefusal::BadNumber { what: "the term of the log", found: before_term });
    }
    Ok(())
}

fn check_image(term: u64, image: &SnapshotImage) -> Result<(), RaftRefusal> {
    check_number("the index of the snapshot", image.index, 1)?;
    check_number("the term of the snapshot", image.term, 1)?;
    if image.term > term {
        return Err(RaftRefusal::BadNumber { what: "the term of the snapshot", found: image.term });
    }
    if image.data.len() > SNAPSHOT_BYTES_MAX {
        return Err(RaftRefusal::SnapshotTooLarge { found: image.data.len() });
    }
    Ok(())
}
