//! `config check`, `config show`, `config schema`.

use std::fmt;
use std::io::Write;
use std::path::PathBuf;

use serde::Serialize;
use serde_json::{Map, json};
use zbelastic_config::{
    ConfigValue, Key, KeyDefault, LoadedConfig, PRESETS, SECTIONS, WeightSource, load,
};
use zbelastic_data::source::SourceListing;
use zbelastic_local::interrupt::Interrupt;
use zbelastic_trainer::model::model_size;
use zbelastic_types::Bytes;
use zbelastic_wording::figures::counted;
use zbelastic_wording::{CommandError, CommandFailure, FailureDetail};

use crate::args::{ConfigCommand, ConfigReadArgs};
use crate::corpus::{DataSummary, load_data};
use crate::data_failure;
use crate::progress::CommandProgress;
use crate::remote_sources::source_storage;
use crate::store_maker::with_vocabulary;

/// Runs a `config` command.
///
/// # Errors
/// If the configuration is wrong, or `out` cannot be written.
pub fn run(command: &ConfigCommand, out: &mut dyn Write) -> Result<(), CommandError> {
    match command {
        ConfigCommand::Check(args) => check(args, out),
        ConfigCommand::Show(args) => show(args, out),
        ConfigCommand::Schema { json: true } => schema_json(out),
        ConfigCommand::Schema { json: false } => schema(out),
    }
}

/// What a configuration that is checked names to train on.
enum CheckedData {
    /// As training will read it.
    Read(DataSummary),
    /// Files of text that are there; `train` encodes them.
    Listed { file_count: usize, size: Bytes, tokenizer: PathBuf },
}

impl CheckedData {
    fn word(&self) -> &'static str {
        match self {
            Self::Read(data) => data.word(),
            Self::Listed { .. } => "text",
        }
    }

    fn notes(&self) -> Vec<String> {
        match self {
            Self::Read(data) => data.notes(),
            Self::Listed { .. } => Vec::new(),
        }
    }
}

impl fmt::Display for CheckedData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read(data) => data.fmt(f),
            Self::Listed { file_count, size, tokenizer } => {
                let files = counted(*file_count as u64, "file");
                let tokenizer = tokenizer.display();
                write!(f, "{} bytes in {files}, which `train` encodes by {tokenizer}", size.0)
            }
        }
    }
}

fn checked_data(loaded: &LoadedConfig) -> Result<CheckedData, CommandFailure> {
    let config = &loaded.config;
    match &config.tokens.tokenizer {
        Some(tokenizer) if config.tokens.is_encoded_text() => {
            let storage = source_storage(&CommandProgress::new(), &Interrupt::default());
            let listing = SourceListing::of(&config.text, &storage);
            let listing = listing.map_err(|error| data_failure::of_list(&error))?;
            let file_count = listing.files.len();
            Ok(CheckedData::Listed {
                file_count,
                size: listing.bytes(),
                tokenizer: tokenizer.clone(),
            })
        }
        Some(_) | None => load_data(loaded).map(|data| CheckedData::Read(data.about)),
    }
}

fn check(args: &ConfigReadArgs, out: &mut dyn Write) -> Result<(), CommandError> {
    let checked = with_vocabulary(args.config.sources())
        .and_then(|sources| load(&sources))
        .and_then(|loaded| checked_data(&loaded).map(|data| (loaded, data)));
    if args.json {
        write_json(out, &check_report(&checked))?;
        return checked.map(drop).map_err(CommandError::from);
    }
    let (loaded, text) = checked?;
    write_summary(&loaded, &text, out)?;
    Ok(())
}

fn write_summary(
    loaded: &LoadedConfig,
    text: &CheckedData,
    out: &mut dyn Write,
) -> Result<(), CommandError> {
    let config = &loaded.config;
    let model = &config.model;
    let batch = &config.batch;
    let (_, parameters) = model_size(model);
    let sequences = batch.microbatch.sequences;
    let count = batch.microbatch_count;
    writeln!(out, "ok")?;
    writeln!(
        out,
        "model  {} layers, width {}, {parameters} parameters{}",
        model.blocks,
        model.width,
        match &config.weights {
            WeightSource::Drawn => String::new(),
            WeightSource::HuggingFace { folder } => format!(" from {}", folder.display()),
        }
    )?;
    writeln!(
        out,
        "batch  {} sequences of {} tokens = {count} microbatches of {sequences}",
        sequences * count as usize,
        batch.microbatch.sequence_len,
    )?;
    writeln!(out, "{:<7}{text}", text.word())?;
    text.notes().iter().try_for_each(|note| writeln!(out, "note: {note}"))?;
    for note in &loaded.notes {
        writeln!(out, "note: {note}")?;
    }
    Ok(())
}

fn check_report(
    checked: &Result<(LoadedConfig, CheckedData), CommandFailure>,
) -> serde_json::Value {
    match checked {
        Ok((loaded, text)) => {
            let notes: Vec<String> = loaded.notes.iter().map(ToString::to_string).collect();
            let found = match text {
                CheckedData::Read(DataSummary::Text(text)) => json!({
                    "bytes": text.size,
                    "files": text.file_count,
                    "skipped": text.skipped.len(),
                    "blake3": text.hash,
                }),
                CheckedData::Read(DataSummary::Stores(stores)) => stores.json(),
                CheckedData::Listed { file_count, size, tokenizer } => {
                    json!({ "bytes": size, "files": file_count, "tokenizer": tokenizer })
                }
            };
            json!({ "ok": true, "notes": notes, text.word(): found })
        }
        Err(failure) => {
            let error = |detail: &FailureDetail| {
                let FailureDetail { place, what, why, hint } = detail;
                json!({ "place": place, "what": what, "why": why, "try": hint })
            };
            let errors: Vec<_> = failure.details.iter().map(error).collect();
            json!({ "ok": false, "errors": errors })
        }
    }
}

fn show(args: &ConfigReadArgs, out: &mut dyn Write) -> Result<(), CommandError> {
    let loaded = load(&with_vocabulary(args.config.sources())?)?;
    if !args.json {
        write!(out, "{}", loaded.effective_with_origins())?;
        return Ok(());
    }
    let mut sections = Map::new();
    for (key, setting) in loaded.settings_in_force() {
        let section = sections.entry(key.section()).or_insert_with(|| json!({}));
        let entry = json!({
            "value": json_value(&setting.value),
            "origin": setting.origin.to_string(),
        });
        section[key.short_name()] = entry;
    }
    write_json(out, &sections.into())
}

fn json_value(value: &ConfigValue) -> serde_json::Value {
    match value {
        ConfigValue::Text(text) => json!(text),
        ConfigValue::Whole(number) => json!(number),
        ConfigValue::Number(number) => json!(number),
        ConfigValue::Flag(flag) => json!(flag),
        ConfigValue::List(items) => items.iter().map(json_value).collect(),
        ConfigValue::Other(name) => json!(name),
    }
}

fn schema(out: &mut dyn Write) -> Result<(), CommandError> {
    for (section, about) in SECTIONS {
        writeln!(out, "[{section}]  {about}")?;
        for key in Key::of_section(section) {
            let spec = key.spec();
            writeln!(out, "  {}: {}", key.short_name(), spec.kind)?;
            writeln!(out, "      {}", spec.doc)?;
            writeln!(out, "      Default: {}", fallback_text(spec.fallback))?;
        }
        writeln!(out)?;
    }
    writeln!(out, "Presets")?;
    for preset in &PRESETS {
        writeln!(out, "  {:<11} {}", preset.name, preset.doc)?;
    }
    Ok(())
}

fn fallback_text(fallback: KeyDefault) -> &'static str {
    match fallback {
        KeyDefault::Literal(literal) => literal,
        KeyDefault::Described(description) => description,
    }
}

#[derive(Serialize)]
struct SchemaRow {
    section: &'static str,
    key: &'static str,
    kind: String,
    default: &'static str,
    doc: &'static str,
}

fn schema_json(out: &mut dyn Write) -> Result<(), CommandError> {
    let row = |key: &Key| SchemaRow {
        section: key.section(),
        key: key.short_name(),
        kind: key.spec().kind.to_string(),
        default: fallback_text(key.spec().fallback),
        doc: key.spec().doc,
    };
    let rows: Vec<SchemaRow> = Key::ALL.iter().map(row).collect();
    write_json(out, &json!(rows))
}

fn write_json(out: &mut dyn Write, value: &serde_json::Value) -> Result<(), CommandError> {
    writeln!(out, "{value:#}")?;
    Ok(())
}
