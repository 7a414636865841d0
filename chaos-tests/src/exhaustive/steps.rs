//! The actions that are possible in a state, and the states they lead to.

use std::collections::BTreeMap;
use std::sync::Arc;

use zbelastic_consensus::Entry;
use zbelastic_consensus::access::AccessRole;
use zbelastic_consensus::entry::RewindReason;
use zbelastic_consensus::job::JobChange;
use zbelastic_consensus::member::{LossReason, MemberChange};
use zbelastic_consensus::mutant::{self, Mutant};
use zbelastic_consensus::plan::{LayerSource, PlanReason};
use zbelastic_consensus::state::{State, StateChange};
use zbelastic_consensus::validation::Seal;
use zbelastic_types::{NodeId, StageIndex};

use super::actions::ModelAction;
use super::check::{ModelViolation, is_excused};
use super::decide::{decide_plan, decide_plan_for_stall, decide_seal};
use super::model_state::{ModelState, ProposalInFlight, ReceivedReports};
use super::stages;
use super::transition_cache::{EntryId, TransitionCache};
use super::worker::ModelWorker;
use super::{ModelBounds, entries};
use crate::access::credential;

/// The result of an action.
pub(super) type ModelTransition = (ModelAction, Result<ModelState, ModelViolation>);

/// The protocol model: its initial state and its transitions.
pub(super) struct ProtocolModel {
    pub bounds: ModelBounds,
    pub transitions: TransitionCache,
}

impl ProtocolModel {
    pub(super) fn new(bounds: ModelBounds) -> Self {
        Self { bounds, transitions: TransitionCache::default() }
    }

    /// The first plan runs, and nothing is computed.
    pub(super) fn begin(&mut self) -> ModelState {
        let spec = Arc::new(entries::spec(&self.bounds));
        let nodes = (1..=u64::from(self.bounds.stages + self.bounds.spares)).map(NodeId);
        let credentials = nodes.clone().map(|node| credential(node.0, AccessRole::Worker));
        let mut state = State::new(entries::CLUSTER).with_credentials(credentials);
        let apply = |state: &mut State, entry: Entry| {
            let index = state.applied() + 1;
            state.apply(index, entry).expect("the beginning fits");
        };
        apply(&mut state, Entry::Members(nodes.clone().map(entries::admit).collect()));
        apply(&mut state, Entry::Job(JobChange::Start(spec.clone())));
        let sources = vec![LayerSource::Initial; spec.layer_count() as usize];
        let plan = entries::plan(&state, sources, PlanReason::First);
        apply(&mut state, Entry::Adopt(Box::new(plan.clone())));
        let mut workers: BTreeMap<NodeId, ModelWorker> =
            nodes.map(|node| (node, ModelWorker::new(node))).collect();
        let learn = |workers: &mut BTreeMap<NodeId, ModelWorker>, state: &State| {
            workers.values_mut().for_each(|w| w.learn(state).expect("nothing is sealed"));
        };
        learn(&mut workers, &state);
        let ready: Vec<_> = workers.values().filter_map(ModelWorker::ready).collect();
        ready.into_iter().for_each(|ready| apply(&mut state, Entry::Ready(ready)));
        apply(&mut state, Entry::Resume { generation: plan.generation });
        learn(&mut workers, &state);
        ModelState {
            agreed: self.transitions.add_state(state),
            in_flight: Vec::new(),
            leader: ReceivedReports::default(),
            workers,
            ran: Arc::new(plan),
            computed: BTreeMap::new(),
            deaths_left: self.bounds.deaths,
            fences_left: self.bounds.fences,
            elections_left: self.bounds.elections,
            stalls_left: self.bounds.stalls,
        }
    }

    /// Whether every step is sealed.
    pub(super) fn is_over(&self, world: &ModelState) -> bool {
        self.transitions.state(world.agreed).training().is_all_sealed()
    }

    /// Everything that can happen now.
    pub(super) fn next(&mut self, world: &ModelState) -> Vec<ModelTransition> {
        let state = self.transitions.state(world.agreed).clone();
        let mut next = Vec::new();
        for node in world.workers.keys().copied() {
            stages::forget(&state, world, node, &mut next);
            stages::report(&state, world, node, &mut next);
            stages::hold(&state, world, node, &mut next);
            stages::learn(&state, world, node, &mut next);
            stages::learn_seal(&state, world, node, &mut next);
            stages::fetch(world, node, &mut next);
            self.ready(world, node, &mut next);
        }
        self.propose(&state, world, &mut next);
        self.proceed(world, &mut next);
        self.fail(&state, world, &mut next);
        next
    }

    fn ready(&mut self, world: &ModelState, node: NodeId, next: &mut Vec<ModelTransition>) {
        let Some(ready) = world.workers[&node].ready() else { return };
        let entry = self.transitions.add_entry(Entry::Ready(ready));
        if let Some((agreed, _)) = self.transitions.apply(world.agreed, entry) {
            next.push((ModelAction::Ready { node }, Ok(ModelState { agreed, ..world.clone() })));
        }
    }

    /// The proposals of a leader with this state. It proposes nothing that is in flight already.
    fn propose(&mut self, state: &State, world: &ModelState, next: &mut Vec<ModelTransition>) {
        let own = world.in_flight.iter().filter(|flying| flying.is_own);
        let own: Vec<&Entry> = own.map(|flying| self.transitions.entry(flying.entry)).collect();
        let is_planning = own.iter().any(|entry| !matches!(entry, Entry::Seal(_)));
        let seal = decide_seal(state, world).map(Entry::Seal).filter(|seal| !own.contains(&seal));
        let mut plan = None;
        let mut plan_for_stall = None;
        if !is_planning {
            plan = decide_plan(&self.transitions, state, world);
            plan_for_stall = decide_plan_for_stall(&self.transitions, state, world);
        }
        let stalled =
            ModelState { stalls_left: world.stalls_left.saturating_sub(1), ..world.clone() };
        for (entry, world) in [(seal, world), (plan, world), (plan_for_stall, &stalled)] {
            let Some(entry) = entry else { continue };
            let needless = needless_rewind(world, state, &entry);
            let entry = self.transitions.add_entry(entry);
            let mut after = world.clone();
            after.propose(entry);
            next.push((ModelAction::Propose { entry }, needless.map_or(Ok(after), Err)));
        }
    }

    /// The log is agreed on in order. A proposal in flight may be sent too early.
    fn proceed(&mut self, world: &ModelState, next: &mut Vec<ModelTransition>) {
        if let Some(ProposalInFlight { entry, .. }) = world.in_flight.first().copied() {
            let mut after = world.clone();
            after.in_flight.remove(0);
            next.push((ModelAction::Agree { entry }, self.agree(after, entry)));
        }
        world
            .in_flight
            .iter()
            .for_each(|flying| self.send_proposed_seal(world, flying.entry, next));
    }

    fn agree(
        &mut self,
        mut world: ModelState,
        entry: EntryId,
    ) -> Result<ModelState, ModelViolation> {
        let Some((agreed, change)) = self.transitions.apply(world.agreed, entry) else {
            return Ok(world);
        };
        let before = self.transitions.state(world.agreed).open_turn();
        let state = self.transitions.state(agreed);
        world.agreed = agreed;
        if state.open_turn() != before {
            world.leader = ReceivedReports::default();
        }
        match &*change {
            StateChange::Sealed { seal, .. } => check_sealed(state, &world, seal)?,
            StateChange::Resumed(_) => world.ran = state.plan().expect("it runs").record.clone(),
            StateChange::Members(_)
            | StateChange::Adopted(_)
            | StateChange::Planned(_)
            | StateChange::Ready(_)
            | StateChange::Durable { .. }
            | StateChange::Kept { .. }
            | StateChange::Checkpoint { .. }
            | StateChange::Rewound { .. }
            | StateChange::Job { .. }
            | StateChange::Removed { .. }
            | StateChange::Access(_)
            | StateChange::Format(_) => {}
        }
        Ok(world)
    }

    /// The action of a leader with rule R1 off: it sends a seal to workers when it proposes it.
    fn send_proposed_seal(
        &self,
        world: &ModelState,
        entry: EntryId,
        next: &mut Vec<ModelTransition>,
    ) {
        let Entry::Seal(seal) = self.transitions.entry(entry) else { return };
        if !mutant::is(Mutant::M24UndoFreedAtProposal) {
            return;
        }
        let awaits = |worker: &&ModelWorker| worker.active_stage().is_some_and(|s| s.awaits(seal));
        for node in world.workers.values().filter(awaits).map(|worker| worker.me) {
            let mut after = world.clone();
            let worker = after.workers.get_mut(&node).expect("it lives");
            let settled = worker.settle(seal);
            next.push((ModelAction::LearnProposal { node, entry }, settled.map(|()| after)));
        }
    }

    fn fail(&mut self, state: &State, world: &ModelState, next: &mut Vec<ModelTransition>) {
        for lost in (0..=world.in_flight.len()).filter(|_| world.elections_left > 0) {
            let mut after = world.clone();
            after.elect(lost);
            next.push((ModelAction::Elect { lost }, Ok(after)));
        }
        let counted: Vec<NodeId> = world.counted(state).map(|worker| worker.me).collect();
        for node in counted.into_iter().filter(|_| world.deaths_left > 0) {
            let mut after = world.clone();
            after.deaths_left -= 1;
            after.workers.remove(&node);
            next.push((ModelAction::Die { node }, Ok(after)));
        }
        for holder in state.live_workers().map(|(holder, _)| holder) {
            let node = holder.node;
            let is_dead = !world.workers.contains_key(&node);
            let fences_left = world.fences_left.checked_sub(1);
            let (action, fences_left) = match fences_left {
                _ if is_dead => (ModelAction::Notice { node }, world.fences_left),
                Some(fences_left) => (ModelAction::Fence { node }, fences_left),
                None => continue,
            };
            let reason = LossReason::Closed;
            let entry = Entry::Members(vec![MemberChange::Lost { holder, reason }]);
            let entry = self.transitions.add_entry(entry);
            let (agreed, _) = self.transitions.apply(world.agreed, entry).expect("it is a member");
            next.push((action, Ok(ModelState { agreed, fences_left, ..world.clone() })));
        }
    }
}

/// S1, and that every stage computed the sealed sums, in the very attempt.
fn check_sealed(state: &State, world: &ModelState, seal: &Seal) -> Result<(), ModelViolation> {
    let open = seal.turn.step;
    let found = state.open_turn().step;
    let mut logged = state.history().seals().map(|seal| seal.turn.step).enumerate();
    if found != open.next() || logged.any(|(index, step)| step.index() != index) {
        return Err(ModelViolation::HistoryBroken { open, found });
    }
    let plan = &state.plan().expect("it runs").record;
    let turn = seal.turn;
    let is_computed = |stage: &StageIndex| {
        let computed = world.computed.get(stage);
        computed.is_some_and(|found| found.generation == turn.generation && *found >= turn)
    };
    match plan.stage_indices().find(|stage| !is_computed(stage)) {
        Some(stage) => Err(ModelViolation::SealedUncomputed { stage, turn }),
        None => Ok(()),
    }
}

/// A rewind is for layers that every holder that promised them has lost.
fn needless_rewind(world: &ModelState, state: &State, entry: &Entry) -> Option<ModelViolation> {
    let Entry::Rewind { reason, .. } = entry else { return None };
    match reason {
        RewindReason::LayerLost { layer } if is_excused(world, state, *layer) => None,
        RewindReason::Ordered => unreachable!("nobody orders it here"),
        RewindReason::LayerLost { layer } | RewindReason::StateDiffers { layer } => {
            Some(ModelViolation::NeedlessRewind { layer: *layer })
        }
    }
}
