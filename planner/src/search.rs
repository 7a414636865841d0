//! Finds the plan of a job on some nodes, remembers the plans that it found, and looks ahead: the plans for one node
//! less and one more are found before they are needed, so that a loss does not wait for a search.

use std::collections::BTreeMap;
use std::time::Duration;

use zbelastic_consensus::duty::{PlanInForce, PlanSolution};
use zbelastic_kernels::DeviceSizes;
use zbelastic_schedule::{ScheduleKind, Window};
use zbelastic_trainer::model::model_layers;
use zbelastic_trainer::plan::{Pace, Plan, ReplicaCount, best_grid, layer_work};
use zbelastic_types::{Bytes, LayerRange, NodeId, StageIndex};

use crate::estimate::PaceEstimate;
use crate::fallback::{PlanFallback, PlannerJob};
use crate::in_force::{RetainedPlan, RetainedPlans, departure, retained_plans};
use crate::node_choices::{NO_NODE, NodeResources, first_plan, memory_limits};
use crate::shortage::RunShortage;
use crate::successor::{Departure, PlanSuccessor, SuccessorChoice, SuccessorPeriods};

/// Solutions remembered; with more, those for the most nodes go first.
const REMEMBERED_MAX: usize = 256;
/// Floating-point operations per second of a device of speed 1000: one core of the kind that this
/// was measured on, rounded down.
const REFERENCE_FLOP_PER_S: f64 = 2e10;
/// Bytes that an update moves for each weight, at most: the squares of its gradient, its candidate, its
/// commit, and the fingerprint of the result (docs/decisions/0038).
const UPDATE_BYTES_PER_WEIGHT: f64 = 64.0;
/// Bytes per second that a device of speed 1000 moves at least, with its neighbours doing the same.
/// It was chosen, and nobody has measured it: memory of machines that are rented gives several
/// times as much.
const REFERENCE_BYTES_PER_S: f64 = 1e9;
/// How many times longer than predicted an operation may last: cores are shared, and shared cores
/// are preempted.
const PATIENCE: f64 = 10.0;
/// Seconds that an operation may last however small it is: the longest a busy machine keeps a
/// thread waiting, with room.
const OP_SECONDS_MIN: f64 = 1.0;

/// Nodes of which the loss of each is looked ahead to; of more, the loss of the first ones, which
/// mostly are like the others.
const LOSSES_MAX: usize = 8;

/// The inputs of a plan, beside the job and the time of counted work.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PlanQuery {
    stage_count: u32,
    replicas: ReplicaCount,
    kinds: Vec<ScheduleKind>,
    chunks_per_stage: Option<u32>,
    is_ahead: bool,
    /// The memory that each stage may use, by stage; none if no stage has a limit.
    pub(crate) bytes_max: Vec<Bytes>,
    /// By stage, in thousandths of a reference device's.
    speeds: Vec<u32>,
    /// Of a boundary tensor, latency and occupancy, and of a verdict, in whole microseconds.
    message_us: [u64; 3],
}

impl PlanQuery {
    pub(crate) fn new(
        fallback: PlanFallback<'_>,
        (nodes, window): (&[NodeResources], Window),
        (pace, most): (&Pace, Option<Bytes>),
    ) -> Self {
        Self {
            stage_count: fallback.grid.stage_count,
            replicas: fallback.grid.replicas,
            kinds: fallback.kinds.to_vec(),
            chunks_per_stage: fallback.chunks_per_stage,
            is_ahead: window == Window::One,
            bytes_max: memory_limits(most, nodes),
            speeds: nodes.iter().map(|(_, brought)| brought.speed_permille).collect(),
            message_us: [pace.link, pace.occupancy, pace.verdict].map(|us| us.round() as u64),
        }
    }
}

/// A plan with the time of its steps.
type FoundPlan = (PlanSolution, f64);

/// Finds plans, and remembers them. It is for one job: with another one, [`PlanSearch::clear`] it.
#[derive(Debug)]
pub struct PlanSearch {
    /// The length of a tick, in which a solution says when an operation hangs.
    tick: Duration,
    estimate: PaceEstimate,
    found: BTreeMap<PlanQuery, Result<FoundPlan, String>>,
}

impl PlanSearch {
    /// A search that has found nothing, for a cluster with ticks of this length.
    #[must_use]
    pub fn new(tick: Duration) -> Self {
        Self { tick, estimate: PaceEstimate::default(), found: BTreeMap::new() }
    }

    /// Forgets the plans that were found: the job is another one.
    pub fn clear(&mut self) {
        self.found.clear();
    }

    /// Plans are made with this from now on.
    pub fn set_estimate(&mut self, estimate: PaceEstimate) {
        self.estimate = estimate;
        self.found.clear();
    }

    /// The first plan that can be had on some of the nodes: on those that stand first, or on those with the
    /// most memory.
    ///
    /// # Errors
    /// Why the last that was tried cannot be had.
    pub fn solve(
        &mut self,
        job: &PlannerJob,
        window: Window,
        nodes: &[NodeResources],
    ) -> Result<PlanSolution, String> {
        self.solve_timed(job, window, nodes).map(|(solution, _)| solution)
    }

    /// The same where the plan in force may go on on those that stay of it, or with free nodes at some of
    /// its places. Where one leaves or is free, what was chosen, and why.
    ///
    /// # Errors
    /// If no plan can be had: as [`Self::solve`].
    pub fn solve_from(
        &mut self,
        (job, window): (&PlannerJob, Window),
        nodes: &[NodeResources],
        in_force: Option<&PlanInForce>,
    ) -> Result<(PlanSolution, Option<SuccessorChoice>), String> {
        let Some(in_force) = in_force else {
            return self.solve(job, window, nodes).map(|solution| (solution, None));
        };
        let RetainedPlans { kept, refilled } =
            retained_plans((job, window), in_force, nodes, &self.estimate);
        let other = self.solve_timed(job, window, nodes);
        let period = |plan: &Option<RetainedPlan>| plan.as_ref().map(|plan| plan.period);
        let periods = SuccessorPeriods {
            kept: period(&kept),
            refilled: period(&refilled),
            cut_anew: other.as_ref().ok().map(|(_, period)| *period),
        };
        let departure = departure(in_force);
        let choice = periods.choose(departure);
        let retained = match choice.chosen {
            PlanSuccessor::Kept => kept,
            PlanSuccessor::Refilled => refilled,
            PlanSuccessor::CutAnew => None,
        };
        let solution = match retained {
            Some(retained) => self.solution_of(job, retained, nodes),
            None => other?.0,
        };
        let is_logged = departure != Departure::Nobody || choice.refilled.is_some();
        Ok((solution, is_logged.then_some(choice)))
    }

    /// What a job lacks on nodes for which no plan was found. `None` if it is not memory.
    #[must_use]
    pub fn shortage(
        &self,
        job: &PlannerJob,
        window: Window,
        nodes: &[NodeResources],
    ) -> Option<RunShortage> {
        job.shortage(window, nodes, &self.estimate)
    }

    fn solution_of(
        &self,
        job: &PlannerJob,
        kept: RetainedPlan,
        nodes: &[NodeResources],
    ) -> PlanSolution {
        let RetainedPlan { plan, stage_nodes, .. } = kept;
        let nodes: Vec<NodeResources> = stage_nodes.iter().map(|at| nodes[*at]).collect();
        let op_ticks_max = self.op_ticks_max(job, &plan, &nodes);
        PlanSolution { program: plan.program, chunks: plan.chunks, stage_nodes, op_ticks_max }
    }

    /// As [`Self::solve`], with the time of a step.
    fn solve_timed(
        &mut self,
        job: &PlannerJob,
        window: Window,
        nodes: &[NodeResources],
    ) -> Result<FoundPlan, String> {
        let grids = job.grid_limits().grids(nodes.len() as u32);
        let is_priced = self.estimate.calibration.is_some();
        let found = best_grid(grids, is_priced, |grid| {
            let fallbacks = job.fallbacks(grid);
            let tried = fallbacks.into_iter().map(|fallback| (fallback, fallback.grid.workers()));
            let ((solution, period), places) = first_plan(nodes, tried, |fallback, places| {
                self.plan_for(job, fallback, window, (nodes, places))
            })?;
            Ok(((PlanSolution { stage_nodes: places, ..solution }, period), period))
        });
        found.map_err(|error: Option<String>| error.unwrap_or_else(|| NO_NODE.to_owned()))
    }

    /// Plans for one node less, whichever it is, two less, and one more, unless a request comes in
    /// between: they are found in milliseconds, so none is interrupted. Of nodes that are alike it
    /// does not matter which one goes, and one plan is found for all.
    pub fn solve_ahead(&mut self, job: &PlannerJob, window: Window, nodes: &[NodeResources]) {
        let without = |gone: usize| {
            let others = nodes.iter().enumerate().filter(|(index, _)| *index != gone);
            others.map(|(_, node)| *node).collect::<Vec<NodeResources>>()
        };
        let mut ahead: Vec<Vec<NodeResources>> =
            (0..nodes.len()).take(LOSSES_MAX).map(without).collect();
        ahead.push(nodes[..nodes.len().saturating_sub(2)].to_vec());
        let another = nodes.last().map(|(_, brought)| (NodeId(u64::MAX), *brought));
        ahead.push(nodes.iter().copied().chain(another).collect());
        for nodes in ahead {
            let grids = job.grid_limits().grids(nodes.len() as u32);
            if grids.iter().any(|grid| grid.workers() as usize == nodes.len()) {
                let _ = self.solve(job, window, &nodes);
            }
        }
    }

    fn plan_for(
        &mut self,
        job: &PlannerJob,
        fallback: PlanFallback<'_>,
        window: Window,
        (nodes, places): (&[NodeResources], &[usize]),
    ) -> Result<FoundPlan, String> {
        let nodes: Vec<NodeResources> = places.iter().map(|at| nodes[*at]).collect();
        let pace = self.estimate.pace(job, &nodes);
        let query = PlanQuery::new(fallback, (&nodes, window), (&pace, job.stage_bytes_max));
        if let Some(found) = self.found.get(&query) {
            return found.clone();
        }
        let found = self.solve_query((job, fallback, window), &query, (&pace, &nodes));
        if self.found.len() >= REMEMBERED_MAX {
            self.found.pop_last();
        }
        self.found.insert(query, found.clone());
        found
    }

    fn solve_query(
        &self,
        (job, fallback, window): (&PlannerJob, PlanFallback<'_>, Window),
        query: &PlanQuery,
        (pace, nodes): (&Pace, &[NodeResources]),
    ) -> Result<FoundPlan, String> {
        let choice = job.choose(fallback, window, (&query.bytes_max, pace))?;
        let op_ticks_max = self.op_ticks_max(job, &choice.plan, nodes);
        let Plan { program, chunks, .. } = choice.plan;
        let places = (0..nodes.len()).collect();
        let period = choice.prediction.period;
        Ok((PlanSolution { program, chunks, stage_nodes: places, op_ticks_max }, period))
    }

    /// Ticks after which an operation of the plan hangs.
    fn op_ticks_max(&self, job: &PlannerJob, plan: &Plan, nodes: &[NodeResources]) -> u32 {
        let ticks = op_seconds_max(job, plan, nodes) / self.tick.as_secs_f64();
        (ticks.ceil() as u32).max(1)
    }
}

/// Seconds after which an operation hangs: a multiple of the predicted time of the longest one on
/// the slowest node. That is a pass of a chunk, or the update of a stage, whichever is longer.
fn op_seconds_max(job: &PlannerJob, plan: &Plan, nodes: &[NodeResources]) -> f64 {
    let work = layer_work(&job.model, job.batch.microbatch);
    let of_chunk =
        |chunk: &LayerRange| -> f64 { chunk.ids().map(|layer| work[layer as usize].total()).sum() };
    let of_pass = plan.chunks.iter().map(of_chunk).fold(0.0, f64::max);
    // A device executes its launches later: an operation that reads the result waits for all of a
    // step.
    let passes = match job.sizes {
        DeviceSizes::Processors(_) => 1,
        DeviceSizes::Cuda(_) => job.batch.microbatch_count,
    };
    let pass_s = of_pass * f64::from(passes) / REFERENCE_FLOP_PER_S;
    let update_s = update_seconds_most(job, plan);
    let slowest = nodes.iter().map(|(_, resources)| resources.speed_permille.max(1)).min();
    let speed = f64::from(slowest.unwrap_or(1000)) / 1000.0;
    OP_SECONDS_MIN + PATIENCE * pass_s.max(update_s) / speed
}

/// Seconds of the longest update of a stage: its weights move through memory, and Muon's products are
/// computed.
fn update_seconds_most(job: &PlannerJob, plan: &Plan) -> f64 {
    let specs = model_layers(&job.model);
    let of_layer = |layer: u32| {
        let spec = &specs[layer as usize];
        let moved_s = spec.len() as f64 * UPDATE_BYTES_PER_WEIGHT / REFERENCE_BYTES_PER_S;
        moved_s + job.optimizer.update_flop(spec) / REFERENCE_FLOP_PER_S
    };
    let of_layers = |layers: LayerRange| layers.ids().map(of_layer).sum::<f64>();
    let stages = (0..plan.placement().stage_count()).map(StageIndex);
    let of_stage = |stage| plan.states_at(stage).map(of_layers).sum::<f64>();
    stages.map(of_stage).fold(0.0, f64::max)
}

#[cfg(test)]
pub(crate) mod tests {
    use zbelastic_consensus::class::DeviceClass;
    use zbelastic_consensus::member::Resources;
    use zbelastic_trainer::model::{
        Family, FrozenTensors, LlamaFeatures, MicrobatchShape, ModelConfig,
    };
    use zbelastic_trainer::optimizer::OptimizerKind;
    use zbelastic_trainer::plan::{AUTO_KINDS, BatchShape, LaneCount, MemoryPolicy, SliceBalance};

    use super::*;
    use zbelastic_kernels::Precision;

    const TICK: Duration = Duration::from_millis(10);

    /// A small model of four blocks, and a schedule that is chosen.
    pub fn job() -> PlannerJob {
        let model = ModelConfig {
            family: Family::Gpt2,
            blocks: 4,
            width: 64,
            heads: 4,
            kv_heads: 4,
            head_width: 16,
            mlp_width: 256,
            features: LlamaFeatures::NONE,
            vocabulary: 256,
            sliding_window: None,
            positions: 64,
            norm_epsilon: 1e-5,
            rope_theta: 10_000.0,
            tied: false,
            frozen: FrozenTensors::NONE,
            without_moments: FrozenTensors::NONE,
            lora: None,
        };
        let microbatch = MicrobatchShape { sequences: 2, sequence_len: 64 };
        PlannerJob {
            model,
            batch: BatchShape {
                microbatch,
                microbatch_count: 8,
                cut_by: SliceBalance::Tokens,
                lanes: LaneCount::ONE,
            },
            optimizer: OptimizerKind::AdamW,
            kinds: AUTO_KINDS.to_vec(),
            is_auto: true,
            chunks_per_stage: None,
            replicas: None,
            slice_count: None,
            memory: MemoryPolicy::default(),
            copies: 1,
            is_island: false,
            stage_bytes_max: None,
            sizes: DeviceSizes::Processors(Precision::F32),
        }
    }

    pub fn nodes(nodes: &[u64]) -> Vec<NodeResources> {
        let resources =
            Resources { memory: Bytes(0), speed_permille: 1000, class: DeviceClass::Processors };
        nodes.iter().map(|node| (NodeId(*node), resources)).collect()
    }

    /// A model whose layers are large beside its passes updates for longer than any pass runs, and is not
    /// called hung for it.
    #[test]
    fn an_operation_may_take_as_long_as_the_update_of_a_large_layer() {
        let ticks_max = |vocabulary: u32| {
            let mut job = job();
            job.model.vocabulary = vocabulary;
            job.batch.microbatch = MicrobatchShape { sequences: 1, sequence_len: 8 };
            let weights = u64::from(vocabulary) * u64::from(job.model.width);
            let found = PlanSearch::new(TICK).solve(&job, Window::One, &nodes(&[1, 2]));
            (found.expect("there is a plan").op_ticks_max, weights)
        };
        let (small, _) = ticks_max(256);
        let (large, weights) = ticks_max(4_000_000);
        let update_s = weights as f64 * UPDATE_BYTES_PER_WEIGHT / REFERENCE_BYTES_PER_S;
        let least = PATIENCE * update_s / TICK.as_secs_f64();
        assert!(f64::from(large) >= least, "{large} ticks for {update_s} s");
        assert!(small < large);
    }

    /// Nor is one whose matrices are large beside its passes, where Muon multiplies them.
    #[test]
    fn an_operation_may_take_as_long_as_the_products_of_muon() {
        let seconds = |optimizer| {
            let mut job = PlannerJob { optimizer, ..job() };
            job.model.width = 1024;
            job.model.mlp_width = 4096;
            job.batch.microbatch = MicrobatchShape { sequences: 1, sequence_len: 8 };
            let found = PlanSearch::new(TICK).solve(&job, Window::One, &nodes(&[1]));
            let ticks = found.expect("there is a plan").op_ticks_max;
            (f64::from(ticks) * TICK.as_secs_f64(), job)
        };
        let (adamw, _) = seconds(OptimizerKind::AdamW);
        let (muon, job) = seconds(OptimizerKind::Muon { momentum: 0.95 });
        let specs = model_layers(&job.model);
        let flop: f64 = specs.iter().map(|spec| job.optimizer.update_flop(spec)).sum();
        let longer = muon - adamw;
        let expected = PATIENCE * flop / REFERENCE_FLOP_PER_S;
        assert!((longer - expected).abs() <= TICK.as_secs_f64(), "{longer}, expected {expected}");
    }

    /// A node that has no room for any stage is left out, wherever it stands.
    #[test]
    fn a_node_with_little_memory_stops_no_plan() {
        for small in 0..3 {
            let mut nodes = nodes(&[1, 2, 3]);
            nodes.iter_mut().for_each(|(_, brought)| brought.memory = Bytes(1 << 30));
            nodes[small].1.memory = Bytes(1 << 10);
            let found = PlanSearch::new(TICK).solve(&job(), Window::One, &nodes);
            let places = found.expect("two others suffice").stage_nodes;
            let others: Vec<usize> = (0..3).filter(|at| *at != small).collect();
            assert_eq!(places, others, "the one at {small} has no room");
        }
        // Nodes that all have room are used as they stand, whichever have more.
        let mut nodes = nodes(&[1, 2, 3, 4, 5, 6]);
        for (at, (_, brought)) in nodes.iter_mut().enumerate() {
            brought.memory = Bytes((at as u64 + 1) << 30);
        }
        let found = PlanSearch::new(TICK).solve(&job(), Window::One, &nodes).expect("a plan");
        assert_eq!(found.stage_nodes, (0..found.stage_nodes.len()).collect::<Vec<_>>());
    }

    /// What cannot be had with so many chunks is not taken for what cannot be had at all.
    #[test]
    fn chunks_that_do_not_fit_give_way_before_a_node_is_left_out() {
        let job = PlannerJob { chunks_per_stage: Some(8), ..job() };
        let nodes = nodes(&[1, 2]);
        let mut search = PlanSearch::new(TICK);
        for turn in ["searched", "remembered"] {
            let found = search.solve(&job, Window::One, &nodes).expect("there is a plan");
            assert_eq!(found.program.placement.stage_count(), 2, "{turn}");
        }
    }
}
