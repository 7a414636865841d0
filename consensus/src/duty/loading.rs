//! The reports of the holders of a plan that loads.

use std::collections::{BTreeMap, BTreeSet};

use zbelastic_types::{Generation, StageIndex};

use super::watch::{DutyWatch, ProposalLane};
use crate::entry::{Entry, ReadyRecord};
use crate::member::Holder;
use crate::state::{PlanPhase, State};

/// The reports of holders that load their layers.
#[derive(Debug, Default)]
pub(super) struct LoadReports {
    ready: BTreeMap<StageIndex, ReadyRecord>,
    /// The holders that reported, of the plan that loads, that a layer does not come.
    failed: BTreeSet<Holder>,
}

impl LoadReports {
    pub(super) fn note_ready(&mut self, stage: StageIndex, ready: ReadyRecord) {
        self.ready.insert(stage, ready);
    }

    pub(super) fn note_failed(&mut self, holder: Holder) {
        self.failed.insert(holder);
    }

    /// Whether the holder of a stage reported that its layers are there, or that one does not come:
    /// it cannot make progress by itself then.
    pub(super) fn has_answered(&self, stage: StageIndex, holder: Holder) -> bool {
        self.ready.contains_key(&stage) || self.failed.contains(&holder)
    }

    /// Forgets a report that was refused: it would be refused again. The worker may resend it.
    pub(super) fn forget_refused(&mut self, refused: &ReadyRecord) {
        self.ready.retain(|_, ready| ready != refused);
    }

    /// Forgets which layers do not come: there is another plan.
    pub(super) fn forget_failed(&mut self) {
        self.failed.clear();
    }

    /// Forgets which holders are ready: two holders loaded different bits.
    pub(super) fn forget_ready(&mut self) {
        self.ready.clear();
    }

    /// Forgets which holders are ready for another plan than that in force.
    pub(super) fn retain_ready(&mut self, generation: Generation) {
        self.ready.retain(|_, ready| ready.generation == generation);
    }

    /// That a holder is ready; or once all are and the plan is `sound`, that its program runs.
    pub(super) fn decide(&self, state: &State, watch: &DutyWatch, is_sound: bool) -> Option<Entry> {
        let slots = match &state.plan()?.phase {
            PlanPhase::Loading(slots) => slots,
            PlanPhase::Running | PlanPhase::Closed => return None,
        };
        let generation = state.generation();
        let is_new = |(stage, ready): &(&StageIndex, &ReadyRecord)| {
            ready.generation == generation
                && slots[stage.index()].is_none()
                && !watch.is_in_flight(ProposalLane::Ready(generation, ready.holder.node))
        };
        if let Some((_, ready)) = self.ready.iter().find(is_new) {
            return Some(Entry::Ready(ready.clone()));
        }
        let is_complete = slots.iter().all(Option::is_some) && state.lost_holder().is_none();
        let is_free = !watch.is_in_flight(ProposalLane::Plan) && is_sound;
        (is_complete && is_free).then_some(Entry::Resume { generation })
    }
}
