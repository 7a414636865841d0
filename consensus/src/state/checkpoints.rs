//! Checkpoints: those that are there, those under way, and the version that is to become one.

use serde::{Deserialize, Serialize};
use zbelastic_types::{Generation, Step};

use super::EntryRefusal;
use crate::checkpoint::{
    CHECKPOINTS_MAX, CheckpointRecord, LayerDigest, PENDING_MAX, PendingCheckpoint,
};
use crate::validation::Ledger;

/// The checkpoints of the job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CheckpointRegistry {
    durable: Vec<CheckpointRecord>,
    pending: Vec<PendingCheckpoint>,
    /// The version that becomes a checkpoint when it is the open one, because time has passed.
    due: Option<Step>,
}

impl CheckpointRegistry {
    /// Begins with a checkpoint that another run or cluster wrote.
    pub(super) fn begin_with(&mut self, checkpoint: CheckpointRecord) {
        self.durable = vec![checkpoint];
    }

    /// Checkpoints, oldest first.
    #[must_use]
    pub fn durable(&self) -> &[CheckpointRecord] {
        &self.durable
    }

    /// Checkpoints under way, oldest first.
    #[must_use]
    pub fn pending(&self) -> &[PendingCheckpoint] {
        &self.pending
    }

    /// The version that becomes a checkpoint when it is the open one, independently of the
    /// configuration.
    #[must_use]
    pub fn due(&self) -> Option<Step> {
        self.due
    }

    pub(super) fn newest(&self) -> Option<&CheckpointRecord> {
        self.durable.last()
    }

    /// The checkpoint of a version.
    pub(super) fn at(&self, version: Step) -> Option<&CheckpointRecord> {
        self.durable.iter().find(|found| found.version == version)
    }

    /// Whether the checkpoint of a version is under way.
    pub(super) fn is_pending(&self, version: Step) -> bool {
        self.pending.iter().any(|pending| pending.version == version)
    }

    /// Makes this version a checkpoint when it is the open one.
    pub(super) fn set_due(&mut self, version: Step) {
        self.due = Some(version);
    }

    /// Whether the open version is the one that was to become a checkpoint. One that was passed is
    /// forgotten.
    pub(super) fn take_due(&mut self, open: Step) -> bool {
        self.due.take_if(|due| *due <= open) == Some(open)
    }

    /// Begins to collect the checkpoint of a version, unless it is there or under way. The oldest
    /// under way is given up if there are too many.
    pub(super) fn begin(&mut self, version: Step, ledger: &Ledger) {
        if self.is_pending(version) || self.at(version).is_some() {
            return;
        }
        if self.pending.len() == PENDING_MAX {
            self.pending.remove(0);
        }
        let layers = Default::default();
        let ledger = ledger.clone();
        self.pending.push(PendingCheckpoint { version, layers, ledger });
    }

    /// The holders of another plan write a version, if it is under way. Yields whether it is.
    pub(super) fn renew(&mut self, version: Step, ledger: &Ledger) -> bool {
        let pending = self.pending.iter_mut().find(|found| found.version == version);
        pending.map(|found| found.ledger = ledger.clone()).is_some()
    }

    /// Notes layers of a version that are durable.
    pub(super) fn note_durable(
        &mut self,
        (version, generation): (Step, Generation),
        layers: &[LayerDigest],
        layer_count: u32,
    ) -> Result<(), EntryRefusal> {
        let pending = self.pending.iter_mut().find(|pending| pending.version == version);
        let pending = pending.ok_or(EntryRefusal::NoCheckpoint { version })?;
        let expected = pending.generation();
        if generation != expected {
            return Err(EntryRefusal::OtherGeneration { expected, found: generation });
        }
        let mut durable = pending.layers.clone();
        for (layer, digest) in layers {
            let known = *durable.entry(*layer).or_insert(*digest);
            if layer.0 >= layer_count || known != *digest {
                return Err(EntryRefusal::DurableLayer { version, layer: *layer });
            }
        }
        pending.layers = durable;
        Ok(())
    }

    /// Adds the checkpoint of a version all of whose layers are durable. Checkpoints under way
    /// before it are given up.
    pub(super) fn complete(&mut self, version: Step, expected: u32) -> Result<(), EntryRefusal> {
        let pending = self.pending.iter().find(|pending| pending.version == version);
        let pending = pending.ok_or(EntryRefusal::NoCheckpoint { version })?;
        let Some(record) = pending.complete(expected) else {
            let found = pending.layers.len() as u32;
            return Err(EntryRefusal::Incomplete { version, expected, found });
        };
        self.pending.retain(|pending| pending.version > version);
        self.durable.push(record);
        self.durable.sort_by_key(|checkpoint| checkpoint.version);
        Ok(())
    }

    /// Drops all but the newest checkpoints, so many. Yields the versions of those dropped.
    pub(super) fn drop_surplus(&mut self, kept: u32) -> Vec<Step> {
        let kept = (kept as usize).min(CHECKPOINTS_MAX);
        let surplus = self.durable.len().saturating_sub(kept);
        self.durable.drain(..surplus).map(|found| found.version).collect()
    }

    /// Drops the checkpoints behind a version. Yields the versions of the checkpoints dropped.
    pub(super) fn rewind(&mut self, to: Step) -> Vec<Step> {
        self.pending.retain(|pending| pending.version <= to);
        self.due = None;
        let kept = self.durable.partition_point(|found| found.version <= to);
        self.durable.drain(kept..).map(|found| found.version).collect()
    }

    /// Gives up the checkpoint that is under way.
    pub(super) fn give_up_pending(&mut self) {
        self.pending.clear();
        self.due = None;
    }

    /// Removes the newest checkpoint.
    pub(super) fn take_newest(&mut self) -> Option<CheckpointRecord> {
        self.durable.pop()
    }

    /// Drops all checkpoints. Yields their versions.
    pub(super) fn clear(&mut self) -> Vec<Step> {
        self.durable.drain(..).map(|found| found.version).collect()
    }
}
