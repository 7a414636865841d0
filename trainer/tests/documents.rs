//! Documents, windows that slide and targets that do not count, in pipelines of every schedule: the
//! bits of the serial reference. That one is compared with documents that run alone.

use std::sync::Arc;

use crate::common::documents::{Documents, SILENT};
use crate::common::{BATCH, StageCluster, corpus, plan_if_any, policy, setup, tiny_model};
use zbelastic_consensus::validation::NonfinitePolicy;
use zbelastic_kernels::CpuBackend;
use zbelastic_schedule::{ScheduleKind, Window};
use zbelastic_trainer::data::{BatchSource, TokenBatch};
use zbelastic_trainer::digest::StateDigest;
use zbelastic_trainer::model::{Family, MicrobatchShape, ModelConfig, Recompute, RecomputedOps};
use zbelastic_trainer::plan::BatchShape;
use zbelastic_trainer::reference::SerialReference;
use zbelastic_trainer::stage::{HELD_OUT_MAX, StageSetup};
use zbelastic_types::Step;

const STEPS: u64 = 5;

fn model(family: Family) -> ModelConfig {
    ModelConfig { sliding_window: Some(3), ..tiny_model(family) }
}

fn documents() -> Arc<dyn BatchSource> {
    Documents::new(corpus(), BATCH.microbatch.sequence_len)
}

/// Digest, losses and sums as they are reported, and held-out loss of a serial run.
fn serial(
    setup: &StageSetup,
    source: Arc<dyn BatchSource>,
) -> (StateDigest, Vec<(f64, u64)>, Option<f64>) {
    let backend = CpuBackend::new(1).expect("one thread");
    let mut run = SerialReference::new(setup, backend, source).expect("memory");
    let step = |step| {
        let done = run.step(Step(step), false);
        (done.loss, done.loss_sum.to_bits())
    };
    let losses = (0..setup.step_count).map(step).collect();
    let held_out = run.held_out_loss(HELD_OUT_MAX).expect("no fault");
    (run.digest(), losses, held_out)
}

fn setup_of(
    model: &ModelConfig,
    kind: ScheduleKind,
    stage_count: u32,
    window: Window,
) -> Option<StageSetup> {
    let plan = plan_if_any(model, kind, stage_count, window)?;
    Some(setup(model.clone(), plan, STEPS))
}

/// Every schedule, of one to four stages: slices, replicas and several chunks a stage among them,
/// with everything kept and everything recomputed.
#[test]
fn pipelines_over_documents_equal_the_reference() {
    const OPS: RecomputedOps = RecomputedOps { norm: false, attention: true, activation: true };
    let mut runs = 0;
    for (kind, stage_count) in
        ScheduleKind::ALL.into_iter().flat_map(|kind| (1..=4).map(move |stages| (kind, stages)))
    {
        let family = if runs % 2 == 0 { Family::Gpt2 } else { Family::Llama };
        let window = if runs % 3 == 0 { Window::Zero } else { Window::One };
        let Some(mut setup) = setup_of(&model(family), kind, stage_count, window) else { continue };
        let (digest, losses, held_out) = serial(&setup, documents());
        setup.plan = match runs % 4 {
            1 => setup.plan.with_recompute(Recompute::Full),
            2 => setup.plan.with_recompute(Recompute::Selective(OPS)),
            _ => setup.plan,
        };
        runs += 1;
        let policy = policy(setup.clip_norm, NonfinitePolicy::Skip);
        let threads = 1 + runs as usize % 2;
        let cluster = StageCluster::with_corpus(&setup, policy, threads, runs, documents());
        let outcome = cluster.run();
        let case = format!("{kind}, {family:?}, {stage_count} stages, window {window}");
        assert_eq!(outcome.digest, digest, "{case}");
        let reported: Vec<u64> = outcome.seals.iter().map(|seal| seal.loss_sum_bits).collect();
        let expected: Vec<u64> = losses.iter().map(|(_, sum)| *sum).collect();
        assert_eq!(reported, expected, "{case}");
        assert_eq!(outcome.evaluations, [(STEPS, held_out.expect("held-out text"))], "{case}");
    }
    assert_eq!(runs, 82, "a size that exists was left out, or there are more");
}

/// Documents, windows and targets each change what is learned, and a step without any target leaves
/// nothing but the decay of weights.
#[test]
fn what_is_masked_is_not_learned() {
    for family in [Family::Gpt2, Family::Llama] {
        let of = |model: &ModelConfig| {
            setup_of(model, ScheduleKind::GPipe, 1, Window::Zero).expect("one stage")
        };
        let (digest, losses, _) = serial(&of(&model(family)), documents());
        let (undivided, ..) = serial(&of(&model(family)), corpus());
        let (without_window, ..) = serial(&of(&tiny_model(family)), documents());
        assert!(digest != undivided && digest != without_window, "{family:?}");
        for (step, (loss, _)) in losses.iter().enumerate() {
            let expected = if Step(step as u64) == SILENT { 0.0..=0.0 } else { 3.0..=6.0 };
            assert!(expected.contains(loss), "{family:?} step {step}: a loss of {loss}");
        }
    }
}

#[test]
fn a_document_has_the_logits_it_has_alone() {
    const STARTS: [usize; 4] = [0, 1, 4, 8];
    let sequence_len = 8;
    for family in [Family::Gpt2, Family::Llama] {
        let model = model(family);
        let logits = |inputs: &[u32], document_starts: Option<Vec<u32>>| {
            let sequence_len = inputs.len();
            let microbatch = MicrobatchShape { sequences: 1, sequence_len };
            let batch = BatchShape { microbatch, ..BATCH };
            let mut setup = setup_of(&model, ScheduleKind::GPipe, 1, Window::Zero).expect("it is");
            setup.plan.batch = batch;
            let backend = CpuBackend::new(1).expect("one thread");
            let mut run = SerialReference::new(&setup, backend, corpus()).expect("memory");
            let batch = TokenBatch::new(inputs.to_vec(), vec![0; sequence_len]);
            run.logits(&TokenBatch { document_starts, ..batch })
        };
        let inputs: Vec<u32> = (0..sequence_len).map(|at| 7 * at as u32 % 100).collect();
        let spans = STARTS.windows(2).map(|pair| pair[0]..pair[1]);
        let starts = spans.clone().flat_map(|span| vec![span.start as u32; span.len()]).collect();
        let packed = logits(&inputs, Some(starts));
        let alone: Vec<f32> = spans.flat_map(|span| logits(&inputs[span], None)).collect();
        assert_eq!(packed.len(), alone.len());
        for (packed, alone) in packed.iter().zip(&alone) {
            assert!((packed - alone).abs() < 1e-5, "{family:?}: {packed}, alone {alone}");
        }
    }
}
