//! What workers do: compute, hold, learn, load.

use std::sync::Arc;

use zbelastic_consensus::mutant::{self, Mutant};
use zbelastic_consensus::plan::LayerSource;
use zbelastic_consensus::state::State;
use zbelastic_types::{LayerId, NodeId};

use super::actions::Action;
use super::check::Violation;
use super::steps::Next;
use super::worker::{Phase, Worker};
use super::world::World;

pub(super) fn report(state: &State, world: &World, node: NodeId, next: &mut Vec<Next>) {
    let Some(station) = world.workers[&node].station().filter(|s| s.is_running) else { return };
    let (turn, stage) = (station.half.open_turn(), station.stage);
    let is_told_in_vain = !is_taken_in(state, world, node);
    let is_known =
        is_told_in_vain || turn != state.open_turn() || world.leader.reports.contains_key(&stage);
    let is_over = state.job().is_some_and(|job| turn.step.0 >= job.spec.step_count);
    if is_over || station.told.is_some() && is_known {
        return;
    }
    let mut after = world.clone();
    let station = after.workers.get_mut(&node).and_then(Worker::station_mut).expect("it stands");
    let computed = if station.told.is_some() { Ok(()) } else { station.compute() };
    let told = station.told.clone();
    // A worker that is taken for dead may compute for a plan before the one in force.
    let computed_last = after.computed.entry(stage).or_insert(turn);
    *computed_last = turn.max(*computed_last);
    let mut counted = Ok(());
    if turn == state.open_turn() && is_taken_in(state, world, node) {
        counted = check_counted(state, world, node);
        after.leader.reports.extend(told.map(|told| (stage, told)));
    }
    next.push((Action::Report { node }, computed.and(counted).map(|()| after)));
}

pub(super) fn hold(state: &State, world: &World, node: NodeId, next: &mut Vec<Next>) {
    let Some(station) = world.workers[&node].station().filter(|s| s.is_running) else { return };
    let Some(copy) = &station.copy else { return };
    let is_held = copy.held == Some(copy.open);
    let is_told_in_vain = !is_taken_in(state, world, node);
    let is_known = is_told_in_vain
        || copy.open != state.open_turn()
        || world.leader.held.contains_key(&copy.of);
    let owner = world.workers.get(&station.plan.stages[copy.of.index()].node);
    let gives = |owner: &Worker| {
        owner.station().is_some_and(|s| s.told.is_some() && s.half.open_turn() == copy.open)
    };
    if is_held && is_known || !is_held && !owner.is_some_and(gives) {
        return;
    }
    let mut after = world.clone();
    let station = after.workers.get_mut(&node).and_then(Worker::station_mut).expect("it stands");
    let copy = station.copy.as_mut().expect("looked at above");
    let update = copy.hold(&station.plan);
    let mut counted = Ok(());
    if update.turn == state.open_turn() && is_taken_in(state, world, node) {
        counted = check_counted(state, world, node);
        after.leader.held.insert(update.of, Arc::new(update));
    }
    next.push((Action::Hold { node }, counted.map(|()| after)));
}

/// Whether a leader counts the reports of a worker: not of one that is taken for dead.
fn is_taken_in(state: &State, world: &World, node: NodeId) -> bool {
    !world.workers[&node].is_fenced(state) || mutant::is(Mutant::M12FencedAccepted)
}

/// S3: no report of a worker that is taken for dead is counted.
fn check_counted(state: &State, world: &World, node: NodeId) -> Result<(), Violation> {
    if world.workers[&node].is_fenced(state) {
        return Err(Violation::FencedCounted { node });
    }
    Ok(())
}

/// A worker that was taken for dead learns of it.
pub(super) fn forget(state: &State, world: &World, node: NodeId, next: &mut Vec<Next>) {
    if world.workers[&node].is_fenced(state) {
        let mut after = world.clone();
        after.workers.remove(&node);
        next.push((Action::Forget { node }, Ok(after)));
    }
}

pub(super) fn learn(state: &State, world: &World, node: NodeId, next: &mut Vec<Next>) {
    let worker = &world.workers[&node];
    if worker.is_fenced(state) || !worker.lacks(state) {
        return;
    }
    let mut after = world.clone();
    let learned = after.workers.get_mut(&node).expect("it lives").learn(state);
    next.push((Action::Learn { node }, learned.map(|()| after)));
}

/// A briefing from before the plan in force holds the last seal alone.
pub(super) fn learn_seal(state: &State, world: &World, node: NodeId, next: &mut Vec<Next>) {
    let Some(seal) = state.last_seal() else { return };
    let worker = &world.workers[&node];
    let awaits = worker.station().is_some_and(|station| station.awaits(seal));
    if !awaits || worker.generation == state.generation() {
        return;
    }
    let mut after = world.clone();
    let learned = after.workers.get_mut(&node).expect("it lives").settle(seal);
    next.push((Action::LearnSeal { node }, learned.map(|()| after)));
}

pub(super) fn fetch(world: &World, node: NodeId, next: &mut Vec<Next>) {
    let Phase::Loading(loading) = &world.workers[&node].phase else { return };
    for layer in loading.missing() {
        let offers = |worker: &Worker| worker.offers(layer, loading.plan.from_step);
        if sources(world, node, layer).any(|source| world.workers.get(&source).is_some_and(offers))
        {
            let mut after = world.clone();
            after.workers.get_mut(&node).expect("it lives").fetched(layer);
            next.push((Action::Fetch { node, layer }, Ok(after)));
        }
    }
}

/// Other workers from which a worker that loads may get a layer.
pub(super) fn sources(
    world: &World,
    node: NodeId,
    layer: LayerId,
) -> impl Iterator<Item = NodeId> + '_ {
    let named = match &world.workers[&node].phase {
        Phase::Loading(loading) => match &loading.plan.sources[layer.index()] {
            LayerSource::Nodes(nodes) => &nodes[..],
            LayerSource::Initial | LayerSource::Checkpoint { .. } => &[],
        },
        Phase::Idle | Phase::Stationed(_) => &[],
    };
    named.iter().copied().filter(move |source| *source != node)
}
