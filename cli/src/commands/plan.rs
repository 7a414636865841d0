//! `plan`: the forecast of a run on machines, before anybody pays for them.

mod forecast;
mod machines;
mod report;
#[cfg(test)]
mod tests;
mod zones;

use std::io::Write;
use std::time::Instant;

use zbelastic_config::{RunConfig, load, nearest};
use zbelastic_kernels::CpuBackend;
use zbelastic_machine::thread_count;
use zbelastic_schedule::ScheduleKind;
use zbelastic_schedule::asynchronous::AsyncKind;
use zbelastic_schedule::render::{TimeUnit, svg};
use zbelastic_trainer::plan::Pace;
use zbelastic_trainer::profile::measure_pace;
use zbelastic_wording::{CommandError, CommandFailure, FailureCode, FailureDetail};

use super::schedule::write_to;
use crate::args::PlanArgs;
use crate::store_maker::with_vocabulary;
use forecast::{Forecast, ForecastInput};
pub(super) use machines::live_workers;

/// Runs `plan`.
///
/// # Errors
/// If the typed flags are wrong, no schedule can be had at all, the cluster does not answer, or
/// `out` or the picture cannot be written.
pub fn run(args: &PlanArgs, out: &mut dyn Write) -> Result<(), CommandError> {
    let config = load(&with_vocabulary(args.config.sources())?)?.config;
    let kinds = config.schedule.kinds().map_err(has_no_steps)?;
    let compared = compared(&args.compare)?;
    let threads = thread_count(args.threads);
    let network_spec = machines::machines(args, threads)?;
    let pace = measured(&config, threads)?;
    let input = ForecastInput { config: &config, kinds, network: &network_spec, pace: &pace };
    let forecast = Forecast::new(input, &compared)?;
    if args.json {
        report::write_json(&forecast, threads, out)?;
    } else {
        report::write_text(&forecast, threads, out)?;
    }
    match &args.svg {
        Some(path) => {
            write_to(path, &svg::draw_in(&forecast.drawing(), TimeUnit::MILLISECONDS), out)
        }
        None => Ok(()),
    }
}

fn has_no_steps(kind: AsyncKind) -> CommandFailure {
    let detail =
        FailureDetail::new(format!("{kind} is asynchronous: there are no steps to foretell"))
            .at("schedule.kind")
            .hint("--schedule auto, or one that `zbelastic schedule list` lists as sync");
    CommandFailure::usage("the plan", vec![detail])
}

/// The schedules to show beside the chosen one.
fn compared(names: &[String]) -> Result<Vec<ScheduleKind>, CommandFailure> {
    if names.is_empty() {
        return Ok(ScheduleKind::ALL.to_vec());
    }
    let mut kinds = Vec::new();
    let mut wrong = Vec::new();
    for name in names {
        match name.parse() {
            Ok(kind) if !kinds.contains(&kind) => kinds.push(kind),
            Ok(_) => {}
            Err(error) => {
                let detail = FailureDetail::new(format!("{error}")).at("--compare");
                wrong.push(match nearest(name, ScheduleKind::ALL.map(ScheduleKind::name)) {
                    Some(known) => detail.hint(known),
                    None => detail,
                });
            }
        }
    }
    if wrong.is_empty() { Ok(kinds) } else { Err(CommandFailure::usage("--compare", wrong)) }
}

fn measured(config: &RunConfig, threads: usize) -> Result<Pace, CommandFailure> {
    let backend = CpuBackend::new(threads)
        .map_err(|error| CommandFailure::new(FailureCode::OutOfResource, error.to_string()))?
        .with_precision(config.arithmetic.precision());
    let began = Instant::now();
    let mut clock = || began.elapsed().as_secs_f64();
    let RunConfig { model, batch, optimizer, .. } = config;
    measure_pace(&backend, model, batch.microbatch, optimizer, &mut clock).map_err(|error| {
        let what = format!("a layer could not be measured here: {error}");
        let mut failure = CommandFailure::new(FailureCode::OutOfResource, what);
        failure.details = vec![
            FailureDetail::new(
                "one layer of each kind and one microbatch must fit into this machine",
            )
            .hint("a smaller train.microbatch"),
        ];
        failure
    })
}
