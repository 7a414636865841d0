//! Models whose head is tied to the token embedding: one matrix at both ends of the pipeline. The
//! bits of the serial reference, whatever the stages, the schedule, the window, the threads, the
//! clipping and the rollbacks; and that reference against finite differences.

use std::sync::Arc;

use crate::common::serial::{SerialRuns, StruckStepFate, check_norms, reference, serial};
use crate::common::{
    BATCH, PIPEDREAM, StageCluster, every_plan, offloaded, plan, policy, setup, tiny_model,
};
use zbelastic_consensus::validation::NonfinitePolicy;
use zbelastic_kernels::{BufferView, CpuBackend, DeviceMemory};
use zbelastic_schedule::{Op, Reduction, ScheduleKind, Window};
use zbelastic_trainer::asynchronous::{AsyncPlan, AsyncPlanError};
use zbelastic_trainer::model::{Family, ModelConfig, Recompute, model_layers, model_size};
use zbelastic_trainer::optimizer::OptimizerKind;
use zbelastic_trainer::plan::{Pace, Plan, plan_period, stage_memory};
use zbelastic_trainer::random::{RandomPurpose, RandomStream};
use zbelastic_trainer::stage::{InitialWeights, StageSetup};
use zbelastic_types::{Bytes, StageIndex, Step};

const STEPS: u64 = 4;
/// The step whose gradient is corrupted, as people count.
const STRUCK: u64 = 3;
const CLIP_NORM: Option<f64> = Some(0.5);

fn tied_model(family: Family) -> ModelConfig {
    ModelConfig { tied: true, ..tiny_model(family) }
}

fn tied_setup(plan: Plan, family: Family) -> StageSetup {
    StageSetup { clip_norm: CLIP_NORM, ..setup(tied_model(family), plan, STEPS) }
}

/// Lanes and slices are a part of the arithmetic; stages, chunks and orders are not.
#[test]
fn every_schedule_has_the_bits_of_the_reference() {
    let mut kinds = std::collections::BTreeSet::new();
    let (mut local, mut sent) = (0, 0);
    for family in [Family::Gpt2, Family::Llama] {
        let model = tied_model(family);
        let mut serial_runs = SerialRuns::default();
        for (run, plan) in every_plan(&model).into_iter().enumerate() {
            let fate = StruckStepFate::ALL[run % StruckStepFate::ALL.len()];
            let threads = 1 + run % 2;
            let (stage_count, window) = (plan.placement().stage_count(), plan.program.window);
            let kind = plan.program.kind;
            let case = format!("{family:?} {kind} {stage_count} stages {window:?} {fate:?}");
            kinds.insert(format!("{kind} {stage_count}"));
            let is_sent = |op: &Op| matches!(op, Op::Reduce(Reduction::SendTied, _));
            match plan.program.stages.iter().flatten().any(is_sent) {
                true => sent += 1,
                false => local += 1,
            }
            let mut setup = tied_setup(plan, family);
            let skipped = fate.skipped(STRUCK);
            let (steps, digest) = serial_runs.of(&setup, skipped);
            fate.strike(&mut setup, STRUCK, "embed.tokens");
            let policy = policy(CLIP_NORM, fate.policy());
            let outcome = StageCluster::new(&setup, policy, threads, run as u64).run();
            assert_eq!(outcome.digest, *digest, "{case}");
            check_norms(&outcome, steps, skipped, &case);
        }
    }
    assert!(local > 100 && sent > 100, "{local} plans with both ends on a stage, {sent} without");
    assert!(kinds.len() > 60, "{kinds:?}");
}

/// The digests of each partition are those of one stage without slices and replicas.
#[test]
fn partitions_of_one_arithmetic_have_one_digest() {
    let model = tied_model(Family::Gpt2);
    let one = tied_setup(plan(&model, ScheduleKind::GPipe, 1, Window::Zero), Family::Gpt2);
    let (_, expected) = serial(&one, None);
    for (kind, stage_count) in [(ScheduleKind::ZbH2, 4), (ScheduleKind::ZbV, 3)] {
        let setup = tied_setup(plan(&model, kind, stage_count, Window::One), Family::Gpt2);
        assert_eq!(serial(&setup, None).1, expected);
    }
    let untied = setup(tiny_model(Family::Gpt2), one.plan.clone(), STEPS);
    let untied = StageSetup { clip_norm: CLIP_NORM, ..untied };
    assert_ne!(serial(&untied, None).1, expected);
}

/// A gradient that was corrupted and stays finite is applied: by both ends alike.
#[test]
fn a_corrupted_gradient_is_corrupted_at_both_ends() {
    let model = tied_model(Family::Llama);
    let digest = |kind, stage_count, text: &str| {
        let mut setup = tied_setup(plan(&model, kind, stage_count, Window::One), Family::Llama);
        setup.injections = vec![text.parse().expect("a legal injection")];
        let policy = policy(CLIP_NORM, NonfinitePolicy::Skip);
        StageCluster::new(&setup, policy, 1, 9).run().digest
    };
    let flip = "step=2,tensor=embed.tokens,bit=22";
    let expected = digest(ScheduleKind::GPipe, 1, flip);
    assert_eq!(digest(ScheduleKind::ZbH1, 3, flip), expected);
    assert_eq!(digest(ScheduleKind::ZbV, 2, flip), expected);
    let beyond = "step=9,tensor=embed.tokens,bit=22";
    assert_ne!(digest(ScheduleKind::GPipe, 1, beyond), expected);
}

/// Copies that follow the gradients of owners have their bits, of both ends.
#[test]
fn copies_follow_the_gradient_of_both_ends() {
    let model = tied_model(Family::Gpt2);
    for (kind, stage_count) in [(ScheduleKind::ZbH1, 3), (ScheduleKind::ZbV, 2)] {
        let mut setup = tied_setup(plan(&model, kind, stage_count, Window::One), Family::Gpt2);
        (setup.copies_wanted, setup.attest_every) = (true, 1);
        let policy = policy(CLIP_NORM, NonfinitePolicy::Skip);
        let outcome = StageCluster::new(&setup, policy, 1, 4).witnessed(&setup).run();
        let layers = model_layers(&model).len();
        assert_eq!(outcome.witnessed, layers * STEPS as usize, "{kind}");
    }
}

#[test]
fn less_memory_changes_no_bit() {
    let model = tied_model(Family::Llama);
    let plan = plan(&model, ScheduleKind::ZbH1, 3, Window::One);
    let (_, expected) = serial(&tied_setup(plan.clone(), Family::Llama), None);
    for plan in [plan.clone().with_recompute(Recompute::Full), offloaded(&plan, 0.5)] {
        assert!(plan.program.is_tied());
        let setup = tied_setup(plan, Family::Llama);
        let policy = policy(CLIP_NORM, NonfinitePolicy::Skip);
        assert_eq!(StageCluster::new(&setup, policy, 1, 2).run().digest, expected);
    }
}

/// The directional derivative of the loss, along a direction that changes the matrix at both ends.
#[test]
fn the_gradient_of_the_matrix_is_that_of_finite_differences() {
    for family in [Family::Gpt2, Family::Llama] {
        let model = tied_model(family);
        let mut setup = tied_setup(plan(&model, ScheduleKind::GPipe, 1, Window::Zero), family);
        let specs = model_layers(&model);
        let start: Vec<Vec<f32>> =
            specs.iter().map(|spec| setup.weights.of_layer(spec).to_vec()).collect();
        let ends = [0, specs.len() - 1];
        let ranges = ends.map(|layer| specs[layer].tied_range().expect("both ends have it"));
        assert_eq!(start[ends[0]][ranges[0].clone()], start[ends[1]][ranges[1].clone()]);
        let draws = RandomStream::new(8, RandomPurpose::Sampling, 0);
        let direction: Vec<f32> = (0..ranges[0].len() as u64)
            .map(|i| if draws.block(i)[0].is_multiple_of(2) { 1.0 } else { -1.0 })
            .collect();
        let mut loss_at = |distance: f32| {
            let mut weights = start.clone();
            for (layer, range) in ends.iter().zip(&ranges) {
                let matrix = &mut weights[*layer][range.clone()];
                matrix.iter_mut().zip(&direction).for_each(|(w, d)| *w += distance * d);
            }
            setup.weights = InitialWeights::Given(Arc::new(weights));
            let mut run = reference(&setup);
            let loss = run.step(Step(0), true).loss;
            let layer = &run.layers()[ends[1]];
            (loss, run.backend().download(BufferView::new(&layer.g, ranges[1].clone())))
        };
        let (_, gradient) = loss_at(0.0);
        const DISTANCE: f32 = 1e-3;
        let slope = (loss_at(DISTANCE).0 - loss_at(-DISTANCE).0) / (2.0 * f64::from(DISTANCE));
        let expected: f64 =
            gradient.iter().zip(&direction).map(|(g, d)| f64::from(*g) * f64::from(*d)).sum();
        assert!((slope - expected).abs() < 0.01 * expected.abs(), "{slope}, expected {expected}");
    }
}

#[test]
fn the_matrix_is_counted_once_and_kept_at_both_ends() {
    let tied = tied_model(Family::Llama);
    let untied = tiny_model(Family::Llama);
    let matrix = u64::from(tied.vocabulary * tied.width);
    let (tensors, parameters) = model_size(&untied);
    assert_eq!(model_size(&tied), (tensors - 1, parameters - matrix));
    let len = |model| model_layers(model).iter().map(|spec| spec.len() as u64).sum::<u64>();
    assert_eq!((len(&tied), len(&untied)), (parameters, parameters));
}

/// Each end has memory for the part that it sends, the one that arrives and its own beside it, a
/// stage with both ends for as many; and messages last as long as the matrix needs.
#[test]
fn plans_count_the_exchange() {
    let model = tied_model(Family::Gpt2);
    let backend = CpuBackend::new(1).expect("one thread");
    let messages = |model: &ModelConfig, kind, stage| {
        let plan = plan(model, kind, 3, Window::One);
        stage_memory(&backend, model, OptimizerKind::AdamW, &plan, StageIndex(stage)).messages
    };
    let untied = tiny_model(Family::Gpt2);
    let matrix = Bytes::of_f32(3 * (model.vocabulary * model.width) as usize);
    for (kind, stage, expected) in [
        (ScheduleKind::ZbH1, 0, matrix),
        (ScheduleKind::ZbH1, 1, Bytes(0)),
        (ScheduleKind::ZbH1, 2, matrix),
        (ScheduleKind::ZbV, 0, matrix),
        (ScheduleKind::ZbV, 1, Bytes(0)),
    ] {
        assert_eq!(messages(&model, kind, stage), messages(&untied, kind, stage) + expected);
    }
    let period = |kind, gradient| {
        let plan = plan(&model, kind, 3, Window::One);
        let mut pace = Pace::estimated(&model, BATCH.microbatch);
        pace.gradients = vec![gradient; model.layer_count() as usize];
        plan_period(&plan, &pace)
    };
    let step = period(ScheduleKind::OneFOneB, 0.0);
    assert!(period(ScheduleKind::OneFOneB, step) > step, "a slow link is waited for");
    assert_eq!(period(ScheduleKind::ZbV, step), period(ScheduleKind::ZbV, 0.0));
}

#[test]
fn schedules_without_steps_refuse_a_tied_model() {
    let request = PIPEDREAM;
    let kind = request.kind;
    let found = AsyncPlan::new(&tied_model(Family::Gpt2), BATCH, request);
    assert_eq!(found, Err(AsyncPlanError::Tied { kind }));
    let untied = AsyncPlan::new(&tiny_model(Family::Gpt2), BATCH, request);
    assert!(!matches!(untied, Err(AsyncPlanError::Tied { .. })));
}
