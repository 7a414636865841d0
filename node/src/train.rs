//! `train`: a whole cluster on this machine, from configuration to run folder.
//!
//! Before anything is written, everything is checked ([`prepare`]). Then workers train, each in its
//! thread, and the coordinator decides ([`cluster`]); what happens is told as it happens
//! ([`reporter`]) and kept in the run folder ([`folder`]).

pub mod builtin;
pub mod cluster;
mod coordinator;
pub mod corpus;
mod events;
mod folder;
mod interrupt;
pub mod line;
pub mod mail;
pub mod news;
mod prepare;
mod reporter;
mod summary;
pub mod timing;
mod trace;
mod worker;

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use zbelastic_trainer::model::model_layers;
use zbelastic_trainer::plan::model_flop_per_token;
use zbelastic_types::StageIndex;

use crate::args::TrainArgs;
use crate::failure::{Failure, FailureCode, Stop};
use crate::machine;
use folder::RunFolder;
use interrupt::Interrupt;
use line::LineContext;
use prepare::{Prepared, prepare};
use reporter::{Reader, Reporter};
use summary::Finished;

pub use prepare::choose_plan;

/// Trains. The code is that of success, or of an interruption.
///
/// # Errors
/// If the run cannot begin, or its files cannot be written, or a worker is lost.
pub fn run(args: &TrainArgs, out: &mut dyn Write) -> Result<ExitCode, Stop> {
    let prepared = prepare(args)?;
    let context = line_context(&prepared)?;
    let interrupt = Interrupt::listen()?;
    let mut folder =
        RunFolder::create(args.out.as_deref(), &prepared.name, &prepared.config.effective())?;
    let reader = if args.json { Reader::Script } else { Reader::Person };
    match reader {
        Reader::Person => summary::write_heading(&prepared, folder.path(), out)?,
        Reader::Script => summary::write_notes(&prepared),
    }
    let layers = model_layers(&prepared.config.model);
    let names = layers.into_iter().flat_map(|layer| layer.tensors).map(|tensor| tensor.name);
    let names = names.collect();
    let mut reporter = Reporter::new(out, &mut folder, reader, context, names, interrupt.clone());
    let trained = cluster::train(&prepared.job, &mut |news| reporter.observe(news));
    let (final_loss, stop) = reporter.finish();
    let outcome = trained?;
    // Somebody may also have closed standard output, or the disk be full.
    let ended_early = outcome.steps_done < prepared.config.steps;
    let is_interrupted = interrupt.is_requested() || ended_early;
    let finished = Finished { outcome, final_loss, is_interrupted };
    let written = summary::write_end(&prepared, &finished, &mut folder, reader, out);
    match stop {
        Some(stop) => Err(stop),
        None => written.map(|()| exit_code(finished.is_interrupted)),
    }
}

fn exit_code(is_interrupted: bool) -> ExitCode {
    if is_interrupted { FailureCode::Interrupted.into() } else { ExitCode::SUCCESS }
}

/// Long enough to be hindered by what hinders a step, short enough not to be noticed.
const PEAK_RUN: Duration = Duration::from_millis(10);

fn line_context(prepared: &Prepared) -> Result<LineContext, Failure> {
    let Prepared { config, choice, worker_count, job, .. } = prepared;
    let threads = (*worker_count as usize * job.threads).min(machine::core_count());
    let peak_flop_per_s = machine::peak_flop_per_s(threads, PEAK_RUN)
        .map_err(|error| Failure::new(FailureCode::OutOfResource, error.to_string()))?;
    let sizes = choice.memory.iter().map(|memory| memory.total());
    let stages = (0..*worker_count).map(StageIndex);
    let fullest = stages.zip(sizes).max_by_key(|(_, size)| *size).expect("there is a stage");
    Ok(LineContext {
        step_count: config.steps,
        flop_per_token: model_flop_per_token(&config.model, config.batch.microbatch),
        peak_flop_per_s,
        fullest,
        bytes_max: config.stage_bytes_max.or_else(machine::memory_total),
        generation: choice.plan.generation.0,
        stage_count: *worker_count,
    })
}
