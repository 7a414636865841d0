//! A plan in force, judged by the measured times of its work.

use std::sync::Arc;

use zbelastic_consensus::plan::PlanRecord;
use zbelastic_schedule::Window;
use zbelastic_trainer::plan::{DriftJudgement, Grid, Plan, ReplanStakes, ReplicaCount, judge};
use zbelastic_types::Generation;

use crate::estimate::PaceEstimate;
use crate::fallback::PlannerJob;
use crate::node_choices::NodeResources;
use crate::search::PlanQuery;

/// The plan that is to be judged, and its circumstances.
#[derive(Clone, Debug)]
pub struct PlanReview {
    /// The plan in force.
    pub plan: Arc<PlanRecord>,
    /// The nodes at its stages, with their resources.
    pub nodes: Vec<NodeResources>,
    /// The estimate that it was made with.
    pub planned: PaceEstimate,
    /// The pace as it is found to be now.
    pub found: PaceEstimate,
    /// The time that is left to be gained, in microseconds.
    pub stakes: ReplanStakes,
}

/// The outcome of a review.
#[derive(Clone, Debug)]
pub struct ReviewedPlan {
    /// On the plan of this generation.
    pub generation: Generation,
    /// The nodes at its stages, with their resources.
    pub nodes: Vec<NodeResources>,
    /// The pace as it was found to be.
    pub found: PaceEstimate,
    /// Whether the plan fits, or another one is wanted.
    pub judgement: DriftJudgement,
}

impl PlanReview {
    /// Judges the plan of a job.
    #[must_use]
    pub fn judge(self, job: &PlannerJob) -> ReviewedPlan {
        let Self { plan: record, nodes, planned, found, stakes } = self;
        let (before, now) = (planned.seated(&nodes), found.seated(&nodes));
        let (assumed, pace) = (planned.pace(job, &before), found.pace(job, &now));
        let plan = Plan::of_record(&record, job.batch, job.memory.recompute);
        let window = record.window().unwrap_or(Window::One);
        let best = || {
            // Others that could be had with as many stages and replicas: a table has fewer workers.
            let placement = plan.placement();
            if placement.is_table() {
                return None;
            }
            let stage_count = placement.stages_per_column();
            let grid = Grid { stage_count, replicas: ReplicaCount::of(placement) };
            let fallbacks = job.fallbacks(grid);
            let here = fallbacks.into_iter().filter(|it| it.grid == grid);
            let found = here.map(|fallback| {
                let query = PlanQuery::new(fallback, (&now, window), (&pace, job.stage_bytes_max));
                job.choose(fallback, window, (&query.bytes_max, &pace))
            });
            found.flatten().next().map(|best| best.prediction.period)
        };
        let judgement = judge(&plan, (&assumed, &pace), stakes, best);
        ReviewedPlan { generation: record.generation, nodes, found, judgement }
    }
}
