//! A plan under way: what it was begun for, who was asked, and what was answered.

use std::collections::{BTreeMap, BTreeSet};

use zbelastic_schedule::Window;
use zbelastic_types::{Generation, NodeId, Step};

use super::planning::Need;
use super::{Solution, Unsolvable};
use crate::member::Holder;
use crate::message::HeldLayer;
use crate::state::State;

/// What a plan under way was begun for. If it is not so any more, the plan is begun anew.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Basis {
    pub(super) generation: Generation,
    pub(super) workers: BTreeSet<Holder>,
    pub(super) is_now: bool,
    /// The open step, for a plan that begins with it.
    pub(super) open: Option<Step>,
    pub(super) window: Option<Window>,
}

/// A plan under way.
#[derive(Debug)]
pub(super) struct Draft {
    pub(super) number: u64,
    pub(super) since: u64,
    pub(super) basis: Basis,
    pub(super) nodes: Vec<Holder>,
    pub(super) asked: Option<u64>,
    pub(super) inventory: BTreeMap<NodeId, Vec<HeldLayer>>,
    pub(super) solution: Option<Result<Solution, Unsolvable>>,
}

/// That the cluster stands still for want of a plan.
#[derive(Debug)]
pub(super) struct Standstill {
    pub(super) since: u64,
    /// Who was there when it began.
    pub(super) workers: BTreeSet<Holder>,
}

impl Draft {
    /// Whether what it was begun for is so still. A cluster that has stood still for long lets
    /// those come and go who have no stage in it.
    pub(super) fn goes_on(&mut self, now: &Basis, is_late: bool) -> bool {
        let has_all = self.nodes.iter().all(|holder| now.workers.contains(holder));
        if is_late && has_all && self.basis.workers != now.workers {
            self.basis.workers.retain(|holder| now.workers.contains(holder));
            let workers = &self.basis.workers;
            self.inventory.retain(|node, _| workers.iter().any(|holder| holder.node == *node));
            let workers = self.basis.workers.clone();
            return self.basis == Basis { workers, ..now.clone() };
        }
        self.basis == *now
    }

    pub(super) fn asks(&self, node: NodeId) -> bool {
        let is_counted = self.basis.workers.iter().any(|holder| holder.node == node);
        let is_missing = is_counted && !self.inventory.contains_key(&node);
        self.asked.is_some() && self.basis.is_now && is_missing
    }
}

/// The plan under way, if there is one.
#[derive(Debug, Default)]
pub(super) struct Planning {
    pub(super) number: u64,
    pub(super) draft: Option<Draft>,
    pub(super) standstill: Option<Standstill>,
    /// What no better plan was found for.
    pub(super) settled: Option<Basis>,
}

impl Planning {
    pub(super) fn on_plan_changed(&mut self) {
        self.draft = None;
        self.settled = None;
        self.standstill = None;
    }

    pub(super) fn note_need(&mut self, state: &State, need: Option<&Need>, now: u64) {
        match need {
            Some(Need::Now(_)) => {
                let workers = || state.live_workers().map(|(holder, _)| holder).collect();
                let begun = || Standstill { since: now, workers: workers() };
                self.standstill.get_or_insert_with(begun);
            }
            Some(Need::Planned(_)) | None => self.standstill = None,
        }
    }

    /// Nothing better than what there is was found, and nothing will be as things stand.
    pub(super) fn settle(&mut self) {
        self.settled = self.draft.take().map(|draft| draft.basis);
    }

    /// Whether this node is asked what it holds, and has not answered.
    pub(super) fn asks_inventory_of(&self, node: NodeId) -> bool {
        self.draft.as_ref().is_some_and(|draft| draft.asks(node))
    }

    pub(super) fn handle_inventory(
        &mut self,
        holder: Holder,
        index: u64,
        layers: Vec<HeldLayer>,
    ) -> bool {
        let Some(draft) = &mut self.draft else { return false };
        let is_asked = draft.asked.is_some_and(|asked| index >= asked)
            && draft.basis.workers.contains(&holder);
        if is_asked {
            draft.inventory.insert(holder.node, layers);
        }
        is_asked
    }

    pub(super) fn handle_solution(
        &mut self,
        number: u64,
        solution: Result<Solution, Unsolvable>,
    ) -> bool {
        match &mut self.draft {
            Some(draft) if draft.number == number => {
                draft.solution = Some(solution);
                true
            }
            Some(_) | None => false,
        }
    }
}
