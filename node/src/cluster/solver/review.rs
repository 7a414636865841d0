//! A plan in force, judged by what its work was found to take.

use std::sync::Arc;

use zbelastic_consensus::job::JobSpec;
use zbelastic_consensus::plan::PlanRecord;
use zbelastic_schedule::Window;
use zbelastic_trainer::plan::{Judgement, Plan, Stakes, judge};
use zbelastic_types::Generation;

use super::{Question, choice};
use crate::cluster::document::JobDocument;
use crate::cluster::pace::{Known, Seated};

/// What is to be judged.
pub struct Review {
    /// The job that the plan is for.
    pub spec: Arc<JobSpec>,
    /// The plan in force.
    pub plan: Arc<PlanRecord>,
    /// The nodes at its stages, with what they brought.
    pub nodes: Vec<Seated>,
    /// What it was made with.
    pub planned: Known,
    /// The pace as it is found to be now.
    pub found: Known,
    /// What is left to be gained, in microseconds.
    pub stakes: Stakes,
}

/// The outcome of a review.
pub struct Reviewed {
    /// On the plan of this generation.
    pub generation: Generation,
    /// The nodes at its stages, with what they brought.
    pub nodes: Vec<Seated>,
    /// The pace as it was found to be.
    pub found: Known,
    /// Whether the plan fits, or another one is wanted.
    pub judgement: Judgement,
}

impl Review {
    /// Judges the plan of a job.
    pub(super) fn judge(self, document: &JobDocument) -> Reviewed {
        let Self { plan: record, nodes, planned, found, stakes, .. } = self;
        let config = &document.config;
        let (before, now) = (planned.seated(&nodes), found.seated(&nodes));
        let (assumed, pace) = (planned.pace(config, &before), found.pace(config, &now));
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
            let resorts = config.resorts(now.len() as u32).ok()?;
            let here = resorts.into_iter().filter(|resort| resort.stage_count == now.len() as u32);
            let found = here.map(|resort| {
                let most = config.stage_bytes_max;
                let question = Question::new(resort, (&now, window), (&pace, most));
                choice(document, resort, &question, &pace)
            });
            found.flatten().next().map(|best| best.prediction.period)
        };
        let judgement = judge(&plan, (&assumed, &pace), stakes, best);
        Reviewed { generation: record.generation, nodes, found, judgement }
    }
}
