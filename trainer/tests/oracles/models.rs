//! Models of transformers, trained by it and by the serial reference from the same weights.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use safetensors::{Dtype, SafeTensors};
use serde_json::Value;
use zbelastic_kernels::{Backend, BufferView, CpuBackend, HostThreads};
use zbelastic_schedule::{ScheduleKind, Window};
use zbelastic_trainer::data::{BatchSource, IGNORED_TARGET, TokenBatch};
use zbelastic_trainer::hf::{
    NamedTensor, ShardIndex, WeightFile, config_json, import_files, parse_config, to_named,
};
use zbelastic_trainer::model::{LayerState, MicrobatchShape, ModelConfig};
use zbelastic_trainer::optimizer::{
    DecayRates, LrDecay, OptimizerConfig, OptimizerKind, WeightDecayScope,
};
use zbelastic_trainer::plan::{
    BatchShape, LaneCount, Plan, PlanRequest, ReplicaCount, SliceBalance,
};
use zbelastic_trainer::reference::SerialReference;
use zbelastic_trainer::stage::{InitialWeights, StageSetup};
use zbelastic_types::{MicrobatchIndex, Step};

/// Token ids of every step, one sequence a microbatch.
struct OracleBatches {
    ids: Vec<i32>,
    /// For each id its document, if attention stays within one.
    documents: Option<Vec<i32>>,
    /// For each id whether it counts as a target, if not all do.
    loss_mask: Option<Vec<i32>>,
    sequences: usize,
    tokens: usize,
}

impl OracleBatches {
    /// Where the document of each input begins.
    fn document_starts(documents: &[i32]) -> Vec<u32> {
        let mut start = 0;
        let inputs = documents.iter().zip(&documents[1..]).enumerate();
        let starts = inputs.map(|(at, (own, next))| {
            let of_this = start;
            if own != next {
                start = at as u32 + 1;
            }
            of_this
        });
        starts.collect()
    }
}

impl BatchSource for OracleBatches {
    fn training(&self, step: Step, microbatch: MicrobatchIndex) -> TokenBatch {
        let row = step.0 as usize * self.sequences + microbatch.index();
        let of_row = |all: &[i32]| all[row * self.tokens..][..self.tokens].to_vec();
        let ids: Vec<u32> = of_row(&self.ids).into_iter().map(|id| id as u32).collect();
        let mut batch = TokenBatch::new(ids[..self.tokens - 1].to_vec(), ids[1..].to_vec());
        if let Some(mask) = self.loss_mask.as_deref().map(of_row) {
            for (target, counts) in batch.targets.iter_mut().zip(&mask[1..]) {
                *target = if *counts == 1 { *target } else { IGNORED_TARGET };
            }
        }
        if let Some(documents) = self.documents.as_deref().map(of_row) {
            for (target, pair) in batch.targets.iter_mut().zip(documents.windows(2)) {
                *target = if pair[0] == pair[1] { *target } else { IGNORED_TARGET };
            }
            batch.document_starts = Some(Self::document_starts(&documents));
        }
        batch
    }

    fn held_out(&self, _: u32) -> Option<TokenBatch> {
        None
    }
}

pub struct OracleRun {
    floats: BTreeMap<String, Vec<f32>>,
    /// Ids, documents, positions and masks.
    integers: BTreeMap<String, Vec<i32>>,
    ids_shape: Vec<usize>,
    losses: Vec<f64>,
    norms: Vec<f64>,
}

impl OracleRun {
    pub fn read(folder: &Path) -> Self {
        let file = std::fs::read(folder.join("expected.safetensors")).expect("readable");
        let tensors = SafeTensors::deserialize(&file).expect("a safetensors file");
        let mut floats = BTreeMap::new();
        let mut integers = BTreeMap::new();
        let mut ids_shape = Vec::new();
        for (name, view) in tensors.tensors() {
            let words = view.data().as_chunks::<4>().0;
            if view.dtype() == Dtype::I32 {
                if name == "input_ids" {
                    ids_shape = view.shape().to_vec();
                }
                integers.insert(name, words.iter().map(|w| i32::from_le_bytes(*w)).collect());
            } else {
                floats.insert(name, words.iter().map(|w| f32::from_le_bytes(*w)).collect());
            }
        }
        let json = std::fs::read_to_string(folder.join("expected.json")).expect("readable");
        let json: Value = serde_json::from_str(&json).expect("JSON");
        let column = |key: &str| {
            let steps = json["trajectory"].as_array().expect("a list").iter();
            steps.map(|step| step[key].as_f64().expect("a number")).collect()
        };
        Self { floats, integers, ids_shape, losses: column("loss"), norms: column("grad_norm") }
    }
}

fn setup(model: &ModelConfig, weights: Vec<Vec<f32>>, shape: &[usize]) -> StageSetup {
    let microbatch = MicrobatchShape { sequences: 1, sequence_len: shape[2] - 1 };
    let batch = BatchShape {
        microbatch,
        microbatch_count: shape[1] as u32,
        cut_by: SliceBalance::Tokens,
        lanes: LaneCount::ONE,
    };
    let kind = ScheduleKind::ZbH1;
    let window = Window::One;
    let request = PlanRequest {
        model,
        batch,
        kind,
        chunks_per_stage: None,
        slice_count: None,
        stage_count: 1,
        replicas: ReplicaCount::ONE,
        window,
    };
    StageSetup {
        model: model.clone(),
        plan: Plan::new(request).expect("one stage is always legal"),
        optimizer: OptimizerConfig {
            kind: OptimizerKind::AdamW,
            lr: 1e-3,
            lr_min: 0.0,
            warmup: 0,
            decay: LrDecay::Constant,
            decay_steps: 0,
            betas: [0.9, 0.95],
            epsilon: 1e-8,
            weight_decay: 0.1,
            decay_on: WeightDecayScope::All,
            decay_rates: DecayRates::NONE,
        },
        z_loss: 0.0,
        clip_norm: Some(1.0),
        step_count: shape[0] as u64,
        evaluate_every: 0,
        weights: InitialWeights::Given(Arc::new(weights)),
        injections: Vec::new(),
        copies_wanted: false,
        attest_every: 0,
        outer: None,
    }
}

fn floats_of<B: Backend>(
    backend: &B,
    layers: &[LayerState<B>],
    which: impl Fn(&LayerState<B>) -> &B::Buffer,
) -> Vec<Vec<f32>> {
    let download = |layer: &LayerState<B>| {
        backend.download(BufferView::new(which(layer), 0..layer.spec.len()))
    };
    layers.iter().map(download).collect()
}

/// The gradients of layers, with zeros for frozen tensors, which have none.
fn gradients_of<B: Backend>(backend: &B, layers: &[LayerState<B>]) -> Vec<Vec<f32>> {
    let of_layer = |layer: &LayerState<B>| {
        let found = backend.download(BufferView::new(&layer.g, 0..layer.spec.gradient_len()));
        let mut gradient = vec![0.0; layer.spec.len()];
        let trained = layer.spec.tensors.iter().filter_map(|t| Some((t, t.gradient.clone()?)));
        for (tensor, range) in trained {
            gradient[tensor.range.clone()].copy_from_slice(&found[range]);
        }
        gradient
    };
    layers.iter().map(of_layer).collect()
}

/// The largest difference, relative to the largest value of the tensor.
fn compare(what: &str, found: &[f32], expected: &[f32], error_max: f32) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let largest = expected.iter().fold(0.0f32, |max, x| max.max(x.abs()));
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        let error = (found - expected).abs();
        assert!(error <= error_max * largest, "{what}[{i}]: {found}, expected {expected}");
    }
}

pub fn parse(path: &Path, file: &str) -> ModelConfig {
    let text = std::fs::read_to_string(path.join(file)).expect("readable");
    parse_config(&text).unwrap_or_else(|error| panic!("{}/{file}: {error}", path.display()))
}

/// The model is the same by an older spelling, and by the one that we write.
pub fn configuration_is_read_in_all_spellings(path: &Path) {
    let model = parse(path, "config.json");
    if path.join("config_older.json").exists() {
        assert_eq!(parse(path, "config_older.json"), model);
    }
    assert_eq!(parse_config(&config_json(&model)).expect("our own"), model);
}

pub fn weights_of(model: &ModelConfig, path: &Path) -> Vec<Vec<f32>> {
    let index = std::fs::read_to_string(path.join("model.safetensors.index.json"));
    let index = index.ok().map(|text| ShardIndex::parse(&text).expect("an index"));
    let names = index.as_ref().map_or(vec!["model.safetensors"], ShardIndex::files);
    let read = |name: &&str| std::fs::read(path.join(name)).expect("readable");
    let bytes: Vec<Vec<u8>> = names.iter().map(read).collect();
    let bytes: Vec<&[u8]> = bytes.iter().map(|bytes| &bytes[..]).collect();
    let files = names.iter().zip(&bytes);
    let files = files.map(|(name, bytes)| WeightFile { name: (*name).to_owned(), bytes });
    let host = HostThreads::new(2).expect("threads");
    import_files(model, &files.collect::<Vec<_>>(), index.as_ref(), &host).expect("its weights")
}

/// Logits, losses, norms, gradients and weights of the model in the folder `path`.
pub fn model_trains_as_in_transformers(path: &Path) {
    let model = parse(path, "config.json");
    let weights = weights_of(&model, path);
    let named = |layers: &[Vec<f32>]| to_named(&model, layers);
    check_case(&path.display().to_string(), &model, weights, &OracleRun::read(path), named);
}

/// Compares six steps; `named` names the tensors of layers that are compared.
pub fn check_case(
    name: &str,
    model: &ModelConfig,
    weights: Vec<Vec<f32>>,
    expected: &OracleRun,
    named: impl Fn(&[Vec<f32>]) -> Vec<NamedTensor>,
) {
    let setup = setup(model, weights, &expected.ids_shape);
    let integers = |name: &str| expected.integers.get(name).cloned();
    let source = OracleBatches {
        ids: integers("input_ids").expect("there are ids"),
        documents: integers("document_ids"),
        loss_mask: integers("loss_mask"),
        sequences: expected.ids_shape[1],
        tokens: expected.ids_shape[2],
    };
    check_positions(name, &source, &integers("position_ids"), expected.losses.len());
    let logits: Vec<f32> = {
        let backend = CpuBackend::new(1).expect("one thread");
        let mut run = SerialReference::new(&setup, backend, &source).expect("memory");
        let microbatches = (0..source.sequences as u32).map(MicrobatchIndex);
        microbatches.flat_map(|m| run.logits(&source.training(Step(0), m))).collect()
    };
    for (found, expected) in logits.iter().zip(&expected.floats["logits_step0"]) {
        assert!((found - expected).abs() <= 1e-5, "{name}: logit {found}, expected {expected}");
    }
    let backend = CpuBackend::new(2).expect("two threads");
    let mut run = SerialReference::new(&setup, backend, &source).expect("memory");
    for (step, (loss, norm)) in expected.losses.iter().zip(&expected.norms).enumerate() {
        let found = run.step(Step(step as u64), false);
        let error_max = if step == 0 { 1e-5 } else { 1e-4 };
        let error = (found.loss - loss).abs();
        assert!(error <= error_max, "{name} step {step}: loss {}, expected {loss}", found.loss);
        assert!((found.norm / norm - 1.0).abs() < 1e-4, "{name} step {step}: norm {}", found.norm);
        if step == 0 {
            let gradients = gradients_of(run.backend(), run.layers());
            check_named(name, named(&gradients), "grad_step0.", expected, 1e-4);
        }
    }
    let parameters = floats_of(run.backend(), run.layers(), |layer| &layer.w);
    check_named(name, named(&parameters), "param_after6.", expected, 1e-3);
}

/// Positions count from where documents begin.
fn check_positions(
    name: &str,
    source: &OracleBatches,
    expected: &Option<Vec<i32>>,
    step_count: usize,
) {
    let Some(expected) = expected else { return };
    let steps = (0..step_count as u64).map(Step);
    let parts = steps.flat_map(|s| (0..source.sequences as u32).map(move |m| (s, m)));
    let found = parts.flat_map(|(step, microbatch)| {
        let batch = source.training(step, MicrobatchIndex(microbatch));
        let starts = batch.document_starts.expect("what has positions has documents");
        starts.into_iter().zip(0..).map(|(start, at)| at - start as i32).collect::<Vec<_>>()
    });
    assert_eq!(&found.collect::<Vec<i32>>(), expected, "{name}: positions");
}

/// Compares every tensor of the file whose name begins with `prefix`.
fn check_named(
    case: &str,
    named: Vec<NamedTensor>,
    prefix: &str,
    expected: &OracleRun,
    error_max: f32,
) {
    let there = expected.floats.keys().filter(|name| name.starts_with(prefix)).count();
    assert_eq!(there, named.len(), "{case}: tensors with {prefix}");
    for tensor in named {
        let name = format!("{prefix}{}", tensor.name);
        compare(&format!("{case} {name}"), &tensor.floats, &expected.floats[&name], error_max);
    }
}
