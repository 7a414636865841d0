//! S4: there is one plan of a generation, and everybody runs it.

use std::sync::Arc;

use zbelastic_consensus::plan::PlanRecord;
use zbelastic_trainer::plan::Plan;
use zbelastic_types::Generation;

use super::InvariantChecker;
use crate::failure::Invariant;

impl InvariantChecker {
    pub(super) fn planned(&mut self, plan: &Arc<PlanRecord>) {
        let generation = plan.generation;
        let before = self.plans.insert(generation, plan.clone());
        if before.is_some_and(|before| before != *plan) {
            self.fail(Invariant::S4, || format!("two plans of generation {generation}"));
        }
    }

    /// A runtime runs a program.
    pub fn runs(&mut self, record: &PlanRecord, plan: &Plan) {
        let generation = record.generation;
        let Some(known) = self.plans.get(&generation) else {
            self.fail(Invariant::S4, || format!("generation {generation} was never agreed on"));
            return;
        };
        if known.program != plan.program || known.chunks != plan.chunks {
            self.fail(Invariant::S4, || {
                format!("another program is run than that of generation {generation}")
            });
        }
    }

    /// The plan that was loaded before this one.
    #[must_use]
    pub fn plan_before(&self, plan: &PlanRecord) -> Option<Arc<PlanRecord>> {
        let (before, _) = self.adopted.range(..plan.generation).next_back()?;
        self.plans.get(before).cloned()
    }

    /// Whether a plan was never resumed.
    #[must_use]
    pub fn was_loading(&self, generation: Generation) -> bool {
        !self.resumed.contains(&generation)
    }
}
