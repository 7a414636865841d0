//! Token stores that commands make: with progress, and for a run whose configuration names text and
//! a tokenizer.

use std::fs;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::Path;

use zbelastic_config::{
    ConfigFlag, ConfigSources, ConfigValue, Key, LoadedConfig, WeightSource, load,
};
use zbelastic_data::encode::EncodeDocuments;
use zbelastic_data::prepare::{
    PrepareError, PrepareProgress, PrepareRequest, SHARD_TOKENS, prepare, request_name,
};
use zbelastic_data::source::SourceOptions;
use zbelastic_data::store::{MANIFEST_NAME, StoreManifest};
use zbelastic_local::interrupt::Interrupt;
use zbelastic_machine::thread_count;
use zbelastic_wording::figures::{counted, grouped};
use zbelastic_wording::{CommandFailure, FailureDetail};

use crate::data_failure;
use crate::progress::CommandProgress;
use crate::remote_sources::{self, source_storage};
use crate::tokenizer_encoder::TokenizerEncoder;

/// The folder of stores that are made of a run's text, within the run's folder or that of all runs.
const TOKENS: &str = "tokens";
/// Digits of a request's hash that name its store.
const NAME_DIGITS: usize = 16;
/// What a configuration says that this module sets.
const FLAG: &str = "--tokenizer";

/// A store that was made.
pub struct MadeStore {
    /// The content of the store.
    pub manifest: StoreManifest,
    /// Files of the sources that lie in the folder of the store itself, and were left out.
    pub files_left_out: usize,
}

/// Makes a store, with a progress bar, by a command with these of [`data_failure::PREPARE_FLAGS`]. A
/// request of `interrupt` ends it between two batches; what is finished then is kept, and the same request
/// goes on.
///
/// # Errors
/// If it cannot be made.
pub fn make_store(
    request: &PrepareRequest,
    encoder: &TokenizerEncoder,
    interrupt: &Interrupt,
    flags: &[&str],
) -> Result<MadeStore, CommandFailure> {
    try_make_store(request, encoder, interrupt).map_err(|error| {
        match matches!(error, PrepareError::Stopped) {
            true => interrupted(interrupt, &request.folder),
            false => data_failure::of_prepare(&error, flags),
        }
    })
}

/// The same, where the caller explains that it was stopped.
///
/// # Errors
/// If it cannot be made.
pub fn try_make_store(
    request: &PrepareRequest,
    encoder: &TokenizerEncoder,
    interrupt: &Interrupt,
) -> Result<MadeStore, PrepareError> {
    let mut progress = CommandProgress::new();
    let mut files_left_out = 0;
    let storage = source_storage(&progress, interrupt);
    let made = prepare(request, &storage, encoder, &mut |at| {
        progress.report(at.bytes_read.0, at.bytes_total.0, || progress_text(at));
        files_left_out = at.files_left_out;
        match interrupt.is_requested() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    });
    progress.finish();
    match made {
        Ok(manifest) => Ok(MadeStore { manifest, files_left_out }),
        Err(error) if remote_sources::is_stopped(&error) => Err(PrepareError::Stopped),
        Err(error) => Err(error),
    }
}

/// The sources of a configuration for training. If it names text and a tokenizer, a store is made of
/// the text in a folder below `parent` and stands in place of the text; one that was made before is
/// used again, and one that is not finished goes on. `listen` is called before servers are asked or a
/// store is made; a request of what it gives ends that between two batches.
///
/// # Errors
/// If it cannot be listened, the store cannot be made, or the model does not know its tokens. What is wrong with the
/// configuration itself is left to the caller to find.
pub fn with_text_store(
    mut sources: ConfigSources,
    parent: &Path,
    listen: impl FnOnce() -> Result<Interrupt, CommandFailure>,
) -> Result<ConfigSources, CommandFailure> {
    let Some((loaded, encoder)) = text_and_tokenizer(&sources)? else { return Ok(sources) };
    check_vocabulary(&loaded, &encoder)?;
    let tokenizer = loaded.config.tokens.tokenizer.clone();
    let mut request = PrepareRequest {
        entries: loaded.config.text,
        options: SourceOptions::default(),
        threads: NonZeroUsize::new(thread_count(None)).unwrap_or(NonZeroUsize::MIN),
        shard_tokens: SHARD_TOKENS,
        folder: parent.join(TOKENS),
    };
    let interrupt = listen()?;
    let storage = source_storage(&CommandProgress::new(), &interrupt);
    let name = request_name(&request, &storage, &encoder);
    let name = name.map_err(|error| match remote_sources::is_stopped(&error) {
        true => CommandFailure::new(interrupt.code(), "interrupted"),
        false => data_failure::of_prepare(&error, &[]),
    })?;
    request.folder.push(&name.to_hex()[..NAME_DIGITS]);
    if !request.folder.join(MANIFEST_NAME).exists() {
        make_store(&request, &encoder, &interrupt, &[])?;
    }
    let folder = ConfigValue::Text(request.folder.display().to_string());
    sources.flags.push(own(Key::Text, ConfigValue::List(Vec::new())));
    sources.flags.push(own(Key::Tokens, ConfigValue::List(vec![folder])));
    // The configuration names no text any more that the tokenizer of the model's folder would read.
    let named = tokenizer.map(|path| ConfigValue::Text(path.display().to_string()));
    sources.flags.extend(named.map(|named| own(Key::Tokenizer, named)));
    Ok(sources)
}

/// That a signal ended the making of a store, what is kept, and how to go on.
fn interrupted(interrupt: &Interrupt, folder: &Path) -> CommandFailure {
    let names = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.file_name());
    let shards = names.filter(|name| name.as_encoded_bytes().ends_with(b".shard")).count();
    let mut failure = CommandFailure::new(interrupt.code(), "interrupted");
    let kept = format!("keeps {}", counted(shards as u64, "finished shard"));
    let detail = FailureDetail::new(kept).at(folder.display().to_string());
    failure.details = vec![detail.hint("the same command goes on behind them")];
    failure
}

/// The sources of a configuration that is only looked at: if it names text and a tokenizer, the
/// model's vocabulary is the tokenizer's unless it is set.
///
/// # Errors
/// If the tokenizer cannot be read, or the model does not know its tokens.
pub fn with_vocabulary(mut sources: ConfigSources) -> Result<ConfigSources, CommandFailure> {
    let Some((loaded, encoder)) = text_and_tokenizer(&sources)? else { return Ok(sources) };
    check_vocabulary(&loaded, &encoder)?;
    if !is_vocabulary_set(&loaded) {
        let vocabulary = ConfigValue::Whole(encoder.vocabulary().into());
        sources.flags.push(own(Key::Vocab, vocabulary));
    }
    Ok(sources)
}

fn own(key: Key, value: ConfigValue) -> ConfigFlag {
    ConfigFlag::Own { flag: FLAG, key, value }
}

/// The configuration and its tokenizer, if it names text and a tokenizer.
fn text_and_tokenizer(
    sources: &ConfigSources,
) -> Result<Option<(LoadedConfig, TokenizerEncoder)>, CommandFailure> {
    let Ok(loaded) = load(sources) else { return Ok(None) };
    let tokens = &loaded.config.tokens;
    let Some(path) = tokens.tokenizer.as_ref().filter(|_| tokens.is_encoded_text()) else {
        return Ok(None);
    };
    let encoder = TokenizerEncoder::open(path);
    let encoder = encoder.map_err(|error| data_failure::of_folder(path, &error))?;
    Ok(Some((loaded, encoder)))
}

fn is_vocabulary_set(loaded: &LoadedConfig) -> bool {
    match loaded.config.weights {
        WeightSource::Drawn => loaded.settings.origin(Key::Vocab).is_explicit(),
        WeightSource::HuggingFace { .. } => true,
    }
}

/// Checked before a store is made, which may take hours.
fn check_vocabulary(
    loaded: &LoadedConfig,
    encoder: &TokenizerEncoder,
) -> Result<(), CommandFailure> {
    let needed = encoder.vocabulary();
    let vocabulary = loaded.config.model.vocabulary;
    if needed <= vocabulary || !is_vocabulary_set(loaded) {
        return Ok(());
    }
    let hint = match &loaded.config.weights {
        WeightSource::Drawn => format!("model.vocab = {needed} or more, or leave it out"),
        WeightSource::HuggingFace { .. } => {
            "the tokenizer that the model was trained with".to_owned()
        }
    };
    let what = format!("data.tokenizer: has {needed} tokens, the model knows {vocabulary}");
    let detail = FailureDetail::new(what)
        .at(loaded.settings.origin(Key::Tokenizer).to_string())
        .why("an id is a row of the model's embedding")
        .hint(hint);
    Err(CommandFailure::usage("the configuration", vec![detail]))
}

fn progress_text(at: &PrepareProgress) -> String {
    let PrepareProgress { bytes_read, bytes_total, documents, tokens, tokens_per_second, .. } = *at;
    let rate = grouped(tokens_per_second.round() as u64);
    let documents = grouped(documents);
    let tokens = grouped(tokens);
    format!("{bytes_read} of {bytes_total}, {documents} documents, {tokens} tokens, {rate} tok/s")
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbelastic_types::Bytes;

    #[test]
    fn progress_has_bytes_counts_and_the_rate() {
        let at = PrepareProgress {
            bytes_read: Bytes(3 << 20),
            bytes_total: Bytes(1 << 30),
            documents: 1234,
            tokens: 56_789,
            files_left_out: 0,
            tokens_per_second: 12_345.4,
        };
        let expected = "3.00 MiB of 1.00 GiB, 1,234 documents, 56,789 tokens, 12,345 tok/s";
        assert_eq!(progress_text(&at), expected);
    }
}
