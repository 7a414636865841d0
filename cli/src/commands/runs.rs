//! `runs list`, `show` and `remove`.

use std::fmt::Write as _;
use std::io::Write;

use zbelastic_api::client::ApiClient;
use zbelastic_api::{
    ApiRefusal, ApiRequest, JobPhaseStatus, OriginStatus, ResourceKind, RunStatus,
};
use zbelastic_timing::unix_ms;
use zbelastic_wording::{CommandError, CommandFailure};

use super::reach::{confirm, connect, write_json};
use super::table::{ColumnAlign, TextTable};
use crate::args::RunsCommand;
use crate::commands::ckpt::render_list;

/// Runs a `runs` command.
///
/// # Errors
/// If the cluster refuses, or if `out` cannot be written.
pub fn run(command: &RunsCommand, out: &mut dyn Write) -> Result<(), CommandError> {
    match command {
        RunsCommand::List(args) => list(args.json, &mut connect(&args.client)?, out),
        RunsCommand::Show { name, read } => {
            let client = connect(&read.client)?;
            show(name, read.json, &mut client.with_run(Some(name.clone())), out)
        }
        RunsCommand::Remove { name, yes, client } => remove(name, *yes, &mut connect(client)?, out),
    }
}

fn list(
    is_json: bool,
    client: &mut ApiClient<'_>,
    out: &mut dyn Write,
) -> Result<(), CommandError> {
    let runs = client.runs().map_err(CommandFailure::from)?;
    if is_json {
        return write_json(out, &runs);
    }
    out.write_all(render(&runs).as_bytes())?;
    Ok(())
}

/// Runs as a table.
fn render(runs: &[RunStatus]) -> String {
    if runs.is_empty() {
        return "no runs yet; `zbelastic run CONFIG` begins one\n".to_owned();
    }
    let left = ColumnAlign::Left;
    let right = ColumnAlign::Right;
    let columns = [
        ("run", left),
        ("state", left),
        ("step", right),
        ("of", right),
        ("size", right),
        ("digest", left),
    ];
    let mut table = TextTable::new(&columns);
    for run in runs {
        table.row(vec![
            run.name.clone(),
            phase_word(&run.phase).to_owned(),
            run.step.to_string(),
            run.step_count.to_string(),
            run.bytes.to_string(),
            run.digest.map_or_else(|| "no checkpoint".to_owned(), |digest| digest.short()),
        ]);
    }
    table.render(usize::MAX)
}

const fn phase_word(phase: &JobPhaseStatus) -> &'static str {
    match phase {
        JobPhaseStatus::Running => "running",
        JobPhaseStatus::Waiting { .. } => "waiting",
        JobPhaseStatus::Paused => "paused",
        JobPhaseStatus::Halted { .. } => "halted",
        JobPhaseStatus::Done => "done",
        JobPhaseStatus::Stopped => "stopped",
    }
}

/// The run with this name.
fn find(name: &str, client: &mut ApiClient<'_>) -> Result<RunStatus, CommandFailure> {
    let runs = client.runs()?;
    let found = runs.into_iter().find(|run| run.name == name);
    let missing =
        || ApiRefusal::NotFound { thing: ResourceKind::Run, name: name.to_owned() }.failure();
    found.ok_or_else(missing)
}

fn show(
    name: &str,
    is_json: bool,
    client: &mut ApiClient<'_>,
    out: &mut dyn Write,
) -> Result<(), CommandError> {
    let run = find(name, client)?;
    if is_json {
        return write_json(out, &run);
    }
    let checkpoints = client.checkpoints().map_err(CommandFailure::from)?;
    let mut text = format!("run     {} (number {})\n", run.name, run.run);
    let _ = writeln!(text, "state   {}", phase_word(&run.phase));
    let _ = writeln!(text, "step    {} of {}", run.step, run.step_count);
    if let Some(from) = &run.from {
        let OriginStatus { run, step, digest, .. } = from;
        let name = from.name.clone().unwrap_or_else(|| format!("run {run}, removed"));
        let _ = writeln!(text, "from    {name}, behind step {step}, digest {digest}");
    }
    let _ = writeln!(text, "config  {}\n", run.config);
    text += &render_list(&checkpoints, unix_ms());
    out.write_all(text.as_bytes())?;
    Ok(())
}

fn remove(
    name: &str,
    is_yes: bool,
    client: &mut ApiClient<'_>,
    out: &mut dyn Write,
) -> Result<(), CommandError> {
    let run = find(name, client)?;
    let steps: Vec<String> = run.checkpoints.iter().map(ToString::to_string).collect();
    let consequence = match steps.is_empty() {
        true => format!("run {name} is forgotten; it has no checkpoint"),
        false => format!(
            "run {name} is forgotten, and its checkpoint of step {} ({} a copy) is removed from every node",
            steps.join(", "),
            run.bytes
        ),
    };
    confirm(is_yes, &consequence)?;
    let summary = client.change(ApiRequest::RunRemove { name: name.to_owned(), run: run.run });
    writeln!(out, "{}", summary.map_err(CommandFailure::from)?.what)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use zbelastic_types::Bytes;

    use super::*;
    use zbelastic_api::sample::{digest, scripted};
    use zbelastic_api::{ApiAnswer, ChangeSummary};
    use zbelastic_wording::FailureCode;

    fn status(run: u64, name: &str, phase: JobPhaseStatus, checkpoints: &[u64]) -> RunStatus {
        RunStatus {
            run,
            name: name.to_owned(),
            config: digest(run as u8),
            phase,
            step: 300,
            step_count: 1000,
            from: None,
            checkpoints: checkpoints.to_vec(),
            digest: checkpoints.last().map(|_| digest(0x0c)),
            bytes: Bytes(1_600_000_000),
        }
    }

    fn runs() -> Vec<RunStatus> {
        vec![
            status(1, "baseline", JobPhaseStatus::Stopped, &[300]),
            status(4, "wide", JobPhaseStatus::Running, &[]),
        ]
    }

    #[test]
    fn runs_are_listed_oldest_first() {
        let expected = "\
run       state    step    of      size  digest
baseline  stopped   300  1000  1.49 GiB  0c0c0c0c0c0c
wide      running   300  1000  1.49 GiB  no checkpoint
";
        assert_eq!(render(&runs()), expected);
        assert!(render(&[]).contains("zbelastic run"));
    }

    fn removed(name: &str) -> (Result<String, FailureCode>, usize) {
        let summary = ChangeSummary { what: format!("run {name} is removed"), nodes: Vec::new() };
        let (mut client, requests) =
            scripted(vec![Ok(ApiAnswer::Runs(runs())), Ok(ApiAnswer::Done(summary))]);
        let mut out = Vec::new();
        let ended = remove(name, true, &mut client, &mut out);
        let request_count = requests.borrow().len();
        let printed = String::from_utf8(out).expect("UTF-8");
        let code = |stop| match stop {
            CommandError::Failed(failure) => failure.code,
            CommandError::Output(error) => panic!("{error}"),
        };
        (ended.map(|()| printed).map_err(code), request_count)
    }

    #[test]
    fn only_a_run_that_is_there_is_removed() {
        assert_eq!(removed("baseline"), (Ok("run baseline is removed\n".to_owned()), 2));
        assert_eq!(removed("basline"), (Err(FailureCode::NotFound), 1));
    }
}
