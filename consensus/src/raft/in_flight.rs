//! Records that were handed out for persisting and are not reported yet.

use std::collections::VecDeque;

use zbelastic_types::NodeId;

use super::message::RaftMessage;
use super::output::{PersistToken, RecordNumber};
use super::record::HardVote;

/// A [`super::RaftOutput::Persist`] in flight.
#[derive(Debug)]
pub(super) struct InFlightWrite {
    pub token: PersistToken,
    /// The number of its first record.
    pub first_record: RecordNumber,
    /// The last of raft-rs's readies that is durable with it; 0 for none.
    pub ready: u64,
    pub hard: Option<HardVote>,
    pub has_entries: bool,
    /// A leader's snapshot that is handed out once it is durable.
    pub snapshot: Option<SnapshotInstall>,
    /// Whether all records before are replaced by its records.
    pub replaces: bool,
    /// Messages that may be sent once it is durable (P1).
    pub held: Vec<(NodeId, RaftMessage)>,
}

/// A leader's snapshot on its way to the disk.
#[derive(Debug)]
pub(super) struct SnapshotInstall {
    pub index: u64,
    pub term: u64,
    pub data: Vec<u8>,
}

/// All writes in flight, in the order in which they become durable.
#[derive(Debug, Default)]
pub(super) struct InFlightWrites {
    queue: VecDeque<InFlightWrite>,
    next_token: u64,
    next_record: u64,
    /// Ticks since the oldest became the oldest.
    age_ticks: u32,
}

impl InFlightWrites {
    pub(super) fn new(next_record: RecordNumber) -> Self {
        Self { next_record: next_record.0, ..Self::default() }
    }

    /// Begins a write of `records` records. The caller sets the other fields.
    pub(super) fn begin(&mut self, records: usize) -> &mut InFlightWrite {
        let token = PersistToken(self.next_token);
        let first_record = RecordNumber(self.next_record);
        self.next_token += 1;
        self.next_record += records as u64;
        self.queue.push_back(InFlightWrite {
            token,
            first_record,
            ready: 0,
            hard: None,
            has_entries: false,
            snapshot: None,
            replaces: false,
            held: Vec::new(),
        });
        self.queue.back_mut().expect("it was pushed")
    }

    pub(super) fn last(&mut self) -> Option<&mut InFlightWrite> {
        self.queue.back_mut()
    }

    /// Ends the write of `token`.
    ///
    /// # Panics
    /// If it is not the oldest in flight: the shell reports out of order.
    pub(super) fn end(&mut self, token: PersistToken) -> InFlightWrite {
        let write = self.queue.pop_front().expect("a reported token is in flight");
        assert_eq!(write.token, token, "tokens are reported in order");
        self.age_ticks = 0;
        write
    }

    /// Counts a tick; yields for how many ticks the oldest write has been in flight.
    pub(super) fn tick(&mut self) -> u32 {
        self.age_ticks = if self.queue.is_empty() { 0 } else { self.age_ticks + 1 };
        self.age_ticks
    }

    pub(super) fn clear(&mut self) {
        self.queue.clear();
    }

    pub(super) fn is_installing(&self) -> bool {
        self.queue.iter().any(|write| write.snapshot.is_some())
    }

    pub(super) fn has_log(&self) -> bool {
        self.queue.iter().any(|write| write.has_entries || write.snapshot.is_some())
    }
}
