//! The effective configuration as TOML: every value that a run was configured with, from any layer.
//! Reading it gives the same configuration back.

use zbelastic_trainer::model::{AttentionBias, ModelConfig, RopeScaling};
use zbelastic_trainer::optimizer::OptimizerKind;
use zbelastic_wording::duration_word;

use super::assignment::{Setting, SettingOrigin};
use super::key::{Key, KeyDefault, SECTIONS};
use super::kind::size_text;
use super::memory::names_of_ops;
use super::settings::ConfigSettings;
use super::tokens::BYTES_TOKENIZER;
use super::value::ConfigValue;
use super::words::{ConfigWord, OptimizerChoice, RopeScalingKind};
use super::{RunConfig, WeightSource};

/// Every key with its meaning above it.
pub fn write_documented(config: &RunConfig) -> String {
    let row = |key: Key, value: &ConfigValue| {
        format!("# {}\n{}{} = {value}\n", key.spec().doc, mark(config, key), key.short_name())
    };
    write(config, row)
}

/// Every key with the origin of its value behind it. A value that follows from other keys is
/// commented out, so that it goes on following when these are edited.
pub fn write_with_origins(config: &RunConfig, settings: &ConfigSettings) -> String {
    let row = |key: Key, value: &ConfigValue| {
        let origin = origin(config, settings, key);
        let mark = match key.spec().fallback {
            KeyDefault::Described(_) if origin == SettingOrigin::Default => "# ",
            KeyDefault::Described(_) | KeyDefault::Literal(_) => mark(config, key),
        };
        let text = format!("{mark}{} = {value}", key.short_name());
        format!("{text:<31}  # {origin}\n")
    };
    write(config, row)
}

/// Every key that holds, with its value and its origin.
pub fn settings_in_force(config: &RunConfig, settings: &ConfigSettings) -> Vec<(Key, Setting)> {
    let setting = |key: Key| {
        let value = value_of(config, key)?;
        Some((key, Setting { value, origin: origin(config, settings, key) }))
    };
    Key::ALL.iter().copied().filter_map(setting).collect()
}

fn origin(config: &RunConfig, settings: &ConfigSettings, key: Key) -> SettingOrigin {
    let source = if is_of_folder(config, key) { Key::FromHf } else { key };
    settings.origin(source)
}

fn write(config: &RunConfig, row: impl Fn(Key, &ConfigValue) -> String) -> String {
    let mut text = String::from("# The effective configuration of a run.\n");
    for (section, about) in SECTIONS {
        let rows = Key::of_section(section).filter_map(|key| Some((key, value_of(config, key)?)));
        let rows: Vec<_> = rows.collect();
        // A section that a run has nothing of is one that earlier programs may not know.
        if !rows.is_empty() {
            text.push_str(&format!("\n[{section}]  # {about}\n"));
        }
        text.extend(rows.iter().map(|(key, value)| row(*key, value)));
    }
    text
}

/// Keys that a model folder determines are commented out, because the configuration may not set
/// them too.
fn mark(config: &RunConfig, key: Key) -> &'static str {
    if is_of_folder(config, key) { "# " } else { "" }
}

/// The text of [`write_documented`], with those keys in force.
pub fn with_folder_keys(document: &str) -> String {
    // The key that names a folder, by the section that the folder determines.
    let folders =
        [("model", Key::FromHf), ("lora", Key::LoraFrom)].into_iter().filter(|(_, key)| {
            let (_, name) = key.name().split_once('.').expect("a key of a section");
            document.lines().any(|line| line.starts_with(&format!("{name} = ")))
        });
    let folders: Vec<(&str, Key)> = folders.collect();
    let mut of_section: Option<(&str, Key)> = None;
    let names_key = |(section, folder): (&str, Key), text: &str| {
        let name = text.split_once(" = ").map(|(name, _)| name);
        name.is_some_and(|name| Key::find(section, name).is_some_and(|key| key != folder))
    };
    let mut text = String::with_capacity(document.len() + 1);
    for line in document.lines() {
        if let Some(section) = line.strip_prefix('[') {
            let section = section.split(']').next().unwrap_or_default();
            of_section = folders.iter().copied().find(|(name, _)| *name == section);
        }
        let behind_mark = line.strip_prefix("# ");
        let key = behind_mark.filter(|text| of_section.is_some_and(|of| names_key(of, text)));
        text.push_str(key.unwrap_or(line));
        text.push('\n');
    }
    text
}

fn is_of_folder(config: &RunConfig, key: Key) -> bool {
    let of_model = match config.weights {
        WeightSource::Drawn => false,
        WeightSource::HuggingFace { .. } => key.section() == "model" && key != Key::FromHf,
    };
    let of_adapters = config.adapters.is_some() && key.section() == "lora" && key != Key::LoraFrom;
    of_model || of_adapters
}

/// The effective value of a key, or `None` if there is none: a preset shows in the keys it sets.
fn value_of(config: &RunConfig, key: Key) -> Option<ConfigValue> {
    let RunConfig { model, optimizer, guard, batch, checkpoint, elastic, .. } = config;
    let size = |size: u32| whole(size.into());
    let outer = config.sync.as_ref().map(|sync| &sync.outer);
    let value = match key {
        Key::Preset => return None,
        Key::FromHf => match &config.weights {
            WeightSource::Drawn => return None,
            WeightSource::HuggingFace { folder } => text(&folder.display().to_string()),
        },
        Key::Family => word(model.family),
        Key::Layers => size(model.blocks),
        Key::Width => size(model.width),
        Key::Heads => size(model.heads),
        Key::KvHeads => size(model.kv_heads),
        Key::HeadDim => size(model.head_width),
        Key::MlpWidth => size(model.mlp_width),
        Key::Vocab => size(model.vocabulary),
        Key::NormEps => ConfigValue::Number(shortest(model.norm_epsilon)),
        Key::RopeTheta => ConfigValue::Number(model.rope_theta),
        // Features that few models have are named where a model has them, so that earlier programs
        // read the configuration of any other.
        Key::AttentionBias => match model.features.attention_bias {
            AttentionBias::None => return None,
            bias @ (AttentionBias::Qkv | AttentionBias::All) => word(bias),
        },
        Key::MlpBias => return model.features.mlp_bias.then_some(ConfigValue::Flag(true)),
        Key::QkNorm => return model.features.qk_norm.then_some(ConfigValue::Flag(true)),
        Key::RopeScaling => word(RopeNumbers::of(model)?.kind),
        Key::RopeFactor => ConfigValue::Number(RopeNumbers::of(model)?.factor),
        Key::RopeBands => {
            let bands = RopeNumbers::of(model)?.bands?;
            ConfigValue::List(bands.map(ConfigValue::Number).to_vec())
        }
        Key::RopeOriginal => size(RopeNumbers::of(model)?.original?),
        Key::SlidingWindow => size(model.sliding_window?),
        Key::Positions if model.positions as usize == batch.microbatch.sequence_len => return None,
        Key::Positions => size(model.positions),
        Key::Tied => ConfigValue::Flag(model.tied),
        Key::Text => ConfigValue::List(config.text.iter().map(|entry| text(entry)).collect()),
        // Of a run without tokens these keys say nothing: its configuration is as it always was.
        Key::Tokens if config.tokens.stores.is_empty() => return None,
        Key::Tokens => {
            let stores = config.tokens.stores.iter();
            ConfigValue::List(stores.map(|share| text(&share.entry())).collect())
        }
        Key::Packing if config.tokens.is_default() => return None,
        Key::Packing => word(config.tokens.packing),
        Key::Tokenizer => match &config.tokens.tokenizer {
            // Text is read by the tokenizer of the model's folder unless bytes are named.
            None if config.tokens.stores.is_empty() && !config.text.is_empty() => {
                match config.weights {
                    WeightSource::Drawn => return None,
                    WeightSource::HuggingFace { .. } => text(BYTES_TOKENIZER),
                }
            }
            None => return None,
            Some(tokenizer) => text(&tokenizer.display().to_string()),
        },
        Key::HeldOut => ConfigValue::Number(config.held_out_share),
        Key::Steps => whole(config.steps),
        Key::GlobalBatch => {
            whole(batch.microbatch.sequences as u64 * u64::from(batch.microbatch_count))
        }
        Key::Microbatch => whole(batch.microbatch.sequences as u64),
        // As features of a model: a run of one lane is written as it always was.
        Key::Lanes if batch.lanes.is_one() => return None,
        Key::Lanes => size(batch.lanes.get()),
        Key::SeqLen => whole(batch.microbatch.sequence_len as u64),
        Key::Seed => whole(config.seed),
        Key::EvalEvery => whole(config.evaluate_every),
        // As of features.
        Key::ZLoss if config.z_loss == 0.0 => return None,
        Key::ZLoss => ConfigValue::Number(config.z_loss),
        // As features of a model: a run that freezes nothing is written as it always was.
        Key::Freeze if config.freeze.is_empty() => return None,
        Key::Freeze => ConfigValue::List(config.freeze.iter().map(|entry| text(entry)).collect()),
        // As features of a model: a run without adapters is written as it always was.
        Key::LoraRank => size(config.lora.as_ref()?.rank),
        Key::LoraFrom => text(&config.adapters.as_ref()?.display().to_string()),
        // Of adapters with the usual factor an earlier program reads the configuration.
        Key::LoraScaling => {
            let scaling = config.lora.as_ref()?.scaling;
            return (!scaling.is_standard()).then(|| word(scaling));
        }
        Key::LoraAlpha => ConfigValue::Number(config.lora.as_ref()?.alpha),
        Key::LoraTargets => {
            let targets = config.lora.as_ref()?.targets.iter();
            ConfigValue::List(targets.map(|target| text(target)).collect())
        }
        Key::LoraInit => word(config.lora.as_ref()?.init),
        Key::Device => word(config.arithmetic.device),
        Key::Precision => word(config.arithmetic.precision),
        Key::Optimizer => word(match optimizer.kind {
            OptimizerKind::AdamW => OptimizerChoice::AdamW,
            OptimizerKind::Muon { .. } => OptimizerChoice::Muon,
        }),
        Key::MuonMomentum => match optimizer.kind {
            OptimizerKind::AdamW => return None,
            OptimizerKind::Muon { momentum } => ConfigValue::Number(momentum),
        },
        Key::Lr => ConfigValue::Number(optimizer.lr),
        Key::LrMin => ConfigValue::Number(optimizer.lr_min),
        Key::Betas => ConfigValue::List(optimizer.betas.map(ConfigValue::Number).to_vec()),
        Key::Eps => ConfigValue::Number(optimizer.epsilon),
        Key::WeightDecay => ConfigValue::Number(optimizer.weight_decay),
        Key::DecayOn => word(optimizer.decay_on),
        // As of features.
        Key::DecayGroups if config.decay_groups.is_empty() => return None,
        Key::DecayGroups => {
            ConfigValue::List(config.decay_groups.iter().map(|entry| text(entry)).collect())
        }
        Key::Clip => ConfigValue::Number(guard.clip_norm.unwrap_or(0.0)),
        Key::Warmup => whole(optimizer.warmup),
        Key::Decay => word(optimizer.decay),
        Key::DecaySteps => whole(optimizer.decay_steps),
        Key::Schedule => word(config.schedule),
        Key::Chunks => size(config.chunks_per_stage.unwrap_or(0)),
        // As lanes.
        Key::Replicas => size(config.replicas?.get()),
        Key::Slices => size(config.slice_count.unwrap_or(0)),
        Key::SliceCut => word(config.batch.cut_by),
        Key::MaxMem => text(&config.stage_bytes_max.map_or_else(String::new, size_text)),
        Key::Window => word(config.window),
        Key::PipeMareSteps => whole(config.asynchronous.pipemare_steps),
        Key::PipeMareWarmup => whole(config.asynchronous.pipemare_warmup),
        Key::PipeDreamSync => word(config.asynchronous.pipedream_sync),
        Key::AvgPipePipelines => size(config.asynchronous.avgpipe_pipelines),
        Key::AvgPipeAlpha => ConfigValue::Number(config.asynchronous.avgpipe_alpha),
        Key::AmpNetCap => size(config.asynchronous.ampnet_cap),
        Key::AmpNetUpdateEvery => size(config.asynchronous.ampnet_update_every),
        Key::AmpNetOrder => match &config.asynchronous.ampnet_order {
            None => return None,
            Some(file) => text(&file.display().to_string()),
        },
        Key::SyncEvery => whole(outer?.every),
        Key::SyncFolders => {
            let folders = config.sync.as_ref()?.folders.iter();
            ConfigValue::List(folders.map(|folder| text(folder)).collect())
        }
        Key::SyncIsland => size(outer?.island),
        Key::SyncFragments => size(outer?.fragments),
        Key::SyncOverlap => whole(outer?.overlap),
        Key::SyncLocalShare => ConfigValue::Number(shortest(outer?.local_share)),
        Key::SyncLr => ConfigValue::Number(shortest(outer?.lr)),
        Key::SyncMomentum => ConfigValue::Number(shortest(outer?.momentum)),
        Key::Recompute => word(config.memory.recompute),
        Key::RecomputeOps => {
            ConfigValue::List(names_of_ops(config.memory.recompute_ops).map(text).collect())
        }
        Key::RecomputePasses => word(config.memory.recompute_passes),
        Key::Offload => word(config.memory.offload),
        Key::OffloadStore => word(config.memory.offload_store),
        Key::ShardOptimizer => ConfigValue::Flag(config.memory.shard_optimizer),
        Key::Nonfinite => word(guard.nonfinite),
        Key::GnormZ => ConfigValue::Number(guard.spike_deviations.unwrap_or(0.0)),
        Key::Retries => size(guard.replays_max),
        Key::CheckpointEvery => whole(checkpoint.every),
        Key::CheckpointTime => text(&duration_word(checkpoint.every_time)),
        Key::KeepLast => size(checkpoint.keep_last),
        Key::CheckpointDir => match &checkpoint.folder {
            None => return None,
            Some(folder) => text(&folder.display().to_string()),
        },
        Key::CheckpointCopies => size(checkpoint.copies),
        Key::CheckpointMirror => match &checkpoint.mirror {
            None => return None,
            Some(place) => text(place),
        },
        Key::MinNodes => size(elastic.min_nodes),
        Key::Settle => text(&duration_word(elastic.settle)),
        Key::OnNotice => word(elastic.on_notice),
        Key::DetectTimeout => text(&duration_word(elastic.detect_timeout)),
        Key::UpdateCopies => size(elastic.copies),
        Key::Replan => word(elastic.replan),
    };
    Some(value)
}

/// A scaling of rotary frequencies as keys describe it.
struct RopeNumbers {
    kind: RopeScalingKind,
    factor: f64,
    bands: Option<[f64; 2]>,
    original: Option<u32>,
}

impl RopeNumbers {
    fn of(model: &ModelConfig) -> Option<Self> {
        let (kind, factor, bands, original) = match model.features.rope_scaling? {
            RopeScaling::Linear { factor } => (RopeScalingKind::Linear, factor, None, None),
            RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_positions,
            } => {
                let bands = [low_freq_factor, high_freq_factor];
                (RopeScalingKind::Llama3, factor, Some(bands), Some(original_positions))
            }
        };
        Some(Self { kind, factor, bands, original })
    }
}

/// The double with the fewest digits that rounds to `single`.
fn shortest(single: f32) -> f64 {
    single.to_string().parse().expect("a number reads back")
}

fn text(text: &str) -> ConfigValue {
    ConfigValue::Text(text.to_owned())
}

fn whole(number: u64) -> ConfigValue {
    ConfigValue::Whole(number.into())
}

fn word<T: ConfigWord>(choice: T) -> ConfigValue {
    text(choice.word())
}
