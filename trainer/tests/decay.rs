//! Weight decay of all tensors, and at rates of single tensors: pipelines of every schedule come to the bits
//! of the serial reference, whose weights decay at the rates that names give them.

use std::sync::Arc;

use crate::common::serial::{SerialRuns, StruckStepFate, reference, serial};
use crate::common::{
    StageCluster, decay_rate, decay_rates, every_plain_plan, featured_model, optimizer, plan,
    policy, setup, tiny_model,
};
use zbelastic_consensus::validation::NonfinitePolicy;
use zbelastic_kernels::{BufferView, CpuBackend, DeviceMemory};
use zbelastic_schedule::{ScheduleKind, Window};
use zbelastic_trainer::data::Corpus;
use zbelastic_trainer::model::{Family, ModelConfig, model_layers};
use zbelastic_trainer::optimizer::{OptimizerConfig, OptimizerKind, WeightDecayScope};
use zbelastic_trainer::plan::Plan;
use zbelastic_trainer::reference::SerialReference;
use zbelastic_trainer::stage::{InitialWeights, StageSetup};
use zbelastic_types::Step;

const STEPS: u64 = 4;
/// The step whose gradient is corrupted, as people count.
const STRUCK: u64 = 3;
/// Some steps are clipped by it and some are not.
const CLIP_NORM: Option<f64> = Some(0.5);
const MUON: OptimizerKind = OptimizerKind::Muon { momentum: 0.95 };

/// Both scopes, with rates of single tensors and without, for both optimizers and for two ends of one
/// matrix.
fn cases() -> [(ModelConfig, OptimizerConfig); 4] {
    let usual = optimizer();
    let gpt2 = tiny_model(Family::Gpt2);
    let tied = ModelConfig { tied: true, ..gpt2.clone() };
    let llama = featured_model();
    let with_rates = |model: &ModelConfig, kind, decay_on| {
        let decay_rates = decay_rates(model);
        OptimizerConfig { kind, decay_on, decay_rates, ..optimizer() }
    };
    let all = OptimizerConfig { decay_on: WeightDecayScope::All, ..usual };
    let of_tied = with_rates(&tied, OptimizerKind::AdamW, WeightDecayScope::Matrices);
    let of_llama = with_rates(&llama, OptimizerKind::AdamW, WeightDecayScope::All);
    let of_muon = with_rates(&llama, MUON, WeightDecayScope::Matrices);
    [(gpt2, all), (tied, of_tied), (llama.clone(), of_llama), (llama, of_muon)]
}

fn setup_of(model: &ModelConfig, optimizer: &OptimizerConfig, plan: Plan) -> StageSetup {
    let optimizer = optimizer.clone();
    StageSetup { optimizer, clip_norm: CLIP_NORM, ..setup(model.clone(), plan, STEPS) }
}

/// Lanes and slices are a part of the arithmetic; stages, chunks and orders are not.
#[test]
fn every_schedule_has_the_bits_of_the_reference() {
    let mut runs = 0;
    let (mut clipped, mut rollbacks) = (0, 0);
    for (model, optimizer) in cases() {
        let mut serial_runs = SerialRuns::default();
        for plan in every_plain_plan(&model) {
            let fate = StruckStepFate::ALL[runs % StruckStepFate::ALL.len()];
            let case = format!(
                "{:?} {:?} {} {} stages {fate:?}",
                model.family,
                optimizer.kind,
                plan.program.kind,
                plan.placement().stage_count()
            );
            let mut setup = setup_of(&model, &optimizer, plan);
            let (_, digest) = serial_runs.of(&setup, fate.skipped(STRUCK));
            fate.strike(&mut setup, STRUCK, "layers.1.attn.q");
            let policy = policy(CLIP_NORM, fate.policy());
            let outcome = StageCluster::new(&setup, policy, 1, runs as u64).run();
            assert_eq!(outcome.digest, *digest, "{case}");
            clipped += outcome.verdicts("clip");
            rollbacks += outcome.rollbacks;
            runs += 1;
        }
    }
    assert!(clipped > 100 && rollbacks > 100, "{clipped} steps clipped, {rollbacks} rollbacks");
}

/// Copies that follow the gradients of owners have their bits, and so has a pass in place.
#[test]
fn every_way_to_apply_an_update_has_the_same_bits() {
    for (model, optimizer) in cases() {
        let mut setup =
            setup_of(&model, &optimizer, plan(&model, ScheduleKind::ZbH1, 3, Window::One));
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

/// Weights of no zeros, so that all of them decay.
fn weights(model: &ModelConfig) -> Vec<Vec<f32>> {
    let drawn = InitialWeights::Drawn { seed: 3 };
    let layers = model_layers(model);
    let of_layer = |spec| drawn.of_layer(spec).iter().map(|w| w + 0.125).collect();
    layers.iter().map(of_layer).collect()
}

/// The weights of a layer after a step, tensor after tensor.
fn stepped(run: &SerialReference<CpuBackend, Arc<Corpus>>, layer: usize) -> Vec<f32> {
    let layer = &run.layers()[layer];
    run.backend().download(BufferView::new(&layer.w, 0..layer.spec.len()))
}

/// A step takes each weight where it goes without decay, less the rate of its tensor times the learning
/// rate of what it was.
#[test]
fn each_tensor_decays_at_the_rate_that_its_name_has() {
    for (model, optimizer) in cases() {
        let start = weights(&model);
        let whole = plan(&model, ScheduleKind::GPipe, 1, Window::Zero);
        let decayed = StageSetup {
            weights: InitialWeights::Given(Arc::new(start.clone())),
            ..setup_of(&model, &optimizer, whole)
        };
        let mut without = decayed.clone();
        without.optimizer =
            OptimizerConfig { weight_decay: 0.0, kind: optimizer.kind, ..self::optimizer() };
        let [decayed, without] = [decayed, without].map(|setup| {
            let mut run = reference(&setup);
            run.step(Step(0), false);
            run
        });
        let lr = optimizer.lr_at(Step(0), STEPS);
        let is_of_groups = !optimizer.decay_rates.is_none();
        for (index, layer) in model_layers(&model).iter().enumerate() {
            let [decayed, without] = [&decayed, &without].map(|run| stepped(run, index));
            for tensor in &layer.tensors {
                let is_decayed = tensor.is_matrix() || optimizer.decay_on == WeightDecayScope::All;
                let usual = if is_decayed { 0.1 } else { 0.0 };
                let own = decay_rate(&tensor.name).filter(|_| is_of_groups);
                let decay = lr * own.unwrap_or(usual);
                for at in tensor.range.clone() {
                    let expected = f64::from(without[at]) - decay * f64::from(start[index][at]);
                    let far = (f64::from(decayed[at]) - expected).abs();
                    assert!(far < 5e-7, "{}: {} {expected}", tensor.name, decayed[at]);
                }
            }
        }
    }
}
