//! Forecasts of schedules on machines: computed here, printed by `report`.

use serde::Serialize;
use zbelastic_config::{NetworkSpec, NodeSpec, RunConfig};
use zbelastic_schedule::{GenerateError, ScheduleKind, Timeline, Window, simulate};
use zbelastic_trainer::model::{LayerSpec, model_layers};
use zbelastic_trainer::plan::{
    ChooseRequest, Grid, HeldBeside, Pace, PlanChoice, PlanError, ScheduleRefusal, best_grid,
    choose, span_lower_bound,
};
use zbelastic_types::Bytes;
use zbelastic_wording::{CommandFailure, FailureCode, FailureDetail};

use super::zones::ZoneForecast;

/// The input of a forecast.
#[derive(Clone, Copy)]
pub struct ForecastInput<'a> {
    /// Configuration of the run.
    pub config: &'a RunConfig,
    /// The schedules that the run may have.
    pub kinds: &'a [ScheduleKind],
    /// The nodes to plan for: their speeds and memory, and the network between them.
    pub network: &'a NetworkSpec,
    /// Times measured on this machine.
    pub pace: &'a Pace,
}

/// A schedule on the machines.
#[derive(Clone, Debug, Serialize)]
pub struct ForecastRow {
    /// Name of the schedule.
    pub schedule: &'static str,
    /// Time of a step, in milliseconds.
    pub step_ms: f64,
    /// The share of it in which the busiest stage waits.
    pub bubble: f64,
    /// Tokens trained a second.
    pub tokens_per_s: f64,
    /// By stage, the memory that it needs, in bytes.
    pub stage_bytes: Vec<u64>,
    /// Nodes with too little memory for their stage.
    pub too_small: Vec<String>,
    /// Whether it is the one that would run.
    pub is_chosen: bool,
}

/// Forecast for the loss of machines.
#[derive(Clone, Debug, Serialize)]
pub struct NodeLossForecast {
    /// Number of machines that are lost.
    pub lost: usize,
    /// Names of the machines that are the worst to lose.
    pub nodes: Vec<String>,
    /// The plan after the loss; `None` if nothing fits, and training waits.
    pub then: Option<PlanAfterLoss>,
}

/// The plan that runs on the machines that are left.
#[derive(Clone, Debug, Serialize)]
pub struct PlanAfterLoss {
    /// Stages of each pipeline.
    pub stages: u32,
    /// Pipelines side by side.
    pub replicas: u32,
    /// Name of the schedule.
    pub schedule: &'static str,
    /// Time of a step, in milliseconds.
    pub step_ms: f64,
    /// Why it is not the requested schedule on all machines that are left.
    pub because: Option<String>,
}

/// A forecast: a row for each schedule, and the chosen plan.
pub struct Forecast<'a> {
    /// Input that the forecast was made from.
    pub input: ForecastInput<'a>,
    /// The machines that hold a stage.
    pub nodes: Vec<NodeSpec>,
    /// How they are dealt to stages and replicas.
    pub grid: Grid,
    /// One row a schedule.
    pub rows: Vec<ForecastRow>,
    /// Schedules that do not exist for this size, with the reason.
    pub left_out: Vec<(&'static str, String)>,
    /// By how much the chosen step may be above the best one, as a share.
    pub gap: Option<f64>,
    /// When one machine is lost, and when two are.
    pub losses: Vec<NodeLossForecast>,
    /// When a zone is lost, if zones are known.
    pub zones: Option<ZoneForecast>,
    choice: PlanChoice,
    pace: Pace,
}

impl<'a> Forecast<'a> {
    /// Forecasts the schedules `compared`, and the one that would be chosen.
    ///
    /// # Errors
    /// If none fits.
    pub fn new(
        input: ForecastInput<'a>,
        compared: &[ScheduleKind],
    ) -> Result<Self, CommandFailure> {
        let all = &input.network.nodes;
        let chunks = input.config.chunks_per_stage;
        let grids = input.config.grid_limits().grids(all.len() as u32);
        let chosen = best_grid(grids, input.is_priced(), |grid| {
            let machines = StageMachines::new(input, all, grid);
            let chosen = machines.choose((input.kinds, chunks), MemoryLimitPolicy::Enforced);
            let choice = chosen.map_err(|refusals| does_not_fit(&refusals, &machines.nodes))?;
            let period = choice.prediction.period;
            Ok(((choice, machines), period))
        });
        let failure = |failure: Option<CommandFailure>| failure.expect("there is a machine");
        let (choice, stage_machines) = chosen.map_err(failure)?;
        let mut rows = Vec::new();
        let mut left_out = Vec::new();
        let chosen = choice.plan.program.kind;
        let unnamed = (!compared.contains(&chosen)).then_some(chosen);
        for kind in compared.iter().copied().chain(unnamed) {
            let is_chosen = kind == chosen;
            let found = match is_chosen {
                true => Ok(choice.clone()),
                false => {
                    stage_machines.choose((&[kind], chunks), MemoryLimitPolicy::Enforced).or_else(
                        |_| stage_machines.choose((&[kind], chunks), MemoryLimitPolicy::Ignored),
                    )
                }
            };
            match found {
                Ok(found) => rows.push(stage_machines.row(&found, is_chosen)),
                Err(refusals) => {
                    left_out.extend(
                        refusals.into_iter().map(|(kind, why)| (kind.name(), why.to_string())),
                    );
                }
            }
        }
        let gap = span_lower_bound(&stage_machines.pace, &choice.plan)
            .map(|bound| (choice.prediction.period / bound - 1.0).max(0.0));
        let losses = (1..=LOST_MAX).filter_map(|lost| stage_machines.worst_loss(lost)).collect();
        let StageMachines { pace, nodes, grid, .. } = stage_machines;
        let copies = input.config.elastic.copies;
        let zones = ZoneForecast::new(&nodes, choice.plan.placement(), copies);
        Ok(Self { input, rows, left_out, gap, losses, zones, choice, pace, nodes, grid })
    }

    /// One step of the chosen schedule in time.
    pub fn drawing(&self) -> Timeline {
        let program = &self.choice.plan.program;
        simulate(program, &self.pace.costs(&self.choice.plan), 1).expect("a plan runs to its end")
    }

    /// The window of the plan.
    pub fn window(&self) -> Window {
        self.input.config.window.planned()
    }

    /// Latency from one stage to another, in seconds.
    pub fn link_s(&self) -> f64 {
        self.pace.link
    }
}

/// Machines that are lost at once at most.
const LOST_MAX: usize = 2;
/// Machines of which every pair is tried; of more, the fastest are assumed to be lost.
const PAIRS_OF_MAX: usize = 12;

/// Whether a stage must fit into its node.
#[derive(Clone, Copy, PartialEq)]
enum MemoryLimitPolicy {
    Enforced,
    Ignored,
}

impl ForecastInput<'_> {
    /// Whether it is known what the exchange of gradients between replicas takes.
    fn is_priced(&self) -> bool {
        self.network.gbit_per_s.is_some()
    }
}

/// Machines that hold a stage each.
struct StageMachines<'a> {
    grid: Grid,
    config: &'a RunConfig,
    kinds: &'a [ScheduleKind],
    nodes: Vec<NodeSpec>,
    network: &'a NetworkSpec,
    local: &'a Pace,
    pace: Pace,
}

impl<'a> StageMachines<'a> {
    /// The first of `nodes`, as many as the grid has stages.
    fn new(input: ForecastInput<'a>, nodes: &[NodeSpec], grid: Grid) -> Self {
        let ForecastInput { config, kinds, network, pace } = input;
        let nodes: Vec<NodeSpec> = nodes[..grid.workers() as usize].to_vec();
        let width = config.model.width as usize;
        let frame = Bytes::of_f32(config.batch.microbatch.rows() * width);
        let carried_s = network.gbit_per_s.map_or(0.0, |rate| frame.0 as f64 * 8.0 / (rate * 1e9));
        let speeds = nodes.iter().map(|node| node.speed).collect();
        let link = network.latency_s;
        let occupancy = carried_s;
        // A verdict waits for the last report to arrive, and comes back.
        let verdict = 2.0 * network.latency_s;
        let carried = |layer: &LayerSpec| {
            let bits = Bytes::of_f32(layer.gradient_len()).0 as f64 * 8.0;
            network.gbit_per_s.map_or(0.0, |rate| bits / (rate * 1e9))
        };
        let gradients = model_layers(&config.model).iter().map(carried).collect();
        let site_pace = Pace { speeds, link, occupancy, gradients, verdict, ..pace.clone() };
        Self { grid, config, kinds, nodes, network, local: pace, pace: site_pace }
    }

    fn choose(
        &self,
        (kinds, chunks_per_stage): (&[ScheduleKind], Option<u32>),
        limits: MemoryLimitPolicy,
    ) -> Result<PlanChoice, Vec<(ScheduleKind, ScheduleRefusal)>> {
        let config = self.config;
        let stage_bytes_max = match limits {
            MemoryLimitPolicy::Ignored => Vec::new(),
            MemoryLimitPolicy::Enforced => self.nodes.iter().map(|node| self.limit(node)).collect(),
        };
        let request = ChooseRequest {
            model: &config.model,
            optimizer: config.optimizer.kind,
            batch: config.batch,
            kinds,
            chunks_per_stage,
            slice_count: config.slice_count,
            stage_count: self.grid.stage_count,
            replicas: self.grid.replicas,
            window: config.window.planned(),
            memory: config.memory.policy(config.elastic.copies),
            beside: HeldBeside {
                copies: self.grid.copies(config.elastic.copies),
                is_island: config.sync.is_some(),
            },
            stage_bytes_max: &stage_bytes_max,
            pace: &self.pace,
        };
        choose(&config.arithmetic.sizes(), request)
    }

    fn limit(&self, node: &NodeSpec) -> Bytes {
        let limits = self.config.stage_bytes_max.into_iter().chain(node.memory);
        limits.min().unwrap_or(Bytes(u64::MAX))
    }

    fn row(&self, choice: &PlanChoice, is_chosen: bool) -> ForecastRow {
        let step_s = choice.prediction.period;
        let sizes: Vec<Bytes> = choice.memory.iter().map(|memory| memory.total()).collect();
        let small = self.nodes.iter().zip(&sizes).filter(|(node, size)| **size > self.limit(node));
        ForecastRow {
            schedule: choice.plan.program.kind.name(),
            step_ms: step_s * 1e3,
            bubble: choice.prediction.bubble,
            tokens_per_s: self.config.batch.tokens() as f64 / step_s,
            too_small: small.map(|(node, _)| node.name.clone()).collect(),
            stage_bytes: sizes.iter().map(|size| size.0).collect(),
            is_chosen,
        }
    }

    /// The loss of so many machines that costs most.
    fn worst_loss(&self, lost: usize) -> Option<NodeLossForecast> {
        if self.nodes.len() <= lost {
            return None;
        }
        let mut worst: Option<NodeLossForecast> = None;
        for lost_indices in self.ways_to_lose(lost) {
            let left = |(index, _): &(usize, &NodeSpec)| !lost_indices.contains(index);
            let nodes = self.nodes.iter().enumerate().filter(left).map(|(_, node)| node.clone());
            let Self { config, kinds, network, local: pace, .. } = *self;
            let input = ForecastInput { config, kinds, network, pace };
            let then = after_loss(input, &nodes.collect::<Vec<_>>());
            let nodes = lost_indices.iter().map(|index| self.nodes[*index].name.clone()).collect();
            let loss = NodeLossForecast { lost, nodes, then };
            if worst.as_ref().is_none_or(|worst| loss.is_worse_than(worst)) {
                worst = Some(loss);
            }
        }
        worst
    }

    /// Which machines may be the ones: of machines alike the first stand for all.
    fn ways_to_lose(&self, lost: usize) -> Vec<Vec<usize>> {
        let is_alike = |node: &NodeSpec, other: &NodeSpec| {
            (node.speed, node.memory) == (other.speed, other.memory)
        };
        let first = &self.nodes[0];
        if self.nodes.iter().all(|node| is_alike(node, first)) {
            return vec![(0..lost).collect()];
        }
        let count = self.nodes.len();
        if lost == 1 {
            return (0..count).map(|index| vec![index]).collect();
        }
        if count > PAIRS_OF_MAX {
            let mut order: Vec<usize> = (0..count).collect();
            order.sort_by(|a, b| self.nodes[*b].speed.total_cmp(&self.nodes[*a].speed));
            return vec![order.into_iter().take(lost).collect()];
        }
        let pairs = (0..count).flat_map(|a| (a + 1..count).map(move |b| vec![a, b]));
        pairs.collect()
    }
}

/// The plan that a cluster continues with on these nodes.
fn after_loss(input: ForecastInput<'_>, left: &[NodeSpec]) -> Option<PlanAfterLoss> {
    let job = input.config.planner_job().ok()?;
    let grids = job.grid_limits().grids(left.len() as u32);
    let found = best_grid(grids, input.is_priced(), |grid| {
        let mut because = None;
        for fallback in job.fallbacks(grid) {
            let machines = StageMachines::new(input, left, fallback.grid);
            let of_kinds = (fallback.kinds, fallback.chunks_per_stage);
            match machines.choose(of_kinds, MemoryLimitPolicy::Enforced) {
                Ok(choice) => {
                    let period = choice.prediction.period;
                    let plan = PlanAfterLoss {
                        stages: fallback.grid.stage_count,
                        replicas: fallback.grid.replicas.get(),
                        schedule: choice.plan.program.kind.name(),
                        step_ms: period * 1e3,
                        because,
                    };
                    return Ok((plan, period));
                }
                Err(refusals) => {
                    let first = refusals.first().map(|(_, refusal)| refusal.to_string());
                    because = because.or(first);
                }
            }
        }
        Err(())
    });
    found.ok()
}

impl NodeLossForecast {
    fn is_worse_than(&self, other: &Self) -> bool {
        match (&self.then, &other.then) {
            (None, Some(_)) => true,
            (Some(ours), Some(theirs)) => ours.step_ms > theirs.step_ms,
            (_, None) => false,
        }
    }
}

fn does_not_fit(
    refusals: &[(ScheduleKind, ScheduleRefusal)],
    nodes: &[NodeSpec],
) -> CommandFailure {
    let detail = |(kind, refusal): &(ScheduleKind, ScheduleRefusal)| match refusal {
        ScheduleRefusal::Plan(error) => FailureDetail::new(format!("{kind}: {error}")),
        ScheduleRefusal::Memory { stage, needed, limit } => {
            let node = &nodes[stage.index()].name;
            let what = format!("stage {stage} on {node} needs {needed}, limit is {limit} ({kind})");
            FailureDetail::new(what)
        }
    };
    // Too little memory is a matter of the nodes, any other refusal one of the arguments.
    let lacks_memory = |(_, refusal): &(ScheduleKind, ScheduleRefusal)| match refusal {
        ScheduleRefusal::Plan(_) => false,
        ScheduleRefusal::Memory { .. } => true,
    };
    let code = match refusals.iter().any(lacks_memory) {
        true => FailureCode::OutOfResource,
        false => FailureCode::Usage,
    };
    let mut failure = CommandFailure::new(code, "no schedule fits these nodes");
    failure.details = refusals.iter().map(detail).collect();
    let is_odd = |(_, refusal): &(ScheduleKind, ScheduleRefusal)| match refusal {
        ScheduleRefusal::Plan(PlanError::Generate(GenerateError::OddStages { .. })) => true,
        ScheduleRefusal::Plan(_) | ScheduleRefusal::Memory { .. } => false,
    };
    if let Some(last) = failure.details.pop() {
        let hint = match refusals.iter().all(is_odd) {
            true => "one node more or less, or --schedule gems",
            false => {
                "more nodes or more of their memory, a higher schedule.max_mem, or a smaller \
                 train.microbatch"
            }
        };
        failure.details.push(last.hint(hint));
    }
    failure
}
