//! Plans, found off the event loop. The leader asks, gets an answer, and proposes it; what is not on
//! the way of anybody is to look ahead: the plans for one node less and one more are found before
//! they are needed, so that a loss does not wait for a search.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use tokio::sync::mpsc;
use zbelastic_consensus::duty::{Solution, SolveRequest, Unsolvable};
use zbelastic_consensus::job::JobSpec;
use zbelastic_consensus::member::Resources;
use zbelastic_consensus::plan::copies_at;
use zbelastic_kernels::CpuBackend;
use zbelastic_schedule::Window;
use zbelastic_trainer::plan::{AUTO_KINDS, ChooseRequest, Pace, Plan, choose, layer_work};
use zbelastic_types::{Bytes, LayerRange, NodeId};

use super::document::{JobDocument, NamedJob};
use super::tick::ticks_of_seconds;
use crate::config::ScheduleChoice;

/// Requests that wait at once: a leader asks for one at a time, and gives up those before it.
const REQUESTS_MAX: usize = 4;
/// Solutions remembered; with more, those for the most nodes go first.
const REMEMBERED_MAX: usize = 256;
/// What a device of speed 1000 does in a second, in floating-point operations: one core of the kind
/// that this was measured on, rounded down.
const REFERENCE_FLOP_PER_S: f64 = 2e10;
/// How many times longer than predicted an operation may take: cores are shared, and shared cores
/// are preempted.
const PATIENCE: f64 = 10.0;
/// An operation may take so long however small it is, in seconds: the longest a busy machine keeps a
/// thread waiting, with room.
const OP_SECONDS_MIN: f64 = 1.0;

/// A plan, or that there is none.
pub struct Solved {
    /// As in the request.
    pub number: u64,
    /// What was found.
    pub solution: Result<Solution, Unsolvable>,
}

/// The thread that looks for plans.
pub struct Solver {
    requests: SyncSender<SolveRequest>,
}

impl Solver {
    /// Starts the thread; answers come through the receiver.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start() -> std::io::Result<(Self, mpsc::Receiver<Solved>)> {
        let (requests, inbox) = sync_channel(REQUESTS_MAX);
        let (answers, outbox) = mpsc::channel(REQUESTS_MAX);
        let search = move || Search::default().serve(&inbox, &answers);
        thread::Builder::new().name("solver".to_owned()).spawn(search)?;
        Ok((Self { requests }, outbox))
    }

    /// Asks for a plan. With too many waiting the request is dropped: the leader asks again.
    pub fn ask(&self, request: SolveRequest) {
        let _ = self.requests.try_send(request);
    }
}

/// What a plan depends on, beside the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Question {
    stage_count: u32,
    is_ahead: bool,
    bytes_max: Option<Bytes>,
}

#[derive(Default)]
struct Search {
    job: Option<NamedJob>,
    found: BTreeMap<Question, Result<Solution, String>>,
}

impl Search {
    fn serve(mut self, requests: &Receiver<SolveRequest>, answers: &mpsc::Sender<Solved>) {
        while let Ok(request) = requests.recv() {
            let solution = self.solve(&request);
            if answers.blocking_send(Solved { number: request.number, solution }).is_err() {
                return;
            }
            self.look_ahead(&request);
        }
    }

    fn solve(&mut self, request: &SolveRequest) -> Result<Solution, Unsolvable> {
        let nodes = request.nodes.len();
        let unsolvable = |reason: String| Unsolvable { nodes, reason };
        let document = self.document(&request.spec).map_err(unsolvable)?;
        let most = (nodes as u32).min(document.config.model.blocks);
        let mut reason = "nobody is there".to_owned();
        for count in (1..=most).rev() {
            match self.plan_for(request, count) {
                Ok(solution) => return Ok(solution),
                Err(why) => reason = why,
            }
        }
        Err(Unsolvable { nodes, reason })
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

    /// Plans for one node less, two less, and one more, unless a request comes in between: they are
    /// found in milliseconds, so none is interrupted.
    fn look_ahead(&mut self, request: &SolveRequest) {
        let count = request.nodes.len() as u32;
        let blocks = self.job.as_ref().map_or(0, |named| named.job.config.model.blocks);
        for count in [count.saturating_sub(1), count.saturating_sub(2), count + 1] {
            if (1..=blocks).contains(&count) {
                let _ = self.plan_for(request, count);
            }
        }
    }

    fn plan_for(&mut self, request: &SolveRequest, stage_count: u32) -> Result<Solution, String> {
        let nodes: Vec<_> = request.nodes.iter().take(stage_count as usize).collect();
        let bytes_max = least_memory(&nodes);
        let is_ahead = request.window == Window::One;
        let question = Question { stage_count, is_ahead, bytes_max };
        if let Some(found) = self.found.get(&question) {
            return found.clone();
        }
        let Some(named) = &self.job else { return Err("there is no job".to_owned()) };
        let found = search(&named.job, question, request.window, &nodes);
        if self.found.len() >= REMEMBERED_MAX {
            self.found.pop_last();
        }
        self.found.insert(question, found.clone());
        found
    }
}

fn least_memory(nodes: &[&(NodeId, Resources)]) -> Option<Bytes> {
    nodes.iter().map(|(_, resources)| resources.memory).filter(|memory| memory.0 > 0).min()
}

fn search(
    document: &JobDocument,
    question: Question,
    window: Window,
    nodes: &[&(NodeId, Resources)],
) -> Result<Solution, String> {
    let config = &document.config;
    let limit = config.stage_bytes_max.into_iter().chain(question.bytes_max).min();
    let limits = vec![limit; question.stage_count as usize];
    let limits: Vec<Bytes> = limits.into_iter().flatten().collect();
    // A cluster refuses such a job when it is submitted.
    let kinds = config.schedule.kinds().map_err(|kind| format!("{kind} has no steps to seal"))?;
    let request = ChooseRequest {
        model: &config.model,
        batch: config.batch,
        kinds,
        chunks_per_stage: config.chunks_per_stage,
        stage_count: question.stage_count,
        window,
        recompute: config.memory.policy(),
        copies: copies_at(config.elastic.copies, question.stage_count),
        stage_bytes_max: &limits,
        pace: &Pace::estimated(&config.model, config.batch.microbatch),
    };
    let backend = CpuBackend::new(1).map_err(|error| error.to_string())?;
    // What was asked for may not exist for every number of stages; the run must go on with any.
    let choice = choose(&backend, request).or_else(|refusals| {
        if config.schedule == ScheduleChoice::Auto && config.chunks_per_stage.is_none() {
            return Err(refusals);
        }
        choose(&backend, ChooseRequest { kinds: &AUTO_KINDS, chunks_per_stage: None, ..request })
    });
    let choice = choice.map_err(|refusals| {
        let reasons = refusals.iter().map(|(kind, refusal)| format!("{kind}: {refusal}"));
        reasons.collect::<Vec<_>>().join("; ")
    })?;
    let op_ticks_max = op_ticks_max(document, &choice.plan.chunks, nodes);
    let Plan { program, chunks, .. } = choice.plan;
    Ok(Solution { program, chunks, op_ticks_max })
}

/// Ticks after which an operation hangs: so many times what it should take on the slowest node.
fn op_ticks_max(
    document: &JobDocument,
    chunks: &[LayerRange],
    nodes: &[&(NodeId, Resources)],
) -> u32 {
    let config = &document.config;
    let work = layer_work(&config.model, config.batch.microbatch);
    let of_chunk =
        |chunk: &LayerRange| -> f64 { chunk.ids().map(|layer| work[layer as usize].total()).sum() };
    let largest = chunks.iter().map(of_chunk).fold(0.0, f64::max);
    let slowest = nodes.iter().map(|(_, resources)| resources.speed_permille.max(1)).min();
    let speed = f64::from(slowest.unwrap_or(1000)) / 1000.0;
    ticks_of_seconds(OP_SECONDS_MIN + PATIENCE * largest / (REFERENCE_FLOP_PER_S * speed))
}
