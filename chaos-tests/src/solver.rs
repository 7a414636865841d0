//! Answers to requests for plans, as a node's solver gives them.

use std::collections::BTreeMap;

use zbelastic_consensus::duty::{Solution, SolveRequest, Unsolvable};
use zbelastic_schedule::{ScheduleKind, Window};
use zbelastic_trainer::model::ModelConfig;
use zbelastic_trainer::plan::{BatchShape, Plan, PlanRequest};
use zbelastic_trainer::stage::StageSetup;

use crate::options::Options;

/// Ticks after which an operation of a life hangs.
const OP_TICKS_MAX: u32 = 40;

/// A solver that remembers what it found.
pub struct Solver {
    model: ModelConfig,
    batch: BatchShape,
    kind: ScheduleKind,
    found: BTreeMap<(u32, Window), Solution>,
}

impl Solver {
    /// A solver for the model of a life.
    #[must_use]
    pub fn new(options: &Options, setup: &StageSetup) -> Self {
        let (model, batch) = (setup.model.clone(), setup.plan.batch);
        Self { model, batch, kind: options.kind, found: BTreeMap::new() }
    }

    /// A plan over as many of the nodes as can be used.
    ///
    /// # Errors
    /// If there is none for any number of them.
    pub fn solve(&mut self, request: &SolveRequest) -> Result<Solution, Unsolvable> {
        let count = (request.nodes.len() as u32).min(self.model.blocks);
        let window = request.window;
        if let Some(found) = self.found.get(&(count, window)) {
            return Ok(found.clone());
        }
        // No other schedule trains to the bits of slices.
        let others = [ScheduleKind::ZbH1, ScheduleKind::OneFOneB].into_iter();
        let others = others.filter(|_| !self.kind.is_sliced());
        let plans = std::iter::once(self.kind).chain(others).find_map(|kind| {
            let (model, batch, chunks_per_stage) = (&self.model, self.batch, None);
            let stage_count = count;
            let request = PlanRequest {
                model,
                batch,
                kind,
                chunks_per_stage,
                slice_count: None,
                stage_count,
                window,
            };
            Plan::new(request).ok()
        });
        let nodes = request.nodes.len();
        let plan = plans.ok_or(Unsolvable { nodes, reason: "no schedule fits".to_owned() })?;
        let Plan { program, chunks, .. } = plan;
        let solution = Solution { program, chunks, op_ticks_max: OP_TICKS_MAX };
        self.found.insert((count, window), solution.clone());
        Ok(solution)
    }
}
