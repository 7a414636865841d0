//! Moving raft-rs along: what it is ready to have done becomes outputs.

use ::raft::eraftpb::{Entry, EntryType, Message, Snapshot};
use ::raft::{Ready, StateRole};
use zbelastic_types::NodeId;

use super::super::entry::{
    LogEntry, NodeChange, SnapshotImage, bare_change, changes_of, joint_change,
};
use super::super::in_flight::{InFlightWrite, SnapshotInstall};
use super::super::members::Members;
use super::super::message::{RaftMessage, WireMessage};
use super::super::output::{CommittedEntry, PersistToken, RaftOutput};
use super::super::record::{HardVote, RaftRecord};
use super::propose::is_joint_skipped;
use super::{RaftNode, node_of};

impl RaftNode {
    /// Takes from raft-rs what is ready until nothing is.
    pub(super) fn settle(&mut self) {
        while self.raw.has_ready() {
            let ready = self.raw.ready();
            self.take(ready);
        }
        // A later snapshot is wanted by a new member; one at the same index would be no later.
        let store = self.raw.store();
        if store.take_snapshot_request() && self.applied.0 > store.snapshot_index() {
            self.outputs.push_back(RaftOutput::RequestSnapshot);
        }
    }

    fn take(&mut self, mut ready: Ready) {
        self.announce();
        let mut messages = ready.take_messages();
        messages.append(&mut ready.take_persisted_messages());
        let durable = self.durable_index();
        let messages: Vec<_> = messages.iter().map(|each| envelope(each, durable)).collect();
        let entries = ready.take_entries();
        let snapshot = ready.snapshot().clone();
        let committed = ready.take_committed_entries();
        // Leaders may send before they have written. But one that was elected by itself alone has
        // not written its term yet, and after a crash it would lead in that term again.
        let raft = &self.raw.raft;
        let is_leader = raft.state == StateRole::Leader && self.durable.term == raft.term;
        if is_leader && self.is_boot_durable {
            let sends = messages.into_iter();
            self.outputs.extend(sends.map(|(to, message)| RaftOutput::Send { to, message }));
            self.write(&entries, snapshot);
        } else {
            self.write(&entries, snapshot);
            self.hold(messages);
        }
        let number = ready.number();
        self.raw.advance_append_async(ready);
        match self.writes.last() {
            Some(write) => write.ready = number,
            None => self.raw.on_persist_ready(number),
        }
        self.apply(committed);
    }

    /// How far a leader's own log is durable; raft-rs counts it like an acknowledgement.
    fn durable_index(&self) -> u64 {
        match self.raw.raft.state {
            StateRole::Leader => self.raw.raft.raft_log.persisted,
            StateRole::Follower | StateRole::Candidate | StateRole::PreCandidate => 0,
        }
    }

    fn announce(&mut self) {
        let now = (self.raw.raft.leader_id, self.raw.raft.term);
        if now != self.announced {
            self.announced = now;
            let leader = node_of(now.0);
            self.outputs.push_back(RaftOutput::LeaderChanged { leader, term: now.1 });
        }
    }

    /// Sends once all that was handed out so far is durable (P1).
    pub(super) fn hold(&mut self, messages: impl IntoIterator<Item = (NodeId, RaftMessage)>) {
        match self.writes.last() {
            Some(write) => write.held.extend(messages),
            None => self
                .outputs
                .extend(messages.into_iter().map(|(to, message)| RaftOutput::Send { to, message })),
        }
    }

    /// Writes what a ready holds. Entries come before the hard state that may call them
    /// committed, since a torn write keeps the former alone.
    fn write(&mut self, entries: &[Entry], snapshot: Snapshot) {
        let mut records = Vec::new();
        let install = (!snapshot.is_empty()).then(|| SnapshotImage::from_raft(&snapshot));
        if let Some(image) = &install {
            records.push(RaftRecord::Snapshot(image.clone()));
            self.raw.mut_store().install(snapshot);
        }
        if !entries.is_empty() {
            records.push(RaftRecord::Append(entries.iter().map(LogEntry::from_raft).collect()));
            self.raw.mut_store().append(entries);
        }
        let now = self.hard_vote();
        let is_promise = (now.term, now.vote) != (self.written.term, self.written.vote);
        // A commit index alone is seldom worth a write: others know it.
        if is_promise || !records.is_empty() && now != self.written || install.is_some() {
            records.push(RaftRecord::HardState(now));
            self.written = now;
        }
        if let Some(image) = &install {
            records.extend(self.identity());
            self.note_members(image.index, image.members.clone());
            self.history.drain(..self.history.len() - 1);
        }
        if records.is_empty() {
            return;
        }
        let replaces = install.is_some();
        let installs = install.map(|SnapshotImage { index, term, data, .. }| SnapshotInstall {
            index,
            term,
            data,
        });
        let hard = self.written;
        let write = self.persist(records);
        (write.has_entries, write.hard) = (!entries.is_empty(), Some(hard));
        (write.snapshot, write.replaces) = (installs, replaces);
    }

    /// Hands records out for persisting.
    pub(super) fn persist(&mut self, records: Vec<RaftRecord>) -> &mut InFlightWrite {
        let write = self.writes.begin(records.len());
        let token = write.token;
        self.outputs.push_back(RaftOutput::Persist { token, records });
        write
    }

    /// What must follow a snapshot that replaces all earlier records.
    pub(super) fn identity(&self) -> Vec<RaftRecord> {
        let own = RaftRecord::Boot { node: self.setup.node, boot: self.boot };
        let peers = self.peers.boots();
        let peers = peers.map(|(node, boot, life)| RaftRecord::PeerBoot { node, boot, life });
        std::iter::once(own).chain(peers).collect()
    }

    fn hard_vote(&self) -> HardVote {
        let raft = &self.raw.raft;
        HardVote { term: raft.term, vote: node_of(raft.vote), commit: raft.raft_log.committed }
    }

    /// Hands out what is agreed, and changes the members where an entry holds changes of them.
    fn apply(&mut self, committed: Vec<Entry>) {
        let Some(applied) = committed.last().map(|entry| entry.index) else { return };
        let members = self.members().clone();
        for entry in committed {
            let index = entry.index;
            let term = entry.term;
            let data = match entry.get_entry_type() {
                EntryType::EntryNormal => entry.data.to_vec(),
                EntryType::EntryConfChange | EntryType::EntryConfChangeV2 => {
                    self.apply_changes(index, &changes_of(&entry));
                    Vec::new()
                }
            };
            self.outputs.push_back(RaftOutput::Committed(CommittedEntry { index, term, data }));
        }
        let last_index = self.raw.raft.raft_log.last_index();
        self.raw.advance_apply_to(applied);
        if self.raw.raft.raft_log.last_index() > last_index {
            // The entry that leaves the joint state; raft-rs would keep it to itself for a while.
            self.raw.raft.bcast_append();
        }
        self.peers.saw_commit(self.raw.raft.raft_log.committed);
        if *self.members() != members {
            self.write_commit();
        }
    }

    /// A commit index alone is worth a write if members changed with it: after a power cut a node
    /// would count on members that have gone since, and they will not come back.
    fn write_commit(&mut self) {
        let now = self.hard_vote();
        if now != self.written {
            self.written = now;
            self.persist(vec![RaftRecord::HardState(now)]).hard = Some(now);
        }
    }

    /// Changes the members, unless the change makes no sense, which is the same on all nodes.
    pub(super) fn apply_changes(&mut self, index: u64, changes: &[NodeChange]) {
        if is_joint_skipped() {
            self.apply_bare(changes);
        } else if self.members().is_applicable(changes) {
            let applied = self.raw.apply_conf_change(&joint_change(changes));
            applied.expect("the change was found applicable");
        } else {
            return;
        }
        let members = Members::from_raft(&self.raw.raft.prs().conf().to_conf_state());
        let is_voter = members.is_voter(self.setup.node);
        self.note_members(index, members);
        if !is_voter {
            // raft-rs would go on to lead, and panic when it counts itself.
            self.step_down();
        }
    }

    /// The mutant: each step at once, without a majority of both sides.
    fn apply_bare(&mut self, changes: &[NodeChange]) {
        for &change in changes {
            // A step that cannot be taken is left out.
            let _ = self.raw.apply_conf_change(&bare_change(change));
        }
    }

    /// What was handed out with `token` is durable.
    pub(super) fn finish_write(&mut self, token: PersistToken) {
        let write = self.writes.end(token);
        self.durable = write.hard.unwrap_or(self.durable);
        if write.ready > 0 {
            self.raw.on_persist_ready(write.ready);
        }
        if let Some(SnapshotInstall { index, term, data }) = write.snapshot {
            self.raw.advance_apply_to(index);
            self.outputs.push_back(RaftOutput::Installed { index, term, data });
        }
        if write.replaces {
            self.outputs.push_back(RaftOutput::Trim { before: write.first_record });
        }
        let held = write.held.into_iter();
        self.outputs.extend(held.map(|(to, message)| RaftOutput::Send { to, message }));
        if !self.is_boot_durable {
            self.is_boot_durable = true;
            self.send_hellos();
        }
        self.settle();
    }
}

fn envelope(message: &Message, durable: u64) -> (NodeId, RaftMessage) {
    let message = WireMessage::from_raft(message, durable);
    (message.to, RaftMessage::Raft(message.encode()))
}
