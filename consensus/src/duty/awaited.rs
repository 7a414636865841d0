//! Answers that a leader awaits from members, and their progress (rule R10): an answer is waited
//! for as long as the member makes some progress, however long that takes, and no longer.

use std::fmt;

use zbelastic_types::NodeId;

use super::Duties;
use super::returns::AwaitedReturn;
use crate::member::{Holder, LossReason};
use crate::mutant::{self, Mutant};
use crate::state::{PlanPhase, State};
use crate::tick::Ticks;

/// An answer that a leader waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AwaitedAnswer {
    /// Which layers the worker holds.
    Inventory,
    /// That the layers of its stage and copies are there.
    Ready,
}

impl AwaitedAnswer {
    /// What members did not do yet.
    fn undone(self) -> &'static str {
        match self {
            Self::Inventory => "did not report yet which layers they hold",
            Self::Ready => "did not load their layers yet",
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

/// Members that one line names; of more it says how many.
pub(super) const NAMED_MAX: usize = 8;
/// A stillness that is worth a word: a second, in which a healthy member makes progress many times.
const STILL_TICKS: u32 = 100;

/// Members that a leader awaits answers from, as a line says it, each as the function describes it.
pub struct AwaitedMembers<'a>(pub &'a [AwaitedMember], pub &'a dyn Fn(NodeId) -> String);

impl fmt::Display for AwaitedMembers<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for answer in [AwaitedAnswer::Inventory, AwaitedAnswer::Ready] {
            let members = self.0.iter().filter(|awaited| awaited.answer == answer);
            let members: Vec<&AwaitedMember> = members.collect();
            let Some(still) = members.iter().map(|awaited| awaited.still_ticks).max() else {
                continue;
            };
            let nodes: Vec<String> =
                members.iter().take(NAMED_MAX).map(|it| (self.1)(it.node)).collect();
            write!(f, "; waiting for nodes that {}: {}", answer.undone(), nodes.join(", "))?;
            if members.len() > NAMED_MAX {
                write!(f, " and {} more", members.len() - NAMED_MAX)?;
            }
            if still >= STILL_TICKS {
                write!(f, " (no progress for {})", Ticks(still))?;
            }
        }
        Ok(())
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

    /// The members that may come back, and are waited for before the run goes back.
    #[must_use]
    pub fn awaited_returns(&self, state: &State) -> Vec<AwaitedReturn> {
        self.planning.awaited_returns(state, &self.watch)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn awaited(node: u64, answer: AwaitedAnswer, still_ticks: u32) -> AwaitedMember {
        AwaitedMember { node: NodeId(node), answer, still_ticks }
    }

    #[test]
    fn members_that_owe_the_same_are_named_together() {
        let members = [
            awaited(2, AwaitedAnswer::Ready, 3),
            awaited(3, AwaitedAnswer::Inventory, 120),
            awaited(4, AwaitedAnswer::Ready, 5),
        ];
        assert_eq!(
            AwaitedMembers(&members, &|node| node.to_string()).to_string(),
            "; waiting for nodes that did not report yet which layers they hold: 3 (no progress \
             for 1.2 s); waiting for nodes that did not load their layers yet: 2, 4"
        );
        assert_eq!(AwaitedMembers(&[], &|node| node.to_string()).to_string(), "");
    }

    #[test]
    fn of_many_members_a_line_names_the_first() {
        let members: Vec<AwaitedMember> =
            (1..=32).map(|node| awaited(node, AwaitedAnswer::Ready, 0)).collect();
        let text = AwaitedMembers(&members, &|node| node.to_string()).to_string();
        assert!(text.ends_with(": 1, 2, 3, 4, 5, 6, 7, 8 and 24 more"), "{text}");
    }
}
