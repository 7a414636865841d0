//! Everything that is found out before anything is written: text, weights, plan, memory.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use zbelastic_config::{
    ConfigFlag, ConfigNote, ConfigSettings, ConfigSources, ConfigValue, Key, LoadedConfig,
    RunConfig, ScheduleChoice, SettingOrigin, check_needs_no_steps, load, load_with_injections,
    plan_failure, size_text,
};
use zbelastic_islands::ExchangeSetup;
use zbelastic_local::interrupt::Interrupt;
use zbelastic_local::job::TrainingJob;
use zbelastic_machine::{DeviceList, core_count};
use zbelastic_schedule::{GenerateError, ScheduleKind};
use zbelastic_trainer::hf::SpecialTokenIds;
use zbelastic_trainer::model::LayerRange;
use zbelastic_trainer::plan::{
    ChooseRequest, Grid, HeldBeside, Pace, Plan, PlanChoice, PlanError, ReplicaCount,
    ScheduleRefusal, StageMemory, best_grid, choose,
};
use zbelastic_trainer::stage::{InitialWeights, StageSetup};
use zbelastic_types::{Bytes, StageIndex};
use zbelastic_wording::{CommandFailure, FailureCode, FailureDetail};

use super::asynchronous::{AsyncPlanChoice, choose_async};
use super::folder::check_can_begin;
use super::run_devices::{DeviceShare, DeviceSharing, RunDevices};
use super::worker_grids::grids_of;
use crate::args::TrainArgs;
use crate::corpus::{DataSummary, RunCorpus, load_data};
use crate::remote_model::with_local_model;
use crate::run_files::RUNS;
use crate::run_tokenizer::RunTokenizer;
use crate::store_maker::{with_text_store, with_vocabulary};
use crate::weights::given_weights;

/// A run that can begin.
pub struct PreparedRun {
    /// Name of the run, which its folder is named after.
    pub name: String,
    /// Configuration of the run.
    pub config: RunConfig,
    /// Notes that are printed before the run begins.
    pub notes: Vec<ConfigNote>,
    /// About the text or the stores that it trains on.
    pub text: DataSummary,
    /// The tokenizer of its tokens.
    pub tokenizer: RunTokenizer,
    /// The special tokens that the model's source names, where the run reads its tokens.
    pub special_ids: SpecialTokenIds,
    /// Its plan, and why that.
    pub plan: RunPlan,
    /// Its stages, each with a worker.
    pub worker_count: u32,
    /// The devices that workers compute on.
    pub devices: RunDevices,
    /// How they share it.
    pub sharing: DeviceSharing,
    /// The job of the workers.
    pub job: TrainingJob,
}

/// The plan that workers follow.
pub enum RunPlan {
    /// A plan of synchronous steps.
    Synchronous(PlanChoice),
    /// A program without steps. Work that needs a plan of steps for the whole model, as evaluation
    /// at the end does, has one of a single stage beside it.
    Asynchronous {
        /// The asynchronous program and its plan.
        plan: AsyncPlanChoice,
        /// The plan of one stage.
        whole: Plan,
    },
}

impl RunPlan {
    /// The plan of steps.
    #[must_use]
    pub fn synchronous(&self) -> &Plan {
        match self {
            Self::Synchronous(choice) => &choice.plan,
            Self::Asynchronous { whole, .. } => whole,
        }
    }

    /// Name of the schedule.
    #[must_use]
    pub fn schedule(&self) -> &'static str {
        match self {
            Self::Synchronous(choice) => choice.plan.program.kind.name(),
            Self::Asynchronous { plan, .. } => plan.plan.program.kind.name(),
        }
    }

    /// Memory that each stage needs.
    #[must_use]
    pub fn memory(&self) -> &[StageMemory] {
        match self {
            Self::Synchronous(choice) => &choice.memory,
            Self::Asynchronous { plan, .. } => &plan.memory,
        }
    }

    /// The layers of each chunk.
    #[must_use]
    pub fn chunks(&self) -> &[LayerRange] {
        match self {
            Self::Synchronous(choice) => &choice.plan.chunks,
            Self::Asynchronous { plan, .. } => &plan.plan.chunks,
        }
    }

    /// The share of a step in which the busiest stage should wait.
    #[must_use]
    pub fn bubble(&self) -> f64 {
        match self {
            Self::Synchronous(choice) => choice.prediction.bubble,
            Self::Asynchronous { plan, .. } => plan.bubble,
        }
    }
}

impl fmt::Display for RunPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Synchronous(choice) => choice.fmt(f),
            Self::Asynchronous { plan, .. } => plan.fmt(f),
        }
    }
}

/// Workers where none are requested: enough for a pipeline, no more than the model has blocks.
const WORKERS_DEFAULT: u32 = 4;

fn workers_default(config: &RunConfig) -> u32 {
    let chunks_per_stage = match config.schedule {
        ScheduleChoice::Asynchronous(kind) => kind.chunks_per_stage(),
        ScheduleChoice::Auto | ScheduleChoice::Kind(_) => 1,
    };
    let replicas = config.replicas.map_or(1, ReplicaCount::get);
    let most = (WORKERS_DEFAULT / replicas).min(config.model.blocks / chunks_per_stage);
    replicas * most.max(1)
}

/// Where the configuration comes from. A device that is named sets `train.device` to its kind.
fn sources(args: &TrainArgs) -> ConfigSources {
    let mut sources = args.config.sources();
    let kind = args.device.as_ref().map(|devices| match devices {
        DeviceList::Cpu => "cpu",
        DeviceList::Cuda(_) => "cuda",
    });
    sources.flags.extend(kind.map(|kind| ConfigFlag::Own {
        flag: "--device",
        key: Key::Device,
        value: ConfigValue::Text(kind.to_owned()),
    }));
    sources
}

/// Reads and checks all that `args` name. Writes nothing but a store of tokens, if it names text and
/// a tokenizer, after everything else was checked. `listen` gives the signals that end that.
///
/// # Errors
/// With everything that is wrong with configuration and injections, or with the first of text,
/// weights, plan and memory that is.
pub fn prepare(
    args: &TrainArgs,
    listen: impl FnOnce(&RunConfig) -> Result<Interrupt, CommandFailure>,
) -> Result<PreparedRun, CommandFailure> {
    let named = with_local_model(sources(args), Path::new(RUNS))?;
    let sources = with_vocabulary(named.clone())?;
    let (loaded, injections) = match load_with_injections(&sources, &args.inject) {
        Ok((loaded, injections)) => (loaded, Ok(injections)),
        // Without a configuration there is no text and no plan to speak of.
        Err(failure) => (load(&sources).map_err(|_| failure.clone())?, Err(failure)),
    };
    let devices = RunDevices::find(args.device.as_ref(), loaded.config.arithmetic.device)?;
    let worker_count = args.workers.unwrap_or_else(|| workers_default(&loaded.config));
    let interrupt = listen(&loaded.config)?;
    let text = data_in_reach(args, &loaded);
    // Threads of one process are lost together.
    let copies_wanted = if args.threads_only { 0 } else { loaded.config.elastic.copies };
    let sharing = sharing(&loaded.config, args.threads_only);
    let workers = (worker_count, copies_wanted);
    let plan = fitting_plan(&loaded.config, &devices, workers, sharing);
    let (injections, text, plan) = all_or_failures(injections, text, plan)?;
    let (loaded, text) = match text {
        Some(text) => (loaded, text),
        None => store_of_text(args, named, &interrupt)?,
    };
    let name = run_name(&loaded.settings, args.config.config.as_deref());
    let LoadedConfig { config, notes, .. } = loaded;
    let weights = initial_weights(&config)?;
    let special_ids = text.tokenizer.special_ids(&config.weights);
    let threads = threads_per_worker(args.threads, worker_count, core_count());
    let setup = config.stage_setup(plan.synchronous().clone());
    let setup = StageSetup { weights, injections, ..setup };
    let job = TrainingJob {
        setup: Arc::new(setup),
        policy: config.guard,
        corpus: Arc::new(text.corpus),
        // Threads have no checkpoint to go back to.
        islands: ExchangeSetup::of_run(&config).map(ExchangeSetup::without_checkpoints),
        threads,
        interrupt,
    };
    Ok(PreparedRun {
        name,
        config,
        notes,
        text: text.about,
        tokenizer: text.tokenizer,
        special_ids,
        plan,
        worker_count,
        devices,
        sharing,
        job,
    })
}

/// What the run trains on; nothing if a store is yet to be made of it, in a folder that has room for
/// a run.
fn data_in_reach(
    args: &TrainArgs,
    loaded: &LoadedConfig,
) -> Result<Option<RunCorpus>, CommandFailure> {
    if !loaded.config.tokens.is_encoded_text() {
        return load_data(loaded).map(Some);
    }
    args.out.as_deref().map_or(Ok(()), |out| check_can_begin(out, args.branch)).map(|()| None)
}

/// Makes a store of the text, which may take hours.
fn store_of_text(
    args: &TrainArgs,
    sources: ConfigSources,
    interrupt: &Interrupt,
) -> Result<(LoadedConfig, RunCorpus), CommandFailure> {
    let parent = args.out.as_deref().unwrap_or(Path::new(RUNS));
    let loaded = load(&with_text_store(sources, parent, || Ok(interrupt.clone()))?)?;
    let text = load_data(&loaded)?;
    Ok((loaded, text))
}

/// Without steps there is nothing that processes could agree on.
fn sharing(config: &RunConfig, threads_only: bool) -> DeviceSharing {
    match config.schedule {
        ScheduleChoice::Asynchronous(_) => DeviceSharing::Threads,
        ScheduleChoice::Auto | ScheduleChoice::Kind(_) if threads_only => DeviceSharing::Threads,
        ScheduleChoice::Auto | ScheduleChoice::Kind(_) => DeviceSharing::Processes,
    }
}

/// All three, or everything that is wrong with any of them.
fn all_or_failures<A, B, C>(
    a: Result<A, CommandFailure>,
    b: Result<B, CommandFailure>,
    c: Result<C, CommandFailure>,
) -> Result<(A, B, C), CommandFailure> {
    match (a, b, c) {
        (Ok(a), Ok(b), Ok(c)) => Ok((a, b, c)),
        (a, b, c) => {
            let failures = [a.err(), b.err(), c.err()].into_iter().flatten();
            Err(failures.reduce(together).expect("one of them failed"))
        }
    }
}

fn together(first: CommandFailure, second: CommandFailure) -> CommandFailure {
    let details: Vec<FailureDetail> = first.details.into_iter().chain(second.details).collect();
    CommandFailure { code: first.code, ..CommandFailure::usage("the run", details) }
}

/// The configuration file's name, or else the preset's.
fn run_name(settings: &ConfigSettings, file: Option<&Path>) -> String {
    let stem = file.and_then(Path::file_stem).map(|stem| stem.to_string_lossy().into_owned());
    let preset = || {
        Key::ALL.iter().find_map(|key| match settings.origin(*key) {
            SettingOrigin::Preset(name) => Some(name.to_owned()),
            SettingOrigin::Default | SettingOrigin::File { .. } | SettingOrigin::Flag(_) => None,
        })
    };
    stem.or_else(preset).unwrap_or_else(|| "run".to_owned())
}

/// The cores, shared out among the workers; each has one at least.
fn threads_per_worker(requested: Option<u32>, worker_count: u32, core_count: usize) -> usize {
    requested
        .map_or_else(|| (core_count / worker_count as usize).max(1), |threads| threads as usize)
}

/// A plan that fits the memory of the run's devices. Stages that share a device have equal parts of
/// it, as their workers report to a cluster. Threads need not: without such a plan they may have
/// one with stages that share all the memory between them.
///
/// # Errors
/// If there is none, with the parts.
pub fn fitting_plan(
    config: &RunConfig,
    devices: &RunDevices,
    (worker_count, copies_wanted): (u32, u32),
    sharing: DeviceSharing,
) -> Result<RunPlan, CommandFailure> {
    let has_room =
        |plan: RunPlan| devices.check_memory(plan.memory(), &config.model).map(|()| plan);
    let parts = devices.parts(worker_count, sharing);
    let workers = (worker_count, copies_wanted);
    let found = plan_of_run(config, workers, &parts).and_then(has_room);
    match (found, sharing) {
        (Err(refused), DeviceSharing::Threads) if !parts.is_empty() => {
            let uneven = plan_of_run(config, workers, &[]).and_then(has_room);
            uneven.map_err(|_| refused)
        }
        (found, DeviceSharing::Threads | DeviceSharing::Processes) => found,
    }
}

/// The plan of a run, one stage for each worker, within these parts of devices. Of the ways to deal
/// workers to stages and replicas that use all of them one is taken ([`best_grid`]).
///
/// # Errors
/// If there is none that fits.
fn plan_of_run(
    config: &RunConfig,
    (worker_count, copies_wanted): (u32, u32),
    parts: &[DeviceShare],
) -> Result<RunPlan, CommandFailure> {
    match config.schedule.kinds() {
        Ok(kinds) => {
            let grids = grids_of(config, worker_count)?;
            let found = best_grid(grids, false, |grid| {
                let choice = choose_plan(config, kinds, (grid, copies_wanted), parts)?;
                let period = choice.prediction.period;
                Ok((choice, period))
            });
            let failure = |failure: Option<CommandFailure>| failure.expect("there is a grid");
            found.map(RunPlan::Synchronous).map_err(failure)
        }
        Err(kind) => {
            check_needs_no_steps(config, kind)?;
            let plan = choose_async(config, kind, worker_count)?;
            let one = Grid { stage_count: 1, replicas: ReplicaCount::ONE };
            let whole = choose_plan(config, &[ScheduleKind::GPipe], (one, 0), &[])?.plan;
            Ok(RunPlan::Asynchronous { plan, whole })
        }
    }
}

/// The plan of a run in steps, where so many other workers hold each layer.
fn choose_plan(
    config: &RunConfig,
    kinds: &[ScheduleKind],
    (grid, copies_wanted): (Grid, u32),
    parts: &[DeviceShare],
) -> Result<PlanChoice, CommandFailure> {
    let limit = |stage| {
        let part = parts.get(stage).map(|part: &DeviceShare| part.bytes);
        part.into_iter().chain(config.stage_bytes_max).min()
    };
    let limits: Vec<Bytes> = (0..grid.workers() as usize).filter_map(limit).collect();
    let request = ChooseRequest {
        model: &config.model,
        optimizer: config.optimizer.kind,
        batch: config.batch,
        kinds,
        chunks_per_stage: config.chunks_per_stage,
        slice_count: config.slice_count,
        stage_count: grid.stage_count,
        replicas: grid.replicas,
        window: config.window.planned(),
        memory: config.memory.policy(copies_wanted),
        beside: HeldBeside { copies: grid.copies(copies_wanted), is_island: config.sync.is_some() },
        stage_bytes_max: &limits,
        pace: &Pace::estimated(&config.model, config.batch.microbatch)
            .with_updates(&config.model, &config.optimizer.kind),
    };
    choose(&config.arithmetic.sizes(), request)
        .map_err(|refusals| refusal_failure(&refusals, config, grid.workers(), parts))
}

/// The failure printed when no schedule will do. A size that is wrong for one schedule and a
/// limit that is too low for others come down to the limit, the one that can be raised.
fn refusal_failure(
    refusals: &[(ScheduleKind, ScheduleRefusal)],
    config: &RunConfig,
    worker_count: u32,
    parts: &[DeviceShare],
) -> CommandFailure {
    let detail =
        |(kind, refusal): &(ScheduleKind, ScheduleRefusal)| memory_detail(*kind, refusal, parts);
    let memory: Vec<FailureDetail> = refusals.iter().filter_map(detail).collect();
    let plans = refusals.iter().filter_map(|(_, refusal)| match refusal {
        ScheduleRefusal::Plan(error) => Some(error),
        ScheduleRefusal::Memory { .. } => None,
    });
    // That a schedule has no such number of chunks is reported only if that is all there is.
    let is_chunk_count =
        |error: &&PlanError| matches!(error, PlanError::Generate(GenerateError::ChunkCount { .. }));
    let plan = plans.min_by_key(is_chunk_count);
    if let (true, Some(error)) = (memory.is_empty(), plan) {
        return plan_failure(error, config, worker_count);
    }
    let mut failure = match refusals.iter().find_map(|(_, refusal)| part_of(refusal, parts)) {
        Some(part) => part.failure(),
        None => CommandFailure::new(FailureCode::OutOfResource, "stage memory does not fit"),
    };
    failure.details = memory;
    keep_last_reason(&mut failure.details);
    failure
}

/// Of details in a row with the same reason and hint, only the last keeps them.
fn keep_last_reason(details: &mut [FailureDetail]) {
    for index in 1..details.len() {
        let [before, after] = [&details[index - 1], &details[index]];
        if before.why == after.why && before.hint == after.hint {
            let before = &mut details[index - 1];
            (before.why, before.hint) = (None, None);
        }
    }
}

/// The part of a device that a stage is too large for, if that was its limit.
fn part_of<'a>(refusal: &ScheduleRefusal, parts: &'a [DeviceShare]) -> Option<&'a DeviceShare> {
    let ScheduleRefusal::Memory { stage, limit, .. } = refusal else { return None };
    parts.get(stage.index()).filter(|part| part.bytes == *limit)
}

fn memory_detail(
    kind: ScheduleKind,
    refusal: &ScheduleRefusal,
    parts: &[DeviceShare],
) -> Option<FailureDetail> {
    let ScheduleRefusal::Memory { stage, needed, limit } = refusal else { return None };
    if let Some(part) = part_of(refusal, parts) {
        return Some(part.detail(kind.name(), stage.index(), *needed));
    }
    Some(stage_memory_detail(kind.name(), *stage, (*needed, *limit)))
}

/// The detail printed for a stage that does not fit into its limit.
pub fn stage_memory_detail(
    kind: &str,
    stage: StageIndex,
    (needed, limit): (Bytes, Bytes),
) -> FailureDetail {
    let what = format!("{kind}: stage {stage} needs {needed}, the limit is {limit}");
    let rounded = Bytes(needed.0.next_multiple_of(1 << 20));
    let hint = format!(
        "--set schedule.max_mem={}, more --workers, a smaller train.microbatch, or \
         memory.recompute=full with memory.recompute_passes=needed",
        size_text(rounded)
    );
    FailureDetail::new(what).at("schedule.max_mem").hint(hint)
}

fn initial_weights(config: &RunConfig) -> Result<InitialWeights, CommandFailure> {
    Ok(match given_weights(config)? {
        None => InitialWeights::Drawn { seed: config.seed },
        Some(layers) => InitialWeights::Given(Arc::new(layers)),
    })
}

#[cfg(test)]
mod tests {
    use zbelastic_kernels::cuda::{Architecture, DeviceProbe, DeviceProperties};
    use zbelastic_schedule::MemoryOp;

    use super::*;
    use zbelastic_config::load_document;

    /// Two stages on a device with so much free memory.
    fn planned(free: u64, sharing: DeviceSharing) -> Result<RunPlan, CommandFailure> {
        planned_for("1f1b", free, "", sharing)
    }

    /// The same under another schedule.
    fn planned_for(
        kind: &str,
        free: u64,
        more: &str,
        sharing: DeviceSharing,
    ) -> Result<RunPlan, CommandFailure> {
        let toml = format!(
            "[model]\npreset = \"tiny\"\n[train]\ndevice = \"cuda\"\nseq_len = 512\n\
             microbatch = 8\nglobal_batch = 32\n[schedule]\nkind = \"{kind}\"\n{more}"
        );
        let config = load_document("test", &toml).expect("legal").config;
        let info = DeviceProperties {
            index: 0,
            name: "H200".to_owned(),
            architecture: Architecture::new(9, 0),
            memory_bytes: 1 << 40,
            multiprocessor_count: 132,
        };
        let probe = DeviceProbe { info, library_version: 130_100, free_bytes: free };
        fitting_plan(&config, &RunDevices::Cuda(vec![probe]), (2, 0), sharing)
    }

    fn needs(plan: &RunPlan) -> Vec<u64> {
        plan.memory().iter().map(|memory| memory.total().0).collect()
    }

    #[test]
    fn stages_that_share_a_device_are_planned_within_their_parts() {
        let plenty = planned(1 << 40, DeviceSharing::Threads).expect("plenty");
        let most = *needs(&plenty).iter().max().expect("two");
        assert!(planned(2 * most, DeviceSharing::Threads).is_ok());
        let processes = (512 << 20) + 2 * most;
        assert!(planned(processes, DeviceSharing::Processes).is_ok());
        let failure = planned(processes - 2, DeviceSharing::Processes).err().expect("a byte less");
        assert_eq!(failure.code, FailureCode::OutOfResource);
        let text = failure.to_string();
        let part = Bytes(most - 1);
        let part = format!("1f1b: stage 0 needs {}, its part of cuda:0 is {part}", Bytes(most));
        let title = "the run does not fit cuda:0";
        for word in [title, &part[..], "for 2 stages", "train.precision=bf16", "memory.offload"] {
            assert!(text.contains(word), "no {word} in: {text}");
        }
    }

    #[test]
    fn reasons_that_details_share_are_printed_with_the_last() {
        let detail = |what, why| FailureDetail::new(what).why(why).hint("more room");
        let mut details = vec![detail("a", "x"), detail("b", "x"), detail("c", "y")];
        keep_last_reason(&mut details);
        assert_eq!(details[..1], [FailureDetail::new("a")]);
        assert_eq!(details[1..], [detail("b", "x"), detail("c", "y")]);
    }

    /// A stage is relieved where its part of the device is too small.
    #[test]
    fn passes_are_made_again_where_a_part_is_small() {
        // All four microbatches are alive on both stages, and two at most need all of theirs.
        let plan = |free, more| planned_for("gpipe", free, more, DeviceSharing::Processes);
        let most = |plan: &RunPlan| needs(plan).into_iter().max().expect("two");
        let dropped =
            |plan: &RunPlan| plan.synchronous().program.passes_with(MemoryOp::Drop).count();
        let savings = "[memory]\nrecompute = \"full\"\nrecompute_passes = \"needed\"\n";
        let plenty = plan(1 << 40, savings).expect("plenty");
        assert_eq!(dropped(&plenty), 0, "nobody is in need");
        let part = most(&plenty) / 4 * 3;
        let relieved = plan((512 << 20) + 2 * part, savings).expect("passes are made again");
        assert!(dropped(&relieved) > 0 && most(&relieved) <= part, "{:?}", needs(&relieved));
    }

    /// Threads share what there is; processes have reported their parts before they know the plan.
    #[test]
    fn threads_may_share_unevenly() {
        let plenty = planned(1 << 40, DeviceSharing::Threads).expect("plenty");
        let all: u64 = needs(&plenty).iter().sum();
        assert!(all < 2 * needs(&plenty).iter().max().expect("two"), "stages differ");
        assert_eq!(
            needs(&planned(all, DeviceSharing::Threads).expect("all of it")),
            needs(&plenty)
        );
        let failure = planned(all - 1, DeviceSharing::Threads).err().expect("a byte less");
        assert!(failure.to_string().contains("its part of cuda:0"), "{failure}");
    }

    #[test]
    fn schedules_without_steps_have_threads_whatever_was_requested() {
        let sharing = |kind: &str, threads_only| {
            let toml = format!("[model]\npreset = \"tiny\"\n[schedule]\nkind = \"{kind}\"\n");
            sharing(&load_document("test", &toml).expect("legal").config, threads_only)
        };
        for kind in ["auto", "1f1b"] {
            assert_eq!(sharing(kind, false), DeviceSharing::Processes);
            assert_eq!(sharing(kind, true), DeviceSharing::Threads);
        }
        assert_eq!(sharing("pipedream-2bw", false), DeviceSharing::Threads);
        assert_eq!(sharing("pipedream-2bw", true), DeviceSharing::Threads);
    }

    #[test]
    fn cores_are_shared_out() {
        let check = |requested, workers, cores, expected| {
            assert_eq!(threads_per_worker(requested, workers, cores), expected);
        };
        check(None, 4, 2, 1);
        check(None, 4, 8, 2);
        check(None, 4, 11, 2);
        check(None, 1, 8, 8);
        check(Some(3), 4, 2, 3);
    }
}
