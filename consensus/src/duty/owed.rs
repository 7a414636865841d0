//! Answers that members owe, and whether they get on with them (rule R10): an answer is waited for
//! as long as the member that owes it does some work, however long that takes, and no longer.

use std::fmt;

use zbelastic_types::NodeId;

use super::Duties;
use crate::member::{Holder, LossReason};
use crate::mutant::{self, Mutant};
use crate::state::{PlanPhase, State};

/// An answer that a leader waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owed {
    /// Which layers the worker holds.
    Inventory,
    /// That the layers of its stage and copies are there.
    Ready,
}

impl fmt::Display for Owed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Inventory => write!(f, "has not said which layers it holds"),
            Self::Ready => write!(f, "has not loaded its layers"),
        }
    }
}

/// A member whose answer a leader waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Awaited {
    /// The member that owes the answer.
    pub node: NodeId,
    /// The answer that it owes.
    pub owed: Owed,
    /// Ticks since its last progress, or since the wait began if that is later.
    pub still_ticks: u32,
}

impl fmt::Display for Awaited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { node, owed, still_ticks } = self;
        write!(f, "node {node}: {owed}, its last progress was {still_ticks} ticks ago")
    }
}

/// An answer that is owed, and since when: the begin of the wait, or the last progress seen.
struct Debt {
    holder: Holder,
    owed: Owed,
    since: u64,
}

impl Duties {
    /// The members whose answers are waited for.
    #[must_use]
    pub fn awaited(&self, state: &State) -> Vec<Awaited> {
        let awaited = |Debt { holder, owed, since }| {
            let still_ticks = (self.now - since) as u32;
            Awaited { node: holder.node, owed, still_ticks }
        };
        self.debts(state).into_iter().map(awaited).collect()
    }

    /// R10: members that owe an answer and get no further.
    pub(super) fn without_progress(&self, state: &State) -> Vec<(Holder, LossReason)> {
        let lost = self.debts(state).into_iter().filter_map(|Debt { holder, since, .. }| {
            let ticks = (self.now - since) as u32;
            let is_lost = ticks > self.timing.progress_ticks && state.is_live(holder);
            is_lost.then_some((holder, LossReason::NoProgress { ticks }))
        });
        lost.collect()
    }

    /// Whether none of these was seen to get on for so long that nothing is to be expected of them.
    pub(super) fn stand_still(&self, nodes: impl IntoIterator<Item = NodeId>) -> bool {
        let ticks_max = u64::from(self.timing.progress_ticks);
        let stands = |node| self.now - self.watch.progress_at(node) > ticks_max;
        nodes.into_iter().all(stands)
    }

    fn debts(&self, state: &State) -> Vec<Debt> {
        if state.running_spec().is_none() {
            return Vec::new();
        }
        let debt = |holder: Holder, owed, asked_at: u64| {
            let since = asked_at.max(self.watch.progress_at(holder.node));
            Debt { holder, owed, since }
        };
        if let Some(draft) = &self.planning.draft {
            let missing = draft.missing();
            return missing.map(|holder| debt(holder, Owed::Inventory, draft.since)).collect();
        }
        let is_limited = !mutant::is(Mutant::M21WaitsForTheDead);
        let loading = state.plan().filter(|_| self.trouble.is_none() && is_limited);
        let Some((plan, PlanPhase::Loading(slots))) = loading.map(|plan| (plan, &plan.phase))
        else {
            return Vec::new();
        };
        let holders = plan.record.stage_indices().zip(&plan.record.stages);
        // A holder that reported that a layer does not come has answered: it cannot get on by itself.
        let owes = holders.filter(|(stage, holder)| {
            let is_heard = self.ready.contains_key(stage) || self.complained.contains(holder);
            slots[stage.index()].is_none() && !is_heard
        });
        owes.map(|(_, holder)| debt(*holder, Owed::Ready, self.moved)).collect()
    }
}
