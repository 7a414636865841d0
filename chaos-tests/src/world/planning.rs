//! The durations of passes in a life with machines of different speeds, and the estimates that a controller's process
//! derives from them.
//!
//! A worker's passes are timed as a worker's process times them, and a controller gets the times of a step if all
//! stages have them. A review lasts a while; the result of a controller that does not lead any more is not passed on.

use std::collections::BTreeMap;

use zbelastic_consensus::core::{Core, Input};
use zbelastic_consensus::member::Holder;
use zbelastic_consensus::state::StateChange;
use zbelastic_consensus::validation::Turn;
use zbelastic_planner::{ReviewOutcome, ReviewedPlan, STEPS_APART, StepMeasurement};
use zbelastic_schedule::{Compute, Op, Program};
use zbelastic_trainer::data::BatchSource;
use zbelastic_trainer::elastic::StageFactory;
use zbelastic_trainer::plan::{LayerWork, StageTimes, layer_work};
use zbelastic_trainer::stage::{EngineActivity, StageSetup};
use zbelastic_types::{Generation, NodeId, StageIndex};

use super::WorldEvent;
use super::controllers::Controllers;
use super::machines::{ControllerMachine, WorkerProcess};
use super::surroundings::Surroundings;
use super::worker_facts::WorkerFacts;
use crate::failure::{Invariant, LifeFailure};
use crate::markers::Marker;

/// Turns of which a worker remembers the passes: one is open, and one ahead of it may run.
const TURNS_MAX: usize = 3;
/// The duration of a stage's update, in microseconds: it costs no virtual time here.
const UPDATE_US: f64 = 10.0;

/// The durations of a worker's passes, by turn: how many of a kind, and their microseconds.
#[derive(Default)]
pub(super) struct PassTimes(BTreeMap<Turn, BTreeMap<Compute, (usize, u64)>>);

impl PassTimes {
    /// Adds an operation, if it is a pass.
    pub(super) fn add(&mut self, activity: EngineActivity, us: u64) {
        let EngineActivity::Op { turn, op: Op::Compute(compute, _) } = activity else { return };
        let (count, sum) = self.0.entry(turn).or_default().entry(compute).or_default();
        *count += 1;
        *sum += us;
        if self.0.len() > TURNS_MAX {
            self.0.pop_first();
        }
    }

    /// The time that the stage's passes of a turn needed for a microbatch, if all of its program
    /// are there.
    pub(super) fn stage_times(
        &self,
        turn: Turn,
        program: &Program,
        stage: StageIndex,
    ) -> Option<StageTimes> {
        let times = self.0.get(&turn)?;
        let planned = |compute: Compute| {
            let is_it = |op: &&Op| matches!(op, Op::Compute(found, _) if *found == compute);
            program.stages[stage.index()].iter().filter(is_it).count()
        };
        let passes = [Compute::F, Compute::B, Compute::W, Compute::BW];
        let run = |compute: &Compute| times.get(compute).map_or(0, |(count, _)| *count);
        if passes.iter().any(|compute| run(compute) != planned(*compute)) {
            return None;
        }
        let of_microbatch = |compute: Compute| {
            let us = times.get(&compute).map_or(0, |(_, us)| *us);
            us as f64 / f64::from(program.microbatch_count)
        };
        Some(StageTimes {
            f: of_microbatch(Compute::F),
            b: of_microbatch(Compute::B),
            w: of_microbatch(Compute::W) + of_microbatch(Compute::WE),
            bw: of_microbatch(Compute::BW),
            update: UPDATE_US,
            ..StageTimes::default()
        })
    }
}

impl Controllers {
    /// Applies an entry to the measurements of a controller's process, and has the plan in force
    /// judged if that is due.
    pub(super) fn note_pace(
        &mut self,
        env: &mut Surroundings<'_>,
        workers: &dyn WorkerFacts,
        node: NodeId,
        change: &StateChange,
    ) {
        if env.case.options.drift.is_none() {
            return;
        }
        let machine = self.machines.get_mut(&node).expect("a controller");
        let measured = if let StateChange::Sealed { seal, adopted: None, .. } = change {
            if machine.count_plan_step(seal.turn.generation) {
                env.mark(Marker::DriftReplanned);
            }
            machine.core.as_ref().and_then(|core| measured_step(core, workers, seal.turn))
        } else {
            None
        };
        let Some(core) = &machine.core else { return };
        let leads = core.duties().is_some();
        let state = core.state();
        let planner = &mut machine.planner;
        if !planner.tracker.note_change(change, state, |_| measured) {
            return;
        }
        let Some(review) = planner.tracker.begin_review(state, &planner.job, (leads, 0.0)) else {
            planner.tracker.give_up_review();
            return;
        };
        let reviewed = Box::new(review.judge(&planner.job));
        let life = machine.life;
        let at = env.now.after(env.draws_work.between(1_000, 40_000));
        env.queue.push(at, WorldEvent::Reviewed { node, life, reviewed });
    }

    pub(super) fn handle_reviewed(
        &mut self,
        env: &mut Surroundings<'_>,
        workers: &dyn WorkerFacts,
        node: NodeId,
        life: u64,
        reviewed: ReviewedPlan,
    ) {
        let Some(machine) = self.machines.get_mut(&node) else { return };
        let Some(core) = machine.core.as_ref().filter(|_| machine.life == life) else { return };
        let plan = core.state().plan();
        let is_of_drift = plan.is_some_and(|plan| plan.record.reason.is_drift());
        let generation = core.state().generation();
        let (of, steps) = machine.plan_steps;
        let outcome = machine.planner.tracker.handle_review(generation, reviewed);
        if let ReviewOutcome::Drifted { reason, is_replanned, text, .. } = outcome {
            env.note(|| format!("n{node}: {text}: {reason}"));
            if !is_replanned {
                env.mark(Marker::DriftKept);
            } else if is_of_drift && of == generation && steps < STEPS_APART {
                let message = format!(
                    "n{node} wants another plan for a drift after {steps} steps of one that was made for a drift"
                );
                env.fail(LifeFailure::safety(Invariant::L5, message));
            }
        }
        self.send_estimate(env, workers, node);
    }

    /// Passes to the core and to the search the estimates that they do not have yet, if the
    /// controller leads.
    pub(super) fn send_estimate(
        &mut self,
        env: &mut Surroundings<'_>,
        workers: &dyn WorkerFacts,
        node: NodeId,
    ) {
        if env.case.options.drift.is_none() {
            return;
        }
        let Some(machine) = self.machines.get_mut(&node) else { return };
        let Some(core) = &machine.core else { return };
        let (leads, generation) = (core.duties().is_some(), core.state().generation());
        let planner = &mut machine.planner;
        let Some(estimate) = planner.tracker.unsent(leads).cloned() else { return };
        planner.search.set_estimate(estimate);
        let measurement = planner.tracker.note_sent(generation);
        self.controller_input(env, workers, node, Input::Measured(Box::new(measurement)));
    }
}

/// The duration of a turn's step, if it is of the plan in force and all its stages have timed it.
fn measured_step(core: &Core, workers: &dyn WorkerFacts, turn: Turn) -> Option<StepMeasurement> {
    let plan = &core.state().plan()?.record;
    let times = |(stage, holder): (StageIndex, &Holder)| {
        workers.stage_times(holder.node, turn, &plan.program, stage)
    };
    let stages = plan.stage_indices().zip(&plan.stages).map(times);
    let stages =
        stages.collect::<Option<Vec<_>>>().filter(|_| plan.generation == turn.generation)?;
    Some(StepMeasurement {
        stages,
        hops: BTreeMap::new(),
        occupied: BTreeMap::new(),
        verdict: None,
    })
}

impl ControllerMachine {
    /// Counts the steps of a plan that its process has seen sealed. Yields whether this is the first
    /// of a plan that was made for a drift.
    fn count_plan_step(&mut self, generation: Generation) -> bool {
        let (of, steps) = &mut self.plan_steps;
        if *of == generation {
            *steps += 1;
            return false;
        }
        self.plan_steps = (generation, 1);
        let plan = self.core.as_ref().and_then(|core| core.state().plan());
        plan.is_some_and(|plan| plan.record.reason.is_drift())
    }
}

impl<M: StageFactory, S: BatchSource + Clone> WorkerProcess<M, S> {
    /// The duration of a pass in a life with machines of different speeds: the work that is counted
    /// for its layers, as a share of a step's. None in other lives.
    pub(super) fn pass_us(
        &self,
        env: &mut Surroundings<'_>,
        stage: &StageSetup,
        (node, activity): (NodeId, EngineActivity),
    ) -> Option<u64> {
        let drift = env.case.options.drift?;
        let EngineActivity::Op { op: Op::Compute(compute, pass), .. } = activity else {
            return None;
        };
        let plan = self.runtime.active_stage()?.plan();
        let work = layer_work(&stage.model, stage.plan.batch.microbatch);
        let of_pass = |layer: u32| {
            let LayerWork { f, b, w, w_early } = work[layer as usize];
            match compute {
                Compute::F | Compute::R => f,
                Compute::B => b,
                Compute::W => w - w_early,
                Compute::WE => w_early,
                Compute::BW => b + w,
            }
        };
        let pass: f64 = plan.chunks.get(pass.chunk.index())?.ids().map(of_pass).sum();
        let microbatches = f64::from(plan.program.microbatch_count);
        let step = microbatches * work.iter().map(LayerWork::total).sum::<f64>();
        // Machines are alike once the storm is over, so that a life ends.
        let slowness = if env.is_calm { 1 } else { drift.slowness(node, env.now) };
        Some(drift.pass_us(pass / step, slowness, env.draws_work.share()))
    }
}
