//! When a plan is needed, and the way to it: request the workers' inventories, request a plan,
//! propose it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use zbelastic_schedule::Window;
use zbelastic_types::{Digest, LayerId, NodeId, Step};

use super::draft::{PlanBasis, PlanDraft, PlanStandstill, Planning, PreCopyProgress};
use super::in_force::plan_in_force;
use super::restore::{
    LayerInventory, RestorePoint, expected_digests, missing_layers, restore_point,
};
use super::returns::AwaitedReturn;
use super::seating::{reseated, seating};
use super::watch::{DutyWatch, ProposalLane};
use super::window::window_need;
use super::{LeaderAction, NoPlan, PlanSolution, SolveRequest};
use crate::entry::{Entry, RewindReason};
use crate::job::{HaltReason, JobChange, JobSpec, WindowPolicy};
use crate::member::{Holder, LossReason, Member, MembershipStatus};
use crate::mutant::{self, Mutant};
use crate::plan::{LayerSource, PlanReason, PlanRecord, Promise, SOURCES_MAX};
use crate::pre_copy::{FollowedLayer, PreCopyPlan};
use crate::raft::ENTRY_BYTES_MAX;
use crate::state::{PlanPhase, State};

/// Steps between a planned change's proposal and its first one: the step under way is finished,
/// and one more, so that nothing that ran ahead crosses the change.
const PLANNED_AHEAD: u64 = 2;

/// How many times longer than for inventories a cluster that does not train waits for workers that
/// come and go, before it goes on with those that were there when it began. Nothing that a worker
/// holds is given up for it.
const PATIENCE: u32 = 4;

/// Why and when a plan is needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanNeed {
    /// At once: the step under way cannot be finished.
    Now(PlanReason),
    /// At a later step: the one under way is finished.
    Planned(PlanReason),
}

impl Planning {
    /// Why a plan is needed, if one is.
    pub(super) fn need(&self, state: &State, watch: &DutyWatch) -> Option<PlanNeed> {
        state.running_spec()?;
        let Some(plan) = state.plan() else { return Some(PlanNeed::Now(PlanReason::First)) };
        if plan.phase == PlanPhase::Closed {
            return Some(PlanNeed::Now(PlanReason::Rewound));
        }
        if let Some(holder) = state.lost_holder() {
            let member = state.members().get(&holder.node);
            let reason = match member.map(|member| member.status) {
                Some(MembershipStatus::Lost(reason)) => reason,
                Some(MembershipStatus::Present | MembershipStatus::Draining) | None => {
                    LossReason::Superseded
                }
            };
            return Some(PlanNeed::Now(PlanReason::Lost { holder, reason }));
        }
        let generation = plan.record.generation;
        if let Some(reason) = self.faults.trouble(generation) {
            return Some(PlanNeed::Now(reason.clone()));
        }
        // R10. Behind the last step, the workers that load the plan that follows write the last
        // checkpoint, or write it once more.
        let progress =
            plan.record.stages.iter().map(|holder| watch.heartbeats.progress_at(holder.node));
        let ticks = (watch.now - progress.fold(watch.progress_at, u64::max)) as u32;
        if ticks > watch.timing.progress_ticks {
            return Some(PlanNeed::Now(PlanReason::Stalled { ticks }));
        }
        let is_all_sealed = state.training().is_all_sealed();
        if plan.phase != PlanPhase::Running || state.next_plan().is_some() || is_all_sealed {
            return None;
        }
        self.planned_need(state, watch, &plan.record).map(PlanNeed::Planned)
    }

    fn planned_need(
        &self,
        state: &State,
        watch: &DutyWatch,
        plan: &PlanRecord,
    ) -> Option<PlanReason> {
        let spec = state.running_spec()?;
        // There is no worker to plan with: the state that is held is saved.
        if state.is_left_alone() {
            return None;
        }
        let draining = state.training().plans().draining_holders(state.membership());
        let spare = spare_workers(state, plan).count() as u32;
        let has_others = spare > 0 || plan.stages.len() as u32 > draining;
        if draining > 0 && has_others {
            return Some(PlanReason::Draining { count: draining });
        }
        let has_room = (plan.stages.len() as u32) < spec.stages_max;
        let is_settled = watch.now - watch.members_changed >= u64::from(spec.settle_ticks);
        let is_of_use = spare > 0 && has_room && !self.has_no_use_for_spares(state);
        if is_of_use && is_settled {
            return Some(PlanReason::Joined { count: spare });
        }
        if let Some(reason) = self.measured.drift(plan.generation) {
            return Some(reason.clone());
        }
        let is_uneven = plan.program.placement.is_table() && is_settled;
        window_need(state, watch, plan).or(is_uneven.then_some(PlanReason::Uneven))
    }

    /// The next thing to do for the plan that is needed, if one is.
    pub(super) fn decide(&mut self, state: &State, watch: &DutyWatch) -> Option<LeaderAction> {
        let need = self.need(state, watch);
        self.note_need(state, need.as_ref(), watch.now);
        let need = need?;
        let basis = basis_of(state, &need);
        if self.last_basis.as_ref() == Some(&basis) {
            return None;
        }
        let is_late = self.long_standstill(watch).is_some();
        let draft = self.draft.as_mut();
        if draft.is_none_or(|draft| !draft.is_still_valid(&basis, is_late)) {
            return self.begin_draft(state, watch, (&need, basis));
        }
        self.continue_draft(state, watch, need)
    }

    /// If two holders have different states of a layer, neither is believed: back to a checkpoint.
    pub(super) fn decide_rewind(&self, state: &State, watch: &DutyWatch) -> Option<Entry> {
        let generation = state.generation();
        let layer = self.faults.differing(generation)?;
        state.running_spec()?;
        if watch.is_in_flight(ProposalLane::Job) || watch.is_completing() {
            return None;
        }
        let Some(to) = self.unread.versions_left(state).next() else {
            return Some(Entry::Job(JobChange::Halt(HaltReason::NothingToRestore)));
        };
        Some(Entry::Rewind { generation, to, reason: RewindReason::StateDiffers { layer } })
    }

    /// A standstill that has lasted for longer than workers that come and go are waited for.
    fn long_standstill(&self, watch: &DutyWatch) -> Option<&PlanStandstill> {
        let patience = u64::from(PATIENCE * watch.timing.inventory_ticks);
        self.standstill.as_ref().filter(|found| watch.now - found.since > patience)
    }

    fn begin_draft(
        &mut self,
        state: &State,
        watch: &DutyWatch,
        (need, basis): (&PlanNeed, PlanBasis),
    ) -> Option<LeaderAction> {
        let spec = state.running_spec()?.clone();
        let plan = state.plan().map(|plan| &*plan.record);
        let mut available = available_workers(state);
        available.sort_unstable();
        if let Some(PlanStandstill { workers, .. }) = self.long_standstill(watch)
            && available.iter().any(|holder| workers.contains(holder))
        {
            available.retain(|holder| workers.contains(holder));
        }
        let mut nodes = seating(plan, &available);
        nodes.truncate(spec.stages_max as usize);
        if nodes.len() < spec.workers_min as usize {
            self.draft = None;
            return None;
        }
        let window = window_of(&spec, plan, basis.window);
        self.number += 1;
        let number = self.number;
        let resources = |holder: &Holder| (holder.node, self.measured.resources(state, holder));
        let request = nodes.iter().map(resources).collect();
        let in_force = plan_in_force(state, need, &nodes);
        self.draft = Some(PlanDraft {
            number,
            since: watch.now,
            basis,
            nodes,
            inventory_request: None,
            inventory: BTreeMap::new(),
            solution: None,
            pre_copy: None,
        });
        Some(LeaderAction::Solve(SolveRequest { number, spec, nodes: request, window, in_force }))
    }

    fn continue_draft(
        &mut self,
        state: &State,
        watch: &DutyWatch,
        need: PlanNeed,
    ) -> Option<LeaderAction> {
        if let PlanNeed::Now(reason) = &need
            && let Some(draft) = self.draft.as_mut()
            && draft.inventory_request.is_none()
        {
            draft.inventory_request = Some(state.applied());
            // A worker that answers may have given up the work ahead: there is no way back from
            // here.
            self.faults.note_trouble(state.generation(), reason.clone());
            return Some(LeaderAction::RequestInventory);
        }
        let draft = self.draft.as_ref()?;
        let has_all = draft.missing().next().is_none();
        let is_late = watch.now - draft.since > u64::from(watch.timing.inventory_ticks);
        if !has_all && !is_late {
            return None;
        }
        // The solver runs beside this core and answers each request, so its answer is waited for.
        let solution = match draft.solution.as_ref()? {
            Ok(solution) => solution.clone(),
            Err(none) => {
                let none = none.clone();
                self.settle();
                return Some(LeaderAction::ReportNoPlan(none.into()));
            }
        };
        match need {
            PlanNeed::Now(reason) => self.finish_now(state, watch, reason, solution),
            PlanNeed::Planned(reason) => self.finish_planned(state, watch, reason, solution),
        }
    }

    fn finish_now(
        &mut self,
        state: &State,
        watch: &DutyWatch,
        reason: PlanReason,
        solution: PlanSolution,
    ) -> Option<LeaderAction> {
        let spec = state.running_spec()?;
        let draft = self.draft.as_ref()?;
        let bad = self.unread.bad_checkpoints();
        let inventory = layer_inventory(state, spec, draft, &bad);
        let expected = expected_digests(&inventory);
        // R9: a worker that has not answered may hold a layer that no other does, and so may one that
        // was declared lost and comes back. After a rewind memory is not believed, and no answer
        // brings a layer back: so none is proposed while members change.
        let may_be_held = draft.missing().next().is_some()
            || !watch.absent.awaited_for(state, missing_layers(&inventory), watch.now).is_empty();
        let is_waited_for = watch.is_in_flight(ProposalLane::Members)
            || watch.is_completing()
            || inventory.held.is_some()
                && may_be_held
                && !takes_silence_for_loss(watch, draft.since);
        let restored = match rewinds_needlessly(&reason) {
            true => back_for_nothing(state),
            false => restore_point(&inventory),
        };
        match restored {
            RestorePoint::Back { .. } | RestorePoint::Nowhere if is_waited_for => None,
            RestorePoint::Here(sources) => {
                let nodes = self.kept_in_place(state, &solution, &draft.nodes);
                let from_step = state.open_turn().step;
                let from = PlanStart { nodes, sources, expected, from_step };
                Some(self.adopt(state, reason, solution, from))
            }
            RestorePoint::Back { to, layer } => {
                let generation = state.generation();
                let reason = RewindReason::LayerLost { layer };
                Some(LeaderAction::Propose(Entry::Rewind { generation, to, reason }))
            }
            RestorePoint::Differs { layer } => {
                self.faults.note_differing(state.generation(), layer);
                self.decide_rewind(state, watch).map(LeaderAction::Propose)
            }
            RestorePoint::Nowhere if watch.is_in_flight(ProposalLane::Job) => None,
            RestorePoint::Nowhere => {
                let halt = JobChange::Halt(HaltReason::NothingToRestore);
                Some(LeaderAction::Propose(Entry::Job(halt)))
            }
        }
    }

    /// The members that a plan waits for to come back, once those that are there have answered.
    pub(super) fn awaited_returns(&self, state: &State, watch: &DutyWatch) -> Vec<AwaitedReturn> {
        let draft = self.draft.as_ref().filter(|draft| draft.has_all_inventories());
        let (Some(draft), Some(spec)) = (draft, state.running_spec()) else { return Vec::new() };
        let bad = self.unread.bad_checkpoints();
        let inventory = layer_inventory(state, spec, draft, &bad);
        watch.absent.awaited_for(state, missing_layers(&inventory), watch.now)
    }

    /// The nodes in the order of stages. Where there are several pipelines, who is left may stand at any
    /// stage whose layers it holds: then as few bytes as possible move.
    fn kept_in_place(
        &self,
        state: &State,
        solution: &PlanSolution,
        nodes: &[Holder],
    ) -> Vec<Holder> {
        let placement = &solution.program.placement;
        let stages = nodes.get(..placement.stage_count() as usize);
        let with_columns = |plan: &PlanRecord| {
            plan.program.placement.column_count().max(placement.column_count()) > 1
        };
        let before = state.plan().map(|plan| &plan.record).filter(|plan| with_columns(plan));
        let (Some(before), Some(spec), Some(stages)) = (before, state.running_spec(), stages)
        else {
            return nodes.to_vec();
        };
        let copies = self.copies_of(state, placement, stages);
        let resources = |holder: &Holder| self.measured.resources(state, holder);
        reseated(before, nodes, resources, (solution, &copies), spec)
    }

    fn finish_planned(
        &mut self,
        state: &State,
        watch: &DutyWatch,
        reason: PlanReason,
        solution: PlanSolution,
    ) -> Option<LeaderAction> {
        let spec = state.running_spec()?;
        let plan = &state.plan()?.record;
        let draft = self.draft.as_ref()?;
        let used = draft.nodes.get(..solution.program.placement.stage_count() as usize);
        let is_same_window = solution.program.window == plan.window();
        let is_same_work = solution.chunks == plan.chunks && solution.program == plan.program;
        let changes_nothing = is_same_window && (is_same_work || !reason.is_for_time());
        if used.is_some_and(|used| used == plan.stages && changes_nothing) {
            self.settle();
            self.measured.forget_drift();
            return None;
        }
        let from = Step(state.open_turn().step.0 + PLANNED_AHEAD);
        if from.0 >= spec.step_count {
            return None;
        }
        match self.advance_pre_copy(state, watch, (&reason, &solution), from)? {
            PreCopyState::Begins => Some(LeaderAction::SendPreCopy),
            PreCopyState::Ends(following) => {
                let from = self.plan_start(state, &solution, &following, from)?;
                Some(self.adopt(state, reason, solution, from))
            }
        }
    }

    /// The sources of a planned change's layers, and the node of each stage: as few bytes as
    /// possible move.
    fn plan_start(
        &self,
        state: &State,
        solution: &PlanSolution,
        following: &BTreeSet<(Holder, LayerId)>,
        from_step: Step,
    ) -> Option<PlanStart> {
        let plan = &state.plan()?.record;
        let draft = self.draft.as_ref()?;
        let stage_count = solution.program.placement.stage_count() as usize;
        let placement = &solution.program.placement;
        let stages = &draft.nodes[..stage_count.min(draft.nodes.len())];
        let copies = self.copies_of(state, placement, stages);
        let resources = |holder: &Holder| self.measured.resources(state, holder);
        let spec = state.running_spec()?;
        let nodes = reseated(plan, &draft.nodes, resources, (solution, &copies), spec);
        let sources = sources_in(plan, following, spec.layer_count());
        let expected = vec![None; sources.len()];
        Some(PlanStart { nodes, sources, expected, from_step })
    }

    /// Has layers copied ahead of a planned change. Nothing while that is waited for, which is as
    /// long as any follower that has not reported makes progress (rule R10); one that has not
    /// caught up by then fetches layers when the plan begins.
    fn advance_pre_copy(
        &mut self,
        state: &State,
        watch: &DutyWatch,
        (reason, solution): (&PlanReason, &PlanSolution),
        from: Step,
    ) -> Option<PreCopyState> {
        let draft = self.draft.as_ref()?;
        if let (Some(progress), Some(pre_copy)) = (&draft.pre_copy, &self.pre_copy) {
            let followers = pre_copy.layers.iter().map(|follow: &FollowedLayer| follow.follower);
            let mut missing =
                followers.filter(|holder| !progress.reported.contains(holder)).peekable();
            let is_complete = missing.peek().is_none();
            let has_waited = watch.now - progress.since > u64::from(watch.timing.progress_ticks);
            let is_over =
                is_complete || has_waited && watch.are_stalled(missing.map(|holder| holder.node));
            return is_over.then(|| PreCopyState::Ends(progress.following.clone()));
        }
        let plan = &state.plan()?.record;
        let from = self.plan_start(state, solution, &BTreeSet::new(), from)?;
        let record = self.record(state, reason.clone(), solution.clone(), from);
        let pre_copy =
            PreCopyPlan::of(plan, &record).filter(|_| state.check_adopt(&record).is_ok());
        let Some(pre_copy) = pre_copy else { return Some(PreCopyState::Ends(BTreeSet::new())) };
        self.pre_copy = Some(Arc::new(pre_copy));
        let draft = self.draft.as_mut()?;
        draft.pre_copy = Some(PreCopyProgress {
            since: watch.now,
            following: BTreeSet::new(),
            reported: BTreeSet::new(),
        });
        Some(PreCopyState::Begins)
    }

    fn adopt(
        &mut self,
        state: &State,
        reason: PlanReason,
        solution: PlanSolution,
        from: PlanStart,
    ) -> LeaderAction {
        let record = self.record(state, reason, solution, from);
        self.proposal(state, record)
    }

    fn record(
        &self,
        state: &State,
        reason: PlanReason,
        solution: PlanSolution,
        from: PlanStart,
    ) -> PlanRecord {
        let PlanStart { nodes, sources, expected, from_step } = from;
        let PlanSolution { program, chunks, stage_nodes: _, op_ticks_max } = solution;
        let stage_count = program.placement.stage_count();
        let stages: Vec<Holder> = nodes.into_iter().take(stage_count as usize).collect();
        let mut record = PlanRecord {
            generation: state.training().plans().generation_next(),
            copies: self.copies_of(state, &program.placement, &stages),
            stages,
            promise: Promise::of(copies_wanted(state), stage_count),
            chunks,
            program,
            from_step,
            sources,
            expected,
            op_ticks_max,
            reason,
        };
        self.keep_copies_in_place(state, &mut record);
        record
    }

    /// Proposes a plan, unless it would be refused when it is applied, or is too large.
    fn proposal(&mut self, state: &State, record: PlanRecord) -> LeaderAction {
        let refusal = state.check_adopt(&record).err().map(NoPlan::Refused);
        let entry = Entry::Adopt(Box::new(record));
        let found = entry.encode(state.format()).len();
        let bytes_max = ENTRY_BYTES_MAX;
        let is_too_large = found > bytes_max;
        match refusal.or(is_too_large.then_some(NoPlan::TooLarge { found, bytes_max })) {
            Some(none) => {
                self.settle();
                LeaderAction::ReportNoPlan(none)
            }
            None => {
                self.draft = None;
                LeaderAction::Propose(entry)
            }
        }
    }
}

/// The known places of layers, as the answers to a plan's request and the log have them.
fn layer_inventory<'a>(
    state: &'a State,
    spec: &JobSpec,
    draft: &'a PlanDraft,
    bad: &'a BTreeSet<Step>,
) -> LayerInventory<'a> {
    let believes = state.plan().is_none_or(|plan| plan.phase != PlanPhase::Closed);
    LayerInventory {
        open: state.open_turn().step,
        layer_count: spec.layer_count(),
        held: believes.then_some(&draft.inventory),
        checkpoints: state.checkpoints(),
        bad,
        base: state.history().base(),
    }
}

pub(super) fn copies_wanted(state: &State) -> u32 {
    state.job().map_or(0, |job| job.spec.copies)
}

/// The nodes, layer sources and first step that a plan begins with.
struct PlanStart {
    /// The nodes that may hold a stage, in the order of stages.
    nodes: Vec<Holder>,
    sources: Vec<LayerSource>,
    expected: Vec<Option<Digest>>,
    from_step: Step,
}

/// The state of copying ahead.
enum PreCopyState {
    /// Copying begins now.
    Begins,
    /// It is over; these are the workers that follow, each with a layer.
    Ends(BTreeSet<(Holder, LayerId)>),
}

/// A leader's known bug: it counts a late answer as one that names no layers.
fn takes_silence_for_loss(watch: &DutyWatch, since: u64) -> bool {
    let patience = u64::from(PATIENCE * watch.timing.inventory_ticks);
    mutant::is(Mutant::M29SilenceIsLoss) && watch.now - since > patience
}

/// The reaction of a leader with a known bug to a lost holder.
fn rewinds_needlessly(reason: &PlanReason) -> bool {
    mutant::is(Mutant::M27RewindsForEveryLoss) && matches!(reason, PlanReason::Lost { .. })
}

fn back_for_nothing(state: &State) -> RestorePoint {
    let to = state.checkpoints().last().map_or(Step(0), |checkpoint| checkpoint.version);
    RestorePoint::Back { to, layer: LayerId(0) }
}

fn basis_of(state: &State, need: &PlanNeed) -> PlanBasis {
    let is_now = match need {
        PlanNeed::Now(_) => true,
        PlanNeed::Planned(_) => false,
    };
    PlanBasis {
        generation: state.training().plans().generation_next(),
        workers: state.live_workers().map(|(holder, _)| holder).collect(),
        is_now,
        draining: if is_now { BTreeSet::new() } else { draining_workers(state) },
        open: is_now.then_some(state.open_turn().step),
        window: match need {
            PlanNeed::Planned(PlanReason::WindowSwitched { window, .. }) => Some(*window),
            PlanNeed::Planned(_) | PlanNeed::Now(_) => None,
        },
        drift: match need {
            PlanNeed::Planned(reason) if reason.is_for_time() => Some(reason.clone()),
            PlanNeed::Planned(_) | PlanNeed::Now(_) => None,
        },
    }
}

/// Workers of the job's class that stay, or all of them if none does.
fn available_workers(state: &State) -> Vec<Holder> {
    let staying = |(_, member): &(Holder, &Member)| member.status == MembershipStatus::Present;
    let stays: Vec<_> = state.fitting_workers().filter(staying).map(|(holder, _)| holder).collect();
    if stays.is_empty() {
        return state.fitting_workers().map(|(holder, _)| holder).collect();
    }
    stays
}

fn draining_workers(state: &State) -> BTreeSet<Holder> {
    let goes = |(_, member): &(Holder, &Member)| member.status == MembershipStatus::Draining;
    state.live_workers().filter(goes).map(|(holder, _)| holder).collect()
}

/// Workers of the job's class that stay and have no stage.
fn spare_workers(state: &State, plan: &PlanRecord) -> impl Iterator<Item = Holder> {
    let stages: BTreeSet<Holder> = plan.stages.iter().copied().collect();
    let is_spare = move |(holder, member): &(Holder, &Member)| {
        member.status == MembershipStatus::Present && !stages.contains(holder)
    };
    state.fitting_workers().filter(is_spare).map(|(holder, _)| holder)
}

fn window_of(spec: &JobSpec, plan: Option<&PlanRecord>, switched: Option<Window>) -> Window {
    match spec.window {
        WindowPolicy::Fixed(window) => window,
        WindowPolicy::Auto => switched.or(plan.and_then(PlanRecord::window)).unwrap_or(Window::One),
    }
}

/// Where layers will be at the end of a plan: with their owner, with those that keep a copy, and
/// with those that follow them.
fn sources_in(
    plan: &PlanRecord,
    following: &BTreeSet<(Holder, LayerId)>,
    layer_count: u32,
) -> Vec<LayerSource> {
    let mut nodes: Vec<Vec<NodeId>> = vec![Vec::new(); layer_count as usize];
    for stage in plan.stage_indices() {
        for layer in plan.layers_of(stage) {
            let holders = plan.holders_of(stage).map(|holder| holder.node);
            nodes[layer.index()] = holders.take(SOURCES_MAX).collect();
        }
    }
    for (holder, layer) in following {
        let known = &mut nodes[layer.index()];
        if known.len() < SOURCES_MAX {
            known.push(holder.node);
        }
    }
    nodes.into_iter().map(LayerSource::Nodes).collect()
}
