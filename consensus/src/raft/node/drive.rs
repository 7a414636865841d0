//! Moving raft-rs along: the work in each `Ready` becomes outputs.

use ::raft::Ready;
use ::raft::eraftpb::{Entry, EntryType, Message, MessageType, Snapshot};
use zbelastic_types::NodeId;

use super::super::driver::node_of;
use super::super::entry::{LogEntry, NodeChange, SnapshotImage, changes_of, joint_change};
use super::super::in_flight::SnapshotInstall;
use super::super::members::Members;
use super::super::message::{RaftMessage, WireMessage};
use super::super::output::{CommittedEntry, PersistToken, RaftOutput};
use super::super::record::RaftRecord;
use super::{RaftNode, is_joint_skipped};

impl RaftNode {
    /// Handles each `Ready` of raft-rs until there is none.
    pub(super) fn settle(&mut self) {
        while self.driver.raw.has_ready() {
            let ready = self.driver.raw.ready();
            self.take(ready);
        }
        // A later snapshot is wanted by a new member; one at the same index would be no later.
        let store = self.driver.raw.store();
        if store.take_snapshot_request() && self.applied.0 > store.snapshot_index() {
            self.outbox.push(RaftOutput::RequestSnapshot);
        }
    }

    fn take(&mut self, mut ready: Ready) {
        self.announce();
        let mut messages = ready.take_messages();
        messages.append(&mut ready.take_persisted_messages());
        let durable = self.driver.durable_index();
        let is_beat = |each: &Message| each.get_msg_type() == MessageType::MsgHeartbeatResponse;
        let (beats, messages): (Vec<_>, Vec<_>) = messages.into_iter().partition(is_beat);
        let enveloped = |messages: &[Message]| -> Vec<_> {
            messages.iter().map(|each| envelope(each, durable)).collect()
        };
        let (beats, messages) = (enveloped(&beats), enveloped(&messages));
        let entries = ready.take_entries();
        let snapshot = ready.snapshot().clone();
        let committed = ready.take_committed_entries();
        // Leaders may send before they have written. But one that was elected by itself alone has
        // not written its term yet, and after a crash it would lead in that term again.
        let raft = &self.driver.raw.raft;
        let is_term_durable = self.is_boot_durable && self.outbox.durable().term == raft.term;
        // The answer to a heartbeat reports a term, and that this node is there: behind a slow write it
        // would depose a leader of which nothing is wrong.
        if is_term_durable {
            self.outbox.send(beats);
        } else {
            self.outbox.hold(beats);
        }
        if is_term_durable && self.driver.is_leader() {
            self.outbox.send(messages);
            self.write(&entries, snapshot);
        } else {
            self.write(&entries, snapshot);
            self.outbox.hold(messages);
        }
        let number = ready.number();
        self.driver.raw.advance_append_async(ready);
        match self.outbox.last_write() {
            Some(write) => write.ready = number,
            None => self.driver.raw.on_persist_ready(number),
        }
        self.apply(committed);
    }

    fn announce(&mut self) {
        let now = (self.driver.raw.raft.leader_id, self.driver.raw.raft.term);
        if now != self.announced {
            self.announced = now;
            let leader = node_of(now.0);
            self.outbox.push(RaftOutput::LeaderChanged { leader, term: now.1 });
        }
    }

    /// Writes the records of a `Ready`. Entries come before the hard state that may call them
    /// committed, since a torn write keeps the former alone.
    fn write(&mut self, entries: &[Entry], snapshot: Snapshot) {
        let mut records = Vec::new();
        let install = (!snapshot.is_empty()).then(|| SnapshotImage::from_raft(&snapshot));
        if let Some(image) = &install {
            records.push(RaftRecord::Snapshot(image.clone()));
            self.driver.raw.mut_store().install(snapshot);
        }
        if !entries.is_empty() {
            records.push(RaftRecord::Append(entries.iter().map(LogEntry::from_raft).collect()));
            self.driver.raw.mut_store().append(entries);
        }
        let now = self.driver.hard_vote();
        let mut hard = self.outbox.written();
        let is_promise = (now.term, now.vote) != (hard.term, hard.vote);
        // A commit index alone is seldom worth a write: others know it.
        if is_promise || !records.is_empty() && now != hard || install.is_some() {
            records.push(RaftRecord::HardState(now));
            hard = now;
        }
        if let Some(image) = &install {
            records.extend(self.identity());
            self.note_members(image.index, image.members.clone());
            self.members.forget_earlier();
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
        let write = self.outbox.persist_with(hard, records);
        write.has_entries = !entries.is_empty();
        write.snapshot = installs;
        write.replaces = replaces;
    }

    /// The records that must follow a snapshot that replaces all earlier records.
    pub(super) fn identity(&self) -> Vec<RaftRecord> {
        let own = RaftRecord::Boot { node: self.setup.node, boot: self.boot };
        let peers = self.peers.boots();
        let peers = peers.map(|(node, boot, life)| RaftRecord::PeerBoot { node, boot, life });
        std::iter::once(own).chain(peers).collect()
    }

    /// Hands out the agreed entries, and changes the members where an entry holds changes of them.
    fn apply(&mut self, committed: Vec<Entry>) {
        let Some(applied) = committed.last().map(|entry| entry.index) else { return };
        let members = self.members.current().clone();
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
            self.outbox.push(RaftOutput::Committed(CommittedEntry { index, term, data }));
        }
        let last_index = self.driver.last_index();
        self.driver.raw.advance_apply_to(applied);
        if self.driver.last_index() > last_index {
            // The entry that leaves the joint state; raft-rs would keep it to itself for a while.
            self.driver.raw.raft.bcast_append();
        }
        self.peers.saw_commit(self.driver.raw.raft.raft_log.committed);
        if *self.members.current() != members {
            self.write_commit();
        }
    }

    /// A commit index alone is worth a write if members changed with it: after a power cut a node
    /// would count on members that have gone since, and they will not come back.
    fn write_commit(&mut self) {
        let now = self.driver.hard_vote();
        if now != self.outbox.written() {
            self.outbox.persist_with(now, vec![RaftRecord::HardState(now)]);
        }
    }

    /// Changes the members, unless the change makes no sense, which is the same on all nodes.
    pub(super) fn apply_changes(&mut self, index: u64, changes: &[NodeChange]) {
        if is_joint_skipped() {
            self.driver.apply_bare(changes);
        } else if self.members.current().is_applicable(changes) {
            let applied = self.driver.raw.apply_conf_change(&joint_change(changes));
            applied.expect("the change was found applicable");
        } else {
            return;
        }
        let members = Members::from_raft(&self.driver.raw.raft.prs().conf().to_conf_state());
        let is_voter = members.is_voter(self.setup.node);
        self.note_members(index, members);
        if !is_voter {
            // raft-rs would go on to lead, and panic when it counts itself.
            self.driver.step_down();
        }
    }

    /// The members change; nothing is remembered of the nodes that leave.
    fn note_members(&mut self, index: u64, members: Members) {
        for node in self.members.push(index, members) {
            self.peers.forget(node);
        }
    }

    /// The records that were handed out with `token` are durable.
    pub(super) fn finish_write(&mut self, token: PersistToken) {
        let write = self.outbox.end_write(token);
        if write.ready > 0 {
            self.driver.raw.on_persist_ready(write.ready);
        }
        if let Some(SnapshotInstall { index, term, data }) = write.snapshot {
            self.driver.raw.advance_apply_to(index);
            self.outbox.push(RaftOutput::Installed { index, term, data });
        }
        if write.replaces {
            self.outbox.push(RaftOutput::Trim { before: write.first_record });
        }
        self.outbox.send(write.held);
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
