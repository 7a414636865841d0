//! The invariants of every state, and the violations of them.

use std::fmt;

use zbelastic_consensus::Entry;
use zbelastic_consensus::member::Holder;
use zbelastic_consensus::state::State;
use zbelastic_consensus::validation::Turn;
use zbelastic_types::{LayerId, NodeId, StageIndex, Step};

use super::model_state::ModelState;
use super::transition_cache::TransitionCache;
use super::worker::{ModelActiveStage, ModelStageCopy, ModelWorker, ModelWorkerPhase};

/// A violation in a state or an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelViolation {
    /// S1: a step was sealed twice, or one was left out.
    HistoryBroken {
        /// The step that was open.
        open: Step,
        /// The step that is open now.
        found: Step,
    },
    /// A turn was sealed that a stage never computed.
    SealedUncomputed {
        /// The stage that did not compute it.
        stage: StageIndex,
        /// The turn that was sealed.
        turn: Turn,
    },
    /// A candidate that was computed in another attempt became the state.
    OtherAttempt {
        /// The stage of the candidate.
        stage: StageIndex,
        /// The turn that was sealed.
        turn: Turn,
    },
    /// S3: the report of a worker that was declared dead was counted.
    FencedCounted {
        /// The worker that was declared dead.
        node: NodeId,
    },
    /// R8: an update was applied to a state that is not the one before it.
    AppliedTwice {
        /// The stage that applied it.
        stage: StageIndex,
        /// The step of the update.
        step: Step,
        /// The version of the state.
        found: Step,
    },
    /// A stage that runs has another version than the log.
    OtherVersion {
        /// The stage with the other version.
        stage: StageIndex,
        /// The version in the log.
        expected: Step,
        /// The version that the stage has.
        found: Step,
    },
    /// An undecided step must begin anew, and the live workers have gone past it for good.
    CannotGoBack {
        /// The layer that cannot go back.
        layer: LayerId,
        /// The version that is needed.
        needed: Step,
        /// The version there is.
        found: Step,
    },
    /// A sealed layer is nowhere, though one of the holders that promised it lives.
    SealedLost {
        /// The layer that is lost.
        layer: LayerId,
        /// The version that was sealed.
        version: Step,
    },
    /// The leader rewinds the run, though nothing is lost.
    NeedlessRewind {
        /// The layer that it believes to be lost.
        layer: LayerId,
    },
    /// The run can never end from here.
    NoWayToTheEnd,
}

impl fmt::Display for ModelViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HistoryBroken { open, found } => {
                write!(f, "step {open} was sealed, and step {found} is open")
            }
            Self::SealedUncomputed { stage, turn } => {
                write!(f, "{turn} was sealed, and stage {stage} never computed it")
            }
            Self::OtherAttempt { stage, turn } => {
                write!(f, "stage {stage} takes a candidate that is not of {turn}")
            }
            Self::FencedCounted { node } => {
                write!(f, "a report of worker {node} is counted, and it is taken for dead")
            }
            Self::AppliedTwice { stage, step, found } => {
                write!(f, "step {step} is applied to version {found} of stage {stage}")
            }
            Self::OtherVersion { stage, expected, found } => {
                write!(f, "stage {stage} runs version {found}, the log says {expected}")
            }
            Self::CannotGoBack { layer, needed, found } => write!(
                f,
                "step {needed} must begin anew, layer {layer} is at version {found} and its \
                 pre-image is gone"
            ),
            Self::SealedLost { layer, version } => {
                write!(f, "version {version} of layer {layer} was sealed and is lost")
            }
            Self::NeedlessRewind { layer } => {
                write!(f, "the run goes back for layer {layer}, which is not lost")
            }
            Self::NoWayToTheEnd => write!(f, "the run cannot end any more"),
        }
    }
}

/// Looks at a state.
pub(super) fn check(
    transitions: &TransitionCache,
    world: &ModelState,
) -> Result<(), ModelViolation> {
    let state = transitions.state(world.agreed);
    world.counted(state).try_for_each(|worker| check_version(state, worker))?;
    let layer_count = state.job().expect("there is a job").spec.layer_count();
    (0..layer_count).map(LayerId).try_for_each(|layer| check_layer(transitions, world, layer))
}

/// A stage of the plan in force has the version of the log, or is one seal behind and has the
/// gradient that the seal needs. One that ran ahead of a proposal is not wrong yet: the same sums
/// lead to the same seal. It is once the attempt is over, and [`check_layer`] looks at that.
fn check_version(state: &State, worker: &ModelWorker) -> Result<(), ModelViolation> {
    let Some(active) = worker.active_stage().filter(|_| worker.generation == state.generation())
    else {
        return Ok(());
    };
    let stage = active.stage;
    let expected = state.open_turn().step;
    let found = active.version;
    let is_behind =
        state.training().seals().last_seal().is_some_and(|seal| active.half.check(seal).is_ok());
    let is_fit = if is_behind { active.half.is_reported() } else { found >= expected };
    if is_fit { Ok(()) } else { Err(ModelViolation::OtherVersion { stage, expected, found }) }
}

/// Every layer can be had at the version of the log from a worker that lives, unless all holders
/// that promised it are dead.
fn check_layer(
    transitions: &TransitionCache,
    world: &ModelState,
    layer: LayerId,
) -> Result<(), ModelViolation> {
    let state = transitions.state(world.agreed);
    let version = state.open_turn().step;
    if version == Step(0) || is_within_reach(world, state, layer) || is_excused(world, state, layer)
    {
        return Ok(());
    }
    let held = world.counted(state).filter_map(|worker| worker.layers().remove(&layer));
    match held.flatten().max().filter(|found| *found > version) {
        Some(_) if is_sealing(transitions, world, state.open_turn()) => Ok(()),
        Some(found) => Err(ModelViolation::CannotGoBack { layer, needed: version, found }),
        None => Err(ModelViolation::SealedLost { layer, version }),
    }
}

/// Whether the seal of a turn is in flight, and may be agreed on yet.
pub(super) fn is_sealing(transitions: &TransitionCache, world: &ModelState, turn: Turn) -> bool {
    world.in_flight.iter().any(|flying| match transitions.entry(flying.entry) {
        Entry::Seal(seal) => seal.turn == turn,
        Entry::Members(_)
        | Entry::Adopt(_)
        | Entry::Ready(_)
        | Entry::Resume { .. }
        | Entry::Durable { .. }
        | Entry::Keep { .. }
        | Entry::Checkpoint { .. }
        | Entry::Rewind { .. }
        | Entry::Job(_)
        | Entry::Access(_)
        | Entry::Format(_) => false,
    })
}

/// Whether a worker has the layer at the open version, or will once it learns the last seal.
fn is_within_reach(world: &ModelState, state: &State, layer: LayerId) -> bool {
    let version = state.open_turn().step;
    world.counted(state).any(|worker| {
        let has = worker.layers().get(&layer).is_some_and(|found| found.contains(&version));
        has || will_have(worker, state, layer)
    })
}

fn will_have(worker: &ModelWorker, state: &State, layer: LayerId) -> bool {
    let (ModelWorkerPhase::Active(active), Some(seal)) =
        (&worker.phase, state.training().seals().last_seal())
    else {
        return false;
    };
    let ModelActiveStage { plan, half, copy, .. } = active;
    let is_next = seal.next_turn().step == state.open_turn().step;
    let own_will = half.check(seal).is_ok() && half.is_reported();
    let is_own = plan.layers_of(active.stage).any(|own| own == layer);
    let copy_will = |copy: &&ModelStageCopy| copy.held == Some(seal.turn) && copy.open == seal.turn;
    let copy = copy.as_ref().filter(copy_will);
    let is_copied = copy.is_some_and(|copy| plan.layers_of(copy.of).any(|of| of == layer));
    is_next && active.is_running && (own_will && is_own || is_copied)
}

/// Whether all holders of the layer by the last plan that ran are dead, or declared so.
pub(super) fn is_excused(world: &ModelState, state: &State, layer: LayerId) -> bool {
    let plan = &world.ran;
    let stage = plan.stage_indices().find(|stage| plan.layers_of(*stage).any(|of| of == layer));
    let stage = stage.expect("every layer stands somewhere");
    let counts = |holder: Holder| world.workers.contains_key(&holder.node) && state.is_live(holder);
    !plan.holders_of(stage).any(counts)
}
