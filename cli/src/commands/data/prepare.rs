//! `data prepare`: sources to a token store.

use std::io::Write;
use std::num::NonZeroUsize;
use std::path::Path;
use std::time::Instant;

use serde_json::json;
use zbelastic_data::encode::EncodeDocuments;
use zbelastic_data::prepare::PrepareRequest;
use zbelastic_data::source::{SourceCounts, SourceOptions};
use zbelastic_data::store::StoreManifest;
use zbelastic_local::interrupt::Interrupt;
use zbelastic_machine::thread_count;
use zbelastic_wording::CommandError;
use zbelastic_wording::figures::{counted, duration_text};

use crate::args::DataPrepareArgs;
use crate::data_failure as failure;
use crate::store_maker::{MadeStore, make_store};
use crate::tokenizer_encoder::TokenizerEncoder;

/// Runs `data prepare`.
///
/// # Errors
/// If the sources or the tokenizer are wrong, the store or `out` cannot be written, or a signal
/// ended it.
pub fn run(args: &DataPrepareArgs, out: &mut dyn Write) -> Result<(), CommandError> {
    let encoder = TokenizerEncoder::open(&args.tokenizer);
    let encoder = encoder.map_err(|error| failure::of_folder(&args.tokenizer, &error))?;
    let encoder = encoder.with_date(args.date);
    let interrupt = Interrupt::listen(None, "batch")?;
    let began = Instant::now();
    let made = make_store(&request(args), &encoder, &interrupt, failure::PREPARE_FLAGS)?;
    let MadeStore { manifest, files_left_out } = made;
    if args.json {
        write_json(args, &manifest, out)?;
        return Ok(());
    }
    write_summary(args, &manifest, out)?;
    writeln!(out, "took       {}", duration_text(began.elapsed()))?;
    if encoder.end_of_text().is_none() && args.tokenizer != Path::new("bytes") {
        writeln!(out, "note: the tokenizer names no eos_token, so no token ends a document")?;
    }
    if manifest.tokens() == 0 {
        let why = match manifest.sources {
            SourceCounts { documents: 0, bad: 0, .. } => "the sources hold no document",
            SourceCounts { documents: 0, .. } => "all that the sources hold is bad",
            SourceCounts { .. } => "the documents have no text",
        };
        writeln!(out, "note: not one token, so nothing can be trained on it: {why}")?;
    }
    let folder = args.to.display();
    if files_left_out > 0 {
        let files = counted(files_left_out as u64, "file");
        writeln!(out, "note: left out of the sources: {files} in {folder} itself")?;
    }
    let tokenizer = args.tokenizer.display();
    writeln!(out, "next: zbelastic data show {folder} --tokenizer {tokenizer}")?;
    Ok(())
}

fn request(args: &DataPrepareArgs) -> PrepareRequest {
    let threads = thread_count(args.threads);
    let field = args.field.clone();
    let separator = args.separator.clone();
    PrepareRequest {
        entries: args.sources.clone(),
        options: SourceOptions { field, separator, skip_bad: args.skip_bad },
        threads: NonZeroUsize::new(threads).unwrap_or(NonZeroUsize::MIN),
        shard_tokens: args.shard_tokens,
        folder: args.to.clone(),
    }
}

fn write_summary(
    args: &DataPrepareArgs,
    manifest: &StoreManifest,
    out: &mut dyn Write,
) -> Result<(), CommandError> {
    writeln!(out, "✔ {}", args.to.display())?;
    super::show::write_counts(manifest, out)
}

fn write_json(
    args: &DataPrepareArgs,
    manifest: &StoreManifest,
    out: &mut dyn Write,
) -> Result<(), CommandError> {
    let mut report = super::show::counts_json(manifest);
    report["folder"] = json!(args.to.display().to_string());
    writeln!(out, "{report:#}")?;
    Ok(())
}
