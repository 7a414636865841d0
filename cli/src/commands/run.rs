//! `run`: submits a configuration and its text to the cluster, and follows the run.
//!
//! ```text
//! run  ->  data_wanted(held)  ->  put_data ... put_data  ->  run  ->  accepted  ->  events ...
//! ```
//!
//! The text is sent once: a cluster that has it does not request it. So are weights to begin with,
//! if a folder gives them. The configuration that is submitted names both by their hashes and not
//! by paths, which are this machine's.

mod fit;
mod follow;
mod submit;

use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::thread;

use zbelastic_api::{
    ApiRequest, CorpusDescription, DOCUMENT_BYTES_MAX, HexDigest, JobPhaseStatus, RunAccepted,
    RunDisposition,
};
use zbelastic_config::{
    ConfigSources, LoadedConfig, RunConfig, WeightSource, changes, check_cluster_can_run,
    check_no_island, load,
};
use zbelastic_local::interrupt::Interrupt;
use zbelastic_types::Bytes;
use zbelastic_wire::document::{DataName, JobDocument, default_run_name};
use zbelastic_wording::{CommandError, CommandFailure, FailureDetail, print_error_line};

use super::job::job_line;
use super::reach::{connect, write_json_line};
use crate::args::RunArgs;
use crate::blob::Blob;
use crate::corpus::{LoadedStores, StoresSummary, cut_text, gather_text, load_stores};
use crate::event_poller::FOLLOW_PAUSE;
use crate::remote_model::with_local_model;
use crate::run_files::RUNS;
use crate::store_maker::with_text_store;
use crate::weights::{given_weights, weights_file};
pub(super) use follow::is_passing;
use follow::{RunOutputMode, follow};
use submit::{RunSubmission, submit};

/// Runs `run`.
///
/// # Errors
/// If the configuration or its text is wrong, if the cluster refuses, if the run does not come to
/// its end, or if `out` cannot be written.
pub fn run(args: &RunArgs, out: &mut dyn Write) -> Result<(), CommandError> {
    let (submission, config) = prepare(args)?;
    let mut client = connect(&args.read.client)?;
    let mut progress = io::stderr();
    let accepted = submit(&submission, &mut client, &mut progress)?;
    print_accepted(&accepted, args, out)?;
    if let JobPhaseStatus::Waiting { .. } = accepted.job.phase
        && let Some(config) = config
        && let Ok(status) = client.status()
        && let Some(shortage) = fit::shortage(&config, &status)
    {
        print_error_line(format_args!("note: {shortage}"));
    }
    if args.detach || accepted.job.phase.is_over() {
        return follow::ending(&accepted.job);
    }
    let mode = match (args.read.json, io::stdout().is_terminal()) {
        (true, _) => RunOutputMode::Json,
        (false, true) => RunOutputMode::Terminal,
        (false, false) => RunOutputMode::File,
    };
    let mut pause = || thread::sleep(FOLLOW_PAUSE);
    follow(accepted.events_from, mode, &mut client, out, &mut pause)
}

/// What is submitted, and the configuration that plans are made of; none of a run that goes on with
/// another's, which the cluster has.
fn prepare(args: &RunArgs) -> Result<(RunSubmission, Option<RunConfig>), CommandFailure> {
    let changes = match &args.from {
        Some(from) => changes(&args.config.sources())?.map(|changes| (from.clone(), changes)),
        None => None,
    };
    let Some((from, changes)) = changes else {
        let (submission, config) = prepare_own(args)?;
        return Ok((submission, Some(config)));
    };
    let name = args.name.clone();
    let request = ApiRequest::RunContinue { from, changes, name };
    Ok((RunSubmission { request, blobs: Vec::new() }, None))
}

/// A run with a configuration and data of its own.
fn prepare_own(args: &RunArgs) -> Result<(RunSubmission, RunConfig), CommandFailure> {
    let loaded = load(&sources_with_store(args)?)?;
    let config = loaded.config.clone();
    check_cluster_can_run(&loaded.config)?;
    let data = if loaded.config.tokens.stores.is_empty() {
        let text = gather_text(&loaded)?;
        let bytes = text.bytes.clone();
        cut_text(text, &loaded)?;
        RunData::Text(Blob::of_bytes("text", bytes))
    } else {
        let LoadedStores { about, tokenizer, .. } = load_stores(&loaded)?;
        if let Err(failure) = tokenizer.keep(Path::new(RUNS)) {
            let failure = failure.what;
            // With standard error closed there is nowhere to print it.
            print_error_line(format_args!("note: no tokenizer is kept for `export`: {failure}"));
        }
        RunData::Stores(about)
    };
    for note in &loaded.notes {
        print_error_line(format_args!("note: {note}"));
    }
    if args.from.is_some() {
        check_no_island(&loaded.config, "--from")?;
    }
    let layers = match args.from {
        None => given_weights(&loaded.config)?,
        // The run that it goes on from has its weights.
        Some(_) => None,
    };
    let weights = layers.map(|layers| weights_file(&loaded.config, &layers));
    let weights = weights.map(|bytes| Blob::of_bytes("weights", bytes));
    let weights_name = weights.as_ref().map(|blob| blob.name);
    let (document, corpus, mut blobs) = match data {
        RunData::Text(text) => (document(loaded)?, text.name, vec![text]),
        RunData::Stores(stores) => {
            let job = store_job(loaded, &stores, weights_name)?;
            (job.0, job.1, stores.blobs())
        }
    };
    blobs.extend(weights);
    let corpus = description(corpus);
    let weights = weights_name.map(description);
    let name = args.name.clone();
    let from = args.from.clone();
    let request = ApiRequest::Run { document, corpus, weights, name, from };
    Ok((RunSubmission { request, blobs }, config))
}

/// The sources of the configuration. Signals are heeded while a store is made of its text, so that
/// the batch under way is finished; before and behind that they end the command at once.
fn sources_with_store(args: &RunArgs) -> Result<ConfigSources, CommandFailure> {
    let mut listening = None;
    let listen =
        || Interrupt::listen(None, "batch").map(|interrupt| listening.insert(interrupt).clone());
    let sources = with_local_model(args.config.sources(), Path::new(RUNS))?;
    let sources = with_text_store(sources, Path::new(RUNS), listen)?;
    let Some(interrupt) = listening else { return Ok(sources) };
    interrupt.release();
    match interrupt.is_requested() {
        // It came behind the last batch: the store is there, and is found by the next command.
        true => Err(CommandFailure::new(interrupt.code(), "interrupted")),
        false => Ok(sources),
    }
}

/// What is submitted with a configuration.
enum RunData {
    Text(Blob),
    Stores(StoresSummary),
}

fn description(name: DataName) -> CorpusDescription {
    CorpusDescription { hash: HexDigest(name.hash), length: Bytes(name.length) }
}

/// A complete document: a configuration alone does not say what is in the stores.
fn store_job(
    loaded: LoadedConfig,
    stores: &StoresSummary,
    weights: Option<DataName>,
) -> Result<(String, DataName), CommandFailure> {
    let config = without_paths(loaded.config);
    let toml = config.effective();
    let name = default_run_name(&config);
    let job = JobDocument::over_stores(name, config, toml, stores.job_stores());
    let job = JobDocument { weights, ..job };
    let bytes = job.encode().map_err(|error| {
        CommandFailure::usage("the token stores", vec![FailureDetail::new(error.to_string())])
    })?;
    Ok((String::from_utf8(bytes).expect("JSON is UTF-8"), job.text))
}

/// Paths are those of this machine, and not of the job.
fn without_paths(config: RunConfig) -> RunConfig {
    RunConfig { weights: WeightSource::Drawn, adapters: None, ..config.without_data_paths() }
}

/// The configuration as it is submitted: without paths of this machine. The model of a folder is
/// described by keys; its weights are sent beside it.
fn document(loaded: LoadedConfig) -> Result<String, CommandFailure> {
    let document = without_paths(loaded.config).effective();
    let found = document.len();
    if found <= DOCUMENT_BYTES_MAX {
        return Ok(document);
    }
    let detail = FailureDetail::new(format!("{found} bytes, at most {DOCUMENT_BYTES_MAX}"));
    Err(CommandFailure::usage("the configuration", vec![detail]))
}

fn print_accepted(
    accepted: &RunAccepted,
    args: &RunArgs,
    out: &mut dyn Write,
) -> Result<(), CommandError> {
    if args.read.json {
        return write_json_line(out, accepted);
    }
    let what = match accepted.disposition {
        RunDisposition::Started => "begins",
        RunDisposition::Attached => "is under way",
        RunDisposition::Continued => "goes on",
        RunDisposition::Done => "is done already",
    };
    writeln!(out, "{what}: {}", job_line(&accepted.job))?;
    if !args.detach && !accepted.job.phase.is_over() {
        writeln!(out, "Ctrl-C ends the following, not the run")?;
    }
    out.flush()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, CliCommand};
    use zbelastic_wording::FailureCode;

    fn parse(arguments: &[&str]) -> RunArgs {
        let line = ["zbelastic", "run"].iter().chain(arguments);
        let CliCommand::Run(args) = Cli::try_parse_from(line).expect("legal").command else {
            panic!("run")
        };
        args
    }

    fn own(submission: &RunSubmission) -> (&str, CorpusDescription) {
        let ApiRequest::Run { document, corpus, .. } = &submission.request else {
            panic!("a run of its own")
        };
        (document, *corpus)
    }

    /// Only a run that goes on from another is described by what changes.
    #[test]
    fn a_run_that_goes_on_as_it_was_submits_what_changes() {
        let prepared = |arguments: &[&str]| prepare(&parse(arguments)).expect("legal").0.request;
        let steps = ["--from", "one", "--steps", "9"];
        let expected = ApiRequest::RunContinue {
            from: "one".to_owned(),
            changes: "train.steps = 9\n".to_owned(),
            name: None,
        };
        assert_eq!(prepared(&steps), expected);
        for more in [&steps[2..], &[&steps[..], &["--set", "model.preset=tiny"]].concat()] {
            assert!(matches!(prepared(more), ApiRequest::Run { .. }), "{more:?}");
        }
        let failure = prepare(&parse(&["--from", "one", "--text", "a.txt"])).expect_err("whose?");
        assert_eq!(failure.code, FailureCode::Usage);
    }

    #[test]
    fn the_same_text_at_another_place_is_the_same_run() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name).display().to_string();
        let text = "all work and no play makes a dull boy\n".repeat(4000);
        for name in ["a.txt", "b.txt"] {
            std::fs::write(path(name), &text).expect("writable");
        }
        let prepare_text = |name: &str| prepare(&parse(&["--text", &path(name)])).expect("legal").0;
        let first = prepare_text("a.txt");
        let second = prepare_text("b.txt");
        assert_eq!(first.request, second.request);
        let (document, corpus) = own(&first);
        assert_eq!(corpus.length, Bytes(text.len() as u64));
        assert!(!document.contains("a.txt"), "{document}");
        let other = prepare(&parse(&["--text", &path("a.txt"), "--seed", "2"])).expect("legal").0;
        assert_ne!(document, own(&other).0);
    }

    #[test]
    fn what_was_submitted_reads_back_as_the_same_run() {
        let submission = prepare(&parse(&["--steps", "7"])).expect("legal").0;
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("config.toml");
        std::fs::write(&file, own(&submission).0).expect("writable");
        let again = prepare(&parse(&[&file.display().to_string()])).expect("legal").0;
        assert_eq!(again, submission);
    }

    #[test]
    fn a_wrong_configuration_does_not_travel() {
        let failure = prepare(&parse(&["--steps", "none"])).expect_err("wrong");
        assert_eq!(failure.code, FailureCode::Usage);
        let failure = prepare(&parse(&["--text", "/nowhere/at/all"])).expect_err("wrong");
        assert_eq!(failure.code, FailureCode::Usage);
    }
}
