//! The pipeline against the serial reference: the same bits, whatever the number of stages, the
//! split, the schedule, the window, the threads, the clipping and the rollbacks.

use crate::common::{BATCH, StageCluster, corpus, corpus_for, plan, policy, setup, tiny_model};
use zbelastic_consensus::validation::NonfinitePolicy;
use zbelastic_kernels::{CpuBackend, InstructionSet, Precision};
use zbelastic_schedule::{PipelineSize, ScheduleKind, Window, check_size};
use zbelastic_trainer::digest::StateDigest;
use zbelastic_trainer::model::{Family, LayerRange, ModelConfig};
use zbelastic_trainer::plan::{BatchShape, Plan, PlanRequest, ReplicaCount};
use zbelastic_trainer::reference::SerialReference;
use zbelastic_trainer::stage::{HELD_OUT_MAX, StageSetup};
use zbelastic_types::Step;

const STEPS: u64 = 6;
/// The step whose gradient is corrupted, as people count.
const STRUCK: u64 = 3;

/// The digest of a serial run, and how often each step was clipped.
fn serial(setup: &StageSetup, skipped: &[u64]) -> (StateDigest, Vec<f64>) {
    serial_on(CpuBackend::new(1).expect("one thread"), setup, skipped)
}

fn serial_on(backend: CpuBackend, setup: &StageSetup, skipped: &[u64]) -> (StateDigest, Vec<f64>) {
    let mut run = SerialReference::new(setup, backend, corpus()).expect("memory");
    let step = |step| run.step(Step(step), skipped.contains(&(step + 1))).norm;
    let norms = (0..setup.step_count).map(step).collect();
    (run.digest(), norms)
}

fn base(model: &ModelConfig) -> StageSetup {
    setup(model.clone(), plan(model, ScheduleKind::GPipe, 1, Window::Zero), STEPS)
}

/// Never clips, clips about half of the steps, clips all.
fn clip_norms(model: &ModelConfig) -> [(&'static str, Option<f64>); 3] {
    let mut norms = serial(&base(model), &[]).1;
    norms.sort_by(f64::total_cmp);
    let often = f64::midpoint(norms[STEPS as usize / 2 - 1], norms[STEPS as usize / 2]);
    [("never", None), ("often", Some(often)), ("always", Some(norms[0] / 100.0))]
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum InjectedNan {
    Nothing,
    NanReplayed,
    NanSkipped,
}

fn strike(setup: &mut StageSetup, injected: InjectedNan) -> NonfinitePolicy {
    let text = format!("step={STRUCK},tensor=layers.2.mlp.up,value=nan");
    if injected != InjectedNan::Nothing {
        setup.injections = vec![text.parse().expect("a legal injection")];
    }
    match injected {
        InjectedNan::NanReplayed => NonfinitePolicy::Replay,
        InjectedNan::Nothing | InjectedNan::NanSkipped => NonfinitePolicy::Skip,
    }
}

/// The schedules that are tried with all that may befall a run. The others run the same operations
/// in other orders: they have [`other_orders_equal_the_reference`].
const EVERYTHING_TRIED: [ScheduleKind; 7] = [
    ScheduleKind::GPipe,
    ScheduleKind::OneFOneB,
    ScheduleKind::Interleaved,
    ScheduleKind::ZbH1,
    ScheduleKind::ZbH2,
    ScheduleKind::ZbAuto,
    ScheduleKind::ZbV,
];

/// Every schedule with every window and number of threads for one family, each with every clipping and with all that
/// may befall a run, in three pairs of the nine that there are: which ones goes on from schedule to schedule. All nine
/// with `ZBELASTIC_ALL_CASES`. `seed` orders the messages.
fn check_matrix(family: Family, stage_count: u32) {
    let model = tiny_model(family);
    let tries_all = std::env::var_os("ZBELASTIC_ALL_CASES").is_some();
    let mut runs = 0;
    let mut seed = u64::from(stage_count);
    for (clip, (clip_name, clip_norm)) in clip_norms(&model).into_iter().enumerate() {
        let mut serial_setup = base(&model);
        serial_setup.clip_norm = clip_norm;
        let straight = serial(&serial_setup, &[]).0;
        let skipping = serial(&serial_setup, &[STRUCK]).0;
        assert_ne!(straight, skipping);
        for (order, kind) in EVERYTHING_TRIED.into_iter().enumerate() {
            for window in [Window::Zero, Window::One] {
                for threads in [1, 2] {
                    for injected in
                        [InjectedNan::Nothing, InjectedNan::NanReplayed, InjectedNan::NanSkipped]
                    {
                        seed += 1;
                        if !tries_all && !(clip + order + injected as usize).is_multiple_of(3) {
                            continue;
                        }
                        runs += 1;
                        let mut setup =
                            setup(model.clone(), plan(&model, kind, stage_count, window), STEPS);
                        setup.clip_norm = clip_norm;
                        let policy = policy(clip_norm, strike(&mut setup, injected));
                        let outcome = StageCluster::new(&setup, policy, threads, seed).run();
                        let case = format!(
                            "{family:?} {stage_count} stages {kind} window {window} {threads} \
                             threads clip {clip_name} {injected:?}"
                        );
                        let expected = match injected {
                            InjectedNan::Nothing | InjectedNan::NanReplayed => straight,
                            InjectedNan::NanSkipped => skipping,
                        };
                        assert_eq!(outcome.digest, expected, "{case}");
                        let replays = usize::from(injected == InjectedNan::NanReplayed);
                        assert_eq!(outcome.verdicts("replay"), replays, "{case}");
                        let skips = usize::from(injected == InjectedNan::NanSkipped);
                        assert_eq!(outcome.verdicts("skip"), skips, "{case}");
                        let kept = outcome.verdicts("keep");
                        match clip_name {
                            "never" => assert_eq!(outcome.verdicts("clip"), 0, "{case}"),
                            "always" => assert_eq!(kept, 0, "{case}"),
                            _ => assert!(kept > 0 && outcome.verdicts("clip") > 0, "{case}"),
                        }
                    }
                }
            }
        }
    }
    let pairs = if tries_all { 9 } else { 3 };
    assert_eq!(runs, EVERYTHING_TRIED.len() * 2 * 2 * pairs);
}

#[test]
fn one_stage_equals_the_reference() {
    check_matrix(Family::Gpt2, 1);
}

#[test]
fn two_stages_equal_the_reference() {
    check_matrix(Family::Gpt2, 2);
}

#[test]
fn three_stages_equal_the_reference() {
    check_matrix(Family::Llama, 3);
}

#[test]
fn four_stages_equal_the_reference() {
    check_matrix(Family::Llama, 4);
}

/// Every order and number of chunks that is not in the matrix, with one more of the things that may
/// befall a run each time.
#[test]
fn other_orders_equal_the_reference() {
    let model = tiny_model(Family::Llama);
    let mut runs = 0;
    for microbatch_count in [12, 7] {
        let batch = BatchShape { microbatch_count, ..BATCH };
        let corpus = corpus_for(batch, 0.05);
        let serial = |skipped: &[u64]| {
            let mut setup = base(&model);
            (setup.plan.batch, setup.clip_norm) = (batch, Some(0.5));
            let backend = CpuBackend::new(1).expect("one thread");
            let mut run = SerialReference::new(&setup, backend, corpus.clone()).expect("memory");
            for step in 0..STEPS {
                run.step(Step(step), skipped.contains(&(step + 1)));
            }
            run.digest()
        };
        let straight = serial(&[]);
        let skipping = serial(&[STRUCK]);
        for (request, chunks) in other_orders(&model, batch) {
            runs += 1;
            let mut setup = setup(model.clone(), Plan::new(request).expect("it exists"), STEPS);
            setup.clip_norm = Some(0.5);
            let befalls = [InjectedNan::Nothing, InjectedNan::NanReplayed, InjectedNan::NanSkipped];
            let injected = befalls[runs as usize % befalls.len()];
            let policy = policy(Some(0.5), strike(&mut setup, injected));
            let threads = 1 + runs as usize % 2;
            let cluster = StageCluster::with_corpus(&setup, policy, threads, runs, corpus.clone());
            let expected = if injected == InjectedNan::NanSkipped { skipping } else { straight };
            let PlanRequest { kind, stage_count, window, .. } = request;
            assert_eq!(
                cluster.run().digest,
                expected,
                "{kind}, {stage_count} stages of {chunks} chunks, {microbatch_count} microbatches, \
                 window {window}, {injected:?}"
            );
        }
    }
    assert_eq!(runs, 133, "a size that exists was left out, or there are more");
}

/// Plans with several chunks a stage, as far as they exist, and how many chunks those are.
fn other_orders(model: &ModelConfig, batch: BatchShape) -> Vec<(PlanRequest<'_>, u32)> {
    let mut requests = Vec::new();
    // What runs slices has another reference: see `slices.rs`.
    let is_here = |kind: &ScheduleKind| kind.replica_count() == 1 && !kind.is_sliced();
    for kind in ScheduleKind::ALL.into_iter().filter(is_here) {
        let least = kind.chunk_counts().least();
        for (stage_count, chunks) in (1..=4).map(|p| (p, least)).chain([(1, 4), (2, 5), (3, 3)]) {
            if EVERYTHING_TRIED.contains(&kind) && chunks == least {
                continue;
            }
            let size = PipelineSize {
                stage_count,
                chunks_per_stage: chunks,
                microbatch_count: batch.microbatch_count,
                slice_count: 1,
            };
            if check_size(kind, size).is_ok() {
                let window = if requests.len() % 2 == 0 { Window::One } else { Window::Zero };
                let chunks_per_stage = Some(chunks);
                let request = PlanRequest {
                    model,
                    batch,
                    kind,
                    chunks_per_stage,
                    slice_count: None,
                    stage_count,
                    replicas: ReplicaCount::ONE,
                    window,
                };
                requests.push((request, chunks));
            }
        }
    }
    requests
}

#[test]
fn uneven_splits_equal_the_reference() {
    let model = tiny_model(Family::Gpt2);
    let mut serial_setup = base(&model);
    serial_setup.clip_norm = Some(0.5);
    let (expected, _) = serial(&serial_setup, &[]);
    let check = |kind, stage_count, ends: &[u32]| {
        let starts = std::iter::once(0).chain(ends.iter().copied());
        let chunks = starts.zip(ends).map(|(start, end)| LayerRange::new(start, *end)).collect();
        let model = &model;
        let window = Window::One;
        let chunks_per_stage = None;
        let request = PlanRequest {
            model,
            batch: BATCH,
            kind,
            chunks_per_stage,
            slice_count: None,
            stage_count,
            replicas: ReplicaCount::ONE,
            window,
        };
        let plan = Plan::with_chunks(request, chunks).expect("a legal split");
        let mut setup = setup(model.clone(), plan, STEPS);
        setup.clip_norm = Some(0.5);
        let policy = policy(Some(0.5), NonfinitePolicy::Skip);
        let outcome = StageCluster::new(&setup, policy, 1, 77).run();
        assert_eq!(outcome.digest, expected, "{kind} {ends:?}");
    };
    check(ScheduleKind::ZbH1, 2, &[1, 10]);
    check(ScheduleKind::ZbH2, 2, &[9, 10]);
    check(ScheduleKind::OneFOneB, 3, &[2, 9, 10]);
    check(ScheduleKind::ZbH2, 4, &[4, 5, 6, 10]);
    check(ScheduleKind::GPipe, 4, &[1, 2, 3, 10]);
    check(ScheduleKind::Interleaved, 3, &[1, 2, 6, 7, 8, 10]);
    check(ScheduleKind::ZbV, 3, &[2, 3, 5, 6, 8, 10]);
    check(ScheduleKind::ZbV, 2, &[4, 5, 6, 10]);
}

#[test]
fn held_out_loss_is_the_references_and_changes_nothing() {
    let model = tiny_model(Family::Llama);
    let mut serial_setup = base(&model);
    serial_setup.clip_norm = Some(0.5);
    let backend = CpuBackend::new(1).expect("one thread");
    let mut run = SerialReference::new(&serial_setup, backend, corpus()).expect("memory");
    let mut expected = Vec::new();
    for step in 0..STEPS {
        run.step(Step(step), false);
        if (step + 1) % 2 == 0 {
            expected.push((
                step + 1,
                run.held_out_loss(HELD_OUT_MAX).expect("no fault").expect("there is some"),
            ));
        }
    }
    assert!(expected.len() == 3 && expected[2].1 < expected[0].1, "{expected:?}");
    let is_here = |kind: &ScheduleKind| kind.replica_count() == 1 && !kind.is_sliced();
    for kind in ScheduleKind::ALL.into_iter().filter(is_here) {
        for window in [Window::Zero, Window::One] {
            let mut setup = setup(model.clone(), plan(&model, kind, 3, window), STEPS);
            (setup.clip_norm, setup.evaluate_every) = (Some(0.5), 2);
            let policy = policy(Some(0.5), NonfinitePolicy::Skip);
            let outcome = StageCluster::new(&setup, policy, 1, 5).run();
            assert_eq!(outcome.digest, run.digest(), "{kind} {window}");
            assert_eq!(outcome.evaluations, expected, "{kind} {window}");
        }
    }
}

#[test]
fn a_halted_run_ends_sealed_at_the_requested_step() {
    let model = tiny_model(Family::Gpt2);
    let mut serial_setup = base(&model);
    serial_setup.clip_norm = Some(0.5);
    let backend = CpuBackend::new(1).expect("one thread");
    let mut run = SerialReference::new(&serial_setup, backend, corpus()).expect("memory");
    for step in 0..3 {
        run.step(Step(step), false);
    }
    for seed in 0..20 {
        for kind in [ScheduleKind::ZbH2, ScheduleKind::ZbV, ScheduleKind::OneFOneB] {
            let mut setup = setup(model.clone(), plan(&model, kind, 4, Window::One), STEPS);
            setup.clip_norm = Some(0.5);
            let policy = policy(Some(0.5), NonfinitePolicy::Skip);
            let outcome = StageCluster::new(&setup, policy, 1, seed).halt_after(3).run();
            assert_eq!(outcome.digest, run.digest(), "{kind}, seed {seed}");
            assert_eq!(outcome.seals.len(), 3);
        }
    }
}

#[test]
fn rollbacks_happen_and_the_order_of_messages_changes_nothing() {
    let model = tiny_model(Family::Gpt2);
    let (_, norms) = serial(&base(&model), &[]);
    // Above what the first stages contribute, below the whole: gates open and verdicts clip.
    let clip_norm = Some(norms.iter().copied().fold(f64::INFINITY, f64::min) * 0.97);
    let mut serial_setup = base(&model);
    serial_setup.clip_norm = clip_norm;
    let (expected, _) = serial(&serial_setup, &[]);
    let mut rollbacks = 0;
    for seed in 0..40 {
        let mut setup =
            setup(model.clone(), plan(&model, ScheduleKind::ZbH2, 4, Window::One), STEPS);
        setup.clip_norm = clip_norm;
        let outcome =
            StageCluster::new(&setup, policy(clip_norm, NonfinitePolicy::Skip), 1, seed).run();
        assert_eq!(outcome.digest, expected, "seed {seed}");
        rollbacks += outcome.rollbacks;
    }
    assert!(rollbacks > 40, "only {rollbacks} candidates were dropped");
}

#[test]
fn held_out_text_is_read_with_few_microbatches_under_way() {
    let model = tiny_model(Family::Gpt2);
    for microbatch_count in [1, 2, 3] {
        let batch = BatchShape { microbatch_count, ..BATCH };
        let corpus = corpus_for(batch, 0.3);
        for kind in [ScheduleKind::OneFOneB, ScheduleKind::ZbH1, ScheduleKind::ZbV] {
            let stage_count = 3;
            let window = Window::One;
            let model = &model;
            let chunks_per_stage = None;
            let request = PlanRequest {
                model,
                batch,
                kind,
                chunks_per_stage,
                slice_count: None,
                stage_count,
                replicas: ReplicaCount::ONE,
                window,
            };
            let mut setup = setup(model.clone(), Plan::new(request).expect("legal"), 2);
            setup.evaluate_every = 1;
            let policy = policy(setup.clip_norm, NonfinitePolicy::Skip);
            let cluster = StageCluster::with_corpus(&setup, policy, 1, 5, corpus.clone());
            let outcome = cluster.run();

            let backend = CpuBackend::new(1).expect("one thread");
            let mut run = SerialReference::new(&setup, backend, corpus.clone()).expect("memory");
            let losses = (0..2).map(|step| {
                run.step(Step(step), false);
                (
                    step + 1,
                    run.held_out_loss(HELD_OUT_MAX).expect("no fault").expect("there is some"),
                )
            });
            assert_eq!(outcome.evaluations, losses.collect::<Vec<_>>(), "{kind}");
            assert_eq!(outcome.digest, run.digest(), "{kind}");
        }
    }
}

/// The bits of two small runs, with every instruction set that the machine has. What changes them
/// changes every run; it must be meant, and noted in the changelog.
#[test]
fn digests_are_those_of_the_version_before() {
    let check = |family, expected: &str| {
        for set in InstructionSet::available() {
            let backend = CpuBackend::with_instructions(2, set).expect("two threads");
            let digest = serial_on(backend, &base(&tiny_model(family)), &[]).0;
            assert_eq!(digest.to_string(), expected, "{family:?}, {set}");
        }
    };
    check(Family::Gpt2, "c51af017c57c248894e79a3e63aea5de68b2be7be4cd5f3dafd0d3be83ac617e");
    check(Family::Llama, "ffc4c10b19e8b8b0d0338d16461aa92e37a392f066717fda869b36562922e9b1");
}

/// The bits of two small runs whose products are of bfloat16 numbers: with every instruction set that
/// the machine has, and in pipelines that compute steps again or skip them.
#[test]
fn digests_of_bfloat16_are_those_of_the_version_before() {
    let check = |family, expected: [&str; 2]| {
        let model = tiny_model(family);
        for set in InstructionSet::available() {
            let backend = |threads| {
                let backend = CpuBackend::with_instructions(threads, set).expect("two threads");
                backend.with_precision(Precision::Bf16)
            };
            for (skipped, expected) in [&[][..], &[STRUCK]].into_iter().zip(expected) {
                let digest = serial_on(backend(2), &base(&model), skipped).0;
                assert_eq!(digest.to_string(), expected, "{family:?}, {set}");
            }
            let kinds = if set == InstructionSet::available()[0] {
                &EVERYTHING_TRIED[..]
            } else {
                &[ScheduleKind::ZbV]
            };
            for (kind, injected) in kinds
                .iter()
                .zip([InjectedNan::NanReplayed, InjectedNan::NanSkipped].into_iter().cycle())
            {
                let mut setup = setup(model.clone(), plan(&model, *kind, 3, Window::One), STEPS);
                let policy = policy(setup.clip_norm, strike(&mut setup, injected));
                let cluster =
                    StageCluster::on_backends(&setup, policy, 7, corpus(), |_| backend(1));
                let digest = cluster.run().digest.to_string();
                let expected = expected[usize::from(injected == InjectedNan::NanSkipped)];
                assert_eq!(digest, expected, "{family:?}, {set}, {kind}, {injected:?}");
            }
        }
    };
    check(
        Family::Gpt2,
        [
            "67a04e13cd9b7b8f2a2ebee79913501f71df80f3f7aea1566693a0c18353c144",
            "e6083a4b3cbc8fe3f04b61f81c26d2113e14ba4009b813b9114724f6a4970f52",
        ],
    );
    check(
        Family::Llama,
        [
            "c18dbb0d8e726fa64628580dd22c2d66d72dc1c0c42b22777cd802ce09e3fa92",
            "d8cd3020bad1240ff4b8e0517420c6aae4150b7322d517dce283822c8ee5dfbd",
        ],
    );
}
