//! Where the time of a plan's steps goes: what stages tell of their work, measured in the way of a
//! run in one process, and drawn as its trace. A plan is reviewed by it.

use std::collections::BTreeMap;
use std::sync::Arc;

use zbelastic_consensus::plan::PlanRecord;
use zbelastic_consensus::validation::Turn;
use zbelastic_trainer::model::LayerTimes;
use zbelastic_trainer::plan::{Plan, class_costs};
use zbelastic_trainer::stage::{InitialWeights, StageSetup};
use zbelastic_types::{Generation, StageIndex};

use super::document::NamedJob;
use crate::train::timing::{
    ARRIVALS_TOLD_MAX, Arrival, Bubbles, SLICES_TOLD_MAX, Slice, StepMeasure, Timing,
};
use crate::train::trace::trace;

/// Operations of a program, over all stages, up to which its bubble is planned anew at each step:
/// to simulate so many takes a few milliseconds, and a leader has other things to do.
const PLANNED_OPS_MAX: usize = 20_000;

/// The times of the plan in force.
#[derive(Default)]
pub struct Stopwatch {
    plan: Option<(Generation, Timing)>,
    stage_count: u32,
    is_small: bool,
    /// By stage: what its layers took up to a report, and of which turn that was.
    layers: BTreeMap<StageIndex, (Turn, LayerTimes)>,
}

impl Stopwatch {
    /// A plan begins: what was measured of the one before is forgotten.
    pub fn begin(&mut self, job: &NamedJob, plan: &PlanRecord) {
        let timing = Timing::new(Arc::new(setup(job, plan)));
        self.plan = Some((plan.generation, timing));
        self.stage_count = plan.stages.len() as u32;
        let op_count: usize = plan.program.stages.iter().map(Vec::len).sum();
        self.is_small = op_count <= PLANNED_OPS_MAX;
        self.layers.clear();
    }

    /// A stage of this plan tells what it did. What cannot have been is dropped.
    pub fn record(&mut self, (of, stage): (Generation, StageIndex), slices: Vec<Slice>) {
        let Some((generation, timing)) = &mut self.plan else { return };
        let is_known = of == *generation && stage.0 < self.stage_count;
        if is_known && slices.len() <= SLICES_TOLD_MAX && slices.iter().all(Slice::is_sound) {
            timing.record(stage, slices);
        }
    }

    /// A stage of this plan tells what arrived when. What cannot have been is dropped.
    pub fn record_arrivals(&mut self, (of, stage): (Generation, StageIndex), arrivals: &[Arrival]) {
        let Some((generation, timing)) = &mut self.plan else { return };
        let is_known = of == *generation && stage.0 < self.stage_count;
        let is_sound = arrivals.len() <= ARRIVALS_TOLD_MAX;
        if is_known && is_sound && arrivals.iter().all(Arrival::is_sound) {
            timing.record_arrivals(stage, arrivals);
        }
    }

    /// A stage of this plan tells what its layers took. What cannot have been is dropped.
    pub fn record_layers(&mut self, (turn, stage): (Turn, StageIndex), times: LayerTimes) {
        let Some((generation, _)) = &self.plan else { return };
        if turn.generation == *generation && stage.0 < self.stage_count && times.is_sound() {
            self.layers.insert(stage, (turn, times));
        }
    }

    /// A turn is sealed for good. The bubbles of its step, if all stages told of it.
    pub fn end_step(&mut self, turn: Turn) -> Option<Bubbles> {
        let (generation, timing) = self.plan.as_mut()?;
        (turn.generation == *generation && self.is_small && timing.has_all_of(turn))
            .then(|| timing.end_step(turn))
    }

    /// What the step took that a turn brought to its end, if all stages told of it.
    #[must_use]
    pub fn measure(&self, turn: Turn) -> Option<StepMeasure> {
        let (generation, timing) = self.plan.as_ref()?;
        if turn.generation != *generation {
            return None;
        }
        let mut measure = timing.measure(turn)?;
        for (stage, times) in (0..).map(StageIndex).zip(&mut measure.stages) {
            if let Some((_, layers)) = self.layers.get(&stage).filter(|(of, _)| *of == turn) {
                times.classes = class_costs(layers, timing.slice_count());
            }
        }
        Some(measure)
    }

    /// The last steps of the plan as the text of a trace file.
    #[must_use]
    pub fn trace(&self) -> Option<String> {
        let (_, timing) = self.plan.as_ref().filter(|_| self.is_small)?;
        Some(trace(timing, self.stage_count))
    }
}

impl std::fmt::Debug for Stopwatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let generation = self.plan.as_ref().map(|(generation, _)| generation);
        f.debug_struct("Stopwatch").field("generation", &generation).finish_non_exhaustive()
    }
}

/// The run under a plan, as far as its times depend on it.
fn setup(job: &NamedJob, plan: &PlanRecord) -> StageSetup {
    let config = &job.job.config;
    StageSetup {
        model: config.model.clone(),
        plan: Plan {
            generation: plan.generation,
            program: plan.program.clone(),
            chunks: plan.chunks.clone(),
            batch: config.batch,
            recompute: config.memory.recomputed(),
        },
        optimizer: config.optimizer.clone(),
        clip_norm: config.guard.clip_norm,
        step_count: config.steps,
        evaluate_every: config.evaluate_every,
        weights: InitialWeights::Drawn { seed: config.seed },
        injections: Vec::new(),
        copies_wanted: false,
        attest_every: 0,
    }
}
