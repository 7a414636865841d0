//! The actions of workers: compute, hold, learn, load.

use std::sync::Arc;

use zbelastic_consensus::mutant::{self, Mutant};
use zbelastic_consensus::plan::LayerSource;
use zbelastic_consensus::state::State;
use zbelastic_types::{LayerId, NodeId};

use super::actions::ModelAction;
use super::check::ModelViolation;
use super::model_state::ModelState;
use super::steps::ModelTransition;
use super::worker::{ModelWorker, ModelWorkerPhase};

pub(super) fn report(
    state: &State,
    world: &ModelState,
    node: NodeId,
    next: &mut Vec<ModelTransition>,
) {
    let Some(active) = world.workers[&node].active_stage().filter(|s| s.is_running) else {
        return;
    };
    let turn = active.half.open_turn();
    let stage = active.stage;
    let is_ignored = !is_counted(state, world, node);
    let is_known =
        is_ignored || turn != state.open_turn() || world.leader.reports.contains_key(&stage);
    let is_over = state.job().is_some_and(|job| turn.step.0 >= job.spec.step_count);
    if is_over || active.reported.is_some() && is_known {
        return;
    }
    let mut after = world.clone();
    let active =
        after.workers.get_mut(&node).and_then(ModelWorker::active_stage_mut).expect("it stands");
    let computed = if active.reported.is_some() { Ok(()) } else { active.compute() };
    let reported = active.reported.clone();
    // A worker that was declared dead may compute for a plan before the one in force.
    let computed_last = after.computed.entry(stage).or_insert(turn);
    *computed_last = turn.max(*computed_last);
    let mut counted = Ok(());
    if turn == state.open_turn() && is_counted(state, world, node) {
        counted = check_counted(state, world, node);
        after.leader.reports.extend(reported.map(|reported| (stage, reported)));
    }
    next.push((ModelAction::Report { node }, computed.and(counted).map(|()| after)));
}

pub(super) fn hold(
    state: &State,
    world: &ModelState,
    node: NodeId,
    next: &mut Vec<ModelTransition>,
) {
    let Some(active) = world.workers[&node].active_stage().filter(|s| s.is_running) else {
        return;
    };
    let Some(copy) = &active.copy else { return };
    let is_held = copy.held == Some(copy.open);
    let is_ignored = !is_counted(state, world, node);
    let is_known =
        is_ignored || copy.open != state.open_turn() || world.leader.held.contains_key(&copy.of);
    let owner = world.workers.get(&active.plan.stages[copy.of.index()].node);
    let gives = |owner: &ModelWorker| {
        owner
            .active_stage()
            .is_some_and(|s| s.reported.is_some() && s.half.open_turn() == copy.open)
    };
    if is_held && is_known || !is_held && !owner.is_some_and(gives) {
        return;
    }
    let mut after = world.clone();
    let active =
        after.workers.get_mut(&node).and_then(ModelWorker::active_stage_mut).expect("it stands");
    let copy = active.copy.as_mut().expect("looked at above");
    let update = copy.hold(&active.plan);
    let mut counted = Ok(());
    if update.turn == state.open_turn() && is_counted(state, world, node) {
        counted = check_counted(state, world, node);
        after.leader.held.insert(update.of, Arc::new(update));
    }
    next.push((ModelAction::Hold { node }, counted.map(|()| after)));
}

/// Whether a leader counts the reports of a worker: not of one that was declared dead.
fn is_counted(state: &State, world: &ModelState, node: NodeId) -> bool {
    !world.workers[&node].is_fenced(state) || mutant::is(Mutant::M12FencedAccepted)
}

/// S3: no report of a worker that was declared dead is counted.
fn check_counted(state: &State, world: &ModelState, node: NodeId) -> Result<(), ModelViolation> {
    if world.workers[&node].is_fenced(state) {
        return Err(ModelViolation::FencedCounted { node });
    }
    Ok(())
}

/// A worker that was declared dead learns of it.
pub(super) fn forget(
    state: &State,
    world: &ModelState,
    node: NodeId,
    next: &mut Vec<ModelTransition>,
) {
    if world.workers[&node].is_fenced(state) {
        let mut after = world.clone();
        after.workers.remove(&node);
        next.push((ModelAction::Forget { node }, Ok(after)));
    }
}

pub(super) fn learn(
    state: &State,
    world: &ModelState,
    node: NodeId,
    next: &mut Vec<ModelTransition>,
) {
    let worker = &world.workers[&node];
    if worker.is_fenced(state) || !worker.lacks(state) {
        return;
    }
    let mut after = world.clone();
    let learned = after.workers.get_mut(&node).expect("it lives").learn(state);
    next.push((ModelAction::Learn { node }, learned.map(|()| after)));
}

/// A briefing from before the plan in force holds the last seal alone.
pub(super) fn learn_seal(
    state: &State,
    world: &ModelState,
    node: NodeId,
    next: &mut Vec<ModelTransition>,
) {
    let Some(seal) = state.training().seals().last_seal() else { return };
    let worker = &world.workers[&node];
    let awaits = worker.active_stage().is_some_and(|active| active.awaits(seal));
    if !awaits || worker.generation == state.generation() {
        return;
    }
    let mut after = world.clone();
    let learned = after.workers.get_mut(&node).expect("it lives").settle(seal);
    next.push((ModelAction::LearnSeal { node }, learned.map(|()| after)));
}

pub(super) fn fetch(world: &ModelState, node: NodeId, next: &mut Vec<ModelTransition>) {
    let ModelWorkerPhase::Loading(loading) = &world.workers[&node].phase else { return };
    for layer in loading.missing() {
        let offers = |worker: &ModelWorker| worker.offers(layer, loading.plan.from_step);
        if sources(world, node, layer).any(|source| world.workers.get(&source).is_some_and(offers))
        {
            let mut after = world.clone();
            after.workers.get_mut(&node).expect("it lives").fetched(layer);
            next.push((ModelAction::Fetch { node, layer }, Ok(after)));
        }
    }
}

/// Other workers from which a worker that loads may get a layer.
pub(super) fn sources(
    world: &ModelState,
    node: NodeId,
    layer: LayerId,
) -> impl Iterator<Item = NodeId> + '_ {
    let named = match &world.workers[&node].phase {
        ModelWorkerPhase::Loading(loading) => match &loading.plan.sources[layer.index()] {
            LayerSource::Nodes(nodes) => &nodes[..],
            LayerSource::Initial | LayerSource::Checkpoint { .. } => &[],
        },
        ModelWorkerPhase::Idle | ModelWorkerPhase::Active(_) => &[],
    };
    named.iter().copied().filter(move |source| *source != node)
}
