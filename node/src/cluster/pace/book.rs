//! What the steps of the plan in force took, as far as it is remembered for a review.

use std::collections::{BTreeMap, VecDeque};

use zbelastic_consensus::plan::PlanRecord;
use zbelastic_trainer::plan::{StageSample, StageTimes, calibrate, rounded_speed};
use zbelastic_types::{NodeId, StageIndex};

use super::{Known, Seated};
use crate::config::RunConfig;
use crate::train::timing::StepMeasure;

/// Steps that a review looks at: the middle one of each time counts, so two may be anything.
pub const REVIEW_STEPS: usize = 5;

/// The last steps of a plan.
#[derive(Debug, Default)]
pub struct PaceBook {
    steps: VecDeque<StepMeasure>,
}

impl PaceBook {
    /// Forgets what was measured.
    pub fn clear(&mut self) {
        self.steps.clear();
    }

    /// Takes in a step of the plan in force.
    pub fn note(&mut self, step: StepMeasure) {
        if self.steps.len() == REVIEW_STEPS {
            self.steps.pop_front();
        }
        self.steps.push_back(step);
    }

    /// What is known once these steps are, `known` being what was known before them; nothing before
    /// there are [`REVIEW_STEPS`], or if they tell nothing. `nodes` stand at the stages of `plan`,
    /// with what they brought.
    #[must_use]
    pub fn found(
        &self,
        known: &Known,
        config: &RunConfig,
        (plan, nodes): (&PlanRecord, &[Seated]),
    ) -> Option<Known> {
        if self.steps.len() < REVIEW_STEPS {
            return None;
        }
        let sample = |(stage, (_, brought)): (StageIndex, &Seated)| {
            let said = f64::from(brought.speed_permille.max(1)) / 1000.0;
            let layers = plan.layers_at(stage).map(|layer| layer.0);
            let (model, shape) = (&config.model, config.batch.microbatch);
            StageSample::of_layers(model, shape, layers, (said, self.stage_times(stage)))
                .in_turns(plan.program.placement.replica_count())
        };
        let samples: Vec<StageSample> = plan.stage_indices().zip(nodes).map(sample).collect();
        let (calibration, speeds) = calibrate(&samples)?;
        let mut found = Known { calibration: Some(calibration), ..known.clone() };
        for (((node, brought), sample), speed) in nodes.iter().zip(&samples).zip(speeds) {
            let Some(speed) = speed else { continue };
            let factor = rounded_speed(speed / sample.said);
            if factor == 1.0 {
                found.speeds.remove(node);
            } else {
                let permille = f64::from(brought.speed_permille.max(1)) * factor;
                found.speeds.insert(*node, (permille.round() as u32).max(1));
            }
        }
        for ((one, other), hop) in self.hops() {
            let (a, b) = (nodes[one.index()].0, nodes[other.index()].0);
            found.hops_us.insert((a.min(b), a.max(b)), hop);
        }
        Some(found)
    }

    fn stage_times(&self, stage: StageIndex) -> StageTimes {
        let middle = |of: fn(&StageTimes) -> f64| {
            median(self.steps.iter().map(|step| of(&step.stages[stage.index()])).collect())
        };
        StageTimes {
            f: middle(|times| times.f),
            b: middle(|times| times.b),
            w: middle(|times| times.w),
            bw: middle(|times| times.bw),
            update: middle(|times| times.update),
        }
    }

    fn hops(&self) -> BTreeMap<(StageIndex, StageIndex), f64> {
        let mut found: BTreeMap<(StageIndex, StageIndex), Vec<f64>> = BTreeMap::new();
        for (pair, hop) in self.steps.iter().flat_map(|step| &step.hops) {
            found.entry(*pair).or_default().push(*hop);
        }
        found.into_iter().map(|(pair, hops)| (pair, median(hops))).collect()
    }
}

/// Nodes that are no members any more are forgotten.
pub fn retain_members(known: &mut Known, is_member: impl Fn(NodeId) -> bool) {
    known.speeds.retain(|node, _| is_member(*node));
    known.hops_us.retain(|(a, b), _| is_member(*a) && is_member(*b));
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use zbelastic_consensus::member::{Holder, Resources};
    use zbelastic_consensus::plan::{PlanReason, Promise};
    use zbelastic_schedule::{ScheduleKind, Window};
    use zbelastic_trainer::plan::{Plan, PlanRequest};
    use zbelastic_types::{Bytes, Generation, Incarnation, Step};

    use super::*;
    use crate::config::{Flag, Sources, load};

    const NODES: [Seated; 3] = [seat(11), seat(12), seat(13)];

    const fn seat(node: u64) -> Seated {
        (NodeId(node), Resources { memory: Bytes(0), speed_permille: 2000 })
    }

    fn config() -> RunConfig {
        let flags = vec![Flag::Set("model.preset=tiny".to_owned())];
        load(&Sources { file: None, flags }).expect("legal").config
    }

    fn plan(config: &RunConfig) -> PlanRecord {
        let plan = Plan::new(PlanRequest {
            model: &config.model,
            batch: config.batch,
            kind: ScheduleKind::ZbH1,
            chunks_per_stage: None,
            slice_count: None,
            stage_count: NODES.len() as u32,
            window: Window::One,
        })
        .expect("legal");
        let holder = |(node, _): Seated| Holder { node, incarnation: Incarnation(1) };
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
    fn step(config: &RunConfig, plan: &PlanRecord, speeds: [f64; 3], hop: f64) -> StepMeasure {
        let times = |stage: StageIndex| {
            let layers = plan.layers_of(stage).map(|layer| layer.0);
            let (model, shape) = (&config.model, config.batch.microbatch);
            let nothing = StageTimes::default();
            let work = StageSample::of_layers(model, shape, layers, (1.0, nothing)).work;
            let [f, b, w] = [work.f, work.b, 2.0 * work.w].map(|w| w / speeds[stage.index()] / 1e3);
            StageTimes { f, b, w, bw: 0.0, update: 100.0 }
        };
        let stages = plan.stage_indices().map(times).collect();
        let hops = BTreeMap::from([((StageIndex(1), StageIndex(2)), hop)]);
        StepMeasure { stages, hops }
    }

    fn found(known: &Known, steps: &[([f64; 3], f64)]) -> Option<Known> {
        let config = config();
        let plan = plan(&config);
        let mut book = PaceBook::default();
        for (speeds, hop) in steps {
            book.note(step(&config, &plan, *speeds, *hop));
        }
        book.found(known, &config, (&plan, &NODES))
    }

    const ALIKE: ([f64; 3], f64) = ([1.0; 3], 200.0);
    const SLOW: ([f64; 3], f64) = ([1.0, 0.5, 1.0], 300.0);

    #[test]
    fn a_slow_node_is_found_and_those_that_are_as_they_say_are_not() {
        let known = found(&Known::default(), &[SLOW; REVIEW_STEPS]).expect("enough steps");
        assert_eq!(known.speeds.keys().collect::<Vec<_>>(), [&NodeId(12)]);
        let speed = f64::from(known.speeds[&NodeId(12)]) / 2000.0;
        assert!((speed / 0.5 - 1.0).abs() < 0.06, "{speed}");
        assert_eq!(known.hops_us, BTreeMap::from([((NodeId(12), NodeId(13)), 300.0)]));
        let calibration = known.calibration.expect("work was timed");
        assert!((calibration.w_us / calibration.f_us / 2.0 - 1.0).abs() < 1e-6, "{calibration:?}");
        let healed = found(&known, &[ALIKE; REVIEW_STEPS]).expect("enough steps");
        assert!(healed.speeds.is_empty(), "it is as fast as it says again");
    }

    #[test]
    fn a_few_steps_that_are_otherwise_change_nothing_and_too_few_tell_nothing() {
        let mut steps = [ALIKE; REVIEW_STEPS];
        (steps[1], steps[3]) = (SLOW, SLOW);
        let known = found(&Known::default(), &steps).expect("enough steps");
        assert!(known.speeds.is_empty());
        assert_eq!(known.hops_us[&(NodeId(12), NodeId(13))], 200.0);
        assert_eq!(found(&known, &steps[1..]), None);
    }

    #[test]
    fn nodes_and_links_that_are_not_in_the_plan_stay_as_they_were() {
        let speeds = BTreeMap::from([(NodeId(5), 700), (NodeId(12), 900)]);
        let hops_us = BTreeMap::from([((NodeId(5), NodeId(12)), 50.0)]);
        let known = Known { speeds, hops_us, ..Known::default() };
        let mut known = found(&known, &[ALIKE; REVIEW_STEPS]).expect("enough steps");
        assert_eq!(known.speeds, BTreeMap::from([(NodeId(5), 700)]));
        assert_eq!(known.hops_us[&(NodeId(5), NodeId(12))], 50.0);
        retain_members(&mut known, |node| node != NodeId(5));
        assert!(known.speeds.is_empty() && known.hops_us.len() == 1, "{known:?}");
    }
}
