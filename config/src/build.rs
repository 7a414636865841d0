//! From settings to a validated run: the conversion, and the checks between keys.

mod stores;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use zbelastic_consensus::validation::GuardPolicy;
use zbelastic_kernels::cuda::limits::{self, LimitError};
use zbelastic_trainer::model::{LoraSettings, MicrobatchShape, ModelConfig};
use zbelastic_trainer::optimizer::{DecayRates, OptimizerConfig, OptimizerKind};
use zbelastic_trainer::outer::OuterConfigError;
use zbelastic_trainer::plan::{
    AUTO_KINDS, BatchShape, LaneCount, LaneError, ReplicaCount, is_legal_cut,
};
use zbelastic_types::Bytes;

use super::BOUNDARY_BYTES_MAX;
use super::assignment::EffectiveSetting;
use super::decay_groups::decay_rates;
use super::freeze::freeze;
use super::key::Key;
use super::lora::{adapt, adapters_folder};
use super::memory::ops_of_names;
use super::problem::ConfigProblem;
use super::reader::SettingsReader;
use super::settings::{ConfigOrigin, ConfigSettings};
use super::words::OptimizerChoice;
use super::{
    ArithmeticConfig, AsyncConfig, CheckpointConfig, DeviceChoice, ElasticConfig, MemoryConfig,
    RunConfig, ScheduleChoice, SyncConfig, WeightSource,
};

pub(super) use stores::tokens_config;

/// The run that `settings` describe.
///
/// # Errors
/// With every problem between keys. Keys with a refused value are left out of that.
pub fn build(
    settings: &ConfigSettings,
    origin: ConfigOrigin,
) -> Result<RunConfig, Vec<ConfigProblem>> {
    let reader = SettingsReader { settings };
    let unsound = settings.refused().clone();
    let mut builder = ConfigBuilder { reader, origin, unsound, problems: Vec::new() };
    let mut model = builder.model();
    let mut lora = None;
    let mut rates = DecayRates::NONE;
    if let Some((model, _)) = &mut model {
        let at = builder.reader.settings.origin(Key::Freeze);
        let patterns = builder.reader.texts(Key::Freeze);
        builder.problems.extend(freeze(model, &patterns, &at));
        match adapt(model, &builder.reader, origin) {
            Ok(settings) => lora = settings,
            Err(problems) => builder.problems.extend(problems),
        }
        match decay_rates(model, &builder.reader) {
            Ok(found) => rates = found,
            Err(problems) => builder.problems.extend(problems),
        }
    }
    let batch = builder.batch();
    if let Some((model, _)) = &model {
        builder.check_boundary(model, &batch);
        builder.check_limits(model, &batch);
    }
    builder.check_chunks();
    builder.check_optimizer();
    builder.check_slices(&batch);
    builder.check_lanes(&batch);
    builder.check_sync();
    match model {
        Some((model, weights)) if builder.problems.is_empty() => {
            Ok(run_config(&reader, (model, lora), (weights, rates), batch))
        }
        Some(_) | None => Err(builder.problems),
    }
}

/// The replicas that are requested, if a number is.
fn replica_count(reader: &SettingsReader<'_>) -> Result<Option<ReplicaCount>, LaneError> {
    match reader.count(Key::Replicas) as u32 {
        0 => Ok(None),
        found => ReplicaCount::new(found).map(Some),
    }
}

fn run_config(
    reader: &SettingsReader<'_>,
    (model, lora): (ModelConfig, Option<LoraSettings>),
    (weights, rates): (WeightSource, DecayRates),
    batch: BatchShape,
) -> RunConfig {
    let max = reader.count(Key::MaxMem);
    let chunks = reader.size(Key::Chunks);
    let slices = reader.size(Key::Slices);
    RunConfig {
        model,
        weights,
        text: reader.texts(Key::Text),
        tokens: tokens_config(reader),
        held_out_share: reader.number(Key::HeldOut),
        steps: reader.count(Key::Steps),
        batch,
        seed: reader.count(Key::Seed),
        evaluate_every: reader.count(Key::EvalEvery),
        z_loss: reader.number(Key::ZLoss),
        arithmetic: ArithmeticConfig {
            device: reader.choice(Key::Device),
            precision: reader.choice(Key::Precision),
        },
        freeze: reader.texts(Key::Freeze),
        lora,
        adapters: adapters_folder(reader),
        decay_groups: reader.texts(Key::DecayGroups),
        optimizer: optimizer(reader, rates),
        guard: guard(reader),
        schedule: reader.choice(Key::Schedule),
        chunks_per_stage: (chunks > 0).then_some(chunks),
        replicas: replica_count(reader).unwrap_or_default(),
        slice_count: (slices > 0).then_some(slices),
        asynchronous: asynchronous(reader),
        stage_bytes_max: (max > 0).then_some(Bytes(max)),
        sync: SyncConfig::read(reader),
        window: reader.choice(Key::Window),
        memory: memory(reader),
        checkpoint: checkpoint(reader),
        elastic: elastic(reader),
    }
}

/// Slices of a sequence, or how many the schedule has when the key is 0.
fn slice_count(reader: &SettingsReader<'_>) -> u32 {
    match reader.size(Key::Slices) {
        0 => reader.choice::<ScheduleChoice>(Key::Schedule).slice_count(),
        slices => slices,
    }
}

/// A pass as kernels see it. Slices may have any lengths: the whole sequence is the longest there
/// can be.
fn pass_shape(model: &ModelConfig, batch: &BatchShape, slices: u32) -> limits::PassShape {
    limits::PassShape {
        sequences: batch.microbatch.sequences,
        sequence_len: batch.microbatch.sequence_len,
        slices: slices as usize,
        width: model.width as usize,
        heads: model.heads as usize,
        kv_heads: model.kv_heads as usize,
        head_width: model.head_width as usize,
        mlp_width: model.mlp_width as usize,
    }
}

fn memory(reader: &SettingsReader<'_>) -> MemoryConfig {
    MemoryConfig {
        recompute: reader.choice(Key::Recompute),
        recompute_ops: ops_of_names(&reader.texts(Key::RecomputeOps)),
        recompute_passes: reader.choice(Key::RecomputePasses),
        offload: reader.choice(Key::Offload),
        offload_store: reader.choice(Key::OffloadStore),
        shard_optimizer: reader.flag(Key::ShardOptimizer),
    }
}

fn asynchronous(reader: &SettingsReader<'_>) -> AsyncConfig {
    AsyncConfig {
        pipemare_steps: reader.count(Key::PipeMareSteps),
        pipemare_warmup: reader.count(Key::PipeMareWarmup),
        pipedream_sync: reader.choice(Key::PipeDreamSync),
        avgpipe_pipelines: reader.size(Key::AvgPipePipelines),
        avgpipe_alpha: reader.number(Key::AvgPipeAlpha),
        ampnet_cap: reader.size(Key::AmpNetCap),
        ampnet_update_every: reader.size(Key::AmpNetUpdateEvery),
        ampnet_order: reader.text(Key::AmpNetOrder).map(PathBuf::from),
    }
}

fn checkpoint(reader: &SettingsReader<'_>) -> CheckpointConfig {
    CheckpointConfig {
        every: reader.count(Key::CheckpointEvery),
        every_time: Duration::from_millis(reader.count(Key::CheckpointTime)),
        keep_last: reader.size(Key::KeepLast),
        folder: reader.text(Key::CheckpointDir).map(PathBuf::from),
        copies: reader.size(Key::CheckpointCopies),
        mirror: reader.text(Key::CheckpointMirror).map(str::to_owned),
    }
}

fn elastic(reader: &SettingsReader<'_>) -> ElasticConfig {
    let time = |key| Duration::from_millis(reader.count(key));
    ElasticConfig {
        min_nodes: reader.size(Key::MinNodes),
        settle: time(Key::Settle),
        on_notice: reader.choice(Key::OnNotice),
        detect_timeout: time(Key::DetectTimeout),
        copies: reader.size(Key::UpdateCopies),
        replan: reader.choice(Key::Replan),
    }
}

fn optimizer(reader: &SettingsReader<'_>, decay_rates: DecayRates) -> OptimizerConfig {
    let kind = match reader.choice(Key::Optimizer) {
        OptimizerChoice::AdamW => OptimizerKind::AdamW,
        OptimizerChoice::Muon => OptimizerKind::Muon { momentum: reader.number(Key::MuonMomentum) },
    };
    OptimizerConfig {
        kind,
        lr: reader.number(Key::Lr),
        lr_min: reader.number(Key::LrMin),
        warmup: reader.count(Key::Warmup),
        decay: reader.choice(Key::Decay),
        decay_steps: reader.count(Key::DecaySteps),
        betas: reader.pair(Key::Betas),
        epsilon: reader.number(Key::Eps),
        weight_decay: reader.number(Key::WeightDecay),
        decay_on: reader.choice(Key::DecayOn),
        decay_rates,
    }
}

fn guard(reader: &SettingsReader<'_>) -> GuardPolicy {
    let unless_zero = |number: f64| (number > 0.0).then_some(number);
    GuardPolicy {
        clip_norm: unless_zero(reader.number(Key::Clip)),
        nonfinite: reader.choice(Key::Nonfinite),
        replays_max: reader.size(Key::Retries),
        spike_deviations: unless_zero(reader.number(Key::GnormZ)),
    }
}

/// Collects problems on the way.
pub struct ConfigBuilder<'a> {
    /// Reader of the settings by their keys.
    pub reader: SettingsReader<'a>,
    /// Whether the run is yet to begin.
    pub origin: ConfigOrigin,
    /// Keys without a value that means anything.
    pub unsound: BTreeSet<Key>,
    /// Problems that were found so far.
    pub problems: Vec<ConfigProblem>,
}

impl ConfigBuilder<'_> {
    /// Reports a problem between `keys`, unless one of them is wrong by itself. It is named after
    /// the key that was set by the highest layer.
    pub fn report(
        &mut self,
        keys: &[Key],
        problem: impl FnOnce(Key, Vec<EffectiveSetting>) -> ConfigProblem,
    ) {
        if keys.iter().any(|key| self.unsound.contains(key)) {
            return;
        }
        let settings = self.reader.settings;
        let layer = |key: &Key| settings.origin(*key).layer();
        // `max_by_key` returns the last of equals, and the first named is the likeliest to be
        // wrong.
        let blamed = keys.iter().copied().rev().max_by_key(layer).expect("a problem is about keys");
        let origin = settings.origin(blamed);
        let others = keys.iter().copied().filter(|key| *key != blamed);
        let beside = others.filter_map(|key| {
            let setting = settings.get(key)?;
            let given = EffectiveSetting {
                key,
                value: setting.value.clone(),
                origin: setting.origin.clone(),
            };
            (setting.origin != origin).then_some(given)
        });
        let beside = beside.collect();
        self.problems.push(problem(blamed, beside));
    }

    /// A tensor between two stages is one frame, and a frame has a limit.
    fn check_boundary(&mut self, model: &ModelConfig, batch: &BatchShape) {
        let MicrobatchShape { sequences, sequence_len } = batch.microbatch;
        let tokens = sequences as u64 * sequence_len as u64;
        let width = model.width;
        let floats_max = BOUNDARY_BYTES_MAX / size_of::<f32>() as u64;
        // Within 64 bits: 2^16 sequences of 2^20 tokens of 2^20 floats.
        if tokens * u64::from(width) > floats_max {
            let settings = self.reader.settings;
            let keys = [Key::Microbatch, Key::SeqLen, Key::Width];
            self.report(&keys, |key, beside| ConfigProblem::Boundary {
                at: settings.origin(key),
                tokens,
                width,
                beside,
            });
        }
    }

    /// Sizes that kernels of a device cannot count or hold.
    fn check_limits(&mut self, model: &ModelConfig, batch: &BatchShape) {
        let reader = self.reader;
        if reader.choice::<DeviceChoice>(Key::Device) != DeviceChoice::Cuda {
            return;
        }
        let shape = pass_shape(model, batch, slice_count(&reader));
        let Err(error) = limits::check(&shape) else { return };
        let keys: &[Key] = match error {
            LimitError::HeadWidth { .. } => &[Key::HeadDim, Key::Heads, Key::Width, Key::Device],
            LimitError::Slices { .. } => &[Key::Slices, Key::Schedule, Key::Device],
            LimitError::SequenceHeads { .. }
            | LimitError::Tokens { .. }
            | LimitError::Threads { .. } => &[Key::Microbatch, Key::SeqLen, Key::Device],
        };
        let settings = reader.settings;
        self.report(keys, |key, beside| ConfigProblem::Limit {
            at: settings.origin(key),
            error,
            beside,
        });
    }

    /// A named schedule limits how many chunks there may be; with auto, the numbers that one
    /// schedule or another has are those from 1 on.
    fn check_chunks(&mut self) {
        let reader = self.reader;
        let chunks = reader.size(Key::Chunks);
        let ScheduleChoice::Kind(kind) = reader.choice(Key::Schedule) else { return };
        if chunks > 0 && !kind.chunk_counts().allow(chunks) {
            let settings = reader.settings;
            self.report(&[Key::Chunks, Key::Schedule], |key, beside| ConfigProblem::Chunks {
                at: settings.origin(key),
                kind,
                chunks,
                beside,
            });
        }
    }

    /// Muon has no definition where weights have several versions.
    fn check_optimizer(&mut self) {
        let reader = self.reader;
        if reader.choice::<OptimizerChoice>(Key::Optimizer) != OptimizerChoice::Muon {
            return;
        }
        let settings = reader.settings;
        if let ScheduleChoice::Asynchronous(kind) = reader.choice(Key::Schedule) {
            self.report(&[Key::Optimizer, Key::Schedule], |key, beside| {
                ConfigProblem::MuonSchedule { at: settings.origin(key), kind, beside }
            });
        }
    }

    /// Only a schedule that is named cuts sequences, and not into slices of any number.
    fn check_slices(&mut self, batch: &BatchShape) {
        let reader = self.reader;
        let schedule: ScheduleChoice = reader.choice(Key::Schedule);
        let slices = slice_count(&reader);
        let settings = reader.settings;
        let is_cut = matches!(schedule, ScheduleChoice::Kind(kind) if kind.is_sliced());
        let by = batch.cut_by;
        let sequence_len = batch.microbatch.sequence_len;
        let can_be = is_legal_cut(by, sequence_len, slices);
        if slices > 1 && !is_cut {
            self.report(&[Key::Slices, Key::Schedule], |key, beside| ConfigProblem::Slices {
                at: settings.origin(key),
                slices,
                beside,
            });
        } else if !can_be {
            let keys = [Key::Slices, Key::SeqLen, Key::Schedule, Key::SliceCut];
            self.report(&keys, |key, beside| ConfigProblem::SliceLength {
                at: settings.origin(key),
                by,
                slices,
                sequence_len: sequence_len as u64,
                beside,
            });
        }
    }

    /// The lanes of a job: what is no number of lanes is reported, and one in its place.
    fn lanes(&mut self) -> LaneCount {
        let reader = self.reader;
        LaneCount::new(reader.count(Key::Lanes) as u32).unwrap_or_else(|error| {
            let at = reader.settings.origin(Key::Lanes);
            self.problems.push(ConfigProblem::Lanes { at, error, beside: Vec::new() });
            LaneCount::ONE
        })
    }

    /// Lanes divide the microbatches, and a schedule of two directions runs half of them in each.
    fn check_lanes(&mut self, batch: &BatchShape) {
        let reader = self.reader;
        let settings = reader.settings;
        let kind = match reader.choice(Key::Schedule) {
            ScheduleChoice::Kind(kind) => kind,
            ScheduleChoice::Auto | ScheduleChoice::Asynchronous(_) => AUTO_KINDS[0],
        };
        let replicas = replica_count(&reader);
        let dealt = |replicas: Option<ReplicaCount>| {
            batch.of_replica(kind, replicas.unwrap_or(ReplicaCount::ONE)).map(|_| ())
        };
        let Err(error) = batch.check_lanes(kind).and_then(|()| replicas.and_then(dealt)) else {
            return;
        };
        let keys: &[Key] = match error {
            LaneError::Directions { .. } => &[Key::Lanes, Key::Schedule],
            LaneError::ReplicaCount { .. } => &[Key::Replicas],
            LaneError::Replicas { .. } => &[Key::Replicas, Key::Lanes, Key::Schedule],
            LaneError::Count { .. } | LaneError::Microbatches { .. } => {
                &[Key::Lanes, Key::Microbatch, Key::GlobalBatch]
            }
        };
        self.report(keys, |key, beside| ConfigProblem::Lanes {
            at: settings.origin(key),
            error,
            beside,
        });
    }

    fn check_sync(&mut self) {
        let reader = self.reader;
        let settings = reader.settings;
        let Some(sync) = SyncConfig::read(&reader) else { return };
        let checked = sync.outer.check(reader.count(Key::Steps));
        let Err(error) = checked.and_then(|()| sync.check_folders()) else { return };
        let keys: &[Key] = match error {
            OuterConfigError::Islands { .. } => &[Key::SyncFolders, Key::SyncEvery],
            OuterConfigError::SameFolder { .. } => &[Key::SyncFolders],
            OuterConfigError::Island { .. } => &[Key::SyncIsland, Key::SyncFolders],
            OuterConfigError::Overlap { .. } => &[Key::SyncOverlap, Key::SyncEvery],
            OuterConfigError::Fragments { .. } => &[Key::SyncFragments, Key::SyncEvery],
            OuterConfigError::Steps { .. } => &[Key::Steps, Key::SyncOverlap],
        };
        self.report(keys, |key, beside| ConfigProblem::Sync {
            at: settings.origin(key),
            error,
            beside,
        });
    }

    fn batch(&mut self) -> BatchShape {
        let reader = self.reader;
        let global_batch = reader.count(Key::GlobalBatch);
        let microbatch = reader.count(Key::Microbatch);
        if !global_batch.is_multiple_of(microbatch) {
            let settings = reader.settings;
            self.report(&[Key::Microbatch, Key::GlobalBatch], |key, beside| {
                ConfigProblem::Microbatch {
                    at: settings.origin(key),
                    microbatch,
                    global_batch,
                    beside,
                }
            });
        }
        let sequence_len = reader.count(Key::SeqLen) as usize;
        BatchShape {
            microbatch: MicrobatchShape { sequences: microbatch as usize, sequence_len },
            microbatch_count: (global_batch / microbatch) as u32,
            cut_by: reader.choice(Key::SliceCut),
            lanes: self.lanes(),
        }
    }
}
