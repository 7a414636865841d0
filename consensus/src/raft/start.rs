//! The start of a node: with nothing, the voters of a new cluster, or the log on its disk.

use std::collections::BTreeMap;

use zbelastic_types::NodeId;

use super::entry::{LogEntry, SnapshotImage};
use super::members::Members;
use super::output::RecordNumber;
use super::record::{HardVote, RaftRecord};
use super::recovery::RecoveredLog;
use super::setup::{RaftStartError, SNAPSHOT_BYTES_MAX};

/// The state that a node starts with.
#[derive(Default)]
pub(super) struct RaftStart {
    pub hard: HardVote,
    pub snapshot: Option<SnapshotImage>,
    pub entries: Vec<LogEntry>,
    pub boot: u64,
    pub peer_boots: BTreeMap<NodeId, (u64, u64)>,
    pub next_record: RecordNumber,
    /// Records to be written before all others.
    pub records: Vec<RaftRecord>,
}

impl RaftStart {
    /// The first start of a node, without voters or as one of them.
    pub(super) fn first(
        node: NodeId,
        voters: &[NodeId],
        snapshot_data: Vec<u8>,
    ) -> Result<Self, RaftStartError> {
        let mut start = RaftStart::default();
        if !voters.is_empty() {
            let members = Members::first(voters);
            members.check().map_err(|fault| RaftStartError::BadMembers { fault })?;
            if !members.is_voter(node) {
                return Err(RaftStartError::NotVoter { node });
            }
            let image = SnapshotImage { index: 1, term: 1, members, data: snapshot_data };
            start.hard = HardVote { term: 1, vote: None, commit: 1 };
            start.records.push(RaftRecord::Snapshot(image.clone()));
            start.records.push(RaftRecord::HardState(start.hard));
            start.snapshot = Some(image);
        }
        start.boot = 1;
        Ok(start)
    }

    /// A later start of a node.
    pub(super) fn recovered(
        expected: NodeId,
        recovered: RecoveredLog,
    ) -> Result<Self, RaftStartError> {
        let hard = recovered.promise();
        let (found, boot) = recovered.boot.ok_or(RaftStartError::NeverStarted)?;
        if expected != found {
            return Err(RaftStartError::OtherNode { expected, found });
        }
        let commit = hard.commit;
        let last_index = recovered.last_index();
        if commit > last_index {
            return Err(RaftStartError::CommitBeyondLog { commit, last_index });
        }
        if let Some(image) = &recovered.snapshot {
            let fault = image.members.check();
            fault.map_err(|fault| RaftStartError::BadMembers { fault })?;
        }
        Ok(Self {
            hard,
            snapshot: recovered.snapshot,
            entries: recovered.entries,
            boot: boot + 1,
            peer_boots: recovered.peer_boots,
            next_record: recovered.records,
            records: Vec::new(),
        })
    }

    /// Checks that the snapshot can be sent to others.
    pub(super) fn check(&self) -> Result<(), RaftStartError> {
        let found = self.snapshot.as_ref().map_or(0, |image| image.data.len());
        if found > SNAPSHOT_BYTES_MAX {
            return Err(RaftStartError::SnapshotTooLarge { found });
        }
        Ok(())
    }

    /// Index and term of the last entry that the snapshot holds.
    pub(super) fn applied(&self) -> (u64, u64) {
        self.snapshot.as_ref().map_or((0, 0), |image| (image.index, image.term))
    }
}
