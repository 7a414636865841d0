//! `export`: the model of a run as a folder that transformers loads, with its tokenizer and a card.

mod card;
pub mod checkpoint;
mod folder;
mod kept;
mod kept_checkpoints;
mod read_ahead;
mod tokenizer_source;

use std::io::{self, Write};
use std::path::Path;

use serde_json::{Value, json};
use zbelastic_api::CheckpointDetail;
use zbelastic_config::{WeightSource, load_recorded};
use zbelastic_consensus::run::is_run_name;
use zbelastic_kernels::HostThreads;
use zbelastic_tokenizer::TokenizerFiles;
use zbelastic_trainer::hf::{
    ADAPTER_CONFIG, LayerWindow, MODEL_CONFIG, SpecialTokenIds, WEIGHTS_INDEX, WeightsFiles,
    WriteWeightsError, adapter_config_json, exported_config_json, generation_config_json,
    layer_order,
};
use zbelastic_trainer::model::{ModelConfig, merge_layer, model_layers, model_size};
use zbelastic_types::{Bytes, LayerId};
use zbelastic_wording::figures::grouped;
use zbelastic_wording::{CommandError, CommandFailure, FailureCode, FailureDetail, cannot_write};

use self::card::{ExportForm, ModelCard, RunRecord, TrainedData, WrittenFile};
use self::checkpoint::LayerRequest;
use self::folder::{CARD, GENERATION_CONFIG, PartialFolder, check_empty};
use self::kept::KeptModel;
use self::tokenizer_source::{ExportedTokenizer, TokenizerSource};
use super::reach::{connect, write_json};
use crate::args::ExportArgs;
use crate::commands::saved_model::{LeftRun, RunTokens, SavedAdapters, SavedModel};
use crate::data_failure::of_folder;
use crate::progress::CommandProgress;
use crate::run_files::RUNS;
use crate::run_tokenizer::kept_tokenizer;
use crate::weights::{read_stored_layer, reading_threads};

/// What configurations, headers and the card take at most beside weights and tokenizer.
const SMALL_FILES: u64 = 1 << 22;

/// A model that is to be exported, without its weights.
struct ExportedModel {
    config: ModelConfig,
    tokenizer: ExportedTokenizer,
    special_ids: SpecialTokenIds,
    run: Option<RunRecord>,
    weights: WeightsSource,
}

/// Where the weights are read.
enum WeightsSource {
    Folder(SavedModel),
    /// The floats of adapters that lie beside a model of a folder.
    Adapters(Vec<Vec<f32>>),
    Kept(KeptModel),
    Checkpoint(CheckpointDetail),
}

/// Runs `export`.
///
/// # Errors
/// If there is no such run or model, if what is read is damaged, if a weight is too large for the
/// type, or if the folder is taken or cannot be written.
pub fn run(args: &ExportArgs, out: &mut dyn Write) -> Result<(), CommandError> {
    check_empty(&args.to)?;
    let exported = find(args)?;
    let kind = args.dtype.weight_type();
    let files = match exported.is_adapter(args) {
        true => WeightsFiles::of_adapters(&exported.config, kind),
        false => WeightsFiles::new(&exported.config.without_lora(), kind, args.shard),
    };
    let tokenizer_bytes = exported.tokenizer.bytes();
    let needed = Bytes(files.weight_bytes() + tokenizer_bytes + SMALL_FILES);
    let partial = PartialFolder::begin(&args.to, needed)?;
    let written = write(args, &exported, &files, &partial);
    let written = written.inspect_err(|_| partial.remove())?;
    partial.finish()?;
    report(args, &exported, &written, out)
}

/// The model that was named: that of a folder, or else of the cluster's run of that name.
fn find(args: &ExportArgs) -> Result<ExportedModel, CommandFailure> {
    let path = Path::new(&args.run);
    let may_be_of_cluster = args.client.cluster.is_some() || !path.is_dir();
    if may_be_of_cluster && is_run_name(&args.run) {
        return of_cluster(args);
    }
    match SavedModel::open(path, args.step) {
        Ok(saved) => of_folder_model(saved, args),
        Err(failure) => match (failure.code, LeftRun::of_processes(path)) {
            // The run left no such model, and its processes may keep a checkpoint of it.
            (FailureCode::NotFound | FailureCode::WrongState, Some(run)) => {
                of_kept(KeptModel::find(&run, args.step)?, &run, args)
            }
            (_, Some(_) | None) => Err(failure),
        },
    }
}

/// A checkpoint that the processes of a run folder keep.
fn of_kept(
    kept: KeptModel,
    run: &LeftRun,
    args: &ExportArgs,
) -> Result<ExportedModel, CommandFailure> {
    let source = TokenizerSource {
        named: args.tokenizer.as_deref(),
        beside: run.tokenizer_folder(),
        of_run: Some(run.tokens()),
        of_model: SpecialTokenIds::default(),
    };
    let (tokenizer, special_ids) = source.read(&kept.config)?;
    Ok(ExportedModel {
        config: kept.config.clone(),
        tokenizer,
        special_ids,
        run: Some(kept.run.clone()),
        weights: WeightsSource::Kept(kept),
    })
}

fn of_cluster(args: &ExportArgs) -> Result<ExportedModel, CommandFailure> {
    let client = connect(&args.client).map_err(|mut failure| {
        let what = format!("there is no folder {}, so it is a run of the cluster", args.run);
        failure.details.push(FailureDetail::new(what));
        failure
    })?;
    let mut client = client.with_run(Some(args.run.clone()));
    let (detail, config) = checkpoint::describe(args.step, &mut client)?;
    let run = RunRecord {
        name: args.run.clone(),
        steps: Some(detail.summary.step),
        state_digest: Some(detail.summary.digest.to_string()),
        layer_digests: detail.layers.iter().map(|layer| layer.digest.to_string()).collect(),
        data: Some(TrainedData::Unknown(detail.corpus.to_string())),
        document: detail.document.clone(),
    };
    let source = TokenizerSource {
        named: args.tokenizer.as_deref(),
        beside: detail.tokenizer.and_then(|hash| kept_tokenizer(Path::new(RUNS), hash)),
        of_run: detail.tokenizer.map(|hash| RunTokens::of_hash(Some(hash.to_string()))),
        of_model: SpecialTokenIds {
            eos: detail.end_of_text.map_or(Value::Null, Value::from),
            ..SpecialTokenIds::default()
        },
    };
    let (tokenizer, special_ids) = source.read(&config)?;
    Ok(ExportedModel {
        config,
        tokenizer,
        special_ids,
        run: Some(run),
        weights: WeightsSource::Checkpoint(detail),
    })
}

fn of_folder_model(saved: SavedModel, args: &ExportArgs) -> Result<ExportedModel, CommandFailure> {
    let source = TokenizerSource {
        named: args.tokenizer.as_deref(),
        beside: saved.tokenizer_folder(),
        of_run: saved.run.as_ref().map(LeftRun::tokens),
        of_model: saved.special_ids.clone(),
    };
    let (tokenizer, special_ids) = source.read(&saved.config)?;
    let run = saved.run.as_ref().map(run_record);
    // What lies in the folder is merged already.
    let adapters = if args.merge { None } else { saved.adapters()? };
    let (config, weights) = match adapters {
        Some(SavedAdapters { model, layers }) => (model, WeightsSource::Adapters(layers)),
        None => (saved.config.clone(), WeightsSource::Folder(saved)),
    };
    Ok(ExportedModel { config, tokenizer, special_ids, run, weights })
}

/// What a run folder recorded of its run.
fn run_record(run: &LeftRun) -> RunRecord {
    let LeftRun { folder, record, document } = run;
    let word = |value: &Value| value.as_str().map(str::to_owned);
    RunRecord {
        name: name_of(folder),
        steps: record["steps"].as_u64(),
        state_digest: word(&record["digest"]),
        layer_digests: record["layer_digests"]
            .as_array()
            .map_or_else(Vec::new, |digests| digests.iter().filter_map(word).collect()),
        data: trained_data(record),
        document: document.clone(),
    }
}

/// The hash of the text or of the stores, as `run.json` has it.
fn trained_data(record: &Value) -> Option<TrainedData> {
    let hash = |data: &str| record[data]["blake3"].as_str().map(str::to_owned);
    hash("text").map(TrainedData::Text).or_else(|| hash("tokens").map(TrainedData::Stores))
}

/// The name of a run by its folder.
fn name_of(folder: &Path) -> String {
    let name = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    let name = name.file_name().map(|name| name.to_string_lossy().into_owned());
    name.unwrap_or_else(|| "model".to_owned())
}

/// Writes all files of the model, and describes those of its weights.
fn write(
    args: &ExportArgs,
    exported: &ExportedModel,
    files: &WeightsFiles,
    partial: &PartialFolder,
) -> Result<Vec<WrittenFile>, CommandFailure> {
    let to = (files, partial);
    let written = match &exported.weights {
        WeightsSource::Folder(saved) => {
            let stored = saved.stored_weights()?;
            let specs = model_layers(&saved.config);
            let host = reading_threads();
            let from = (&stored, &*saved.folder);
            let mut read = |layer: LayerId| read_stored_layer(from, &specs[layer.index()], &host);
            write_layers(args, exported, &mut read, to)?
        }
        WeightsSource::Adapters(layers) => {
            write_layers(args, exported, &mut |layer| Ok(&layers[layer.0 as usize]), to)?
        }
        WeightsSource::Kept(kept) => {
            write_layers(args, exported, &mut |layer| kept.weights(layer), to)?
        }
        WeightsSource::Checkpoint(detail) => {
            let connect = || Ok(connect(&args.client)?.with_run(Some(args.run.clone())));
            let order = layer_order(files.files());
            let write = |layers: &mut LayerRequest<'_>| write_layers(args, exported, layers, to);
            checkpoint::with_weights(detail, &exported.config, &order, connect, write)?
        }
    };
    write_descriptions(args, exported, files, &written, partial)?;
    Ok(written)
}

/// Writes all that lies beside the weights.
fn write_descriptions(
    args: &ExportArgs,
    exported: &ExportedModel,
    files: &WeightsFiles,
    written: &[WrittenFile],
    partial: &PartialFolder,
) -> Result<(), CommandFailure> {
    let kind = args.dtype.weight_type();
    let ids = &exported.special_ids;
    if let Some(index) = files.index_json() {
        partial.write_text(WEIGHTS_INDEX, &index)?;
    }
    // A tokenizer's own says more: how to draw, and every id that ends a text.
    let has_generation = |files: &TokenizerFiles| files.generation_config.is_some();
    let base = exported.base();
    let adapter_config = adapter_config_json(&exported.config, base.as_deref());
    let adapter_config = adapter_config.filter(|_| exported.is_adapter(args));
    if let Some(config) = &adapter_config {
        partial.write_text(ADAPTER_CONFIG, config)?;
    } else {
        partial.write_text(MODEL_CONFIG, &exported_config_json(&exported.config, kind, ids))?;
    }
    if adapter_config.is_none() && !exported.tokenizer.files().is_some_and(has_generation) {
        partial.write_text(GENERATION_CONFIG, &generation_config_json(ids))?;
    }
    if let Some(tokenizer) = exported.tokenizer.files() {
        tokenizer.write(partial.path()).map_err(|error| of_folder(partial.path(), &error))?;
    }
    let card = ModelCard {
        model: &exported.config,
        kind,
        tokenizer: &exported.tokenizer,
        run: exported.run.as_ref(),
        files: written,
        form: match &adapter_config {
            Some(_) => ExportForm::Adapters { base: base.as_deref() },
            None => ExportForm::Whole,
        },
    };
    partial.write_text(CARD, &card::render(&card))
}

impl ExportedModel {
    /// Whether adapters are exported, and not a whole model.
    fn is_adapter(&self, args: &ExportArgs) -> bool {
        self.config.lora.is_some() && !args.merge
    }

    /// The folder of the model that adapters are of, as its run named it.
    fn base(&self) -> Option<String> {
        let document = &self.run.as_ref()?.document;
        match load_recorded("the run's configuration", document).ok()?.config.weights {
            WeightSource::Drawn => None,
            WeightSource::HuggingFace { folder } => Some(folder.display().to_string()),
        }
    }
}

/// Writes the weights of these layers, with their adapters merged if they have any and these are not
/// what is exported.
fn write_layers<L: AsRef<[f32]>>(
    args: &ExportArgs,
    exported: &ExportedModel,
    layers: &mut dyn FnMut(LayerId) -> Result<L, CommandFailure>,
    (files, partial): (&WeightsFiles, &PartialFolder),
) -> Result<Vec<WrittenFile>, CommandFailure> {
    let model = &exported.config;
    if model.lora.is_none() || exported.is_adapter(args) {
        return write_weights(files, LayerWindow::new(files.files(), layers), partial);
    }
    let specs = model_layers(model);
    let mut merged = |layer: LayerId| {
        let spec = &specs[layer.0 as usize];
        Ok(merge_layer(&HostThreads::one(), model, spec, layers(layer)?.as_ref()))
    };
    write_weights(files, LayerWindow::new(files.files(), &mut merged), partial)
}

fn write_weights<L: AsRef<[f32]>>(
    files: &WeightsFiles,
    mut layers: LayerWindow<'_, L, CommandFailure>,
    partial: &PartialFolder,
) -> Result<Vec<WrittenFile>, CommandFailure> {
    let mut progress = CommandProgress::new();
    let total = files.weight_bytes();
    let mut done = 0;
    let mut written = Vec::with_capacity(files.files().len());
    for file in files.files() {
        let mut report = |bytes: u64| {
            done += bytes;
            progress.report(done, total, || format!("writing {} of {}", Bytes(done), Bytes(total)));
        };
        let name = file.name().to_owned();
        let mut hash = blake3::Hasher::new();
        let mut length = 0;
        let write = |to: &mut dyn Write| {
            let mut to =
                HashedFile { to, hash: &mut hash, length: &mut length, report: &mut report };
            file.write_from(&mut layers, &mut to)
        };
        partial.write(&name, write, WriteWeightsError::File).map_err(|error| match error {
            WriteWeightsError::File(error) => cannot_write(&partial.file(&name), &error),
            WriteWeightsError::Overflow { .. } => too_large(&error),
            WriteWeightsError::Layer(failure) => failure,
        })?;
        let hash = hash.finalize().to_hex().to_string();
        written.push(WrittenFile { name, bytes: length, hash });
    }
    progress.finish();
    Ok(written)
}

/// A file whose bytes are hashed and counted as they are written.
struct HashedFile<'a> {
    to: &'a mut dyn Write,
    hash: &'a mut blake3::Hasher,
    length: &'a mut u64,
    report: &'a mut dyn FnMut(u64),
}

impl Write for HashedFile<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.to.write(bytes)?;
        self.hash.update(&bytes[..count]);
        *self.length += count as u64;
        (self.report)(count as u64);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

fn too_large(error: &WriteWeightsError<CommandFailure>) -> CommandFailure {
    let detail = FailureDetail::new(error.to_string()).at("--dtype");
    let detail = detail.hint("--dtype bf16, which has the range of f32, or --dtype f32");
    let what = "the weights do not fit the type".to_owned();
    CommandFailure { code: FailureCode::Usage, what, details: vec![detail] }
}

fn report(
    args: &ExportArgs,
    exported: &ExportedModel,
    written: &[WrittenFile],
    out: &mut dyn Write,
) -> Result<(), CommandError> {
    let is_adapter = exported.is_adapter(args);
    let parameters = match is_adapter {
        true => card::adapter_parameters(&exported.config),
        false => model_size(&exported.config.without_lora()).1,
    };
    let bytes: u64 = written.iter().map(|file| file.bytes).sum();
    let folder = args.to.display();
    let kind = args.dtype.weight_type().torch_name();
    let step = exported.run.as_ref().and_then(|run| run.steps);
    if args.json {
        let files: Vec<Value> = written
            .iter()
            .map(|file| json!({ "name": file.name, "bytes": file.bytes, "blake3": file.hash }))
            .collect();
        let digest = exported.run.as_ref().and_then(|run| run.state_digest.clone());
        return write_json(
            out,
            &json!({
                "folder": folder.to_string(), "parameters": parameters, "dtype": kind,
                "step": step, "digest": digest, "tokenizer": exported.tokenizer.files().is_some(),
                "files": files, "adapter": is_adapter,
            }),
        );
    }
    let of = step.map_or(String::new(), |step| format!("checkpoint {step}: "));
    let count = match written.len() {
        1 => "1 file".to_owned(),
        count => format!("{count} files"),
    };
    let parameters = grouped(parameters);
    writeln!(
        out,
        "✔ {of}{parameters} parameters, {} of {kind} in {count}: {folder}",
        Bytes(bytes)
    )?;
    if is_adapter {
        writeln!(out, "note: these are adapters for peft; --merge exports the whole model")?;
        return Ok(());
    }
    match exported.tokenizer {
        ExportedTokenizer::Files(_) => {}
        ExportedTokenizer::Bytes => {
            writeln!(out, "note: there is no tokenizer with it: each byte of a text is a token")?;
        }
        ExportedTokenizer::Unknown => {
            let tokens = exported.config.vocabulary;
            let with = "--tokenizer DIR exports the one that it was trained with";
            writeln!(out, "note: there is no tokenizer for its {tokens} tokens: {with}")?;
            return Ok(());
        }
    }
    writeln!(out, "next: zbelastic generate {folder} --prompt TEXT")?;
    Ok(())
}
