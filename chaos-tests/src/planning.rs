//! Plans of a life: the product's search, measurements and reviews, as a controller's process has them.

use std::time::Duration;

use zbelastic_consensus::duty::{PlanSolution, PlanUnsolvable, SolveRequest};
use zbelastic_kernels::{DeviceSizes, Precision};
use zbelastic_planner::{PaceTracker, PlanSearch, PlannerJob};
use zbelastic_trainer::plan::MemoryPolicy;
use zbelastic_trainer::stage::StageSetup;

use crate::options::LifeOptions;
use crate::ticks::TICK_US;

/// Ticks after which an operation of a life hangs, where none is long.
const OP_TICKS_MAX: u32 = 40;
/// The factor by which an operation may last longer than planned; clocks differ.
const PATIENCE: u64 = 2;

/// The planner of a controller's process. It is gone with the process.
pub struct LifePlanner {
    /// The facts that plans of the life's job depend on.
    pub job: PlannerJob,
    /// Finds plans, and remembers them.
    pub search: PlanSearch,
    /// The measured durations of steps.
    pub tracker: PaceTracker,
    op_ticks_max: u32,
}

impl LifePlanner {
    /// The planner of a process that begins, for the model of a life.
    #[must_use]
    pub fn new(options: &LifeOptions, setup: &StageSetup) -> Self {
        let long_us = options.pace.map_or(0, |pace| pace.op_us);
        let job = PlannerJob {
            model: setup.model.clone(),
            batch: setup.plan.batch,
            optimizer: setup.optimizer.kind,
            kinds: vec![options.kind],
            is_auto: false,
            chunks_per_stage: None,
            replicas: Some(options.replicas),
            slice_count: None,
            memory: MemoryPolicy {
                sharded: options.sharded.then(|| options.copies + 1),
                ..MemoryPolicy::default()
            },
            copies: options.copies,
            is_island: options.islands.is_some(),
            stage_bytes_max: None,
            sizes: DeviceSizes::Processors(Precision::F32),
        };
        Self {
            job,
            search: PlanSearch::new(Duration::from_micros(TICK_US)),
            tracker: PaceTracker::default(),
            op_ticks_max: OP_TICKS_MAX.max((PATIENCE * long_us / TICK_US) as u32),
        }
    }

    /// A plan over as many of the nodes as can be used. Operations of a life last as long as its
    /// options say, and so does the time after which one hangs.
    ///
    /// # Errors
    /// If there is none for any number of them.
    pub fn solve(&mut self, request: &SolveRequest) -> Result<PlanSolution, PlanUnsolvable> {
        let nodes = request.nodes.len();
        let of_job = (&self.job, request.window);
        let found = self.search.solve_from(of_job, &request.nodes, request.in_force.as_ref());
        let (found, _) = found.map_err(|reason| PlanUnsolvable { nodes, reason })?;
        Ok(PlanSolution { op_ticks_max: self.op_ticks_max, ..found })
    }
}
