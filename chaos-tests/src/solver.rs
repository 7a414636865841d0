//! Answers to requests for plans, as a node's solver gives them.

use std::collections::BTreeMap;

use zbelastic_consensus::duty::{PlanSolution, PlanUnsolvable, SolveRequest};
use zbelastic_consensus::member::Resources;
use zbelastic_schedule::{ScheduleKind, Window};
use zbelastic_trainer::model::ModelConfig;
use zbelastic_trainer::plan::{BatchShape, LayerWork, Plan, PlanRequest, layer_work, partition};
use zbelastic_trainer::stage::StageSetup;
use zbelastic_types::NodeId;

use crate::options::LifeOptions;
use crate::world::TICK_US;

/// Ticks after which an operation of a life hangs, where none takes long.
const OP_TICKS_MAX: u32 = 40;
/// How many times longer than planned an operation may take; clocks differ.
const PATIENCE: u64 = 2;

/// A solver that remembers what it found.
pub struct CachingSolver {
    model: ModelConfig,
    batch: BatchShape,
    kind: ScheduleKind,
    op_ticks_max: u32,
    /// By speeds of the nodes used, where they are not alike.
    solutions: BTreeMap<(u32, Window, Vec<u32>), PlanSolution>,
}

impl CachingSolver {
    /// A solver for the model of a life.
    #[must_use]
    pub fn new(options: &LifeOptions, setup: &StageSetup) -> Self {
        let model = setup.model.clone();
        let batch = setup.plan.batch;
        let long_us = options.pace.map_or(0, |pace| pace.op_us);
        let op_ticks_max = OP_TICKS_MAX.max((PATIENCE * long_us / TICK_US) as u32);
        Self { model, batch, kind: options.kind, op_ticks_max, solutions: BTreeMap::new() }
    }

    /// A plan over as many of the nodes as can be used.
    ///
    /// # Errors
    /// If there is none for any number of them.
    pub fn solve(&mut self, request: &SolveRequest) -> Result<PlanSolution, PlanUnsolvable> {
        let count = (request.nodes.len() as u32).min(self.model.blocks);
        let window = request.window;
        let speeds = speeds(&request.nodes[..count as usize]);
        let key = (count, window, speeds.clone());
        if let Some(found) = self.solutions.get(&key) {
            return Ok(found.clone());
        }
        let found = self.fallbacks(count).into_iter().find_map(|(kind, stage_count)| {
            let request = PlanRequest {
                model: &self.model,
                batch: self.batch,
                kind,
                chunks_per_stage: None,
                slice_count: None,
                stage_count,
                window,
            };
            let plan = Plan::new(request).ok()?;
            let speeds = speeds.get(..stage_count as usize).unwrap_or_default();
            if speeds.is_empty() { Some(plan) } else { cut_by_speed(request, &plan, speeds) }
        });
        let nodes = request.nodes.len();
        let plan = found.ok_or(PlanUnsolvable { nodes, reason: "no schedule fits".to_owned() })?;
        let Plan { program, chunks, .. } = plan;
        let stage_nodes = (0..program.placement.stage_count() as usize).collect();
        let solution =
            PlanSolution { program, chunks, stage_nodes, op_ticks_max: self.op_ticks_max };
        self.solutions.insert(key, solution.clone());
        Ok(solution)
    }

    /// What is tried, as a node does. No other schedule trains to the bits of slices, and none but
    /// one of two replicas to those of replicas.
    fn fallbacks(&self, count: u32) -> Vec<(ScheduleKind, u32)> {
        let own = self.kind;
        if own.replica_count() > 1 {
            let counts = (1..=count).rev();
            let anywhere = counts.clone().map(|count| (ScheduleKind::Gems, count));
            return counts.map(|count| (own, count)).chain(anywhere).collect();
        }
        let others: &[ScheduleKind] = match own.is_sliced() {
            true => &[],
            false => &[ScheduleKind::ZbH1, ScheduleKind::OneFOneB],
        };
        std::iter::once(own).chain(others.iter().copied()).map(|kind| (kind, count)).collect()
    }
}

/// In thousandths; none if all are alike, as they are where nothing was measured.
fn speeds(nodes: &[(NodeId, Resources)]) -> Vec<u32> {
    let speeds: Vec<u32> = nodes.iter().map(|(_, brought)| brought.speed_permille).collect();
    if speeds.windows(2).all(|pair| pair[0] == pair[1]) { Vec::new() } else { speeds }
}

/// The same schedule, with less for workers that are slow.
fn cut_by_speed(request: PlanRequest<'_>, plan: &Plan, speeds: &[u32]) -> Option<Plan> {
    let work = layer_work(request.model, request.batch.microbatch);
    let work: Vec<f64> = work.iter().map(LayerWork::total).collect();
    let speeds: Vec<f64> = speeds.iter().map(|permille| f64::from(*permille)).collect();
    Plan::with_chunks(request, partition(&work, plan.placement(), &speeds)).ok()
}
