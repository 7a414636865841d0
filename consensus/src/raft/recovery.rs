//! The log that the records of a disk add up to.

use std::collections::BTreeMap;

use thiserror::Error;
use zbelastic_types::NodeId;

use super::entry::{LogEntry, Payload, SnapshotImage};
use super::output::RecordNumber;
use super::record::{HardVote, RaftRecord, RaftRecordFault, decode_record};

/// The log that the records of a disk add up to. Starting a node consumes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveredLog {
    /// Whether the last record was torn. The shell must cut it off before it writes another.
    pub torn: bool,
    /// How many good records there are. The next one written has this number.
    pub records: RecordNumber,
    pub(super) hard: HardVote,
    pub(super) snapshot: Option<SnapshotImage>,
    pub(super) entries: Vec<LogEntry>,
    pub(super) boot: Option<(NodeId, u64)>,
    pub(super) peer_boots: BTreeMap<NodeId, (u64, u64)>,
}

/// Why records do not add up. None of these is a write that was cut short: the disk is damaged,
/// another's, or written by a newer program, and the node must not start from it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RecoverError {
    /// A record is damaged and others follow it, or another version wrote it.
    #[error("record {number}: {fault}")]
    BadRecord {
        /// Which record, counted from 0.
        number: u64,
        /// The fault of the record.
        fault: RaftRecordFault,
    },
    /// Entries are missing before those of a record.
    #[error("record {number} begins with entry {found}, entry {expected} is missing")]
    Gap {
        /// Number of the record, counted from 0.
        number: u64,
        /// The entry that would follow.
        expected: u64,
        /// The entry that is there.
        found: u64,
    },
    /// Entries would replace committed ones.
    #[error("record {number} replaces entry {found}, up to {commit} all is committed")]
    ReplacesCommitted {
        /// Number of the record, counted from 0.
        number: u64,
        /// The last entry known to be committed.
        commit: u64,
        /// The first entry replaced.
        found: u64,
    },
    /// A number that only grows went back.
    #[error("record {number}: {quantity} goes back from {before} to {found}")]
    WentBack {
        /// Number of the record, counted from 0.
        number: u64,
        /// What the number counts.
        quantity: &'static str,
        /// The number before this record.
        before: u64,
        /// The number in this record.
        found: u64,
    },
    /// Records of two nodes.
    #[error("record {number} is node {found}'s, those before are node {expected}'s")]
    TwoNodes {
        /// Number of the record, counted from 0.
        number: u64,
        /// The node that the records before are of.
        expected: NodeId,
        /// The node that this record is of.
        found: NodeId,
    },
}

impl RecoveredLog {
    /// Adds up the records of a disk, oldest first. A bad last record is a torn write.
    ///
    /// # Errors
    /// If the records do not add up for another reason than a torn last one.
    pub fn from_records<'a>(
        records: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<Self, RecoverError> {
        let mut log = Self::default();
        let mut records = records.into_iter().peekable();
        while let Some(bytes) = records.next() {
            let number = log.records.0;
            match decode_record(bytes) {
                Ok(record) => log.add(number, record)?,
                Err(fault) if fault.may_be_torn() && records.peek().is_none() => {
                    log.torn = true;
                    break;
                }
                Err(fault) => return Err(RecoverError::BadRecord { number, fault }),
            }
            log.records.0 += 1;
        }
        Ok(log)
    }

    /// The state machine's state from which it is to continue, if there is one.
    #[must_use]
    pub fn snapshot_data(&self) -> Option<&[u8]> {
        self.snapshot.as_ref().map(|image| image.data.as_slice())
    }

    /// The proposals in the entries behind the snapshot, by index, whether they are known to be
    /// agreed or not. Empty for an entry that begins a term or changes members.
    pub fn proposals(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.entries.iter().map(|entry| match &entry.payload {
            Payload::Data(data) => (entry.index, data.as_slice()),
            Payload::Change(_) => (entry.index, [].as_slice()),
        })
    }

    pub(super) fn last_index(&self) -> u64 {
        let snapshot = self.snapshot.as_ref().map_or(0, |image| image.index);
        self.entries.last().map_or(snapshot, |entry| entry.index)
    }

    fn last_term(&self) -> u64 {
        let snapshot = self.snapshot.as_ref().map_or(0, |image| image.term);
        self.entries.last().map_or(snapshot, |entry| entry.term)
    }

    /// The promise of the node. A torn write may have left out the hard state that belongs to
    /// entries or to a snapshot; a term without a hard state is one it never voted in.
    pub(super) fn promise(&self) -> HardVote {
        let mut hard = self.hard;
        if hard.term < self.last_term() {
            (hard.term, hard.vote) = (self.last_term(), None);
        }
        hard.commit = hard.commit.max(self.snapshot.as_ref().map_or(0, |image| image.index));
        hard
    }

    fn add(&mut self, number: u64, record: RaftRecord) -> Result<(), RecoverError> {
        match record {
            RaftRecord::HardState(hard) => {
                check_forward(number, "the term", self.hard.term, hard.term)?;
                check_forward(number, "the commit index", self.hard.commit, hard.commit)?;
                self.hard = hard;
            }
            RaftRecord::Append(entries) => self.append(number, entries)?,
            RaftRecord::Snapshot(image) => self.install(number, image)?,
            RaftRecord::Boot { node, boot } => self.start(number, node, boot)?,
            RaftRecord::PeerBoot { node, boot, life } => {
                self.peer_boots.insert(node, (boot, life));
            }
        }
        Ok(())
    }

    fn append(&mut self, number: u64, entries: Vec<LogEntry>) -> Result<(), RecoverError> {
        let base = self.snapshot.as_ref().map_or(0, |image| image.index);
        for entry in entries {
            let expected = self.last_index() + 1;
            let found = entry.index;
            if found > expected {
                return Err(RecoverError::Gap { number, expected, found });
            }
            if found < expected {
                let is_same = self.term(found) == Some(entry.term);
                if found <= base || (found <= self.hard.commit && !is_same) {
                    let commit = self.hard.commit.max(base);
                    return Err(RecoverError::ReplacesCommitted { number, commit, found });
                }
                self.entries.truncate((found - base - 1) as usize);
            }
            check_forward(number, "the term of an entry", self.last_term(), entry.term)?;
            self.entries.push(entry);
        }
        Ok(())
    }

    fn term(&self, index: u64) -> Option<u64> {
        match &self.snapshot {
            Some(image) if image.index == index => Some(image.term),
            Some(_) | None => {
                let at = self.entries.partition_point(|entry| entry.index < index);
                self.entries.get(at).filter(|entry| entry.index == index).map(|entry| entry.term)
            }
        }
    }

    fn install(&mut self, number: u64, image: SnapshotImage) -> Result<(), RecoverError> {
        let before = self.snapshot.as_ref().map_or(0, |image| image.index);
        check_forward(number, "the snapshot", before, image.index)?;
        if self.term(image.index) == Some(image.term) {
            self.entries.retain(|entry| entry.index > image.index);
        } else {
            self.entries.clear();
        }
        self.snapshot = Some(image);
        Ok(())
    }

    fn start(&mut self, number: u64, node: NodeId, boot: u64) -> Result<(), RecoverError> {
        if let Some((expected, before)) = self.boot {
            if expected != node {
                return Err(RecoverError::TwoNodes { number, expected, found: node });
            }
            check_forward(number, "the boot", before, boot)?;
        }
        self.boot = Some((node, boot));
        Ok(())
    }
}

fn check_forward(
    number: u64,
    quantity: &'static str,
    before: u64,
    found: u64,
) -> Result<(), RecoverError> {
    if found < before {
        return Err(RecoverError::WentBack { number, quantity, before, found });
    }
    Ok(())
}
