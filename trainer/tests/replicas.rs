//! Schedules with two replicas of the model against the serial reference of two lanes, which knows of
//! no replica: the same bits, whatever the number of stages, the schedule, the window, the threads,
//! the clipping and the rollbacks; and both replicas end with the same bits.

use std::sync::Arc;

use crate::common::serial::StruckStepFate;
use crate::common::{StageCluster, corpus_for, policy, setup, tiny_model};
use zbelastic_consensus::validation::NonfinitePolicy;
use zbelastic_kernels::{ByteCounts, CpuBackend};
use zbelastic_schedule::{GenerateError, ScheduleKind, Window};
use zbelastic_trainer::data::Corpus;
use zbelastic_trainer::digest::StateDigest;
use zbelastic_trainer::model::{Family, LayerRange, LayerSpec, ModelConfig, model_layers};
use zbelastic_trainer::optimizer::OptimizerKind;
use zbelastic_trainer::plan::{
    BatchShape, HeldBeside, LaneCount, LaneError, Plan, PlanError, PlanRequest, ReplicaCount,
    plan_memory, stage_memory,
};
use zbelastic_trainer::reference::{ReferenceStep, SerialReference};
use zbelastic_trainer::stage::{HELD_OUT_MAX, StageSetup};
use zbelastic_types::{Bytes, StageIndex, Step};

const STEPS: u64 = 5;
/// The step whose gradient is corrupted, as people count.
const STRUCK: u64 = 3;

fn request(
    model: &ModelConfig,
    batch: BatchShape,
    kind: ScheduleKind,
    stage_count: u32,
    window: Window,
) -> PlanRequest<'_> {
    PlanRequest {
        model,
        batch,
        kind,
        chunks_per_stage: None,
        slice_count: None,
        stage_count,
        replicas: ReplicaCount::ONE,
        window,
    }
}

/// The batch of the other tests in two lanes.
const BATCH: BatchShape = BatchShape { lanes: TWO_LANES, ..crate::common::BATCH };
const TWO_LANES: LaneCount = match LaneCount::new(2) {
    Ok(lanes) => lanes,
    Err(_) => panic!("2 is a power of two"),
};

/// The setup of a serial run of as many lanes: the schedule has one direction.
fn serial_setup(model: &ModelConfig, batch: BatchShape) -> StageSetup {
    let request = request(model, batch, ScheduleKind::GPipe, 1, Window::Zero);
    setup(model.clone(), Plan::new(request).expect("a legal plan"), STEPS)
}

fn serial(
    setup: &StageSetup,
    corpus: &Arc<Corpus>,
    skipped: &[u64],
) -> (StateDigest, Vec<ReferenceStep>) {
    let backend = CpuBackend::new(1).expect("one thread");
    let mut run = SerialReference::new(setup, backend, corpus.clone()).expect("memory");
    let step = |step| run.step(Step(step), skipped.contains(&(step + 1)));
    let steps = (0..setup.step_count).map(step).collect();
    (run.digest(), steps)
}

/// The sizes that exist for the four blocks of the model.
const SIZES: [(ScheduleKind, u32); 6] = [
    (ScheduleKind::Gems, 1),
    (ScheduleKind::Gems, 2),
    (ScheduleKind::Gems, 3),
    (ScheduleKind::Gems, 4),
    (ScheduleKind::Chimera, 2),
    (ScheduleKind::Chimera, 4),
];

#[test]
fn both_replicas_equal_the_reference_whatever_befalls_them() {
    let mut runs = 0;
    for (family, microbatch_count) in
        [(Family::Gpt2, 12), (Family::Llama, 8), (Family::Gpt2, 2), (Family::Llama, 4)]
    {
        let model = tiny_model(family);
        let batch = BatchShape { microbatch_count, ..BATCH };
        let corpus = corpus_for(batch, 0.05);
        let mut norms: Vec<f64> =
            serial(&serial_setup(&model, batch), &corpus, &[]).1.iter().map(|s| s.norm).collect();
        norms.sort_by(f64::total_cmp);
        let often = f64::midpoint(norms[1], norms[2]);
        for clip_norm in [None, Some(often), Some(norms[0] / 100.0)] {
            let mut serial_setup = serial_setup(&model, batch);
            serial_setup.clip_norm = clip_norm;
            let straight = serial(&serial_setup, &corpus, &[]).0;
            let skipping = serial(&serial_setup, &corpus, &[STRUCK]).0;
            assert_ne!(straight, skipping);
            for (kind, stage_count) in SIZES {
                for window in [Window::Zero, Window::One] {
                    for injected in StruckStepFate::ALL {
                        runs += 1;
                        let request = request(&model, batch, kind, stage_count, window);
                        let plan = Plan::new(request).expect("a legal plan");
                        let mut setup = setup(model.clone(), plan, STEPS);
                        setup.clip_norm = clip_norm;
                        // In the middle of the model, so that both holders are struck.
                        injected.strike(&mut setup, STRUCK, "layers.2.mlp.up");
                        let policy = policy(clip_norm, injected.policy());
                        let threads = 1 + runs as usize % 2;
                        let cluster = StageCluster::with_corpus(
                            &setup,
                            policy,
                            threads,
                            runs,
                            corpus.clone(),
                        );
                        let outcome = cluster.run();
                        let expected =
                            if injected == StruckStepFate::Skipped { skipping } else { straight };
                        let case = format!(
                            "{kind} {stage_count} stages {microbatch_count} microbatches {window} \
                             {clip_norm:?} {injected:?}"
                        );
                        assert_eq!(outcome.digest, expected, "{case}");
                        assert_eq!(outcome.twins, model.layer_count() as usize, "{case}");
                        let count = |of| usize::from(injected == of);
                        assert_eq!(
                            outcome.verdicts("replay"),
                            count(StruckStepFate::Replayed),
                            "{case}"
                        );
                        assert_eq!(
                            outcome.verdicts("skip"),
                            count(StruckStepFate::Skipped),
                            "{case}"
                        );
                        let clips = outcome.verdicts("clip");
                        assert_eq!(clips > 0, clip_norm.is_some(), "{case}");
                    }
                }
            }
        }
    }
    assert_eq!(runs, 4 * 3 * 6 * 2 * 3);
}

#[test]
fn norms_and_losses_are_reported_once_and_are_the_references_to_the_bit() {
    let model = tiny_model(Family::Gpt2);
    let corpus = corpus_for(BATCH, 0.05);
    let (_, steps) = serial(&serial_setup(&model, BATCH), &corpus, &[]);
    for (kind, stage_count) in SIZES {
        let request = request(&model, BATCH, kind, stage_count, Window::One);
        let setup = setup(model.clone(), Plan::new(request).expect("legal"), STEPS);
        let policy = policy(setup.clip_norm, NonfinitePolicy::Skip);
        let outcome = StageCluster::with_corpus(&setup, policy, 1, 3, corpus.clone()).run();
        let reported: Vec<(u64, u64)> =
            outcome.seals.iter().map(|seal| (seal.square_sum_bits, seal.loss_sum_bits)).collect();
        let expected: Vec<(u64, u64)> =
            steps.iter().map(|s| (s.square_sum.to_bits(), s.loss_sum.to_bits())).collect();
        assert_eq!(reported, expected, "{kind} {stage_count}");
    }
}

/// What is summed is the same; the order is another, and so are the last bits.
#[test]
fn lanes_are_the_same_sum_in_another_order() {
    let model = tiny_model(Family::Llama);
    let corpus = corpus_for(BATCH, 0.05);
    let (two, of_two) = serial(&serial_setup(&model, BATCH), &corpus, &[]);
    let (one, of_one) = serial(&serial_setup(&model, crate::common::BATCH), &corpus, &[]);
    assert_ne!(two, one);
    assert_eq!(of_two[0].loss_sum.to_bits(), of_one[0].loss_sum.to_bits());
    for (two, one) in of_two.iter().zip(&of_one) {
        assert!((two.norm - one.norm).abs() < 1e-4 * one.norm, "{two:?} {one:?}");
        assert!((two.loss - one.loss).abs() < 1e-4 * one.loss, "{two:?} {one:?}");
    }
}

/// Each direction runs a lane or more, and as many microbatches as the other.
#[test]
fn two_directions_need_two_lanes() {
    let model = tiny_model(Family::Gpt2);
    let kind = ScheduleKind::Chimera;
    let of = |batch| Plan::new(request(&model, batch, kind, 2, Window::One)).expect_err("no plan");
    let lanes = LaneCount::ONE;
    assert_eq!(of(crate::common::BATCH), PlanError::Lanes(LaneError::Directions { kind, lanes }));
    let odd = BatchShape { microbatch_count: 7, ..BATCH };
    assert_eq!(of(odd), PlanError::Generate(GenerateError::OddMicrobatches { kind, found: 7 }));
}

#[test]
fn held_out_text_is_read_once_and_changes_nothing() {
    let model = tiny_model(Family::Gpt2);
    let corpus = corpus_for(BATCH, 0.05);
    let backend = CpuBackend::new(1).expect("one thread");
    let serial_setup = serial_setup(&model, BATCH);
    let mut run = SerialReference::new(&serial_setup, backend, corpus.clone()).expect("memory");
    let mut expected = Vec::new();
    for step in 0..STEPS {
        run.step(Step(step), false);
        if (step + 1) % 2 == 0 || step + 1 == STEPS {
            expected.push((
                step + 1,
                run.held_out_loss(HELD_OUT_MAX).expect("no fault").expect("there is some"),
            ));
        }
    }
    for (kind, stage_count) in SIZES {
        for window in [Window::Zero, Window::One] {
            let request = request(&model, BATCH, kind, stage_count, window);
            let mut setup = setup(model.clone(), Plan::new(request).expect("legal"), STEPS);
            setup.evaluate_every = 2;
            let policy = policy(setup.clip_norm, NonfinitePolicy::Skip);
            let outcome = StageCluster::with_corpus(&setup, policy, 1, 9, corpus.clone()).run();
            assert_eq!(outcome.digest, run.digest(), "{kind} {stage_count} {window}");
            assert_eq!(outcome.evaluations, expected, "{kind} {stage_count} {window}");
        }
    }
}

#[test]
fn candidates_of_both_replicas_are_dropped_together() {
    let model = tiny_model(Family::Gpt2);
    let corpus = corpus_for(BATCH, 0.05);
    let (_, steps) = serial(&serial_setup(&model, BATCH), &corpus, &[]);
    // Above what the first stages contribute, below the whole: gates open and verdicts clip.
    let clip_norm = Some(steps.iter().map(|s| s.norm).fold(f64::INFINITY, f64::min) * 0.97);
    let mut serial_setup = serial_setup(&model, BATCH);
    serial_setup.clip_norm = clip_norm;
    let (expected, _) = serial(&serial_setup, &corpus, &[]);
    let mut rollbacks = 0;
    for seed in 0..20 {
        let request = request(&model, BATCH, ScheduleKind::Chimera, 4, Window::One);
        let mut setup = setup(model.clone(), Plan::new(request).expect("legal"), STEPS);
        setup.clip_norm = clip_norm;
        let policy = policy(clip_norm, NonfinitePolicy::Skip);
        let outcome = StageCluster::with_corpus(&setup, policy, 1, seed, corpus.clone()).run();
        assert_eq!(outcome.digest, expected, "seed {seed}");
        rollbacks += outcome.rollbacks;
    }
    assert!(rollbacks > 20, "only {rollbacks} candidates were dropped");
}

#[test]
fn a_halted_run_ends_sealed_at_the_requested_step() {
    let model = tiny_model(Family::Gpt2);
    let corpus = corpus_for(BATCH, 0.05);
    let serial_setup = serial_setup(&model, BATCH);
    let backend = CpuBackend::new(1).expect("one thread");
    let mut run = SerialReference::new(&serial_setup, backend, corpus.clone()).expect("memory");
    for step in 0..2 {
        run.step(Step(step), false);
    }
    for seed in 0..10 {
        let request = request(&model, BATCH, ScheduleKind::Chimera, 4, Window::One);
        let setup = setup(model.clone(), Plan::new(request).expect("legal"), STEPS);
        let policy = policy(setup.clip_norm, NonfinitePolicy::Skip);
        let cluster = StageCluster::with_corpus(&setup, policy, 1, seed, corpus.clone());
        assert_eq!(cluster.halt_after(2).run().digest, run.digest(), "seed {seed}");
    }
}

#[test]
fn uneven_splits_equal_the_reference() {
    let model = tiny_model(Family::Gpt2);
    let corpus = corpus_for(BATCH, 0.05);
    let (expected, _) = serial(&serial_setup(&model, BATCH), &corpus, &[]);
    let check = |kind, stage_count, ends: &[u32]| {
        let starts = std::iter::once(0).chain(ends.iter().copied());
        let chunks = starts.zip(ends).map(|(start, end)| LayerRange::new(start, *end)).collect();
        let request = request(&model, BATCH, kind, stage_count, Window::One);
        let plan = Plan::with_chunks(request, chunks).expect("a legal split");
        let setup = setup(model.clone(), plan, STEPS);
        let policy = policy(setup.clip_norm, NonfinitePolicy::Skip);
        let outcome = StageCluster::with_corpus(&setup, policy, 1, 7, corpus.clone()).run();
        assert_eq!(outcome.digest, expected, "{kind} {ends:?}");
    };
    check(ScheduleKind::Chimera, 2, &[1, 10]);
    check(ScheduleKind::Chimera, 4, &[4, 5, 6, 10]);
    check(ScheduleKind::Gems, 3, &[2, 9, 10]);
}

/// The stage in the middle of three has one state and two gradients of the middle of the model; the
/// others hold both ends.
#[test]
fn a_stage_claims_the_state_of_both_replicas() {
    let model = tiny_model(Family::Gpt2);
    let backend = CpuBackend::new(1).expect("one thread");
    let ranges: Vec<LayerRange> =
        [(0, 3), (3, 7), (7, 10)].map(|(start, end)| LayerRange::new(start, end)).to_vec();
    let of = |kind| {
        let batch = crate::common::batch_for(kind);
        let request = request(&model, batch, kind, 3, Window::One);
        let plan = Plan::with_chunks(request, ranges.clone()).expect("a legal split");
        let stages = (0..3).map(StageIndex);
        stages
            .map(|stage| stage_memory(&backend, &model, OptimizerKind::AdamW, &plan, stage))
            .collect::<Vec<_>>()
    };
    let once = of(ScheduleKind::GPipe);
    let twice = of(ScheduleKind::Gems);
    let state = |a: usize, b: usize| once[a].state + once[b].state;
    let specs = model_layers(&model);
    let gradient = |spec: &LayerSpec| backend.buffer_bytes(spec.gradient_len());
    let middle = specs[3..7].iter().map(gradient).sum();
    let found: Vec<Bytes> = twice.iter().map(|claim| claim.state).collect();
    assert_eq!(found, [state(0, 2), once[1].state + Bytes(middle), state(2, 0)]);
    // One microbatch a replica at a time, and the gradient of each twin.
    assert!(twice.iter().zip(&once).all(|(two, one)| two.stash < one.stash));
    assert!(twice.iter().all(|claim| claim.messages.0 > 0));
    // Of each layer one copy is kept, however often it is trained.
    let copies = |kind| -> Vec<Bytes> {
        let request = request(&model, BATCH, kind, 3, Window::One);
        let plan = Plan::with_chunks(request, ranges.clone()).expect("a legal split");
        plan_memory(&backend, &model, OptimizerKind::AdamW, &plan, HeldBeside::copies(1))
            .iter()
            .map(|claim| claim.copies)
            .collect()
    };
    assert_eq!(copies(ScheduleKind::Gems), copies(ScheduleKind::GPipe));
}
