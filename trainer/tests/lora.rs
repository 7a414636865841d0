//! Models with low-rank adapters: the bits of the serial reference, whatever the stages, the schedule, the
//! clipping and the rollbacks; and that reference against one that trains the merged model.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::common::serial::{SerialRuns, StruckStepFate, check_norms, reference, serial};
use crate::common::{
    BATCH, PIPEDREAM, StageCluster, every_plain_plan, featured_model, offloaded, plan, policy,
    setup,
};
use zbelastic_consensus::validation::NonfinitePolicy;
use zbelastic_kernels::reference::{adapted_matrix, adapter_gradients};
use zbelastic_kernels::{BufferView, CpuBackend, DeviceMemory, HostThreads, MatrixShape};
use zbelastic_schedule::{ScheduleKind, Window};
use zbelastic_trainer::asynchronous::{AsyncPlan, AsyncPlanError};
use zbelastic_trainer::data::{BatchSource, Corpus};
use zbelastic_trainer::model::{
    Family, LayerParts, LoraInit, LoraScaling, LoraSettings, ModelConfig, Recompute,
    initial_weights, merge_layer, model_layers,
};
use zbelastic_trainer::optimizer::OptimizerKind;
use zbelastic_trainer::plan::{LayerWork, Plan, layer_work};
use zbelastic_trainer::reference::SerialReference;
use zbelastic_trainer::stage::{InitialWeights, StageSetup};
use zbelastic_types::{MicrobatchIndex, Step};

const STEPS: u64 = 4;
/// The step whose gradient is corrupted, as people count.
const STRUCK: u64 = 3;
const CLIP_NORM: Option<f64> = Some(0.05);
/// Of so many models in a row, one is tried with a plan.
const MODELS_A_PLAN: usize = 4;

fn adapted(model: &ModelConfig, rank: u32, alpha: f64, targets: &[&str]) -> ModelConfig {
    let targets = targets.iter().map(|target| (*target).to_owned()).collect();
    let init = if rank == 2 { LoraInit::Gaussian } else { LoraInit::Kaiming };
    LoraSettings { rank, alpha, scaling: LoraScaling::Standard, init, targets }
        .adapt(model)
        .expect("legal adapters")
}

/// Each family, tied and not; a part of a product, all products, and some blocks alone.
fn models() -> Vec<ModelConfig> {
    let tiny = crate::common::tiny_model;
    let tied = |family| ModelConfig { tied: true, ..tiny(family) };
    vec![
        adapted(&tiny(Family::Gpt2), 4, 8.0, &["c_attn"]),
        adapted(&tiny(Family::Llama), 4, 8.0, &["q_proj", "v_proj"]),
        adapted(&tied(Family::Gpt2), 2, 3.0, &["all-linear"]),
        adapted(&featured_model(), 3, 1.0, &["all-linear"]),
        adapted(&tied(Family::Llama), 1, 2.0, &["k_proj", "layers.1-2.mlp.*_proj"]),
        adapted(&tiny(Family::Gpt2), 5, 16.0, &["h.0.attn.c_proj", "h.3.mlp.c_proj", "h.2.*.c_fc"]),
    ]
}

fn lora_setup(plan: Plan, model: &ModelConfig) -> StageSetup {
    StageSetup { clip_norm: CLIP_NORM, ..setup(model.clone(), plan, STEPS) }
}

fn one_stage(model: &ModelConfig) -> Plan {
    plan(model, ScheduleKind::GPipe, 1, Window::Zero)
}

/// The last adapter's second matrix.
fn struck(model: &ModelConfig) -> String {
    let layers = model_layers(model);
    let adapters = layers.iter().rev().flat_map(|layer| layer.trained_tensors());
    adapters.map(|tensor| tensor.name.clone()).last().expect("there are adapters")
}

/// Each layer with its adapters merged.
fn merged_layers(model: &ModelConfig, layers: &[Vec<f32>]) -> Vec<Vec<f32>> {
    let layers = model_layers(model).into_iter().zip(layers);
    layers.map(|(spec, layer)| merge_layer(&HostThreads::one(), model, &spec, layer)).collect()
}

#[test]
fn every_schedule_has_the_bits_of_the_reference() {
    let mut run = 0;
    let mut kinds = BTreeSet::new();
    for (index, model) in models().into_iter().enumerate() {
        let mut serial_runs = SerialRuns::default();
        for plan in
            every_plain_plan(&model).into_iter().skip(index % MODELS_A_PLAN).step_by(MODELS_A_PLAN)
        {
            run += 1;
            let kind = plan.program.kind;
            let case = format!("{kind}, {} stages, model {index}", plan.placement().stage_count());
            kinds.insert(format!("{kind} {}", plan.placement().stage_count()));
            let mut setup = lora_setup(plan, &model);
            if index % 2 == 1 {
                setup.optimizer.kind = OptimizerKind::Muon { momentum: 0.95 };
            }
            let fate = StruckStepFate::ALL[run % 3];
            let skipped = fate.skipped(STRUCK);
            let (steps, digest) = serial_runs.of(&setup, skipped);
            fate.strike(&mut setup, STRUCK, &struck(&model));
            let policy = policy(CLIP_NORM, fate.policy());
            let threads = if run % 8 == 0 { 2 } else { 1 };
            let outcome = StageCluster::new(&setup, policy, threads, run as u64).run();
            assert_eq!(outcome.digest, *digest, "{case}");
            check_norms(&outcome, steps, skipped, &case);
        }
    }
    let all = every_plain_plan(&crate::common::tiny_model(Family::Gpt2)).len();
    assert!(run > 80 && kinds.len() == all, "{run} runs of {} kinds, of {all}", kinds.len());
}

fn bits(floats: &[f32]) -> Vec<u32> {
    floats.iter().map(|x| x.to_bits()).collect()
}

fn wide(floats: &[f32]) -> Vec<f64> {
    floats.iter().map(|x| f64::from(*x)).collect()
}

type Run = SerialReference<CpuBackend, Arc<Corpus>>;

/// Weights of each layer as they lie.
fn weights(run: &Run) -> Vec<Vec<f32>> {
    floats(run, |layer| (&layer.w, layer.spec.len()))
}

fn gradients(run: &Run) -> Vec<Vec<f32>> {
    floats(run, |layer| (&layer.g, layer.spec.gradient_len()))
}

fn floats<'r>(
    run: &'r Run,
    part: impl Fn(
        &'r zbelastic_trainer::model::LayerState<CpuBackend>,
    ) -> (&'r zbelastic_kernels::CpuBuffer, usize),
) -> Vec<Vec<f32>> {
    let read = |layer| {
        let (buffer, len) = part(layer);
        run.backend().download(BufferView::new(buffer, 0..len))
    };
    run.layers().iter().map(read).collect()
}

/// Through steps that are clipped and one that is left out. The loss falls.
#[test]
fn adapters_learn_and_all_else_stays_bit_for_bit() {
    let mut clipped = 0;
    for (index, model) in models().into_iter().enumerate() {
        let mut setup = StageSetup { step_count: 12, ..lora_setup(one_stage(&model), &model) };
        setup.optimizer.lr = 3e-2;
        let mut run = reference(&setup);
        let before = weights(&run);
        let steps: Vec<_> = (0..12).map(|step| run.step(Step(step), step == 2)).collect();
        clipped += steps.iter().filter(|step| Some(step.norm) > CLIP_NORM).count();
        let after = weights(&run);
        for (spec, (before, after)) in model_layers(&model).iter().zip(before.iter().zip(&after)) {
            for tensor in &spec.tensors {
                let is_same =
                    bits(&before[tensor.range.clone()]) == bits(&after[tensor.range.clone()]);
                assert_eq!(is_same, !tensor.is_adapter(), "{} of model {index}", tensor.name);
            }
        }
        let (first, last) = (steps[0].loss, steps[11].loss);
        assert!(last < first - 1e-3, "model {index}: the loss went from {first} to {last}");
    }
    assert!(clipped > 10, "{clipped} steps were clipped");
}

/// An adapter's gradients are those that follow, in f64, from the gradient of the merged matrix, which a run
/// that trains everything computes; the norm is that of these alone; and the loss is that of the merged model.
#[test]
fn gradients_follow_from_those_of_the_merged_model() {
    for model in models() {
        let mut setup = StageSetup { clip_norm: None, ..lora_setup(one_stage(&model), &model) };
        // Second matrices of zero would hide what first ones do.
        let drawn = model_layers(&model).into_iter().map(|spec| {
            let mut weights = initial_weights(&spec, 3);
            for tensor in spec.tensors.iter().filter(|tensor| tensor.is_adapter()) {
                let numbers = zbelastic_kernels::conformance::floats(tensor.range.len(), 9);
                let to = weights[tensor.range.clone()].iter_mut().zip(numbers);
                to.for_each(|(to, x)| *to = 0.1 * x);
            }
            weights
        });
        let drawn: Vec<Vec<f32>> = drawn.collect();
        let merged = merged_layers(&model, &drawn);
        setup.weights = InitialWeights::Given(Arc::new(drawn.clone()));
        let mut run = reference(&setup);
        let plain = model.without_lora();
        let weights = InitialWeights::Given(Arc::new(merged.clone()));
        let whole = StageSetup { weights, ..lora_setup(one_stage(&plain), &plain) };
        let mut whole = reference(&StageSetup { clip_norm: None, ..whole });
        let batch = crate::common::corpus().training(Step(0), MicrobatchIndex(0));
        assert_eq!(bits(&run.logits(&batch)), bits(&whole.logits(&batch)), "of the merged model");
        let step = run.step(Step(0), true);
        assert_eq!(whole.step(Step(0), true).loss.to_bits(), step.loss.to_bits());
        check_gradients(&model, &drawn, &gradients(&run), &gradients(&whole), step.square_sum);
    }
}

fn check_gradients(
    model: &ModelConfig,
    weights: &[Vec<f32>],
    found: &[Vec<f32>],
    whole: &[Vec<f32>],
    reported: f64,
) {
    let mut square_sum = 0.0;
    for (spec, layer) in model_layers(model).iter().zip(0..) {
        let parts = LayerParts::new(model, spec);
        for linear in parts.matrices() {
            let inputs = linear.shape.inputs;
            for adapter in &linear.adapters {
                let rows = adapter.rows.start * inputs..adapter.rows.end * inputs;
                let matrix = wide(&whole[layer][linear.weight.clone()][rows]);
                let part = |range| wide(&weights[layer][range]);
                let (a, b) = (part(adapter.a.clone()), part(adapter.b.clone()));
                let shape = MatrixShape { outputs: adapter.rows.len(), inputs };
                // The gradient of the matrix as the product of one with x of the identity.
                let mut identity = vec![0.0; inputs * inputs];
                (0..inputs).for_each(|i| identity[i * inputs + i] = 1.0);
                let transposed: Vec<f64> = (0..inputs * shape.outputs)
                    .map(|at| matrix[at % shape.outputs * inputs + at / shape.outputs])
                    .collect();
                let scale = f64::from(adapter.scale);
                let factors = [&a[..], &b];
                let expected =
                    adapter_gradients(shape, adapter.rank, scale, factors, &identity, &transposed);
                for (range, expected) in [&adapter.a, &adapter.b].into_iter().zip(expected) {
                    let found = &found[layer][spec.gradient_of(range)];
                    let largest = expected.iter().fold(0.0, |max: f64, x| max.max(x.abs()));
                    assert!(largest > 1e-6, "there is a gradient");
                    for (found, expected) in found.iter().zip(&expected) {
                        let error = (f64::from(*found) - expected).abs() / largest;
                        assert!(error < 1e-4, "{found}, expected {expected}");
                    }
                    square_sum += found.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>();
                }
            }
        }
    }
    assert!((reported / square_sum - 1.0).abs() < 1e-12, "{reported}, {square_sum}");
}

/// W of what is frozen does not run, and merging is a sum in f64 but for one rounding a product.
#[test]
fn merged_weights_are_the_base_and_the_products() {
    for model in models() {
        let mut run = reference(&lora_setup(one_stage(&model), &model));
        for step in 0..3 {
            run.step(Step(step), false);
        }
        let layers = weights(&run);
        let merged = merged_layers(&model, &layers);
        let plain = model_layers(&model.without_lora());
        for (((spec, plain), layer), merged) in
            model_layers(&model).iter().zip(plain).zip(&layers).zip(&merged)
        {
            assert_eq!(merged.len(), plain.len());
            let mut expected = wide(&layer[..plain.len()]);
            for linear in LayerParts::new(&model, spec).matrices() {
                let inputs = linear.shape.inputs;
                for adapter in &linear.adapters {
                    let start = linear.weight.start + adapter.rows.start * inputs;
                    let shape = MatrixShape { outputs: adapter.rows.len(), inputs };
                    let to = &mut expected[start..][..shape.outputs * inputs];
                    let [a, b] = [&adapter.a, &adapter.b].map(|it| wide(&layer[it.clone()]));
                    let scale = f64::from(adapter.scale);
                    let sum = adapted_matrix(shape, adapter.rank, scale, to, [&a, &b]);
                    to.copy_from_slice(&sum);
                }
            }
            for (found, expected) in merged.iter().zip(&expected) {
                assert!((f64::from(*found) - expected).abs() < 1e-6, "{found}, {expected}");
            }
        }
    }
}

/// Copies that follow the gradients of owners have their bits, and so has what devices attest.
#[test]
fn copies_follow_adapters() {
    for (run, model) in models().into_iter().enumerate() {
        let kind = if run % 2 == 0 { ScheduleKind::ZbH1 } else { ScheduleKind::ZbV };
        let mut setup = lora_setup(plan(&model, kind, 2, Window::One), &model);
        (setup.copies_wanted, setup.attest_every) = (true, 1);
        let policy = policy(CLIP_NORM, NonfinitePolicy::Skip);
        let outcome = StageCluster::new(&setup, policy, 1, run as u64).witnessed(&setup).run();
        assert_eq!(outcome.witnessed, model_layers(&model).len() * STEPS as usize, "{model:?}");
    }
}

#[test]
fn less_memory_changes_no_bit() {
    for model in models() {
        let plan = plan(&model, ScheduleKind::ZbH1, 3, Window::One);
        let (_, expected) = serial(&lora_setup(plan.clone(), &model), None);
        for plan in [plan.clone().with_recompute(Recompute::Full), offloaded(&plan, 0.5)] {
            let policy = policy(CLIP_NORM, NonfinitePolicy::Skip);
            let setup = lora_setup(plan, &model);
            assert_eq!(StageCluster::new(&setup, policy, 1, 2).run().digest, expected);
        }
    }
}

/// W is the products of adapters: four of them, each thin on one side.
#[test]
fn plans_count_the_work_of_adapters_alone() {
    let model =
        adapted(&crate::common::tiny_model(Family::Llama), 2, 4.0, &["q_proj", "down_proj"]);
    let rows = BATCH.microbatch.rows() as f64;
    let whole = layer_work(&model.without_lora(), BATCH.microbatch);
    for (layer, (found, all)) in layer_work(&model, BATCH.microbatch).iter().zip(&whole).enumerate()
    {
        let (outputs, inputs) = match layer {
            0 | 9 => (0, 0),
            layer if layer % 2 == 1 => (16, 16),
            _ => (16, 20),
        };
        let w = if outputs > 0 { 4.0 * rows * f64::from(2 * (outputs + inputs)) } else { 0.0 };
        let expected = LayerWork { w, w_early: 0.0, ..*all };
        assert!((found.w - expected.w).abs() < 1e-6, "layer {layer}: {found:?}, {expected:?}");
        assert_eq!((found.f, found.b, found.w_early), (all.f, all.b, 0.0));
    }
}

#[test]
fn schedules_without_steps_refuse_adapters() {
    let request = PIPEDREAM;
    let kind = request.kind;
    let found = AsyncPlan::new(&models()[0], BATCH, request);
    assert_eq!(found, Err(AsyncPlanError::Frozen { kind }));
}
