//! Models of the Llama family with everything that later ones have: biases, norms of queries and
//! keys, scaled rotary frequencies. Pipelines of any cut and order, over slices, with activations
//! that are made again or offloaded, come to the bits of the serial reference.

use std::sync::Arc;

use crate::common::{
    BATCH, StageCluster, corpus_for, featured_model, offloaded, plan_of_chunks, policy, setup,
};
use zbelastic_consensus::validation::NonfinitePolicy;
use zbelastic_kernels::{BufferView, CpuBackend, DeviceMemory};
use zbelastic_schedule::{ScheduleKind, Window};
use zbelastic_trainer::digest::StateDigest;
use zbelastic_trainer::model::{
    AttentionBias, LayerState, LlamaFeatures, ModelConfig, Recompute, RecomputedOps,
    initial_weights, model_layers,
};
use zbelastic_trainer::plan::{Plan, PlanRequest, ReplicaCount};
use zbelastic_trainer::reference::SerialReference;
use zbelastic_trainer::stage::{InitialWeights, StageSetup};
use zbelastic_types::Step;

const STEPS: u64 = 4;
const CLIP_NORM: Option<f64> = Some(0.5);

fn of_plan(model: &ModelConfig, plan: Plan) -> StageSetup {
    StageSetup { clip_norm: CLIP_NORM, ..setup(model.clone(), plan, STEPS) }
}

fn plan(model: &ModelConfig, kind: ScheduleKind, stages: u32, window: Window) -> Plan {
    plan_of_chunks(model, kind, None, stages, window)
}

fn sliced(model: &ModelConfig, stage_count: u32, slices: u32) -> Plan {
    let request = PlanRequest {
        model,
        batch: BATCH,
        kind: ScheduleKind::Seq1F1B,
        chunks_per_stage: None,
        slice_count: Some(slices),
        stage_count,
        replicas: ReplicaCount::ONE,
        window: Window::One,
    };
    Plan::new(request).expect("a legal plan")
}

fn serial(model: &ModelConfig, plan: Plan, threads: usize) -> StateDigest {
    let setup = of_plan(model, plan);
    let backend = CpuBackend::new(threads).expect("threads");
    let corpus = corpus_for(setup.plan.batch, 0.05);
    let mut run = SerialReference::new(&setup, backend, corpus).expect("memory");
    for step in 0..STEPS {
        run.step(Step(step), false);
    }
    run.digest()
}

/// The digest of a cluster that drops a candidate and runs a step again, if `seed` is even.
fn pipeline(model: &ModelConfig, plan: Plan, seed: u64) -> StateDigest {
    let mut setup = of_plan(model, plan);
    let tensors = ["layers.1.attn.q_norm", "layers.2.attn.k_norm", "layers.0.attn.out.bias"];
    if seed.is_multiple_of(2) {
        let tensor = tensors[seed as usize / 2 % tensors.len()];
        let text = format!("step=2,tensor={tensor},value=nan");
        setup.injections = vec![text.parse().expect("a legal injection")];
    }
    let corpus = corpus_for(setup.plan.batch, 0.05);
    let policy = policy(CLIP_NORM, NonfinitePolicy::Replay);
    let threads = 1 + seed as usize % 2;
    let outcome = StageCluster::with_corpus(&setup, policy, threads, seed, corpus).run();
    assert_eq!(outcome.verdicts("replay"), usize::from(seed.is_multiple_of(2)), "seed {seed}");
    outcome.digest
}

#[test]
fn every_cut_and_order_equals_the_reference() {
    let model = featured_model();
    let expected = serial(&model, plan(&model, ScheduleKind::GPipe, 1, Window::Zero), 1);
    let again = serial(&model, plan(&model, ScheduleKind::GPipe, 1, Window::Zero), 2);
    assert_eq!(again, expected, "threads");
    let some =
        Recompute::Selective(RecomputedOps { norm: true, attention: true, activation: true });
    let kinds = [
        ScheduleKind::GPipe,
        ScheduleKind::OneFOneB,
        ScheduleKind::Interleaved,
        ScheduleKind::ZbH1,
        ScheduleKind::ZbV,
    ];
    let mut seed = 0;
    for kind in kinds {
        for stages in 1..=4 {
            for window in [Window::Zero, Window::One] {
                seed += 1;
                let recompute = [Recompute::None, Recompute::Full, some][seed as usize % 3];
                let plan = plan(&model, kind, stages, window).with_recompute(recompute);
                let case = format!("{kind}, {stages} stages, window {window}, {recompute:?}");
                assert_eq!(pipeline(&model, plan, seed), expected, "{case}");
            }
        }
    }
    let away = offloaded(&plan(&model, ScheduleKind::ZbH1, 2, Window::One), 0.0);
    assert_eq!(pipeline(&model, away, 1), expected, "offloaded");
}

#[test]
fn slices_equal_their_reference() {
    let model = featured_model();
    let mut seed = 0;
    for slices in [2, 4] {
        let expected = serial(&model, sliced(&model, 1, slices), 1);
        for stages in 1..=3 {
            for recompute in [Recompute::None, Recompute::Full] {
                seed += 1;
                let plan = sliced(&model, stages, slices).with_recompute(recompute);
                let case = format!("{slices} slices, {stages} stages, {recompute:?}");
                assert_eq!(pipeline(&model, plan, seed), expected, "{case}");
            }
        }
    }
}

/// A feature that is left out of a pass is left out everywhere, and no digest would tell.
#[test]
fn each_feature_has_tensors_or_other_bits() {
    let all = featured_model();
    let digest =
        |model: &ModelConfig| serial(model, plan(model, ScheduleKind::GPipe, 1, Window::Zero), 1);
    let expected = digest(&all);
    let without = |change: fn(&mut LlamaFeatures)| {
        let mut features = all.features;
        change(&mut features);
        ModelConfig { features, ..all.clone() }
    };
    let tensors = |model: &ModelConfig| -> usize {
        model_layers(model).iter().map(|layer| layer.tensors.len()).sum()
    };
    let blocks = all.blocks as usize;
    let check = |model: ModelConfig, fewer: usize| {
        assert_eq!(tensors(&all) - tensors(&model), fewer * blocks, "{:?}", model.features);
        assert_ne!(digest(&model), expected, "{:?}", model.features);
    };
    check(without(|features| features.qk_norm = false), 2);
    check(without(|features| features.mlp_bias = false), 3);
    check(without(|features| features.attention_bias = AttentionBias::Qkv), 1);
    check(without(|features| features.attention_bias = AttentionBias::None), 4);
    check(without(|features| features.rope_scaling = None), 0);
}

/// Loss of the first step with these weights, and the gradients of all layers.
fn first_step(model: &ModelConfig, weights: Vec<Vec<f32>>) -> (f64, Vec<Vec<f32>>) {
    let mut setup = of_plan(model, plan(model, ScheduleKind::GPipe, 1, Window::Zero));
    setup.weights = InitialWeights::Given(Arc::new(weights));
    let corpus = corpus_for(setup.plan.batch, 0.05);
    let backend = CpuBackend::new(1).expect("one thread");
    let mut run = SerialReference::new(&setup, backend, corpus).expect("memory");
    let loss = run.step(Step(0), false).loss;
    let download = |layer: &LayerState<CpuBackend>| {
        run.backend().download(BufferView::new(&layer.g, 0..layer.spec.len()))
    };
    (loss, run.layers().iter().map(download).collect())
}

/// Every pipeline could lack the same part of a pass. The gradient of each tensor of a block is held
/// against the loss: along it, the loss changes by its length.
#[test]
fn gradients_are_those_of_the_loss() {
    const FAR: f32 = 5e-3;
    let model = featured_model();
    let layers = model_layers(&model);
    // Away from norms of one and biases of zero, at which a mistake may not show.
    let mut weights: Vec<Vec<f32>> = layers.iter().map(|spec| initial_weights(spec, 1)).collect();
    for (index, x) in weights.iter_mut().flatten().enumerate() {
        *x += 0.1 * ((index * 7 % 11) as f32 / 11.0 - 0.45);
    }
    let (_, gradients) = first_step(&model, weights.clone());
    for spec in &layers[1..3] {
        let layer = spec.layer.0 as usize;
        for tensor in &spec.tensors {
            let gradient = &gradients[layer][tensor.range.clone()];
            let length = gradient.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
            let moved = |by: f32| {
                let mut weights = weights.clone();
                let to = &mut weights[layer][tensor.range.clone()];
                for (x, slope) in to.iter_mut().zip(gradient) {
                    *x += by * slope / length as f32;
                }
                first_step(&model, weights).0
            };
            let found = (moved(FAR) - moved(-FAR)) / f64::from(2.0 * FAR);
            let error = (found - length).abs();
            let name = &tensor.name;
            assert!(error <= 0.02 * length + 1e-5, "{name}: {length}, the loss says {found}");
            assert!(length > 1e-4, "{name} has a gradient: {length}");
        }
    }
}
