//! Training with z-loss: pipelines of every schedule come to the bits of the serial reference, whose
//! gradient is that of finite differences. What is reported is the cross-entropy.

use std::sync::Arc;

use crate::common::documents::Documents;
use crate::common::{BATCH, StageCluster, corpus, plan_if_any, policy, setup, tiny_model};
use zbelastic_consensus::validation::NonfinitePolicy;
use zbelastic_kernels::{BufferView, CpuBackend, DeviceMemory, IGNORED_TARGET};
use zbelastic_schedule::{ScheduleKind, Window};
use zbelastic_trainer::data::{BatchSource, StepTargets};
use zbelastic_trainer::digest::StateDigest;
use zbelastic_trainer::model::{Family, LayerState, ModelConfig, model_layers};
use zbelastic_trainer::reference::SerialReference;
use zbelastic_trainer::stage::{HELD_OUT_MAX, InitialWeights, StageSetup};
use zbelastic_types::{MicrobatchIndex, Step};

/// The last is one none of whose targets counts.
const STEPS: u64 = 4;
/// Far more than anyone trains with, so that it shows.
const Z_LOSS: f64 = 0.05;

type Source = Arc<dyn BatchSource>;

fn documents() -> Source {
    Documents::new(corpus(), BATCH.microbatch.sequence_len)
}

fn reference(setup: &StageSetup) -> SerialReference<CpuBackend, Source> {
    let backend = CpuBackend::new(1).expect("one thread");
    SerialReference::new(setup, backend, documents()).expect("memory")
}

/// Digest and held-out loss of a serial run, and the bits of the sums that it reports.
fn serial(setup: &StageSetup) -> (StateDigest, f64, Vec<u64>) {
    let mut run = reference(setup);
    let sums = (0..STEPS).map(|step| run.step(Step(step), false).loss_sum.to_bits()).collect();
    let held_out = run.held_out_loss(HELD_OUT_MAX).expect("no fault").expect("held-out text");
    (run.digest(), held_out, sums)
}

fn setup_of(
    model: &ModelConfig,
    kind: ScheduleKind,
    stage_count: u32,
    window: Window,
) -> Option<StageSetup> {
    let plan = plan_if_any(model, kind, stage_count, window)?;
    Some(StageSetup { z_loss: Z_LOSS, ..setup(model.clone(), plan, STEPS) })
}

fn one_stage(family: Family) -> StageSetup {
    setup_of(&tiny_model(family), ScheduleKind::GPipe, 1, Window::Zero).expect("one stage")
}

/// Every schedule, of one to four stages: slices, replicas and several chunks a stage among them; a
/// step of each third run is run again.
#[test]
fn pipelines_with_z_loss_equal_the_reference() {
    let mut runs = 0;
    for (kind, stage_count) in
        ScheduleKind::ALL.into_iter().flat_map(|kind| (1..=4).map(move |stages| (kind, stages)))
    {
        let family = if runs % 2 == 0 { Family::Gpt2 } else { Family::Llama };
        let window = if runs % 3 == 0 { Window::Zero } else { Window::One };
        let Some(mut setup) = setup_of(&tiny_model(family), kind, stage_count, window) else {
            continue;
        };
        let (digest, held_out, sums) = serial(&setup);
        if runs % 3 == 1 {
            let text = "step=2,tensor=head,value=nan";
            setup.injections = vec![text.parse().expect("a legal injection")];
        }
        runs += 1;
        let policy = policy(setup.clip_norm, NonfinitePolicy::Replay);
        let cluster = StageCluster::with_corpus(&setup, policy, 1, runs, documents());
        let outcome = cluster.run();
        let case = format!("{kind}, {family:?}, {stage_count} stages, window {window}");
        assert_eq!(outcome.digest, digest, "{case}");
        let seals = outcome.seals.iter().filter(|seal| seal.verdict.is_final());
        let reported: Vec<u64> = seals.map(|seal| seal.loss_sum_bits).collect();
        assert_eq!(reported, sums, "{case}");
        assert_eq!(outcome.evaluations, [(STEPS, held_out)], "{case}");
    }
    assert_eq!(runs, 82, "a size that exists was left out, or there are more");
}

/// The first step reports what it does without z-loss, to the bit, and its gradient is another.
#[test]
fn what_is_reported_is_the_cross_entropy() {
    for family in [Family::Gpt2, Family::Llama] {
        let with = one_stage(family);
        let without = StageSetup { z_loss: 0.0, ..with.clone() };
        let [with, without] = [with, without].map(|setup| {
            let mut run = reference(&setup);
            let held_out = run.held_out_loss(HELD_OUT_MAX).expect("no fault");
            (run.step(Step(0), false), held_out)
        });
        assert_eq!(with.0.loss_sum.to_bits(), without.0.loss_sum.to_bits(), "{family:?}");
        assert_eq!(with.1, without.1, "{family:?}");
        assert_ne!(with.0.norm, without.0.norm, "{family:?}");
    }
}

/// z-loss of the first step from logits in f64: a mean over targets that count.
fn z_loss_of(run: &mut SerialReference<CpuBackend, Source>, vocabulary: usize) -> f64 {
    let source = documents();
    let mut sum = 0.0;
    let mut count = 0;
    for microbatch in (0..BATCH.microbatch_count).map(MicrobatchIndex) {
        let batch = source.training(Step(0), microbatch);
        let logits = run.logits(&batch);
        for (row, target) in logits.chunks_exact(vocabulary).zip(&batch.targets) {
            if *target != IGNORED_TARGET {
                let log_sum = row.iter().map(|logit| f64::from(*logit).exp()).sum::<f64>().ln();
                sum += Z_LOSS * log_sum * log_sum;
                count += 1;
            }
        }
    }
    sum / f64::from(count)
}

/// The gradient of the first step, all layers one after the other.
fn gradient(setup: &StageSetup) -> Vec<f64> {
    let mut run = reference(setup);
    run.step(Step(0), true);
    let layers = run.layers().iter();
    let read = |layer: &LayerState<CpuBackend>| {
        run.backend().download(BufferView::new(&layer.g, 0..layer.spec.len()))
    };
    layers.flat_map(read).map(f64::from).collect()
}

/// Along what it adds to the gradient, z-loss rises as fast as that is long.
#[test]
fn the_gradient_is_that_of_finite_differences() {
    for family in [Family::Gpt2, Family::Llama] {
        let mut setup = one_stage(family);
        let without = gradient(&StageSetup { z_loss: 0.0, ..setup.clone() });
        let added: Vec<f64> =
            gradient(&setup).iter().zip(&without).map(|(with, without)| with - without).collect();
        let length = added.iter().map(|g| g * g).sum::<f64>().sqrt();
        let specs = model_layers(&setup.model);
        let start: Vec<Vec<f32>> =
            specs.iter().map(|spec| setup.weights.of_layer(spec).to_vec()).collect();
        let mut z_loss_at = |distance: f64| {
            let mut weights = start.clone();
            let moved = weights.iter_mut().flatten().zip(&added);
            moved.for_each(|(w, g)| *w += (distance * g / length) as f32);
            setup.weights = InitialWeights::Given(Arc::new(weights));
            z_loss_of(&mut reference(&setup), setup.model.vocabulary as usize)
        };
        const DISTANCE: f64 = 5e-3;
        let slope = (z_loss_at(DISTANCE) - z_loss_at(-DISTANCE)) / (2.0 * DISTANCE);
        assert!((slope - length).abs() < 0.01 * length, "{family:?}: {slope}, expected {length}");
    }
}

#[test]
fn both_parts_are_means_over_targets_that_count() {
    let scale = StepTargets { all: 9, counted: 8 }.loss_scale(1e-4);
    assert_eq!((scale.cross_entropy, scale.z_loss), (0.125, 1.25e-5));
    let nothing = StepTargets { all: 9, counted: 0 }.loss_scale(0.0);
    assert_eq!((nothing.cross_entropy, nothing.z_loss), (1.0, 0.0));
}
