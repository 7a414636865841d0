//! Answers that a leader awaits from members, and their progress (rule R10): an answer is waited
//! for as long as the member makes some progress, however long that takes, and no longer.

use std::fmt;

use zbelastic_types::NodeId;

use super::Duties;
use crate::member::{Holder, LossReason};
use crate::mutant::{self, Mutant};
use crate::state::{PlanPhase, State};

/// An answer that a leader waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AwaitedAnswer {
    /// Which layers the worker holds.
    Inventory,
    /// That the layers of its stage and copies are there.
    Ready,
}

impl fmt::Display for AwaitedAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Inventory => write!(f, "has not said which layers it holds"),
            Self::Ready => write!(f, "has not loaded its layers"),
        }
    }
}

/// A member that a leader awaits an answer from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AwaitedMember {
    /// The member that has to answer.
    pub node: NodeId,
    /// The answer that the leader waits for.
    pub answer: AwaitedAnswer,
    /// Ticks since its last progress, or since the wait began if that is later.
    pub still_ticks: u32,
}

impl fmt::Display for AwaitedMember {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { node, answer, still_ticks } = self;
        write!(f, "node {node}: {answer}, its last progress was {still_ticks} ticks ago")
    }
}

/// An awaited answer, and since when: the begin of the wait, or the last progress seen.
struct OutstandingAnswer {
    holder: Holder,
    answer: AwaitedAnswer,
    since: u64,
}

impl Duties {
    /// The members that have to answer.
    #[must_use]
    pub fn awaited_members(&self, state: &State) -> Vec<AwaitedMember> {
        let awaited = |OutstandingAnswer { holder, answer, since }| {
            let still_ticks = (self.watch.now - since) as u32;
            AwaitedMember { node: holder.node, answer, still_ticks }
        };
        self.outstanding_answers(state).into_iter().map(awaited).collect()
    }

    /// R10: members that have to answer and make no progress.
    pub(super) fn without_progress(&self, state: &State) -> Vec<(Holder, LossReason)> {
        let lost = self.outstanding_answers(state).into_iter().filter_map(
            |OutstandingAnswer { holder, since, .. }| {
                let ticks = (self.watch.now - since) as u32;
                let is_lost = ticks > self.watch.timing.progress_ticks && state.is_live(holder);
                is_lost.then_some((holder, LossReason::NoProgress { ticks }))
            },
        );
        lost.collect()
    }

    fn outstanding_answers(&self, state: &State) -> Vec<OutstandingAnswer> {
        if state.running_spec().is_none() {
            return Vec::new();
        }
        let outstanding = |holder: Holder, answer, requested_at: u64| {
            let since = requested_at.max(self.watch.heartbeats.progress_at(holder.node));
            OutstandingAnswer { holder, answer, since }
        };
        if let Some(draft) = &self.planning.draft {
            let missing = draft.missing();
            return missing
                .map(|holder| outstanding(holder, AwaitedAnswer::Inventory, draft.since))
                .collect();
        }
        let is_limited = !mutant::is(Mutant::M21WaitsForTheDead);
        let loading = state.plan().filter(|_| !self.planning.faults.has_trouble() && is_limited);
        let Some((plan, PlanPhase::Loading(slots))) = loading.map(|plan| (plan, &plan.phase))
        else {
            return Vec::new();
        };
        let holders = plan.record.stage_indices().zip(&plan.record.stages);
        let awaited = holders.filter(|(stage, holder)| {
            slots[stage.index()].is_none() && !self.loads.has_answered(*stage, **holder)
        });
        awaited
            .map(|(_, holder)| outstanding(*holder, AwaitedAnswer::Ready, self.watch.progress_at))
            .collect()
    }
}
