//! A plan under way: the reason it was begun for, from which workers an inventory was requested,
//! and their answers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use zbelastic_schedule::Window;
use zbelastic_types::{Generation, LayerId, NodeId, Step};

use super::blame::Blame;
use super::faults::{PlanFaults, UnreadCheckpoints};
use super::measurement::MeasuredSpeeds;
use super::planning::PlanNeed;
use super::{PlanSolution, PlanUnsolvable};
use crate::member::Holder;
use crate::message::HeldLayer;
use crate::plan::PlanReason;
use crate::pre_copy::PreCopyPlan;
use crate::state::State;

/// The circumstances that a plan under way was begun for. If they have changed, the plan is begun
/// anew.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PlanBasis {
    pub(super) generation: Generation,
    pub(super) workers: BTreeSet<Holder>,
    pub(super) is_now: bool,
    /// Workers that are about to go, for a plan that can wait for another.
    pub(super) draining: BTreeSet<Holder>,
    /// The open step, for a plan that begins with it.
    pub(super) open: Option<Step>,
    pub(super) window: Option<Window>,
    /// The drift that the plan in force does not fit, for one that is to fit it.
    pub(super) drift: Option<PlanReason>,
}

impl PlanBasis {
    /// Whether it is for workers that have no stage yet, and for nothing else.
    fn is_for_spares(&self) -> bool {
        let has_more = !self.draining.is_empty() || self.window.is_some() || self.drift.is_some();
        !self.is_now && !has_more
    }
}

/// A plan under way.
#[derive(Debug)]
pub(super) struct PlanDraft {
    pub(super) number: u64,
    pub(super) since: u64,
    pub(super) basis: PlanBasis,
    pub(super) nodes: Vec<Holder>,
    pub(super) inventory_request: Option<u64>,
    pub(super) inventory: BTreeMap<NodeId, Vec<HeldLayer>>,
    pub(super) solution: Option<Result<PlanSolution, PlanUnsolvable>>,
    pub(super) pre_copy: Option<PreCopyProgress>,
}

/// The copies ahead of a plan under way.
#[derive(Debug)]
pub(super) struct PreCopyProgress {
    pub(super) since: u64,
    /// Workers, each with a layer that it reported to follow.
    pub(super) following: BTreeSet<(Holder, LayerId)>,
    /// Workers that have reported: a layer that a report leaves out will not be followed there.
    pub(super) reported: BTreeSet<Holder>,
}

/// That the cluster does not train because a plan is missing.
#[derive(Debug)]
pub(super) struct PlanStandstill {
    pub(super) since: u64,
    /// Workers that were present when it began.
    pub(super) workers: BTreeSet<Holder>,
}

impl PlanDraft {
    /// Whether the basis of the draft still holds. A cluster that has not trained for long lets
    /// workers come and go that have no stage in it. The inventories of those that come are
    /// requested: one that was declared lost and comes back may hold what no other does (rule R9).
    pub(super) fn is_still_valid(&mut self, now: &PlanBasis, is_late: bool) -> bool {
        let has_all = self.nodes.iter().all(|holder| now.workers.contains(holder));
        if is_late && has_all && self.basis.workers != now.workers {
            let gone = self.basis.workers.difference(&now.workers);
            gone.for_each(|holder| drop(self.inventory.remove(&holder.node)));
            self.basis.workers.clone_from(&now.workers);
        }
        self.basis == *now
    }

    /// The nodes that a solution assigns to stages come first from here on, in the order of their
    /// stages. A plan for more nodes than were offered is refused when it is checked.
    fn order_by_stage(&mut self, solution: PlanSolution) -> Result<PlanSolution, PlanUnsolvable> {
        let nodes = self.nodes.len();
        let stage_count = solution.program.placement.stage_count() as usize;
        let is_once =
            BTreeSet::from_iter(&solution.stage_nodes).len() == solution.stage_nodes.len();
        if !is_once || solution.stage_nodes.len() != stage_count {
            let reason = format!("seats {:?} for {stage_count} stages", solution.stage_nodes);
            return Err(PlanUnsolvable { nodes, reason });
        }
        let assigned = solution.stage_nodes.iter().copied().filter(|at| *at < nodes);
        let others = (0..nodes).filter(|at| !solution.stage_nodes.contains(at));
        self.nodes = assigned.chain(others).map(|at| self.nodes[at]).collect();
        Ok(solution)
    }

    /// Whether inventories were requested, and all workers have answered.
    pub(super) fn has_all_inventories(&self) -> bool {
        self.inventory_request.is_some() && self.basis.is_now && self.missing().next().is_none()
    }

    /// Workers that were requested an inventory, and have not answered.
    pub(super) fn missing(&self) -> impl Iterator<Item = Holder> + '_ {
        let is_requested = self.inventory_request.is_some() && self.basis.is_now;
        let is_missing = |holder: &&Holder| !self.inventory.contains_key(&holder.node);
        self.basis.workers.iter().filter(move |_| is_requested).filter(is_missing).copied()
    }
}

/// The plan under way, if there is one, and the inputs of the next one.
#[derive(Debug, Default)]
pub(super) struct Planning {
    pub(super) number: u64,
    pub(super) draft: Option<PlanDraft>,
    pub(super) standstill: Option<PlanStandstill>,
    /// The basis for which no better plan was found.
    pub(super) last_basis: Option<PlanBasis>,
    /// The workers that are there, if those without a stage were found to be of no use: other needs
    /// are looked at then.
    unused: Option<BTreeSet<Holder>>,
    /// The layers to copy ahead. It outlives the draft it was made for, because the next one mostly
    /// needs the same.
    pub(super) pre_copy: Option<Arc<PreCopyPlan>>,
    pub(super) measured: MeasuredSpeeds,
    pub(super) faults: PlanFaults,
    pub(super) unread: UnreadCheckpoints,
    pub(super) blame: Blame,
}

impl Planning {
    pub(super) fn on_plan_changed(&mut self) {
        self.draft = None;
        self.last_basis = None;
        self.unused = None;
        self.standstill = None;
        self.pre_copy = None;
    }

    pub(super) fn note_need(&mut self, state: &State, need: Option<&PlanNeed>, now: u64) {
        match need {
            Some(PlanNeed::Planned(_)) => {}
            Some(PlanNeed::Now(_)) | None => self.pre_copy = None,
        }
        match need {
            Some(PlanNeed::Now(_)) => {
                let workers = || state.live_workers().map(|(holder, _)| holder).collect();
                let begun = || PlanStandstill { since: now, workers: workers() };
                self.standstill.get_or_insert_with(begun);
            }
            Some(PlanNeed::Planned(_)) | None => self.standstill = None,
        }
    }

    /// No plan better than the one in force was found, and nothing will be as things stand.
    pub(super) fn settle(&mut self) {
        self.last_basis = self.draft.take().map(|draft| draft.basis);
        if let Some(basis) = self.last_basis.as_ref().filter(|basis| basis.is_for_spares()) {
            self.unused = Some(basis.workers.clone());
        }
        self.pre_copy = None;
    }

    /// Whether a plan with all workers that are there was looked for, and was the one in force.
    pub(super) fn has_no_use_for_spares(&self, state: &State) -> bool {
        let is_there = |workers: &BTreeSet<Holder>| {
            let live = || state.live_workers().map(|(holder, _)| holder);
            live().count() == workers.len() && live().all(|holder| workers.contains(&holder))
        };
        self.unused.as_ref().is_some_and(is_there)
    }

    /// Whether the inventory of this node was requested, and is not answered.
    pub(super) fn requests_inventory_of(&self, node: NodeId) -> bool {
        self.draft.iter().flat_map(PlanDraft::missing).any(|holder| holder.node == node)
    }

    pub(super) fn handle_inventory(
        &mut self,
        holder: Holder,
        index: u64,
        layers: Vec<HeldLayer>,
    ) -> bool {
        let Some(draft) = &mut self.draft else { return false };
        let is_requested =
            draft.inventory_request.is_some_and(|requested_at| index >= requested_at)
                && draft.basis.workers.contains(&holder);
        if is_requested {
            draft.inventory.insert(holder.node, layers);
        }
        is_requested
    }

    /// A worker reported which layers it follows. Yields whether that is waited for.
    pub(super) fn handle_following(&mut self, holder: Holder, layers: &[LayerId]) -> bool {
        let Some(progress) = self.draft.as_mut().and_then(|d| d.pre_copy.as_mut()) else {
            return false;
        };
        let Some(pre_copy) = &self.pre_copy else { return false };
        let followed: BTreeSet<_> = pre_copy.followed_by(holder).map(|f| f.layer).collect();
        let known = layers.iter().filter(|layer| followed.contains(layer));
        progress.following.extend(known.map(|layer| (holder, *layer)));
        if !followed.is_empty() {
            progress.reported.insert(holder);
        }
        !followed.is_empty()
    }

    pub(super) fn handle_solution(
        &mut self,
        number: u64,
        solution: Result<PlanSolution, PlanUnsolvable>,
    ) -> bool {
        match &mut self.draft {
            Some(draft) if draft.number == number => {
                draft.solution = Some(solution.and_then(|solution| draft.order_by_stage(solution)));
                true
            }
            Some(_) | None => false,
        }
    }
}
