//! Entries, one by one, and the change of the state by each.

use std::sync::Arc;

use zbelastic_types::{Generation, RunId, Step};

use super::{EntryRefusal, State};
use crate::access::AccessOutcome;
use crate::codec::Format;
use crate::entry::{Entry, RewindReason};
use crate::job::JobPhase;
use crate::member::{Holder, MemberChange};
use crate::plan::PlanRecord;
use crate::validation::Seal;

/// The change of the state by an entry.
#[derive(Clone, Debug, PartialEq)]
pub enum StateChange {
    /// Members; those changes of the entry that fit.
    Members(Vec<MemberChange>),
    /// A plan begins to load now.
    Adopted(Arc<PlanRecord>),
    /// A plan begins at a later step.
    Planned(Arc<PlanRecord>),
    /// A holder is ready.
    Ready(Holder),
    /// The program of the plan with this number runs.
    Resumed(Generation),
    /// A turn is sealed. If a planned change begins with the step that follows, it loads now.
    Sealed {
        /// The seal that was applied.
        seal: Seal,
        /// Whether the step was sealed before, and this only confirms it.
        is_repeated: bool,
        /// The plan that loads now.
        adopted: Option<Arc<PlanRecord>>,
    },
    /// More layers of a version are durable.
    Durable {
        /// Version of the layers.
        version: Step,
    },
    /// The next version becomes a checkpoint.
    Kept {
        /// The version that follows the open one.
        version: Step,
    },
    /// A checkpoint is there; older ones are not referenced any more.
    Checkpoint {
        /// Version of the new checkpoint.
        version: Step,
        /// Versions of checkpoints that are not needed any more.
        dropped: Vec<Step>,
    },
    /// The run went back.
    Rewound {
        /// The version that the run went back to.
        to: Step,
        /// Whether state was lost, two copies differ, or a person ordered it.
        reason: RewindReason,
        /// Versions of checkpoints that it went past.
        dropped: Vec<Step>,
    },
    /// The job began, or its phase changed.
    Job {
        /// The phase that the job is in now.
        phase: JobPhase,
        /// Versions of checkpoints of the job before that are not needed any more: all but its
        /// last.
        dropped: Vec<Step>,
    },
    /// A run that ended is forgotten.
    Removed {
        /// The run that was removed.
        run: RunId,
    },
    /// Tokens, credentials or the authority changed.
    Access(AccessOutcome),
    /// Entries and snapshots have a newer format.
    Format(Format),
}

impl State {
    /// Applies the entry at `index`.
    ///
    /// # Errors
    /// If the entry does not fit the state it meets: nothing changes but the index.
    ///
    /// # Panics
    /// If an index is left out or comes twice (invariant S2).
    pub fn apply(&mut self, index: u64, entry: Entry) -> Result<StateChange, EntryRefusal> {
        self.pass(index);
        let Self { membership, training, .. } = self;
        match entry {
            Entry::Members(changes) => membership.apply(index, changes, &training.plans),
            Entry::Access(change) => membership.apply_access(index, change, &training.plans),
            Entry::Adopt(record) => training.apply_adopt(*record, membership),
            Entry::Ready(ready) => training.plans.apply_ready(ready, membership),
            Entry::Resume { generation } => training.plans.apply_resume(generation, membership),
            Entry::Seal(seal) => training.apply_seal(seal),
            Entry::Durable { version, generation, holder, layers } => {
                training.apply_durable((version, generation), holder, &layers, membership)
            }
            Entry::Keep { version } => training.apply_keep(version, membership),
            Entry::Checkpoint { version } => training.apply_checkpoint(version),
            Entry::Rewind { generation, to, reason } => {
                training.apply_rewind(generation, to, reason)
            }
            Entry::Job(change) => training.apply_job(change),
            Entry::Format(to) => self.apply_format(to),
        }
    }

    fn apply_format(&mut self, found: Format) -> Result<StateChange, EntryRefusal> {
        let agreed = self.format;
        if found <= agreed {
            return Err(EntryRefusal::Format { agreed, found });
        }
        self.format = found;
        Ok(StateChange::Format(found))
    }

    /// Counts an index that holds nothing for this state.
    ///
    /// # Panics
    /// If an index is left out or comes twice (invariant S2).
    pub fn pass(&mut self, index: u64) {
        assert!(index > self.applied, "S2: entry {index} comes after {}", self.applied);
        self.applied = index;
    }
}
