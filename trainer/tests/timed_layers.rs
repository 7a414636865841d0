//! What layers are timed to take, and what a plan makes of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::common::{BATCH, tiny_model};
use zbelastic_kernels::{CpuBackend, PendingFloats};
use zbelastic_schedule::{ScheduleKind, Window};
use zbelastic_trainer::model::{
    Family, LayerClass, LayerOp, LayerSpec, LayerTimer, ModelConfig, Recompute, TimeTotal,
    model_layers,
};
use zbelastic_trainer::plan::{
    Calibration, LayerCost, LayerWork, Pace, Plan, PlanRequest, ReplicaCount, StageSample,
    StageTimes, calibrate, class_costs, partition,
};
use zbelastic_trainer::stage::{
    BackendExecutor, EngineProgress, GradientExecutor, SealedState, StageEngine, UpdateExecutor,
    UpdateRequest, WaitReason,
};
use zbelastic_types::{LayerId, StageIndex, Step};

fn model() -> ModelConfig {
    ModelConfig { blocks: 6, ..tiny_model(Family::Gpt2) }
}

/// What a layer of each class takes on a machine of speed 1: nothing that could be counted.
const PLANTED: [LayerCost; LayerClass::COUNT] = [
    planted([30.0, 0.0, 90.0, 0.0], 40.0),
    planted([20.0, 50.0, 10.0, 0.0], 8.0),
    planted([15.0, 16.0, 17.0, 0.0], 9.0),
    planted([200.0, 300.0, 100.0, 80.0], 60.0),
];

const fn planted([f, b, w, w_early]: [f64; 4], update: f64) -> LayerCost {
    LayerCost { work: LayerWork { f, b, w, w_early }, update, recompute: None }
}

/// Stages of three machines, of which these are the speeds; the last holds the head.
fn samples(speeds: [f64; 3], vary: impl Fn(LayerClass) -> f64) -> Vec<StageSample> {
    let model = model();
    let cuts = [0..4, 4..9, 9..14];
    let sample = |(layers, speed): (std::ops::Range<u32>, f64)| {
        let mut times = StageTimes::default();
        for layer in layers.clone() {
            let class = LayerClass::of(model.layer_kind(LayerId(layer)));
            let LayerCost { work, update, .. } = PLANTED[class.index()];
            let work = work.scaled(vary(class) / speed);
            let update = update / speed;
            (times.f, times.bw) = (times.f + work.f, times.bw + work.b + work.w);
            times.update += update;
            times.classes[class.index()] = Some(LayerCost { work, update, recompute: None });
        }
        StageSample::of_layers(&model, BATCH.microbatch, layers, (1.0, times))
    };
    cuts.into_iter().zip(speeds).map(sample).collect()
}

fn near(found: f64, expected: f64, what: &str) {
    assert!((found - expected).abs() <= 1e-6 * expected.abs(), "{what}: {found}, not {expected}");
}

#[test]
fn what_layers_take_is_found_where_it_is_not_what_is_counted() {
    for speeds in [[1.0, 1.0, 1.0], [1.0, 1.0, 0.5], [0.25, 1.0, 1.0]] {
        let (found, found_speeds) =
            calibrate(&samples(speeds, |_| 1.0)).expect("the samples can be used");
        for (found, speed) in found_speeds.iter().zip(speeds) {
            near(found.expect("the sample can be used"), speed, "a speed");
        }
        for (class, expected) in LayerClass::ALL.into_iter().zip(PLANTED) {
            let found = found.classes[class.index()].expect("it was timed");
            let name = class.name();
            near(found.work.f, expected.work.f, name);
            near(found.work.b, expected.work.b, name);
            near(found.work.w, expected.work.w, name);
            near(found.work.w_early, expected.work.w_early, name);
            near(found.update, expected.update, name);
        }
        let pace = Pace::calibrated(&model(), BATCH.microbatch, &found, (speeds.to_vec(), 0.0));
        near(pace.layers[13].total(), PLANTED[3].work.total(), "the head in a pace");
        near(pace.updates[0], PLANTED[0].update, "the embedding's update");
    }
}

#[test]
fn what_is_made_again_and_copied_counts_as_long_as_it_took() {
    const SPEEDS: [f64; 3] = [1.0, 0.5, 1.0];
    let mut samples = samples(SPEEDS, |_| 1.0);
    for (sample, speed) in samples.iter_mut().zip(SPEEDS) {
        for cost in sample.times.classes.iter_mut().flatten() {
            cost.recompute = Some(7.0 / speed);
        }
        (sample.copied, sample.times.copies) = (1e6, 3e6 / speed);
    }
    let model = model();
    let shape = BATCH.microbatch;
    let found = calibrate(&samples).expect("the samples can be used").0;
    let pace = Pace::calibrated(&model, shape, &found, (SPEEDS.to_vec(), 0.0));
    let plan = crate::common::plan(&model, ScheduleKind::ZbH1, 3, Window::One);
    let plan = plan.with_recompute(Recompute::Full);
    let counted = Pace::estimated(&model, shape);
    for ((times, layers), speed) in
        pace.costs(&plan).memory.chunks.iter().zip(&plan.chunks).zip(SPEEDS)
    {
        let copies: f64 = layers.ids().map(|layer| counted.copies[layer as usize]).sum();
        near(times.recompute, 7.0 * layers.ids().len() as f64 / speed, "R");
        near(times.offload, 3.0 * copies / speed, "OFFLOAD");
        near(times.reload, 3.0 * copies / speed, "RELOAD");
    }
    let kept = Plan { recompute: Recompute::None, ..plan };
    assert_eq!(pace.costs(&kept).memory.chunks[0].recompute, 0.0, "nothing is made again");
}

/// Without what layers took, a heavy head is a slow machine.
#[test]
fn stages_that_did_not_time_their_layers_are_read_as_their_work_is_counted() {
    let mut samples = samples([1.0; 3], |_| 1.0);
    samples[1].times.classes = [None; LayerClass::COUNT];
    let (found, speeds) = calibrate(&samples).expect("the samples can be used");
    assert_eq!(found.classes, [None; LayerClass::COUNT]);
    let last = speeds[2].expect("the sample can be used");
    assert!(last < 0.8, "the head's stage looks slow: {last}");
}

/// Layers of the last of four stages at a pace.
fn layers_with_the_head(pace: &Pace) -> usize {
    let model = model();
    let plan = Plan::new(PlanRequest {
        model: &model,
        batch: BATCH,
        kind: ScheduleKind::ZbH1,
        chunks_per_stage: None,
        slice_count: None,
        stage_count: 4,
        replicas: ReplicaCount::ONE,
        window: Window::One,
    });
    let totals: Vec<f64> = pace.layers.iter().map(LayerWork::total).collect();
    let cut = partition(&totals, plan.expect("legal").placement(), &[1.0; 4]);
    cut.last().expect("a chunk a stage").ids().len()
}

#[test]
fn a_head_that_takes_longer_than_counted_leaves_its_stage_fewer_layers() {
    let (found, _) = calibrate(&samples([1.0; 3], |_| 1.0)).expect("the samples can be used");
    let measured = Pace::calibrated(&model(), BATCH.microbatch, &found, (Vec::new(), 0.0));
    let counted = Pace::estimated(&model(), BATCH.microbatch);
    let with_found = layers_with_the_head(&measured);
    let with_counted = layers_with_the_head(&counted);
    assert!(with_found < with_counted, "{with_found} layers measured, {with_counted} counted");
}

#[test]
fn shares_that_vary_as_machines_do_stay_as_they_were_known() {
    let of = |vary: &dyn Fn(LayerClass) -> f64| calibrate(&samples([1.0; 3], vary)).unwrap().0;
    let shares = |found: &Calibration| {
        found.classes.map(|class| {
            let attention = found.classes[LayerClass::Attention.index()].unwrap().work;
            class.unwrap().work.total() / attention.total()
        })
    };
    let known = of(&|_| 1.0).steadied(None);
    let head = |share: f64| move |class| if class == LayerClass::Head { 2.0 * share } else { 2.0 };
    // All have become half as fast, and the head a little more than that.
    let noisy = of(&head(1.1)).steadied(Some(&known));
    for (found, before) in shares(&noisy).into_iter().zip(shares(&known)) {
        near(found, before, "a share");
    }
    let heavy = of(&head(1.5)).steadied(Some(&known));
    let head = LayerClass::Head.index();
    assert!(shares(&heavy)[head] > 1.3 * shares(&known)[head], "that is no noise");
}

/// A step of a stage that holds the whole model, up to its verdict.
fn executor_after_a_step(kind: ScheduleKind, timer: LayerTimer) -> BackendExecutor<CpuBackend> {
    let model = tiny_model(Family::Llama);
    let plan = crate::common::plan(&model, kind, 1, Window::Zero);
    let setup = Arc::new(crate::common::setup(model, plan, 2));
    let backend = CpuBackend::new(1).expect("one thread");
    let executor =
        BackendExecutor::new(&setup, StageIndex(0), backend).expect("it fits").with_timer(timer);
    let mut engine =
        StageEngine::begin_run(setup, StageIndex(0), executor, crate::common::corpus());
    let is_run = |progress: &EngineProgress| matches!(progress, EngineProgress::Ran(_));
    let stopped = std::iter::repeat_with(|| engine.run_next()).find(|progress| !is_run(progress));
    assert!(matches!(stopped, Some(EngineProgress::Blocked(WaitReason::Seal(_)))), "{stopped:?}");
    engine.into_executor()
}

/// A clock that counts how often it is read, so that each layer takes one.
fn counting() -> LayerTimer {
    let reads = AtomicU32::new(0);
    LayerTimer::new(Box::new(move || f64::from(reads.fetch_add(1, Ordering::Relaxed))))
}

#[test]
fn every_part_of_every_layer_is_timed_once_and_no_bit_is_another() {
    let request = UpdateRequest { step: Step(0), number: 1, clip: 1.0 };
    for kind in [ScheduleKind::OneFOneB, ScheduleKind::ZbH1] {
        let mut executor = executor_after_a_step(kind, counting());
        let mut untimed = executor_after_a_step(kind, LayerTimer::default());
        let gradients = |executor: &mut BackendExecutor<CpuBackend>| {
            let gradient = |(layer, g): (_, PendingFloats)| (layer, g.wait().expect("no fault"));
            executor.gradients().into_iter().map(gradient).collect::<Vec<_>>()
        };
        assert_eq!(gradients(&mut executor), gradients(&mut untimed), "{kind}");
        for executor in [&mut executor, &mut untimed] {
            executor.compute_candidate(request);
            executor.commit(request);
        }
        assert!(executor.images() == untimed.images(), "{kind}");
        assert_eq!(untimed.times().layers, None);
        let times = executor.times().layers.expect("there is a clock");
        let model = tiny_model(Family::Llama);
        let count = BATCH.microbatch_count;
        for class in LayerClass::ALL {
            let is_it = |spec: &&LayerSpec| LayerClass::of(spec.kind) == class;
            let layers = model_layers(&model).iter().filter(is_it).count() as u32;
            let check = |part, times_run: u32| {
                let spent =
                    TimeTotal { count: layers * times_run, us: f64::from(layers * times_run) };
                assert_eq!(times.spent(class, part), spent, "{kind}: {part:?} of {}", class.name());
            };
            check(LayerOp::Forward, count);
            check(LayerOp::InputGradient, count);
            check(LayerOp::WeightGradient, count);
            check(LayerOp::EarlyWeightGradient, if class == LayerClass::Head { count } else { 0 });
            check(LayerOp::Recompute, 0);
            check(LayerOp::Candidate, 1);
            check(LayerOp::Commit, 1);
        }
        assert!(class_costs(&times, 1).iter().all(Option::is_some));
    }
}
