//! `data show`: what a store holds, and samples of its windows.

use std::io::Write;
use std::ops::Range;
use std::path::Path;

use serde_json::{Value, json};
use zbelastic_data::encode::EncodeDocuments;
use zbelastic_data::prepare::JOURNAL_NAME;
use zbelastic_data::show::{ShowRequest, WindowSample, show};
use zbelastic_data::store::{MANIFEST_NAME, StoreManifest, TokenStore};
use zbelastic_types::Bytes;
use zbelastic_wording::figures::{counted, grouped};
use zbelastic_wording::{CommandError, CommandFailure, FailureCode, FailureDetail};

use super::samples::{TargetMarks, write_samples};
use crate::args::DataShowArgs;
use crate::data_failure as failure;
use crate::progress::CommandProgress;
use crate::terminal;
use crate::tokenizer_encoder::TokenizerEncoder;

/// Damaged shards that are named at most.
const DAMAGED_NAMED_MAX: usize = 16;

/// Runs `data show`.
///
/// # Errors
/// If there is no store, it is damaged as far as it was read, the tokenizer is another one, or `out` cannot be written.
pub fn run(args: &DataShowArgs, out: &mut dyn Write) -> Result<(), CommandError> {
    let store = open_store(&args.folder)?;
    if args.verify {
        verify(&store)?;
    }
    let encoder = encoder(args, store.manifest())?;
    let request = ShowRequest {
        sequence_len: args.window as usize,
        packing: args.packing,
        samples: args.samples as usize,
    };
    let decode = |ids: &[u32]| match &encoder {
        Some(encoder) => encoder.decode(ids),
        None => ids.iter().map(u32::to_string).collect::<Vec<_>>().join(" "),
    };
    let view = show(&store, &request, &decode).map_err(|error| failure::of_store(&error))?;
    if args.json {
        let mut report = counts_json(store.manifest());
        report["windows"] = json!(view.windows);
        report["verified"] = json!(args.verify);
        let samples = view.samples.iter().map(|sample| sample_json(sample, encoder.is_some()));
        report["samples"] = samples.collect();
        writeln!(out, "{report:#}")?;
        return Ok(());
    }
    write_counts(store.manifest(), out)?;
    if args.verify {
        writeln!(out, "verified   every shard has the hash that the manifest names")?;
    }
    let window = grouped(args.window.into());
    writeln!(out, "windows    {} of {window} tokens", grouped(view.windows))?;
    let marks = TargetMarks::new(terminal::has_colours());
    write_samples(&view.samples, encoder.as_ref(), marks, out)?;
    if view.windows == 0 {
        writeln!(out, "note: the store is shorter than a window; --window N shows shorter ones")?;
    }
    if encoder.is_none() && !view.samples.is_empty() {
        writeln!(out, "\nnote: these are ids; --tokenizer DIR shows their text")?;
    }
    Ok(())
}

/// The store in a folder.
///
/// # Errors
/// If there is none, it is not finished, or it is damaged.
pub fn open_store(folder: &Path) -> Result<TokenStore, CommandFailure> {
    if folder.join(MANIFEST_NAME).exists() {
        return TokenStore::open(folder).map_err(|error| failure::of_store(&error));
    }
    let is_begun = folder.join(JOURNAL_NAME).exists();
    let folder = folder.display();
    let (code, what, hint) = if is_begun {
        let what = format!("the token store in {folder} is not finished");
        (FailureCode::WrongState, what, "the same `zbelastic data prepare` again, which goes on")
    } else {
        let what = format!("there is no token store in {folder}");
        (FailureCode::NotFound, what, "`zbelastic data prepare SOURCES --to DIR` makes one")
    };
    let detail = FailureDetail::new(format!("it has no {MANIFEST_NAME}")).hint(hint);
    Err(CommandFailure { code, what, details: vec![detail] })
}

/// Reads every shard, and names those that are damaged, up to [`DAMAGED_NAMED_MAX`].
fn verify(store: &TokenStore) -> Result<(), CommandFailure> {
    let mut progress = CommandProgress::new();
    let verified = verify_shards(store, &mut progress);
    progress.finish();
    verified
}

fn verify_shards(store: &TokenStore, progress: &mut CommandProgress) -> Result<(), CommandFailure> {
    let total = store.shard_bytes();
    let mut faults = store.shard_faults(|read| {
        progress.report(read, total, || format!("verified {} of {}", Bytes(read), Bytes(total)));
    });
    let Some(first) = faults.next() else { return Ok(()) };
    let mut failure = failure::of_store(&first);
    for fault in faults {
        if failure.details.len() == DAMAGED_NAMED_MAX {
            failure.details.push(FailureDetail::new("more shards may be damaged"));
            break;
        }
        failure.details.extend(failure::of_store(&fault).details);
    }
    Err(failure)
}

/// What decodes the store's ids: the tokenizer that was named, or bytes if it is of those.
fn encoder(
    args: &DataShowArgs,
    manifest: &StoreManifest,
) -> Result<Option<TokenizerEncoder>, CommandFailure> {
    let Some(path) = &args.tokenizer else {
        let bytes = TokenizerEncoder::bytes();
        return Ok(Some(bytes).filter(|bytes| bytes.tokenizer_hash().0 == manifest.tokenizer));
    };
    let encoder = TokenizerEncoder::open(path).map_err(|error| failure::of_folder(path, &error))?;
    let found = encoder.tokenizer_hash().0;
    if found == manifest.tokenizer {
        return Ok(Some(encoder));
    }
    let what = format!("has hash {found}, the store's has {}", manifest.tokenizer);
    let detail = FailureDetail::new(what).at(path.display().to_string());
    let detail = detail
        .why("another tokenizer, or another of its files, gives the ids another meaning")
        .hint("the tokenizer that the store was made with, or none to see ids");
    Err(CommandFailure::usage("the tokenizer", vec![detail]))
}

/// Prints what a store holds, a line each.
pub fn write_counts(manifest: &StoreManifest, out: &mut dyn Write) -> Result<(), CommandError> {
    let tokens = grouped(manifest.tokens());
    let shards = counted(manifest.shards.len() as u64, "shard");
    let vocabulary = grouped(manifest.vocabulary.into());
    let sources = manifest.sources;
    writeln!(out, "tokens     {tokens} in {shards}, of a vocabulary of {vocabulary}")?;
    write!(out, "documents  {}", grouped(sources.documents))?;
    for (count, what) in [(sources.empty, "empty"), (sources.bad, "bad ones left out")] {
        if count > 0 {
            write!(out, ", {} {what}", grouped(count))?;
        }
    }
    writeln!(out, "\ntokenizer  {}", manifest.tokenizer)?;
    writeln!(out, "store      {}", manifest.hash())?;
    Ok(())
}

/// What a store holds, for scripts.
pub fn counts_json(manifest: &StoreManifest) -> Value {
    let StoreManifest { vocabulary, end_of_text, sources, .. } = manifest;
    json!({
        "tokens": manifest.tokens(),
        "shards": manifest.shards.len(),
        "vocabulary": vocabulary,
        "end_of_text": end_of_text,
        "documents": sources.documents,
        "empty": sources.empty,
        "bad": sources.bad,
        "tokenizer": manifest.tokenizer.to_string(),
        "store": manifest.hash().to_string(),
    })
}

fn sample_json(sample: &WindowSample, has_text: bool) -> Value {
    let pair = |span: &Range<usize>| json!([span.start, span.end]);
    let documents = sample.documents.iter().map(|document| {
        json!({
            "document": document.document,
            "ids": pair(&document.ids),
            "text": has_text.then_some(&document.text),
        })
    });
    json!({
        "window": sample.window,
        "ids": sample.ids,
        "documents": documents.collect::<Value>(),
        "loss": sample.loss_spans.iter().map(pair).collect::<Value>(),
    })
}
