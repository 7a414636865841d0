//! The log in memory, as raft-rs reads it.
//!
//! An entry is here from the moment it is handed out for persisting. The entries reach back a
//! little before the snapshot, for followers that are a little behind.

use std::cell::Cell;
use std::collections::VecDeque;

use ::raft::eraftpb::{Entry, HardState, Snapshot};
use ::raft::util::limit_size;
use ::raft::{Error, GetEntriesContext, RaftState, Storage, StorageError};
use zbelastic_types::NodeId;

use super::members::Members;

/// The log since a little before the latest snapshot.
pub(super) struct LogStore {
    /// Only read when raft-rs starts.
    start: HardState,
    snapshot: Snapshot,
    /// Index and term of the entry before the first one kept.
    before: (u64, u64),
    entries: VecDeque<Entry>,
    /// Whether a node needs a snapshot that is later than the one here.
    is_snapshot_wanted: Cell<bool>,
}

impl LogStore {
    pub(super) fn new(start: HardState, snapshot: Snapshot, entries: Vec<Entry>) -> Self {
        let metadata = snapshot.get_metadata();
        let before = (metadata.index, metadata.term);
        let is_snapshot_wanted = Cell::new(false);
        Self { start, snapshot, before, entries: entries.into(), is_snapshot_wanted }
    }

    /// Whether a later snapshot was wanted since the last call.
    pub(super) fn take_snapshot_request(&self) -> bool {
        self.is_snapshot_wanted.take()
    }

    pub(super) fn snapshot_index(&self) -> u64 {
        self.snapshot.get_metadata().index
    }

    fn last(&self) -> u64 {
        self.before.0 + self.entries.len() as u64
    }

    fn get(&self, index: u64) -> Option<&Entry> {
        let at = index.checked_sub(self.before.0 + 1)?;
        self.entries.get(usize::try_from(at).ok()?)
    }

    /// The entries after the snapshot.
    pub(super) fn entries_after_snapshot(&self) -> impl Iterator<Item = &Entry> {
        let index = self.snapshot_index();
        self.entries.iter().filter(move |entry| entry.index > index)
    }

    /// Adds entries, in place of those from the first of them on.
    pub(super) fn append(&mut self, entries: &[Entry]) {
        let Some(first) = entries.first() else { return };
        assert!(first.index > self.snapshot_index(), "what a snapshot holds is committed");
        assert!(first.index <= self.last() + 1, "the log has no gap");
        self.entries.truncate((first.index - self.before.0 - 1) as usize);
        self.entries.extend(entries.iter().cloned());
    }

    /// Installs a leader's snapshot in place of all that is here.
    pub(super) fn install(&mut self, snapshot: Snapshot) {
        let metadata = snapshot.get_metadata();
        self.before = (metadata.index, metadata.term);
        self.entries.clear();
        self.snapshot = snapshot;
    }

    /// Stores a snapshot of the applied state and forgets entries before it, but for the last
    /// `tail`.
    pub(super) fn compact(&mut self, snapshot: Snapshot, tail: u64) {
        let index = snapshot.get_metadata().index;
        assert!(index > self.snapshot_index(), "a snapshot holds more than the one before");
        assert!(index <= self.last(), "a snapshot holds what was in the log");
        self.snapshot = snapshot;
        while self.before.0 + tail < index {
            let entry = self.entries.pop_front().expect("the snapshot's entry is here");
            self.before = (entry.index, entry.term);
        }
    }
}

impl Storage for LogStore {
    fn initial_state(&self) -> ::raft::Result<RaftState> {
        let members = self.snapshot.get_metadata().get_conf_state().clone();
        Ok(RaftState::new(self.start.clone(), members))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _: GetEntriesContext,
    ) -> ::raft::Result<Vec<Entry>> {
        if low <= self.before.0 {
            return Err(Error::Store(StorageError::Compacted));
        }
        if high > self.last() + 1 {
            return Err(Error::Store(StorageError::Unavailable));
        }
        let place = |index: u64| (index - self.before.0 - 1) as usize;
        let max_size = max_size.into();
        let mut entries = Vec::new();
        let mut bytes = 0;
        for entry in self.entries.range(place(low)..place(high)) {
            entries.push(entry.clone());
            // Enough to stop copying; `limit_size` knows the exact size.
            bytes += entry.data.len() as u64;
            if max_size.is_some_and(|limit| bytes > limit) {
                break;
            }
        }
        limit_size(&mut entries, max_size);
        Ok(entries)
    }

    fn term(&self, index: u64) -> ::raft::Result<u64> {
        if index == self.before.0 {
            return Ok(self.before.1);
        }
        if index < self.before.0 {
            return Err(Error::Store(StorageError::Compacted));
        }
        match self.get(index) {
            Some(entry) => Ok(entry.term),
            None => Err(Error::Store(StorageError::Unavailable)),
        }
    }

    fn first_index(&self) -> ::raft::Result<u64> {
        Ok(self.before.0 + 1)
    }

    fn last_index(&self) -> ::raft::Result<u64> {
        Ok(self.last())
    }

    /// The snapshot for `to`. One from before it became a member it could not install: raft-rs
    /// throws away a snapshot in which the receiver is no member.
    fn snapshot(&self, _request_index: u64, to: u64) -> ::raft::Result<Snapshot> {
        let members = Members::from_raft(self.snapshot.get_metadata().get_conf_state());
        if !members.is_member(NodeId(to)) {
            self.is_snapshot_wanted.set(true);
            return Err(Error::Store(StorageError::SnapshotTemporarilyUnavailable));
        }
        Ok(self.snapshot.clone())
    }
}
