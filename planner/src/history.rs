//! The times of the steps of the plan in force, as far as they are remembered for a review.

use std::collections::{BTreeMap, VecDeque};

use zbelastic_consensus::plan::PlanRecord;
use zbelastic_schedule::{MemoryOp, Op};
use zbelastic_trainer::model::LayerClass;
use zbelastic_trainer::plan::{
    LayerCost, LayerWork, Pace, StageSample, StageTimes, calibrate, median, rounded_speed,
};
use zbelastic_types::{NodeId, StageIndex};

use crate::estimate::{LinkTimes, PaceEstimate};
use crate::fallback::PlannerJob;
use crate::measurement::StepMeasurement;
use crate::node_choices::NodeResources;

/// Steps that a review looks at: the middle one of each time counts, so two may be anything.
pub const REVIEW_STEPS: usize = 5;

/// Steps of these in which a verdict must have been waited for, to measure its time: where most are
/// there in time, the few that are not show the time of the slowest.
const VERDICTS_LEAST: usize = REVIEW_STEPS / 2 + 1;

/// The last steps of a plan.
#[derive(Debug, Default)]
pub struct PaceHistory {
    steps: VecDeque<StepMeasurement>,
}

impl PaceHistory {
    /// Drops the measurements.
    pub fn clear(&mut self) {
        self.steps.clear();
    }

    /// Adds a step of the plan in force.
    pub fn note(&mut self, step: StepMeasurement) {
        if self.steps.len() == REVIEW_STEPS {
            self.steps.pop_front();
        }
        self.steps.push_back(step);
    }

    /// The estimate with these steps, `known` being the one before them; nothing before there are
    /// [`REVIEW_STEPS`], or if nothing follows from them. `nodes` are those at the stages of
    /// `plan`, with their resources.
    #[must_use]
    pub fn estimate(
        &self,
        estimate: &PaceEstimate,
        job: &PlannerJob,
        (plan, nodes): (&PlanRecord, &[NodeResources]),
    ) -> Option<PaceEstimate> {
        if self.steps.len() < REVIEW_STEPS {
            return None;
        }
        let sample = |(stage, (_, resources)): (StageIndex, &NodeResources)| {
            let claimed = f64::from(resources.speed_permille.max(1)) / 1000.0;
            let layers = plan.layers_at(stage).map(|layer| layer.0);
            let model = &job.model;
            let shape = job.batch.microbatch;
            let copied = copied(job, plan, stage);
            let of_layers = (claimed, self.stage_times(stage));
            let sample = StageSample::of_layers(model, shape, layers, of_layers)
                .per_replica(plan.program.placement.replica_count());
            StageSample { copied, ..sample }
        };
        let samples: Vec<StageSample> = plan.stage_indices().zip(nodes).map(sample).collect();
        let (calibration, speeds) = calibrate(&samples)?;
        let calibration = calibration.steadied(estimate.calibration.as_ref());
        let mut found = PaceEstimate { calibration: Some(calibration), ..estimate.clone() };
        for (((node, resources), sample), speed) in nodes.iter().zip(&samples).zip(speeds) {
            let Some(speed) = speed else { continue };
            let factor = rounded_speed(speed / sample.reported_speed);
            if factor == 1.0 {
                found.speeds.remove(node);
            } else {
                let permille = f64::from(resources.speed_permille.max(1)) * factor;
                found.speeds.insert(*node, (permille.round() as u32).max(1));
            }
        }
        for ((one, other), link) in self.links() {
            let a = nodes[one.index()].0;
            let b = nodes[other.index()].0;
            found.links.insert((a.min(b), a.max(b)), link);
        }
        let verdicts: Vec<f64> = self.steps.iter().filter_map(|step| step.verdict).collect();
        if verdicts.len() >= VERDICTS_LEAST {
            found.verdict_us = median_or_zero(verdicts);
        }
        let seated = found.seated(nodes);
        found.pace(job, &seated).is_finite().then_some(found)
    }

    fn stage_times(&self, stage: StageIndex) -> StageTimes {
        let middle = |of: fn(&StageTimes) -> f64| {
            median_or_zero(self.steps.iter().map(|step| of(&step.stages[stage.index()])))
        };
        StageTimes {
            f: middle(|times| times.f),
            b: middle(|times| times.b),
            w: middle(|times| times.w),
            bw: middle(|times| times.bw),
            update: middle(|times| times.update),
            classes: LayerClass::ALL.map(|class| self.layer_cost(stage, class)),
            copies: middle(|times| times.copies),
        }
    }

    /// The time of a layer, in the steps in which it was timed.
    fn layer_cost(&self, stage: StageIndex, class: LayerClass) -> Option<LayerCost> {
        let timed = self.steps.iter().map(|step| step.stages[stage.index()]);
        let timed: Vec<LayerCost> = timed.filter_map(|s| s.classes[class.index()]).collect();
        let middle = |of: fn(&LayerCost) -> f64| median_or_zero(timed.iter().map(of));
        let remade: Vec<f64> = timed.iter().filter_map(|cost| cost.recompute).collect();
        (!timed.is_empty()).then(|| LayerCost {
            work: LayerWork {
                f: middle(|cost| cost.work.f),
                b: middle(|cost| cost.work.b),
                w: middle(|cost| cost.work.w),
                w_early: middle(|cost| cost.work.w_early),
            },
            update: middle(|cost| cost.update),
            recompute: (!remade.is_empty()).then(|| median_or_zero(remade)),
        })
    }

    /// The time in which the link is occupied is a part of the hop; the rest is latency.
    fn links(&self) -> BTreeMap<(StageIndex, StageIndex), LinkTimes> {
        let occupied = self.medians(|step| &step.occupied);
        let link = |(pair, hop_us): ((StageIndex, StageIndex), f64)| {
            let occupancy_us = occupied.get(&pair).copied().unwrap_or(0.0).min(hop_us);
            (pair, LinkTimes { latency_us: hop_us - occupancy_us, occupancy_us })
        };
        self.medians(|step| &step.hops).into_iter().map(link).collect()
    }

    fn medians(
        &self,
        of: fn(&StepMeasurement) -> &BTreeMap<(StageIndex, StageIndex), f64>,
    ) -> BTreeMap<(StageIndex, StageIndex), f64> {
        let mut found: BTreeMap<(StageIndex, StageIndex), Vec<f64>> = BTreeMap::new();
        for (pair, us) in self.steps.iter().flat_map(of) {
            found.entry(*pair).or_default().push(*us);
        }
        found.into_iter().map(|(pair, all)| (pair, median_or_zero(all))).collect()
    }
}

/// The time that is counted for a stage's copies of a step.
fn copied(job: &PlannerJob, plan: &PlanRecord, stage: StageIndex) -> f64 {
    let copies = Pace::estimated(&job.model, job.batch.microbatch).copies;
    let of_op = |op: &Op| match op {
        Op::Memory(MemoryOp::Offload | MemoryOp::Reload, pass) => {
            let layers = plan.chunks[pass.chunk.index()].ids();
            layers.map(|layer| copies[layer as usize]).sum()
        }
        Op::Memory(MemoryOp::Drop, _)
        | Op::Compute(..)
        | Op::Transfer(..)
        | Op::Update(_)
        | Op::Reduce(..) => 0.0,
    };
    let sum: f64 = plan.program.stages[stage.index()].iter().map(of_op).sum();
    sum / f64::from(plan.program.slice_count)
}

/// Removes nodes that are no members any more.
pub fn retain_members(estimate: &mut PaceEstimate, is_member: impl Fn(NodeId) -> bool) {
    estimate.speeds.retain(|node, _| is_member(*node));
    estimate.links.retain(|(a, b), _| is_member(*a) && is_member(*b));
}

/// The median of measurements, or 0 if there are none.
fn median_or_zero(measurements: impl IntoIterator<Item = f64>) -> f64 {
    median(measurements, f64::total_cmp).unwrap_or(0.0)
}

#[cfg(test)]
pub(crate) mod tests {
    use zbelastic_consensus::member::{Holder, Resources};
    use zbelastic_consensus::plan::{PlanReason, Promise};
    use zbelastic_schedule::{ScheduleKind, Window};
    use zbelastic_trainer::plan::{Plan, PlanRequest, ReplicaCount, layer_work};
    use zbelastic_types::{Bytes, Generation, Incarnation, Step};

    use super::*;
    use crate::search::tests::job;

    pub(crate) const NODES: [NodeResources; 3] =
        [resources_of(11), resources_of(12), resources_of(13)];

    const fn resources_of(node: u64) -> NodeResources {
        (
            NodeId(node),
            Resources {
                memory: Bytes(0),
                speed_permille: 2000,
                class: zbelastic_consensus::class::DeviceClass::Processors,
            },
        )
    }

    pub(crate) fn plan(job: &PlannerJob) -> PlanRecord {
        let plan = Plan::new(PlanRequest {
            model: &job.model,
            batch: job.batch,
            kind: ScheduleKind::ZbH1,
            chunks_per_stage: None,
            slice_count: None,
            stage_count: NODES.len() as u32,
            replicas: ReplicaCount::ONE,
            window: Window::One,
        })
        .expect("legal");
        let holder = |(node, _): NodeResources| Holder { node, incarnation: Incarnation(1) };
        PlanRecord {
            generation: Generation(1),
            stages: NODES.map(holder).to_vec(),
            copies: vec![Vec::new(); NODES.len()],
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

    /// A step in which these stages did their work at these speeds, and a hop took so long.
    pub(crate) fn step(
        job: &PlannerJob,
        plan: &PlanRecord,
        speeds: [f64; 3],
        hop: f64,
    ) -> StepMeasurement {
        let times = |stage: StageIndex| {
            let layers = plan.layers_of(stage).map(|layer| layer.0);
            let model = &job.model;
            let shape = job.batch.microbatch;
            let nothing = StageTimes::default();
            let work = StageSample::of_layers(model, shape, layers, (1.0, nothing)).work;
            let [f, b, w] = [work.f, work.b, 2.0 * work.w].map(|w| w / speeds[stage.index()] / 1e3);
            StageTimes { f, b, w, update: 100.0, ..StageTimes::default() }
        };
        let stages = plan.stage_indices().map(times).collect();
        let pair = (StageIndex(1), StageIndex(2));
        let hops = BTreeMap::from([(pair, hop)]);
        let occupied = BTreeMap::from([(pair, 50.0)]);
        StepMeasurement { stages, hops, occupied, verdict: None }
    }

    fn found(estimate: &PaceEstimate, steps: &[([f64; 3], f64)]) -> Option<PaceEstimate> {
        let job = job();
        let plan = plan(&job);
        let mut history = PaceHistory::default();
        for (speeds, hop) in steps {
            history.note(step(&job, &plan, *speeds, *hop));
        }
        history.estimate(estimate, &job, (&plan, &NODES))
    }

    /// The same, with layers timed: the head takes so many times what it is counted.
    fn timed(job: &PlannerJob, plan: &PlanRecord, head: f64) -> StepMeasurement {
        let model = &job.model;
        let shape = job.batch.microbatch;
        let times = |stage: StageIndex| {
            let mut times = StageTimes { update: 100.0, ..StageTimes::default() };
            for layer in plan.layers_of(stage) {
                let class = LayerClass::of(model.layer_kind(layer));
                let factor = if class == LayerClass::Head { head } else { 1.0 };
                let work = layer_work(model, shape)[layer.index()].scaled(1e-3 * factor);
                let cost = LayerCost { work, update: 10.0, recompute: None };
                times.classes[class.index()] = Some(cost);
                times.f += work.f;
                times.b += work.b;
                times.w += work.w;
            }
            times
        };
        let stages = plan.stage_indices().map(times).collect();
        StepMeasurement { stages, hops: BTreeMap::new(), occupied: BTreeMap::new(), verdict: None }
    }

    #[test]
    fn a_heavy_head_is_distinguished_from_a_slow_node() {
        let job = job();
        let plan = plan(&job);
        let mut history = PaceHistory::default();
        for head in [3.0, 3.0, 0.1, 30.0, 3.0] {
            history.note(timed(&job, &plan, head));
        }
        let estimate = PaceEstimate::default();
        let found = history.estimate(&estimate, &job, (&plan, &NODES)).expect("enough steps");
        assert!(found.speeds.is_empty(), "all are as fast as they say: {:?}", found.speeds);
        let calibration = found.calibration.expect("work was timed");
        let of = |class: LayerClass| calibration.classes[class.index()].expect("it was timed").work;
        let work = layer_work(&job.model, job.batch.microbatch);
        let counted = work.last().expect("the head").total() / work[1].total();
        let share = of(LayerClass::Head).total() / of(LayerClass::Attention).total() / counted;
        assert!((share - 3.0).abs() < 1e-6, "{share} times what is counted");
    }

    const ALIKE: ([f64; 3], f64) = ([1.0; 3], 200.0);
    const SLOW: ([f64; 3], f64) = ([1.0, 0.5, 1.0], 300.0);

    #[test]
    fn a_slow_node_is_found_and_those_that_are_as_they_say_are_not() {
        let estimate =
            found(&PaceEstimate::default(), &[SLOW; REVIEW_STEPS]).expect("enough steps");
        assert_eq!(estimate.speeds.keys().collect::<Vec<_>>(), [&NodeId(12)]);
        let speed = f64::from(estimate.speeds[&NodeId(12)]) / 2000.0;
        assert!((speed / 0.5 - 1.0).abs() < 0.06, "{speed}");
        let link = LinkTimes { latency_us: 250.0, occupancy_us: 50.0 };
        assert_eq!(estimate.links, BTreeMap::from([((NodeId(12), NodeId(13)), link)]));
        let calibration = estimate.calibration.expect("work was timed");
        assert!((calibration.w_us / calibration.f_us / 2.0 - 1.0).abs() < 1e-6, "{calibration:?}");
        let healed = found(&estimate, &[ALIKE; REVIEW_STEPS]).expect("enough steps");
        assert!(healed.speeds.is_empty(), "it is as fast as it says again");
    }

    #[test]
    fn a_few_steps_that_are_otherwise_change_nothing_and_too_few_tell_nothing() {
        let mut steps = [ALIKE; REVIEW_STEPS];
        (steps[1], steps[3]) = (SLOW, SLOW);
        let estimate = found(&PaceEstimate::default(), &steps).expect("enough steps");
        assert!(estimate.speeds.is_empty());
        assert_eq!(estimate.links[&(NodeId(12), NodeId(13))].total_us(), 200.0);
        assert_eq!(found(&estimate, &steps[1..]), None);
    }

    #[test]
    fn nodes_and_links_that_are_not_in_the_plan_stay_as_they_were() {
        let speeds = BTreeMap::from([(NodeId(5), 700), (NodeId(12), 900)]);
        let link = LinkTimes { latency_us: 50.0, occupancy_us: 0.0 };
        let links = BTreeMap::from([((NodeId(5), NodeId(12)), link)]);
        let estimate = PaceEstimate { speeds, links, verdict_us: 7.0, ..PaceEstimate::default() };
        let mut estimate = found(&estimate, &[ALIKE; REVIEW_STEPS]).expect("enough steps");
        assert_eq!(estimate.speeds, BTreeMap::from([(NodeId(5), 700)]));
        assert_eq!((estimate.links[&(NodeId(5), NodeId(12))], estimate.verdict_us), (link, 7.0));
        retain_members(&mut estimate, |node| node != NodeId(5));
        assert!(estimate.speeds.is_empty() && estimate.links.len() == 1, "{estimate:?}");
    }
}
