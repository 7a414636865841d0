//! `ckpt list`, `show`, `verify`, `restore` and `gc`.

mod verify;

use std::fmt::Write as _;
use std::io::Write;
use std::time::Duration;

use zbelastic_api::client::ApiClient;
use zbelastic_api::{ApiRequest, CheckpointDetail, CheckpointStatus, CollectionReport, escape};
use zbelastic_timing::unix_ms;
use zbelastic_types::Bytes;
use zbelastic_wording::figures::duration_text;
use zbelastic_wording::{CommandError, CommandFailure, FailureCode};

use super::clock::date_text;
use super::job::job_line;
use super::reach::{confirm, connect, write_json};
use super::table::{ColumnAlign, TextTable};
use crate::args::{CheckpointCommand, ClientArgs};

/// Runs a `ckpt` command.
///
/// # Errors
/// If the cluster refuses, if something is damaged, or if `out` cannot be written.
pub fn run(command: &CheckpointCommand, out: &mut dyn Write) -> Result<(), CommandError> {
    match command {
        CheckpointCommand::List { run, read } => {
            list(read.json, &mut of_run(&read.client, run)?, unix_ms(), out)
        }
        CheckpointCommand::Show { step, run, read } => {
            show(*step, read.json, &mut of_run(&read.client, run)?, out)
        }
        CheckpointCommand::Verify { step, run, read } => {
            verify::verify(*step, read.json, &mut of_run(&read.client, run)?, out)
        }
        CheckpointCommand::Restore { step, yes, client } => {
            restore(*step, *yes, &mut connect(client)?, out)
        }
        CheckpointCommand::Gc { yes, read } => {
            collect(*yes, read.json, &mut connect(&read.client)?, out)
        }
    }
}

fn of_run(args: &ClientArgs, run: &Option<String>) -> Result<ApiClient<'static>, CommandFailure> {
    Ok(connect(args)?.with_run(run.clone()))
}

fn list(
    is_json: bool,
    client: &mut ApiClient<'_>,
    now_ms: u64,
    out: &mut dyn Write,
) -> Result<(), CommandError> {
    let checkpoints = client.checkpoints().map_err(CommandFailure::from)?;
    if is_json {
        return write_json(out, &checkpoints);
    }
    out.write_all(render_list(&checkpoints, now_ms).as_bytes())?;
    Ok(())
}

/// Checkpoints as a table.
#[must_use]
pub fn render_list(checkpoints: &[CheckpointStatus], now_ms: u64) -> String {
    if checkpoints.is_empty() {
        return "no checkpoints yet; checkpoint.every says when there will be one\n".to_owned();
    }
    let left = ColumnAlign::Left;
    let right = ColumnAlign::Right;
    let columns = [
        ("step", right),
        ("age", right),
        ("size", right),
        ("copies", right),
        ("on nodes", left),
        ("digest", left),
    ];
    let mut table = TextTable::new(&columns);
    for checkpoint in checkpoints {
        let age = checkpoint.at_ms.map_or_else(String::new, |at| {
            duration_text(Duration::from_millis(now_ms.saturating_sub(at)))
        });
        let holders: Vec<String> = checkpoint.holders.iter().map(ToString::to_string).collect();
        table.row(vec![
            checkpoint.step.to_string(),
            age,
            checkpoint.bytes.to_string(),
            checkpoint.copies.to_string(),
            holders.join(", "),
            checkpoint.digest.short(),
        ]);
    }
    table.render(usize::MAX)
}

fn show(
    step: u64,
    is_json: bool,
    client: &mut ApiClient<'_>,
    out: &mut dyn Write,
) -> Result<(), CommandError> {
    let detail = client.checkpoint(step).map_err(CommandFailure::from)?;
    if is_json {
        return write_json(out, &detail);
    }
    out.write_all(render_detail(&detail).as_bytes())?;
    Ok(())
}

/// A checkpoint layer by layer.
#[must_use]
pub fn render_detail(detail: &CheckpointDetail) -> String {
    let CheckpointDetail { summary, corpus, layers, .. } = detail;
    let mut text = format!("step    {}\n", summary.step);
    if let Some(at) = summary.at_ms {
        let _ = writeln!(text, "made    {}", date_text(at));
    }
    let _ = writeln!(text, "size    {} a copy", summary.bytes);
    let _ = writeln!(text, "digest  {}", summary.digest);
    let _ = writeln!(text, "text    {corpus}\n");
    let left = ColumnAlign::Left;
    let right = ColumnAlign::Right;
    let columns = [("layer", right), ("size", right), ("digest", left), ("on nodes", left)];
    let mut table = TextTable::new(&columns);
    for layer in layers {
        let holders: Vec<String> = layer.holders.iter().map(ToString::to_string).collect();
        table.row(vec![
            layer.layer.to_string(),
            layer.bytes.to_string(),
            layer.digest.short(),
            holders.join(", "),
        ]);
    }
    text + &table.render(usize::MAX)
}

fn restore(
    step: u64,
    is_yes: bool,
    client: &mut ApiClient<'_>,
    out: &mut dyn Write,
) -> Result<(), CommandError> {
    let checkpoints = client.checkpoints().map_err(CommandFailure::from)?;
    check_exists(step, &checkpoints)?;
    confirm(is_yes, &format!("the run goes back to step {step}; later steps are given up"))?;
    let job =
        client.change_job(ApiRequest::CheckpointRestore { step }).map_err(CommandFailure::from)?;
    writeln!(out, "{}", job_line(&job))?;
    Ok(())
}

/// Checks that there is such a checkpoint, before a person is prompted to confirm.
fn check_exists(step: u64, checkpoints: &[CheckpointStatus]) -> Result<(), CommandFailure> {
    if checkpoints.iter().any(|checkpoint| checkpoint.step == step) {
        return Ok(());
    }
    let steps: Vec<String> = checkpoints.iter().map(|found| found.step.to_string()).collect();
    let there = match steps.is_empty() {
        true => "there is none at all".to_owned(),
        false => format!("there are those of steps {}", steps.join(", ")),
    };
    let what = format!("there is no checkpoint of step {step}: {there}");
    Err(CommandFailure::new(FailureCode::NotFound, what))
}

fn collect(
    is_yes: bool,
    is_json: bool,
    client: &mut ApiClient<'_>,
    out: &mut dyn Write,
) -> Result<(), CommandError> {
    confirm(is_yes, "what no checkpoint needs is removed from every node's disk")?;
    let collected = client.collect().map_err(CommandFailure::from)?;
    if is_json {
        write_json(out, &collected)?;
    } else {
        collected.iter().try_for_each(|one| writeln!(out, "{}", collected_line(one)))?;
    }
    match collected.iter().filter(|one| one.error.is_some()).count() {
        0 => Ok(()),
        count => {
            let what = format!("{count} of {} nodes did not collect", collected.len());
            Err(CommandFailure::new(FailureCode::Internal, what).into())
        }
    }
}

fn collected_line(collected: &CollectionReport) -> String {
    let CollectionReport { node, chunks, bytes, aside_bytes_removed, aside_bytes_kept, error } =
        collected;
    if let Some(error) = error
        && (*chunks, *aside_bytes_removed) == (0, Bytes(0))
    {
        return format!("node {node}: nothing removed: {}", escape(error));
    }
    let mut line = format!("node {node}: {chunks} chunks removed, {bytes}");
    if *aside_bytes_removed > Bytes(0) {
        line += &format!("; {aside_bytes_removed} of damaged stores put aside removed");
    }
    if *aside_bytes_kept > Bytes(0) {
        line += &format!(
            "; {aside_bytes_kept} of damaged stores put aside kept until newer checkpoints replace theirs"
        );
    }
    if let Some(error) = error {
        line += &format!("; not all: {}", escape(error));
    }
    line
}

#[cfg(test)]
mod tests {
    use zbelastic_types::NodeId;

    use super::*;
    use zbelastic_api::sample::{self, NOW_MS, digest, scripted};
    use zbelastic_api::{ApiAnswer, LayerDetail};

    #[test]
    fn checkpoints_are_listed_oldest_first() {
        let expected = "\
step   age      size  copies  on nodes  digest
1100  3m07  1.49 GiB       2  2, 3      0c0c0c0c0c0c
1200  3m07  1.49 GiB       2  2, 3      0c0c0c0c0c0c
";
        let checkpoints = [sample::checkpoint(1100), sample::checkpoint(1200)];
        assert_eq!(render_list(&checkpoints, NOW_MS), expected);
        assert!(render_list(&[], NOW_MS).contains("checkpoint.every"));
    }

    #[test]
    fn a_checkpoint_is_printed_layer_by_layer() {
        let layer = |layer, byte, holders: &[u64]| LayerDetail {
            layer,
            digest: digest(byte),
            bytes: Bytes(3 << 20),
            holders: holders.iter().copied().map(NodeId).collect(),
        };
        let detail = CheckpointDetail {
            summary: sample::checkpoint(300),
            document: String::new(),
            corpus: digest(7),
            tokenizer: None,
            end_of_text: None,
            layers: vec![layer(0, 1, &[2]), layer(1, 2, &[2, 3])],
        };
        let expected = format!(
            "\
step    300
made    2026-11-21 11:57:56Z
size    1.49 GiB a copy
digest  {}
text    {}

layer      size  digest        on nodes
    0  3.00 MiB  010101010101  2
    1  3.00 MiB  020202020202  2, 3
",
            digest(0x0c),
            digest(7)
        );
        assert_eq!(render_detail(&detail), expected);
    }

    fn restored(step: u64) -> (Result<(), FailureCode>, usize) {
        let checkpoints = vec![sample::checkpoint(100), sample::checkpoint(200)];
        let answers = vec![
            Ok(ApiAnswer::Checkpoints(checkpoints)),
            Ok(ApiAnswer::Job(Box::new(sample::job()))),
        ];
        let (mut client, requests) = scripted(answers);
        let ended = restore(step, true, &mut client, &mut Vec::new());
        let request_count = requests.borrow().len();
        let code = |stop| match stop {
            CommandError::Failed(failure) => failure.code,
            CommandError::Output(error) => panic!("{error}"),
        };
        (ended.map_err(code), request_count)
    }

    #[test]
    fn only_a_checkpoint_that_is_there_is_restored() {
        assert_eq!(restored(200), (Ok(()), 2));
        assert_eq!(restored(150), (Err(FailureCode::NotFound), 1));
    }

    #[test]
    fn a_node_that_did_not_collect_fails_the_command() {
        let one = |error: Option<&str>| CollectionReport {
            node: NodeId(2),
            chunks: if error.is_some() { 0 } else { 3 },
            bytes: Bytes(1024),
            aside_bytes_removed: Bytes(0),
            aside_bytes_kept: Bytes(0),
            error: error.map(str::to_owned),
        };
        let collected = |error| {
            let answer = ApiAnswer::Collected(vec![one(None), one(error)]);
            let (mut client, _) = scripted(vec![Ok(answer)]);
            let mut out = Vec::new();
            let ended = collect(true, false, &mut client, &mut out);
            (ended.is_ok(), String::from_utf8(out).expect("UTF-8"))
        };
        let (is_ok, text) = collected(None);
        assert!(is_ok);
        assert_eq!(text.lines().next(), Some("node 2: 3 chunks removed, 1.00 KiB"));
        let (is_ok, text) = collected(Some("not heard"));
        assert!(!is_ok);
        assert!(text.ends_with("nothing removed: not heard\n"), "{text}");
    }

    #[test]
    fn stores_that_were_put_aside_are_in_the_line_of_their_node() {
        let line = |removed, kept, error: Option<&str>| {
            collected_line(&CollectionReport {
                node: NodeId(2),
                chunks: 0,
                bytes: Bytes(0),
                aside_bytes_removed: Bytes(removed),
                aside_bytes_kept: Bytes(kept),
                error: error.map(str::to_owned),
            })
        };
        let start = "node 2: 0 chunks removed, 0 B";
        let kept =
            "1.00 KiB of damaged stores put aside kept until newer checkpoints replace theirs";
        let removed = "2.00 KiB of damaged stores put aside removed";
        assert_eq!(line(0, 0, None), start);
        assert_eq!(line(0, 1024, None), format!("{start}; {kept}"));
        assert_eq!(line(2048, 0, None), format!("{start}; {removed}"));
        assert_eq!(
            line(2048, 1024, Some("no")),
            format!("{start}; {removed}; {kept}; not all: no")
        );
        assert_eq!(line(0, 1024, Some("no")), "node 2: nothing removed: no");
    }
}
