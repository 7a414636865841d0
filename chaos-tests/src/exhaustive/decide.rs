//! The decisions of a leader: when to seal, and when to make another plan.

use std::collections::{BTreeMap, BTreeSet};

use zbelastic_consensus::Entry;
use zbelastic_consensus::duty::{LayerInventory, OpenTurnReports, RestorePoint, restore_point};
use zbelastic_consensus::entry::RewindReason;
use zbelastic_consensus::member::LossReason;
use zbelastic_consensus::message::{HeldLayer, HeldUpdate};
use zbelastic_consensus::plan::PlanReason;
use zbelastic_consensus::state::{PlanPhase, State};
use zbelastic_consensus::validation::Seal;
use zbelastic_types::{LayerId, NodeId, Step};

use super::check::is_sealing;
use super::entries;
use super::model_state::ModelState;
use super::stages::sources;
use super::transition_cache::TransitionCache;

/// The seal that is due.
pub(super) fn decide_seal(state: &State, world: &ModelState) -> Option<Seal> {
    let spec = state.running_spec()?;
    let mut sealing = OpenTurnReports::new(state, spec);
    for reported in world.leader.reports.values() {
        let (report, attested) = &**reported;
        sealing.handle_report(state, report, attested.clone()).expect("of the open turn");
    }
    let plan = &state.plan()?.record;
    for (of, held) in &world.leader.held {
        // No stage has two copies here: the only holder of its copy is the sender.
        let copy_holder = plan.copy_holders(*of).next()?;
        sealing.handle_held(state, copy_holder, HeldUpdate::clone(held));
    }
    sealing.decide(state).ok()
}

/// The leader's decision on the plan: it starts one that is loaded, and makes another if the one in
/// force cannot go on. Every live worker has answered by then, and so knows the agreed entries.
pub(super) fn decide_plan(
    transitions: &TransitionCache,
    state: &State,
    world: &ModelState,
) -> Option<Entry> {
    state.running_spec()?;
    let plan = state.plan()?;
    let generation = plan.record.generation;
    let lost = state.lost_holder();
    let lost = lost.map(|holder| PlanReason::Lost { holder, reason: LossReason::Closed });
    let lacking = || lacking_layer(state, world).map(|layer| PlanReason::LoadFailed { layer });
    let reason = match &plan.phase {
        PlanPhase::Closed => Some(PlanReason::Rewound),
        PlanPhase::Running => lost,
        PlanPhase::Loading(_) => lost.or_else(lacking),
    };
    match (reason, &plan.phase) {
        (Some(reason), _) => replan(transitions, state, world, reason),
        (None, PlanPhase::Loading(ready)) if ready.iter().all(Option::is_some) => {
            Some(Entry::Resume { generation })
        }
        (None, PlanPhase::Loading(_) | PlanPhase::Running | PlanPhase::Closed) => None,
    }
}

/// The leader's decision on a plan that lasts too long, though no worker is to blame.
pub(super) fn decide_plan_for_stall(
    transitions: &TransitionCache,
    state: &State,
    world: &ModelState,
) -> Option<Entry> {
    state.running_spec()?;
    let is_blameless = world.stalls_left > 0 && state.lost_holder().is_none();
    let ticks = state.generation().0 as u32;
    is_blameless.then(|| replan(transitions, state, world, PlanReason::Stalled { ticks }))?
}

fn replan(
    transitions: &TransitionCache,
    state: &State,
    world: &ModelState,
    reason: PlanReason,
) -> Option<Entry> {
    if world.counted(state).any(|worker| worker.lacks(state)) {
        return None;
    }
    let believes = state.plan().is_none_or(|plan| plan.phase != PlanPhase::Closed);
    let held = world.counted(state).map(|worker| (worker.me, worker.inventory())).collect();
    let (to, reason) = match restore(state, believes.then_some(&held)) {
        RestorePoint::Here(sources) => {
            return Some(Entry::Adopt(Box::new(entries::plan(state, sources, reason))));
        }
        // Whether something is lost that a seal in flight would bring back is seen when the seal is
        // agreed on or lost.
        RestorePoint::Back { .. } if is_sealing(transitions, world, state.open_turn()) => {
            return None;
        }
        RestorePoint::Back { to, layer } => (to, RewindReason::LayerLost { layer }),
        RestorePoint::Differs { layer } => (Step(0), RewindReason::StateDiffers { layer }),
        RestorePoint::Nowhere => unreachable!("the beginning is never forgotten here"),
    };
    Some(Entry::Rewind { generation: state.generation(), to, reason })
}

type HeldLayersByNode = BTreeMap<NodeId, Vec<HeldLayer>>;

fn restore(state: &State, held: Option<&HeldLayersByNode>) -> RestorePoint {
    restore_point(&LayerInventory {
        open: open(state),
        layer_count: state.job().expect("there is a job").spec.layer_count(),
        held,
        checkpoints: state.checkpoints(),
        bad: &BTreeSet::new(),
        base: state.history().base(),
    })
}

/// A layer that a worker requests in vain: the source that the plan names is dead, or has it not.
fn lacking_layer(state: &State, world: &ModelState) -> Option<LayerId> {
    let comes = |source: NodeId, layer: LayerId| {
        let source = world.counted(state).find(|worker| worker.me == source);
        source.is_some_and(|source| source.lacks(state) || source.offers(layer, open(state)))
    };
    world.counted(state).filter(|worker| worker.generation == state.generation()).find_map(
        |worker| {
            let lacks = |layer: &LayerId| {
                !sources(world, worker.me, *layer).any(|source| comes(source, *layer))
            };
            worker.loading()?.missing().into_iter().find(lacks)
        },
    )
}

fn open(state: &State) -> Step {
    state.open_turn().step
}
