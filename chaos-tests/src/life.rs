//! One life, from its case.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;

use zbelastic_consensus::job::JobSpec;
use zbelastic_consensus::validation::GuardPolicy;
use zbelastic_islands::ExchangeRun;
use zbelastic_schedule::{ScheduleKind, Window};
use zbelastic_trainer::data::{Corpus, CorpusConfig};
use zbelastic_trainer::elastic::BackendStageFactory;
use zbelastic_trainer::model::{
    Family, FrozenTensors, LayerSpec, LlamaFeatures, LoraInit, LoraScaling, LoraSettings,
    ModelConfig, frozen_tensors, model_layers,
};
use zbelastic_trainer::optimizer::OptimizerKind;
use zbelastic_trainer::outer::OuterSchedule;
use zbelastic_trainer::plan::{Plan, PlanRequest, ReplicaCount};
use zbelastic_trainer::stage::{InitialWeights, StageSetup};
use zbelastic_types::Digest;

use crate::case::LifeCase;
use crate::crash_points::CrashPointCounts;
use crate::digest_executor::DigestModel;
use crate::digest_model::{DigestShape, DigestSource, EXCHANGED_FLOATS};
use crate::digest_reference::{DigestReference, GradientAddends};
use crate::failure::LifeFailure;
use crate::float_model::{CpuBackendFactory, FloatModel, FloatReference, one_thread};
use crate::float_source::FloatSource;
use crate::islands::SimulatedIslands;
use crate::life_arithmetic::LifeArithmetic;
use crate::log::EventLog;
use crate::markers::Markers;
use crate::options::{ComputeModelKind, LifeOptions};
use crate::quiet::quietly;
use crate::reference::LifeReference;
use crate::ticks::{LOST_AFTER_TICKS, SETTLE_TICKS};
use crate::world::{LifeOutcome, LifeSetup, World};

/// The usual norm of a float life's gradient, so that a share of it clips now and then.
const FLOAT_NORM: f64 = 1.0;
/// The mean amount that a tensor of the digest model adds to the square of the norm.
const DIGEST_SQUARE: f64 = 0.55;

/// Lives a case. A panic of the code under test is a failure like others.
pub fn live(case: &LifeCase, log: &mut EventLog) -> LifeOutcome {
    let result = catch_unwind(AssertUnwindSafe(|| match case.options.model {
        ComputeModelKind::Digest => live_digest(case, log),
        ComputeModelKind::Float => live_float(case, log),
    }));
    result.unwrap_or_else(|payload| {
        let text = payload.downcast_ref::<String>().cloned();
        let text = text.or_else(|| payload.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        LifeOutcome {
            failure: Some(LifeFailure::panic(text.unwrap_or_else(|| "no message".to_owned()))),
            markers: Markers::default(),
            crash_points: CrashPointCounts::default(),
            steps: 0,
            faults: 0,
            faults_in_training: 0,
            virtual_us: 0,
            events: 0,
        }
    })
}

/// A life that was lived.
#[derive(Clone, Debug)]
pub struct LifeResult {
    /// The outcome of the life.
    pub outcome: LifeOutcome,
    /// The digest of its log.
    pub digest: u64,
}

impl LifeResult {
    /// Lives a case. A panic in it is a failure, and prints nothing.
    #[must_use]
    pub fn of(case: &LifeCase) -> Self {
        let mut log = EventLog::quiet();
        let outcome = quietly(|| live(case, &mut log));
        Self { outcome, digest: log.digest() }
    }

    /// This life, which failed if another of the same case was not the same.
    #[must_use]
    pub fn same_as(mut self, other: &Self) -> Self {
        let failure = &self.outcome.failure;
        let other_failure = &other.outcome.failure;
        if self.digest != other.digest || failure != other_failure {
            let name = |failure: &Option<LifeFailure>| {
                failure.as_ref().map_or_else(|| "passed".to_owned(), ToString::to_string)
            };
            let message = format!(
                "digest {:016x}, {}; the second time {:016x}, {}",
                self.digest,
                name(failure),
                other.digest,
                name(other_failure)
            );
            self.outcome.failure = Some(LifeFailure::non_determinism(message));
        }
        self
    }
}

fn live_digest(case: &LifeCase, log: &mut EventLog) -> LifeOutcome {
    let (spec, stage) = parts(case);
    let layer_tensors = spec.layer_tensors.clone();
    let shape =
        DigestShape { seed: case.seed, layer_tensors, spike_share: case.options.spike_share };
    let addends = GradientAddends::of(spec.microbatch_count, &stage.plan);
    let islands = islands(case, &stage);
    let expected = islands.as_ref().map(|(expected, _)| expected.clone());
    let reference = DigestReference::among_islands(shape.clone(), addends, expected);
    let source = DigestSource { seed: case.seed };
    let model = Box::new(move |faults: &crate::numeric_faults::NumericFaults| DigestModel {
        shape: shape.clone(),
        faults: faults.clone(),
        leftovers: Rc::new(RefCell::new(BTreeMap::new())),
    });
    let setup = LifeSetup { spec: Arc::new(spec), stage, model, source };
    World::new(case, setup, (LifeReference::Digest(reference), islands), log).run()
}

fn live_float(case: &LifeCase, log: &mut EventLog) -> LifeOutcome {
    let (spec, stage) = parts(case);
    let source = source(case, &stage);
    let islands = islands(case, &stage);
    let expected = islands.as_ref().map(|(expected, _)| expected.clone());
    let reference = FloatReference::new(stage.clone(), source.clone(), expected);
    let base = stage.clone();
    let model = Box::new(move |faults: &crate::numeric_faults::NumericFaults| FloatModel {
        model: BackendStageFactory {
            model: base.model.clone(),
            optimizer: base.optimizer.clone(),
            step_count: base.step_count,
            weights: base.weights.clone(),
            drawn: Arc::default(),
            device: one_thread as CpuBackendFactory,
            host: zbelastic_kernels::HostThreads::one(),
            store: None,
            clock: None,
        },
        faults: faults.clone(),
    });
    let setup = LifeSetup { spec: Arc::new(spec), stage, model, source };
    World::new(case, setup, (LifeReference::Float(Box::new(reference)), islands), log).run()
}

/// The other island of a life, if there is one.
fn islands(case: &LifeCase, stage: &StageSetup) -> Option<(SimulatedIslands, ExchangeRun)> {
    let schedule = stage.outer.clone()?;
    let options = &case.options;
    let floats = |layer: &LayerSpec| match options.model {
        ComputeModelKind::Digest => EXCHANGED_FLOATS,
        ComputeModelKind::Float => layer.trained_floats(),
    };
    let run = ExchangeRun {
        settings: Digest([7; 32]),
        floats: model_layers(&stage.model).iter().map(floats).collect(),
        rounds_kept: schedule
            .config()
            .rounds_kept(options.checkpoint_every, options.checkpoints_kept),
        schedule: schedule.clone(),
    };
    Some((SimulatedIslands::new(schedule), run))
}

/// The job and the run of a case.
#[must_use]
pub fn parts(case: &LifeCase) -> (JobSpec, StageSetup) {
    let options = &case.options;
    let model = model(options, case.seed);
    let layer_tensors: Vec<u32> =
        model_layers(&model).iter().map(|layer| layer.own_tensors().count() as u32).collect();
    let tensors: u32 = layer_tensors.iter().sum();
    let usual = match options.model {
        ComputeModelKind::Digest => (f64::from(tensors) * DIGEST_SQUARE).sqrt(),
        ComputeModelKind::Float => FLOAT_NORM,
    };
    let clip_norm = Some(usual * options.clip_share);
    let policy = GuardPolicy {
        clip_norm,
        nonfinite: options.nonfinite,
        replays_max: options.replays,
        spike_deviations: options.spike_guard.then_some(3.0),
    };
    let spec = JobSpec {
        run: zbelastic_types::RunId(1),
        name: "a-run".to_owned(),
        from: None,
        config: Digest([7; 32]),
        document: Vec::new(),
        layer_tensors,
        layer_bytes: Vec::new(),
        microbatch_count: options.microbatches,
        step_count: options.steps,
        policy,
        window: options.window,
        copies: options.copies,
        checkpoint_every: options.checkpoint_every,
        checkpoint_ticks: options.checkpoint_ticks,
        checkpoints_kept: options.checkpoints_kept,
        attest_every: options.attest_every,
        device: zbelastic_consensus::class::DeviceKind::Processors,
        stages_max: options.stages_max(),
        workers_min: 1,
        lost_after_ticks: LOST_AFTER_TICKS,
        settle_ticks: SETTLE_TICKS,
    };
    let stage = stage_setup(options, model, clip_norm, case.seed);
    (spec, stage)
}

fn stage_setup(
    options: &LifeOptions,
    model: ModelConfig,
    clip_norm: Option<f64>,
    seed: u64,
) -> StageSetup {
    let batch = options.batch();
    // Slices are a part of the arithmetic, which the reference has from here.
    let kind = if options.kind.is_sliced() { options.kind } else { ScheduleKind::OneFOneB };
    let window = Window::One;
    let stage_count = 1;
    let chunks_per_stage = None;
    let request = PlanRequest {
        model: &model,
        batch,
        kind,
        chunks_per_stage,
        slice_count: None,
        stage_count,
        replicas: ReplicaCount::ONE,
        window,
    };
    let plan = Plan::new(request).expect("one stage runs anything");
    let arithmetic = arithmetic(options);
    let kind = match options.muon {
        true => OptimizerKind::Muon { momentum: 0.95 },
        false => OptimizerKind::AdamW,
    };
    let outer = options.islands.clone();
    let outer = outer.map(|config| OuterSchedule::new(config, &model, options.steps));
    StageSetup {
        plan,
        optimizer: arithmetic.optimizer(kind, &model),
        model,
        z_loss: arithmetic.z_loss,
        clip_norm,
        step_count: options.steps,
        evaluate_every: 0,
        weights: InitialWeights::Drawn { seed },
        injections: Vec::new(),
        copies_wanted: false,
        attest_every: 0,
        outer: outer.map(Arc::new),
    }
}

fn arithmetic(options: &LifeOptions) -> &LifeArithmetic {
    options.arithmetic.as_ref().unwrap_or(&LifeArithmetic::USUAL)
}

/// Layers as a whole, and a part of a product.
const FROZEN: [&str; 3] = ["embed", "layers.0", "layers.*.attn.k"];

fn model(options: &LifeOptions, seed: u64) -> ModelConfig {
    let model = arithmetic(options).model(trained_model(options, seed));
    if options.lora {
        let targets = vec!["all-linear".to_owned()];
        let settings = LoraSettings {
            rank: 2,
            alpha: 4.0,
            scaling: LoraScaling::Standard,
            init: LoraInit::Kaiming,
            targets,
        };
        return settings.adapt(&model).expect("a rank of 2 fits");
    }
    if !options.frozen {
        return model;
    }
    let frozen = frozen_tensors(&model, &FROZEN.map(str::to_owned));
    model.freezing(frozen.expect("there are such tensors and others"))
}

fn trained_model(options: &LifeOptions, seed: u64) -> ModelConfig {
    let family = if seed.is_multiple_of(2) { Family::Gpt2 } else { Family::Llama };
    let (kv_heads, mlp_width) = match family {
        Family::Gpt2 => (2, 16),
        Family::Llama => (1, 20),
    };
    ModelConfig {
        family,
        blocks: options.blocks,
        width: 8,
        heads: 2,
        kv_heads,
        head_width: 4,
        mlp_width,
        features: LlamaFeatures::NONE,
        vocabulary: 128,
        sliding_window: None,
        positions: 8,
        norm_epsilon: 1e-5,
        rope_theta: 10_000.0,
        tied: options.tied,
        frozen: FrozenTensors::NONE,
        without_moments: FrozenTensors::NONE,
        lora: None,
    }
}

fn source(case: &LifeCase, setup: &StageSetup) -> FloatSource {
    let words = ["the ", "pipe ", "waits ", "for ", "no ", "one ", "at ", "all. "];
    let mut draws = crate::random::Draws::new(case.seed, crate::random::DrawPurpose::Options);
    let text: Vec<u8> = (0..900).flat_map(|_| draws.pick(&words).bytes()).collect();
    let batch = setup.plan.batch;
    let cut = CorpusConfig {
        shape: batch.microbatch,
        microbatch_count: batch.microbatch_count,
        held_out_share: 0.0,
        seed: case.seed,
        vocabulary: 128,
    };
    FloatSource {
        corpus: Arc::new(Corpus::new(text, &cut).expect("the text is long enough")),
        sequence_len: batch.microbatch.sequence_len,
        documents: arithmetic(&case.options).has_documents.then_some(case.seed),
    }
}
