//! `tokenizer train`.

use std::cell::Cell;
use std::io::Write;
use std::num::NonZeroUsize;
use std::time::Instant;

use serde_json::{Value, json};
use zbelastic_data::document::{Chat, Document};
use zbelastic_data::source::{SourceFormat, SourceListing, SourceOptions, read_documents};
use zbelastic_local::interrupt::Interrupt;
use zbelastic_machine::thread_count;
use zbelastic_tokenizer::train::{TrainError, TrainProgress, TrainRequest, train};
use zbelastic_tokenizer::{Tokenizer, TokenizerFiles};
use zbelastic_types::Bytes;
use zbelastic_wording::figures::{duration_text, grouped};
use zbelastic_wording::{CommandError, CommandFailure, FailureCode, FailureDetail};

use crate::args::{TokenizerCommand, TokenizerTrainArgs};
use crate::data_failure as failure;
use crate::progress::CommandProgress;
use crate::remote_sources::source_storage;

/// Runs a `tokenizer` command.
///
/// # Errors
/// If the texts or flags are wrong, or the tokenizer or `out` cannot be written.
pub fn run(command: &TokenizerCommand, out: &mut dyn Write) -> Result<(), CommandError> {
    match command {
        TokenizerCommand::Train(args) => run_train(args, out),
    }
}

/// A tokenizer, and what it was made of.
struct TrainedTokenizer {
    files: TokenizerFiles,
    text: Bytes,
}

fn run_train(args: &TokenizerTrainArgs, out: &mut dyn Write) -> Result<(), CommandError> {
    check_folder(args)?;
    let mut progress = CommandProgress::new();
    let began = Instant::now();
    let trained = train_on_texts(args, &mut progress);
    progress.finish();
    let TrainedTokenizer { files, text } = trained?;
    let made = Tokenizer::from_files(&files).map_err(|error| {
        CommandFailure::new(FailureCode::Internal, format!("the tokenizer is damaged: {error}"))
    })?;
    files.write(&args.to).map_err(|error| failure::of_folder(&args.to, &error))?;
    let tokens = made.vocab_size();
    if args.json {
        let folder = args.to.display().to_string();
        let hash = made.content_hash().to_string();
        let report = json!({
            "folder": folder, "vocabulary": tokens, "text_bytes": text, "tokenizer_json": hash,
        });
        writeln!(out, "{report:#}")?;
        return Ok(());
    }
    let folder = args.to.display();
    let took = duration_text(began.elapsed());
    writeln!(out, "✔ {} tokens from {text} of text in {took}: {folder}", grouped(tokens.into()))?;
    if tokens < args.vocab {
        let wanted = grouped(args.vocab.into());
        let frequency = args.min_frequency;
        writeln!(out, "note: not {wanted}: no other pair of tokens occurs {frequency} times")?;
    }
    writeln!(out, "next: zbelastic data prepare SOURCES --tokenizer {folder} --to STORE")?;
    Ok(())
}

/// Refuses a folder with a tokenizer before the texts are read: models may depend on it.
fn check_folder(args: &TokenizerTrainArgs) -> Result<(), CommandFailure> {
    let path = args.to.join("tokenizer.json");
    if !path.exists() {
        return Ok(());
    }
    let what = format!("{} is there already", path.display());
    let mut refused = CommandFailure::new(FailureCode::WrongState, what);
    let detail =
        FailureDetail::new("models and token stores are of no use without their tokenizer");
    refused.details = vec![detail.hint("--to another folder, or remove this one first")];
    Err(refused)
}

fn train_on_texts(
    args: &TokenizerTrainArgs,
    progress: &mut CommandProgress,
) -> Result<TrainedTokenizer, CommandFailure> {
    let storage = source_storage(progress, &Interrupt::default());
    let listing = SourceListing::of(&args.text, &storage);
    let listing = listing.map_err(|error| failure::of_list(&error))?;
    refuse_ids(&listing)?;
    let options = SourceOptions { field: args.field.clone(), ..SourceOptions::default() };
    let mut stopped = None;
    let mut text = Bytes(0);
    let bytes_read = Cell::new(Bytes(0));
    let texts = read_documents(&listing, &storage, &options).map_while(|document| {
        let read = document.map_err(|error| stopped = Some(error)).ok()?;
        bytes_read.set(read.bytes_read);
        let read = text_of(read.document);
        text.0 += read.len() as u64;
        Some(read)
    });
    let part = TrainingPart::Words;
    let mut report =
        TrainReport { progress, part, bytes_read: &bytes_read, total: listing.bytes() };
    let trained = train(&request(args), texts, |at| report.report(at));
    if let Some(error) = stopped {
        return Err(failure::of_source(&error, &[failure::FIELD]));
    }
    let files = trained.map_err(|error| train_failure(&error))?;
    Ok(TrainedTokenizer { files, text })
}

fn request(args: &TokenizerTrainArgs) -> TrainRequest {
    let mut request = TrainRequest::gpt2(args.vocab as usize);
    request.min_frequency = args.min_frequency;
    // The token that ends documents is there in any case.
    let others = args.special.iter().filter(|token| request.eos_token.as_ref() != Some(*token));
    request.special_tokens.extend(others.cloned().collect::<Vec<_>>());
    let threads = thread_count(args.threads);
    request.threads = NonZeroUsize::new(threads).unwrap_or(NonZeroUsize::MIN);
    request
}

/// Files of ids have no text to learn from.
fn refuse_ids(listing: &SourceListing) -> Result<(), CommandFailure> {
    let is_of_ids = |format: &SourceFormat| match format {
        SourceFormat::TokenFile => true,
        SourceFormat::Text(_) | SourceFormat::JsonLines(_) | SourceFormat::Parquet => false,
    };
    let Some((file, _)) = listing.files.iter().find(|(_, format)| is_of_ids(format)) else {
        return Ok(());
    };
    let detail = FailureDetail::new("holds token ids, not text").at(file.path.clone());
    Err(CommandFailure::usage("the text", vec![detail.hint("the files that it was made of")]))
}

/// What a document has to learn from: of a chat the contents of its messages.
fn text_of(document: Document) -> String {
    match document {
        Document::Text(part) => part.text,
        Document::Chat(Chat { record, messages_field, .. }) => {
            let record: Value = serde_json::from_str(&record).unwrap_or(Value::Null);
            let messages = record[&messages_field].as_array().into_iter().flatten();
            let contents = messages.filter_map(|message| message["content"].as_str());
            contents.collect::<Vec<_>>().join("\n")
        }
    }
}

/// Which part of the training is reported.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TrainingPart {
    Words,
    Merges,
}

/// Reports both parts of a training, each with its own rate.
struct TrainReport<'a> {
    progress: &'a mut CommandProgress,
    part: TrainingPart,
    /// Bytes that were read of the files, compressed as they are.
    bytes_read: &'a Cell<Bytes>,
    /// Bytes of all files, compressed as they are.
    total: Bytes,
}

impl TrainReport<'_> {
    fn report(&mut self, at: TrainProgress) {
        match at {
            TrainProgress::Words { bytes, words } => {
                let rate =
                    Bytes((bytes as f64 / self.progress.elapsed().as_secs_f64().max(1e-3)) as u64);
                self.progress.report(self.bytes_read.get().0, self.total.0, || {
                    let words = grouped(words as u64);
                    format!("counting words: {} of text, {rate}/s, {words} words", Bytes(bytes))
                });
            }
            TrainProgress::Merges { tokens, vocab_size } => {
                if self.part == TrainingPart::Words {
                    self.part = TrainingPart::Merges;
                    self.progress.begin_part();
                }
                self.progress.report(tokens as u64, vocab_size as u64, || {
                    let tokens = grouped(tokens as u64);
                    format!("merging pairs: {tokens} of {} tokens", grouped(vocab_size as u64))
                });
            }
        }
    }
}

fn train_failure(error: &TrainError) -> CommandFailure {
    let detail = FailureDetail::new(error.to_string());
    let detail = match error {
        TrainError::VocabularyTooSmall { special, .. } => {
            detail.at("--vocab").hint(format!("--vocab {} or more", 256 + special))
        }
        TrainError::SpecialToken { .. } => detail.at("--special").hint("--special '<|im_start|>'"),
        TrainError::UnknownEos { .. } => detail.at("--special"),
        TrainError::Empty => detail.at("--text").hint("files with text in them"),
    };
    CommandFailure::usage("the tokenizer", vec![detail])
}
