//! A benchmark model with its batch, its text and its weights.

use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;

use zbelastic_config::text::builtin;
use zbelastic_config::{ConfigFlag, ConfigSources, load};
use zbelastic_consensus::validation::{GuardPolicy, NonfinitePolicy};
use zbelastic_data::cursor::CursorConfig;
use zbelastic_data::mixture::StoreMixture;
use zbelastic_data::store::TokenStore;
use zbelastic_data::training_data::TrainingData;
use zbelastic_data::window::Packing;
use zbelastic_kernels::HostThreads;
use zbelastic_machine::core_count;
use zbelastic_schedule::{ScheduleKind, Window};
use zbelastic_trainer::data::{Corpus, CorpusConfig};
use zbelastic_trainer::model::{MicrobatchShape, ModelConfig, draw_weights, model_layers};
use zbelastic_trainer::optimizer::OptimizerConfig;
use zbelastic_trainer::plan::{
    BatchShape, Grid, Plan, PlanError, PlanRequest, ReplicaCount, model_flop_per_token,
};
use zbelastic_trainer::stage::{InitialWeights, StageSetup};
use zbelastic_wording::{CommandFailure, FailureDetail};

use super::out_of_resource;
use crate::args::BenchConfig;

/// A model to be measured.
pub struct BenchCase {
    /// Shape of the model.
    pub model: ModelConfig,
    /// The batch as pipelines cut it.
    pub batch: BatchShape,
    /// The seed of text and weights.
    seed: u64,
    optimizer: OptimizerConfig,
    weights: InitialWeights,
}

/// How a batch is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchSplit {
    /// One microbatch: fastest where nothing has to overlap.
    Whole,
    /// As many microbatches as the preset has.
    Microbatches,
}

/// One pipeline.
pub const fn pipeline(stage_count: u32) -> Grid {
    Grid { stage_count, replicas: ReplicaCount::ONE }
}

/// Every step is clipped against this norm, as training does.
const CLIP_NORM: f64 = 1.0;

impl BenchCase {
    /// The model of that name with its weights drawn.
    ///
    /// # Errors
    /// If its preset is not legal.
    pub fn new(name: BenchConfig) -> Result<Self, CommandFailure> {
        Self::configured(&[format!("model.preset={}", name.preset())])
    }

    /// The model of these keys with its weights drawn.
    ///
    /// # Errors
    /// If they are not legal.
    pub fn configured(keys: &[String]) -> Result<Self, CommandFailure> {
        let flags = keys.iter().cloned().map(ConfigFlag::Set).collect();
        let config = load(&ConfigSources { file: None, flags })?.config;
        let layers = model_layers(&config.model);
        // Where there are no threads for it, it takes longer.
        let host = HostThreads::new(core_count()).unwrap_or_else(|_| HostThreads::one());
        let weights = layers.iter().map(|spec| {
            let mut weights = vec![0.0; spec.len()];
            draw_weights(&host, spec, config.seed, &mut weights);
            weights
        });
        let weights = weights.collect();
        Ok(Self {
            model: config.model,
            batch: config.batch,
            seed: config.seed,
            optimizer: config.optimizer,
            weights: InitialWeights::Given(Arc::new(weights)),
        })
    }

    /// Shape of the batch under this split.
    pub fn batch(&self, split: BatchSplit) -> BatchShape {
        match split {
            BatchSplit::Microbatches => self.batch,
            BatchSplit::Whole => {
                let BatchShape { microbatch, microbatch_count, .. } = self.batch;
                let sequences = microbatch.sequences * microbatch_count as usize;
                let microbatch = MicrobatchShape { sequences, ..microbatch };
                BatchShape { microbatch, microbatch_count: 1, ..self.batch }
            }
        }
    }

    /// Setup that the workers of a run begin with.
    ///
    /// # Errors
    /// If the schedule does not exist for this many stages, or replicas.
    pub fn setup(
        &self,
        kind: ScheduleKind,
        grid: Grid,
        split: BatchSplit,
        step_count: u64,
    ) -> Result<StageSetup, CommandFailure> {
        let model = &self.model;
        let batch = self.batch(split);
        let window = Window::One;
        let chunks_per_stage = None;
        let request = PlanRequest {
            model,
            batch,
            kind,
            chunks_per_stage,
            slice_count: None,
            stage_count: grid.stage_count,
            replicas: grid.replicas,
            window,
        };
        Ok(StageSetup {
            model: model.clone(),
            plan: Plan::new(request).map_err(|error| no_plan(&error))?,
            optimizer: self.optimizer.clone(),
            z_loss: 0.0,
            clip_norm: Some(CLIP_NORM),
            step_count,
            evaluate_every: 0,
            weights: self.weights.clone(),
            injections: Vec::new(),
            copies_wanted: false,
            attest_every: 0,
            outer: None,
        })
    }

    /// Which steps are accepted: the guard's policy.
    pub fn policy(&self) -> GuardPolicy {
        GuardPolicy {
            clip_norm: Some(CLIP_NORM),
            nonfinite: NonfinitePolicy::Skip,
            replays_max: 0,
            spike_deviations: None,
        }
    }

    /// The built-in text, cut for this batch.
    ///
    /// # Errors
    /// If it is too short, which would be a mistake of ours.
    pub fn corpus(&self, split: BatchSplit) -> Result<Arc<TrainingData>, CommandFailure> {
        let BatchShape { microbatch, microbatch_count, .. } = self.batch(split);
        let cut = CorpusConfig {
            shape: microbatch,
            microbatch_count,
            held_out_share: 0.0,
            seed: self.seed,
            vocabulary: self.model.vocabulary,
        };
        let corpus = Corpus::new(builtin::text().bytes, &cut);
        Ok(Arc::new(TrainingData::Text(corpus.map_err(|error| out_of_resource(&error))?)))
    }

    /// A token store, cut for this batch in the same way.
    ///
    /// # Errors
    /// If there is none, or it is too short or of another vocabulary.
    pub fn stored(
        &self,
        split: BatchSplit,
        folder: &Path,
        packing: Packing,
    ) -> Result<Arc<TrainingData>, CommandFailure> {
        let refused = |error: &dyn std::fmt::Display| {
            let detail = FailureDetail::new(format!("--tokens: {error}"));
            let hint = "`zbelastic data prepare` makes a store of bytes of a text";
            CommandFailure::usage("the benchmark", vec![detail.hint(hint)])
        };
        let store = TokenStore::open(folder).map_err(|error| refused(&error))?;
        let found = store.manifest().vocabulary;
        if found as usize > self.model.vocabulary as usize {
            return Err(refused(&format!("ids of {found} tokens, expected those of bytes")));
        }
        let BatchShape { microbatch, microbatch_count, .. } = self.batch(split);
        let seed = self.seed;
        let cut = CursorConfig { shape: microbatch, microbatch_count, held_out_share: 0.0, seed };
        let stores = [(store.manifest(), NonZeroU32::MIN)];
        let mixture = StoreMixture::new(stores, packing, &cut).map_err(|error| refused(&error))?;
        mixture.provide(vec![store]);
        Ok(Arc::new(TrainingData::Stores(mixture)))
    }

    /// Settings of the optimizer.
    pub fn optimizer(&self) -> &OptimizerConfig {
        &self.optimizer
    }

    /// The weights that runs begin with.
    pub fn weights(&self) -> &InitialWeights {
        &self.weights
    }

    /// Floating-point operations of a step, nothing counted twice.
    pub fn step_flop(&self) -> f64 {
        self.batch.tokens() as f64 * model_flop_per_token(&self.model, self.batch.microbatch)
    }
}

fn no_plan(error: &PlanError) -> CommandFailure {
    let detail = FailureDetail::new(error.to_string())
        .why("a stage holds a layer or more, and schedules differ in the sizes they exist for")
        .hint("fewer --workers, or another --schedule");
    CommandFailure::usage("the benchmark", vec![detail])
}
