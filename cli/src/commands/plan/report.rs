//! A forecast as text and as JSON.

use std::io::Write;

use serde::Serialize;
use zbelastic_config::NodeSpec;
use zbelastic_trainer::model::model_size;
use zbelastic_types::Bytes;
use zbelastic_wording::CommandError;
use zbelastic_wording::figures::{grouped, pipelines_text, three_digits};

use super::forecast::{Forecast, ForecastRow, NodeLossForecast};
use super::zones::ZoneForecast;
use crate::commands::table::{ColumnAlign, TextTable};

#[derive(Serialize)]
struct ForecastJson<'a> {
    parameters: u64,
    tokens_per_step: u64,
    microbatches: u32,
    window: String,
    nodes: Vec<ForecastNodeJson<'a>>,
    /// Pipelines side by side.
    replicas: u32,
    schedules: &'a [ForecastRow],
    left_out: Vec<OmittedScheduleJson<'a>>,
    gap: Option<f64>,
    losses: &'a [NodeLossForecast],
    zones: Option<&'a ZoneForecast>,
    assumptions: Vec<String>,
}

#[derive(Serialize)]
struct ForecastNodeJson<'a> {
    name: &'a str,
    speed: f64,
    memory_bytes: Option<u64>,
    zone: &'a str,
}

#[derive(Serialize)]
struct OmittedScheduleJson<'a> {
    schedule: &'a str,
    why: &'a str,
}

/// Writes the forecast as one JSON object.
pub fn write_json<'a>(
    forecast: &'a Forecast<'_>,
    threads: usize,
    out: &mut dyn Write,
) -> Result<(), CommandError> {
    let config = forecast.input.config;
    let node = |node: &'a NodeSpec| {
        let NodeSpec { name, speed, memory, zone } = node;
        let memory_bytes = memory.map(|memory| memory.0);
        ForecastNodeJson { name, speed: *speed, memory_bytes, zone }
    };
    let json = ForecastJson {
        parameters: model_size(&config.model).1,
        tokens_per_step: config.batch.tokens(),
        microbatches: config.batch.microbatch_count,
        window: forecast.window().to_string(),
        nodes: forecast.nodes.iter().map(node).collect(),
        replicas: forecast.grid.replicas.get(),
        schedules: &forecast.rows,
        left_out: forecast
            .left_out
            .iter()
            .map(|(schedule, why)| OmittedScheduleJson { schedule, why })
            .collect(),
        gap: forecast.gap,
        losses: &forecast.losses,
        zones: forecast.zones.as_ref(),
        assumptions: assumptions(forecast, threads),
    };
    let text = serde_json::to_string_pretty(&json).expect("finite numbers are JSON");
    writeln!(out, "{text}")?;
    Ok(())
}

/// The model, a table of schedules, the assumptions, and the effect of nodes that leave.
pub fn write_text(
    forecast: &Forecast<'_>,
    threads: usize,
    out: &mut dyn Write,
) -> Result<(), CommandError> {
    let config = forecast.input.config;
    let batch = config.batch;
    let names: Vec<&str> = forecast.nodes.iter().map(|node| node.name.as_str()).collect();
    writeln!(
        out,
        "Model of {} parameters, batch {}x{} tokens = {} microbatches of {}, {}: {}",
        grouped(model_size(&config.model).1),
        batch.microbatch.sequences as u64 * u64::from(batch.microbatch_count),
        batch.microbatch.sequence_len,
        batch.microbatch_count,
        batch.microbatch.sequences,
        pipelines_text(forecast.grid.stage_count.into(), forecast.grid.replicas.get()),
        shown(&names)
    )?;
    let mut table = TextTable::new(&[
        ("Schedule", ColumnAlign::Left),
        ("step time", ColumnAlign::Right),
        ("bubble", ColumnAlign::Right),
        ("tok/s", ColumnAlign::Right),
        ("peak memory per stage", ColumnAlign::Left),
        ("fits", ColumnAlign::Left),
    ]);
    for row in &forecast.rows {
        let sizes: Vec<String> =
            row.stage_bytes.iter().map(|bytes| Bytes(*bytes).to_string()).collect();
        table.row(vec![
            row.schedule.to_owned(),
            format!("{} ms", three_digits(row.step_ms)),
            format!("{:.1}%", 100.0 * row.bubble),
            grouped(row.tokens_per_s as u64),
            peaks(&sizes),
            fits(row, forecast.gap),
        ]);
    }
    write!(out, "{}", table.render(usize::MAX))?;
    for (schedule, why) in &forecast.left_out {
        writeln!(out, "{schedule} is left out: {why}")?;
    }
    writeln!(out, "Assumptions: {}.", assumptions(forecast, threads).join("; "))?;
    for loss in &forecast.losses {
        writeln!(out, "{}", loss_line(loss))?;
    }
    if let Some(zones) = &forecast.zones {
        writeln!(out, "{}", zones_line(zones))?;
    }
    Ok(())
}

/// Names or sizes that a line shows at most.
const SHOWN_MAX: usize = 8;

fn shown(words: &[&str]) -> String {
    let more = words.len().saturating_sub(SHOWN_MAX);
    let first = words[..words.len() - more].join(" ");
    if more > 0 { format!("{first} and {more} more") } else { first }
}

/// The size of each stage, printed once if all are equal.
fn peaks(sizes: &[String]) -> String {
    match sizes {
        [first, rest @ ..] if rest.iter().all(|size| size == first) && !rest.is_empty() => {
            format!("{first} each")
        }
        _ => shown(&sizes.iter().map(String::as_str).collect::<Vec<_>>()),
    }
}

fn fits(row: &ForecastRow, gap: Option<f64>) -> String {
    if !row.too_small.is_empty() {
        let names: Vec<&str> = row.too_small.iter().map(String::as_str).collect();
        return format!("no: {}", shown(&names));
    }
    match (row.is_chosen, gap) {
        (false, _) => "yes".to_owned(),
        (true, None) => "yes  <- chosen".to_owned(),
        (true, Some(gap)) => {
            format!("yes  <- chosen, at most {:.1}% above the best order", 100.0 * gap)
        }
    }
}

fn assumptions(forecast: &Forecast<'_>, threads: usize) -> Vec<String> {
    let plural = if threads == 1 { "thread" } else { "threads" };
    let measured = format!("F, B, W and updates measured here with {threads} {plural}");
    let is_like_here = forecast.nodes.iter().all(|node| node.speed == 1.0);
    let speeds = match is_like_here {
        true => "nodes are like this machine".to_owned(),
        false => "other nodes by their speed".to_owned(),
    };
    let link = match forecast.link_s() {
        0.0 => "messages take no time".to_owned(),
        link_s => format!("a message takes {} ms", three_digits(link_s * 1e3)),
    };
    vec![measured, speeds, link]
}

fn loss_line(loss: &NodeLossForecast) -> String {
    let loss_text = match loss.lost {
        1 => "one node leaves",
        _ => "two leave",
    };
    let names = loss.nodes.join(" and ");
    match &loss.then {
        Some(then) => format!(
            "If {loss_text} ({names} at worst): {}, {}, {} ms a step{}.",
            pipelines_text(then.stages.into(), then.replicas),
            then.schedule,
            three_digits(then.step_ms),
            then.because.as_ref().map_or_else(String::new, |why| format!(", as {why}"))
        ),
        None => format!("If {loss_text} ({names} at worst): nothing fits; training would wait."),
    }
}

/// What the loss of a zone takes.
fn zones_line(ZoneForecast { zones, unknown, exposed }: &ZoneForecast) -> String {
    let unknown = match unknown {
        0 => String::new(),
        1 => " The zone of one node is not known.".to_owned(),
        many => format!(" The zones of {many} nodes are not known."),
    };
    if exposed.is_empty() {
        return format!(
            "If one of {zones} zones is lost: its layers are in another one, too.{unknown}"
        );
    }
    let names: Vec<&str> = exposed.iter().map(String::as_str).collect();
    format!(
        "If one zone is lost, of {zones}: the layers of {} are in theirs only, and training may go back \
         to the last checkpoint; nodes of other zones, or elastic.copies, change that.{unknown}",
        shown(&names)
    )
}
