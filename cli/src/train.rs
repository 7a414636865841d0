//! `train`: a whole cluster on this machine, from configuration to run folder.
//!
//! Before anything is written, everything is checked ([`prepare`]). Then workers train, each in its
//! thread, and the coordinator decides (`zbelastic_local`); events are printed as they happen
//! ([`reporter`]) and kept in the run folder ([`folder`]).

mod asynchronous;
mod disk;
mod events;
mod folder;
pub mod prepare;
mod processes;
pub mod progress_line;
mod report;
mod reporter;
pub mod run_devices;
mod scalar_log;
mod summary;
#[cfg(test)]
mod tests;
mod trained_model;
mod worker_grids;

use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use zbelastic_config::{NoticePolicy, OffloadStore, RunConfig};
use zbelastic_consensus::run::run_name_of;
use zbelastic_data::training_data::TrainingData;
use zbelastic_kernels::AllocateError;
use zbelastic_kernels::cuda::GraphMode;
use zbelastic_local::cluster;
use zbelastic_local::coordinator::RunOutcome;
use zbelastic_local::device_factory::DeviceFactory;
use zbelastic_local::executor_factory::{CpuFactory, StageBackendFactory};
use zbelastic_local::interrupt::Interrupt;
use zbelastic_local::progress_event::ProgressEvent;
use zbelastic_machine as machine;
use zbelastic_machine::DeviceList;
use zbelastic_machine::second_store::SECOND_STORE;
use zbelastic_preemption::NoticeSettings;
use zbelastic_trainer::model::{LayerSpec, model_layers};
use zbelastic_trainer::stage::InitialWeights;
use zbelastic_ui::UiServer;
use zbelastic_view::RunCosts;
use zbelastic_wire::document::JobDocument;
use zbelastic_wording::{
    CommandError, CommandFailure, FailureCode, FailureDetail, print_error_line,
};

use crate::args::TrainArgs;
use crate::blob::Blob;
use crate::corpus::DataSummary;
use crate::live_page::start_server;
use crate::run_files;
use crate::span_exporter::SpanCollector;
use crate::weights::weights_file;
use folder::{RunFolder, RunFolderRequest, RunStart};
use prepare::{PreparedRun, RunPlan, prepare};
use processes::{ClusterRunEvent, JobSubmission, ProcessObservers, RunLocation};
use progress_line::StepLineContext;
use reporter::{OutputAudience, Reporter};
use run_devices::{DeviceSharing, RunDevices};
use summary::{FinishedRun, HeadingFacts};

/// Trains. The code is that of success, or of an interruption.
///
/// # Errors
/// If the run cannot begin, or its files cannot be written, or a worker is lost.
pub fn run(args: &TrainArgs, out: &mut dyn Write) -> Result<ExitCode, CommandError> {
    let listen = |config: &RunConfig| Interrupt::listen(notices(args, config)?, "step");
    let prepared = prepare(args, listen)?;
    let context = if args.json { None } else { Some(line_context(&prepared)?) };
    check_disk(args, &prepared)?;
    let config = config_with_command(&prepared);
    let request =
        RunFolderRequest { config: &prepared.config, text: &config, may_branch: args.branch };
    let observers = RunObservers {
        page: page(args, &prepared, context.as_ref())?,
        collector: span_collector(&prepared)?,
    };
    let mut folder = RunFolder::open(args.out.as_deref(), &prepared.name, request)?;
    let ended = match write_tokenizer(&folder, &prepared) {
        Ok(()) => train_into((&mut folder, &config), &prepared, context, observers, out),
        Err(failure) => Err(failure.into()),
    };
    if ended.is_err() {
        folder.discard_if_empty();
    }
    ended
}

/// Who receives what happens in a run, besides its folder and standard output.
struct RunObservers {
    page: Option<UiServer>,
    collector: Option<SpanCollector>,
}

/// The collector of the run's traces, if the environment names one. A run in threads has no events.
fn span_collector(prepared: &PreparedRun) -> Result<Option<SpanCollector>, CommandFailure> {
    match prepared.sharing {
        DeviceSharing::Processes => SpanCollector::of_environment("zbelastic train"),
        DeviceSharing::Threads => Ok(None),
    }
}

/// Starts the server of the live page, if there is to be one, before anything is written: a port that
/// is taken costs no time then. Nobody but this machine's processes can be let in by a token, for the
/// cluster is this command's own.
fn page(
    args: &TrainArgs,
    prepared: &PreparedRun,
    context: Option<&StepLineContext>,
) -> Result<Option<UiServer>, CommandFailure> {
    let Some(address) = args.page.address.ui else { return Ok(None) };
    let wrong = |what: &str, hint: &str| {
        CommandFailure::usage("--ui", vec![FailureDetail::new(what.to_owned()).hint(hint)])
    };
    if prepared.sharing == DeviceSharing::Threads {
        return Err(wrong(
            "the page shows a cluster, and this run is one process",
            "a schedule with steps, in processes",
        ));
    }
    if !address.ip().is_loopback() {
        return Err(wrong(
            "the cluster of `train` makes no tokens for other machines",
            "a loopback address, and `ssh -L` from where the browser is",
        ));
    }
    start_server(address, run_costs(args.page.price, context), Vec::new()).map(Some)
}

/// What the page computes its price and its MFU from. Where the peak is not measured here, as with
/// `--json`, the page adds up what the workers reported.
fn run_costs(price_per_hour: Option<f64>, context: Option<&StepLineContext>) -> RunCosts {
    RunCosts {
        price_per_hour,
        flop_per_token: context.map(|context| context.flop_per_token),
        peak_flop_per_s: context.and_then(|context| context.peak_flop_per_s),
    }
}

/// Writes the run's tokenizer into its folder, where a run that is killed has it as well. Until a
/// branch has begun, the folder is that of the run that it goes on from.
fn write_tokenizer(folder: &RunFolder, prepared: &PreparedRun) -> Result<(), CommandFailure> {
    match folder.start() {
        RunStart::New | RunStart::Resumed | RunStart::ResumedFromCheckpoint => {
            prepared.tokenizer.write(&folder.path().join(run_files::MODEL))
        }
        RunStart::Branched => Ok(()),
    }
}

/// Checks that a new run's files fit the disk. One that goes on has most of them already.
fn check_disk(args: &TrainArgs, prepared: &PreparedRun) -> Result<(), CommandFailure> {
    let folder = args.out.clone().unwrap_or_else(|| PathBuf::from(run_files::RUNS));
    if folder.join(run_files::CLUSTER).exists() {
        return Ok(());
    }
    disk::check_disk(&folder, &prepared.config, prepared.worker_count, prepared.sharing)
}

/// The effective configuration, and the flags that beside it make the run: workers and threads do
/// not change a bit of its result, but the schedule may not exist for others.
fn config_with_command(prepared: &PreparedRun) -> String {
    let workers = prepared.worker_count;
    let threads = prepared.job.threads;
    let config = prepared.config.effective();
    let device = match prepared.devices.indices() {
        none if none.is_empty() => String::new(),
        indices => format!(" --device {}", DeviceList::Cuda(indices)),
    };
    format!(
        "# zbelastic train config.toml --workers {workers} --threads {threads}{device}\n{config}"
    )
}

fn train_into(
    (folder, config): (&mut RunFolder, &str),
    prepared: &PreparedRun,
    context: Option<StepLineContext>,
    RunObservers { page, collector }: RunObservers,
    out: &mut dyn Write,
) -> Result<ExitCode, CommandError> {
    let audience = match &context {
        Some(context) => {
            let page = page.as_ref().map(|page| format!("http://{}/", page.address()));
            let facts = HeadingFacts { folder: folder.path(), context, page: page.as_deref() };
            summary::write_heading(prepared, &facts, out)?;
            OutputAudience::Person
        }
        None => {
            // Not between a script and its JSON. With standard error closed there is nowhere to
            // print them.
            drop(summary::write_notes(prepared, &mut io::stderr()));
            OutputAudience::Script
        }
    };
    let layers = model_layers(&prepared.config.model);
    let names = layers.iter().flat_map(LayerSpec::own_tensors).map(|tensor| tensor.name.clone());
    let names = names.collect();
    let run_start = folder.start();
    let mut reporter = Reporter::new(out, folder, context, names);
    let in_threads = match prepared.sharing {
        DeviceSharing::Threads => true,
        DeviceSharing::Processes => false,
    };
    let trained = if in_threads {
        let scratch = scratch(&prepared.config, &reporter.folder_path());
        train_in_threads(prepared, scratch, &mut |event| reporter.observe(event))
    } else {
        let submission = submission(prepared);
        let folder_path = reporter.folder_path();
        let location = RunLocation { folder: &folder_path, config, start: run_start };
        let page = page.as_ref().map(UiServer::observer);
        let observers = ProcessObservers { page, collector };
        processes::train(prepared, &submission, location, observers, &mut |event| match event {
            ClusterRunEvent::Progress(event) => reporter.observe(&event),
            ClusterRunEvent::Rollback(rollback) => reporter.observe_rollback(rollback),
            ClusterRunEvent::Branch(branch) => reporter.observe_branch(branch),
            ClusterRunEvent::Event(event) => reporter.observe_event(event),
            ClusterRunEvent::Activity(what) => reporter.observe_activity(&what),
        })
    };
    let reporter::ReporterSummary { final_loss, causes, stop } = reporter.finish();
    let outcome = trained?;
    // By Ctrl-C, or because the reporter ended the run early.
    let is_interrupted = outcome.steps_done < prepared.config.steps;
    let finished = FinishedRun { outcome, final_loss, causes, is_interrupted };
    let written = summary::write_end(prepared, &finished, folder, audience, out);
    if is_interrupted && !in_threads && prepared.job.interrupt.is_requested() {
        let out = folder.path().display();
        print_error_line(format_args!("note: the same command with --out {out} goes on"));
    }
    match stop {
        Some(stop) => Err(stop),
        None => written.map(|()| exit_code(&prepared.job.interrupt)),
    }
}

/// Trains in threads of this process, on the run's devices.
fn train_in_threads(
    prepared: &PreparedRun,
    scratch: Option<PathBuf>,
    observe: &mut dyn FnMut(&ProgressEvent) -> ControlFlow<()>,
) -> Result<RunOutcome, CommandFailure> {
    match &prepared.devices {
        RunDevices::Cpu => {
            let precision = prepared.config.arithmetic.precision();
            let factory = CpuFactory { threads: prepared.job.threads, precision, scratch };
            train_with(&factory, prepared, observe)
        }
        RunDevices::Cuda(_) => {
            let precision = prepared.config.arithmetic.precision();
            let indices = prepared.devices.indices();
            let opened = DeviceFactory::open(&indices, prepared.worker_count, precision)?;
            train_with(
                &DeviceFactory { opened, scratch, graphs: GraphMode::DEFAULT },
                prepared,
                observe,
            )
        }
    }
}

/// Trains in this process with the executors that `factory` makes.
fn train_with<O: StageBackendFactory>(
    factory: &O,
    prepared: &PreparedRun,
    observe: &mut dyn FnMut(&ProgressEvent) -> ControlFlow<()>,
) -> Result<RunOutcome, CommandFailure> {
    match &prepared.plan {
        RunPlan::Synchronous(_) => cluster::train_on(factory, &prepared.job, observe),
        RunPlan::Asynchronous { plan, .. } => asynchronous::train(factory, prepared, plan, observe),
    }
}

/// The folder in the run's own for offloaded passes, if those go to files.
fn scratch(config: &RunConfig, folder: &Path) -> Option<PathBuf> {
    match config.memory.offload_store {
        OffloadStore::Memory => None,
        OffloadStore::File => Some(folder.join(SECOND_STORE)),
    }
}

/// The submission to the processes: the run's configuration, text and weights.
fn submission(prepared: &PreparedRun) -> JobSubmission {
    let config = prepared.config.clone().without_data_paths();
    let weights = match &prepared.job.setup.weights {
        // A worker of a cluster alone has stored ones.
        InitialWeights::Drawn { .. } | InitialWeights::Stored(_) => None,
        InitialWeights::Given(layers) => Some(weights_file(&config, layers)),
    };
    let toml = config.effective();
    let weights = weights.map(|bytes| Blob::of_bytes("weights", bytes));
    let name = run_name_of(&prepared.name);
    let (mut document, mut blobs) = match (&*prepared.job.corpus, &prepared.text) {
        (TrainingData::Text(corpus), _) => {
            let text = Blob::of_bytes("text", corpus.text().to_vec());
            (JobDocument::new(name, config, toml, text.name), vec![text])
        }
        (TrainingData::Stores(_), DataSummary::Stores(stores)) => {
            let job = JobDocument::over_stores(name, config, toml, stores.job_stores());
            (job, stores.blobs())
        }
        (TrainingData::Stores(_), DataSummary::Text(_)) => {
            unreachable!("a summary is that of what is trained on")
        }
    };
    document.weights = weights.as_ref().map(|weights| weights.name);
    document.injections = prepared.job.setup.injections.clone();
    blobs.extend(weights);
    JobSubmission { document, data: blobs }
}

fn exit_code(interrupt: &Interrupt) -> ExitCode {
    if interrupt.is_requested() { interrupt.code().into() } else { ExitCode::SUCCESS }
}

/// The settings to poll notices of this machine's withdrawal with, unless the configuration ignores
/// them.
fn notices(args: &TrainArgs, config: &RunConfig) -> Result<Option<NoticeSettings>, CommandFailure> {
    match config.elastic.on_notice {
        NoticePolicy::Ignore => Ok(None),
        NoticePolicy::Drain => {
            let settings = NoticeSettings::from_environment(args.spot);
            settings.map(Some).map_err(|error| {
                CommandFailure::usage(
                    "the environment",
                    vec![FailureDetail::new(error.to_string())],
                )
            })
        }
    }
}

fn line_context(prepared: &PreparedRun) -> Result<StepLineContext, CommandFailure> {
    let PreparedRun { config, worker_count, devices, job, .. } = prepared;
    let threads = (*worker_count as usize * job.threads).min(machine::core_count());
    let flop_per_token = config.flop_per_token();
    let peak_flop_per_s = match devices {
        RunDevices::Cpu => {
            let refused = |error: AllocateError| {
                CommandFailure::new(FailureCode::OutOfResource, error.to_string())
            };
            Some(
                machine::own_peak_flop_per_s(threads, config.arithmetic.precision())
                    .map_err(refused)?,
            )
        }
        // `bench gpu` measures it, in seconds.
        RunDevices::Cuda(_) => None,
    };
    Ok(StepLineContext { step_count: config.steps, flop_per_token, peak_flop_per_s })
}
