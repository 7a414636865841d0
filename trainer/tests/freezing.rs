//! Models some tensors of which are frozen: the bits of the serial reference, whatever the stages, the
//! schedule, the clipping and the rollbacks; and that reference against one that trains everything.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use crate::common::serial::{SerialRuns, StruckStepFate, check_norms, reference, serial};
use crate::common::{
    BATCH, PIPEDREAM, StageCluster, every_plain_plan, featured_model, offloaded, plan, policy,
    setup, tiny_model,
};
use zbelastic_consensus::validation::NonfinitePolicy;
use zbelastic_kernels::reference::{AdamWState, adamw};
use zbelastic_kernels::{BufferView, CpuBackend, DeviceMemory};
use zbelastic_schedule::{ScheduleKind, Window};
use zbelastic_trainer::asynchronous::{AsyncPlan, AsyncPlanError};
use zbelastic_trainer::data::Corpus;
use zbelastic_trainer::model::{
    Family, FrozenTensors, ModelConfig, Recompute, TensorSpec, frozen_tensors, model_layers,
};
use zbelastic_trainer::optimizer::{OptimizerKind, clip_coefficient};
use zbelastic_trainer::plan::{LayerWork, Plan, layer_work};
use zbelastic_trainer::reference::{ReferenceStep, SerialReference};
use zbelastic_trainer::stage::StageSetup;
use zbelastic_types::Step;

const STEPS: u64 = 4;
/// The step whose gradient is corrupted, as people count.
const STRUCK: u64 = 3;
const CLIP_NORM: Option<f64> = Some(0.5);
/// Of so many models in a row, one is tried with a plan.
const MODELS_A_PLAN: usize = 11;

/// The beginning of a model; a part of a product and of pairs of norms; all but biases; all but
/// matrices; a single block; the ends.
const CHOICES: [&[&str]; 6] = [
    &["embed", "layers.0-1.*"],
    &["layers.*.attn.q", "layers.*.mlp.up", "layers.2-3.norm1.weight", "norm"],
    &["embed", "norm.weight", "layers.*.*.*.weight", "layers.*.norm*"],
    &["embed.tokens", "layers.*.attn", "layers.*.mlp", "head.weight"],
    &["embed", "norm", "head", "layers.0", "layers.2-3"],
    &["embed", "norm", "head"],
];

/// A model with those tensors frozen that one of the patterns matches, of the model's.
fn frozen_model(model: &ModelConfig, patterns: &[&str]) -> ModelConfig {
    let names = |pattern: &&&str| {
        frozen_tensors(model, &[(**pattern).to_owned()]).is_ok() || **pattern == "*"
    };
    let known = patterns.iter().filter(names).map(|pattern| (*pattern).to_owned());
    let known: Vec<String> = known.collect();
    let frozen = frozen_tensors(model, &known).expect("some are trained");
    assert!(!frozen.is_none(), "{patterns:?}");
    model.clone().freezing(frozen)
}

fn models() -> Vec<ModelConfig> {
    let tied = ModelConfig { tied: true, ..tiny_model(Family::Gpt2) };
    let plain = [tiny_model(Family::Gpt2), tiny_model(Family::Llama), featured_model(), tied];
    let choices = |model: ModelConfig| {
        let can_be = |patterns: &&&[&str]| !(model.tied && patterns[0] == "embed.tokens");
        let choices: Vec<ModelConfig> = (CHOICES.iter().filter(can_be))
            .map(|patterns| frozen_model(&model, patterns))
            .collect();
        choices
    };
    plain.into_iter().flat_map(choices).collect()
}

fn frozen_setup(plan: Plan, model: &ModelConfig) -> StageSetup {
    StageSetup { clip_norm: CLIP_NORM, ..setup(model.clone(), plan, STEPS) }
}

/// A gradient that is no number strikes what is trained: the last block's MLP in all but one choice.
fn struck(model: &ModelConfig) -> String {
    let layers = model_layers(model);
    let trained = layers.iter().rev().flat_map(|layer| layer.trained_tensors());
    trained.map(|tensor| tensor.name.clone()).next().expect("something is trained")
}

#[test]
fn every_schedule_has_the_bits_of_the_reference() {
    let mut run = 0;
    let mut kinds = BTreeSet::new();
    for (index, model) in models().into_iter().enumerate() {
        let mut serial_runs = SerialRuns::default();
        // Each plan has its turn with every so many models.
        for plan in
            every_plain_plan(&model).into_iter().skip(index % MODELS_A_PLAN).step_by(MODELS_A_PLAN)
        {
            run += 1;
            let kind = plan.program.kind;
            kinds.insert(format!("{kind} {}", plan.placement().stage_count()));
            let case = format!("{kind}, {} stages, {model:?}", plan.placement().stage_count());
            assert_eq!(plan.program.is_tied(), model.ties_gradients(), "{case}");
            let mut setup = frozen_setup(plan, &model);
            // Each choice has its turn with both optimizers.
            if (index + index / CHOICES.len()) % 2 == 1 {
                setup.optimizer.kind = OptimizerKind::Muon { momentum: 0.95 };
            }
            let fate = StruckStepFate::ALL[run % StruckStepFate::ALL.len()];
            let skipped = fate.skipped(STRUCK);
            let (steps, digest) = serial_runs.of(&setup, skipped);
            fate.strike(&mut setup, STRUCK, &struck(&model));
            let policy = policy(CLIP_NORM, fate.policy());
            let threads = 1 + run % 2;
            let outcome = StageCluster::new(&setup, policy, threads, run as u64).run();
            assert_eq!(outcome.digest, *digest, "{case}");
            check_norms(&outcome, steps, skipped, &case);
        }
    }
    assert!(
        run > 100 && kinds.len() == every_plain_plan(&tiny_model(Family::Gpt2)).len(),
        "{run} runs"
    );
}

/// The floats of each tensor in a layer's buffers: none where it has none.
fn tensors<T>(
    run: &SerialReference<CpuBackend, Arc<Corpus>>,
    mut read: impl FnMut(&TensorSpec, [Vec<f32>; 4]) -> T,
) -> Vec<T> {
    let mut found = Vec::new();
    for layer in run.layers() {
        for tensor in &layer.spec.tensors {
            let floats = |buffer, place: &Option<Range<usize>>| {
                let place = place.clone().unwrap_or(0..0);
                run.backend().download(BufferView::new(buffer, place))
            };
            let TensorSpec { range, moments, gradient, .. } = tensor;
            let w = floats(&layer.w, &Some(range.clone()));
            let [m, v] = [&layer.m, &layer.v].map(|part| floats(part, moments));
            found.push(read(tensor, [w, m, v, floats(&layer.g, gradient)]));
        }
    }
    found
}

fn bits(floats: &[f32]) -> Vec<u32> {
    floats.iter().map(|x| x.to_bits()).collect()
}

/// Through steps that are clipped and one that is left out, weights that begin at either zero too.
#[test]
fn frozen_tensors_stay_bit_for_bit_and_all_others_change() {
    let (mut clipped, mut kept) = (0, 0);
    for model in models() {
        let setup = frozen_setup(plan(&model, ScheduleKind::GPipe, 1, Window::Zero), &model);
        let mut run = reference(&setup);
        let before = tensors(&run, |_, [w, ..]| bits(&w));
        let steps: Vec<_> = (0..STEPS).map(|step| run.step(Step(step), step == 2)).collect();
        let is_clipped = |step: &&ReferenceStep| Some(step.norm) > CLIP_NORM;
        let count = steps.iter().filter(is_clipped).count();
        (clipped, kept) = (clipped + count, kept + steps.len() - count);
        let mut before = before.into_iter();
        tensors(&run, |tensor, [w, m, v, _]| {
            let is_as_before = bits(&w) == before.next().expect("as many tensors");
            assert_eq!(is_as_before, tensor.is_frozen, "{}", tensor.name);
            let are_none = [&m, &v].map(|moments| moments.iter().all(|x| x.to_bits() == 0));
            assert_eq!(are_none, [tensor.is_frozen; 2], "moments of {}", tensor.name);
            assert_eq!([m.is_empty(), v.is_empty()], [tensor.is_frozen; 2], "{}", tensor.name);
        });
    }
    assert!(clipped > 10 && kept > 10, "{clipped} steps were clipped, {kept} were not");
}

/// A run that began when frozen tensors had moments goes on with them, and to the same bits of all that is
/// trained.
#[test]
fn moments_that_frozen_tensors_have_change_no_bit() {
    for model in models() {
        let earlier = ModelConfig { without_moments: FrozenTensors::NONE, ..model.clone() };
        let state = |model: &ModelConfig| {
            let setup = frozen_setup(plan(model, ScheduleKind::GPipe, 1, Window::Zero), model);
            let mut run = reference(&setup);
            let steps: Vec<_> = (0..STEPS).map(|step| run.step(Step(step), step == 2)).collect();
            let layers = run.layers().iter().map(|layer| layer.spec.state_len());
            let moments: usize = layers.map(|len| len.moments).sum();
            let found = tensors(&run, |tensor, [w, m, v, g]| {
                let state = if tensor.is_frozen { vec![w] } else { vec![w, m, v, g] };
                state.iter().map(|part| bits(part)).collect::<Vec<_>>()
            });
            (steps, found, moments)
        };
        let (steps, found, moments) = state(&model);
        let (expected_steps, expected, all) = state(&earlier);
        assert_eq!((steps, found), (expected_steps, expected));
        assert!(moments < all, "{moments} moments, {all} before");
    }
}

/// The gradient of what is trained does not depend on what is frozen; the norm is that of these
/// gradients alone, and so is the coefficient that clips them; W of the others does not run.
#[test]
fn gradients_and_norm_are_those_of_the_trained_tensors_alone() {
    for model in models() {
        let plan = plan(&model, ScheduleKind::GPipe, 1, Window::Zero);
        let setup = frozen_setup(plan, &model);
        let all = model.clone().freezing(FrozenTensors::NONE);
        let mut everything = StageSetup { model: all, ..setup.clone() };
        everything.plan.program =
            crate::common::plan(&everything.model, ScheduleKind::GPipe, 1, Window::Zero).program;
        let (mut run, mut whole) = (reference(&setup), reference(&everything));
        let start = tensors(&run, |_, state| state);
        let found = run.step(Step(0), false);
        whole.step(Step(0), true);
        let mut expected = tensors(&whole, |_, [_, _, _, g]| g).into_iter();
        let mut square_sum = 0.0;
        let specs: Vec<_> = run.layers().iter().map(|layer| layer.spec.clone()).collect();
        let coefficient = clip_coefficient(CLIP_NORM, found.norm);
        let optimizer = &setup.optimizer;
        let lr = optimizer.lr_at(Step(0), STEPS);
        let mut start = start.into_iter();
        tensors(&run, |tensor, [w, _, _, g]| {
            let expected = expected.next().expect("as many tensors");
            let [before, m, v, _] = start.next().expect("as many tensors");
            if tensor.is_frozen {
                return;
            }
            assert_eq!(bits(&g), bits(&expected), "{}", tensor.name);
            let numbers = optimizer.numbers(lr, 1, coefficient, optimizer.decay_of(tensor));
            let mut state = AdamWState { w: before, m, v };
            adamw(&mut state, &expected, numbers);
            assert_eq!(bits(&w), bits(&state.w), "{}", tensor.name);
            if !tensor.is_shared {
                square_sum += g.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>();
            }
        });
        assert!((found.square_sum / square_sum - 1.0).abs() < 1e-12, "{found:?}, {square_sum}");
        for (layer, spec) in run.layers().iter().zip(&specs) {
            if spec.trained_tensors().next().is_none() {
                assert_eq!(spec.gradient_len(), 0, "there is no place that W could write to");
                assert_eq!(run.backend().len(&layer.g), 0, "{}", spec.layer);
            }
        }
    }
}

/// Copies that follow the gradients of owners have their bits, and so has what devices attest.
#[test]
fn copies_follow_what_is_trained() {
    for (run, model) in models().into_iter().enumerate() {
        let kind = if run % 2 == 0 { ScheduleKind::ZbH1 } else { ScheduleKind::ZbV };
        let mut setup = frozen_setup(plan(&model, kind, 2, Window::One), &model);
        (setup.copies_wanted, setup.attest_every) = (true, 1);
        let policy = policy(CLIP_NORM, NonfinitePolicy::Skip);
        let outcome = StageCluster::new(&setup, policy, 1, run as u64).witnessed(&setup).run();
        assert_eq!(outcome.witnessed, model_layers(&model).len() * STEPS as usize, "{model:?}");
    }
}

#[test]
fn less_memory_changes_no_bit() {
    let model = frozen_model(&tiny_model(Family::Llama), CHOICES[1]);
    let plan = plan(&model, ScheduleKind::ZbH1, 3, Window::One);
    let (_, expected) = serial(&frozen_setup(plan.clone(), &model), None);
    for plan in [plan.clone().with_recompute(Recompute::Full), offloaded(&plan, 0.5)] {
        let policy = policy(CLIP_NORM, NonfinitePolicy::Skip);
        let setup = frozen_setup(plan, &model);
        assert_eq!(StageCluster::new(&setup, policy, 1, 2).run().digest, expected);
    }
}

/// Where there is no gradient, none can be corrupted.
#[test]
fn an_injection_into_a_frozen_tensor_changes_nothing() {
    let model = frozen_model(&tiny_model(Family::Gpt2), CHOICES[0]);
    let mut setup = frozen_setup(plan(&model, ScheduleKind::ZbH1, 2, Window::One), &model);
    let (_, expected) = serial(&setup, None);
    setup.injections = vec!["step=2,tensor=layers.1.mlp.up,value=nan".parse().expect("legal")];
    let policy = policy(CLIP_NORM, NonfinitePolicy::Skip);
    let outcome = StageCluster::new(&setup, policy, 1, 5).run();
    assert_eq!((outcome.digest, outcome.verdicts("skip")), (expected, 0));
}

/// Work of W is that of the products that run, and plans give stages of frozen layers more of them.
#[test]
fn plans_count_no_work_for_frozen_products() {
    let model = tiny_model(Family::Llama);
    let frozen = frozen_model(&model, &["layers.0", "layers.1.attn.q", "layers.1.mlp", "norm"]);
    let works = |model: &ModelConfig| layer_work(model, BATCH.microbatch);
    let without_w = |work: &LayerWork| LayerWork { w: 0.0, w_early: 0.0, ..*work };
    for (layer, (found, all)) in works(&frozen).iter().zip(works(&model)).enumerate() {
        let expected = if [1, 2, 4].contains(&layer) { without_w(&all) } else { all };
        assert_eq!(*found, expected, "layer {layer}");
    }
    let first = |model: &ModelConfig| plan(model, ScheduleKind::ZbH1, 2, Window::One).chunks[0];
    let half = frozen_model(&model, &["embed", "layers.0-1"]);
    assert!(first(&half).ids().end > first(&model).ids().end);
}

#[test]
fn schedules_without_steps_refuse_frozen_tensors() {
    let request = PIPEDREAM;
    let kind = request.kind;
    let frozen = frozen_model(&tiny_model(Family::Gpt2), &["embed"]);
    let found = AsyncPlan::new(&frozen, BATCH, request);
    assert_eq!(found, Err(AsyncPlanError::Frozen { kind }));
}
