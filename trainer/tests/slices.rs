//! Pipelines over slices of sequences, against the serial reference with as many slices: the same
//! bits, whatever the stages, the window, the order of the weights' gradients, the clipping and the
//! rollbacks. And that reference against the one that does not cut: nearly the same numbers.

use std::collections::BTreeMap;

use crate::common::{BATCH, StageCluster, corpus_for, policy, setup, tiny_model};
use zbelastic_consensus::validation::NonfinitePolicy;
use zbelastic_kernels::{BufferView, CpuBackend};
use zbelastic_schedule::{Program, ScheduleKind, Window, check};
use zbelastic_trainer::digest::StateDigest;
use zbelastic_trainer::model::{Family, MicrobatchShape, ModelConfig, Recompute, RecomputedOps};
use zbelastic_trainer::optimizer::OptimizerKind;
use zbelastic_trainer::plan::{
    BatchShape, Pace, Plan, PlanError, PlanRequest, ReplicaCount, SLICES_OF_EQUAL_TIME_MAX,
    SliceBalance, plan_period, stage_memory,
};
use zbelastic_trainer::reference::{ReferenceStep, SerialReference};
use zbelastic_trainer::stage::{BackendExecutor, HELD_OUT_MAX, StageSetup};
use zbelastic_types::{StageIndex, Step};

const STEPS: u64 = 4;
/// The step whose gradient is corrupted, as people count.
const STRUCK: u64 = 3;
const CLIP_NORM: Option<f64> = Some(0.5);
const KIND: ScheduleKind = ScheduleKind::Seq1F1B;

/// So many microbatches of sequences that one, two, four and eight slices divide.
fn batch(microbatch_count: u32) -> BatchShape {
    BatchShape { microbatch_count, ..BATCH }
}

/// So long that slices of equal time have unequal lengths.
const LONG: usize = 40;

/// So many microbatches of [`LONG`] sequences, which are cut into slices of equal time.
fn by_time(microbatch_count: u32) -> BatchShape {
    let microbatch = MicrobatchShape { sequence_len: LONG, ..BATCH.microbatch };
    BatchShape { microbatch, microbatch_count, cut_by: SliceBalance::Time, ..BATCH }
}

/// The model of the other tests, for sequences of any length here.
fn model_of(family: Family) -> ModelConfig {
    ModelConfig { positions: LONG as u32, ..tiny_model(family) }
}

fn request(
    model: &ModelConfig,
    batch: BatchShape,
    stage_count: u32,
    slices: u32,
    window: Window,
) -> PlanRequest<'_> {
    let slice_count = Some(slices);
    PlanRequest {
        model,
        batch,
        kind: KIND,
        chunks_per_stage: None,
        slice_count,
        stage_count,
        replicas: ReplicaCount::ONE,
        window,
    }
}

fn sliced(model: &ModelConfig, batch: BatchShape, slices: u32) -> StageSetup {
    let plan = Plan::new(request(model, batch, 1, slices, Window::Zero)).expect("a legal plan");
    StageSetup { clip_norm: CLIP_NORM, ..setup(model.clone(), plan, STEPS) }
}

fn reference(
    setup: &StageSetup,
) -> SerialReference<CpuBackend, std::sync::Arc<zbelastic_trainer::data::Corpus>> {
    let backend = CpuBackend::new(1).expect("one thread");
    SerialReference::new(setup, backend, corpus_for(setup.plan.batch, 0.05)).expect("memory")
}

fn serial(setup: &StageSetup, skipped: &[u64]) -> StateDigest {
    let mut run = reference(setup);
    for step in 0..setup.step_count {
        run.step(Step(step), skipped.contains(&(step + 1)));
    }
    run.digest()
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum SlicedNan {
    Nothing,
    NanReplayed,
    NanSkipped,
}

/// What a pipeline ends with, `seed` ordering its messages.
fn pipeline(mut setup: StageSetup, injected: SlicedNan, threads: usize, seed: u64) -> StateDigest {
    let text = format!("step={STRUCK},tensor=layers.2.mlp.up,value=nan");
    if injected != SlicedNan::Nothing {
        setup.injections = vec![text.parse().expect("a legal injection")];
    }
    let nonfinite = match injected {
        SlicedNan::NanReplayed => NonfinitePolicy::Replay,
        SlicedNan::Nothing | SlicedNan::NanSkipped => NonfinitePolicy::Skip,
    };
    let corpus = corpus_for(setup.plan.batch, 0.05);
    let policy = policy(setup.clip_norm, nonfinite);
    StageCluster::with_corpus(&setup, policy, threads, seed, corpus).run().digest
}

#[test]
fn pipelines_over_slices_equal_their_reference() {
    let mut runs = 0;
    for family in [Family::Gpt2, Family::Llama] {
        let model = model_of(family);
        let even = [(12, 2), (5, 4), (1, 2), (3, 8)].map(|(count, slices)| (batch(count), slices));
        let uneven = [(6, 2), (3, 4), (2, 7)].map(|(count, slices)| (by_time(count), slices));
        for (batch, slices) in even.into_iter().chain(uneven) {
            let BatchShape { microbatch_count: microbatches, cut_by, .. } = batch;
            let base = sliced(&model, batch, slices);
            let straight = serial(&base, &[]);
            let skipping = serial(&base, &[STRUCK]);
            assert_ne!(straight, skipping);
            for stage_count in 1..=4 {
                for window in [Window::Zero, Window::One] {
                    runs += 1;
                    let request = request(&model, batch, stage_count, slices, window);
                    let plan = Plan::new(request).expect("a legal plan");
                    let befalls =
                        [SlicedNan::Nothing, SlicedNan::NanReplayed, SlicedNan::NanSkipped];
                    let injected = befalls[runs as usize % befalls.len()];
                    let setup = StageSetup { plan, ..base.clone() };
                    let found = pipeline(setup, injected, 1 + runs as usize % 2, runs);
                    let expected =
                        if injected == SlicedNan::NanSkipped { skipping } else { straight };
                    assert_eq!(
                        found, expected,
                        "{family:?}, {stage_count} stages, {microbatches} microbatches, {slices} \
                         slices by {cut_by:?}, window {window}, {injected:?}"
                    );
                }
            }
        }
    }
    assert_eq!(runs, 112);
}

/// B and W apart, W held back beyond the next microbatch, and the head's share of it early.
const SPLIT: &str = "program seq1f1b line stages 2 chunks 2 microbatches 2 slices 2 window 1
    stage 0: 0F0.0 0SEND_F0.0 0F0.1 0SEND_F0.1 0F1.0 0SEND_F1.0 0F1.1 0SEND_F1.1 \
        0RECV_B0.1 0B0.1 0RECV_B0.0 0B0.0 0RECV_B1.1 0B1.1 GATE_PREVIOUS COMMIT \
        0W0.1 0W0.0 0W1.1 0RECV_B1.0 0B1.0 0W1.0 REPORT STEP
    stage 1: 1RECV_F0.0 1F0.0 1RECV_F0.1 1F0.1 1B0.1 1SEND_B0.1 GATE_PREVIOUS COMMIT 1WE0.1 \
        1B0.0 1SEND_B0.0 1WE0.0 1RECV_F1.0 1F1.0 1RECV_F1.1 1F1.1 1W0.1 1B1.1 1SEND_B1.1 \
        1WE1.1 1B1.0 1SEND_B1.0 1WE1.0 1W0.0 1W1.1 1W1.0 REPORT STEP";

#[test]
fn when_weights_gradients_run_changes_nothing() {
    let program: Program = SPLIT.parse().expect("the text is a program");
    assert_eq!(check(&program), Ok(()));
    for family in [Family::Gpt2, Family::Llama] {
        let model = tiny_model(family);
        let base = sliced(&model, batch(2), 2);
        let request = request(&model, batch(2), 2, 2, Window::One);
        let plan = Plan { program: program.clone(), ..Plan::new(request).expect("legal") };
        let expected = serial(&base, &[]);
        for seed in 0..4 {
            let setup = StageSetup { plan: plan.clone(), ..base.clone() };
            let found = pipeline(setup, SlicedNan::NanReplayed, 1, seed);
            assert_eq!(found, expected, "{family:?} {seed}");
        }
    }
}

const OPS: RecomputedOps = RecomputedOps { norm: true, attention: true, activation: true };
const NO_OPS: RecomputedOps = RecomputedOps { norm: false, attention: false, activation: false };

/// All that can be made again, from nothing to everything.
const CHOICES: [Recompute; 6] = [
    Recompute::None,
    Recompute::Selective(RecomputedOps { norm: true, ..NO_OPS }),
    Recompute::Selective(RecomputedOps { attention: true, ..NO_OPS }),
    Recompute::Selective(RecomputedOps { activation: true, ..NO_OPS }),
    Recompute::Selective(OPS),
    Recompute::Full,
];

/// The reference makes nothing again, so these bits are those of runs without as well.
#[test]
fn what_slices_make_again_has_the_bits_it_had() {
    let mut runs = 0;
    for family in [Family::Gpt2, Family::Llama] {
        let model = model_of(family);
        for (batch, slices) in [(batch(12), 2), (batch(5), 4), (batch(1), 8), (by_time(3), 5)] {
            let BatchShape { microbatch_count: microbatches, cut_by, .. } = batch;
            let base = sliced(&model, batch, slices);
            let straight = serial(&base, &[]);
            let skipping = serial(&base, &[STRUCK]);
            for (stage_count, recompute) in
                (1..=4).flat_map(|p| CHOICES[1..].iter().map(move |r| (p, *r)))
            {
                runs += 1;
                let window = if runs % 2 == 0 { Window::Zero } else { Window::One };
                let request = request(&model, batch, stage_count, slices, window);
                let plan = Plan::new(request).expect("a legal plan").with_recompute(recompute);
                let befalls = [SlicedNan::Nothing, SlicedNan::NanReplayed, SlicedNan::NanSkipped];
                let injected = befalls[runs as usize % befalls.len()];
                let setup = StageSetup { plan, ..base.clone() };
                let found = pipeline(setup, injected, 1 + runs as usize % 2, runs);
                let expected = if injected == SlicedNan::NanSkipped { skipping } else { straight };
                assert_eq!(
                    found, expected,
                    "{family:?}, {stage_count} stages, {microbatches} microbatches, {slices} \
                     slices by {cut_by:?}, window {window}, {injected:?}, {recompute:?}"
                );
            }
        }
    }
    assert_eq!(runs, 160);
}

/// As [`SPLIT`], with slices that are made again long before their B, and out of turn.
const SPLIT_AGAIN: &str = "program seq1f1b line stages 2 chunks 2 microbatches 2 slices 2 window 1
    stage 0: 0F0.0 0SEND_F0.0 0DROP0.0 0R0.0 0F0.1 0SEND_F0.1 0DROP0.1 0F1.0 0SEND_F1.0 0DROP1.0 \
        0F1.1 0SEND_F1.1 0DROP1.1 0R1.0 0R0.1 \
        0RECV_B0.1 0B0.1 0RECV_B0.0 0B0.0 0R1.1 0RECV_B1.1 0B1.1 GATE_PREVIOUS COMMIT \
        0W0.1 0W0.0 0W1.1 0RECV_B1.0 0B1.0 0W1.0 REPORT STEP
    stage 1: 1RECV_F0.0 1F0.0 1DROP0.0 1RECV_F0.1 1F0.1 1B0.1 1SEND_B0.1 GATE_PREVIOUS COMMIT \
        1WE0.1 1R0.0 1B0.0 1SEND_B0.0 1WE0.0 1RECV_F1.0 1F1.0 1DROP1.0 1RECV_F1.1 1F1.1 1DROP1.1 \
        1W0.1 1R1.1 1B1.1 1SEND_B1.1 1WE1.1 1R1.0 1B1.0 1SEND_B1.0 1WE1.0 1W0.0 1W1.1 1W1.0 \
        REPORT STEP";

#[test]
fn when_slices_are_made_again_changes_nothing() {
    let program: Program = SPLIT_AGAIN.parse().expect("the text is a program");
    assert_eq!(check(&program), Ok(()));
    for family in [Family::Gpt2, Family::Llama] {
        let model = tiny_model(family);
        let base = sliced(&model, batch(2), 2);
        let expected = serial(&base, &[]);
        for (seed, recompute) in (0..).zip(CHOICES) {
            let plan = Plan::new(request(&model, batch(2), 2, 2, Window::One)).expect("legal");
            let plan = Plan { program: program.clone(), recompute, ..plan };
            let found =
                pipeline(StageSetup { plan, ..base.clone() }, SlicedNan::NanReplayed, 1, seed);
            assert_eq!(found, expected, "{family:?} {recompute:?}");
        }
    }
}

#[test]
fn one_slice_is_the_training_without_slices() {
    for family in [Family::Gpt2, Family::Llama] {
        let model = tiny_model(family);
        let uncut = PlanRequest {
            kind: ScheduleKind::GPipe,
            slice_count: None,
            ..request(&model, batch(3), 1, 1, Window::Zero)
        };
        let plan = Plan::new(uncut).expect("a legal plan");
        let one = sliced(&model, batch(3), 1);
        let whole = serial(&StageSetup { plan, ..one.clone() }, &[]);
        assert_eq!(serial(&one, &[]), whole);
        assert_ne!(serial(&sliced(&model, batch(3), 2), &[]), whole, "slices are arithmetic");
        let long = model_of(family);
        let even = BatchShape { cut_by: SliceBalance::Tokens, ..by_time(3) };
        let [even, by_time] = [even, by_time(3)].map(|batch| serial(&sliced(&long, batch, 4), &[]));
        assert_ne!(even, by_time, "and so is where they are cut");
    }
}

/// Every gradient of the first step, by tensor, and what the step showed.
fn first_step(setup: &StageSetup) -> (BTreeMap<String, Vec<f32>>, ReferenceStep) {
    let mut run = reference(setup);
    let shown = run.step(Step(0), true);
    let mut gradients = BTreeMap::new();
    for layer in run.layers() {
        for tensor in &layer.spec.tensors {
            let floats = zbelastic_kernels::DeviceMemory::download(
                run.backend(),
                BufferView::new(&layer.g, tensor.range.clone()),
            );
            gradients.insert(tensor.name.clone(), floats);
        }
    }
    (gradients, shown)
}

/// Rounding apart, slices compute the gradient of the same loss: of every tensor, that of positions
/// and that of fewer key heads included.
#[test]
fn slices_compute_the_same_gradient() {
    const ERROR_MAX: f32 = 2e-5;
    let models = [Family::Gpt2, Family::Llama].map(model_of);
    let cases = models.iter().flat_map(|model| [(model, batch(3)), (model, by_time(3))]);
    for (model, batch) in cases {
        let (whole, shown) = first_step(&sliced(model, batch, 1));
        for slices in [2, 4, 8] {
            let (cut, cut_shown) = first_step(&sliced(model, batch, slices));
            let close = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-6;
            assert!(close(cut_shown.loss, shown.loss) && close(cut_shown.norm, shown.norm));
            for (name, whole) in &whole {
                let largest = whole.iter().fold(1e-6_f32, |most, x| most.max(x.abs()));
                for (at, (found, expected)) in cut[name].iter().zip(whole).enumerate() {
                    let error = (found - expected).abs() / largest;
                    assert!(error < ERROR_MAX, "{name}[{at}]: {found}, not {expected}");
                }
            }
        }
    }
}

#[test]
fn held_out_loss_is_the_references() {
    let model = model_of(Family::Llama);
    let even = [(1, 3, 2), (2, 4, 4), (3, 2, 8), (3, 1, 2)];
    let even = even.map(|(count, stages, slices)| (batch(count), stages, slices));
    for (batch, stage_count, slices) in even.into_iter().chain([(by_time(2), 3, 3)]) {
        let corpus = corpus_for(batch, 0.3);
        for (recompute, window) in
            CHOICES.into_iter().flat_map(|again| [(again, Window::Zero), (again, Window::One)])
        {
            let request = request(&model, batch, stage_count, slices, window);
            let plan = Plan::new(request).expect("legal").with_recompute(recompute);
            let mut setup = setup(model.clone(), plan, 2);
            setup.evaluate_every = 1;
            let policy = policy(setup.clip_norm, NonfinitePolicy::Skip);
            let outcome = StageCluster::with_corpus(&setup, policy, 1, 5, corpus.clone()).run();
            let backend = CpuBackend::new(1).expect("one thread");
            let mut run = SerialReference::new(&setup, backend, corpus.clone()).expect("memory");
            let losses = (0..2).map(|step| {
                run.step(Step(step), false);
                (
                    step + 1,
                    run.held_out_loss(HELD_OUT_MAX).expect("no fault").expect("there is some"),
                )
            });
            assert_eq!(outcome.evaluations, losses.collect::<Vec<_>>());
            assert_eq!(outcome.digest, run.digest());
        }
    }
}

/// The loop for benchmarks runs B and W of a layer side by side, which changes no bit.
#[test]
fn passes_side_by_side_are_passes_apart() {
    let setup = sliced(&tiny_model(Family::Gpt2), batch(3), 4);
    let mut run = reference(&setup);
    for step in 0..STEPS {
        run.step_in_place(Step(step));
    }
    assert_eq!(run.digest(), serial(&setup, &[]));
}

#[test]
fn logits_lie_as_without_slices() {
    let model = model_of(Family::Gpt2);
    let logits = |shape: BatchShape, slices| {
        let setup = sliced(&model, shape, slices);
        let tokens: Vec<u32> = (0..shape.microbatch.rows() as u32).collect();
        let batch = zbelastic_trainer::data::TokenBatch::new(tokens.clone(), tokens);
        reference(&setup).logits(&batch)
    };
    assert_eq!(logits(batch(3), 4), logits(batch(3), 1));
    assert_eq!(logits(by_time(3), 6), logits(by_time(3), 1));
}

#[test]
fn slices_are_equally_long_or_take_equally_long() {
    let model = tiny_model(Family::Gpt2);
    let check = |by, slices, sequence_len, is_legal: bool| {
        let microbatch = MicrobatchShape { sequences: 2, sequence_len };
        let batch = BatchShape { microbatch, microbatch_count: 3, cut_by: by, ..BATCH };
        let found = Plan::new(request(&model, batch, 2, slices, Window::One)).map(|_| ());
        let refused = PlanError::Slices { by, slice_count: slices, sequence_len };
        assert_eq!(found, if is_legal { Ok(()) } else { Err(refused) });
    };
    check(SliceBalance::Tokens, 2, 8, true);
    check(SliceBalance::Tokens, 8, 8, true);
    check(SliceBalance::Tokens, 3, 8, false);
    check(SliceBalance::Tokens, 16, 8, false);
    check(SliceBalance::Tokens, 3, 6, true);
    check(SliceBalance::Time, 3, 8, true);
    check(SliceBalance::Time, 8, 8, true);
    check(SliceBalance::Time, 9, 8, false);
    check(SliceBalance::Time, SLICES_OF_EQUAL_TIME_MAX, 4096, true);
    check(SliceBalance::Time, SLICES_OF_EQUAL_TIME_MAX + 1, 4096, false);
}

/// Where attention is much of the work, slices of equal length wait for the last one of each
/// microbatch.
#[test]
fn slices_of_equal_time_make_a_shorter_step() {
    let model = ModelConfig { positions: 4096, ..tiny_model(Family::Gpt2) };
    let microbatch = MicrobatchShape { sequences: 1, sequence_len: 4096 };
    let period = |cut_by| {
        let batch = BatchShape { microbatch, microbatch_count: 8, cut_by, ..BATCH };
        let plan = Plan::new(request(&model, batch, 4, 4, Window::Zero)).expect("legal");
        let pace = Pace::estimated(&model, microbatch);
        (plan_period(&plan, &pace), pace.costs(&plan).slice_shares)
    };
    let ((even, uneven_shares), (shorter, shares)) =
        (period(SliceBalance::Tokens), period(SliceBalance::Time));
    assert!(shares.iter().all(|share| (share - 0.25).abs() < 1e-3), "{shares:?}");
    assert!(uneven_shares[3] > 5.0 * uneven_shares[0], "{uneven_shares:?}");
    assert!(shorter < 0.9 * even, "{shorter}, where slices of equal length take {even}");
}

/// What a stage keeps for passes follows the slices under way, not the microbatches.
#[test]
fn slices_take_less_memory() {
    let model = tiny_model(Family::Gpt2);
    let backend = CpuBackend::new(1).expect("one thread");
    let stash = |slices| {
        let plan = Plan::new(request(&model, batch(12), 4, slices, Window::One)).expect("legal");
        let claim = stage_memory(&backend, &model, OptimizerKind::AdamW, &plan, StageIndex(0));
        (claim.stash + claim.messages).0 as f64
    };
    let whole = stash(1);
    // Four microbatches; two and a half, and one and three quarters, with the gradients of keys and
    // values beside.
    assert!(
        stash(2) < 0.75 * whole && stash(4) < 0.55 * whole,
        "{whole} {} {}",
        stash(2),
        stash(4)
    );
}

/// What is claimed is taken, and less of it the more is made again: but not what slices attend to.
#[test]
fn slices_that_are_made_again_take_less_and_what_they_claim() {
    for family in [Family::Gpt2, Family::Llama] {
        let model = model_of(family);
        let claims = |batch, recompute| -> Vec<u64> {
            let plan = Plan::new(request(&model, batch, 2, 4, Window::One)).expect("legal");
            let base = sliced(&model, batch, 4);
            let setup = StageSetup { plan: plan.with_recompute(recompute), ..base };
            let claim = |stage| {
                let backend = CpuBackend::new(1).expect("one thread");
                let claim =
                    stage_memory(&backend, &model, OptimizerKind::AdamW, &setup.plan, stage);
                // It asserts that it allocates what is claimed.
                BackendExecutor::new(&setup, stage, backend).expect("memory");
                claim.stash.0
            };
            (0..2).map(StageIndex).map(claim).collect()
        };
        for batch in [batch(12), by_time(12)] {
            let [none, norm, attention, activation, all, full] =
                CHOICES.map(|recompute| claims(batch, recompute));
            for stage in 0..2 {
                for one in [&norm, &attention, &activation] {
                    assert!(one[stage] < none[stage] && all[stage] < one[stage], "{one:?}");
                }
                assert!(full[stage] < all[stage], "{family:?}: {full:?}, {all:?}");
            }
            // Five slices wait on the first stage, and each keeps keys and values with their
            // gradients.
            assert!(full[0] > none[0] / 5, "{family:?}: {full:?} of {none:?}");
        }
    }
}

/// The bits of two small runs, as `equivalence.rs` has them of runs without slices.
#[test]
fn digests_are_those_of_the_version_before() {
    let check = |family, expected: &str| {
        let digest = serial(&sliced(&tiny_model(family), batch(3), 2), &[]);
        assert_eq!(digest.to_string(), expected, "{family:?}");
    };
    check(Family::Gpt2, "1f6374133641c897358a8e302caacdb719fa49ecea869800b32abee4c56e297e");
    check(Family::Llama, "2456cb04007f013f6ed0f43d421c76be006097bec1dc1297e9fdfa1383be5665");
    let check = |family, expected: &str| {
        let digest = serial(&sliced(&model_of(family), by_time(3), 3), &[]);
        assert_eq!(digest.to_string(), expected, "{family:?}, by time");
    };
    check(Family::Gpt2, "948c8176a27cab4e630f6252bbc6d824ac9951bb74be7bd343869812a1cc4d6c");
    check(Family::Llama, "908f14c2b1311b0a8fd8ac88a2b9b9147a3e70f733add5a871480413cb258108");
}
