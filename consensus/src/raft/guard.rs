//! The checks before raft-rs sees a message (P3).
//!
//! raft-rs trusts its peers: a commit index beyond the log, a gap between entries or a snapshot
//! with strange members ends the process. Each check here names the assertion it stands before.

use ::raft::{RawNode, StateRole};
use zbelastic_types::NodeId;

use super::entry::{LogEntry, SnapshotImage};
use super::members::Members;
use super::message::{RaftMessageBody, Rejection, WireMessage};
use super::refusal::RaftRefusal;
use super::setup::{ENTRY_BYTES_MAX, NUMBER_MAX, SNAPSHOT_BYTES_MAX};
use super::storage::LogStore;

/// The state that a message is checked against.
pub(super) struct MessageGuard<'a> {
    pub raw: &'a RawNode<LogStore>,
    pub members: &'a Members,
    /// Whether entries are being written: then no vote can have been requested.
    pub is_log_under_way: bool,
}

impl MessageGuard<'_> {
    /// Checks a message whose sender and receiver are right.
    pub(super) fn check(&self, message: &WireMessage) -> Result<(), RaftRefusal> {
        check_number("the term", message.term, 1)?;
        check_number("the durable index", message.durable, 0)?;
        check_form(message)?;
        self.check_sender(message)?;
        if message.term < self.raw.raft.term {
            return Ok(());
        }
        match &message.body {
            RaftMessageBody::Append { index, log_term, entries, .. } => {
                self.check_leader(message)?;
                self.check_committed(*index, *log_term)?;
                entries.iter().try_for_each(|each| self.check_committed(each.index, each.term))
            }
            RaftMessageBody::Heartbeat { commit } => {
                self.check_leader(message)?;
                self.check_heartbeat(*commit)
            }
            RaftMessageBody::Snapshot(image) => {
                self.check_leader(message)?;
                self.check_committed(image.index, image.term)?;
                self.check_snapshot(image)
            }
            RaftMessageBody::AppendAnswer { index, .. } => self.check_ack(message.term, *index),
            RaftMessageBody::Vote { .. } => self.check_vote(),
            RaftMessageBody::VoteAnswer { .. } => self.check_vote_answer(),
            RaftMessageBody::TimeoutNow => self.check_timeout_now(message),
            RaftMessageBody::HeartbeatAnswer { .. } => Ok(()),
        }
    }

    /// Before `StepPeerNotFound`. The sender of a request may be a member that this node does not
    /// know of yet.
    fn check_sender(&self, message: &WireMessage) -> Result<(), RaftRefusal> {
        match &message.body {
            RaftMessageBody::AppendAnswer { .. }
            | RaftMessageBody::HeartbeatAnswer { .. }
            | RaftMessageBody::VoteAnswer { .. } => {
                if self.members.is_member(message.from) {
                    return Ok(());
                }
                Err(RaftRefusal::UnknownNode { from: message.from })
            }
            RaftMessageBody::Append { .. }
            | RaftMessageBody::Heartbeat { .. }
            | RaftMessageBody::Snapshot(_)
            | RaftMessageBody::Vote { .. }
            | RaftMessageBody::TimeoutNow => Ok(()),
        }
    }

    fn check_leader(&self, message: &WireMessage) -> Result<(), RaftRefusal> {
        let raft = &self.raw.raft;
        let expected = NodeId(raft.leader_id);
        let found = message.from;
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

    /// Before "term should be set when sending": a node in term 0 cannot answer. It need not: a
    /// node without a log was never promoted.
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

fn check_number(quantity: &'static str, found: u64, least: u64) -> Result<(), RaftRefusal> {
    if found < least || found > NUMBER_MAX {
        return Err(RaftRefusal::BadNumber { quantity, found });
    }
    Ok(())
}

/// Checks the fields that need no state to be checked.
fn check_form(message: &WireMessage) -> Result<(), RaftRefusal> {
    match &message.body {
        RaftMessageBody::Append { index, log_term, commit, entries } => {
            check_number("the commit index", *commit, 0)?;
            // raft-rs finds term 0 wherever there is no entry, also beyond the last one. All logs
            // begin with a snapshot, so entries follow some entry.
            check_number("the index", *index, 1)?;
            check_number("the term of the log", *log_term, 1)?;
            check_entries(message.term, (*index, *log_term), entries)
        }
        RaftMessageBody::AppendAnswer { index, commit, rejection } => {
            check_number("the index", *index, 0)?;
            check_number("the commit index", *commit, 0)?;
            let Some(Rejection { hint, hint_term }) = rejection else { return Ok(()) };
            check_number("the hint", *hint, 0)?;
            check_number("the hint's term", *hint_term, 0)
        }
        RaftMessageBody::Heartbeat { commit } | RaftMessageBody::HeartbeatAnswer { commit } => {
            check_number("the commit index", *commit, 0)
        }
        RaftMessageBody::Snapshot(image) => check_image(message.term, image),
        RaftMessageBody::Vote { index, log_term, commit, commit_term, .. } => {
            check_number("the index", *index, 0)?;
            check_number("the term of the log", *log_term, 0)?;
            check_number("the commit index", *commit, 0)?;
            check_number("the term of the commit", *commit_term, 0)
        }
        RaftMessageBody::VoteAnswer { commit, commit_term, .. } => {
            check_number("the commit index", *commit, 0)?;
            check_number("the term of the commit", *commit_term, 0)
        }
        RaftMessageBody::TimeoutNow => Ok(()),
    }
}

/// Before "unstable.slice out of bound".
fn check_entries(
    term: u64,
    (mut before, mut before_term): (u64, u64),
    entries: &[LogEntry],
) -> Result<(), RaftRefusal> {
    for entry in entries {
        let found = entry.index;
        let found_term = entry.term;
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
        return Err(RaftRefusal::BadNumber { quantity: "the term of the log", found: before_term });
    }
    Ok(())
}

fn check_image(term: u64, image: &SnapshotImage) -> Result<(), RaftRefusal> {
    check_number("the index of the snapshot", image.index, 1)?;
    check_number("the term of the snapshot", image.term, 1)?;
    if image.term > term {
        return Err(RaftRefusal::BadNumber {
            quantity: "the term of the snapshot",
            found: image.term,
        });
    }
    if image.data.len() > SNAPSHOT_BYTES_MAX {
        return Err(RaftRefusal::SnapshotTooLarge { found: image.data.len() });
    }
    Ok(())
}
