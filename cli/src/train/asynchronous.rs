//! The plan of a run without steps, with its predicted memory and bubble.

use std::fmt;
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use zbelastic_config::RunConfig;
use zbelastic_local::asynchronous::{self, AsyncJob};
use zbelastic_local::coordinator::RunOutcome;
use zbelastic_local::executor_factory::StageBackendFactory;
use zbelastic_local::progress_event::ProgressEvent;
use zbelastic_schedule::asynchronous::{
    AsyncGenerateError, AsyncKind, AsyncProgram, AsyncProgramParseError, AsyncRequest,
    AsyncVariant, DynamicOptions, DynamicRule, generate_async,
};
use zbelastic_schedule::{Costs, MemoryCosts, simulate};
use zbelastic_trainer::asynchronous::{
    AsyncHyperparameters, AsyncPlan, AsyncPlanError, AsyncSetup,
};
use zbelastic_trainer::plan::{Pace, StageMemory};
use zbelastic_trainer::stage::StageSetup;
use zbelastic_types::{Bytes, StageIndex};
use zbelastic_wording::{CommandFailure, FailureCode, FailureDetail};

use super::prepare::{PreparedRun, stage_memory_detail};

/// A plan without steps.
pub struct AsyncPlanChoice {
    /// The plan that stages follow.
    pub plan: AsyncPlan,
    /// Memory that its stages need.
    pub memory: Vec<StageMemory>,
    /// The share of the time in which the busiest stage should wait; 0 where the order is found
    /// while it runs.
    pub bubble: f64,
}

impl fmt::Display for AsyncPlanChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let largest = self.memory.iter().map(StageMemory::total).max().unwrap_or(Bytes(0));
        let kind = self.plan.program.kind;
        let bubble = 100.0 * self.bubble;
        write!(f, "{kind}: asynchronous, planned bubble {bubble:.1} %, {largest} a stage")
    }
}

/// The plan of `kind` with a stage for each worker.
///
/// # Errors
/// If the schedule does not exist for this size, or a stage does not fit.
pub fn choose_async(
    config: &RunConfig,
    kind: AsyncKind,
    worker_count: u32,
) -> Result<AsyncPlanChoice, CommandFailure> {
    let request = request(config, kind, worker_count);
    let plan = AsyncPlan::new(&config.model, config.batch, request)
        .map_err(|error| plan_failure(&error, kind))?;
    let plan = match &config.asynchronous.ampnet_order {
        Some(path) if kind == AsyncKind::AmpNet => with_order(plan, path)?,
        Some(_) | None => plan,
    };
    let stages = || (0..worker_count).map(StageIndex);
    let memory: Vec<StageMemory> = stages()
        .map(|stage| plan.stage_memory(&config.arithmetic.sizes(), &config.model, stage))
        .collect();
    let sizes = stages().zip(memory.iter().map(StageMemory::total));
    let (stage, needed) = sizes.max_by_key(|(_, size)| *size).expect("there is a stage");
    if let Some(limit) = config.stage_bytes_max.filter(|limit| needed > *limit) {
        let mut failure =
            CommandFailure::new(FailureCode::OutOfResource, "stage memory does not fit");
        failure.details = vec![stage_memory_detail(kind.name(), stage, (needed, limit))];
        return Err(failure);
    }
    let bubble = planned_bubble(config, &plan, request);
    Ok(AsyncPlanChoice { plan, memory, bubble })
}

/// The plan with an order that another run found.
fn with_order(plan: AsyncPlan, path: &Path) -> Result<AsyncPlan, CommandFailure> {
    let refused = |what: String| {
        let place = format!("schedule.ampnet_order: {}", path.display());
        let hint = "the order.txt of an ampnet run with these workers, steps and microbatches";
        CommandFailure::usage("the run", vec![FailureDetail::new(what).at(place).hint(hint)])
    };
    let text = fs::read_to_string(path).map_err(|error| refused(error.to_string()))?;
    let order: AsyncProgram =
        text.parse().map_err(|error: AsyncProgramParseError| refused(error.to_string()))?;
    plan.with_order(order).map_err(|error| refused(error.to_string()))
}

fn request(config: &RunConfig, kind: AsyncKind, stage_count: u32) -> AsyncRequest {
    let asynchronous = &config.asynchronous;
    AsyncRequest {
        kind,
        stage_count,
        // More than a program may have is refused as too many.
        minibatch_count: u32::try_from(config.steps).unwrap_or(u32::MAX),
        microbatch_count: config.batch.microbatch_count,
        replica_count: asynchronous.avgpipe_pipelines,
        dynamic: DynamicOptions {
            rule: DynamicRule::Oldest,
            cap: asynchronous.ampnet_cap,
            update_every: asynchronous.ampnet_update_every,
        },
        variant: asynchronous.variant(kind),
    }
}

/// Minibatches that are simulated for the bubble; those of a long run repeat themselves.
const SIMULATED_MAX: u32 = 16;

fn planned_bubble(config: &RunConfig, plan: &AsyncPlan, request: AsyncRequest) -> f64 {
    if request.kind == AsyncKind::AmpNet {
        return 0.0;
    }
    let pipelines = plan.program.replica_count;
    let minibatch_count = request.minibatch_count.min(SIMULATED_MAX.next_multiple_of(pipelines));
    // The cost of a warm-up is over when it is.
    let variant = match request.variant {
        AsyncVariant::WarmUp(_) => AsyncVariant::Usual,
        variant @ (AsyncVariant::Usual | AsyncVariant::VerticalSync) => variant,
    };
    let short = generate_async(AsyncRequest { minibatch_count, variant, ..request });
    let short = short.expect("a part of a run is no larger").plain();
    let pace = Pace::estimated(&config.model, config.batch.microbatch);
    let chunks = pace.chunk_times(&short.placement, &plan.chunks);
    let costs = Costs {
        chunks,
        slice_shares: Vec::new(),
        link: 0.0,
        occupancy: 0.0,
        verdict: 0.0,
        step: 0.0,
        memory: MemoryCosts::default(),
        gradients: Vec::new(),
        tied: 0.0,
    };
    let timeline = simulate(&short, &costs, 1).expect("a checked program runs to its end");
    timeline.bubble_span(0)
}

fn plan_failure(error: &AsyncPlanError, kind: AsyncKind) -> CommandFailure {
    let detail = FailureDetail::new(error.to_string());
    let detail = match error {
        AsyncPlanError::Chunks { blocks, .. } => {
            let most = blocks / kind.chunks_per_stage();
            let why = "each worker is a stage, and each chunk of a stage holds a layer or more";
            detail.at("--workers").why(why).hint(format!("--workers {} or fewer", most.max(1)))
        }
        AsyncPlanError::Tied { .. } => detail
            .at("model.tied")
            .why("no update waits for a gradient of another stage there")
            .hint("model.tied = false, or a schedule with steps such as zb-h1 or 1f1b"),
        AsyncPlanError::Frozen { .. } => detail
            .at("train.freeze")
            .why("weights there are predicted, averaged and corrected a layer at a time")
            .hint(
                "no train.freeze and no lora.rank, or a schedule with steps such as zb-h1 or 1f1b",
            ),
        AsyncPlanError::Lanes { .. } => detail
            .at("train.lanes")
            .why("an update adds up its few microbatches as one chain")
            .hint("train.lanes = 1, or a schedule with steps such as zb-h1 or 1f1b"),
        AsyncPlanError::OtherRun { .. } | AsyncPlanError::Order { .. } => {
            detail.at("schedule.ampnet_order")
        }
        AsyncPlanError::Generate(error) => match error {
            AsyncGenerateError::Count { .. } | AsyncGenerateError::PassCount { .. } => detail
                .at("train.steps")
                .why("the program of such a run lists every microbatch of all its steps")
                .hint("fewer --steps, or a larger train.microbatch"),
            AsyncGenerateError::FewMicrobatches { .. } => detail
                .at("train.microbatch")
                .why("a version must be complete before it is read a minibatch later")
                .hint("a smaller train.microbatch, or fewer --workers"),
            AsyncGenerateError::Variant { .. } => unreachable!("a kind is asked for what it has"),
            AsyncGenerateError::UnevenPipelines { replica_count, .. } => {
                let hint = format!("--steps a multiple of {replica_count}");
                detail.at("train.steps").why("pipelines take steps in turn").hint(hint)
            }
        },
    };
    CommandFailure {
        code: FailureCode::Usage,
        what: "the run has no plan".to_owned(),
        details: vec![detail],
    }
}

/// Trains the prepared run with the backend that `factory` makes for each stage.
///
/// # Errors
/// As [`asynchronous::train_on`].
pub fn train<O: StageBackendFactory>(
    factory: &O,
    prepared: &PreparedRun,
    choice: &AsyncPlanChoice,
    observe: &mut dyn FnMut(&ProgressEvent) -> ControlFlow<()>,
) -> Result<RunOutcome, CommandFailure> {
    let job = AsyncJob {
        setup: Arc::new(setup(prepared, choice)),
        whole: &prepared.job.setup,
        corpus: prepared.job.corpus.clone(),
        interrupt: &prepared.job.interrupt,
        bubble: choice.bubble,
    };
    asynchronous::train_on(factory, &job, observe)
}

fn setup(prepared: &PreparedRun, choice: &AsyncPlanChoice) -> AsyncSetup {
    let StageSetup { model, optimizer, z_loss, clip_norm, weights, injections, .. } =
        (*prepared.job.setup).clone();
    let config = &prepared.config.asynchronous;
    let knobs = AsyncHyperparameters {
        anneal_updates: config.pipemare_steps,
        elastic_alpha: config.avgpipe_alpha as f32,
    };
    AsyncSetup {
        model,
        plan: choice.plan.clone(),
        optimizer,
        z_loss,
        clip_norm,
        weights,
        injections,
        knobs,
    }
}
