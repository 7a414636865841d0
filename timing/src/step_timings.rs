//! Where the time of a plan's steps goes: what stages report of their work, measured in the way of
//! a run in one process, and drawn as its trace. A plan is reviewed by it.

use std::collections::BTreeMap;
use std::sync::Arc;

use zbelastic_consensus::plan::PlanRecord;
use zbelastic_consensus::validation::Turn;
use zbelastic_planner::{PlannerJob, StepMeasurement, planned_memory};
use zbelastic_trainer::model::LayerTimes;
use zbelastic_trainer::plan::class_costs;
use zbelastic_trainer::stage::StageSetup;
use zbelastic_types::{Bytes, Generation, StageIndex, Step};

use crate::trace::trace;
use crate::{
    ARRIVALS_REPORTED_MAX, BubbleShares, MeasuredSlice, MessageArrival, RunTiming,
    SLICES_REPORTED_MAX,
};

/// Operations of a program, over all stages, up to which its memory is planned when it begins and its
/// bubble again at each step: to walk through so many takes a few milliseconds, and a leader has other
/// work.
const PLANNED_OPS_MAX: usize = 20_000;

/// The times of the plan in force.
#[derive(Default)]
pub struct StepTimings {
    plan: Option<(Generation, RunTiming)>,
    stage_count: u32,
    is_small: bool,
    /// By stage, the memory that is planned for it, in bytes; empty if the program is not small.
    memory: Vec<Bytes>,
    /// The bubbles of the last step that all stages reported.
    bubbles: Option<BubbleShares>,
    /// By stage: what its layers took up to a report, and of which turn that was.
    layers: BTreeMap<StageIndex, (Turn, LayerTimes)>,
}

impl StepTimings {
    /// A plan of this run begins: what was measured of the one before is dropped. Without a job that
    /// is planned, no memory is.
    pub fn begin(&mut self, setup: StageSetup, plan: &PlanRecord, job: Option<&PlannerJob>) {
        let timing = RunTiming::new(Arc::new(setup));
        self.plan = Some((plan.generation, timing));
        self.stage_count = plan.stages.len() as u32;
        let op_count: usize = plan.program.stages.iter().map(Vec::len).sum();
        self.is_small = op_count <= PLANNED_OPS_MAX;
        let planned = job.filter(|_| self.is_small).map(|job| planned_memory(job, plan));
        self.memory = planned.unwrap_or_default();
        self.bubbles = None;
        self.layers.clear();
    }

    /// A stage of this plan reports what it did. What cannot have been is dropped.
    pub fn record(&mut self, (of, stage): (Generation, StageIndex), slices: Vec<MeasuredSlice>) {
        let Some((generation, timing)) = &mut self.plan else { return };
        let is_known = of == *generation && stage.0 < self.stage_count;
        if is_known && slices.len() <= SLICES_REPORTED_MAX && timing.takes(&slices) {
            timing.record(stage, slices);
        }
    }

    /// A stage of this plan reports what arrived when. What cannot have been is dropped.
    pub fn record_arrivals(&mut self, of: (Generation, StageIndex), arrivals: &[MessageArrival]) {
        if !self.accepts(of, arrivals) {
            return;
        }
        if let Some((_, timing)) = &mut self.plan {
            timing.record_arrivals(of.1, arrivals);
        }
    }

    fn accepts(&self, (of, stage): (Generation, StageIndex), arrivals: &[MessageArrival]) -> bool {
        let is_known = self.plan.as_ref().is_some_and(|(generation, _)| of == *generation)
            && stage.0 < self.stage_count;
        is_known
            && arrivals.len() <= ARRIVALS_REPORTED_MAX
            && arrivals.iter().all(MessageArrival::is_sound)
    }

    /// A stage of this plan reports what its layers took. What cannot have been is dropped.
    pub fn record_layers(&mut self, (turn, stage): (Turn, StageIndex), times: LayerTimes) {
        let Some((generation, _)) = &self.plan else { return };
        if turn.generation == *generation && stage.0 < self.stage_count && times.is_sound() {
            self.layers.insert(stage, (turn, times));
        }
    }

    /// A turn is sealed for good. The bubbles of its step, if all stages reported it.
    pub fn end_step(&mut self, turn: Turn) -> Option<BubbleShares> {
        let (generation, timing) = self.plan.as_mut()?;
        let bubbles = (turn.generation == *generation && self.is_small && timing.has_all_of(turn))
            .then(|| timing.end_step(turn));
        self.bubbles = bubbles.or(self.bubbles);
        bubbles
    }

    /// The bubble of a step as it is planned, with the times of the last steps of this plan; none
    /// before all stages reported one.
    #[must_use]
    pub fn bubble_planned(&self) -> Option<f64> {
        self.bubbles.map(|bubbles| bubbles.planned)
    }

    /// The memory that the plan counts on for a stage, in bytes, if it was planned.
    #[must_use]
    pub fn memory_planned(&self, stage: StageIndex) -> Option<Bytes> {
        self.memory.get(stage.index()).copied()
    }

    /// The times of the step that ended with a turn, if all stages reported it.
    #[must_use]
    pub fn measure(&self, turn: Turn) -> Option<StepMeasurement> {
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

    /// The last steps of the plan as the text of a trace file, those from `from` on if there are such.
    #[must_use]
    pub fn trace(&self, from: Option<Step>) -> Option<String> {
        let (_, timing) = self.plan.as_ref().filter(|_| self.is_small)?;
        Some(trace(timing, self.stage_count, from))
    }
}

impl std::fmt::Debug for StepTimings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let generation = self.plan.as_ref().map(|(generation, _)| generation);
        f.debug_struct("StepTimings").field("generation", &generation).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use zbelastic_consensus::member::Holder;
    use zbelastic_consensus::plan::{PlanReason, Promise};
    use zbelastic_schedule::{Op, ScheduleKind, Window};
    use zbelastic_trainer::model::{LayerClass, LayerOp};
    use zbelastic_trainer::plan::{Plan, PlanRequest, ReplicaCount};
    use zbelastic_trainer::stage::EngineActivity;
    use zbelastic_types::{Attempt, Incarnation, NodeId};

    use super::*;
    use crate::{ArrivalKind, SliceActivity};
    use zbelastic_config::{RunConfig, load_document};

    /// A plan of three stages.
    fn plan(config: &RunConfig) -> PlanRecord {
        let plan = Plan::new(PlanRequest {
            model: &config.model,
            batch: config.batch,
            kind: ScheduleKind::ZbH1,
            chunks_per_stage: None,
            slice_count: None,
            stage_count: 3,
            replicas: ReplicaCount::ONE,
            window: Window::One,
        })
        .expect("legal");
        let holder = |node| Holder { node: NodeId(node), incarnation: Incarnation(1) };
        PlanRecord {
            generation: Generation(1),
            stages: [11, 12, 13].map(holder).to_vec(),
            copies: vec![Vec::new(); 3],
            promise: Promise::Kept,
            chunks: plan.chunks,
            program: plan.program,
            from_step: Step(0),
            sources: Vec::new(),
            expected: Vec::new(),
            op_ticks_max: 1,
            reason: PlanReason::First,
        }
    }

    fn begun() -> (StepTimings, PlanRecord) {
        let config = load_document("test", "[model]\npreset = \"tiny\"\n").expect("legal").config;
        let plan = plan(&config);
        let setup =
            config.stage_setup(Plan::of_record(&plan, config.batch, config.memory.recomputed()));
        let mut timings = StepTimings::default();
        timings.begin(setup, &plan, config.planner_job().ok().as_ref());
        (timings, plan)
    }

    /// A pass of each kind that a program has, of each microbatch, a millisecond each.
    fn reported(plan: &PlanRecord, stage: StageIndex, turn: Turn) -> Vec<MeasuredSlice> {
        let ops = plan.program.stages[stage.index()].iter();
        let computed = ops.filter(|op| matches!(op, Op::Compute(..)));
        let slice = |(op, at): (&Op, u32)| {
            let start_us = 1e3 * f64::from(at);
            let doing = SliceActivity::Ran(EngineActivity::Op { op: *op, turn });
            MeasuredSlice { doing, start_us, end_us: start_us + 1e3 }
        };
        computed.zip(0..).map(slice).collect()
    }

    #[test]
    fn the_planned_bubble_is_that_of_the_last_step_of_this_plan_that_all_stages_reported() {
        let (mut timings, plan) = begun();
        let of = turn(Generation(1));
        assert_eq!(timings.bubble_planned(), None);
        for stage in (0..3).map(StageIndex) {
            assert_eq!(timings.end_step(of), None, "a stage is missing");
            timings.record((Generation(1), stage), reported(&plan, stage, of));
        }
        let planned = timings.end_step(of).expect("all stages reported it").planned;
        assert!((0.0..1.0).contains(&planned), "{planned}");
        assert_eq!(timings.bubble_planned(), Some(planned));
        assert_eq!(timings.end_step(turn(Generation(2))), None, "another plan");
        assert_eq!(timings.bubble_planned(), Some(planned), "the last one stays");
        let (begun, _) = begun();
        assert_eq!(begun.bubble_planned(), None);
    }

    #[test]
    fn each_stage_of_a_small_plan_has_a_planned_memory() {
        let (timings, _) = begun();
        let memory = [0, 1, 2, 3].map(|stage| timings.memory_planned(StageIndex(stage)));
        assert!(memory[..3].iter().all(|bytes| *bytes > Some(Bytes(1 << 16))), "{memory:?}");
        assert_eq!(memory[3], None, "no such stage");
    }

    fn turn(generation: Generation) -> Turn {
        Turn { generation, step: Step(1), attempt: Attempt(0) }
    }

    #[test]
    fn times_of_layers_that_cannot_be_or_belong_elsewhere_are_dropped() {
        let recorded = |generation: Generation, stage: u32, us: f64| {
            let (mut timings, plan) = begun();
            let mut times = LayerTimes::default();
            times.add(LayerClass::Mlp, LayerOp::Forward, us);
            timings.record_layers((turn(generation), StageIndex(stage)), times);
            assert_eq!(plan.generation, Generation(1));
            timings.layers.len()
        };
        assert_eq!(recorded(Generation(1), 2, 5.0), 1);
        assert_eq!(recorded(Generation(2), 2, 5.0), 0, "another plan");
        assert_eq!(recorded(Generation(1), 3, 5.0), 0, "no such stage");
        for us in [f64::NAN, -1.0, f64::INFINITY] {
            assert_eq!(recorded(Generation(1), 2, us), 0, "{us}");
        }
    }

    #[test]
    fn arrivals_that_cannot_be_or_belong_elsewhere_are_dropped() {
        let arrival = |at_us| {
            let what = ArrivalKind::Prefix { turn: turn(Generation(1)) };
            MessageArrival { what, bytes: 0, at_us }
        };
        let (timings, _) = begun();
        let accepts = |generation, stage, arrivals: &[MessageArrival]| {
            timings.accepts((Generation(generation), StageIndex(stage)), arrivals)
        };
        let many = |count| vec![arrival(1.0); count];
        assert!(accepts(1, 2, &many(ARRIVALS_REPORTED_MAX)));
        assert!(!accepts(1, 2, &many(ARRIVALS_REPORTED_MAX + 1)), "more than one may tell");
        assert!(!accepts(2, 2, &many(1)), "another plan");
        assert!(!accepts(1, 3, &many(1)), "no such stage");
        for at_us in [f64::NAN, -1.0, f64::INFINITY] {
            assert!(!accepts(1, 2, &[arrival(1.0), arrival(at_us)]), "{at_us}");
        }
    }
}
