//! A pipeline of threads, or several side by side, measured from seal to seal.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use zbelastic_kernels::Precision;
use zbelastic_local::cluster::train_on;
use zbelastic_local::executor_factory::{CpuFactory, ExecutorFactory};
use zbelastic_local::interrupt::Interrupt;
use zbelastic_local::job::TrainingJob;
use zbelastic_local::progress_event::ProgressEvent;
use zbelastic_schedule::ScheduleKind;
use zbelastic_timing::BubbleShares;
use zbelastic_trainer::plan::{self, Grid};
use zbelastic_wording::CommandFailure;

use super::case::{BatchSplit, BenchCase, pipeline};

/// Measurements of one run of a pipeline.
#[derive(Clone, Copy, Debug)]
pub struct PipelineRound {
    /// From seal to seal, the mean of the round's steps.
    pub step: Duration,
    /// The medians of the round's steps.
    pub bubbles: BubbleShares,
    /// Loss of the last step.
    pub loss: f64,
}

/// Steps before the first that counts: the pipeline finds its rhythm, memory is touched.
const WARMUP_STEPS: u64 = 2;

/// Runs a pipeline for `step_count` steps after warming up.
pub fn round(
    case: &BenchCase,
    kind: ScheduleKind,
    stage_count: u32,
    step_count: u64,
) -> Result<PipelineRound, CommandFailure> {
    let factory = CpuFactory { threads: 1, precision: Precision::F32, scratch: None };
    round_on(&factory, case, kind, pipeline(stage_count), step_count)
}

/// The same with the executor that `factory` makes for each stage.
pub fn round_on<O: ExecutorFactory>(
    factory: &O,
    case: &BenchCase,
    kind: ScheduleKind,
    grid: Grid,
    step_count: u64,
) -> Result<PipelineRound, CommandFailure> {
    let split = BatchSplit::Microbatches;
    let setup = case.setup(kind, grid, split, WARMUP_STEPS + step_count)?;
    let job = TrainingJob {
        setup: Arc::new(setup),
        policy: case.policy(),
        corpus: case.corpus(split)?,
        islands: None,
        threads: 1,
        interrupt: Interrupt::default(),
    };
    let mut steps: Vec<(Duration, BubbleShares)> = Vec::new();
    let mut loss = f64::NAN;
    train_on(factory, &job, &mut |event| {
        if let ProgressEvent::Step(record) = event {
            steps.push((record.elapsed, record.bubbles));
            loss = record.loss;
        }
        ControlFlow::Continue(())
    })?;
    let counted = &steps[WARMUP_STEPS as usize..];
    let total: Duration = counted.iter().map(|(elapsed, _)| *elapsed).sum();
    let median = |of: fn(&BubbleShares) -> f64| {
        let shares = counted.iter().map(|(_, bubbles)| of(bubbles));
        plan::median(shares, f64::total_cmp).expect("steps after the warm-up")
    };
    let bubbles = BubbleShares {
        measured: median(|bubbles| bubbles.measured),
        planned: median(|bubbles| bubbles.planned),
        causes: counted.last().and_then(|(_, bubbles)| bubbles.causes),
    };
    Ok(PipelineRound { step: total / step_count as u32, bubbles, loss })
}
