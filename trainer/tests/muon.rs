//! Muon for the matrices of blocks, AdamW for the rest: the bits of the serial reference, whatever the
//! stages, the schedule, the window, the threads, the clipping and the rollbacks; that reference
//! against Newton-Schulz iterations in f64; and a loss that falls.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::common::serial::{SerialRuns, StruckStepFate, reference, serial};
use crate::common::{
    StageCluster, every_plan, featured_model, optimizer, plan, policy, setup, tiny_model,
};
use zbelastic_consensus::validation::NonfinitePolicy;
use zbelastic_kernels::reference::newton_schulz;
use zbelastic_kernels::{BufferView, CpuBackend, DeviceMemory};
use zbelastic_schedule::{ScheduleKind, Window};
use zbelastic_trainer::data::Corpus;
use zbelastic_trainer::model::{Family, LayerState, ModelConfig, Recompute, model_layers};
use zbelastic_trainer::optimizer::{OptimizerConfig, OptimizerKind, clip_coefficient};
use zbelastic_trainer::plan::{Pace, Plan};
use zbelastic_trainer::reference::SerialReference;
use zbelastic_trainer::stage::StageSetup;
use zbelastic_types::Step;

const STEPS: u64 = 4;
/// The step whose gradient is corrupted, as people count.
const STRUCK: u64 = 3;
/// Some steps are clipped by it and some are not.
const CLIP_NORM: Option<f64> = Some(0.5);
const MUON: OptimizerKind = OptimizerKind::Muon { momentum: 0.95 };

/// Keys have fewer rows than queries, and gate and up are one matrix to products.
fn models() -> [ModelConfig; 2] {
    [tiny_model(Family::Gpt2), featured_model()]
}

fn muon_setup(plan: Plan, model: &ModelConfig) -> StageSetup {
    let optimizer = OptimizerConfig { kind: MUON, ..optimizer() };
    StageSetup { optimizer, clip_norm: CLIP_NORM, ..setup(model.clone(), plan, STEPS) }
}

/// Lanes and slices are a part of the arithmetic; stages, chunks and orders are not.
#[test]
fn every_schedule_has_the_bits_of_the_reference() {
    let mut kinds = BTreeSet::new();
    let (mut clipped, mut rollbacks) = (0, 0);
    for model in models() {
        let mut serial_runs = SerialRuns::default();
        for (run, plan) in every_plan(&model).into_iter().enumerate() {
            let fate = StruckStepFate::ALL[run % StruckStepFate::ALL.len()];
            let stage_count = plan.placement().stage_count();
            let window = plan.program.window;
            let kind = plan.program.kind;
            let case =
                format!("{:?} {kind} {stage_count} stages {window:?} {fate:?}", model.family);
            kinds.insert(format!("{kind} {stage_count}"));
            let mut setup = muon_setup(plan, &model);
            let skipped = fate.skipped(STRUCK);
            let (_, digest) = serial_runs.of(&setup, skipped);
            fate.strike(&mut setup, STRUCK, "layers.1.attn.q");
            let policy = policy(CLIP_NORM, fate.policy());
            // Threads that wait for each other are slow on a busy machine: one run has two.
            let threads = if run == 5 { 2 } else { 1 };
            let outcome = StageCluster::new(&setup, policy, threads, run as u64).run();
            assert_eq!(outcome.digest, *digest, "{case}");
            clipped += outcome.verdicts("clip");
            rollbacks += outcome.rollbacks;
        }
    }
    assert!(kinds.len() > 60, "{kinds:?}");
    assert!(clipped > 100 && rollbacks > 100, "{clipped} steps clipped, {rollbacks} rollbacks");
}

/// Copies that follow the gradients of owners have their bits, and so has a device's own pass in
/// place, and a stage that makes passes again.
#[test]
fn every_way_to_apply_an_update_has_the_same_bits() {
    for model in models() {
        let plan = plan(&model, ScheduleKind::ZbH1, 3, Window::One);
        let mut setup = muon_setup(plan.clone().with_recompute(Recompute::Full), &model);
        (setup.copies_wanted, setup.attest_every) = (true, 1);
        let (_, expected) = serial(&setup, None);
        let policy = policy(CLIP_NORM, NonfinitePolicy::Skip);
        let outcome = StageCluster::new(&setup, policy, 1, 4).witnessed(&setup).run();
        assert_eq!(outcome.digest, expected);
        assert_eq!(outcome.witnessed, model_layers(&model).len() * STEPS as usize);
        let mut run = reference(&setup);
        (0..STEPS).for_each(|step| {
            run.step_in_place(Step(step));
        });
        assert_eq!(run.digest(), expected);
    }
}

/// A tensor of a layer's buffer.
fn read(
    run: &SerialReference<CpuBackend, Arc<Corpus>>,
    layer: usize,
    tensor: usize,
    buffer: fn(&LayerState<CpuBackend>) -> &<CpuBackend as DeviceMemory>::Buffer,
) -> Vec<f32> {
    let layer = &run.layers()[layer];
    let range = layer.spec.tensors[tensor].range.clone();
    run.backend().download(BufferView::new(buffer(layer), range))
}

/// In the first step the momentum is the gradient, scaled: each matrix of a block goes along its
/// gradient, orthogonalised by itself, as far as its longer side asks for. Every other tensor goes where AdamW alone takes it.
#[test]
fn matrices_of_blocks_go_along_their_orthogonalised_gradients() {
    for model in models() {
        let plan = plan(&model, ScheduleKind::GPipe, 1, Window::Zero);
        let setup = muon_setup(plan, &model);
        let adamw = StageSetup { optimizer: optimizer(), ..setup.clone() };
        let before = reference(&setup);
        let [mut run, mut with_adamw] = [&setup, &adamw].map(reference);
        let norm = run.step(Step(0), false).norm;
        assert_eq!(with_adamw.step(Step(0), false).norm, norm);
        let lr = setup.optimizer.lr_at(Step(0), STEPS);
        // What Nesterov's average of a gradient and a momentum of zero leaves of the gradient.
        let share = f64::from(clip_coefficient(CLIP_NORM, norm)) * (1.0 - 0.95 * 0.95);
        let mut orthogonalised = Vec::new();
        for (index, spec) in model_layers(&model).iter().enumerate() {
            for (number, tensor) in spec.tensors.iter().enumerate() {
                let w = read(&run, index, number, |layer| &layer.w);
                let is_hidden = tensor.name.starts_with("layers.") && tensor.shape.len() == 2;
                let v = read(&run, index, number, |layer| &layer.v);
                assert_eq!(v.iter().all(|v| *v == 0.0), is_hidden, "{}", tensor.name);
                if !is_hidden {
                    assert_eq!(w, read(&with_adamw, index, number, |layer| &layer.w));
                    continue;
                }
                orthogonalised.push(tensor.name.clone());
                let g = read(&run, index, number, |layer| &layer.g);
                let u: Vec<f64> = g.into_iter().map(|g| share * f64::from(g)).collect();
                let o = newton_schulz(tensor.matrix_shape(), &u);
                let longer = tensor.shape[0].max(tensor.shape[1]) as f64;
                let start = read(&before, index, number, |layer| &layer.w);
                for ((w, start), o) in w.into_iter().zip(start).zip(o) {
                    let decayed = f64::from(start) * (1.0 - lr * setup.optimizer.weight_decay);
                    let expected = decayed - lr * 0.2 * longer.sqrt() * o;
                    assert!((f64::from(w) - expected).abs() < 1e-6, "{}: {w}", tensor.name);
                }
            }
        }
        let matrices = if model.family == Family::Gpt2 { 6 } else { 7 };
        assert_eq!(orthogonalised.len(), 4 * matrices, "{orthogonalised:?}");
    }
}

/// The loss of a short run falls well below where it began.
#[test]
fn a_run_learns() {
    let model = tiny_model(Family::Llama);
    let plan = plan(&model, ScheduleKind::GPipe, 1, Window::Zero);
    let mut setup = muon_setup(plan, &model);
    setup.step_count = 40;
    let (steps, _) = serial(&setup, None);
    let first = steps[0].loss;
    let last = steps[39].loss;
    assert!(last < first - 1.0, "from {first} to {last}");
}

/// Matrices of blocks take the operations of Newton-Schulz iterations, whatever the microbatch; with AdamW
/// alone nothing is counted.
#[test]
fn updates_are_counted() {
    let model = tiny_model(Family::Gpt2);
    let shape = crate::common::BATCH.microbatch;
    let counted = |kind| Pace::estimated(&model, shape).with_updates(&model, &kind).updates;
    assert_eq!(counted(OptimizerKind::AdamW), vec![0.0; 10]);
    // Four matrices of 16 by 16, and two of 32 by 16.
    let attention = 4.0 * 5.0 * (2.0 * 256.0 * 48.0);
    let mlp = 2.0 * 5.0 * (2.0 * 256.0 * 80.0);
    let mut expected = vec![0.0];
    expected.extend([attention, mlp].repeat(4));
    expected.push(0.0);
    assert_eq!(counted(MUON), expected);
}
