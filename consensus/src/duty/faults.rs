//! Why a plan must go, and which checkpoints are not to be gone back to.

use std::collections::{BTreeMap, BTreeSet};

use zbelastic_types::{Generation, LayerId, Step};

use crate::entry::Entry;
use crate::job::JobChange;
use crate::mutant::{self, Mutant};
use crate::plan::PlanReason;
use crate::state::State;

/// Plans that could not load from a checkpoint, until another one is gone back to.
pub const PLANS_FAILED_MAX: usize = 3;

/// The faults that were found in the plan in force. Each is of the plan with this generation.
#[derive(Debug, Default)]
pub(super) struct PlanFaults {
    /// Why the plan must go, if it must.
    trouble: Option<(Generation, PlanReason)>,
    /// A layer with states that differ between two holders, or from its checkpoint.
    differing: Option<(Generation, LayerId)>,
    /// The plan in which two holders contradicted each other; they do so until there is another.
    contradicted: Option<Generation>,
}

impl PlanFaults {
    /// Notes why the plan must go. The first reason counts.
    pub(super) fn note_trouble(&mut self, generation: Generation, reason: PlanReason) {
        self.trouble.get_or_insert((generation, reason));
    }

    /// Notes a layer with states that differ.
    pub(super) fn note_differing(&mut self, generation: Generation, layer: LayerId) {
        self.differing = Some((generation, layer));
    }

    /// Notes that two holders contradicted each other.
    pub(super) fn note_contradicted(&mut self, generation: Generation) {
        self.contradicted = Some(generation);
    }

    /// Why the plan of this generation must go, if it must.
    pub(super) fn trouble(&self, generation: Generation) -> Option<&PlanReason> {
        self.trouble.as_ref().filter(|(of, _)| *of == generation).map(|(_, reason)| reason)
    }

    /// Whether any plan must go.
    pub(super) fn has_trouble(&self) -> bool {
        self.trouble.is_some()
    }

    /// The layer with states that differ in the plan of this generation.
    pub(super) fn differing(&self, generation: Generation) -> Option<LayerId> {
        self.differing.filter(|(of, _)| *of == generation).map(|(_, layer)| layer)
    }

    /// Whether two holders of the plan of this generation contradicted each other.
    pub(super) fn is_contradicted(&self, generation: Generation) -> bool {
        self.contradicted == Some(generation)
    }

    /// Whether no fault of the loaded layers is known.
    pub(super) fn is_sound(&self) -> bool {
        self.trouble.is_none() && self.differing.is_none()
    }

    /// The run went back: no layer is believed.
    pub(super) fn forget_differing(&mut self) {
        self.differing = None;
    }

    /// Forgets the faults of other plans than that of this generation.
    pub(super) fn retain(&mut self, generation: Generation) {
        self.trouble = self.trouble.take().filter(|(of, _)| *of == generation);
        self.differing = self.differing.filter(|(of, _)| *of == generation);
    }
}

/// The plans that could not read a checkpoint.
#[derive(Debug)]
struct FailedReads {
    /// The tick at which a piece was first not to be had.
    since: u64,
    /// Plans that count against the checkpoint.
    plans: BTreeSet<Generation>,
}

/// Checkpoints that could not be read, and in which plans.
#[derive(Debug, Default)]
pub(super) struct UnreadCheckpoints {
    failed: BTreeMap<Step, FailedReads>,
}

impl UnreadCheckpoints {
    /// A piece of the checkpoint of this version is not to be had. Returns for how many ticks that has
    /// been so.
    pub(super) fn note_missed(&mut self, version: Step, now: u64) -> u64 {
        let missed = FailedReads { since: now, plans: BTreeSet::new() };
        now - self.failed.entry(version).or_insert(missed).since
    }

    /// A plan could not load a layer from the checkpoint of this version, which counts against it.
    pub(super) fn note_failed(&mut self, version: Step, generation: Generation) {
        if let Some(failed) = self.failed.get_mut(&version) {
            failed.plans.insert(generation);
        }
    }

    /// A member came back, with its disk: what could not be read may be there.
    pub(super) fn forgive(&mut self) {
        self.failed.values_mut().for_each(|failed| failed.plans.clear());
    }

    /// Checkpoints that are not to be gone back to.
    pub(super) fn bad_checkpoints(&self) -> BTreeSet<Step> {
        let is_hasty = mutant::is(Mutant::M61GivenUpAtOnce);
        let plans_max = if is_hasty { 1 } else { PLANS_FAILED_MAX };
        let is_bad = |failed: &FailedReads| failed.plans.len() >= plans_max;
        let bad = self.failed.iter().filter(|(_, failed)| is_bad(failed));
        bad.map(|(version, _)| *version).collect()
    }

    /// The versions that the run can go back to, the newest first.
    pub(super) fn versions_left(&self, state: &State) -> impl Iterator<Item = Step> {
        let open = state.open_turn().step;
        let base = state.history().base();
        let bad = self.bad_checkpoints();
        let is_usable =
            move |version: &Step| (base..=open).contains(version) && !bad.contains(version);
        let versions = state.checkpoints().iter().rev().map(|checkpoint| checkpoint.version);
        versions.filter(is_usable).chain((base == Step(0)).then_some(Step(0)))
    }

    /// A checkpoint that is written anew can be read. Once a plan runs nothing is missed: what its layers
    /// came from could be read, and the time in which it runs is none in which another checkpoint was
    /// waited for.
    pub(super) fn on_applied(&mut self, entry: &Entry) {
        match entry {
            Entry::Checkpoint { version } => {
                self.failed.remove(version);
            }
            // An operator who lets a halted run go on may have repaired a checkpoint, and versions of another
            // run are other ones.
            Entry::Resume { .. } | Entry::Job(JobChange::Continue | JobChange::Start(_)) => {
                self.failed.clear();
            }
            Entry::Members(_)
            | Entry::Adopt(_)
            | Entry::Ready(_)
            | Entry::Seal(_)
            | Entry::Durable { .. }
            | Entry::Keep { .. }
            | Entry::Rewind { .. }
            | Entry::Job(_)
            | Entry::Access(_)
            | Entry::Format(_) => {}
        }
    }
}
