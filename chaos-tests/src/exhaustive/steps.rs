//! What can happen in a state, and what comes of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use zbelastic_consensus::Entry;
use zbelastic_consensus::access::AccessRole;
use zbelastic_consensus::entry::RewindReason;
use zbelastic_consensus::job::JobChange;
use zbelastic_consensus::member::{LossReason, MemberChange};
use zbelastic_consensus::mutant::{self, Mutant};
use zbelastic_consensus::plan::{LayerSource, PlanReason};
use zbelastic_consensus::state::{Change, State};
use zbelastic_consensus::validation::Seal;
use zbelastic_types::{NodeId, StageIndex};

use super::actions::Action;
use super::book::{Book, EntryId};
use super::check::{Violation, is_excused};
use super::decide::{decide_plan, decide_plan_for_stall, decide_seal};
use super::stages;
use super::worker::Worker;
use super::world::{Flying, Heard, World};
use super::{Bounds, entries};
use crate::access::credential;

/// What comes of an action.
pub(super) type Next = (Action, Result<World, Violation>);

/// The small world: how it begins and how it goes on.
pub(super) struct Model {
    pub bounds: Bounds,
    pub book: Book,
}

impl Model {
    pub(super) fn new(bounds: Bounds) -> Self {
        Self { bounds, book: Book::default() }
    }

    /// The first plan runs, and nothing is computed.
    pub(super) fn begin(&mut self) -> World {
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
        let mut workers: BTreeMap<NodeId, Worker> =
            nodes.map(|node| (node, Worker::new(node))).collect();
        let learn = |workers: &mut BTreeMap<NodeId, Worker>, state: &State| {
            workers.values_mut().for_each(|w| w.learn(state).expect("nothing is sealed"));
        };
        learn(&mut workers, &state);
        let ready: Vec<_> = workers.values().filter_map(Worker::ready).collect();
        ready.into_iter().for_each(|ready| apply(&mut state, Entry::Ready(ready)));
        apply(&mut state, Entry::Resume { generation: plan.generation });
        learn(&mut workers, &state);
        World {
            agreed: self.book.add_state(state),
            flight: Vec::new(),
            leader: Heard::default(),
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
    pub(super) fn is_over(&self, world: &World) -> bool {
        self.book.state(world.agreed).is_all_sealed()
    }

    /// Everything that can happen now.
    pub(super) fn next(&mut self, world: &World) -> Vec<Next> {
        let state = self.book.state(world.agreed).clone();
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

    fn ready(&mut self, world: &World, node: NodeId, next: &mut Vec<Next>) {
        let Some(ready) = world.workers[&node].ready() else { return };
        let entry = self.book.add_entry(Entry::Ready(ready));
        if let Some((agreed, _)) = self.book.apply(world.agreed, entry) {
            next.push((Action::Ready { node }, Ok(World { agreed, ..world.clone() })));
        }
    }

    /// What a leader with these hands proposes. It proposes nothing that is under way already.
    fn propose(&mut self, state: &State, world: &World, next: &mut Vec<Next>) {
        let own = world.flight.iter().filter(|flying| flying.is_own);
        let own: Vec<&Entry> = own.map(|flying| self.book.entry(flying.entry)).collect();
        let is_planning = own.iter().any(|entry| !matches!(entry, Entry::Seal(_)));
        let seal = decide_seal(state, world).map(Entry::Seal).filter(|seal| !own.contains(&seal));
        let (mut plan, mut plan_for_stall) = (None, None);
        if !is_planning {
            plan = decide_plan(&self.book, state, world);
            plan_for_stall = decide_plan_for_stall(&self.book, state, world);
        }
        let stalled = World { stalls_left: world.stalls_left.saturating_sub(1), ..world.clone() };
        for (entry, world) in [(seal, world), (plan, world), (plan_for_stall, &stalled)] {
            let Some(entry) = entry else { continue };
            let needless = needless_rewind(world, state, &entry);
            let entry = self.book.add_entry(entry);
            let mut after = world.clone();
            after.propose(entry);
            next.push((Action::Propose { entry }, needless.map_or(Ok(after), Err)));
        }
    }

    /// The log is agreed on in order. What is under way may be sent too early.
    fn proceed(&mut self, world: &World, next: &mut Vec<Next>) {
        if let Some(Flying { entry, .. }) = world.flight.first().copied() {
            let mut after = world.clone();
            after.flight.remove(0);
            next.push((Action::Agree { entry }, self.agree(after, entry)));
        }
        world.flight.iter().for_each(|flying| self.tell_proposal(world, flying.entry, next));
    }

    fn agree(&mut self, mut world: World, entry: EntryId) -> Result<World, Violation> {
        let Some((agreed, change)) = self.book.apply(world.agreed, entry) else { return Ok(world) };
        let before = self.book.state(world.agreed).open_turn();
        let state = self.book.state(agreed);
        world.agreed = agreed;
        if state.open_turn() != before {
            world.leader = Heard::default();
        }
        match &*change {
            Change::Sealed { seal, .. } => check_sealed(state, &world, seal)?,
            Change::Resumed(_) => world.ran = state.plan().expect("it runs").record.clone(),
            Change::Members(_)
            | Change::Adopted(_)
            | Change::Planned(_)
            | Change::Ready(_)
            | Change::Durable { .. }
            | Change::Kept { .. }
            | Change::Checkpoint { .. }
            | Change::Rewound { .. }
            | Change::Job { .. }
            | Change::Removed { .. }
            | Change::Access(_)
            | Change::Format(_) => {}
        }
        Ok(world)
    }

    /// What a leader with rule R1 off does: it sends a seal to workers when it proposes it.
    fn tell_proposal(&self, world: &World, entry: EntryId, next: &mut Vec<Next>) {
        let Entry::Seal(seal) = self.book.entry(entry) else { return };
        if !mutant::is(Mutant::M24UndoFreedAtProposal) {
            return;
        }
        let awaits = |worker: &&Worker| worker.station().is_some_and(|s| s.awaits(seal));
        for node in world.workers.values().filter(awaits).map(|worker| worker.me) {
            let mut after = world.clone();
            let worker = after.workers.get_mut(&node).expect("it lives");
            let settled = worker.settle(seal);
            next.push((Action::LearnProposal { node, entry }, settled.map(|()| after)));
        }
    }

    fn fail(&mut self, state: &State, world: &World, next: &mut Vec<Next>) {
        for lost in (0..=world.flight.len()).filter(|_| world.elections_left > 0) {
            let mut after = world.clone();
            after.elect(lost);
            next.push((Action::Elect { lost }, Ok(after)));
        }
        let counted: Vec<NodeId> = world.counted(state).map(|worker| worker.me).collect();
        for node in counted.into_iter().filter(|_| world.deaths_left > 0) {
            let mut after = world.clone();
            after.deaths_left -= 1;
            after.workers.remove(&node);
            next.push((Action::Die { node }, Ok(after)));
        }
        for holder in state.live_workers().map(|(holder, _)| holder) {
            let node = holder.node;
            let (is_dead, fences_left) =
                (!world.workers.contains_key(&node), world.fences_left.checked_sub(1));
            let (action, fences_left) = match fences_left {
                _ if is_dead => (Action::Notice { node }, world.fences_left),
                Some(fences_left) => (Action::Fence { node }, fences_left),
                None => continue,
            };
            let reason = LossReason::Closed;
            let entry = Entry::Members(vec![MemberChange::Lost { holder, reason }]);
            let entry = self.book.add_entry(entry);
            let (agreed, _) = self.book.apply(world.agreed, entry).expect("it is a member");
            next.push((action, Ok(World { agreed, fences_left, ..world.clone() })));
        }
    }
}

/// S1, and that every stage computed what is sealed, in the very attempt.
fn check_sealed(state: &State, world: &World, seal: &Seal) -> Result<(), Violation> {
    let (open, found) = (seal.turn.step, state.open_turn().step);
    let mut logged = state.history().seals().map(|seal| seal.turn.step).enumerate();
    if found != open.next() || logged.any(|(index, step)| step.index() != index) {
        return Err(Violation::HistoryBroken { open, found });
    }
    let plan = &state.plan().expect("it runs").record;
    let turn = seal.turn;
    let is_computed = |stage: &StageIndex| {
        let computed = world.computed.get(stage);
        computed.is_some_and(|found| found.generation == turn.generation && *found >= turn)
    };
    match plan.stage_indices().find(|stage| !is_computed(stage)) {
        Some(stage) => Err(Violation::SealedUncomputed { stage, turn }),
        None => Ok(()),
    }
}

/// A way back is for what all have lost who promised to hold it.
fn needless_rewind(world: &World, state: &State, entry: &Entry) -> Option<Violation> {
    let Entry::Rewind { reason, .. } = entry else { return None };
    match reason {
        RewindReason::LayerLost { layer } if is_excused(world, state, *layer) => None,
        RewindReason::Ordered => unreachable!("nobody orders it here"),
        RewindReason::LayerLost { layer } | RewindReason::StateDiffers { layer } => {
            Some(Violation::NeedlessRewind { layer: *layer })
        }
    }
}
