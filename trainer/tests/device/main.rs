//! The pipeline on a device's backend: the same bits for any partition, schedule and window as one
//! process has there, in both precisions, and about the losses of a processor.
//!
//! The device is emulated, as in the tests of the kernels: what is tried is which buffers hold
//! activations and which sums, and that no result depends on where it is computed.

#![cfg(all(target_arch = "x86_64", unix))]

mod adapters;
mod asynchronous;
mod attest;
#[path = "../common/mod.rs"]
mod common;
#[path = "../../../kernels/tests/emulated/compile.rs"]
mod compile;
#[path = "../../../kernels/tests/emulated/device.rs"]
#[allow(dead_code)]
mod device;
mod memory;
mod muon;
mod order;
#[path = "../../../kernels/tests/emulated/races.rs"]
mod races;
#[path = "../common/asynchronous.rs"]
#[allow(dead_code)]
mod runs;
mod sample;
mod times;

use std::path::Path;
use std::sync::Arc;

use adapters::adapted;
use common::documents::Documents;
use common::{
    BATCH, StageCluster, corpus, decay_rates, featured_model, offloaded, plan, plan_of_chunks,
    policy, setup, tiny_model,
};
use device::{EmulatedDevice, devices};
use zbelastic_consensus::validation::NonfinitePolicy;
use zbelastic_emulator::{EmulatedLibrary, EmulatedToolkit, EmulatorSettings, ExecutionOrder};
use zbelastic_kernels::cuda::cache::KernelCache;
use zbelastic_kernels::cuda::device::Device;
use zbelastic_kernels::cuda::source::Precision;
use zbelastic_kernels::cuda::{CudaBackend, CudaDevice, LibraryError, OpenError};
use zbelastic_kernels::{Backend, ByteCounts, CpuBackend, DeviceFault};
use zbelastic_schedule::{MemoryOp, ScheduleKind, Window};
use zbelastic_trainer::digest::StateDigest;
use zbelastic_trainer::model::{
    Family, LayerKind, LayerParts, ModelConfig, Recompute, RecomputedOps, frozen_tensors,
    layer_bytes, model_layers, replayed_bytes,
};
use zbelastic_trainer::plan::{BatchShape, LaneCount, Plan, PlanRequest, ReplicaCount};
use zbelastic_trainer::reference::SerialReference;
use zbelastic_trainer::stage::{EngineProgress, Output, StageEngine, StageSetup};
use zbelastic_types::{StageIndex, Step};

const STEPS: u64 = 3;
/// Far more than anyone trains with, so that it shows in the second step's loss.
const Z_LOSS: f64 = 0.05;

/// The setup of a run; a model with a tied head is trained with z-loss.
fn run_setup(model: &ModelConfig, plan: Plan) -> StageSetup {
    let z_loss = if model.tied { Z_LOSS } else { 0.0 };
    StageSetup { z_loss, ..setup(model.clone(), plan, STEPS) }
}

/// The digest of a serial run over the same slices, and its losses.
fn serial<B: Backend>(model: &ModelConfig, plan: Plan, backend: B) -> (StateDigest, Vec<f64>) {
    let setup = run_setup(model, plan);
    let mut run = SerialReference::new(&setup, backend, corpus()).expect("memory");
    let losses = (0..STEPS).map(|step| run.step(Step(step), false).loss).collect();
    (run.digest(), losses)
}

/// Where devices come from.
trait DeviceProvider {
    type Device: Device;

    /// Two of them, or none with a line that says why.
    fn two(precision: Precision) -> Option<[CudaBackend<Self::Device>; 2]>;
}

/// This machine's processors, in opposite orders.
struct EmulatedDevices;

impl DeviceProvider for EmulatedDevices {
    type Device = EmulatedDevice;

    fn two(precision: Precision) -> Option<[CudaBackend<EmulatedDevice>; 2]> {
        two(precision)
    }
}

/// The first device of this machine, opened twice.
struct CudaDevices;

impl DeviceProvider for CudaDevices {
    type Device = CudaDevice;

    fn two(precision: Precision) -> Option<[CudaBackend; 2]> {
        let open = || CudaDevice::open(0, precision, &KernelCache::of_environment());
        match open().and_then(|first| Ok([first, open()?])) {
            Ok(opened) => Some(opened.map(|opened| CudaBackend::new(opened.device))),
            Err(
                error @ (OpenError::Library(LibraryError::DriverMissing) | OpenError::NoDevice),
            ) => {
                println!("skipped: {error}");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// Two devices that run everything in opposite orders; none where there is no C++ compiler.
fn two(precision: Precision) -> Option<[CudaBackend<EmulatedDevice>; 2]> {
    devices(precision).try_into().ok()
}

fn alone(model: &ModelConfig) -> Plan {
    plan(model, ScheduleKind::GPipe, 1, Window::Zero)
}

/// The digest of a cluster whose stages run everything in opposite orders.
fn piped<P: DeviceProvider>(
    model: &ModelConfig,
    plan: Plan,
    (precision, seed): (Precision, u64),
) -> StateDigest {
    let setup = run_setup(model, plan);
    let policy = policy(setup.clip_norm, NonfinitePolicy::Skip);
    let backend = |stage: StageIndex| {
        let [one, other] = P::two(precision).expect("they were there before");
        if stage.0.is_multiple_of(2) { one } else { other }
    };
    let cluster = StageCluster::on_backends(&setup, policy, seed, corpus(), backend);
    // By way of the host or from device to device: the same numbers.
    if seed % 2 == 1 { cluster.apart().run().digest } else { cluster.run().digest }
}

/// Both families: a head of its own, one that is tied to the embedding, and all features of the second.
fn models() -> [ModelConfig; 3] {
    let tied = ModelConfig { tied: true, ..tiny_model(Family::Llama) };
    [tiny_model(Family::Gpt2), tied, featured_model()]
}

fn check<P: DeviceProvider>(model: &ModelConfig, precision: Precision, tolerance: f64) {
    let Some([one, other]) = P::two(precision) else { return };
    let (expected, losses) = serial(model, alone(model), one);
    assert_eq!(serial(model, alone(model), other), (expected, losses.clone()), "in any order");
    let processor = CpuBackend::new(1).expect("one thread");
    let (on_processor, of_processor) = serial(model, alone(model), processor);
    assert_ne!(expected, on_processor, "a device has a definition of its own");
    for (step, (found, loss)) in losses.iter().zip(&of_processor).enumerate() {
        let far = (found - loss).abs();
        assert!(far <= tolerance * loss, "{model:?} {precision:?} step {step}: {found} {loss}");
    }
    let orders = [
        (ScheduleKind::OneFOneB, 2, Window::Zero),
        (ScheduleKind::ZbH1, 4, Window::One),
        (ScheduleKind::ZbV, 2, Window::One),
    ];
    for (seed, (kind, stage_count, window)) in (0..).zip(orders) {
        let found = piped::<P>(model, plan(model, kind, stage_count, window), (precision, seed));
        assert_eq!(found, expected, "{model:?} {precision:?} {kind} {stage_count}");
    }
}

#[test]
fn floats_train_to_the_bits_of_one_device() {
    models().iter().for_each(|it| check::<EmulatedDevices>(it, Precision::F32, 1e-5));
}

#[test]
fn halves_train_to_the_bits_of_one_device() {
    models().iter().for_each(|it| check::<EmulatedDevices>(it, Precision::Bf16, 1e-2));
}

/// Documents, a window that slides and targets that do not count: whole and cut into slices, kept
/// and recomputed.
#[test]
fn documents_train_to_the_bits_of_one_device() {
    for (family, precision) in [(Family::Gpt2, Precision::Bf16), (Family::Llama, Precision::F32)] {
        let model = ModelConfig { sliding_window: Some(3), ..tiny_model(family) };
        let source = || Documents::new(corpus(), model.positions as usize);
        let Some([one, other]) = two(precision) else { return };
        let whole = plan(&model, ScheduleKind::ZbH1, 2, Window::One);
        let recomputed = whole.clone().with_recompute(Recompute::Full);
        let sliced = plan(&model, ScheduleKind::Seq1F1B, 2, Window::Zero);
        let of_processor = {
            let setup = setup(model.clone(), whole.clone(), STEPS);
            let processor = CpuBackend::new(1).expect("one thread");
            SerialReference::new(&setup, processor, source()).expect("memory").step(Step(0), false)
        };
        for (seed, plan) in (0..).zip([whole, recomputed, sliced]) {
            let setup = setup(model.clone(), plan, STEPS);
            let mut run = SerialReference::new(&setup, one.sibling(), source()).expect("memory");
            let loss = run.step(Step(0), false).loss;
            let far = (loss - of_processor.loss).abs();
            assert!(far <= 1e-2 * loss, "{family:?}: {loss} {}", of_processor.loss);
            for step in 1..STEPS {
                run.step(Step(step), false);
            }
            let policy = policy(setup.clip_norm, NonfinitePolicy::Skip);
            let backend = |_| other.sibling();
            let cluster = StageCluster::on_backends(&setup, policy, seed, source(), backend);
            assert_eq!(cluster.run().digest, run.digest(), "{family:?} {precision:?} {seed}");
        }
    }
}

/// All of it on a device, if there is one.
#[test]
fn a_device_of_this_machine_trains_to_its_own_bits() {
    for model in models() {
        check::<CudaDevices>(&model, Precision::F32, 1e-4);
        check::<CudaDevices>(&model, Precision::Bf16, 2e-2);
    }
}

#[test]
fn a_device_of_this_machine_lets_passes_go_and_comes_to_the_same_bits() {
    give_up_make_again_and_cut::<CudaDevices>();
}

/// All of it through the driver's own calls, on machines made of processors, which run what is
/// enqueued on streams as late as they may and in orders drawn by chance: a wait that is missing
/// reads NaNs.
#[test]
fn an_emulated_driver_trains_to_its_own_bits() {
    if !EmulatedToolkit::is_possible() {
        return;
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("driver");
    let toolkit = EmulatedToolkit::new(&folder, &EmulatedLibrary::ALL).expect("a folder");
    let runs = [
        (ExecutionOrder::Random { seed: 11 }, "a_device_of_this_machine_trains"),
        (ExecutionOrder::Lazy, "a_device_of_this_machine_lets"),
    ];
    for (order, name) in runs {
        toolkit.run_again(&[name], EmulatorSettings { order, ..EmulatorSettings::DEFAULT });
    }
}

/// Verdicts that drop candidates put the state's weights back in force, and those that clip compute
/// them again; a step is left out. Candidates lie in the packed weights that passes read, so one
/// that is not brought back shows.
#[test]
fn candidates_in_forms_are_dropped_without_a_trace() {
    // Frozen: a part of a product that is packed as one, and parameters in no matrix.
    let frozen = |family, patterns: &[&str]| {
        let patterns: Vec<String> = patterns.iter().map(|of| (*of).to_owned()).collect();
        let model = tiny_model(family);
        let frozen = frozen_tensors(&model, &patterns).expect("there are such");
        model.freezing(frozen)
    };
    let some = ["embed", "layers.0", "layers.*.attn.k", "layers.*.norm2", "layers.1.mlp.down"];
    for (model, precision) in [
        (tiny_model(Family::Gpt2), Precision::Bf16),
        (tiny_model(Family::Llama), Precision::F32),
        (frozen(Family::Gpt2, &some), Precision::F32),
        (frozen(Family::Llama, &some), Precision::Bf16),
        (adapted(Family::Gpt2), Precision::Bf16),
        (adapted(Family::Llama), Precision::F32),
    ] {
        let Some([one, other]) = two(precision) else { return };
        let mut setup = setup(model.clone(), alone(&model), STEPS);
        if model.family == Family::Llama && model.lora.is_none() {
            // Parts of what is packed as one decay by rates of their own.
            setup.optimizer.decay_rates = decay_rates(&model);
        }
        let mut run = SerialReference::new(&setup, one, corpus()).expect("memory");
        setup.clip_norm = Some(0.9 * run.step(Step(0), false).norm);
        let mut serial = SerialReference::new(&setup, other, corpus()).expect("memory");
        for step in 0..STEPS {
            serial.step(Step(step), step == 1);
        }
        setup.plan = plan(&model, ScheduleKind::ZbH1, 3, Window::One);
        setup.attest_every = 1;
        let part = if model.lora.is_some() { ".lora_B" } else { "" };
        let injection = format!("step=2,tensor=layers.3.mlp.down{part},value=nan");
        setup.injections = vec![injection.parse().expect("a legal injection")];
        let policy = policy(setup.clip_norm, NonfinitePolicy::Skip);
        let backend = |_| {
            let [one, _] = two(precision).expect("there was a compiler");
            one
        };
        let outcome = StageCluster::on_backends(&setup, policy, 5, corpus(), backend).run();
        assert!(outcome.rollbacks > 0 && outcome.verdicts("clip") > 0, "candidates are dropped");
        assert_eq!(outcome.verdicts("skip"), 1);
        assert_eq!(outcome.digest, serial.digest(), "{model:?} {precision:?}");
    }
}

/// A step before the verdict takes memory for norms, biases and tables, and none for matrices.
#[test]
fn optimism_takes_no_memory_for_matrices() {
    let model = tiny_model(Family::Gpt2);
    let Some([device, _]) = two(Precision::Bf16) else { return };
    for spec in model_layers(&model) {
        let matrices: usize = spec
            .tensors
            .iter()
            .filter(|it| it.is_matrix())
            .map(|it| it.shape.iter().product::<usize>())
            .sum();
        let is_table = spec.kind == LayerKind::Embed;
        let rest = if is_table { spec.len() } else { spec.len() - matrices };
        let state = layer_bytes(&device, &model, &spec);
        let in_place = replayed_bytes(&device, &spec);
        let packed_weights: u64 = LayerParts::new(&model, &spec)
            .matrices()
            .into_iter()
            .map(|linear| device.matrix_bytes(linear.shape))
            .sum();
        assert_eq!(
            state.0,
            in_place.0 + packed_weights + device.buffer_bytes(rest),
            "{:?}",
            spec.kind
        );
    }
}

#[test]
fn halves_are_given_up_made_again_and_cut() {
    give_up_make_again_and_cut::<EmulatedDevices>();
}

/// Passes that are made again or leave give up activations and get them back as they were; slices
/// read keys and values of others.
fn give_up_make_again_and_cut<P: DeviceProvider>() {
    let model = tiny_model(Family::Llama);
    let precision = Precision::Bf16;
    let Some([one, other]) = P::two(precision) else { return };
    let (expected, _) = serial(&model, alone(&model), one);
    let of_kind = |kind| plan(&model, kind, 2, Window::One);
    let of_four = |kind| plan_of_chunks(&model, kind, Some(2), 4, Window::One);
    let again = of_kind(ScheduleKind::ZbH1);
    let some = RecomputedOps { norm: true, attention: false, activation: true };
    let plans = [
        again.clone().with_recompute(Recompute::Full),
        again.with_recompute(Recompute::Selective(some)),
        of_kind(ScheduleKind::PoHalf),
    ];
    for (seed, plan) in (0..).zip(plans) {
        assert_eq!(piped::<P>(&model, plan, (precision, seed)), expected, "{seed}");
    }
    for precision in Precision::ALL {
        let Some([one, _]) = P::two(precision) else { return };
        let (expected, _) = serial(&model, alone(&model), one);
        let some = Recompute::Selective(some);
        let plans = [
            offloaded(&of_kind(ScheduleKind::ZbH1), 0.0),
            offloaded(&of_kind(ScheduleKind::ZbV), 0.0).with_recompute(some),
            of_four(ScheduleKind::PoHalf),
            of_four(ScheduleKind::PoSelective),
            of_four(ScheduleKind::PoFull).with_recompute(Recompute::Full),
        ];
        for plan in plans {
            let kind = plan.program.kind;
            let copies = plan.program.passes_with(MemoryOp::Offload).count();
            assert!(copies > 0, "{kind}");
            assert_eq!(piped::<P>(&model, plan, (precision, 4)), expected, "{precision:?} {kind}");
        }
    }
    let sliced = of_kind(ScheduleKind::Seq1F1B);
    let (expected, _) = serial(&model, sliced.clone(), other);
    assert_eq!(piped::<P>(&model, sliced, (precision, 3)), expected);
}

/// Two replicas that share the optimizer: candidates are sent as floats, also where a device has them packed.
#[test]
fn replicas_that_share_the_optimizer_train_to_the_bits_of_one_device() {
    let lanes = LaneCount::new(2).expect("a power of two");
    for (family, precision) in [(Family::Gpt2, Precision::F32), (Family::Llama, Precision::Bf16)] {
        let model = tiny_model(family);
        let of_replicas = |replicas, stage_count, window| {
            let request = PlanRequest {
                model: &model,
                batch: BatchShape { lanes, ..BATCH },
                kind: ScheduleKind::OneFOneB,
                chunks_per_stage: None,
                slice_count: None,
                stage_count,
                replicas: ReplicaCount::new(replicas).expect("a power of two"),
                window,
            };
            Plan::new(request).expect("a legal plan")
        };
        let Some([one, _]) = two(precision) else { return };
        let (expected, _) = serial(&model, of_replicas(1, 1, Window::Zero), one);
        for (seed, window) in [(1, Window::Zero), (2, Window::One)] {
            let plan = of_replicas(2, 2, window).with_shards(&model, 1);
            assert!(plan.is_sharded());
            let found = piped::<EmulatedDevices>(&model, plan, (precision, seed));
            assert_eq!(found, expected, "{family:?} {precision:?} {window}");
        }
    }
}

/// Operations of the only stage of a run before its device gives up, and what left it since.
fn given_up_after(operations: usize) -> Option<(EngineProgress, Vec<Output>)> {
    let model = tiny_model(Family::Gpt2);
    let setup = Arc::new(setup(model.clone(), alone(&model), STEPS));
    let device = EmulatedDevice::new(Precision::F32, device::LaneOrder::Forwards, 8 << 30)?;
    let backend = CudaBackend::new(device.clone());
    let mut engine =
        StageEngine::new(setup, StageIndex(0), backend, corpus()).expect("memory holds it");
    for _ in 0..operations {
        assert!(matches!(engine.run_next(), EngineProgress::Ran(_)));
    }
    std::iter::from_fn(|| engine.poll_output()).for_each(drop);
    device.fail();
    let mut left = Vec::new();
    // More than a step has; nothing is sealed here, so the engine could not go on for ever.
    for _ in 0..1000 {
        let progress = engine.run_next();
        left.extend(std::iter::from_fn(|| engine.poll_output()));
        if !matches!(progress, EngineProgress::Ran(_)) {
            return Some((progress, left));
        }
    }
    panic!("a device that gave up ends its engine")
}

/// Sums of what such a device leaves are NaN, and would be taken for those of a bad step.
#[test]
fn nothing_leaves_a_stage_whose_device_gave_up() {
    // Between the first pass and the sums of the step, which are its 25th operation.
    for operations in [0, 5, 12, 23, 24] {
        let Some((progress, left)) = given_up_after(operations) else { return };
        let EngineProgress::Faulted(DeviceFault::Sticky { code: 700, .. }) = progress else {
            panic!("after {operations}: {progress:?}");
        };
        assert!(left.is_empty(), "after {operations}: {left:?}");
    }
}
