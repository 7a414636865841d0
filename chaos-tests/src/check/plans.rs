//! S4: there is one plan of a generation, and everybody runs it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use zbelastic_consensus::plan::PlanRecord;
use zbelastic_consensus::validation::Turn;
use zbelastic_trainer::plan::Plan;
use zbelastic_types::Generation;

use super::FirstFailure;
use crate::failure::Invariant;
use crate::queue::VirtualTime;

/// The plans that were agreed on, and how far each came.
#[derive(Default)]
pub(super) struct PlanChecker {
    plans: BTreeMap<Generation, Arc<PlanRecord>>,
    /// Plans that were begun to load, and when.
    adopted: BTreeMap<Generation, VirtualTime>,
    resumed: BTreeSet<Generation>,
}

impl PlanChecker {
    /// S4: a plan was agreed on, the only one of its generation.
    pub(super) fn planned(&mut self, failure: &mut FirstFailure, plan: &Arc<PlanRecord>) {
        let generation = plan.generation;
        let before = self.plans.insert(generation, plan.clone());
        if before.is_some_and(|before| before != *plan) {
            failure.set(Invariant::S4, || format!("two plans of generation {generation}"));
        }
    }

    /// A plan was agreed on, and is loaded from now on.
    pub(super) fn adopted(
        &mut self,
        failure: &mut FirstFailure,
        plan: &Arc<PlanRecord>,
        now: VirtualTime,
    ) {
        self.planned(failure, plan);
        self.adopted.insert(plan.generation, now);
    }

    /// A plan runs. Yields it, and when it was adopted.
    pub(super) fn resumed(
        &mut self,
        generation: Generation,
    ) -> Option<(Arc<PlanRecord>, VirtualTime)> {
        self.resumed.insert(generation);
        let plan = self.plans.get(&generation).zip(self.adopted.get(&generation));
        plan.map(|(plan, since)| (plan.clone(), *since))
    }

    /// S4: a turn is sealed while its plan runs.
    pub(super) fn check_sealed(&self, failure: &mut FirstFailure, turn: Turn) {
        if self.was_loading(turn.generation) {
            failure.set(Invariant::S4, || format!("{turn} is sealed, and its plan does not run"));
        }
    }

    /// S4: a runtime runs the program of its generation.
    pub(super) fn runs(&self, failure: &mut FirstFailure, record: &PlanRecord, plan: &Plan) {
        let generation = record.generation;
        let Some(known) = self.plans.get(&generation) else {
            failure.set(Invariant::S4, || format!("generation {generation} was never agreed on"));
            return;
        };
        if known.program != plan.program || known.chunks != plan.chunks {
            failure.set(Invariant::S4, || {
                format!("another program is run than that of generation {generation}")
            });
        }
    }

    /// The plan that was loaded before this one.
    pub(super) fn plan_before(&self, plan: &PlanRecord) -> Option<Arc<PlanRecord>> {
        let (before, _) = self.adopted.range(..plan.generation).next_back()?;
        self.plans.get(before).cloned()
    }

    /// The last plan that was begun to load.
    pub(super) fn newest(&self) -> Option<Generation> {
        self.adopted.last_key_value().map(|(generation, _)| *generation)
    }

    /// Whether a plan was never resumed.
    pub(super) fn was_loading(&self, generation: Generation) -> bool {
        !self.resumed.contains(&generation)
    }
}
