//! Plans, found off the event loop. The leader sends a request, gets an answer, and proposes it;
//! what is not urgent is to look ahead: the plans for one node less and one more are found before
//! they are needed, so that a loss does not wait for a search. Nor is it urgent to judge the plan
//! in force by what its work takes.

mod review;

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;

use tokio::sync::mpsc;
use zbelastic_consensus::duty::{PlanSolution, PlanUnsolvable, SolveRequest};
use zbelastic_consensus::job::JobSpec;
use zbelastic_consensus::plan::copies_at;
use zbelastic_policy::node_choices::{NodeResources, first_plan, memory_limits};
use zbelastic_schedule::asynchronous::AsyncKind;
use zbelastic_schedule::{ScheduleKind, Window};
use zbelastic_trainer::model::{ModelConfig, model_layers};
use zbelastic_trainer::plan::{ChooseRequest, Pace, Plan, PlanChoice, choose, layer_work};
use zbelastic_types::{Bytes, ChunkIndex, LayerRange, NodeId, StageIndex};

use super::document::{JobDocument, NamedJob};
use super::pace::PaceEstimate;
use super::tick::ticks_of_seconds;
use crate::config::{DeviceChoice, PlanFallback};
pub use review::{PlanReview, ReviewedPlan};

/// Requests that wait at once: a leader sends one at a time, and gives up those before it.
const REQUESTS_MAX: usize = 4;
/// Solutions remembered; with more, those for the most nodes go first.
const REMEMBERED_MAX: usize = 256;
/// What a device of speed 1000 does in a second, in floating-point operations: one core of the kind
/// that this was measured on, rounded down.
const REFERENCE_FLOP_PER_S: f64 = 2e10;
/// Bytes that an update moves for each weight, at most: the squares of its gradient, its candidate,
/// its commit, and the fingerprint of the result (docs/decisions/0038).
const UPDATE_BYTES_PER_WEIGHT: f64 = 64.0;
/// What a device of speed 1000 moves in a second at least, in bytes, with its neighbours doing the
/// same. It was chosen, not measured: memory of machines that are rented gives several times as
/// much.
const REFERENCE_BYTES_PER_S: f64 = 1e9;
/// How many times longer than predicted an operation may take: cores are shared, and shared cores
/// are preempted.
const PATIENCE: f64 = 10.0;
/// How long an operation may take however small it is, in seconds: the longest a busy machine keeps
/// a thread waiting, with a margin.
const OP_SECONDS_MIN: f64 = 1.0;

/// Nodes of which the loss of each is looked ahead to; of more, the loss of the first ones, which
/// mostly are like the others.
const LOSSES_MAX: usize = 8;

/// The solution of a request for a plan, or that there is none.
pub struct SolvedPlan {
    /// The number of the request.
    pub number: u64,
    /// The plan that was found, or why there is none.
    pub solution: Result<PlanSolution, PlanUnsolvable>,
}

/// An answer of the solver thread.
pub enum SolverAnswer {
    /// The answer to a request for a plan.
    Solved(SolvedPlan),
    /// The answer to the review of a plan.
    Reviewed(Box<ReviewedPlan>),
}

/// A command to the solver thread.
enum SolverCommand {
    Solve(Box<SolveRequest>),
    Review(Box<PlanReview>),
    /// Plans are made with this estimate from now on.
    SetEstimate(Box<PaceEstimate>),
}

/// The handle of the thread that finds plans.
pub struct SolverThread {
    commands: SyncSender<SolverCommand>,
    /// A request that the full queue did not accept.
    waiting: Option<Box<SolveRequest>>,
}

impl SolverThread {
    /// Starts the thread; answers are sent through the receiver.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start() -> std::io::Result<(Self, mpsc::Receiver<SolverAnswer>)> {
        let (commands, inbox) = sync_channel(REQUESTS_MAX);
        let (answers, outbox) = mpsc::channel(REQUESTS_MAX);
        let search = move || PlanSearch::default().serve(&inbox, &answers);
        thread::Builder::new().name("solver".to_owned()).spawn(search)?;
        Ok((Self { commands, waiting: None }, outbox))
    }

    /// Requests a plan. If too many wait, it waits for a free place, in place of the one before: a
    /// leader gives up its earlier requests, and waits for an answer to the last one.
    pub fn request(&mut self, request: SolveRequest) {
        self.waiting = Some(Box::new(request));
        self.handle_tick();
    }

    /// Passes on a request that waits, if the queue has space.
    pub fn handle_tick(&mut self) {
        let Some(request) = self.waiting.take() else { return };
        if let Err(TrySendError::Full(SolverCommand::Solve(request))) =
            self.commands.try_send(SolverCommand::Solve(request))
        {
            self.waiting = Some(request);
        }
    }

    /// Requests the review of a plan. Yields whether the queue accepted it.
    pub fn review(&self, review: PlanReview) -> bool {
        self.commands.try_send(SolverCommand::Review(Box::new(review))).is_ok()
    }

    /// Sends the estimate that later plans are made with. Yields whether the queue accepted it.
    pub fn set_estimate(&self, estimate: PaceEstimate) -> bool {
        self.commands.try_send(SolverCommand::SetEstimate(Box::new(estimate))).is_ok()
    }
}

/// What a plan depends on, beside the job and what counted work takes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PlanQuery {
    stage_count: u32,
    kinds: Vec<ScheduleKind>,
    chunks_per_stage: Option<u32>,
    is_ahead: bool,
    /// The bytes that each stage may take, by stage; none if there is no limit.
    bytes_max: Vec<Bytes>,
    /// The speed of each stage's node, in thousandths of a reference device.
    speeds: Vec<u32>,
    /// Of a boundary tensor, latency and occupancy, and of a verdict, in whole microseconds.
    message_us: [u64; 3],
}

impl PlanQuery {
    fn new(
        fallback: PlanFallback<'_>,
        (nodes, window): (&[NodeResources], Window),
        (pace, bytes_max): (&Pace, Option<Bytes>),
    ) -> Self {
        Self {
            stage_count: nodes.len() as u32,
            kinds: fallback.kinds.to_vec(),
            chunks_per_stage: fallback.chunks_per_stage,
            is_ahead: window == Window::One,
            bytes_max: memory_limits(bytes_max, nodes),
            speeds: nodes.iter().map(|(_, resources)| resources.speed_permille).collect(),
            message_us: [pace.link, pace.occupancy, pace.verdict].map(|us| us.round() as u64),
        }
    }
}

#[derive(Default)]
struct PlanSearch {
    job: Option<NamedJob>,
    estimate: PaceEstimate,
    found: BTreeMap<PlanQuery, Result<PlanSolution, String>>,
}

impl PlanSearch {
    fn serve(mut self, commands: &Receiver<SolverCommand>, answers: &mpsc::Sender<SolverAnswer>) {
        while let Ok(command) = commands.recv() {
            let is_received = match command {
                SolverCommand::Solve(request) => {
                    let solution = self.solve(&request);
                    let plan = SolvedPlan { number: request.number, solution };
                    let is_received = answers.blocking_send(SolverAnswer::Solved(plan)).is_ok();
                    self.solve_ahead(&request);
                    is_received
                }
                SolverCommand::Review(review) => self.review(*review).is_none_or(|reviewed| {
                    answers.blocking_send(SolverAnswer::Reviewed(Box::new(reviewed))).is_ok()
                }),
                SolverCommand::SetEstimate(estimate) => {
                    self.estimate = *estimate;
                    self.found.clear();
                    true
                }
            };
            if !is_received {
                return;
            }
        }
    }

    /// Yields none for a plan whose job cannot be read: that is reported where it is worked on.
    fn review(&mut self, review: PlanReview) -> Option<ReviewedPlan> {
        let document = self.document(&review.spec).ok()?;
        Some(review.judge(&document))
    }

    fn solve(&mut self, request: &SolveRequest) -> Result<PlanSolution, PlanUnsolvable> {
        let nodes = request.nodes.len();
        let unsolvable = |reason: String| PlanUnsolvable { nodes, reason };
        let document = self.document(&request.spec).map_err(unsolvable)?;
        self.plan_on(&document, request.window, &request.nodes).map_err(unsolvable)
    }

    /// The first plan that can be had on some of the nodes: on the first ones, or on those
    /// with the most memory.
    fn plan_on(
        &mut self,
        document: &JobDocument,
        window: Window,
        nodes: &[NodeResources],
    ) -> Result<PlanSolution, String> {
        let config = &document.config;
        let stage_count_max = (nodes.len() as u32).min(config.model.blocks);
        let fallbacks = config.plan_fallbacks(stage_count_max).map_err(has_no_steps)?;
        let tried = fallbacks.into_iter().map(|fallback| (fallback, fallback.stage_count));
        let (solution, stage_nodes) = first_plan(nodes, tried, |fallback, stage_nodes| {
            self.plan_for(document, fallback, window, (nodes, stage_nodes))
        })?;
        Ok(PlanSolution { stage_nodes, ..solution })
    }

    fn document(&mut self, spec: &JobSpec) -> Result<JobDocument, String> {
        if let Some(named) = self.job.as_ref().filter(|named| named.name == spec.config) {
            return Ok(named.job.clone());
        }
        let named = JobDocument::of_job(spec).map_err(|error| error.to_string())?;
        self.found.clear();
        let job = named.job.clone();
        self.job = Some(named);
        Ok(job)
    }

    /// Plans for one node less, whichever it is, two less, and one more, unless a request arrives
    /// in between: they are found in milliseconds, so none is interrupted. Of nodes that are alike
    /// it does not matter which one goes, and one plan is found for all.
    fn solve_ahead(&mut self, request: &SolveRequest) {
        let SolveRequest { nodes, window, .. } = request;
        let without = |lost: usize| {
            let others = nodes.iter().enumerate().filter(|(index, _)| *index != lost);
            others.map(|(_, node)| *node).collect::<Vec<NodeResources>>()
        };
        let mut ahead: Vec<Vec<NodeResources>> =
            (0..nodes.len()).take(LOSSES_MAX).map(without).collect();
        ahead.push(nodes[..nodes.len().saturating_sub(2)].to_vec());
        let another = nodes.last().map(|(_, resources)| (NodeId(u64::MAX), *resources));
        ahead.push(nodes.iter().copied().chain(another).collect());
        let Some(named) = &self.job else { return };
        let document = named.job.clone();
        for nodes in ahead {
            if nodes.len() <= document.config.model.blocks as usize {
                let _ = self.plan_on(&document, *window, &nodes);
            }
        }
    }

    fn plan_for(
        &mut self,
        document: &JobDocument,
        fallback: PlanFallback<'_>,
        window: Window,
        (nodes, stage_nodes): (&[NodeResources], &[usize]),
    ) -> Result<PlanSolution, String> {
        let nodes: Vec<NodeResources> = stage_nodes.iter().map(|at| nodes[*at]).collect();
        let pace = self.estimate.pace(&document.config, &nodes);
        let bytes_max = document.config.stage_bytes_max;
        let query = PlanQuery::new(fallback, (&nodes, window), (&pace, bytes_max));
        if let Some(found) = self.found.get(&query) {
            return found.clone();
        }
        let found = solve_query(document, fallback, &query, (&pace, &nodes));
        if self.found.len() >= REMEMBERED_MAX {
            self.found.pop_last();
        }
        self.found.insert(query, found.clone());
        found
    }
}

/// A cluster refuses such a job when it is submitted.
fn has_no_steps(kind: AsyncKind) -> String {
    format!("{kind} has no steps to seal")
}

fn solve_query(
    document: &JobDocument,
    fallback: PlanFallback<'_>,
    query: &PlanQuery,
    (pace, nodes): (&Pace, &[NodeResources]),
) -> Result<PlanSolution, String> {
    let choice = choice(document, fallback, query, pace)?;
    let op_ticks_max = op_ticks_max(document, &choice.plan, nodes);
    let Plan { program, chunks, .. } = choice.plan;
    let stage_nodes = (0..nodes.len()).collect();
    Ok(PlanSolution { program, chunks, stage_nodes, op_ticks_max })
}

/// The best plan at a pace.
fn choice(
    document: &JobDocument,
    PlanFallback { kinds, chunks_per_stage, stage_count }: PlanFallback<'_>,
    query: &PlanQuery,
    pace: &Pace,
) -> Result<PlanChoice, String> {
    let config = &document.config;
    let request = ChooseRequest {
        model: &config.model,
        batch: config.batch,
        kinds,
        chunks_per_stage,
        slice_count: config.slice_count,
        stage_count,
        window: if query.is_ahead { Window::One } else { Window::Zero },
        memory: config.memory.policy(),
        copies: copies_at(config.elastic.copies, stage_count),
        stage_bytes_max: &query.bytes_max,
        pace,
    };
    choose(&config.arithmetic.sizes(), request).map_err(|refusals| {
        let reasons = refusals.iter().map(|(kind, refusal)| format!("{kind}: {refusal}"));
        reasons.collect::<Vec<_>>().join("; ")
    })
}

/// Ticks after which an operation hangs: so many times what the longest one should take on the
/// slowest node. That is a pass of a chunk, or the update of a stage, whichever takes longer.
fn op_ticks_max(document: &JobDocument, plan: &Plan, nodes: &[NodeResources]) -> u32 {
    let config = &document.config;
    let work = layer_work(&config.model, config.batch.microbatch);
    let of_chunk =
        |chunk: &LayerRange| -> f64 { chunk.ids().map(|layer| work[layer as usize].total()).sum() };
    let of_pass = plan.chunks.iter().map(of_chunk).fold(0.0, f64::max);
    // A device does later what it was sent: an operation that reads the result waits for all of a
    // step.
    let passes = match config.arithmetic.device {
        DeviceChoice::Cpu => 1,
        DeviceChoice::Cuda => config.batch.microbatch_count,
    };
    let pass_s = of_pass * f64::from(passes) / REFERENCE_FLOP_PER_S;
    let update_s =
        weights_most(&config.model, plan) * UPDATE_BYTES_PER_WEIGHT / REFERENCE_BYTES_PER_S;
    let slowest = nodes.iter().map(|(_, resources)| resources.speed_permille.max(1)).min();
    let speed = f64::from(slowest.unwrap_or(1000)) / 1000.0;
    ticks_of_seconds(OP_SECONDS_MIN + PATIENCE * pass_s.max(update_s) / speed)
}

/// The weights of the stage that has most of them.
fn weights_most(model: &ModelConfig, plan: &Plan) -> f64 {
    let layers = model_layers(model);
    let of_chunk = |chunk: ChunkIndex| -> usize {
        plan.chunks[chunk.index()].ids().map(|layer| layers[layer as usize].len()).sum()
    };
    let placement = plan.placement();
    let stages = (0..placement.stage_count()).map(StageIndex);
    let of_stage = |stage| placement.chunks_of(stage).map(of_chunk).sum::<usize>();
    stages.map(of_stage).max().unwrap_or(0) as f64
}

#[cfg(test)]
mod tests {
    use zbelastic_consensus::member::Resources;

    use super::*;
    use crate::cluster::document::DataName;
    use crate::config::load_document;

    /// A model whose layers are large beside its passes updates for longer than any pass runs, and
    /// is not called hung for it.
    #[test]
    fn an_operation_may_take_as_long_as_the_update_of_a_large_layer() {
        let ticks_max = |vocabulary: u32| {
            let toml = format!(
                "[model]\npreset = \"tiny\"\nvocab = {vocabulary}\n[train]\nseq_len = 8\n\
                 microbatch = 1\nglobal_batch = 4\n"
            );
            let config = load_document("test", &toml).expect("legal").config;
            let weights = u64::from(config.model.vocabulary) * u64::from(config.model.width);
            let document = JobDocument::new("test".to_owned(), config, toml, DataName::of(b"text"));
            let found = PlanSearch::default().plan_on(&document, Window::One, &nodes_of(&[1, 2]));
            (found.expect("there is a plan").op_ticks_max, weights)
        };
        let (small, _) = ticks_max(256);
        let (large, weights) = ticks_max(4_000_000);
        let update_s = weights as f64 * UPDATE_BYTES_PER_WEIGHT / REFERENCE_BYTES_PER_S;
        assert!(large >= ticks_of_seconds(PATIENCE * update_s), "{large} ticks for {update_s} s");
        assert!(small < large);
    }

    fn nodes_of(nodes: &[u64]) -> Vec<NodeResources> {
        let resources = Resources {
            memory: Bytes(0),
            speed_permille: 1000,
            class: zbelastic_consensus::class::DeviceClass::Processors,
        };
        nodes.iter().map(|node| (NodeId(*node), resources)).collect()
    }

    /// A node whose memory suffices for no stage is left out, wherever it stands.
    #[test]
    fn a_node_with_little_memory_stops_no_plan() {
        let toml = "[model]\npreset = \"tiny\"\n".to_owned();
        let config = load_document("test", &toml).expect("legal").config;
        let document = JobDocument::new("test".to_owned(), config, toml, DataName::of(b"text"));
        for small in 0..3 {
            let mut nodes = nodes_of(&[1, 2, 3]);
            nodes.iter_mut().for_each(|(_, resources)| resources.memory = Bytes(1 << 30));
            nodes[small].1.memory = Bytes(1 << 10);
            let found = PlanSearch::default().plan_on(&document, Window::One, &nodes);
            let stage_nodes = found.expect("two others suffice").stage_nodes;
            let others: Vec<usize> = (0..3).filter(|at| *at != small).collect();
            assert_eq!(stage_nodes, others, "the one at {small} has no room");
        }
        // Nodes whose memory suffices are used in their order, whichever have more.
        let mut nodes = nodes_of(&[1, 2, 3, 4, 5, 6]);
        for (at, (_, resources)) in nodes.iter_mut().enumerate() {
            resources.memory = Bytes((at as u64 + 1) << 30);
        }
        let found = PlanSearch::default().plan_on(&document, Window::One, &nodes).expect("a plan");
        assert_eq!(found.stage_nodes, (0..found.stage_nodes.len()).collect::<Vec<_>>());
    }

    /// What cannot be had with so many chunks is not taken for what cannot be had at all.
    #[test]
    fn chunks_that_do_not_fit_give_way_before_a_node_is_left_out() {
        let toml =
            "[model]\npreset = \"tiny\"\n[schedule]\nkind = \"auto\"\nchunks = 8\n".to_owned();
        let config = load_document("test", &toml).expect("legal").config;
        let document = JobDocument::new("test".to_owned(), config, toml, DataName::of(b"text"));
        let nodes = nodes_of(&[1, 2]);
        let mut search = PlanSearch::default();
        for turn in ["searched", "remembered"] {
            let found = search.plan_on(&document, Window::One, &nodes).expect("there is a plan");
            assert_eq!(found.program.placement.stage_count(), 2, "{turn}");
        }
    }
}
