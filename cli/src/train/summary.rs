//! The beginning and the end of a run: the text printed before the first step, and the files
//! written and the text printed after the last.

use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use serde_json::json;
use zbelastic_config::WeightSource;
use zbelastic_consensus::job::RunOrigin;
use zbelastic_kernels::cuda::CudaBackend;
use zbelastic_kernels::{AllocateError, Backend, CpuBackend, HostFloats};
use zbelastic_local::coordinator::{RunOutcome, TrainedWeights};
use zbelastic_local::device_factory::DeviceFactory;
use zbelastic_machine::device::code_of_fault;
use zbelastic_machine::{core_count, kernels_text};
use zbelastic_schedule::Window;
use zbelastic_timing::{StepTimeBreakdown, unix_ms};
use zbelastic_trainer::model::{ModelConfig, model_size};
use zbelastic_trainer::plan::model_flop_per_token;
use zbelastic_trainer::sample::{Sampler, SamplingConfig};
use zbelastic_trainer::stage::Injection;
use zbelastic_types::{Bytes, StageIndex};
use zbelastic_view::causes_beside_plan;
use zbelastic_wording::figures::{duration_text, grouped, three_digits, tokens_per_s};
use zbelastic_wording::{CommandError, CommandFailure, FailureCode};

use super::events::{DoneEvent, RunEvent};
use super::folder::RunFolder;
use super::prepare::{PreparedRun, RunPlan};
use super::progress_line::StepLineContext;
use super::report::report;
use super::reporter::OutputAudience;
use super::run_devices::RunDevices;
use super::trained_model::write_trained;
use crate::corpus::DataSummary;
use crate::run_files::{ORDER, REPORT, RUN, SAMPLE, TRACE};
use crate::terminal::printable;

/// A run that came to its end.
pub struct FinishedRun {
    /// The outcome of the run.
    pub outcome: RunOutcome,
    /// The mean loss of its last steps.
    pub final_loss: f64,
    /// Where the time of its steps went.
    pub causes: Option<StepTimeBreakdown>,
    /// Whether it ended before its time.
    pub is_interrupted: bool,
}

/// What a heading says beside what was prepared.
pub struct HeadingFacts<'a> {
    /// The run folder.
    pub folder: &'a Path,
    /// What the lines of steps are computed with: the peak that their `mfu` is a share of.
    pub context: &'a StepLineContext,
    /// Address of the live page, if one is served.
    pub page: Option<&'a str>,
}

/// Prints the model, the text and the plan of the run, what computes it, and where its files and its
/// live page are.
///
/// # Errors
/// If `out` cannot be written.
pub fn write_heading(
    prepared: &PreparedRun,
    facts: &HeadingFacts<'_>,
    out: &mut dyn Write,
) -> io::Result<()> {
    let PreparedRun { config, text, plan, worker_count, devices, job, .. } = prepared;
    let (_, parameters) = model_size(&config.model);
    let ModelConfig { family, blocks, width, .. } = &config.model;
    let from = match &config.weights {
        WeightSource::Drawn => String::new(),
        WeightSource::HuggingFace { folder } => format!(", from {}", folder.display()),
    };
    let family = format!("{family:?}").to_lowercase();
    let parameters = grouped(parameters);
    writeln!(
        out,
        "model   {family}, {blocks} layers of width {width}, {parameters} parameters{from}"
    )?;
    if let Some(line) = prepared.tokenizer.heading(&config.weights) {
        writeln!(out, "vocab   {line}")?;
    }
    let windows = text.training_windows();
    let held_out = text.held_out_windows();
    let length = config.batch.microbatch.sequence_len;
    writeln!(out, "{:<8}{text}; {windows} windows of {length}, {held_out} held out", text.word())?;
    let sequences = config.batch.microbatch.sequences;
    let count = config.batch.microbatch_count;
    let total = sequences * count as usize;
    writeln!(out, "batch   {total} windows = {count} microbatches of {sequences}")?;
    writeln!(out, "plan    {plan}")?;
    writeln!(out, "workers {worker_count}{}", devices.text(job.threads))?;
    writeln!(out, "memory  {}", fullest_stage(prepared))?;
    if let RunDevices::Cpu = devices {
        let share = |peak| format!("; mfu is a share of {:.0} GFLOP/s", peak / 1e9);
        let share = facts.context.peak_flop_per_s.map(share).unwrap_or_default();
        writeln!(out, "cpu     {}{share}", kernels_text())?;
    }
    // Workers that share cores compute while others wait.
    let are_shared = *worker_count as usize * job.threads > core_count();
    let bubble = if are_shared { 0.0 } else { plan.bubble() };
    if let Some(time) = least_time(facts.context, config.batch.tokens(), bubble) {
        writeln!(out, "time    {time}")?;
    }
    writeln!(out, "files   {}", facts.folder.display())?;
    if let Some(page) = facts.page {
        writeln!(out, "page    {page}")?;
    }
    write_notes(prepared, out)?;
    for Injection { step, tensor, .. } in &job.setup.injections {
        writeln!(out, "note: the gradient of {tensor} is corrupted on purpose in step {step}")?;
    }
    writeln!(out)?;
    out.flush()
}

/// How long a step and the whole run take at best: a step's operations at the peak of the cores, and the
/// planned bubble. None where the peak is not known.
#[must_use]
pub fn least_time(context: &StepLineContext, tokens: u64, bubble: f64) -> Option<String> {
    let StepLineContext { step_count, flop_per_token, peak_flop_per_s } = *context;
    let step_s = tokens as f64 * flop_per_token / (peak_flop_per_s? * (1.0 - bubble));
    let all = Duration::try_from_secs_f64(step_s * step_count as f64).ok()?;
    Some(format!(
        "at best {} ms a step and {} for {} steps: arithmetic alone, at that peak",
        three_digits(1e3 * step_s),
        duration_text(all),
        grouped(step_count)
    ))
}

/// What the fullest stage needs, of what it may use.
fn fullest_stage(prepared: &PreparedRun) -> String {
    let PreparedRun { config, plan, worker_count, devices, sharing, .. } = prepared;
    let sizes = plan.memory().iter().map(|memory| memory.total());
    let stages = (0..*worker_count).map(StageIndex);
    let (stage, bytes) = stages.zip(sizes).max_by_key(|(_, size)| *size).expect("it has stages");
    let most = config.stage_bytes_max.or_else(|| devices.share(*worker_count, *sharing));
    let of_most = most.map_or_else(String::new, |most| format!(" of {most}"));
    format!("{bytes}{of_most} in stage {stage}, the fullest")
}

/// Prints the notes about the configuration and the text.
///
/// # Errors
/// If `out` cannot be written.
pub fn write_notes(prepared: &PreparedRun, out: &mut dyn Write) -> io::Result<()> {
    let PreparedRun { notes, text, tokenizer, .. } = prepared;
    notes.iter().try_for_each(|note| writeln!(out, "note: {note}"))?;
    tokenizer.note().iter().try_for_each(|note| writeln!(out, "note: {note}"))?;
    text.notes().iter().try_for_each(|note| writeln!(out, "note: {note}"))
}

/// Writes the files that a run leaves behind, and prints how it ended.
///
/// # Errors
/// If something cannot be written; the model is written first. That there is no sample is a note.
pub fn write_end(
    prepared: &PreparedRun,
    finished: &FinishedRun,
    folder: &mut RunFolder,
    audience: OutputAudience,
    out: &mut dyn Write,
) -> Result<(), CommandError> {
    let described = (&prepared.config.model, &prepared.special_ids);
    let outcome = &finished.outcome;
    match &outcome.weights {
        TrainedWeights::InMemory(layers) => {
            write_trained(folder.path(), described, &mut |layer| Ok(&layers[layer.0 as usize]))?;
        }
        TrainedWeights::Written(_) => {}
    }
    let run = run_json(prepared, finished);
    folder.write(RUN, &run)?;
    if let Some(trace) = &outcome.trace {
        folder.write(TRACE, trace)?;
    }
    if let Some(order) = &outcome.order {
        folder.write(ORDER, order)?;
    }
    let mut notes = outcome.notes.clone();
    // A run is no less done without it; an empty one replaces the one that was drawn before.
    let sample = match sample(prepared, &outcome.weights) {
        Ok(sample) => format!("{sample}\n"),
        Err(failure) => {
            notes.push(failure.what);
            String::new()
        }
    };
    folder.write(SAMPLE, &sample)?;
    let done = RunEvent::Done(done_event(prepared, finished, folder.path())).line(unix_ms());
    folder.append_metrics(&done)?;
    folder.write(REPORT, &report(folder.path(), outcome.trace.as_deref(), &run))?;
    match audience {
        OutputAudience::Script => writeln!(out, "{done}")?,
        OutputAudience::Person => write_ending(prepared, finished, folder.path(), &sample, out)?,
    }
    out.flush()?;
    // As in the heading: not between a script and its JSON.
    match audience {
        OutputAudience::Script => drop(print_notes(&notes, &mut io::stderr())),
        OutputAudience::Person => print_notes(&notes, out)?,
    }
    Ok(out.flush()?)
}

fn write_ending(
    prepared: &PreparedRun,
    finished: &FinishedRun,
    folder: &Path,
    sample: &str,
    out: &mut dyn Write,
) -> io::Result<()> {
    let RunOutcome { steps_done, digest, held_out, elapsed, .. } = &finished.outcome;
    let rate = tokens_per_s(tokens_now(prepared, &finished.outcome), *elapsed);
    let rate = grouped(rate.round() as u64);
    let mark = if finished.is_interrupted { "▲ interrupted after" } else { "✔" };
    let time = duration_text(*elapsed);
    let steps_now = steps_done.saturating_sub(finished.outcome.steps_before);
    let now =
        if steps_now == *steps_done { String::new() } else { format!(", {steps_now} of them") };
    writeln!(out, "\n{mark} {steps_done} steps{now} in {time}, {rate} tok/s")?;
    let (unit, entropy) = match &prepared.text {
        DataSummary::Text(text) => ("byte", Some(text.byte_entropy)),
        DataSummary::Stores(_) => ("token", None),
    };
    write!(out, "loss    {:.3} nats a {unit} over the last steps", finished.final_loss)?;
    if let Some(held_out) = held_out {
        write!(out, ", {:.3} on held-out text", held_out.loss)?;
    }
    match entropy {
        Some(entropy) => writeln!(out, "; single bytes have an entropy of {entropy:.3}")?,
        None => writeln!(out)?,
    }
    if let Some(causes) = &finished.causes {
        writeln!(out, "{}", causes_line(causes))?;
    }
    writeln!(out, "digest  {digest}")?;
    writeln!(out, "files   {}", folder.display())?;
    match sample {
        "" => Ok(()),
        text => write!(out, "sample  drawn at temperature {SAMPLE_TEMPERATURE}:\n\n{text}"),
    }
}

fn print_notes(notes: &[String], out: &mut dyn Write) -> io::Result<()> {
    notes.iter().try_for_each(|note| writeln!(out, "note: {note}"))
}

/// Where the time of a step went, each cause beside its planned share.
fn causes_line(causes: &StepTimeBreakdown) -> String {
    let beside = causes_beside_plan(causes).map(|(name, ms)| format!(", {ms:+.1} {name}"));
    let StepTimeBreakdown { planned_ms, .. } = causes;
    let total_ms = causes.total_ms();
    format!("time    {total_ms:.1} ms a step: {planned_ms:.1} as planned{}", beside.concat())
}

fn done_event(prepared: &PreparedRun, finished: &FinishedRun, folder: &Path) -> DoneEvent {
    let outcome = &finished.outcome;
    DoneEvent {
        steps: outcome.steps_done,
        digest: outcome.digest.to_string(),
        tokens_per_s: tokens_per_s(tokens_now(prepared, outcome), outcome.elapsed),
        params: model_size(&prepared.config.model).1,
        schedule: prepared.plan.schedule().to_owned(),
        workers: prepared.worker_count,
        held_out_loss: held_out_loss(outcome),
        folder: folder.display().to_string(),
        interrupted: finished.is_interrupted,
    }
}

/// Tokens that this command trained on, without those trained before it.
fn tokens_now(prepared: &PreparedRun, outcome: &RunOutcome) -> u64 {
    outcome.steps_done.saturating_sub(outcome.steps_before) * prepared.config.batch.tokens()
}

fn held_out_loss(outcome: &RunOutcome) -> Option<f64> {
    outcome.held_out.map(|held_out| held_out.loss).filter(|loss| loss.is_finite())
}

/// The description of the run, and how it ended.
fn run_json(prepared: &PreparedRun, finished: &FinishedRun) -> String {
    let PreparedRun { config, text, plan, worker_count, job, .. } = prepared;
    let outcome = &finished.outcome;
    let chunks: Vec<_> = plan.chunks().iter().map(|layers| layers.ids()).collect();
    let mut run = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "name": prepared.name,
        "seed": config.seed,
        "params": model_size(&config.model).1,
        "injections": job.setup.injections,
        "plan": {
            "schedule": plan.schedule(),
            "reason": plan.to_string(),
            "window": window(plan),
            "workers": worker_count,
            "replicas": plan.synchronous().placement().column_count(),
            "threads": job.threads,
            "layers_by_chunk": chunks,
            "stage_bytes": plan.memory().iter().map(|memory| memory.total()).collect::<Vec<_>>(),
            "considered": considered(plan),
        },
        "steps": outcome.steps_done,
        "interrupted": finished.is_interrupted,
        "final_loss": finished.final_loss,
        "causes": finished.causes,
        "held_out_loss": held_out_loss(outcome),
        "seconds": outcome.elapsed.as_secs_f64(),
        "digest": outcome.digest.to_string(),
        "layer_digests": outcome.layer_digests.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "from": outcome.from.map(from_json),
    });
    run[text.word()] = text.json();
    format!("{run:#}\n")
}

/// Where the run began, if that is the checkpoint of another one.
fn from_json(from: RunOrigin) -> serde_json::Value {
    json!({ "step": from.version.0, "digest": from.state.to_string() })
}

/// Steps ahead of their verdict; nothing where there are no steps.
fn window(plan: &RunPlan) -> Option<u32> {
    match plan {
        RunPlan::Synchronous(choice) => match choice.plan.program.window {
            Some(Window::Zero) => Some(0),
            Some(Window::One) | None => Some(1),
        },
        RunPlan::Asynchronous { .. } => None,
    }
}

/// The schedules that were considered; an asynchronous one is not chosen among others.
fn considered(plan: &RunPlan) -> Vec<serde_json::Value> {
    let RunPlan::Synchronous(choice) = plan else { return Vec::new() };
    let outcomes = choice.considered.iter().map(|considered| match &considered.outcome {
        Ok(prediction) => json!({
            "schedule": considered.kind.name(),
            "bubble": prediction.bubble,
            "stage_bytes": prediction.stage_bytes,
        }),
        Err(refusal) => {
            json!({ "schedule": considered.kind.name(), "refused": refusal.to_string() })
        }
    });
    outcomes.collect()
}

/// Tokens of a sample, if they do not last too long.
const SAMPLE_TOKENS: usize = 240;
/// Tokens it sees at most.
const SAMPLE_CONTEXT: usize = 128;
/// Arithmetic spent on a sample: a few seconds of a core.
const SAMPLE_FLOP_MAX: f64 = 3e11;
const SAMPLE_TEMPERATURE: f64 = 0.7;

/// Drawn on the device that the run computed on, in its type.
fn sample(prepared: &PreparedRun, weights: &TrainedWeights) -> Result<String, CommandFailure> {
    let tokens = match weights {
        TrainedWeights::InMemory(layers) | TrainedWeights::Written(Some(layers)) => {
            sample_tokens(prepared, layers)?
        }
        TrainedWeights::Written(None) => {
            let needed = sample_bytes(&prepared.config.model);
            let what = format!("no sample: it takes {needed} of memory, which were not available");
            return Err(CommandFailure::new(FailureCode::OutOfResource, what));
        }
    };
    Ok(prepared.tokenizer.decode(&tokens).chars().map(printable).collect())
}

/// The memory that a sample takes: the weights, and what passes read of them.
#[must_use]
pub fn sample_bytes(model: &ModelConfig) -> Bytes {
    let (_, parameters) = model_size(model);
    Bytes(2 * 4 * parameters)
}

fn sample_tokens(
    prepared: &PreparedRun,
    layers: &[HostFloats],
) -> Result<Vec<u32>, CommandFailure> {
    match &prepared.devices {
        RunDevices::Cpu => {
            let backend = CpuBackend::new(core_count()).map_err(no_memory)?;
            let precision = prepared.config.arithmetic.precision();
            drawn(backend.with_precision(precision), prepared, layers)
        }
        RunDevices::Cuda(_) => {
            let precision = prepared.config.arithmetic.precision();
            let opened = DeviceFactory::open(&prepared.devices.indices(), 1, precision);
            let opened = opened.map_err(|failure| CommandFailure {
                what: format!("no sample: {}", failure.what),
                ..failure
            })?;
            let (_, device) = opened.into_iter().next().expect("one was opened");
            drawn(CudaBackend::new(device), prepared, layers)
        }
    }
}

fn no_memory(error: AllocateError) -> CommandFailure {
    CommandFailure::new(FailureCode::OutOfResource, format!("no sample: {error}"))
}

fn drawn<B: Backend>(
    backend: B,
    prepared: &PreparedRun,
    layers: &[HostFloats],
) -> Result<Vec<u32>, CommandFailure> {
    let config = &prepared.config;
    let model = &config.model;
    let shape = config.batch.microbatch;
    let context_len = shape.sequence_len.min(SAMPLE_CONTEXT);
    let forward_flop = model_flop_per_token(model, shape) / 3.0 * context_len as f64;
    let token_count = ((SAMPLE_FLOP_MAX / forward_flop) as usize).clamp(1, SAMPLE_TOKENS);
    let sampler = Sampler::new(backend, model, context_len, layers);
    let mut sampler = sampler.map_err(no_memory)?;
    let last = model.vocabulary - 1;
    let prompt: Vec<u32> = prepared.tokenizer.prompt().iter().map(|id| *id.min(&last)).collect();
    let draw = SamplingConfig::of_all(SAMPLE_TEMPERATURE, config.seed);
    let tokens = sampler.continue_text(&prompt, token_count, draw).map_err(no_memory)?;
    match sampler.fault() {
        None => Ok(tokens),
        Some(fault) => {
            Err(CommandFailure::new(code_of_fault(&fault), format!("no sample: {fault}")))
        }
    }
}
