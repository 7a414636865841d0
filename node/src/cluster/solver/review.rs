//! A plan in force, judged by what its work was found to take.

use std::sync::Arc;

use zbelastic_consensus::job::JobSpec;
use zbelastic_consensus::plan::PlanRecord;
use zbelastic_schedule::Window;
use zbelastic_trainer::plan::{DriftJudgement, Plan, ReplanStakes, judge};
use zbelastic_types::Generation;

use super::{PlanQuery, choice};
use crate::cluster::document::JobDocument;
use crate::cluster::pace::{NodeResources, PaceEstimate};

/// What is to be judged.
pub struct PlanReview {
    /// The job that the plan is for.
    pub spec: Arc<JobSpec>,
    /// The plan in force.
    pub plan: Arc<PlanRecord>,
    /// The nodes at its stages, with their resources.
    pub nodes: Vec<NodeResources>,
    /// What it was made with.
    pub planned: PaceEstimate,
    /// The pace as it is found to be now.
    pub found: PaceEstimate,
    /// What is left to be gained, in microseconds.
    pub stakes: ReplanStakes,
}

/// The outcome of a review.
pub struct ReviewedPlan {
    /// On the plan of this generation.
    pub generation: Generation,
    /// The nodes at its stages, with their resources.
    pub nodes: Vec<NodeResources>,
    /// The pace as it was found to be.
    pub found: PaceEstimate,
    /// Whether the plan fits, or another one is needed.
    pub judgement: DriftJudgement,
}

impl PlanReview {
    /// Judges the plan of a job.
    pub(super) fn judge(self, document: &JobDocument) -> ReviewedPlan {
        let Self { plan: record, nodes, planned, found, stakes, .. } = self;
        let config = &document.config;
        let before = planned.seated(&nodes);
        let now = found.seated(&nodes);
        let assumed = planned.pace(config, &before);
        let pace = found.pace(config, &now);
        let plan = Plan {
            generation: record.generation,
            program: record.program.clone(),
            chunks: record.chunks.clone(),
            batch: config.batch,
            recompute: config.memory.recomputed(),
        };
        let window = record.window().unwrap_or(Window::One);
        let best = || {
            // Others that could be had with as many stages.
            let fallbacks = config.plan_fallbacks(now.len() as u32).ok()?;
            let same_size =
                fallbacks.into_iter().filter(|fallback| fallback.stage_count == now.len() as u32);
            let found = same_size.map(|fallback| {
                let bytes_max = config.stage_bytes_max;
                let query = PlanQuery::new(fallback, (&now, window), (&pace, bytes_max));
                choice(document, fallback, &query, &pace)
            });
            found.flatten().next().map(|best| best.prediction.period)
        };
        let judgement = judge(&plan, (&assumed, &pace), stakes, best);
        ReviewedPlan { generation: record.generation, nodes, found, judgement }
    }
}
